"""Drafting from pairs at every place of a text at once: EAGLE, EAGLE-3, P-EAGLE."""

from collections.abc import Iterator

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.drafters.pairs import PairModel
from jspec.training.attention import Seen, causal, mix, near
from jspec.training.recipe import across, shifted

__all__ = ["fill_in", "roll_out"]


def roll_out(
    model: PairModel,
    features: Float[Array, "B T E"],
    tokens: Int[Array, "B T"],
    *,
    steps: int,
) -> Iterator[Float[Array, "B T E"]]:
    """Hidden states of each step of drafting, with every token as the anchor.

    EAGLE-3's training-time test (arXiv:2503.01840, §3.2): the first step reads true
    features; each later one the output of the step before it, the true token, the true
    pairs up to the anchor and the drafter's own keys behind it, as in drafting.

    Args:
      model: the drafter.
      features: of the target, fused.
      tokens: the texts.
      steps: drafts behind each anchor.
    """
    b, t = tokens.shape
    slots = jnp.broadcast_to(jnp.arange(t)[None], (b, t))
    true: list[tuple[Array, Array]] = []
    own: list[list[tuple[Array, Array]]] = [[] for _ in range(model.sizes.num_layers)]
    feature = jnp.pad(features, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    for step in range(steps):

        def attend(layer: int, q: Array, k: Array, v: Array, step: int = step) -> Array:
            depth, window = jnp.array([step]), model.sizes.window(layer)
            if step == 0:
                true.append((k, v))
            else:
                own[layer].append((k, v))
            seen = causal(
                slots,
                depth,
                t,
                own=True,
                first=model.lag,
                window=window,
                sink=model.sink,
            )
            kinds = (Seen(k=true[layer][0], v=true[layer][1], seen=seen),)
            if step:
                k, v = (jnp.stack(a, axis=2) for a in zip(*own[layer], strict=True))
                among = near(depth, jnp.arange(1, step + 1), window=window)
                kinds += (Seen(k=k, v=v, seen=among),)
            return mix(q[:, :, None], kinds)[:, :, 0]

        token, place = shifted(tokens, step), slots + step - model.lag
        hidden = model.forward(feature, token, place, attend)
        yield hidden
        feature = model.feed(hidden).astype(feature.dtype)


def fill_in(
    model: PairModel,
    features: Float[Array, "B T E"],
    mask: Float[Array, "1 1 E"],
    mask_token_id: int,
    tokens: Int[Array, "B T"],
    anchors: Int[Array, "B A"],
    *,
    steps: int,
) -> Float[Array, "B A G E"]:
    """Hidden states of a pair and the masks behind it, for the anchors given.

    Args:
      model: the drafter.
      features: of the target, fused.
      mask: the feature that stands for those not known yet, fused.
      mask_token_id: and the token beside it.
      tokens: the texts.
      anchors: positions of the anchors.
      steps: drafts behind each anchor.
    """
    b, t = tokens.shape
    a, masks = anchors.shape[1], steps - 1
    true: list[tuple[Array, Array]] = []
    slots = jnp.broadcast_to(jnp.arange(t)[None], (b, t))

    def read(layer: int, q: Array, k: Array, v: Array) -> Array:
        true.append((k, v))
        seen = causal(
            slots,
            jnp.array([0]),
            t,
            own=True,
            first=model.lag,
            window=model.sizes.window(layer),
            sink=model.sink,
        )
        return mix(q[:, :, None], (Seen(k=k, v=v, seen=seen),))[:, :, 0]

    feature = jnp.pad(features, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    hidden = model.forward(feature, tokens, slots - model.lag, read)
    first = across(hidden, anchors)[:, :, None]
    if not masks:
        return first
    depth = jnp.arange(1, steps)

    def attend(layer: int, q: Array, k: Array, v: Array) -> Array:
        window = model.sizes.window(layer)
        q, k, v = (x.reshape(b, a, masks, *x.shape[2:]) for x in (q, k, v))
        seen = causal(
            anchors,
            depth,
            t,
            own=True,
            first=model.lag,
            window=window,
            sink=model.sink,
        )
        kinds = (
            Seen(k=true[layer][0], v=true[layer][1], seen=seen),
            Seen(k=k, v=v, seen=near(depth, depth, window=window)),
        )
        return mix(q, kinds).reshape(b, a * masks, *q.shape[3:])

    place = (anchors[:, :, None] + depth[None, None]).reshape(b, a * masks)
    rest = model.forward(
        jnp.broadcast_to(mask, (b, a * masks, mask.shape[-1])),
        jnp.full((b, a * masks), mask_token_id, jnp.int32),
        place - model.lag,
        attend,
    )
    return jnp.concatenate([first, rest.reshape(b, a, masks, -1)], axis=2)
