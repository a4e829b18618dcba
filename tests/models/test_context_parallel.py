"""Models whose positions are divided among ranks: losses and gradients of one rank."""

import numpy as np
import pytest
from harness.small_models import MODELS

import holon as flow
from holon import nn

SPLIT = ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2-moe", "qwen3-moe", "deepseek"]
LAYOUTS = [
    {"cp": 2},
    {"cp": 4},
    {"cp": 3},
    {"dp": 2, "cp": 2},
    {"tp": 2, "cp": 2},
    {"pp": 2, "cp": 2},
]


def text(layout):
    return "-".join(f"{k}{n}" for k, n in layout.items())


def whole(t):
    return t.to_global(t.placement, [flow.sbp.broadcast] * len(t.sbp)).to_local().numpy()


def results(folder, inputs, layout):
    model = flow.models.from_pretrained(folder, **layout)
    loss = model.loss(**{k: flow.tensor(v) for k, v in inputs.items()})
    loss.backward()
    return whole(loss), {n: whole(p.grad) for n, p in model.named_parameters() if p.to_local().numel()}


def compare(folder, inputs, layout):
    wanted, gradients = results(folder, inputs, {})
    n = int(np.prod(list(layout.values())))
    seen = set()
    for loss, found in flow.run_ranks(n, lambda rank: results(folder, inputs, layout)):
        if loss.size:
            np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        for name, g in found.items():
            seen.add(name)
            np.testing.assert_allclose(g, gradients[name], rtol=2e-4, atol=1e-5, err_msg=name)
    assert seen == set(gradients)


@pytest.mark.parametrize("layout", LAYOUTS, ids=text)
@pytest.mark.parametrize("name", SPLIT)
def test_losses_and_gradients(checkpoints, name, layout):
    folder, _, inputs = checkpoints(name)
    compare(folder, inputs, layout)


@pytest.mark.parametrize("way", ["ring", "heads", "gather"])
def test_every_way_of_attention(checkpoints, monkeypatch, way):
    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", way)
    for name in ("llama", "qwen2"):
        folder, _, inputs = checkpoints(name)
        compare(folder, inputs, {"cp": 2})
        compare(folder, inputs, {"dp": 2, "cp": 2})


def test_document_ids(checkpoints):
    folder, _, inputs = checkpoints("llama")
    shape = inputs["ids"].shape if "ids" in inputs else next(iter(inputs.values())).shape
    ids = np.sort(np.random.default_rng(0).integers(0, 3, shape), axis=1)
    given = {k: v for k, v in inputs.items() if k not in ("position_ids", "attention_mask")}
    compare(folder, {**given, "document_ids": ids}, {"cp": 3})


def steps(folder, inputs, layout):
    """Losses of compiled steps of training."""
    model = flow.models.from_pretrained(folder, **layout)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.01)
    placements = model.placements

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            if len(placements) > 1:
                for part, stage, placement in model.stages():
                    part.to(nn.graph.GraphModule).set_stage(stage, placement)

        def build(self, given):
            loss = self.model.loss(**given)
            loss.backward()
            return loss

    # By rows, as micro-batches are cut.
    axes = len(next(iter(model.parameters())).sbp)
    rows = [flow.sbp.split(0)] + [flow.sbp.broadcast] * (axes - 1)
    given = {k: flow.tensor(v, placement=placements[-(k == "labels")], sbp=rows) for k, v in inputs.items()}
    step, everywhere = Step(), flow.placement.all("cpu")
    return [step(given).mean().to_global(everywhere, flow.sbp.broadcast).item() for _ in range(2)]


@pytest.mark.parametrize("layout", [{"cp": 2}, {"dp": 2, "cp": 2}, {"pp": 2, "cp": 2}], ids=text)
@pytest.mark.parametrize("name", ["llama", "mistral", "deepseek"])
def test_compiled_steps(checkpoints, monkeypatch, name, layout):
    monkeypatch.setenv("HOLON_SEQUENCE_ATTENTION", "ring")
    folder, _, inputs = checkpoints(name)
    wanted = steps(folder, inputs, {})
    n = int(np.prod(list(layout.values())))
    found = flow.run_ranks(n, lambda rank: steps(folder, inputs, layout))
    np.testing.assert_allclose(found, [wanted] * n, rtol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "vit", "resnet"])
def test_models_that_do_not_split_positions(checkpoints, name):
    config = MODELS[name][2]

    def run(rank):
        with pytest.raises(ValueError) as e:
            flow.models.from_config(config, cp=2)
        return str(e.value)

    assert all("cp is 2; this model does not split positions" in m for m in flow.run_ranks(2, run))


def test_generation(checkpoints):
    """A cache is refused; without one the tokens are those of one rank."""
    folder, _, _ = checkpoints("llama")
    prompt = np.array([[3, 4, 5, 6, 7]])
    one = flow.models.from_pretrained(folder).generate(flow.tensor(prompt), max_new_tokens=3).tolist()

    def run(rank):
        model = flow.models.from_pretrained(folder, cp=2)
        assert model.generate(flow.tensor(prompt), max_new_tokens=3, use_cache=False).tolist() == one
        with pytest.raises(ValueError) as e:
            model.generate(flow.tensor(prompt), max_new_tokens=3)
        return str(e.value)

    assert all("a cache of keys and values where cp is 2" in m for m in flow.run_ranks(2, run))
