import dataclasses
import json

import jax
import numpy as np
import pytest

from converters.convert import convert, plan
from converters.export import export
from jspec.checkpoint import load_drafter, save_drafter
from jspec.drafters import METHODS
from jspec.drafters.p_eagle import PEagle
from jspec.params import SamplingParams
from jspec.testing import GREEDY, check_method, decode, tiny_target
from tests.drafters import blocks
from tests.drafters.eagles import eagle3, sized, weights_of

torch = pytest.importorskip("torch", reason="the second implementation is torch's")

MASK = 62
HEAD = {"own_embedding": True, "draft_vocab_size": 40, "fuse_norm": True}


def made(layers=2, head=HEAD, mask=MASK, **options):
    config = eagle3(sized(num_layers=layers, max_position=512), head).config.to_json()
    fields = {"head": config, "mask_token_id": mask}
    drafter = PEagle.configure(fields, **options)
    weights = weights_of(Weights(drafter))
    return drafter, weights


@dataclasses.dataclass
class Weights:
    """What `weights_of` reads of a drafter."""

    drafter: PEagle

    @property
    def config(self):
        return self.drafter.config.head

    def weight_shapes(self):
        return self.drafter.weight_shapes()


def test_drafts_are_those_of_one_causal_pass_over_masks():
    from tests.drafters.test_eagle_parity import fused, hidden, norm

    target = tiny_target()
    drafter, weights = made(gamma=3)
    wish = SamplingParams(temperature=0.8, max_tokens=8)
    loop, view = blocks.prepared(target, drafter, weights, params=wish)
    proposal, _ = jax.jit(drafter.propose)(
        weights, loop.state.memory, loop.state.rows.anchor, blocks.keys(4), view
    )
    w = {name: torch.tensor(np.array(a)) for name, a in weights.items()}
    theirs = {"embed": torch.tensor(np.array(target.embed))}
    three = eagle3(sized(num_layers=2), HEAD)
    for row, text in enumerate(blocks.TEXTS):
        if len(text) == 1:
            assert (np.array(proposal.parent[row]) == -1).all()
            continue
        taps = torch.tensor(blocks.tapped(target, text, drafter.feature_layers))[:-1]
        taps = torch.cat([taps, w["mask_hidden"].expand(2, -1)])
        features = fused(three, w, theirs, taps)
        tokens = torch.tensor([*text[1:], MASK, MASK])
        out = norm(hidden(three, w, theirs, features, tokens)[-3:], w["norm"])
        law = (out @ w["head"] / 0.8).softmax(-1)
        np.testing.assert_allclose(proposal.q.probs[row, 1:], law, atol=1e-5)
        drawn = np.array(proposal.tokens[row, 1:])
        assert set(drawn) <= set(np.array(weights["ids"]).tolist())


def test_greedy_text_is_plain_text_with_fewer_and_with_no_drafts():
    target = tiny_target()
    prompts = [list(text) for text in blocks.TEXTS]
    params = dataclasses.replace(GREEDY, max_tokens=8)
    right = decode(target, METHODS["none"](), None, prompts, params)
    for gamma in (0, 1):
        drafter, weights = made(layers=1, gamma=gamma, confidence_threshold=0.001)
        done = decode(target, drafter, weights, prompts, params)
        assert [d.tokens for d in done] == [d.tokens for d in right]


def test_its_checkpoint_is_written_and_read_in_speculators_layout(tmp_path):
    drafter, weights = made()
    config = drafter.config.to_json()
    save_drafter(tmp_path / "here", "p_eagle", config, weights, source={})
    export(tmp_path / "here", tmp_path / "there")
    raw = json.loads((tmp_path / "there" / "config.json").read_text())
    assert raw["speculators_model_type"] == "peagle" and raw["mask_token_id"] == MASK
    convert(tmp_path / "there", tmp_path / "again")
    method, found, arrays = load_drafter(tmp_path / "again")
    assert method == "p_eagle"
    assert PEagle.configure(found).config == drafter.config
    assert arrays.keys() == weights.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, weights[name], err_msg=name)
    del raw["mask_token_id"]
    (tmp_path / "there" / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="lacks mask_token_id"):
        plan(tmp_path / "there")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mask": 64}, "mask_token_id 64 is no row"),
        ({"head": {}}, "needs an embedding of its own"),
        ({"gamma": -1}, "gamma must be an integer of at least 0"),
        ({"confidence_threshold": 2.0}, "confidence_threshold must lie"),
        ({"ragged": "compact"}, "ragged_budget goes with"),
    ],
)
def test_what_cannot_be_is_refused(options, error):
    with pytest.raises(ValueError, match=error):
        made(**options)


def test_a_head_without_its_learned_feature_is_refused():
    drafter, weights = made()
    rest = {name: a for name, a in weights.items() if name != "mask_hidden"}
    with pytest.raises(ValueError, match="weight mask_hidden has shape None"):
        drafter.check(rest, tiny_target())


@pytest.mark.slow
def test_the_four_questions():
    drafter, weights = made(gamma=3, confidence_threshold=0.001)
    check_method(drafter, weights, tiny_target(), tokens=16, draws=4000)
