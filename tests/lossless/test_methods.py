"""Every method answers the four questions."""

import pytest

from jspec.drafters import METHODS
from jspec.testing import check_method, tiny_target

OPTIONS = {
    "ngram": {"gamma": 3, "shortest": 1},
    "draft_model": {"gamma": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIONS)
def test_the_four_questions(method):
    target = tiny_target()
    weights = tiny_target(1) if method == "draft_model" else None
    check_method(
        METHODS[method](**OPTIONS[method]), weights, target, tokens=16, draws=4000
    )
