"""Targets' files with MTP modules beside them, by the names of each family."""

from tests.converters.drafter_files import LLAMA, A, D, H, K, V, attention, mlp

LT = 2
PAIR = ("enorm", "hnorm", "eh_proj")
FORMS = {
    "deepseek_v3": ("model.layers.{i}.", (*PAIR, "shared_head.norm")),
    "glm4_moe": ("model.layers.{i}.", (*PAIR, "shared_head.norm")),
    "step3p5": ("model.layers.{i}.", (*PAIR, "shared_head.norm", "shared_head.head")),
    "mimo": (
        "model.mtp_layers.{k}.",
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    ),
    "mimo_v2": ("model.mtp.layers.{k}.", (*PAIR, "final_layernorm")),
    "qwen3_next": (
        "mtp.",
        ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    ),
    "ernie4_5": ("model.mtp_", ("emb_norm", "hidden_norm", "linear_proj")),
}
MATRICES = {
    **dict.fromkeys(("eh_proj", "input_proj", "fc", "linear_proj"), (H, 2 * H)),
    "shared_head.head": (V, H),
}


def decoder(prefix, *, bias=False, gated=False, norms=False):
    """A dense layer with grouped heads."""
    shapes = attention(prefix, bias=bias) | mlp(prefix)
    shapes[f"{prefix}input_layernorm.weight"] = (H,)
    if gated:
        shapes[f"{prefix}self_attn.q_proj.weight"] = (2 * A * D, H)
    if norms:
        shapes |= {f"{prefix}self_attn.{n}_norm.weight": (D,) for n in "qk"}
    return shapes


def module(family, k):
    """The tensors of one module."""
    prefix, names = FORMS[family]
    prefix = prefix.replace("{k}", str(k)).replace("{i}", str(LT + k))
    end, inner = "weight", prefix
    if family == "qwen3_next":
        inner = f"mtp.layers.{k}."
    if family == "ernie4_5":
        end, inner = f"{k}.weight", f"model.mtp_block.{k}."
    shapes = {f"{prefix}{name}.{end}": MATRICES.get(name, (H,)) for name in names}
    shapes |= decoder(
        inner,
        bias=family in ("mimo", "glm4_moe"),
        gated=family == "qwen3_next",
        norms=family in ("qwen3_next", "glm4_moe"),
    )
    if family == "mimo_v2":
        other = f"{inner}pre_mlp_layernorm.weight"
        shapes[other] = shapes.pop(f"{inner}post_attention_layernorm.weight")
    return shapes


def target(bias=True):
    """A Qwen2 in full."""
    shapes = {
        "model.embed_tokens.weight": (V, H),
        "model.norm.weight": (H,),
        "lm_head.weight": (V, H),
    }
    for l in range(LT):
        shapes |= decoder(f"model.layers.{l}.", bias=bias)
    return shapes


def checkpoint_of(family, modules=1, **changes):
    """config.json and shapes of a target with modules."""
    config = LLAMA | {
        "model_type": family,
        "num_hidden_layers": LT,
        "num_nextn_predict_layers": modules,
        "head_dim": D,
    }
    if family == "mimo":
        config |= {"architectures": ["MiMoForCausalLM"], "attention_bias": True}
    if family == "mimo_v2":
        config |= {"layernorm_epsilon": config.pop("rms_norm_eps"), "head_dim": 99}
        config |= {
            "swa_num_attention_heads": A,
            "swa_num_key_value_heads": K,
            "swa_head_dim": D,
            "swa_rope_theta": 500.0,
            "sliding_window_size": 6,
        }
    shapes = target()
    for k in range(modules):
        shapes |= module(family, k)
    return config | changes, shapes


def speculators(kind="qwen3"):
    """A module in files of its own."""
    shapes = module("mimo", 0)
    shapes = {n.removeprefix("model."): s for n, s in shapes.items()}
    shapes = {n: s for n, s in shapes.items() if not n.endswith("bias")}
    layer = "mtp_layers.0."
    shapes |= {f"{layer}self_attn.{n}_norm.weight": (D,) for n in "qk"}
    if kind != "qwen3":
        shapes[f"{layer}self_attn.q_proj.weight"] = (2 * A * D, H)
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": LLAMA | {"model_type": kind, "head_dim": D},
    }
    return config, shapes


def only_modules(shapes):
    """What is not the target's."""
    theirs = target()
    return {name: shape for name, shape in shapes.items() if name not in theirs}
