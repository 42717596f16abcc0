"""A drafter's decoder layer, and what it borrows from the target."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.models.base import Rope, Target
from jspec.models.layers import (
    embed,
    linear,
    norm,
    only_tokens,
    rotate,
    turns,
    vocabulary_logits,
)

__all__ = [
    "Attend",
    "LayerSizes",
    "borrowed_embedding",
    "borrowed_head",
    "check_draft_sampling",
    "check_last_layer",
    "check_sizes",
    "check_weights",
    "draft_layer",
    "fitted_to",
    "known_fields",
    "last_layer",
    "layer_shapes",
    "target_feature",
    "without_padding",
]

type Attend = Callable[[int, Array, Array, Array], Array]
"""Layer, queries, keys and values, rotated, to mixed values."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """The decoder layers of a drafter.

    Attributes:
      windows: per layer, how many pairs back attention reaches; `()`: no limit.
      max_position: positions its rotation was trained for. Beyond them nothing is
        cut off or wrapped: rotation is a formula of the position and only differences
        count. A drafter that draws the line itself does so with a window. `None`:
        not said.
      rotary_dim: so many dimensions of a head are rotated, the first ones. `None`:
        all.
      output_gate: whether `q` makes a gate beside each head's query, whose sigmoid
        the mixed values are multiplied with (Qwen3-Next).
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    norm_eps: float
    rope: Rope
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    max_position: int | None = None
    rotary_dim: int | None = None
    output_gate: bool = False

    def __post_init__(self) -> None:
        """Refuses sizes that no layer can have."""
        for name in (
            *("hidden_size", "intermediate_size", "num_layers"),
            *("num_heads", "num_key_heads", "head_dim"),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be an integer above 0, not {value!r}")
        if self.num_heads % self.num_key_heads or self.head_dim % 2:
            raise ValueError(
                f"{self.num_heads} heads over {self.num_key_heads} key heads of width "
                f"{self.head_dim} cannot attend: heads come in whole groups, widths "
                f"are even"
            )
        turned = self.rotary_dim
        if turned is not None and (turned % 2 or not 0 < turned <= self.head_dim):
            raise ValueError(
                f"rotary_dim must be even and in 2..{self.head_dim}, not {turned}"
            )
        if len(self.windows) not in (0, self.num_layers):
            raise ValueError(
                f"windows names {len(self.windows)} layers, the drafter has "
                f"{self.num_layers}"
            )

    def window(self, layer: int) -> int | None:
        """How many pairs back a layer reaches, the own one included."""
        return self.windows[layer] if self.windows else None

    def narrowed(self, window: int | None) -> Self:
        """Every layer reaches at most `window` pairs back."""
        if window is None:
            return self
        own = self.windows or (None,) * self.num_layers
        return dataclasses.replace(
            self, windows=tuple(window if w is None else min(w, window) for w in own)
        )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Reads what `dataclasses.asdict` wrote; a wrong key is a `ValueError`."""
        values = known_fields(cls, fields)
        values["rope"] = Rope(**known_fields(Rope, values["rope"]))
        values["windows"] = tuple(values.get("windows", ()))
        return cls(**values)


def known_fields(kind: Any, fields: Any) -> dict[str, Any]:
    """The fields of a frozen dataclass out of JSON.

    Raises:
      ValueError: one is unknown or missing; it is named.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"a configuration must be a mapping, not {fields!r}")
    known = {field.name: field for field in dataclasses.fields(kind)}
    for name in fields:
        if name not in known:
            raise ValueError(f"unknown configuration key {name!r}")
    for name, field in known.items():
        if field.default is dataclasses.MISSING and name not in fields:
            raise ValueError(f"the configuration lacks the key {name!r}")
    return dict(fields)


def layer_shapes(
    sizes: LayerSizes, layer: int, *, width: int | None = None, normed: bool = True
) -> dict[str, tuple[int, ...]]:
    """The weights of one layer, by dotted name.

    Args:
      sizes: of the drafter.
      layer: which one.
      width: what its attention reads; `None`: the hidden size.
      normed: whether it has a norm before attention.
    """
    e, f, d = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    into = e if width is None else width
    queries, keys = sizes.num_heads * d, sizes.num_key_heads * d
    asked = queries * (2 if sizes.output_gate else 1)
    shapes: dict[str, tuple[int, ...]] = {
        "q": (into, asked),
        "k": (into, keys),
        "v": (into, keys),
        "o": (queries, e),
        "mlp_norm": (e,),
        "gate": (e, f),
        "up": (e, f),
        "down": (f, e),
    }
    if normed:
        shapes["attention_norm"] = (e,)
    if sizes.attention_bias:
        shapes |= {"q_bias": (asked,), "k_bias": (keys,), "v_bias": (keys,)}
    if sizes.output_bias:
        shapes |= {"o_bias": (e,)}
    if sizes.mlp_bias:
        shapes |= {"gate_bias": (f,), "up_bias": (f,), "down_bias": (e,)}
    if sizes.qk_norm:
        shapes |= {"q_norm": (d,), "k_norm": (d,)}
    return {f"layers.{layer}.{name}": shape for name, shape in shapes.items()}


