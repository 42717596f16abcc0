"""`jspec.serve`: what it refuses, and that no accepted argument is inert."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jspec
from tests.serving import greedy, write_checkpoint

REFUSED = (
    ("method='eagel'", "method 'eagel' is not known; known are auto, none, ngram"),
    ("method=None", "method None is not known"),
    ("method=['ngram']", r"method \['ngram'\] is not known"),
    ("method='ngram', drafter=T", "method 'ngram' has no weights"),
    ("method='draft_model'", "method 'draft_model' needs drafter="),
    ("num_speculative_tokens=-1", "num_speculative_tokens must be an integer"),
    ("num_speculative_tokens=2.5", "num_speculative_tokens must be an integer"),
    ("num_speculative_tokens=True", "num_speculative_tokens must be an integer"),
    ("num_speculative_tokens=64", "num_speculative_tokens 64 .* max_model_len 64"),
    ("method='none', num_speculative_tokens=3", "method 'none' drafts nothing"),
    ("schedule=[(1, 4, 5)]", "K 5 exceeds num_speculative_tokens, 4"),
    ("lora='x'", "lora= is not supported"),
    ("verification='blok'", "verification 'blok' is not known; known are standard"),
    ("verification=3", "verification 3 is not known"),
    ("verification='typical:epsilon=2'", "epsilon of verification 'typical' must lie"),
    ("verification='fly'", "window of 6 .* method 'ngram' drafts 4"),
    ("verification='synthetic:rates=(0.5,)'", "has 1 rates, and method 'ngram'"),
    ("method='none', verification='block'", "'block' has nothing to judge: method"),
    ("draft_sampling='soft'", "draft_sampling must be 'auto'"),
    ("draft_sampling='probabilistic'", "does not work with method 'ngram'"),
    ("method_options={'longest': 3, 'size': 1}", "method_options has 'size'"),
    ("method_options={'gamma': 3}", "method_options has 'gamma'"),
    ("method_options={'shortest': 9}", "1 <= shortest <= longest"),
    ("method_options={'longest': 'x'}", "method_options .*longest"),
    ("method_options=['longest']", "method_options must be a mapping"),
    ("max_batch=0", "max_batch must be an integer of at least 1"),
    ("max_batch='8'", "max_batch must be an integer of at least 1"),
    ("page_size=0", "page_size must be an integer of at least 1"),
    ("kv_pages=0", "kv_pages must be an integer of at least 1"),
    ("max_model_len=1", r"max_model_len must lie in 2\.\.512"),
    ("max_model_len=513", r"max_model_len must lie in 2\.\.512"),
    ("max_model_len='long'", r"max_model_len must lie in 2\.\.512"),
    ("dtype='float64'", "dtype must be float32 or bfloat16, not 'float64'"),
    ("dtype='f3'", "dtype must be float32 or bfloat16"),
    ("dtype=object()", "dtype must be float32 or bfloat16"),
    ("seed='x'", "seed must be an integer"),
    ("mesh=3", "mesh must be a jax.sharding.Mesh"),
    ("mesh=WRONG_MESH", "mesh must have an axis 'model'"),
    ("drafter='/nowhere'", "'/nowhere'"),
    ("method='draft_model', drafter=SWAPPED", "tokenizer is not the target's: token 7"),
)

TARGETS = (
    ("'/nowhere/at/all'", "is no directory, no file, no hub id"),
    ("None", "target"),
    ("3", "target"),
    ("T + '/jspec.json'", "jspec.json"),
    ("EMPTY", "holds no config.json|no config"),
)

SCRIPT = """
import json, sys
import jax, numpy as np
import jspec
T, SWAPPED, EMPTY, calls = *sys.argv[1:4], json.loads(sys.argv[4])
MESH = jax.sharding.Mesh(np.array(jax.devices()), ("model",))
WRONG_MESH = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
SMALL = dict(max_model_len=64)
for target, call in calls:
    try:
        options = SMALL | eval(f"dict({call})")
        jspec.serve(eval(target), **options).close()
        print(json.dumps(["none", ""]))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """Every refused call in one process in which no hook checks types."""
    folder = tmp_path_factory.mktemp("serve")
    target = write_checkpoint(folder / "target")
    swapped = write_checkpoint(folder / "swapped", swap=(7, 8))
    (folder / "empty").mkdir()
    calls = [("T", call) for call, _ in REFUSED] + [(t, "") for t, _ in TARGETS]
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c", SCRIPT),
            *map(str, (target, swapped, folder / "empty")),
            json.dumps(calls),
        ],
        env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(map(tuple, calls), answers, strict=True))


@pytest.mark.parametrize(
    ("target", "call", "why"),
    [*(("T", *row) for row in REFUSED), *((t, "", why) for t, why in TARGETS)],
)
def test_what_cannot_work_is_refused_in_one_sentence(refusals, target, call, why):
    kind, message = refusals[target, call]
    assert kind == "ValueError", message
    assert re.search(why, message), message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "method", "k"),
    [
        ("plain", "none", 0),
        ("ngram", "ngram", 4),
        pytest.param("suffix", "suffix", 8, marks=pytest.mark.slow),
        ("self 1", "draft_model", 1),
    ],
)
def test_r68_the_engine_runs_what_was_asked_for(servers, kind, method, k):
    server = servers[kind]
    server.generate("a a a a a a", greedy(30))
    assert (server.method, server.num_speculative_tokens) == (method, k)
    assert (server.metrics()["drafted_tokens"] > 0) == (k > 0)
    assert server.settings["method"] == method


def test_r68_every_method_that_is_listed_can_be_built(servers):
    kinds = {
        "none": "plain",
        "ngram": "ngram",
        "suffix": "suffix",
        "draft_model": "self",
    }
    assert {method.name for method in jspec.methods()} >= set(kinds)
    for name, kind in kinds.items():
        assert servers[kind].method == name


def test_settings_say_how_the_server_was_made(servers):
    found = servers["short self"].settings
    assert found["max_model_len"] == 32
    assert found["page_size"] == 4
    assert found["dtype"] == "float32"
    assert set(servers["short self"].start_seconds) == {"resolve", "load", "compile"}
