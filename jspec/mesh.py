"""Logical axes of weights and caches, and how a mesh divides them."""

import dataclasses
from collections.abc import Sequence

from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["AXES", "ShardingRules", "sharding_of"]

AXES: dict[str, tuple[str | None, ...]] = {
    "embed": ("vocab", "width"),
    "head": ("width", "vocab"),
    "norm": ("width",),
    "attention_norm": ("width",),
    "mlp_norm": ("width",),
    "q": ("width", "heads"),
    "k": ("width", "key_heads"),
    "v": ("width", "key_heads"),
    "o": ("heads", "width"),
    "q_bias": ("heads",),
    "k_bias": ("key_heads",),
    "v_bias": ("key_heads",),
    "o_bias": ("width",),
    "q_norm": (None,),
    "k_norm": (None,),
    "gate": ("width", "mlp"),
    "up": ("width", "mlp"),
    "down": ("mlp", "width"),
    "gate_bias": ("mlp",),
    "up_bias": ("mlp",),
    "down_bias": ("width",),
    "post_attention_norm": ("width",),
    "post_mlp_norm": ("width",),
    "layer_embed": ("vocab", None),
    "layer_project": ("width", None),
    "layer_project_norm": (None,),
    "input_gate": ("width", None),
    "input_project": (None, "width"),
    "input_norm": ("width",),
    "scalar": (None,),
    "router": ("width", None),
    "router_scale": ("width",),
    "expert_scale": (None,),
    "expert_norm": ("width",),
    "expert_gate_up": (None, "width", None),
    "expert_down": (None, None, "width"),
    "post_dense_norm": ("width",),
    "post_expert_norm": ("width",),
    "pages": (None, "key_heads", None, None),
}
"""The logical axes of each weight, by the last part of its name, and of key pages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingRules:
    """Which mesh axis divides each logical axis; `None`: every device holds all of it.

    The default is tensor parallelism over one axis, "model": heads, the inner width
    of the MLP and the vocabulary are divided, the width of the stream is not.
    """

    vocab: str | None = "model"
    heads: str | None = "model"
    key_heads: str | None = "model"
    mlp: str | None = "model"
    width: str | None = None


def sharding_of(
    name: str,
    shape: Sequence[int],
    mesh: Mesh,
    rules: ShardingRules,
    *,
    units: dict[str, int],
) -> NamedSharding:
    """Where an array lies on a mesh.

    Args:
      name: dotted; its last part is looked up in `AXES`.
      shape: of the array.
      mesh: the devices.
      rules: logical to mesh axes.
      units: how many whole things a logical axis consists of (heads, not columns).

    Raises:
      ValueError: an axis cannot be divided evenly; the sentence names it.
    """
    spec = []
    for axis, size in zip(AXES[name.rsplit(".", 1)[-1]], shape, strict=True):
        physical = None if axis is None else getattr(rules, axis)
        if physical is not None:
            if physical not in mesh.shape:
                raise ValueError(
                    f"the mesh has no axis {physical!r}, which divides {axis}; its "
                    f"axes are {', '.join(mesh.axis_names)}"
                )
            whole = units.get(str(axis), size)
            if whole % mesh.shape[physical]:
                raise ValueError(
                    f"{whole} {axis} of {name} cannot be divided by the "
                    f"{mesh.shape[physical]} devices of mesh axis {physical!r}; choose "
                    f"another mesh, or ShardingRules({axis}=None)"
                )
        spec.append(physical)
    return NamedSharding(mesh, PartitionSpec(*spec))
