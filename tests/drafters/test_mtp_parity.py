"""MTP modules' passes agree with a plain torch implementation, and transformers'."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.testing import tiny_target
from tests.drafters.eagles import sized, weights_of
from tests.drafters.laws import angles, norm, proposed, turn
from tests.drafters.mtps import MIMO, NEXT, STEP, mtp

torch = pytest.importorskip("torch", reason="the second implementation is torch's")
F = torch.nn.functional

BIASED = sized(attention_bias=True)
CASES = {
    "deepseek": mtp(config={"zeroed_first": True}),
    "deepseek, two modules, the last one goes on": mtp(
        config={"zeroed_first": True, "modules": 2}, gamma=4
    ),
    "glm, half of each head turned": mtp(
        sized(attention_bias=True, qk_norm=True, rotary_dim=4), {"zeroed_first": True}
    ),
    "step, three modules": mtp(config=STEP | {"modules": 3}),
    "mimo": mtp(BIASED, MIMO),
    "mimo_v2, a window": mtp(sized(windows=(3,)), {"modules": 2}),
    "qwen3_next": mtp(NEXT, {"unit_norms": True}),
    "ernie": mtp(
        config={"zeroed_first": True, "normed_feed": False, "final_norm": False}
    ),
    "window and sink as options": mtp(window=3, sink=2),
}
QUICK = ("deepseek, two modules, the last one goes on", "mimo", "qwen3_next")


def layer(config, w, x, window, sink):
    """One text's states behind the module's layer."""
    sizes = config.sizes
    n, d, more = len(x), sizes.head_dim, float(config.unit_norms)

    def lin(x, name):
        return x @ w[f"layers.0.{name}"] + w.get(f"layers.0.{name}_bias", 0)

    y = norm(x, w["layers.0.attention_norm"] + more)
    q = lin(y, "q").view(n, sizes.num_heads, -1)
    k, v = (lin(y, name).view(n, -1, d) for name in "kv")
    gate = None
    if sizes.output_gate:
        q, gate = q.chunk(2, -1)
    if sizes.qk_norm:
        q = norm(q, w["layers.0.q_norm"] + more)
        k = norm(k, w["layers.0.k_norm"] + more)
    r = sizes.rotary_dim or d
    a = angles(sizes.rope, r, torch.arange(n))
    q, k = (torch.cat([turn(u[..., :r], a), u[..., r:]], -1) for u in (q, k))
    group = sizes.num_heads // sizes.num_key_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    back = torch.arange(n)[:, None] - torch.arange(n)[None]
    seen = back >= 0
    if window is not None:
        seen &= (back < window) | (torch.arange(n) < sink)[None]
    scores = torch.einsum("qhd,khd->hqk", q, k) * d**-0.5
    scores = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", scores, v)
    if gate is not None:
        mixed = mixed * torch.sigmoid(gate)
    h = x + lin(mixed.reshape(n, -1), "o")
    y = norm(h, w["layers.0.mlp_norm"] + more)
    return h + lin(F.silu(lin(y, "gate")) * lin(y, "up"), "down")


def states(drafter, w, target, features, tokens):
    """Of all pairs of one text: what is handed on, and logits."""
    config, more = drafter.config, float(drafter.config.unit_norms)
    e = w.get("embed", target["embed"])[torch.tensor(tokens)]
    if config.zeroed_first:
        e = torch.cat([torch.zeros_like(e[:1]), e[1:]])
    pair = [norm(e, w["token_norm"] + more), norm(features, w["feature_norm"] + more)]
    x = torch.cat(pair[::-1] if config.hidden_first else pair, -1) @ w["fc"]
    window = drafter.window or (config.sizes.windows or (None,))[0]
    h = layer(config, w, x, window, drafter.sink)
    out = norm(h, w["norm"] + more) if config.final_norm else h
    logits = out @ w.get("head", target["head"])
    return out if config.normed_feed else h, logits


def drafted_laws(drafter, w, target, taps, tokens, drafts):
    """The law of each draft of one text, the drafts before it given."""
    config, text, laws = drafter.config, list(tokens), []
    features = norm(taps, target["norm"]) if config.normed_features else taps
    for step, draft in enumerate(drafts):
        module = min(step, config.modules - 1)
        prefix = f"modules.{module}."
        own = {n.removeprefix(prefix): a for n, a in w.items() if n.startswith(prefix)}
        fed, logits = states(drafter, own, target, features, text[module:])
        laws.append(logits[-1].softmax(-1).numpy())
        text.append(int(draft))
        features = fed if step < config.modules - 1 else torch.cat([features, fed[-1:]])
    return laws


@pytest.mark.parametrize(
    "case",
    [
        case if case in QUICK else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_the_law_of_every_draft_is_that_of_torch(case):
    target = tiny_target()
    drafter = CASES[case].fit(target)
    weights = weights_of(drafter)
    drafter.check(weights, target)
    proposal, law_after = proposed(drafter, weights, target, drafted_laws)
    for row in range(2):
        drafts = np.asarray(proposal.tokens[row, 1:])
        assert len(drafts) == drafter.gamma
        right = law_after(row, drafts)
        np.testing.assert_allclose(proposal.q[row, 1:], right, atol=2e-6)


@pytest.mark.slow
def test_every_node_of_a_tree_is_among_the_likeliest_after_its_path():
    target = tiny_target()
    drafter = mtp(BIASED, MIMO, gamma=3, tree_width=3, tree_nodes=16).fit(target)
    proposal, law_after = proposed(drafter, weights_of(drafter), target, drafted_laws)
    tokens, parent = np.asarray(proposal.tokens[0]), np.asarray(proposal.parent[0])
    for node in range(1, len(tokens)):
        path, above = [], parent[node]
        while above > 0:
            path.insert(0, tokens[above])
            above = parent[above]
        assert tokens[node] in np.argsort(law_after(0, [*path, 0])[-1])[-3:]


NAMES = {
    "token_norm": "enorm",
    "feature_norm": "hnorm",
    "fc": "eh_proj",
    "norm": "post_norm",
    "attention_norm": "mtp_block.input_layernorm",
    "mlp_norm": "mtp_block.post_attention_layernorm",
    **{n: f"mtp_block.self_attn.{n}_proj" for n in "qkvo"},
    **{n: f"mtp_block.mlp.{n}_proj" for n in ("gate", "up", "down")},
}


@pytest.mark.parametrize("hidden_first", [False, True])
def test_two_modules_of_qwen2_are_those_of_transformers(hidden_first):
    transformers = pytest.importorskip("transformers", minversion="5.24")
    MtpModel = transformers.modeling_layers.MtpModel
    config = transformers.Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    config.num_mtp_layers = 2
    config.mtp_layer_types = ["full_attention"] * 2
    config.mtp_hidden_states_first = hidden_first
    target = tiny_target(num_layers=1)
    drafter = mtp(BIASED, {"modules": 2, "hidden_first": hidden_first}, gamma=2).fit(
        target
    )
    weights = weights_of(drafter)
    main = transformers.Qwen2ForCausalLM(config).eval()
    modules = MtpModel(main, 2).eval()
    state = {}
    for name, value in weights.items():
        _, k, *part = name.split(".")
        part, bias, _ = part[-1].partition("_bias")
        array = torch.tensor(np.asarray(value))
        key = f"layers.{k}.{NAMES[part]}.{'bias' if bias else 'weight'}"
        state[key] = array.T if array.ndim > 1 else array
    left = modules.load_state_dict(state, strict=False)
    assert not left.unexpected_keys
    assert all(not name.startswith("layers.") for name in left.missing_keys)
    with torch.no_grad():
        main.lm_head.weight.copy_(torch.tensor(np.asarray(target.head[...])).T)
        main.model.embed_tokens.weight.copy_(
            torch.tensor(np.asarray(target.embed[...]))
        )

    def theirs(drafter, w, target, taps, tokens, drafts):
        text, laws = [*tokens, *map(int, drafts)], []
        hidden = norm(taps, target["norm"])[None]
        for step in range(len(drafts)):
            ids = torch.tensor([text[step : step + len(taps)]])
            with torch.no_grad():
                hidden = modules.forward_layer(
                    step, hidden, torch.arange(len(taps))[None], None, input_ids=ids
                )
                logits = modules._project_to_logits(hidden[:, -1:])
            laws.append(logits[0, 0].softmax(-1).numpy())
        return laws

    proposal, law_after = proposed(drafter, weights, target, theirs)
    for row in range(2):
        right = law_after(row, np.asarray(proposal.tokens[row, 1:]))
        np.testing.assert_allclose(proposal.q[row, 1:], right, atol=2e-6)


def test_norms_of_one_more_than_their_weight_keep_the_dtype():
    target = tiny_target(dtype=jnp.bfloat16)
    drafter = mtp(NEXT, {"unit_norms": True}).fit(target)
    [model] = drafter.models(weights_of(drafter, dtype=jnp.bfloat16), target)
    states = model.forward(
        jnp.ones((1, 2, 32), jnp.bfloat16),
        jnp.array([[1, 2]]),
        jnp.array([[0, 1]]),
        lambda layer, q, k, v: q,
    )
    assert states.dtype == model.feed(states).dtype == jnp.bfloat16
