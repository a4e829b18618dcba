"""What transformers computes: `python torch_models.py FOLDER [CASE...]`, by a Python that has torch and transformers.
`python torch_models.py read FOLDER ORIGINALS CASE...` reads checkpoints there and compares them with the originals.

For each case FOLDER/CASE has a checkpoint of a small model with drawn parameters and, for each way to call it, WAY.npz
with inputs, logits and loss, and WAY, a checkpoint whose tensors are the gradients of the loss.
"""

import json
import sys
from pathlib import Path

import numpy as np

BATCH, LENGTH, VOCABULARY = 5, 12, 37
DECODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GPT2 = dict(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2)
ENCODER = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=44,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
)
VISION = {k: v for k, v in ENCODER.items() if k not in ("vocab_size", "max_position_embeddings")}
VISION.update(image_size=12, patch_size=4)
T5 = dict(
    vocab_size=VOCABULARY,
    d_model=32,
    d_kv=6,
    d_ff=44,
    num_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=9,
    decoder_start_token_id=0,
)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
# Also written as shards with an index, and as PyTorch's file, which has tied tensors twice.
OTHER_FILES = ("llama3", "gpt2", "bert")
DEEPSEEK = dict(
    DECODER,
    num_key_value_heads=4,
    moe_intermediate_size=20,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=1,
    q_lora_rank=14,
    kv_lora_rank=18,
    qk_rope_head_dim=6,
    qk_nope_head_dim=10,
    v_head_dim=12,
)
MIXTRAL = dict(DECODER, num_local_experts=4, num_experts_per_tok=2)
QWEN2_MOE = dict(
    DECODER,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=20,
    shared_expert_intermediate_size=28,
)
QWEN3_MOE = dict(
    DECODER,
    num_experts=6,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    mlp_only_layers=[1],
    norm_topk_prob=True,
)
# The loss has that of the routers, which is weighted to matter.
ROUTER = {"output_router_logits": True, "router_aux_loss_coef": 0.3}
CAUSAL = ("plain", "padded", "packed")
# Name: the model's class, its configuration, and how it is called.
CASES = {
    "gpt2": ("GPT2LMHeadModel", GPT2, CAUSAL),
    "gpt2-untied": (
        "GPT2LMHeadModel",
        {
            **GPT2,
            "n_inner": 50,
            "tie_word_embeddings": False,
            "activation_function": "gelu",
            "scale_attn_by_inverse_layer_idx": True,
        },
        ("plain",),
    ),
    "llama": ("LlamaForCausalLM", DECODER, CAUSAL),
    "llama3": (
        "LlamaForCausalLM",
        {
            **DECODER,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16},
        },
        ("plain", "packed"),
    ),
    "llama-linear": (
        "LlamaForCausalLM",
        {
            **DECODER,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        },
        ("plain",),
    ),
    "llama-yarn": ("LlamaForCausalLM", {**DECODER, "head_dim": 10, "rope_parameters": YARN}, ("plain",)),
    "mistral": ("MistralForCausalLM", {**DECODER, "sliding_window": 5}, ("plain", "padded")),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        ("plain", "padded"),
    ),
    "qwen3": ("Qwen3ForCausalLM", {**DECODER, "head_dim": 12, "tie_word_embeddings": True}, CAUSAL),
    "deepseek": ("DeepseekV3ForCausalLM", DEEPSEEK, CAUSAL),
    "deepseek-yarn": (
        "DeepseekV3ForCausalLM",
        {
            **DEEPSEEK,
            "q_lora_rank": None,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        },
        ("plain",),
    ),
    "bert": ("BertForMaskedLM", ENCODER, ("plain", "padded", "types")),
    "vit": ("ViTForImageClassification", {**VISION, "num_labels": 7}, ("images",)),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 6, "hidden_sizes": [16, 24], "depths": [1, 2], "num_labels": 5},
        ("images", "training"),
    ),
    "resnet-basic": (
        "ResNetForImageClassification",
        {"embedding_size": 6, "hidden_sizes": [6, 10], "depths": [2, 1], "layer_type": "basic", "num_labels": 5},
        ("images", "training"),
    ),
    "t5": ("T5ForConditionalGeneration", T5, ("pairs", "padded-pairs")),
    "t5-gated": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 1},
        ("pairs",),
    ),
    "mixtral": ("MixtralForCausalLM", MIXTRAL, ("plain", "padded")),
    "mixtral-router": ("MixtralForCausalLM", {**MIXTRAL, **ROUTER}, ("plain", "padded")),
    "qwen2-moe": ("Qwen2MoeForCausalLM", QWEN2_MOE, ("plain",)),
    "qwen2-moe-router": ("Qwen2MoeForCausalLM", {**QWEN2_MOE, **ROUTER}, ("plain", "padded")),
    "qwen3-moe": ("Qwen3MoeForCausalLM", QWEN3_MOE, ("plain",)),
    "qwen3-moe-router": ("Qwen3MoeForCausalLM", {**QWEN3_MOE, **ROUTER}, ("plain", "padded")),
}


