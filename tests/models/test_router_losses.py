"""Losses of routers, and experts with a capacity, are those of the formulas, on several layouts of ranks."""

import json
import shutil

import numpy as np
import pytest
from harness import model_formulas as formulas
from harness.small_models import MODELS

import holon as flow

OPTIONS = {
    "losses": {"output_router_logits": True, "router_aux_loss_coef": 0.3, "router_z_loss_coef": 0.02},
    "capacity": {"capacity_factor": 0.8},
    "both": {
        "output_router_logits": True,
        "router_aux_loss_coef": 0.3,
        "router_z_loss_coef": 0.02,
        "capacity_factor": 1.0,
    },
}
LAYOUTS = [{}, {"dp": 2}, {"ep": 2}, {"pp": 2}, {"dp": 2, "ep": 2}, {"ep": 2, "pp": 2}]


def by_formula(name, options, tensors, inputs):
    formula, loss_of, config, _ = MODELS[name]
    config = {**config, **options, "routers": []}
    given = {k: v for k, v in inputs.items() if k != "labels"}
    loss = loss_of(formula(config, formulas.Weights(tensors), **given), inputs["labels"])
    if "output_router_logits" in options:
        loss += formulas.router_losses(config, inputs.get("attention_mask"))
    return loss


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "-".join(f"{k}{n}" for k, n in x.items()) or "one")
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_as_formulas(checkpoints, tmp_path, name, masked, options, layout):
    folder, tensors, inputs = checkpoints(name)
    options = OPTIONS[options]
    given = {"input": inputs["input"], "labels": inputs["labels"]}
    if masked:
        given["attention_mask"] = np.ones_like(inputs["input"])
        given["attention_mask"][-1, -3:] = 0
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **options}))

    def run(rank):
        model = flow.models.from_pretrained(tmp_path / "model", **layout)
        loss = model.loss(**{k: flow.tensor(v) for k, v in given.items()})
        loss.backward()
        twin = flow.models.from_pretrained(tmp_path / "model", **layout)
        with flow.no_grad():
            for p, q in zip(twin.parameters(), model.parameters(), strict=True):
                p.copy_(q.grad)
        twin.save_pretrained(tmp_path / "gradients")
        return loss.to_global(flow.placement.all("cpu"), flow.sbp.broadcast).item()

    ranks = int(np.prod(list(layout.values()), dtype=int))
    loss = flow.run_ranks(ranks, run)[0]
    wanted = by_formula(name, options, tensors, given)
    assert abs(loss - wanted) <= 1e-5 * wanted
    if layout not in ({}, {"dp": 2, "ep": 2}):
        return  # the C++ tests compare the gradients of layouts
    found = {n: t.numpy().astype("f8") for n, t in flow.load(tmp_path / "gradients").items()}
    largest = max(np.linalg.norm(g) for g in found.values())
    for n, g in found.items():
        if "gate.weight" not in n and "experts.0." not in n and "embed_tokens" not in n:
            continue
        length = np.linalg.norm(g)
        if length < 1e-6 * largest:
            continue
        step = g / length * 1e-4
        losses = [by_formula(name, options, {**tensors, n: tensors[n] + s * step}, given) for s in (1, -1)]
        slope = (losses[0] - losses[1]) / 2e-4
        np.testing.assert_allclose(length, slope, rtol=1e-3, atol=1e-5 * largest, err_msg=n)


def test_losses_are_left_out_unless_they_are_asked_for(checkpoints, tmp_path):
    folder, tensors, inputs = checkpoints("mixtral")
    shutil.copytree(folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    ids = flow.tensor(inputs["input"])
    plain = flow.models.from_pretrained(folder).loss(ids, labels=ids).item()
    for options, more in [
        ({"router_aux_loss_coef": 0.5}, False),
        ({"output_router_logits": True}, True),  # times 0.001
        ({"router_z_loss_coef": 0.5}, True),
    ]:
        (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **options}))
        loss = flow.models.from_pretrained(tmp_path / "model").loss(ids, labels=ids).item()
        assert (loss > plain) == more, options
