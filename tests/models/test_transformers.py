"""Logits, losses and all gradients of holon.models are those of transformers, on every layout of ranks.

The reference is computed by a Python that has torch and transformers (harness/torch_python.py).
"""

import numpy as np
import pytest
from harness import torch_lora, torch_models
from harness.torch_models import CASES, OTHER_FILES
from harness.torch_python import require_torch, run_torch

import holon as flow

# (dp, tp, pp) on 1 to 8 ranks; 3 are uneven for the rows, 4 are more than some models' heads of keys.
LAYOUTS = [
    {},
    {"dp": 2},
    {"tp": 2},
    {"pp": 2},
    {"dp": 3},
    {"pp": 3},
    {"tp": 4},
    {"dp": 2, "tp": 2},
    {"tp": 2, "pp": 2},
    {"dp": 2, "pp": 3},
    {"dp": 2, "tp": 2, "pp": 2},
    {"dp": 2, "tp": 4},
]
# For experts, too: 4 of Mixtral's, 6 of Qwen3-MoE's.
EXPERTS = [
    {"ep": 2},
    {"dp": 2, "ep": 2},
    {"tp": 2, "ep": 2},
    {"pp": 2, "ep": 2},
    {"dp": 2, "tp": 2, "ep": 2},
    {"tp": 2, "pp": 2, "ep": 2},
]
TOLERANCE = 1e-5
# Without rotary embeddings a bias of the keys adds the same to all scores of a query: its gradient is 0, and what both
# have is rounding, which is measured by the largest gradient.
ZERO = ("attn.k.bias", "attention.key.bias", "self.key.bias")


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    require_torch()
    folder = tmp_path_factory.mktemp("references")
    run_torch(torch_models.__file__, folder)
    return folder


def everywhere(t):
    return t.to_global(flow.placement.all("cpu"), flow.sbp.broadcast).numpy()


def gradients_of(model):
    return {name: everywhere(p.grad) for name, p in model.named_parameters()}


def computed(folder, way, layout):
    """Of one rank: logits, loss, gradients, and the gradients of the reference under the same names."""
    model = flow.models.from_pretrained(folder, **layout).train(way == "training")
    with np.load(folder / f"{way}.npz") as saved:
        inputs = {k: flow.tensor(v) for k, v in saved.items() if k not in ("logits", "loss")}
    labels = inputs.pop("labels")
    loss = model.loss(labels=labels, **inputs)
    loss.backward()
    if way.endswith("pairs"):  # the labels, moved by one place
        before = flow.cat([flow.zeros(len(labels), 1, dtype=flow.int64), labels[:, :-1]], 1)
        inputs["decoder_input_ids"] = flow.where(before == -100, flow.zeros_like(before), before)
    with flow.no_grad():
        logits = everywhere(model(**inputs))
    expected = flow.models.from_pretrained(folder / way, **layout)
    wanted = {name: everywhere(p.detach()) for name, p in expected.named_parameters()}
    return logits, everywhere(loss.detach()).item(), gradients_of(model), wanted


def difference(found, wanted, scale=0.0):
    """The largest difference, relative to the largest number."""
    return np.abs(found - wanted).max() / max(np.abs(wanted).max(), scale)


def compare(folder, way, layout):
    """The largest relative differences in the logits and in the gradients."""
    ranks = int(np.prod(list(layout.values()), dtype=int))
    results = flow.run_ranks(ranks, lambda rank: computed(folder, way, layout))
    logits, loss, found, wanted = results[0]
    with np.load(folder / f"{way}.npz") as saved:
        mask = "decoder_attention_mask" if way.endswith("pairs") else "attention_mask"
        seen = saved[mask] == 1 if mask in saved else ...
        in_logits = difference(logits[seen], saved["logits"][seen])
        assert abs(loss - saved["loss"]) <= TOLERANCE * abs(saved["loss"])
    assert found.keys() == wanted.keys() and found
    largest = max(np.abs(g).max() for g in wanted.values())
    in_gradients = {
        name: difference(found[name], g, largest if name.endswith(ZERO) else 0.0) for name, g in wanted.items()
    }
    return in_logits, in_gradients


