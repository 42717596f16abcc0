import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.convert import convert, plan
from converters.export import export
from jspec.checkpoint import load_drafter
from jspec.drafters import METHODS
from jspec.drafters.pard import PARD
from jspec.models.base import weight_shapes
from jspec.params import SamplingParams
from jspec.testing import GREEDY, check_method, decode, tiny_config, tiny_target
from tests.drafters import blocks

MASK = 63


def made(seed=1, *, mask=MASK, model=None, **options):
    config = tiny_config(**model or {})
    drafter = PARD.configure(
        {"model": config.to_json(), "mask_token_id": mask}, **options
    )
    return drafter, blocks.random_weights(drafter.weight_shapes(), seed)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A Qwen 3 by transformers, its directory as PARD's, and that converted."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            tie_word_embeddings=True,
            max_position_embeddings=128,
        )
    )
    folder = tmp_path_factory.mktemp("pard")
    there, here = folder / "there", folder / "here"
    model.save_pretrained(there)
    raw = json.loads((there / "config.json").read_text()) | {"pard_token": MASK}
    (there / "config.json").write_text(json.dumps(raw))
    convert(there, here)
    return model.eval(), there, here


def test_drafts_are_those_of_one_causal_pass_over_masks(published):
    import torch

    model, _, here = published
    method, config, weights = load_drafter(here)
    drafter = METHODS[method].configure(config, gamma=3)
    target = tiny_target()
    wish = SamplingParams(temperature=0.8, max_tokens=8)
    loop, view = blocks.prepared(target, drafter, weights, params=wish)
    for _ in range(2):
        proposal, _ = jax.jit(drafter.propose)(
            weights,
            loop.state.memory,
            loop.state.rows.anchor,
            blocks.keys(4),
            view,
        )
        texts = np.array(view.cache.text)
        for row in range(4):
            length = int(view.cache.length[row])
            text = [*texts[row, :length].tolist(), int(proposal.tokens[row, 0])]
            ids = torch.tensor([[*text, MASK, MASK]])
            with torch.no_grad():
                right = model(ids).logits[0, -3:]
            law = (right / 0.8).softmax(-1)
            np.testing.assert_allclose(proposal.q[row, 1:], law, atol=1e-5)
        loop.round()
        rows = loop.state.rows
        cache = type(view.cache)(
            pages=loop.state.pages, table=rows.table, length=rows.length
        )
        view = type(view)(target=target, cache=cache, sampling=rows.sampling)


def test_a_pard_directory_is_written_back(published, tmp_path):
    _, there, here = published
    export(here, tmp_path / "back")
    raw = json.loads((tmp_path / "back" / "config.json").read_text())
    assert raw == json.loads((there / "config.json").read_text())
    assert plan(tmp_path / "back").config == plan(there).config


def test_other_vocabularies_pad_or_cut_the_law():
    aim = tiny_target(0, vocab_size=80, token_count=60)
    drafter, weights = made(gamma=2)
    prompts = [[1, 2], [3]]
    params = SamplingParams(temperature=3.0, seed=1, max_tokens=12, ignore_eos=True)
    done = decode(aim, drafter, weights, prompts, params)
    assert max(max(d.tokens) for d in done) < 60
    assert any(sum(d.accepted) for d in done)


def test_a_draft_of_no_tokens_is_plain_decoding_and_reads_on():
    aim = tiny_target()
    drafter, weights = made(gamma=0)
    right = decode(aim, METHODS["none"](), None, [[1], [2, 3]], GREEDY)
    ours = decode(aim, drafter, weights, [[1], [2, 3]], GREEDY)
    assert [d.tokens for d in ours] == [d.tokens for d in right]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: made(mask=64), "mask_token_id 64 is no row"),
        (lambda: made(gamma=-1), "gamma must be at least 0"),
        (lambda: made(confidence_threshold=2.0), "confidence_threshold must lie"),
        (lambda: PARD.configure({"mask_token_id": 1}), "lacks the key 'model'"),
    ],
)
def test_what_cannot_be_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()


def test_a_model_without_some_of_the_targets_tokens_is_refused():
    drafter, weights = made()
    with pytest.raises(ValueError, match="has 64 tokens, the target 80"):
        drafter.check(weights, tiny_target(vocab_size=80))
    with pytest.raises(ValueError, match=r"weight layers\.0\.q has shape None"):
        less = {name: a for name, a in weights.items() if name != "layers.0.q"}
        drafter.check(less, tiny_target())
    assert drafter.weight_shapes() == weight_shapes(drafter.config.model)
    assert jnp.issubdtype(weights["embed"].dtype, jnp.floating)


def test_a_model_of_another_body_or_without_a_mask_is_refused(published, tmp_path):
    _, there, _ = published
    raw = json.loads((there / "config.json").read_text())
    for change, error in (
        ({"architectures": ["GemmaForCausalLM"]}, "'GemmaForCausalLM' is not"),
        ({"pard_token": None}, "pard_token is None"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(raw | change))
        model = (there / "model.safetensors").read_bytes()
        (tmp_path / "model.safetensors").write_bytes(model)
        with pytest.raises(ValueError, match=error):
            plan(tmp_path)


@pytest.mark.slow
def test_the_four_questions():
    drafter, weights = made(gamma=3, confidence_threshold=0.001)
    check_method(drafter, weights, tiny_target(), tokens=16, draws=4000)
