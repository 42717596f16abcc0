import math
import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks.gpu import aot
from jspec.pallas.block_verify.reference import block_verify
from jspec.pallas.lse import summarise
from jspec.pallas.rejection_verify.reference import rejection_verify
from jspec.sampling import greedy
from tests.pallas.verification import ROWS, judge_case

LOGITS = jax.ShapeDtypeStruct((8, 4, 32000), jnp.bfloat16)


def log_sum_exp_as_written(logits):
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


NODES, VOCABULARY = 5, 32_000
READS = {greedy: 1, summarise: 1, log_sum_exp_as_written: 2}


def reads(hlo):
    """Instructions of the program that read its first argument."""
    entry = hlo[hlo.index("\nENTRY ") :].splitlines()
    names, count = set(), 0
    for line in entry:
        name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
        if re.search(r"\bparameter\(0\)", rest):
            names.add(name)
        elif any(re.search(re.escape(known) + r"(?![\w.])", rest) for known in names):
            if re.search(r"\} bitcast\(|\] bitcast\(", rest):
                names.add(name)
            else:
                count += 1
    return count


def test_reads_are_counted_through_views():
    hlo = """HloModule m
ENTRY %main (a: f32[4]) -> f32[] {
  %a.1 = f32[4]{0} parameter(0)
  %b = f32[2,2]{1,0} bitcast(%a.1)
  %c = f32[] fusion(%b), kind=kInput
  %d = f32[] fusion(%a.10, %c), kind=kInput
  ROOT %e = f32[] fusion(%a.1, %c), kind=kInput
}"""
    assert reads(hlo) == 2


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.parametrize("judge", READS)
def test_plain_xla_reads_the_logits_this_often_on_a_gpu(judge):
    assert reads(aot.compile_for(judge, LOGITS).hlo_text) == READS[judge]


class Program:
    """What each computation of an optimised program does with its values."""

    def __init__(self, hlo):
        self.lines, here = {}, {}
        for line in hlo.splitlines():
            if (start := re.match(r"(ENTRY )?%([\w.-]+) \(.*\{$", line)) is not None:
                here = self.lines["ENTRY" if start[1] else start[2]] = {}
            named = re.match(r"\s+(?:ROOT )?%([\w.-]+) = (.*)", line)
            if named:
                op, given = re.search(
                    r"(?:^| )([a-z][\w-]*)\((.*?)\)", named[2]
                ).groups()
                shape = re.search(r"\[([\d,]*)\]", named[2])[1]
                size = math.prod(int(axis) for axis in shape.split(",") if axis)
                here[named[1]] = (op, given, size, line)

    def entries(self, parameter, where="ENTRY"):
        """Entries of a parameter that are read: by each fusion, once."""
        for name, (op, given, _, _) in self.lines[where].items():
            if op == "parameter" and given == str(parameter):
                return self._wanted(name, where)
        raise KeyError(parameter)

    def _wanted(self, name, where):
        """A fusion computes no more entries of a value than a later gather takes."""
        size, found = self.lines[where][name][2], []
        for other, (op, given, its_size, line) in self.lines[where].items():
            operands = re.findall(r"%([\w.-]+)", given)
            if name not in operands:
                continue
            if op == "fusion":
                called = re.search(r"calls=%([\w.-]+)", line)[1]
                found.append(self.entries(operands.index(name), called))
            elif op in ("gather", "dynamic-slice", "slice") or its_size == size:
                found.append(self._wanted(other, where))
            else:
                found.append(size)
        return sum(found) if where == "ENTRY" else max(found, default=size)


def test_entries_are_counted_through_views_and_fusions():
    hlo = """HloModule m
%f (p.1: f32[4,9]) -> f32[] {
  %p.1 = f32[4,9]{1,0} parameter(0)
  %c = f32[4,9]{1,0} negate(%p.1)
  ROOT %d = f32[] reduce(%p.1, %c), dimensions={0,1}, to_apply=%add
}
%g (p.2: s32[], p.3: bf16[4,9]) -> f32[] {
  %p.2 = s32[] parameter(0)
  %p.3 = bf16[4,9]{1,0} parameter(1)
  %s = bf16[3,9]{1,0} slice(%p.3), slice={[0:3], [0:9]}
  %t = bf16[2,9]{1,0} gather(%s, %p.2), offset_dims={1}
  %u = f32[2,9]{1,0} convert(%t)
  %v = f32[2,3]{1,0} gather(%u, %p.2), offset_dims={1}
  ROOT %w = f32[] reduce(%v, %p.2), dimensions={0,1}, to_apply=%add
}
ENTRY %main (a: f32[4,9], b: s32[]) -> f32[] {
  %a = f32[4,9]{1,0} parameter(0)
  %b = s32[] parameter(1)
  %e = (f32[], f32[2]{0}) fusion(%a), kind=kInput, calls=%f
  %h = f32[] fusion(%b, %a), kind=kInput, calls=%g
}"""
    assert Program(hlo).entries(0) == 4 * 9 + 2 * 3


LAWS = {
    "rejection, certain": (rejection_verify, False, {"logits": NODES + 1}),
    "block, certain": (block_verify, False, {"logits": NODES + 1}),
    "rejection, dense": (rejection_verify, True, {"logits": NODES + 1, "q": 1}),
    "block, dense": (block_verify, True, {"logits": 2 * NODES, "q": NODES}),
}
"""Rows that a twin reads: all, and one for the draw. The anchor has no `q`, and what
the last node leaves nobody asks."""


@pytest.mark.aot
@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_the_twins_read_logits_and_laws_as_documented(name):
    twin, dense, documented = LAWS[name]
    run, shapes = judge_case(twin, VOCABULARY, dense=dense)
    program = Program(aot.compile_for(run, *shapes).hlo_text)
    for which, rows in documented.items():
        found = program.entries({"logits": 0, "q": 6}[which]) / (ROWS * VOCABULARY)
        # Besides rows, single entries and a group of 256 are looked up.
        assert rows <= found < rows + 0.02
