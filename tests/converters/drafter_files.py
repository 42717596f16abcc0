"""Drafters' files with the names and shapes of `formats`, and random numbers."""

import json

import numpy as np
from safetensors.numpy import load_file, save_file

H, I, A, K, D, V, VD, HT = 32, 48, 4, 2, 8, 64, 40, 32
LLAMA = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": H,
    "intermediate_size": I,
    "num_hidden_layers": 1,
    "num_attention_heads": A,
    "num_key_value_heads": K,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


def attention(prefix, wide=H, bias=False):
    shapes = {
        f"{prefix}self_attn.q_proj.weight": (A * D, wide),
        f"{prefix}self_attn.k_proj.weight": (K * D, wide),
        f"{prefix}self_attn.v_proj.weight": (K * D, wide),
        f"{prefix}self_attn.o_proj.weight": (H, A * D),
    }
    if bias:
        for name, rows in (("q", A * D), ("k", K * D), ("v", K * D)):
            shapes[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
    return shapes


def mlp(prefix):
    return {
        f"{prefix}mlp.gate_proj.weight": (I, H),
        f"{prefix}mlp.up_proj.weight": (I, H),
        f"{prefix}mlp.down_proj.weight": (H, I),
        f"{prefix}post_attention_layernorm.weight": (H,),
    }


def eagle(bias=True, embedding=True, layers=1):
    shapes = {"fc.weight": (H, 2 * H)}
    if bias:
        shapes["fc.bias"] = (H,)
    if embedding:
        shapes["embed_tokens.weight"] = (V, H)
    for l in range(layers):
        shapes |= attention(f"layers.{l}.") | mlp(f"layers.{l}.")
        if l:
            shapes[f"layers.{l}.input_layernorm.weight"] = (H,)
    config = LLAMA | {"architectures": ["LlamaForCausalLM"], "bias": bias}
    return config | {"num_hidden_layers": layers}, shapes


def eagle3(layout="safeailab", vd=VD, taps=3, **flags):
    first = "layers.0." if layout == "speculators" else "midlayer."
    shapes = {"fc.weight": (H, taps * HT)}
    shapes |= attention(first, 2 * H) | mlp(first)
    for name in ("hidden_norm", "input_layernorm"):
        shapes[f"{first}{name}.weight"] = (H,)
    shapes |= {"norm.weight": (H,), "lm_head.weight": (vd, H)}
    if vd != V:
        shapes |= {"d2t": (vd,), "t2d": (V,)}
    if flags.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (HT,) for i in range(taps)}
    if flags.get("norm_before_fc"):
        shapes["input_norm.weight"] = (taps * HT,)
    if layout == "speculators":
        shapes["embed_tokens.weight"] = (V, H)
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": LLAMA,
            "norm_before_residual": False,
        }
    else:
        names = {"safeailab": "LlamaForCausalLM", "specforge": "LlamaForCausalLMEagle3"}
        config = LLAMA | {"architectures": [names[layout]]}
    return config | {"draft_vocab_size": vd} | flags, shapes


def numbers(shapes, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {n: rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    if "d2t" in shapes:
        ids = np.sort(rng.permutation(V)[: shapes["d2t"][0]])
        arrays["d2t"] = ids - np.arange(len(ids))
        arrays["t2d"] = np.isin(np.arange(V), ids)
    return arrays


def write(folder, config, arrays, container="safetensors"):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if container == "safetensors":
        save_file(arrays, folder / "model.safetensors")
    else:
        import torch

        state = {name: torch.from_numpy(a) for name, a in arrays.items()}
        torch.save(state, folder / container)
    return folder


def read(folder):
    return json.loads((folder / "config.json").read_text()), load_file(
        folder / "model.safetensors"
    )
