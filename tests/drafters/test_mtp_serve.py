"""MTP modules through `jspec.serve`: out of the target's own files, or another's."""

import pytest

import jspec
from jspec import checkpoint
from tests import serving
from tests.converters.drafter_files import LLAMA, numbers, write
from tests.converters.mtp_files import checkpoint_of
from tests.drafters.mtps import MIMO, mtp

VOCAB = serving.TOKENS + 5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A MiMo's directory, as its maker writes it."""
    folder = tmp_path_factory.mktemp("mimo") / "files"
    config, shapes = checkpoint_of("mimo", vocab_size=VOCAB, eos_token_id=serving.EOS)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        shapes[name] = (VOCAB, LLAMA["hidden_size"])
    arrays = {
        name: array * (0.15 if array.ndim > 1 else 0.1) + ("norm" in name)
        for name, array in numbers(shapes).items()
    }
    write(folder, config, arrays)
    for name, content in serving.write_tokenizer(folder).items():
        (folder / name).write_bytes(content)
    return folder


def served(servers, target, **options):
    options = {"max_batch": 1, "max_model_len": 64, "page_size": 4} | options
    with serving.quick_compiler(servers.folder / "xla"):
        return jspec.serve(target, compilation_cache=False, **options)


@pytest.mark.slow
def test_a_targets_own_files_serve_target_and_modules(
    servers, files, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prompt = "the cat and the cat and the"
    with served(servers, files, method="none") as server:
        [plain] = server.generate(prompt, serving.greedy())
    for drafter in (None, files):
        with served(servers, files, method="mtp", drafter=drafter) as server:
            [done] = server.generate(prompt, serving.greedy())
            assert server.method == "mtp"
            assert server.metrics()["drafted_tokens"] > 0
        assert done.token_ids == plain.token_ids
    kept = [path.name.split("-")[1] for path in (tmp_path / "jspec").glob("files-*")]
    assert "mtp" in kept and len(kept) == 2


def test_modules_without_a_targets_files_are_refused_in_one_sentence(servers, tmp_path):
    drafter = mtp(config=MIMO | {"vocab_size": VOCAB - 1})
    config = drafter.config.to_json()
    weights = numbers(drafter.weight_shapes())
    checkpoint.save_drafter(tmp_path / "other", "mtp", config, weights, source={})
    for options, why in (
        (
            {},
            "is a language model; method .mtp. needs MTP modules made with",
        ),
        ({"drafter": tmp_path / "other"}, r"of vocabulary \d+; this one has"),
        ({"drafter": tmp_path / "other", "method": "eagle"}, "made for method 'mtp'"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            served(servers, servers.paths["target"], **({"method": "mtp"} | options))
        assert len(str(caught.value).splitlines()) == 1


def test_the_table_of_methods_says_where_modules_come_from():
    [listed] = [method for method in jspec.methods() if method.name == "mtp"]
    assert listed.weights == "MTP modules made with the target"
    assert listed.num_speculative_tokens == 3
