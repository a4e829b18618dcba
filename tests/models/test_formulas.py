"""Logits, losses and gradients of holon.models are those of the formulas, on several layouts of ranks.

Gradients are compared along directions with the differences of the formulas' loss.
"""

import numpy as np
import pytest
from harness import model_formulas as formulas
from harness.torch_models import DECODER, ENCODER, GPT2, T5, VISION, inputs_of

import holon as flow

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
LAYOUTS = [{}, {"dp": 2}, {"tp": 2}, {"pp": 2}, {"dp": 2, "tp": 2}]


def whole(t):
    return t.to_global(flow.placement.all("cpu"), flow.sbp.broadcast).numpy()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """A checkpoint of each model, and what its formula gives."""
    made = {}

    def get(name):
        if name not in made:
            formula, loss_of, config, way = MODELS[name]
            folder = tmp_path_factory.mktemp(name)
            flow.manual_seed(len(name))
            model = flow.models.from_config({**config, **NO_DROPOUT, **DRAWN})
            with flow.no_grad():
                for p in model.parameters():  # norms and biases that matter
                    if p.ndim == 1:
                        p.add_(flow.randn(p.shape, placement=p.placement, sbp=p.sbp) * 0.1)
                for n, b in model.named_buffers():
                    if n.endswith(("running_mean", "running_var")):
                        b.copy_(flow.rand(b.shape, placement=b.placement, sbp=b.sbp) + 0.5)
            model.save_pretrained(folder)
            tensors = {n: t.numpy().astype("f8") for n, t in flow.load(folder).items()}
            made[name] = folder, tensors, inputs_of(way, np.random.default_rng(3))
        return made[name]

    return get


def by_formula(name, tensors, inputs):
    formula, loss_of, config, _ = MODELS[name]
    given = {k: v for k, v in inputs.items() if k != "labels" or formula is formulas.t5}
    logits = formula(config, formulas.Weights(tensors), **given)
    return logits, loss_of(logits, inputs["labels"])


def gradients(folder, model, to):
    """Under the names of checkpoints: those of a checkpoint with the gradients in place of the parameters."""
    twin = flow.models.from_pretrained(folder, **to)
    with flow.no_grad():
        for p, q in zip(twin.parameters(), model.parameters(), strict=True):
            p.copy_(q.grad)
    return twin


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "-".join(f"{k}{n}" for k, n in x.items()) or "one")
@pytest.mark.parametrize("name", MODELS)
def test_as_formulas(checkpoints, tmp_path, name, layout):
    folder, tensors, inputs = checkpoints(name)

    def run(rank):
        model = flow.models.from_pretrained(folder, **layout)
        given = {k: flow.tensor(v) for k, v in inputs.items()}
        loss = model.loss(**given)
        loss.backward()
        gradients(folder, model, layout).save_pretrained(tmp_path)
        labels = given.pop("labels")
        if MODELS[name][0] is formulas.t5:
            before = flow.cat([flow.zeros(len(labels), 1, dtype=flow.int64), labels[:, :-1]], 1)
            given["decoder_input_ids"] = flow.where(before == -100, flow.zeros_like(before), before)
        with flow.no_grad():
            return whole(model(**given)), whole(loss.detach()).item()

    logits, loss = flow.run_ranks(int(np.prod(list(layout.values()), dtype=int)), run)[0]
    wanted, wanted_loss = by_formula(name, tensors, inputs)
    seen = inputs["attention_mask"] == 1 if "attention_mask" in inputs else ...
    assert np.abs(logits[seen] - wanted[seen]).max() <= 1e-5 * np.abs(wanted[seen]).max()
    assert abs(loss - wanted_loss) <= 1e-5 * wanted_loss
    if layout not in ({}, {"dp": 2, "tp": 2}):
        return  # the C++ tests compare the gradients of layouts
    found = {n: t.numpy().astype("f8") for n, t in flow.load(tmp_path).items()}
    rng = np.random.default_rng(0)
    largest = max(np.linalg.norm(g) for g in found.values())
    for n, g in found.items():
        if n.endswith(("running_mean", "running_var", "num_batches_tracked")):
            continue
        # Along the gradient itself, where the difference is its length, and along a random direction.
        for direction in (g, rng.normal(size=g.shape)):
            length = np.linalg.norm(direction)
            if length < 1e-6 * largest:
                continue
            step = direction / length * 1e-4
            losses = [by_formula(name, {**tensors, n: tensors[n] + s * step}, inputs)[1] for s in (1, -1)]
            slope = (losses[0] - losses[1]) / 2e-4
            np.testing.assert_allclose((g * step).sum() / 1e-4, slope, rtol=1e-3, atol=1e-5 * largest, err_msg=n)
