"""What a round costs, counted: passes and bytes on its trace, launches in the engine.

A round is traced whole, and what nobody reads is removed as a compiler would. Then
every product with a weight is counted, as often as the scans around it run. Bytes are
derived: of each weight, its size times the products that read it. Keys, values and rows
of embeddings are not counted.
"""

import collections
import functools
import math
import re
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

from jspec.cache import CacheLayout
from jspec.decode import Emission, decode_round, init_state
from jspec.drafters import METHODS
from jspec.drafters.dflash import DFlash
from jspec.drafters.draft_model import DraftModel
from jspec.drafters.dspark import DSpark
from jspec.drafters.p_eagle import PEagle
from jspec.drafters.pard import PARD
from jspec.engine.buckets import Buckets, Executables
from jspec.engine.engine import Engine
from jspec.engine.request import Request
from jspec.params import SamplingParams
from jspec.testing import tiny_config, tiny_target
from tests.drafters.blocks import block_config, random_weights
from tests.drafters.eagles import eagle, eagle3, sized
from tests.drafters.mtps import mtp

DRAFTED = (1, 3, 6)
BATCH = 2
LAYOUT = CacheLayout(rows=BATCH, room=64, pages=40, page_size=4)


def layer(l, names=("q", "k", "v", "o", "gate", "up", "down")):
    return [f"drafter.layers.{l}.{name}" for name in names]


def keys(l):
    return layer(l, "kv")


def module(names=("q", "k", "v", "o", "gate", "up", "down")):
    return [f"drafter.modules.0.layers.0.{name}" for name in names]


MODULE = "drafter.modules.0.fc"
FC, OWN_HEAD, HEAD = "drafter.fc", "drafter.head", "target.head"
BOTH = layer(0) + layer(1)
BLOCK = ([*BOTH, HEAD], [FC, *keys(0), *keys(1)])

PARALLEL = {
    "dflash": (*BLOCK, []),
    "dspark": (*BLOCK, ["drafter.markov.after"]),
    "p_eagle": ([FC, *BOTH, OWN_HEAD], [FC, *layer(0), *keys(1)], []),
    "pard": ([*BOTH, OWN_HEAD], [*layer(0), *keys(1)], []),
}
CHAINS = {
    "eagle": ([FC, *layer(0), HEAD], [FC, *keys(0)], []),
    "eagle3": ([*layer(0), OWN_HEAD], [FC, *keys(0)], []),
    "mtp": ([MODULE, *module(), HEAD], [MODULE, *module("kv")], []),
    "draft_model": ([*BOTH, OWN_HEAD], [], []),
}
READS = PARALLEL | CHAINS
"""What one pass reads, what observing a round reads, and what each draft reads."""


def passes(name, k):
    return 1 if name in PARALLEL else k


@functools.cache
def target():
    return tiny_target()


def made(name, k):
    if name == "none":
        return METHODS["none"](), None
    if name == "draft_model":
        return DraftModel(gamma=k), tiny_target(seed=1)
    block = block_config(block_size=8).to_json()
    if name == "dflash":
        drafter = DFlash.configure(block, gamma=k)
    elif name == "dspark":
        fields = {"block": block, "markov_rank": 6, "markov_head": "vanilla"}
        drafter = DSpark.configure(fields, gamma=k)
    elif name == "p_eagle":
        head = eagle3(sized(num_layers=2), {"own_embedding": True}).config.to_json()
        drafter = PEagle.configure({"head": head, "mask_token_id": 62}, gamma=k)
    elif name == "pard":
        fields = {"model": tiny_config().to_json(), "mask_token_id": 63}
        drafter = PARD.configure(fields, gamma=k)
    else:
        makes = {"eagle": eagle, "eagle3": eagle3, "mtp": mtp}
        drafter = makes[name](gamma=k).fit(target())
    return drafter, random_weights(drafter.weight_shapes())


def inner_programs(line):
    for value in line.params.values():
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
            yield inner


def products(jaxpr, names, times=1):
    """`{(weight, rows): count}` of the products with the variables that have names."""
    found = collections.Counter()
    for line in jaxpr.eqns:
        kind = line.primitive.name
        assert "callback" not in kind
        known = [None if hasattr(v, "val") else names.get(v) for v in line.invars]
        if kind == "dot_general":
            for name, other in zip(known, reversed(line.invars), strict=True):
                if name is not None:
                    found[name, other.aval.shape[0]] += times
        elif kind == "cond":
            # A product for the CPU and one for all others: one of them runs.
            runs = [
                products(b.jaxpr, _bound(b.jaxpr, known[1:]), times)
                for b in line.params["branches"]
            ]
            found.update(max(runs, key=lambda run: run.total()))
        else:
            for inner in inner_programs(line):
                if not any(known):
                    continue
                assert kind != "while", "how often a while loop runs is not known"
                again = line.params["length"] if kind == "scan" else 1
                found.update(products(inner, _bound(inner, known), times * again))
    return found


def _bound(jaxpr, known):
    return dict(zip(jaxpr.invars, known, strict=True))