def inputs_of(way, rng):
    """The arguments of a call by name, the first of which is the model's own input."""
    if way in ("images", "training"):
        return {"input": rng.normal(size=(BATCH, 3, 12, 12)).astype("f4"), "labels": rng.integers(0, 5, BATCH)}
    ids = rng.integers(1, VOCABULARY, (BATCH, LENGTH))
    labels = np.where(rng.random(ids.shape) < 0.2, -100, ids)
    inputs = {"input": ids, "labels": labels}
    if way == "padded":
        mask = np.ones_like(ids)
        mask[1, 8:], mask[2, :3], mask[4, 5:] = 0, 0, 0
        inputs["attention_mask"], inputs["labels"] = mask, np.where(mask == 1, labels, -100)
    if way == "packed":
        # Documents of 4, 5 and 3 tokens in one row, of other lengths in the others; no label crosses.
        lengths = [[4, 5, 3], [12], [1, 11], [6, 6], [2, 2, 8]]
        inputs["position_ids"] = np.array([np.concatenate([np.arange(n) for n in row]) for row in lengths])
        inputs["labels"] = np.where(inputs["position_ids"] == 0, -100, labels)
    if way == "types":
        inputs["token_type_ids"] = (np.arange(LENGTH) >= rng.integers(1, LENGTH, (BATCH, 1))).astype("i8")
    if way.endswith("pairs"):
        labels = rng.integers(1, VOCABULARY, (BATCH, 9))
        labels[0, 6:], labels[3, 2:] = -100, -100
        inputs["labels"] = labels
        if way == "padded-pairs":
            mask, target_mask = np.ones_like(ids), np.ones_like(labels)
            mask[1, 8:], mask[2, :3], target_mask[0, 7:] = 0, 0, 0
            inputs["attention_mask"], inputs["decoder_attention_mask"] = mask, target_mask
    return inputs


def draw(model, torch):
    """Parameters large enough that each one matters in the logits."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(noise * 0.15 if p.ndim > 1 else noise * 0.1 + (0.0 if name.endswith("bias") else 1.0))
        for name, b in model.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                noise = torch.rand(b.shape, generator=generator)
                b.copy_(noise * 0.2 if name.endswith("mean") else noise + 0.5)
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.randn(b.shape, generator=generator) * 0.1)


def write(folder, name, torch, transformers):
    class_name, config, ways = CASES[name]
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**config)).eval()
    draw(model, torch)
    model.save_pretrained(folder / name)
    for way in ways:
        inputs = inputs_of(way, np.random.default_rng(len(name)))
        given = {model.main_input_name if k == "input" else k: torch.tensor(v) for k, v in inputs.items()}
        if model.main_input_name == "input_ids":
            given["use_cache"] = False  # with a cache packed documents are not looked for
        model.train(way == "training")
        model.zero_grad()
        out = model(**given)
        if config.get("output_router_logits"):
            assert out.aux_loss > 0.1, "transformers computes no loss of the routers"
        out.loss.backward()
        np.savez(folder / name / f"{way}.npz", logits=out.logits.detach().numpy(), loss=out.loss.item(), **inputs)
        # A checkpoint of the same form: the gradients in place of the parameters.
        gradients = model_class(model.config)
        for target, source in zip(gradients.parameters(), model.parameters(), strict=True):
            target.data = source.grad.clone()
        gradients.save_pretrained(folder / name / way)
    if name in OTHER_FILES:
        model.save_pretrained(folder / name / "shards", max_shard_size="20KB")
        (folder / name / "pickle").mkdir()
        torch.save(model.state_dict(), folder / name / "pickle/pytorch_model.bin")
        model.config.save_pretrained(folder / name / "pickle")


def read(folder, original, torch, transformers):
    """Errors: the model of a folder is not the original, tensor by tensor."""
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, found = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), (folder, found)
    expected = getattr(transformers, architecture).from_pretrained(original).state_dict()
    state = model.state_dict()
    assert state.keys() == expected.keys(), folder
    different = [name for name, t in state.items() if not torch.equal(t, expected[name])]
    assert not different, (folder, different)


def main():
    import torch
    import transformers

    torch.set_num_threads(1)
    if sys.argv[1] == "read":
        for name in sys.argv[4:]:
            read(Path(sys.argv[2]) / name, Path(sys.argv[3]) / name, torch, transformers)
        return
    folder = Path(sys.argv[1])
    names = sys.argv[2:] or list(CASES)
    for name in names:
        write(folder, name, torch, transformers)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (folder / "versions.json").write_text(json.dumps(versions))


if __name__ == "__main__":
    main()
