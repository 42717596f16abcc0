"""Gemma 2, Gemma 3 and Gemma 4, text: four norms a layer, and what each has besides."""

from converters.tables import Table, same, transpose, transpose_each

GEMMA_2: Table = {
    "model.embed_tokens.weight": ("embed", same),
    "model.norm.weight": ("norm", same),
    "lm_head.weight": ("head", transpose),
    "model.layers.{l}.input_layernorm.weight": ("layers.{l}.attention_norm", same),
    "model.layers.{l}.post_attention_layernorm.weight": (
        "layers.{l}.post_attention_norm",
        same,
    ),
    "model.layers.{l}.pre_feedforward_layernorm.weight": ("layers.{l}.mlp_norm", same),
    "model.layers.{l}.post_feedforward_layernorm.weight": (
        "layers.{l}.post_mlp_norm",
        same,
    ),
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
}

GEMMA_3: Table = {
    **GEMMA_2,
    "model.layers.{l}.self_attn.q_norm.weight": ("layers.{l}.q_norm", same),
    "model.layers.{l}.self_attn.k_norm.weight": ("layers.{l}.k_norm", same),
}

GEMMA_4: Table = {
    **GEMMA_3,
    "model.embed_tokens_per_layer.weight": ("layer_embed", same),
    "model.per_layer_model_projection.weight": ("layer_project", transpose),
    "model.per_layer_projection_norm.weight": ("layer_project_norm", same),
    "model.layers.{l}.layer_scalar": ("layers.{l}.scalar", same),
    "model.layers.{l}.per_layer_input_gate.weight": (
        "layers.{l}.input_gate",
        transpose,
    ),
    "model.layers.{l}.per_layer_projection.weight": (
        "layers.{l}.input_project",
        transpose,
    ),
    "model.layers.{l}.post_per_layer_input_norm.weight": (
        "layers.{l}.input_norm",
        same,
    ),
    "model.layers.{l}.router.proj.weight": ("layers.{l}.router", transpose),
    "model.layers.{l}.router.scale": ("layers.{l}.router_scale", same),
    "model.layers.{l}.router.per_expert_scale": ("layers.{l}.expert_scale", same),
    "model.layers.{l}.pre_feedforward_layernorm_2.weight": (
        "layers.{l}.expert_norm",
        same,
    ),
    "model.layers.{l}.experts.gate_up_proj": (
        "layers.{l}.expert_gate_up",
        transpose_each,
    ),
    "model.layers.{l}.experts.down_proj": ("layers.{l}.expert_down", transpose_each),
    "model.layers.{l}.post_feedforward_layernorm_1.weight": (
        "layers.{l}.post_dense_norm",
        same,
    ),
    "model.layers.{l}.post_feedforward_layernorm_2.weight": (
        "layers.{l}.post_expert_norm",
        same,
    ),
}