def cases():
    for name, (class_name, _, ways) in CASES.items():
        for way in ways:
            for layout in LAYOUTS + (
                EXPERTS if class_name.startswith(("Mixtral", "Qwen2Moe", "Qwen3Moe", "Deepseek")) else []
            ):
                text = "-".join(f"{k}{n}" for k, n in layout.items()) or "one"
                yield pytest.param(name, way, layout, id=f"{name}-{way}-{text}")


@pytest.mark.slow
@pytest.mark.parametrize("name, way, layout", list(cases()))
def test_as_transformers(references, name, way, layout):
    in_logits, in_gradients = compare(references / name, way, layout)
    assert in_logits <= TOLERANCE
    assert max(in_gradients.values()) <= TOLERANCE, {k: v for k, v in in_gradients.items() if v > TOLERANCE}


@pytest.mark.slow
def test_transformers_reads_what_is_saved(references, tmp_path):
    def save(rank):
        for name in CASES:
            flow.models.from_pretrained(references / name, dp=2, tp=2).save_pretrained(tmp_path / name)

    flow.run_ranks(4, save)
    run_torch(torch_models.__file__, "read", tmp_path, references, *CASES)


# Not ViT: its modules have other names in transformers 5 than its checkpoints, whose names adapters have here.
ADAPTED = ("gpt2", "llama", "qwen3", "deepseek", "bert", "t5", "mixtral", "qwen2-moe")


@pytest.mark.slow
def test_adapters_are_those_of_peft(references, tmp_path):
    """By the rules that PEFT documents, which torch_lora.py follows on transformers' own modules."""
    wanted = {}

    def save(rank):
        for name in ADAPTED:
            with np.load(references / name / f"{CASES[name][2][0]}.npz") as saved:
                inputs = {k: v for k, v in saved.items() if k not in ("logits", "loss", "labels")}
            if name == "t5":
                inputs["decoder_input_ids"] = inputs["input"][:, :5]
            model = flow.models.from_pretrained(references / name, tp=2)
            model.add_lora(["c_fc", "c_proj"] if name == "gpt2" else "all-linear", r=3, lora_alpha=5)
            flow.manual_seed(1)
            with flow.no_grad():
                for p in model.lora_parameters():
                    p.copy_(flow.randn(p.shape, placement=p.placement, sbp=p.sbp) * 0.2)
                logits = everywhere(model(**{k: flow.tensor(v) for k, v in inputs.items()}))
            model.save_adapter(tmp_path / name / "adapter")
            if rank == 0:
                wanted[name] = logits
                np.savez(tmp_path / name / "inputs.npz", **inputs)
                (tmp_path / name / "base.txt").write_text(str(references / name))

    flow.run_ranks(2, save)
    run_torch(torch_lora.__file__, tmp_path, *ADAPTED)
    for name, logits in wanted.items():
        assert difference(np.load(tmp_path / name / "logits.npy"), logits) <= TOLERANCE, name
        with np.load(references / name / f"{CASES[name][2][0]}.npz") as saved:
            assert name == "t5" or difference(saved["logits"], logits) > 0.01, name  # of the model without adapters


@pytest.mark.slow
@pytest.mark.parametrize("form", ["shards", "pickle"])
@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_files(references, name, form):
    def parameters(folder):
        model = flow.models.from_pretrained(folder, tp=2)
        return {n: everywhere(p.detach()) for n, p in model.named_parameters()}

    found, wanted = (
        flow.run_ranks(2, lambda rank, folder=folder: parameters(folder))[0]
        for folder in (references / name / form, references / name)
    )
    assert found.keys() == wanted.keys()
    assert all((found[n] == wanted[n]).all() for n in wanted)
