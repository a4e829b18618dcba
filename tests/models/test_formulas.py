"""Logits, losses and gradients of holon.models are those of the formulas, on several layouts of ranks.

Gradients are compared along directions with the differences of the formulas' loss.
"""

import numpy as np
import pytest
from harness import model_formulas as formulas
from harness.small_models import MODELS

import holon as flow

LAYOUTS = [{}, {"dp": 2}, {"tp": 2}, {"pp": 2}, {"dp": 2, "tp": 2}]


def whole(t):
    return t.to_global(flow.placement.all("cpu"), flow.sbp.broadcast).numpy()


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
        if n.endswith(("running_mean", "running_var", "num_batches_tracked", "e_score_correction_bias")):
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
