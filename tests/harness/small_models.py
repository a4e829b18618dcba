"""Small models of all families, for tests without torch."""

from . import model_formulas as formulas
from .torch_models import DECODER, DEEPSEEK, ENCODER, GPT2, T5, VISION

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "dropout_rate": 0.0}
DRAWN = {"initializer_range": 0.2, "initializer_factor": 1.2}
# Name: formula, loss of logits and labels, configuration, way to call it.
MODELS = {
    "llama": (formulas.llama, formulas.next_tokens, {"model_type": "llama", **DECODER}, "packed"),
    "mistral": (
        formulas.llama,
        formulas.next_tokens,
        {"model_type": "mistral", **DECODER, "sliding_window": 5},
        "plain",
    ),
    "qwen2": (formulas.llama, formulas.next_tokens, {"model_type": "qwen2", **DECODER}, "padded"),
    "qwen3": (
        formulas.llama,
        formulas.next_tokens,
        {"model_type": "qwen3", **DECODER, "head_dim": 12, "tie_word_embeddings": True},
        "plain",
    ),
    "mixtral": (
        formulas.llama,
        formulas.next_tokens,
        {"model_type": "mixtral", **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
        "plain",
    ),
    "qwen2-moe": (
        formulas.llama,
        formulas.next_tokens,
        {
            "model_type": "qwen2_moe",
            **DECODER,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "shared_expert_intermediate_size": 28,
        },
        "plain",
    ),
    "qwen3-moe": (
        formulas.llama,
        formulas.next_tokens,
        {
            "model_type": "qwen3_moe",
            **DECODER,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
        "packed",
    ),
    "deepseek": (formulas.deepseek, formulas.next_tokens, {"model_type": "deepseek_v3", **DEEPSEEK}, "packed"),
    "gpt2": (formulas.gpt2, formulas.next_tokens, {"model_type": "gpt2", **GPT2}, "packed"),
    "bert": (formulas.bert, formulas.cross_entropy, {"model_type": "bert", **ENCODER}, "types"),
    "vit": (formulas.vit, formulas.cross_entropy, {"model_type": "vit", **VISION, "num_labels": 5}, "images"),
    "resnet": (
        formulas.resnet,
        formulas.cross_entropy,
        {"model_type": "resnet", "embedding_size": 6, "hidden_sizes": [16, 24], "depths": [1, 2], "num_labels": 5},
        "images",
    ),
    "t5": (formulas.t5, formulas.cross_entropy, {"model_type": "t5", **T5}, "pairs"),
    "t5-gated": (
        formulas.t5,
        formulas.cross_entropy,
        {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu"},
        "pairs",
    ),
}

# A Llama for tests of what all models have.
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 23,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
}
