"""Mistral, which GGUF calls a Llama."""

from converters.tables import Table, same, transpose

HUGGING_FACE: Table = {
    "model.embed_tokens.weight": ("embed", same),
    "model.norm.weight": ("norm", same),
    "lm_head.weight": ("head", transpose),
    "model.layers.{l}.input_layernorm.weight": ("layers.{l}.attention_norm", same),
    "model.layers.{l}.post_attention_layernorm.weight": ("layers.{l}.mlp_norm", same),
    "model.layers.{l}.self_attn.q_proj.weight": ("layers.{l}.q", transpose),
    "model.layers.{l}.self_attn.k_proj.weight": ("layers.{l}.k", transpose),
    "model.layers.{l}.self_attn.v_proj.weight": ("layers.{l}.v", transpose),
    "model.layers.{l}.self_attn.o_proj.weight": ("layers.{l}.o", transpose),
    "model.layers.{l}.mlp.gate_proj.weight": ("layers.{l}.gate", transpose),
    "model.layers.{l}.mlp.up_proj.weight": ("layers.{l}.up", transpose),
    "model.layers.{l}.mlp.down_proj.weight": ("layers.{l}.down", transpose),
}
