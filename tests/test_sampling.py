import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.sampling import Sampling, Stream, draw, greedy, law, row_keys


def sampling(rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0):
    def full(x, dtype):
        return jnp.broadcast_to(jnp.asarray(x, dtype), (rows,))

    seeds = np.zeros((rows, 2), np.uint32)
    seeds[:, 1] = seed
    return Sampling(
        temperature=full(temperature, jnp.float32),
        top_k=full(top_k, jnp.int32),
        top_p=full(top_p, jnp.float32),
        min_p=full(min_p, jnp.float32),
        seed=jnp.asarray(seeds),
    )


LOGITS = 2 * np.random.default_rng(0).standard_normal((64, 1, 50)).astype(np.float32)
SETTINGS = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 50},
    {"top_k": 500},
    {"top_p": 0.1},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.4, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_law_is_that_of_transformers_processors(setting):
    torch = pytest.importorskip("torch")
    from transformers.generation import logits_process as hf

    scores = torch.tensor(LOGITS[:, 0])
    if "temperature" in setting:
        scores = hf.TemperatureLogitsWarper(setting["temperature"])(None, scores)
    if "top_k" in setting:
        scores = hf.TopKLogitsWarper(setting["top_k"])(None, scores)
    if "top_p" in setting:
        scores = hf.TopPLogitsWarper(setting["top_p"])(None, scores)
    if "min_p" in setting:
        scores = hf.MinPLogitsWarper(setting["min_p"])(None, scores)
    right = scores.softmax(-1).numpy()
    ours = np.asarray(law(jnp.asarray(LOGITS), sampling(64, **setting)))[:, 0]
    np.testing.assert_array_equal(ours > 0, right > 0)
    np.testing.assert_allclose(ours, right, atol=1e-6)


def test_temperature_zero_is_a_point_mass_on_the_lowest_of_equals():
    logits = jnp.array([[[1.0, 3.0, 3.0, 2.0]]])
    assert law(logits, sampling(1, temperature=0.0)).tolist() == [[[0, 1, 0, 0]]]
    assert greedy(logits).tolist() == [[1]]


def test_equals_at_the_cut_are_kept_together():
    logits = jnp.log(jnp.array([[[0.4, 0.2, 0.2, 0.2]]]))
    assert (law(logits, sampling(1, top_k=2)) > 0).all()
    assert (law(logits, sampling(1, top_p=0.5)) > 0).all()


def test_a_rows_law_is_bit_identical_whatever_its_neighbours_ask_for():
    alone = law(jnp.asarray(LOGITS), sampling(64))
    odd = jnp.arange(64) % 2
    beside = law(jnp.asarray(LOGITS), sampling(64, top_k=3 * odd, min_p=0.3 * odd))
    np.testing.assert_array_equal(alone[::2], beside[::2])


def test_impossible_tokens_stay_impossible():
    logits = jnp.array([[[0.0, -jnp.inf, 1.0, -jnp.inf]]])
    for setting in ({}, {"top_k": 3}, {"top_p": 0.9999}, {"min_p": 0.01}):
        p = law(logits, sampling(1, **setting))
        assert (p[0, 0] > 0).tolist() == [True, False, True, False]
        assert jnp.allclose(p.sum(), 1)


def test_a_row_key_depends_on_seed_position_and_stream_alone():
    def data(*a):
        return jax.random.key_data(row_keys(*a)).tolist()

    position = jnp.array([3, 4, 3], jnp.int32)
    many = data(sampling(3, seed=[1, 1, 2]), position, Stream.VERIFY)
    one = data(sampling(1, seed=[2]), jnp.array([3], jnp.int32), Stream.VERIFY)
    assert many[2] == one[0]
    other = data(sampling(3, seed=[1, 1, 2]), position, Stream.DRAFT)
    assert len({str(key) for key in (*many, *other)}) == 6


def test_a_draw_follows_its_law_though_it_need_not_sum_to_one():
    rows = 100_000
    p = jnp.broadcast_to(jnp.array([0.2, 0.0, 0.6, 1.2]), (rows, 4))
    drawn = draw(jax.random.split(jax.random.key(0), rows), p)
    share = jnp.bincount(drawn, length=4) / rows
    assert jnp.allclose(share, jnp.array([0.1, 0, 0.3, 0.6]), atol=5e-3)
