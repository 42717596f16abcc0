"""From a checkpoint directory to a model on its devices."""

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec import checkpoint, models
from jspec.decode import DecodeState
from jspec.drafters.translated import translate
from jspec.mesh import ShardingRules, sharding_of
from jspec.server.vocabularies import shared_tokens, stand_ins
from jspec.tokenizer import Tokenizer

__all__ = [
    "load_model",
    "load_weights",
    "pick_dtype",
    "place_state",
    "trained_positions",
]

LOG = logging.getLogger("jspec")

SHARED = "method 'draft_model' with method_options={'vocabulary': 'shared'}"

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def pick_dtype(dtype: Any) -> Any:
    """The weights' dtype, by name or type; `None`: as in the checkpoint.

    Raises:
      ValueError: it is neither float32 nor bfloat16.
    """
    if dtype is None:
        return None
    try:
        name = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype must be float32 or bfloat16, not {name!r}")
    return DTYPES[name]


def _units(config: models.TargetConfig) -> dict[str, int]:
    """What divides the key heads of every layer, where layers differ."""
    key_heads = math.gcd(*(heads for heads, _ in config.cache_heads))
    return {"heads": config.num_heads, "key_heads": key_heads}


def load_model(
    path: Path,
    *,
    dtype: Any = None,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
    serving: bool = False,
) -> Any:
    """Reads a jspec checkpoint.

    Args:
      path: its directory.
      dtype: float32 or bfloat16; `None`: as it is.
      mesh: devices to divide the weights among, by `rules`.
      rules: which logical axis goes to which mesh axis.
      serving: the weights are only read from now on, so on one device they may lie as
        its kernels read them.

    Raises:
      ValueError: the checkpoint is not whole, or the mesh does not divide it.
    """
    config = checkpoint.read_config(path)
    place = None
    if mesh is not None:
        shared = rules or ShardingRules()

        def place(name: str, shape: tuple[int, ...]) -> NamedSharding:
            return sharding_of(name, shape, mesh, shared, units=_units(config))

    config, weights = checkpoint.load(path, dtype=pick_dtype(dtype), sharding=place)
    model = models.build(config, weights)
    del weights
    if serving and mesh is None:
        model.pack()
    return model


def load_weights(
    path: Path,
    tokenizer: Tokenizer,
    *,
    dtype: Any,
    like: Any,
    mesh: Mesh | None,
    shared: int | None = None,
    serving: bool = True,
) -> Any:
    """What a method drafts with: a language model, or a drafter's arrays by name.

    On a mesh, every device holds all of it.

    Args:
      path: a jspec checkpoint of either kind.
      tokenizer: the target's; a language model must have the same tokens.
      dtype: of a language model; `None`: as in its checkpoint.
      like: the target's dtype, in which a drafter reads the target's features.
      mesh: the target's devices.
      shared: draft with a language model's tokens that are among the target's first
        so many, and no others. `None`: it must have the same tokens.
      serving: as in `load_model`.

    Raises:
      ValueError: the checkpoint is not whole, or has other tokens.
    """
    if checkpoint.read_manifest(path)["kind"] != "target":
        whole = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        return checkpoint.load_drafter(
            path, dtype=like, sharding=lambda name, shape: whole
        )[2]
    theirs = Tokenizer(path)
    difference = tokenizer.first_difference(theirs)
    if difference is not None and shared is None:
        raise ValueError(
            f"the drafter's tokenizer is not the target's: {difference}; "
            f"{SHARED} drafts with the tokens that both have"
        )
    undivided = ShardingRules(vocab=None, heads=None, key_heads=None, mlp=None)
    model = load_model(path, dtype=dtype, mesh=mesh, rules=undivided, serving=serving)
    if difference is None or shared is None:
        return model
    both = shared_tokens(tokenizer, theirs, shared)
    if 2 * len(both) < shared:
        LOG.warning(
            "the draft model has %d of the target's %d tokens; it drafts no others",
            len(both),
            shared,
        )
    heard = stand_ins(tokenizer, theirs, both, shared)
    translated = translate(model, both, heard, shared)
    if mesh is None:
        return translated
    return jax.device_put(translated, NamedSharding(mesh, PartitionSpec()))


def trained_positions(drafting: Any, weights: Any) -> int | None:
    """Positions that the drafter's rotation was trained for; `None`: not said.

    A language model says it in its configuration, a head in the sizes of its layers.
    """
    sizes = getattr(getattr(drafting, "config", None), "sizes", None)
    return getattr(getattr(weights, "config", sizes), "max_position", None)


def place_state(
    state: DecodeState, model: Any, mesh: Mesh | None, rules: ShardingRules | None
) -> DecodeState:
    """Divides the target's pages by heads; everything else is on every device."""
    if mesh is None:
        return state
    shared = rules or ShardingRules()
    whole = NamedSharding(mesh, PartitionSpec())
    units = _units(model.config)

    def spread(a: jax.Array) -> jax.Array:
        return jax.device_put(
            a, sharding_of("pages", a.shape, mesh, shared, units=units)
        )

    return DecodeState(
        rows=jax.device_put(state.rows, whole),
        pages=dataclasses.replace(
            state.pages,
            k=tuple(map(spread, state.pages.k)),
            v=tuple(map(spread, state.pages.v)),
            text=jax.device_put(state.pages.text, whole),
        ),
        memory=jax.device_put(state.memory, whole),
        rules=jax.device_put(state.rules, whole),
        backlog=jax.device_put(state.backlog, whole),
    )
