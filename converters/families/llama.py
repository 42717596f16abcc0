"""Llama 2 and 3, SmolLM2; in GGUF also Mistral."""

from converters.tables import Table, same, transpose, unpermute_keys, unpermute_queries

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
    "model.layers.{l}.self_attn.q_proj.bias": ("layers.{l}.q_bias", same),
    "model.layers.{l}.self_attn.k_proj.bias": ("layers.{l}.k_bias", same),
    "model.layers.{l}.self_attn.v_proj.bias": ("layers.{l}.v_bias", same),
    "model.layers.{l}.self_attn.o_proj.bias": ("layers.{l}.o_bias", same),
    "model.layers.{l}.mlp.gate_proj.weight": ("layers.{l}.gate", transpose),
    "model.layers.{l}.mlp.up_proj.weight": ("layers.{l}.up", transpose),
    "model.layers.{l}.mlp.down_proj.weight": ("layers.{l}.down", transpose),
    "model.layers.{l}.mlp.gate_proj.bias": ("layers.{l}.gate_bias", same),
    "model.layers.{l}.mlp.up_proj.bias": ("layers.{l}.up_bias", same),
    "model.layers.{l}.mlp.down_proj.bias": ("layers.{l}.down_bias", same),
}

GGUF: Table = {
    "token_embd.weight": ("embed", same),
    "output_norm.weight": ("norm", same),
    "output.weight": ("head", transpose),
    "blk.{l}.attn_norm.weight": ("layers.{l}.attention_norm", same),
    "blk.{l}.ffn_norm.weight": ("layers.{l}.mlp_norm", same),
    "blk.{l}.attn_q.weight": ("layers.{l}.q", unpermute_queries),
    "blk.{l}.attn_k.weight": ("layers.{l}.k", unpermute_keys),
    "blk.{l}.attn_v.weight": ("layers.{l}.v", transpose),
    "blk.{l}.attn_output.weight": ("layers.{l}.o", transpose),
    "blk.{l}.attn_q.bias": ("layers.{l}.q_bias", unpermute_queries),
    "blk.{l}.attn_k.bias": ("layers.{l}.k_bias", unpermute_keys),
    "blk.{l}.attn_v.bias": ("layers.{l}.v_bias", same),
    "blk.{l}.attn_output.bias": ("layers.{l}.o_bias", same),
    "blk.{l}.ffn_gate.weight": ("layers.{l}.gate", transpose),
    "blk.{l}.ffn_up.weight": ("layers.{l}.up", transpose),
    "blk.{l}.ffn_down.weight": ("layers.{l}.down", transpose),
    "blk.{l}.ffn_gate.bias": ("layers.{l}.gate_bias", same),
    "blk.{l}.ffn_up.bias": ("layers.{l}.up_bias", same),
    "blk.{l}.ffn_down.bias": ("layers.{l}.down_bias", same),
}
