"""MTP modules answer the four questions, one alone and one a step."""

import pytest

from jspec.testing import check_method, tiny_target
from tests.drafters.eagles import weights_of
from tests.drafters.mtps import MIMO, NEXT, STEP, mtp

DRAFTERS = {
    "one module, drawn": mtp(config=MIMO),
    "two modules, the last one goes on": mtp(
        config=STEP | {"modules": 2}, confidence_threshold=0.01
    ),
    "a grown tree": mtp(
        NEXT, {"unit_norms": True}, window=4, sink=1, tree_width=3, tree_nodes=8
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_four_questions(drafter):
    target = tiny_target()
    fitted = DRAFTERS[drafter].fit(target)
    check_method(fitted, weights_of(fitted), target, tokens=16, draws=4000)
