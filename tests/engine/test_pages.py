"""Pages are held once, shared where texts begin alike, and all come back."""

import random

import pytest

from jspec.engine.pages import PagePool

TEXT = tuple(range(100, 140))


def held(pool, prompt, capacity=None, salt=None):
    grant = pool.admit(prompt, capacity or len(prompt), salt)
    assert grant is not None
    return grant


def test_a_grant_covers_the_whole_capacity():
    pool = PagePool(pages=8, page_size=4)
    grant = held(pool, TEXT[:5], 13)
    assert grant.pages == [0, 1, 2, 3]
    assert (grant.cached_tokens, pool.available, pool.used) == (0, 4, 4)


def test_too_few_pages_grant_nothing_and_take_nothing():
    pool = PagePool(pages=3, page_size=4)
    held(pool, TEXT[:4])
    assert pool.admit(TEXT[:9], 9) is None
    assert pool.available == 2
    assert held(pool, TEXT[:8]).pages == [1, 2]


def test_a_prompt_shares_the_full_pages_that_were_published():
    pool = PagePool(pages=16, page_size=4)
    first = held(pool, TEXT[:10], 16)
    pool.publish(first, TEXT[:10])
    second = held(pool, (*TEXT[:8], 7, 7, 7), 16)
    assert second.cached_tokens == 8
    assert second.pages[:2] == first.pages[:2]
    assert not set(second.pages[2:]) & set(first.pages)
    assert pool.used == 6


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (5, 4), (8, 4), (9, 8)])
def test_the_last_token_of_a_prompt_is_never_cached(length, cached):
    pool = PagePool(pages=16, page_size=4)
    pool.publish(held(pool, TEXT[:12]), TEXT[:12])
    assert held(pool, TEXT[:length]).cached_tokens == cached


@pytest.mark.parametrize(("written", "cached"), [(0, 0), (3, 0), (4, 4), (7, 4)])
def test_only_written_pages_are_known(written, cached):
    pool = PagePool(pages=16, page_size=4)
    pool.publish(held(pool, TEXT[:12]), TEXT[:12], written)
    assert held(pool, TEXT[:9]).cached_tokens == cached


def test_a_page_that_the_drafter_has_not_read_is_shared_and_says_so():
    pool = PagePool(pages=16, page_size=4)
    first = held(pool, TEXT[:13], 16)
    pool.publish(first, TEXT[:13], 12, 6)
    second = held(pool, TEXT[:13], 16)
    assert (second.cached_tokens, second.drafted) == (12, 1)
    pool.publish(second, TEXT[:13], 12, 12)
    assert held(pool, TEXT[:13], 16).drafted == 3


def test_a_text_is_published_as_it_grows():
    pool = PagePool(pages=16, page_size=4)
    grant = held(pool, TEXT[:5], 20)
    for written in range(21):
        pool.publish(grant, TEXT, written)
    assert held(pool, TEXT[:20], 20).pages[:4] == grant.pages[:4]


def test_the_same_tokens_after_another_beginning_are_another_page():
    pool = PagePool(pages=16, page_size=4)
    pool.publish(held(pool, TEXT[:8]), TEXT[:8])
    assert held(pool, (*TEXT[4:8], 1)).cached_tokens == 0
    assert held(pool, (*TEXT[4:8], *TEXT[4:8], 1)).cached_tokens == 0


def test_tokens_of_equal_hash_are_not_equal():
    assert hash((-1, 0)) == hash((-2, 0))
    pool = PagePool(pages=8, page_size=2)
    pool.publish(held(pool, (-1, 0)), (-1, 0))
    assert held(pool, (-2, 0, 5)).cached_tokens == 0
    assert held(pool, (-1, 0, 5)).cached_tokens == 2


def test_another_salt_shares_nothing():
    pool = PagePool(pages=16, page_size=4)
    pool.publish(held(pool, TEXT[:8], salt="a"), TEXT[:8])
    assert held(pool, TEXT[:9], salt="b").cached_tokens == 0
    assert held(pool, TEXT[:9]).cached_tokens == 0
    assert held(pool, TEXT[:9], salt="a").cached_tokens == 8


