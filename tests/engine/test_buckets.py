"""The closed set of shapes."""

import pytest

from jspec.engine.buckets import Buckets, powers


def buckets(**changes):
    sizes = {"batch": (1, 2, 4), "prompt": (64, 128), "gammas": (0, 4)}
    return Buckets(**(sizes | changes))


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (12, (1, 2, 4, 8, 12))],
)
def test_powers_end_with_the_largest(largest, sizes):
    assert powers(largest) == sizes


def test_a_size_takes_the_smallest_bucket_that_holds_it():
    sizes = buckets().prompt
    fits = [Buckets.fit(n, sizes, "a piece of") for n in (0, 1, 64, 65, 128)]
    assert fits == [64, 64, 64, 128, 128]
    with pytest.raises(ValueError, match="a piece of 129 exceeds the largest bucket"):
        Buckets.fit(129, sizes, "a piece of")


@pytest.mark.parametrize("field", ["batch", "prompt", "gammas"])
@pytest.mark.parametrize("sizes", [(), (2, 1), (1, 1)])
def test_buckets_that_do_not_rise_are_refused(field, sizes):
    with pytest.raises(ValueError, match=f"{field} buckets must rise"):
        buckets(**{field: sizes})


def test_the_number_of_executables_is_known_beforehand():
    assert buckets().count == 3 * 2 + 2 + 2
