"""What the checkpoints of block drafters share: a Qwen 3 body, taps, masks.

Three layouts are read: z-lab's and DeepSeek's, whose options stand at the top or in
`dflash_config` or `dspark_config` and whose layer ids name a layer's output, and that
of speculators, whose body is `transformer_layer_config` and whose ids count states.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from converters.config import from_hugging_face, to_hugging_face, unread_keys
from converters.drafters.block_tables import bare
from converters.sources import TensorFiles
from jspec.drafters.block_config import BlockConfig
from jspec.models.base import ModelConfig

__all__ = ["NESTS", "Read", "number", "options_of", "read_block", "write_block"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NESTS = ("dflash_config", "dspark_config")
READ = _words(
    """block_size target_layer_ids layer_ids aux_hidden_state_layer_ids mask_token_id
    num_target_layers target_hidden_size draft_vocab_size is_causal causal
    sliding_window_non_causal sample_from_anchor use_swa swa_window_size
    attention_sink_bias attention_value_scale input_embedding_scale output_multiplier
    final_logit_softcapping is_neox_style projector_type mask_token dflash_config
    dspark_config layer_types sliding_window use_sliding_window max_window_layers
    speculators_model_type speculators_version speculators_config
    transformer_layer_config tie_word_embeddings"""
)
"""Keys that this module reads, or that say nothing about the arithmetic."""

OTHERS = {
    "conv_kernel_size": "DFlash2",
    "conv_group_size": "DFlash2",
    "selector_rank": "DFlash2",
    "gru_hidden_dim": "Domino",
    "lilicorr_topk": "LiLiCorr",
}
"""Keys of successors, whose blocks compute more than this."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """A block's configuration, and what is to be said about it."""

    config: BlockConfig
    conventions: Mapping[str, str]
    notices: tuple[str, ...]