def test_without_a_prefix_cache_nothing_is_shared():
    pool = PagePool(pages=8, page_size=4, prefix_cache=False)
    grant = held(pool, TEXT[:8])
    pool.publish(grant, TEXT[:8])
    pool.release(grant)
    assert pool.cached == 0
    assert held(pool, TEXT[:9]).cached_tokens == 0


def test_released_pages_are_found_again_until_they_are_needed():
    pool = PagePool(pages=4, page_size=4)
    grant = held(pool, TEXT[:9])
    pool.publish(grant, TEXT[:9])
    pool.release(grant)
    assert (pool.available, pool.cached) == (4, 2)
    again = held(pool, TEXT[:9])
    assert again.cached_tokens == 8
    pool.release(again)
    pool.release(held(pool, (1, 2, 3), 16))
    assert held(pool, TEXT[:9]).cached_tokens == 0


def test_the_longest_idle_text_goes_first_and_its_end_before_its_beginning():
    pool = PagePool(pages=4, page_size=4)
    old = held(pool, TEXT[:8])
    pool.publish(old, TEXT[:8])
    pool.release(old)
    new = held(pool, TEXT[20:28])
    pool.publish(new, TEXT[20:28])
    pool.release(new)
    pool.release(held(pool, (1,), 4))
    assert held(pool, TEXT[20:29], 12).cached_tokens == 8
    pool = PagePool(pages=4, page_size=4)
    old = held(pool, TEXT[:12])
    pool.publish(old, TEXT[:12])
    pool.release(old)
    pool.release(held(pool, (1,), 8))
    assert held(pool, TEXT[:13], 16).cached_tokens == 8


def test_a_found_prefix_is_not_evicted_to_make_room_for_its_own_continuation():
    pool = PagePool(pages=4, page_size=4)
    first = held(pool, TEXT[:8])
    pool.publish(first, TEXT[:8])
    pool.release(first)
    second = held(pool, TEXT[:9], 16)
    assert second.cached_tokens == 8
    assert sorted(second.pages) == [0, 1, 2, 3]


def test_idle_pages_of_the_prefix_do_not_count_as_room():
    pool = PagePool(pages=4, page_size=4)
    first = held(pool, TEXT[:8])
    pool.publish(first, TEXT[:8])
    pool.release(first)
    blocker = held(pool, (1,), 4)
    assert pool.admit(TEXT[:9], 16) is None
    pool.release(blocker)
    assert held(pool, TEXT[:9], 16).cached_tokens == 8


def test_a_shared_page_stays_while_one_holds_it():
    pool = PagePool(pages=4, page_size=4)
    first = held(pool, TEXT[:5], 8)
    pool.publish(first, TEXT[:5])
    second = held(pool, TEXT[:5], 8)
    pool.release(first)
    assert pool.used == 2
    pool.release(second)
    assert pool.used == 0


def test_of_two_equal_texts_one_is_known_and_both_go_on():
    pool = PagePool(pages=8, page_size=4)
    a, b = held(pool, TEXT[:8], 16), held(pool, TEXT[:8], 16)
    pool.publish(a, TEXT[:8])
    pool.publish(b, (*TEXT[:8], 1, 2, 3, 4))
    pool.release(a)
    pool.release(b)
    again = held(pool, (*TEXT[:8], 1, 2, 3, 4, 5), 16)
    assert again.pages[:3] == [*a.pages[:2], b.pages[2]]


def test_a_text_whose_beginning_was_evicted_is_unknown_and_its_pages_come_back():
    pool = PagePool(pages=6, page_size=4)
    a, b = held(pool, TEXT[:4], 4), held(pool, TEXT[:4], 16)
    pool.publish(a, TEXT[:4])
    pool.publish(b, TEXT[:8])
    pool.release(a)
    rest = held(pool, (9,), 8)
    pool.publish(b, TEXT[:12])
    pool.release(b)
    assert (pool.available, pool.cached) == (4, 0)
    pool.release(rest)
    assert held(pool, TEXT[:9], 24).cached_tokens == 0


