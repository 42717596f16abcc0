"""Texts on disk: made once, shard by shard, and read the same way every time."""

import numpy as np
import pytest

from jspec.training.texts import SHARD, load_texts, write_texts

NOTES = {"target": "tiny", "temperature": 0.0}
PROMPTS = [[1 + i % 50, 2, 3 + i % 7] for i in range(2 * SHARD + 5)]


def answer(some):
    return [[p[0], p[2], *range(p[0] % 9)] for p in some]


def written(folder, asked=answer, notes=NOTES):
    return write_texts(folder, PROMPTS, asked, notes)


def test_texts_are_read_as_they_were_written(tmp_path):
    made = written(tmp_path)
    texts = load_texts(tmp_path)
    right = [[*p, *a] for p, a in zip(PROMPTS, answer(PROMPTS), strict=True)]
    assert [text.tolist() for text in texts.texts] == right
    assert set(texts.prompts) == {3}
    assert made == sum(map(len, answer(PROMPTS)))


def test_a_stopped_run_goes_on_behind_its_last_shard(tmp_path):
    asked = []

    def breaks(some):
        asked.append(len(some))
        if len(asked) == 2:
            raise RuntimeError("stopped")
        return answer(some)

    with pytest.raises(RuntimeError):
        written(tmp_path / "a", breaks)
    written(tmp_path / "a", breaks)
    written(tmp_path / "b")
    assert asked == [SHARD, SHARD, SHARD, 5]
    one, other = load_texts(tmp_path / "a"), load_texts(tmp_path / "b")
    assert all(map(np.array_equal, one.texts, other.texts))
    assert written(tmp_path / "a", breaks) == 0


def test_a_folder_of_other_texts_is_refused(tmp_path):
    written(tmp_path)
    with pytest.raises(ValueError, match=r"temperature 0\.0, not 0\.7"):
        written(tmp_path, notes=NOTES | {"temperature": 0.7})
    with pytest.raises(ValueError, match="jspec distill"):
        load_texts(tmp_path / "nothing")


def test_every_text_is_trained_on_once_before_any_comes_again(tmp_path):
    written(tmp_path)
    texts = load_texts(tmp_path)
    many = len(texts.texts) - texts.held_out
    seen = []
    for step in range(many // 3):
        batch = texts.training(step, 3, 16, seed=1)
        assert np.array_equal(batch.tokens, texts.training(step, 3, 16, 1).tokens)
        seen += [tuple(row) for row in batch.tokens.tolist()]
    whole = [tuple(np.pad(t, (0, 16 - len(t))).tolist()) for t in texts.texts]
    counts = {row: seen.count(row) for row in seen}
    assert all(count <= whole.count(row) for row, count in counts.items())
    assert not np.array_equal(
        texts.training(0, 8, 16, 1).tokens, texts.training(0, 8, 16, 2).tokens
    )


def test_only_what_the_target_wrote_counts_and_padding_does_not(tmp_path):
    written(tmp_path)
    texts = load_texts(tmp_path)
    batch = texts.batch([3, 8], 6)
    assert batch.answered.sum(1).tolist() == [
        min(len(texts.texts[i]), 6) - 3 for i in (3, 8)
    ]
    assert not batch.answered[:, :3].any()
    assert batch.real == sum(min(len(texts.texts[i]), 6) for i in (3, 8))
    held = list(texts.examination(5, 16))
    assert sum(int(b.answered.any(1).sum()) for b in held) == texts.held_out
    assert {b.tokens.shape for b in held} == {(5, 16)}
