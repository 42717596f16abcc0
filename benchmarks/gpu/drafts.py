"""Models and drafters drawn on the device, and their rounds timed without an engine.

A series of rounds is one program, a loop on the device: what the host takes to hand
work over, which an engine does beside the device's work, is in none of the times.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.gpu.shapes import LLAMA_1B, LLAMA_8B, SHAPES
from jspec import models
from jspec.cache import CacheLayout, KVCache
from jspec.decode import DecodeState, Rows, decode_round, init_state
from jspec.drafters import METHODS
from jspec.drafters.base import Memory, View
from jspec.drafters.eagle3_config import Eagle3Config
from jspec.drafters.given import Given
from jspec.drafters.plain import Plain
from jspec.models.base import ModelConfig
from jspec.rounds import Evidence
from jspec.sampling import Stream, row_keys
from jspec.server.load import load_model
from jspec.training import RECIPES
from jspec.training.dflash import block
from jspec.training.recipe import Frame
from jspec.training.start import configured
from jspec.verify import Verification

__all__ = ["Bench", "drafter_for", "drawn", "frame", "target_of"]


def drawn(shapes: Mapping[str, tuple[int, ...]], dtype: Any, seed: int = 0) -> Any:
    """Weights by name, made where they will be: norms of one, the rest normal.

    Args:
      shapes: by name.
      dtype: of all but `ids`, which are the first tokens.
      seed: of the draw.
    """
    weights = {}
    for key, (name, shape) in zip(
        jax.random.split(jax.random.key(seed), len(shapes)), shapes.items(), strict=True
    ):
        last = name.rsplit(".", 1)[-1]
        if name == "ids":
            weights[name] = jnp.arange(shape[0], dtype=jnp.int32)
        elif last.endswith("norm") or "tap_norms" in name:
            weights[name] = jnp.ones(shape, dtype)
        elif "bias" in last:
            weights[name] = jnp.zeros(shape, dtype)
        else:
            fan = shape[-1] if last == "embed" or len(shape) == 1 else shape[0]
            weights[name] = _normal(key, shape, fan**-0.5, dtype)
    return weights


@functools.partial(jax.jit, static_argnums=(1, 3))
def _normal(key: Array, shape: tuple[int, ...], scale: float, dtype: Any) -> Array:
    return jax.random.normal(key, shape, dtype) * jnp.asarray(scale, dtype)


def target_of(name: str, checkpoint: Path | None = None) -> Any:
    """A target in bfloat16: from a checkpoint, or of a shape and drawn.

    Args:
      name: a key of `benchmarks.gpu.shapes.SHAPES`.
      checkpoint: a jspec checkpoint.
    """
    if checkpoint is not None:
        return load_model(checkpoint, dtype="bfloat16")
    config = SHAPES[name]
    return models.build(config, drawn(config.weight_shapes(), jnp.bfloat16))


def frame(config: ModelConfig) -> Frame:
    """What the recipes take: every token known, the last one the mask."""
    return Frame(
        target=config,
        known=config.vocab_size,
        mask_token_id=config.vocab_size - 1,
        length=min(2048, config.max_position),
    )


def drafter_for(method: str, target: Any, k: int, seed: int = 1) -> tuple[Any, Any]:
    """A method's drafter and its weights, drawn.

    Behind the 8B shape stand the published sizes of EAGLE-3 (one layer of the target's,
    32,000 tokens), of DFlash (five layers) and a model of Llama 3.2 1B's shape; all
    else has the sizes of the shipped drafters, in proportion.

    Args:
      method: whose recipe there is, or "draft_model".
      target: the model.
      k: drafted tokens.
      seed: of the weights.
    """
    config, about = target.config, frame(target.config)
    recipe, large = RECIPES[method], config is LLAMA_8B
    sizes = recipe.plan(about)
    if large and method == "eagle3":
        layer = dataclasses.replace(about.layer(1), intermediate_size=14336)
        sizes = Eagle3Config(
            sizes=layer,
            vocab_size=config.vocab_size,
            target_hidden_size=config.hidden_size,
            draft_vocab_size=32000,
            taps=about.taps,
        ).to_json()
    if large and method == "dflash":
        wide = block(about, part=3.5, from_anchor=False)
        sizes = dataclasses.replace(wide, num_layers=5).to_json()
    if recipe.language_model:
        own = LLAMA_1B if large else ModelConfig.from_json(sizes)
        weights = drawn(own.weight_shapes(), target.dtype, seed)
        drafter: Any = METHODS[method]
        return drafter(gamma=k), models.build(own, weights)
    drafter = dataclasses.replace(configured(method, recipe, sizes, target), gamma=k)
    return drafter, drawn(drafter.weight_shapes(), target.dtype, seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """A target, the room that its texts have, and clocks.

    Attributes:
      target: the model.
      batch: rows at most.
      context: tokens in the cache of each row.
      rounds: of one series: as many as rows have room for.
      series: whose median counts.
    """

    target: Any
    batch: int
    context: int
    rounds: int = 16
    series: int = 5

    def layout(self, k: int) -> CacheLayout:
        """Pages for every row's context and one series of rounds."""
        room = self.context + (self.rounds + 1) * (k + 1)
        each = -(-room // 16)
        return CacheLayout(rows=self.batch, room=room, pages=self.batch * each)

    def seated(self, drafter: Any, weights: Any) -> DecodeState:
        """Every row decodes behind `context` tokens; what they are nobody asks."""
        layout = self.layout(drafter.gamma)
        state = init_state(self.target, drafter, weights, layout, self.target.dtype)
        return dataclasses.replace(state, rows=self._rows(state.rows, layout))

    def _rows(self, rows: Rows, layout: CacheLayout) -> Rows:
        each = layout.pages // layout.rows
        table = np.full((layout.rows, layout.row_pages), layout.pages, np.int32)
        table[:, :each] = np.arange(layout.pages).reshape(layout.rows, each)

        def full(value: int) -> Array:
            return jnp.full((layout.rows,), value, jnp.int32)

        return dataclasses.replace(
            rows,
            length=full(self.context),
            table=jnp.asarray(table),
            live=jnp.ones((layout.rows,), bool),
            budget=full(2**30),
            gamma=full(2**20),
        )

    def rounds_of(
        self, drafter: Any, weights: Any, batch: int, rule: Verification
    ) -> dict[str, float]:
        """Whole rounds: milliseconds of one, and the tokens that a row emits in it."""
        state = self.seated(drafter, weights)
        first, asked = jax.tree.map(jnp.copy, state.rows), jnp.arange(batch)
        leaves, form = jax.tree.flatten((self.target, weights))

        @functools.partial(jax.jit, donate_argnums=1)
        def run(leaves: list[Array], state: DecodeState) -> tuple[DecodeState, Array]:
            target, weights = jax.tree.unflatten(form, leaves)

            def step(state: DecodeState, _: None) -> tuple[DecodeState, Array]:
                state, emission = decode_round(
                    target, weights, state, asked, drafter=drafter, verification=rule
                )
                return state, emission.count.mean()

            return jax.lax.scan(step, state, length=self.rounds)

        every, emitted = [], []
        for turn in range(self.series + 1):
            rows = jax.tree.map(jnp.copy, first)
            # Another seed a series: the coins of a row fall by its seed and length.
            seed = jnp.full_like(rows.sampling.seed, turn)
            each = jnp.arange(self.batch, dtype=seed.dtype)
            sampling = dataclasses.replace(rows.sampling, seed=seed.at[:, 0].set(each))
            rows = dataclasses.replace(rows, sampling=sampling)
            state = jax.block_until_ready(dataclasses.replace(state, rows=rows))
            began = time.perf_counter()
            state, tokens = jax.block_until_ready(run(leaves, state))
            if turn:
                every.append(1e3 * (time.perf_counter() - began) / self.rounds)
                emitted.append(float(tokens.mean()))
        return {"ms": statistics.median(every), "tau": statistics.mean(emitted)}

    def passes(self, k: int, batch: int, rule: Verification) -> float:
        """Milliseconds of a round without a drafter over K + 1 tokens a row."""
        drafter = Given(gamma=k) if k else Plain()
        return self.rounds_of(drafter, None, batch, rule)["ms"]

    def drafts(self, drafter: Any, weights: Any, batch: int) -> float:
        """Milliseconds of drafting K tokens a row and observing that all were kept."""
        state = dataclasses.replace(self, batch=batch).seated(drafter, weights)
        taps = len(drafter.feature_layers) * self.target.config.hidden_size
        leaves, form = jax.tree.flatten((self.target, weights))

        @functools.partial(jax.jit, donate_argnums=1)
        def run(
            leaves: list[Array], memory: Memory, rows: Rows, pages: Any
        ) -> tuple[Memory, Array]:
            target, weights = jax.tree.unflatten(form, leaves)

            def step(
                carry: tuple[Memory, Array], _: None
            ) -> tuple[tuple[Memory, Array], None]:
                memory, anchor = carry
                features = None
                if taps:
                    # No two rounds have the same, or they would be computed once.
                    one = 1 + (anchor % 7).astype(self.target.dtype)
                    shape = (batch, drafter.gamma + 1, taps)
                    features = jnp.broadcast_to(one[:, None, None], shape)
                here = dataclasses.replace(rows, anchor=anchor)
                new, tokens = drafted(
                    target, weights, memory, here, pages, features, drafter=drafter
                )
                # As a round puts it back: what a memory is made of stays so.
                new = jax.tree.map(lambda a, b: b.astype(a.dtype), memory, new)
                return (new, tokens[:, -1]), None

            carry, _ = jax.lax.scan(step, (memory, rows.anchor), length=self.rounds)
            return carry

        every, memory = [], state.memory
        for turn in range(self.series + 1):
            began = time.perf_counter()
            memory, _ = jax.block_until_ready(
                run(leaves, memory, state.rows, state.pages)
            )
            if turn:
                every.append(1e3 * (time.perf_counter() - began) / self.rounds)
        return statistics.median(every)


def drafted(
    target: Any,
    weights: Any,
    memory: Memory,
    rows: Rows,
    pages: Any,
    features: Array | None,
    *,
    drafter: Any,
) -> tuple[Memory, Array]:
    """What a drafter does in a round that keeps every draft; and what it drafted.

    Args:
      target: the model; none of its passes is made.
      weights: the drafter's.
      memory: the drafter's, donated.
      rows: who decodes.
      pages: the target's.
      features: of the nodes, as the target would have shown them.
      drafter: static.
    """
    cache = KVCache(pages=pages, table=rows.table, length=rows.length)
    view = View(target=target, cache=cache, sampling=rows.sampling)
    keys = row_keys(rows.sampling, cache.length, Stream.DRAFT)
    proposal, memory = drafter.propose(weights, memory, rows.anchor, keys, view)
    count = jnp.full_like(rows.length, drafter.gamma + 1)
    evidence = Evidence(
        tokens=proposal.tokens,
        start=rows.length,
        count=count,
        anchor=proposal.tokens[:, -1],
        features=features,
        accepted=count - 1,
    )
    kept = dataclasses.replace(cache, length=rows.length + count)
    view = dataclasses.replace(view, cache=kept)
    return drafter.observe(weights, memory, evidence, view), proposal.tokens