def test_a_grant_is_released_once():
    pool = PagePool(pages=4, page_size=4)
    grant = held(pool, TEXT[:4])
    pool.release(grant)
    with pytest.raises(ValueError, match="released already"):
        pool.release(grant)
    with pytest.raises(ValueError, match="released already"):
        pool.publish(grant, TEXT[:4])


def test_forgetting_keeps_what_is_held():
    pool = PagePool(pages=4, page_size=4)
    grant = held(pool, TEXT[:8])
    pool.publish(grant, TEXT[:8])
    pool.forget()
    assert pool.used == 2
    assert held(pool, TEXT[:5]).cached_tokens == 0
    pool.release(grant)
    assert pool.cached == 0


@pytest.mark.parametrize(("pages", "size"), [(0, 4), (4, 0)])
def test_a_pool_of_nothing_is_refused(pages, size):
    with pytest.raises(ValueError, match="at least 1"):
        PagePool(pages, size)


@pytest.mark.parametrize("seed", range(20))
def test_after_any_history_contents_are_right_and_counts_return(seed):
    rng = random.Random(seed)
    pool = PagePool(pages=rng.randint(4, 24), page_size=rng.choice([1, 2, 3, 4]))
    size, memory, drafters, live = pool.page_size, {}, {}, []

    def write(grant, text, start, stop, memory=memory):
        for i in range(start, stop):
            memory[grant.pages[i // size], i % size] = (grant.salt_of, tuple(text[:i]))

    class Tracked:
        def __init__(self, grant, salt, text, capacity):
            self.grant, self.salt_of, self.text = grant, salt, text
            self.pages, self.capacity = grant.pages, capacity
            self.written = grant.cached_tokens
            self.drafted = grant.drafted * size

    for _ in range(400):
        move = rng.random()
        if move < 0.4:
            text = [rng.randint(0, 1) for _ in range(rng.randint(1, 12))]
            capacity, salt = len(text) + rng.randint(0, 12), rng.choice([None, "x"])
            before = pool.available
            grant = pool.admit(text, capacity, salt)
            if grant is None:
                assert pool.available == before
                assert pool.needed(capacity) > 0
                continue
            new = Tracked(grant, salt, text, capacity)
            assert len(set(grant.pages)) == len(grant.pages) == pool.needed(capacity)
            assert grant.cached_tokens <= len(text) - 1
            for i in range(grant.cached_tokens):
                expected = (salt, tuple(text[:i]))
                assert memory[grant.pages[i // size], i % size] == expected
            for i in range(grant.drafted * size):
                expected = (salt, tuple(text[:i]))
                assert drafters[grant.pages[i // size], i % size] == expected
            shared = grant.cached_tokens // size
            owned = set(grant.pages[shared:])
            assert not any(owned & set(other.pages) for other in live)
            live.append(new)
        elif live and move < 0.8:
            one = rng.choice(live)
            more = min(rng.randint(0, 5), one.capacity - one.written)
            one.text.extend(rng.randint(0, 1) for _ in range(more))
            end = min(one.written + more, len(one.text))
            write(one, one.text, one.written, end)
            one.written = end
            end = rng.choice([one.drafted, rng.randint(one.drafted, end), end])
            write(one, one.text, one.drafted, end, drafters)
            one.drafted = end
            pool.publish(one.grant, one.text, one.written, one.drafted)
        elif live:
            pool.release(live.pop(rng.randrange(len(live))).grant)
        assert pool.used == len({page for one in live for page in one.pages})
    for one in live:
        pool.release(one.grant)
    assert (pool.available, pool.used) == (pool.pages, 0)
    full = pool.admit([5], pool.pages * size)
    assert full is not None and sorted(full.pages) == list(range(pool.pages))
