import jax
import jax.numpy as jnp
import pytest

from jspec.cache import KVCache
from jspec.drafters import METHODS
from jspec.drafters.base import View
from jspec.rounds import DEAD
from jspec.sampling import Stream, row_keys
from jspec.testing import Loop, TableTarget

AIM = TableTarget(table=jnp.zeros((64, 64)))


def drafts(text, **options):
    drafter = METHODS["ngram"](**options)
    loop = Loop(AIM, drafter, rows=1, room=40)
    loop.admit(0, text)
    rows, pages = loop.state.rows, loop.state.pages
    view = View(
        target=AIM,
        cache=KVCache(pages=pages, table=rows.table, length=rows.length),
        sampling=rows.sampling,
    )
    keys = row_keys(rows.sampling, rows.length, Stream.DRAFT)
    proposal, _ = jax.jit(drafter.propose)(
        None, loop.state.memory, rows.anchor, keys, view
    )
    assert proposal.tokens[0, 0] == text[-1]
    offered = proposal.parent[0, 1:] != DEAD
    return proposal.tokens[0, 1:][offered].tolist()


@pytest.mark.parametrize(
    ("text", "options", "right"),
    [
        ([1, 2, 3, 4, 1, 2], {"gamma": 3}, [3, 4, 1]),
        ([1, 2, 3, 9, 1, 2, 7, 9, 1, 2], {"gamma": 2}, [7, 9]),
        ([5, 1, 2, 3, 6, 1, 2, 7, 5, 1, 2], {"gamma": 1}, [3]),
        ([5, 1, 2, 3, 6, 1, 2, 7, 5, 1, 2], {"gamma": 1, "longest": 2}, [7]),
        ([1, 2, 1, 2], {"gamma": 5}, [1, 2, 1, 2, 1]),
        ([7, 7, 7], {"gamma": 3}, [7, 7, 7]),
        ([1, 2, 3], {"gamma": 3}, []),
        ([1, 2, 1], {"gamma": 3}, []),
        ([1, 2, 1], {"gamma": 3, "shortest": 1}, [2, 1, 2]),
        ([9], {"gamma": 3, "shortest": 1}, []),
        ([1, 2, 1, 2], {"gamma": 0}, []),
        ([1, 2, 3, *range(10, 43), 1, 2], {"gamma": 1}, [3]),
    ],
    ids=str,
)
def test_the_longest_and_then_the_latest_repeat_is_continued(text, options, right):
    assert drafts(text, **options) == right


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gamma": -1}, "gamma must be at least 0, not -1"),
        ({"shortest": 0}, "1 <= shortest <= longest"),
        ({"shortest": 3, "longest": 2}, "shortest=3, longest=2"),
    ],
)
def test_sizes_that_look_up_nothing_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        METHODS["ngram"](**options)