def options_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What stands at the top, and what is nested wins."""
    found = dict(raw)
    for key in NESTS:
        if isinstance(raw.get(key), Mapping):
            found |= raw[key]
    return found


def read_block(
    raw: Mapping[str, Any],
    tensors: TensorFiles,
    *,
    sample_from_anchor: bool,
    known: Iterable[str] = (),
) -> Read:
    """The block's configuration.

    Args:
      raw: config.json.
      tensors: what the checkpoint brings decides what is borrowed.
      sample_from_anchor: where the file does not say it.
      known: keys that the caller reads.

    Raises:
      ValueError: a key is missing, or says something we do not compute; it is named.
    """
    options, names = options_of(raw), bare(tensors)
    for key, method in OTHERS.items():
        if options.get(key):
            raise ValueError(f"config.json: {key} belongs to {method}, not supported")
    if options.get("is_neox_style") not in (None, True):
        raise ValueError("config.json: is_neox_style = False is not supported")
    speculators = "speculators_model_type" in raw
    inner = raw.get("transformer_layer_config") if speculators else options
    if not isinstance(inner, Mapping):
        raise ValueError("config.json lacks transformer_layer_config")
    skipped = READ | set(known)
    body_keys = {key: value for key, value in inner.items() if key not in skipped}
    body = from_hugging_face(body_keys, "qwen3")
    taps, said = _taps(options, speculators, body.num_layers)
    windows, causal = _attention(options | dict(inner), body, speculators)
    wide = options.get("draft_vocab_size") or body.vocab_size
    cap = options.get("final_logit_softcapping")
    config = BlockConfig(
        vocab_size=body.vocab_size,
        hidden_size=body.hidden_size,
        intermediate_size=body.intermediate_size,
        num_layers=body.num_layers,
        num_heads=body.num_heads,
        num_key_heads=body.num_key_heads,
        head_dim=body.head_dim,
        norm_eps=body.norm_eps,
        rope=body.rope,
        block_size=number(options, "block_size"),
        mask_token_id=number(options, "mask_token_id"),
        taps=taps,
        target_hidden_size=options.get("target_hidden_size") or body.hidden_size,
        sample_from_anchor=bool(options.get("sample_from_anchor", sample_from_anchor)),
        windows=windows,
        causal=causal,
        attention_bias=body.attention_bias,
        draft_vocab_size=None if wide == body.vocab_size else wide,
        own_embedding="embed_tokens.weight" in names,
        own_head="lm_head.weight" in names,
        mask_embedding="mask_embedding" in names,
        sinks=bool(options.get("attention_sink_bias")),
        embedding_scale=float(options.get("input_embedding_scale") or 1.0),
        value_scale=float(options.get("attention_value_scale") or 1.0),
        logit_scale=float(options.get("output_multiplier") or 1.0),
        logit_cap=float(cap) if cap else None,
    )
    unread = {*unread_keys(body_keys), *(unread_keys(raw) if speculators else ())}
    notices = [
        f"config.json has the key {key!r}, which is not read"
        for key in sorted(unread - skipped)
    ]
    notices += [
        f"the drafter borrows the target's {what}"
        for what, own in (
            ("embedding", config.own_embedding),
            ("head", config.own_head),
        )
        if not own
    ]
    conventions = {"taps": said, "d2t": "offsets", "rope": "half-split"}
    return Read(config=config, conventions=conventions, notices=tuple(notices))


def number(options: Mapping[str, Any], key: str) -> int:
    """An integer of config.json; a `ValueError` names what is none."""
    value = options.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(
            f"config.json lacks {key}"
            if value is None
            else f"config.json: {key} is {value!r}, not a number"
        )
    return value


def _taps(
    options: Mapping[str, Any], speculators: bool, layers: int
) -> tuple[tuple[int, ...], str]:
    """Residual-stream indices, whichever way the file counts."""
    if speculators:
        ids = _layers(options, "aux_hidden_state_layer_ids")
        return ids, "aux_hidden_state_layer_ids: states, the embedding is 0"
    if options.get("target_layer_ids"):
        ids = _layers(options, "target_layer_ids")
        return tuple(i + 1 for i in ids), "target_layer_ids: outputs of layers, from 0"
    if options.get("layer_ids"):
        ids = _layers(options, "layer_ids")
        return ids, "layer_ids: states, the embedding is 0"
    if "num_target_layers" not in options:
        raise ValueError("config.json lacks target_layer_ids")
    deep = number(options, "num_target_layers")
    if layers == 1:
        ids = [deep // 2]
    else:
        ids = [round(1 + i * (deep - 4) / (layers - 1)) for i in range(layers)]
    return tuple(i + 1 for i in ids), "none: spread over num_target_layers"


def _layers(options: Mapping[str, Any], key: str) -> tuple[int, ...]:
    ids = options.get(key)
    if not ids:
        raise ValueError(f"config.json lacks {key}")
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise ValueError(f"config.json: {key} is {ids!r}, not a list of layers")
    return tuple(ids)


def _attention(
    options: Mapping[str, Any], body: ModelConfig, speculators: bool
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Windows and causality of every layer."""
    layers = body.num_layers
    types = options.get("layer_types")
    window = options.get("sliding_window")
    if options.get("use_swa"):
        window = options.get("swa_window_size") or window
        types = types or ["sliding_attention"] * layers
    types = list(types or ["full_attention"] * layers)
    if len(types) != layers or set(types) - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"config.json: layer_types must name {layers} layers, each "
            f"'full_attention' or 'sliding_attention', not {types}"
        )
    slides = [kind == "sliding_attention" for kind in types]
    if any(slides) and not window:
        raise ValueError("config.json: layer_types slides, but sliding_window is none")
    if speculators:
        causal = [
            s and not options.get("sliding_window_non_causal", False) for s in slides
        ]
    else:
        said = options.get("is_causal")
        said = options.get("causal") if said is None else said
        causal = slides if said is None else [bool(said)] * layers
    return (
        tuple(window if s else None for s in slides) if any(slides) else (),
        tuple(causal) if any(causal) else (),
    )


def write_block(
    config: BlockConfig, architecture: str, nested: str | None
) -> dict[str, Any]:
    """A config.json in z-lab's layout; what it cannot say shows when it is read again.

    Args:
      config: of the block.
      architecture: how the model is called there.
      nested: where options stand; `None`: at the top.
    """
    body = ModelConfig(
        family="qwen3",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_key_heads=config.num_key_heads,
        head_dim=config.head_dim,
        norm_eps=config.norm_eps,
        rope=config.rope,
        max_position=max(config.rope.original_max_position, 32_768),
        tie_embeddings=False,
        attention_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
        windows=config.windows,
    )
    written = to_hugging_face(body, "bfloat16")
    options: dict[str, Any] = {
        "target_layer_ids": [tap - 1 for tap in config.taps],
        "mask_token_id": config.mask_token_id,
        "target_hidden_size": config.target_hidden_size,
        "sample_from_anchor": config.sample_from_anchor,
        "causal": all(config.causal) if config.causal else False,
        "attention_sink_bias": config.sinks,
        "attention_value_scale": config.value_scale,
        "input_embedding_scale": config.embedding_scale,
        "output_multiplier": config.logit_scale,
        "final_logit_softcapping": config.logit_cap,
    }
    slides = tuple(config.windows and [w is not None for w in config.windows])
    if (config.causal or (False,) * len(slides)) == slides:
        del options["causal"]
    if config.draft_vocab_size is not None:
        options["draft_vocab_size"] = config.draft_vocab_size
    written |= {"architectures": [architecture], "block_size": config.block_size}
    return written | ({nested: options} if nested else options)