def _name(path):
    part, *rest = re.findall(r"\w+", jax.tree_util.keystr(path))
    rest = rest[:-1] if rest[-1] == "value" else rest
    return ".".join(["drafter" if part == "1" else "target", *rest])


@functools.cache
def counted(name, k):
    """The products of a round with weights, and the bytes of each weight."""
    drafter, weights = made(name, k)
    state = init_state(target(), drafter, weights, LAYOUT, np.float32)
    step = functools.partial(decode_round, drafter=drafter)
    rows = np.arange(BATCH, dtype=np.int32)
    closed = jax.make_jaxpr(step)(target(), weights, state, rows)
    wanted = [True] * len(closed.jaxpr.outvars)
    read, _ = dce_jaxpr(closed.jaxpr, wanted, instantiate=True)
    leaves = jax.tree_util.tree_flatten_with_path((target(), weights))[0]
    # The state and the rows follow the weights.
    names = {v: _name(path) for v, (path, _) in zip(read.invars, leaves, strict=False)}
    return products(read, names), {_name(path): a.nbytes for path, a in leaves}


def reads(name, k):
    """How often a round reads each weight."""
    found = collections.Counter()
    for (weight, _), count in counted(name, k)[0].items():
        found[weight] += count
    return found


def read_bytes(name, k):
    sizes = counted(name, k)[1]
    return sum(sizes[weight] * count for weight, count in reads(name, k).items())


def costs(name, k):
    """`c`, `o` and `s`: a pass, observing and a draft, over plain decoding's bytes."""
    sizes, plain = counted(name, k)[1], read_bytes("none", 0)
    return [sum(sizes[weight] for weight in w) / plain for w in READS[name]]


@pytest.mark.parametrize("k", DRAFTED)
@pytest.mark.parametrize("name", READS)
def test_weights_are_read_by_so_many_passes_and_by_nothing_else(name, k):
    one, observing, each = READS[name]
    right = reads("none", 0) + collections.Counter(observing)
    assert set(right.values()) <= {1}
    for weight in one:
        right[weight] += passes(name, k)
    for weight in each:
        right[weight] += k
    assert reads(name, k) == right


@pytest.mark.parametrize("k", DRAFTED)
@pytest.mark.parametrize("name", READS)
def test_a_pass_of_a_block_holds_all_nodes_and_one_of_a_chain_holds_one(name, k):
    last = READS[name][0][-2]
    assert last.endswith(".down")
    runs = {rows: n for (w, rows), n in counted(name, k)[0].items() if w == last}
    right = {
        "dflash": {BATCH * (k + 1): 1},
        "dspark": {BATCH * (k + 1): 1},
        "p_eagle": {BATCH * k: 1},
        "pard": {BATCH * k: 1},
        "draft_model": {2 * BATCH: 1} | ({BATCH: k - 1} if k > 1 else {}),
    }
    assert runs == right.get(name, {BATCH: k})


@pytest.mark.parametrize("name", READS)
def test_bytes_are_flat_in_a_block_and_grow_with_every_pass_of_a_chain(name):
    plain = read_bytes("none", 0)
    c, o, s = costs(name, 1)
    assert c > o and c > 4 * s
    for k in DRAFTED:
        ratio = read_bytes(name, k) / plain
        assert math.isclose(ratio, 1 + passes(name, k) * c + o + k * s)
    if name in PARALLEL and not s:
        assert len({read_bytes(name, k) for k in DRAFTED}) == 1


@pytest.mark.parametrize("name", ["none", *READS])
def test_a_round_is_one_launch(name, monkeypatch):
    log = []

    def compile(self, name, step, out, *args, weights=False):
        def run(*args):
            log.append(name)
            state = args[int(weights)]
            if not name.startswith("round"):
                return state
            gamma = int(re.search(r"K=(\d+)", name)[1])
            one = jnp.ones(BATCH, np.int32)
            return state, Emission(
                tokens=jnp.zeros((BATCH, gamma + 1), np.int32),
                count=one,
                drafted=gamma * one,
                accepted=0 * one,
                finish=0 * one,
            )

        done = Future()
        done.set_result(run)
        return done

    monkeypatch.setattr(Executables, "_compile", compile)
    gammas = (0,) if name == "none" else (0, *DRAFTED)
    drafter, weights = made(name, gammas[-1])
    buckets = Buckets(batch=(BATCH,), prompt=(8,), gammas=gammas)
    state = init_state(target(), drafter, weights, LAYOUT, np.float32, lazy=True)
    engine = Engine(
        target(),
        drafter,
        weights,
        state,
        layout=LAYOUT,
        buckets=buckets,
        max_model_len=48,
    )
    for k in gammas[1:] or gammas:
        for row in range(BATCH):
            wish = SamplingParams(max_tokens=20, num_speculative_tokens=k)
            engine.submit(Request(10 * k + row, [1, 2, 3], wish), ())
        for _ in range(4):
            engine.step()
        for _ in range(3):
            log.clear()
            engine.step()
            assert log == [f"round K={k} batch={BATCH}"]
        engine.abort_all()
        for _ in range(2):
            engine.step()