def draft_layer(
    sizes: LayerSizes,
    weights: Mapping[str, Array],
    layer: int,
    read: Float[Array, "B N I"],
    residual: Float[Array, "B N E"],
    position: Int[Array, "B N"],
    attend: Attend,
) -> Float[Array, "B N E"]:
    """A pre-norm decoder layer whose attention may read something wider.

    Args:
      sizes: of the drafter.
      weights: by dotted name.
      layer: which one.
      read: what queries, keys and values are made of, normed already.
      residual: what attention and MLP are added to.
      position: for rotation.
      attend: mixes values; it also keeps the keys and values it is given.
    """

    def own(name: str) -> Array | None:
        return weights.get(f"layers.{layer}.{name}")

    def project(x: Array, name: str) -> Array:
        return linear(x, weights[f"layers.{layer}.{name}"], own(f"{name}_bias"))

    b, n, _ = read.shape
    k, v = (
        project(read, name).reshape(b, n, -1, sizes.head_dim) for name in ("k", "v")
    )
    q, gate = project(read, "q").reshape(b, n, sizes.num_heads, -1), None
    if sizes.output_gate:
        q, gate = jnp.split(q, 2, axis=-1)
    if sizes.qk_norm:
        q = norm(q, weights[f"layers.{layer}.q_norm"], sizes.norm_eps)
        k = norm(k, weights[f"layers.{layer}.k_norm"], sizes.norm_eps)
    turned = sizes.rotary_dim or sizes.head_dim
    turn = turns(sizes.rope, turned, position)

    def rotated(x: Array) -> Array:
        if turned == sizes.head_dim:
            return rotate(x, turn)
        first = rotate(x[..., :turned], turn)
        return jnp.concatenate([first, x[..., turned:]], axis=-1)

    mixed = attend(layer, rotated(q), rotated(k), v)
    if gate is not None:
        mixed = mixed * jax.nn.sigmoid(gate)
    x = residual + project(mixed.reshape(b, n, -1), "o")
    y = norm(x, weights[f"layers.{layer}.mlp_norm"], sizes.norm_eps)
    return x + project(jax.nn.silu(project(y, "gate")) * project(y, "up"), "down")


def fitted_to[Config](config: Config, target: Target) -> Config:
    """The configuration, reading the last layer of this target if it names none."""
    named: Any = config
    layers = named.target_layers or target.config.num_layers
    return dataclasses.replace(named, target_layers=layers)


def last_layer(config: Any, unfitted: str) -> tuple[int, ...]:
    """The target's last layer, as the features to tap.

    Raises:
      ValueError: `unfitted`, where the configuration names no target's.
    """
    if config.target_layers is None:
        raise ValueError(unfitted)
    return (config.target_layers,)


def check_last_layer(method: str, config: Any, target: Target) -> None:
    """Refuses a target whose last layer is not the one that is read."""
    if config.feature_layers != (target.config.num_layers,):
        raise ValueError(
            f"the drafter of method {method!r} reads layer {config.target_layers}, "
            f"the last of its target; this one has {target.config.num_layers}"
        )


def borrowed_embedding(
    weights: Mapping[str, Array], target: Any, tokens: Int[Array, "B N"]
) -> Float[Array, "B N E"]:
    """Rows of the drafter's own embedding, if it has one, or what the target reads."""
    if "embed" in weights:
        return embed(weights["embed"], tokens)
    return target.embed_tokens(tokens)


def borrowed_head(
    weights: Mapping[str, Array], target: Any, x: Float[Array, "B N E"]
) -> Float[Array, "B N V"]:
    """Logits by the drafter's own head, if it has one, or the target's; no norm.

    Those of tokens that the target does not have are minus infinity.
    """
    if "head" in weights:
        y = linear(x, weights["head"], out=jnp.float32)
    else:
        head = None if target.head is None else target.head[...]
        y = vocabulary_logits(x, target.embed[...], head)
    return without_padding(y, target)


def without_padding(
    logits: Float[Array, "B N V"], target: Any
) -> Float[Array, "B N V"]:
    """Logits over the target's rows, minus infinity for rows that are no token."""
    config = target.config
    if logits.shape[-1] != config.vocab_size:
        return logits
    return only_tokens(logits, config.tokens)


def target_feature(target: Any, x: Float[Array, "B N E"]) -> Float[Array, "B N E"]:
    """What the target's head reads: its last state behind its final norm."""
    return target.normed(x)


def check_weights(
    method: str, weights: Any, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises `ValueError` unless the weights have exactly these shapes."""
    if weights is None:
        raise ValueError(f"method {method!r} needs drafter=, its converted checkpoint")
    for name in sorted(shapes.keys() | weights.keys()):
        found = tuple(weights[name].shape) if name in weights else None
        if found != shapes.get(name):
            raise ValueError(
                f"method {method!r}: the weight {name} has shape {found}; its "
                f"configuration asks for {shapes.get(name)}"
            )


def check_draft_sampling(asked: str, *known: str) -> None:
    """Refuses a `draft_sampling` that the method does not know."""
    if asked not in known:
        *others, last = map(repr, known)
        raise ValueError(
            f"draft_sampling must be {', '.join(others)} or {last}, not {asked!r}"
        )


def check_sizes(
    method: str, target: Target, *, hidden_size: int, vocab_size: int
) -> None:
    """Raises `ValueError` unless a drafter was made for such a target."""
    theirs = target.config
    for what, ours, right in (
        ("hidden size", hidden_size, theirs.hidden_size),
        ("vocabulary", vocab_size, theirs.vocab_size),
    ):
        if ours != right:
            raise ValueError(
                f"the drafter of method {method!r} was made for a target of {what} "
                f"{ours}; this one has {right}"
            )
