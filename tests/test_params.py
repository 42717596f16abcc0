"""A request's parameters are right, or refused in a sentence for each fault."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def without_type_checks() -> Any:
    path = Path(__file__).parents[1] / "jspec" / "params.py"
    spec = importlib.util.spec_from_file_location("params_as_users_have_it", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PARAMS = without_type_checks()
SamplingParams, UNSUPPORTED = PARAMS.SamplingParams, PARAMS.UNSUPPORTED
refuse_unsupported = PARAMS.refuse_unsupported

SURFACE = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "max_tokens": 128,
    "min_tokens": 0,
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "logprobs": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "bad_words": (),
    "json_schema": None,
    "regex": None,
    "grammar": None,
    "num_speculative_tokens": None,
    "n": 1,
    "lora": None,
}

NAN, INF = float("nan"), float("inf")

WRONG = {
    "temperature": [-0.1, NAN, INF, True, "1", None],
    "top_p": [0, -1, 1.01, NAN, False, None],
    "top_k": [-1, 1.0, True, None, 2**31],
    "min_p": [-0.1, 1.5, NAN, True],
    "seed": [-1, 2**64, 1.5, True, "7"],
    "max_tokens": [0, -3, 2.0, True, None],
    "min_tokens": [-1, 0.5, False],
    "stop": ["", ("a", ""), 3, (1,), None],
    "stop_token_ids": [(-1,), (1.0,), (True,), 5, "ab", None],
    "ignore_eos": [1, None, "yes"],
    "logprobs": [-1, True, 1.5],
    "presence_penalty": [-2.1, 2.1, NAN, True],
    "frequency_penalty": [-2.1, 2.1, INF, None],
    "repetition_penalty": [0, -1, NAN, INF, True],
    "logit_bias": [{-1: 0}, {1: 101}, {"1": 0}, {1: NAN}, {True: 1}, [1]],
    "bad_words": ["", ("",), 1],
    "json_schema": ["", 3, True],
    "regex": ["", 3],
    "grammar": ["", 3],
    "num_speculative_tokens": [-1, True, 2.0],
    "n": [0, True, 1.5],
    "lora": ["", 3],
}


def test_fields_and_defaults_are_those_of_the_surface():
    fields = dataclasses.fields(SamplingParams)
    assert {field.name: field.default for field in fields} == SURFACE
    assert dataclasses.asdict(SamplingParams()) == SURFACE


@pytest.mark.parametrize(
    ("name", "value"), [(name, v) for name, vs in WRONG.items() for v in vs]
)
def test_a_wrong_value_is_refused_by_field_and_value(name, value):
    with pytest.raises(ValueError) as refusal:
        SamplingParams(**{name: value})
    message = str(refusal.value)
    assert message.startswith(f"{name} must be ")
    assert message.endswith(f", not {value!r}")


def test_every_field_has_wrong_values():
    assert set(WRONG) == set(SURFACE)


def test_every_fault_gets_its_sentence():
    with pytest.raises(ValueError) as refusal:
        SamplingParams(temperature=-1, top_p=2, max_tokens=0)
    assert [s.split()[0] for s in str(refusal.value).split("; ")] == [
        "temperature",
        "top_p",
        "max_tokens",
    ]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"top_p": 1e-6},
        {"top_k": 2**31 - 1},
        {"min_p": 1},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"max_tokens": 1, "min_tokens": 1},
        {"logit_bias": {0: -100, 5: 100}},
        {"json_schema": {"type": "object"}},
    ],
)
def test_values_at_the_limits_are_right(params):
    SamplingParams(**params)


def test_min_tokens_stays_below_max_tokens():
    with pytest.raises(ValueError, match="min_tokens must be at most max_tokens, 3,"):
        SamplingParams(max_tokens=3, min_tokens=4)


def test_one_form_at_most():
    with pytest.raises(ValueError, match="json_schema and regex are set"):
        SamplingParams(json_schema="{}", regex="a")


def test_values_take_their_normal_form():
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(3),
        stop="end",
        stop_token_ids=[4, np.int32(5)],
        bad_words=["a", "b"],
    )
    assert params.stop == params.stop_strings == ("end",)
    assert params.stop_token_ids == (4, 5)
    assert params.bad_words == ("a", "b")
    assert type(params.top_k) is int and type(params.temperature) is float
    assert params == dataclasses.replace(params)
    assert hash(params) == hash(dataclasses.replace(params))


def test_a_temperature_too_small_to_divide_by_is_greedy():
    assert SamplingParams(temperature=1e-30).temperature == 0


def test_a_bias_is_copied():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 3.0
    assert params.logit_bias == {1: 2.0}


def test_nothing_is_refused_by_default():
    refuse_unsupported(SamplingParams())


UNUSUAL = {
    "logprobs": 0,
    "json_schema": "{}",
    "regex": "a",
    "grammar": "root ::= a",
    "n": 2,
    "lora": "adapter",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_each_unsupported_field_is_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        refuse_unsupported(SamplingParams(**{name: UNUSUAL[name]}))


def test_all_unsupported_fields_are_named_at_once():
    names = [name for name in UNSUPPORTED if name not in ("regex", "grammar")]
    params = SamplingParams(**{name: UNUSUAL[name] for name in names})
    with pytest.raises(ValueError) as refusal:
        refuse_unsupported(params)
    assert all(f"{name} (" in str(refusal.value) for name in names)


def test_supported_fields_are_not_refused():
    values = {"temperature": 0, "top_p": 0.5, "top_k": 3, "seed": 1, "stop": "x"}
    refuse_unsupported(SamplingParams(**values, logit_bias={1: 2.0}, min_p=0.1))
