"""Adapters of models in Python: parameters, optimizers, graphs, pipelines, and files in PEFT's form."""

import json

import numpy as np
import pytest
from harness.small_models import LLAMA

import holon as flow
from holon import nn

WIDE = {**LLAMA, "intermediate_size": 32}
IDS = np.random.default_rng(0).integers(0, 23, (4, 6))


def made(config=WIDE, **layout):
    flow.manual_seed(3)
    return flow.models.from_config(config, **layout)


def adapted(quantize=None, layout=None, **options):
    model = made(**(layout or {}))
    if quantize:
        model.quantize(quantize, group_size=8)
    flow.manual_seed(4)
    model.add_lora(**{"r": 2, **options})
    with flow.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("lora_B.weight"):
                p.copy_(flow.randn(p.shape, placement=p.placement, sbp=p.sbp) * 0.2)
    return model


def test_parameters_of_adapters_are_the_model_s():
    model = made()
    before = dict(model.named_parameters())
    assert model.lora_parameters() == [] and model.add_lora(["q_proj", "v_proj"], r=4, lora_alpha=16) is model
    learned = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert set(learned) == {
        f"model.layers.{i}.self_attn.{m}.lora_{f}.weight" for i in (0, 1) for m in ("q_proj", "v_proj") for f in "AB"
    }
    assert all(isinstance(p, nn.Parameter) for p in learned.values())
    assert [id(p) for p in model.lora_parameters()] == [id(p) for p in learned.values()]
    assert not model.get_parameter("model.norm.weight").requires_grad
    assert set(model.state_dict()) == set(before) | set(learned)
    model.remove_lora()
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(RuntimeError, match="has no adapters"):
        model.merge_lora()


def test_targets_are_peft_s():
    for targets, count in [
        ("all-linear", 14),
        (["q_proj"], 2),
        (["layers.1.mlp.up_proj", "o_proj"], 3),
        (r".*\.0\.self_attn\.[qk]_proj", 2),
        ("lm_head", 1),
        ("q_proj", 2),
    ]:
        assert len(made().add_lora(targets).lora_parameters()) == 2 * count
    for targets in (["q_projection"], ["q_proj", "proj"], ".*query", [""], [".*q_proj"]):
        with pytest.raises(ValueError, match=r"q_proj \(2\)"):
            made().add_lora(targets)
    for options, message in [
        ({"r": 0}, "r is 0"),
        ({"lora_dropout": 1.5}, "probability"),
        ({"target_modules": []}, "no"),
    ]:
        with pytest.raises(ValueError, match=message):
            made().add_lora(**options)


def test_optimizers_keep_states_of_adapters_only():
    model = adapted(r=2)
    optimizer = flow.optim.AdamW(model.lora_parameters(), lr=0.1)
    model.loss(flow.tensor(IDS), flow.tensor(IDS)).backward()
    optimizer.step()

    def numbers(value):
        if isinstance(value, flow.Tensor):
            return value.numel()
        items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        return sum(numbers(item) for item in items)

    count = sum(p.numel() for p in model.lora_parameters())
    assert 2 * count <= numbers(optimizer.state_dict()) < 2 * count + 10 * len(model.lora_parameters())
    assert count < 0.2 * sum(p.numel() for p in model.parameters())


def losses(layout, graph, quantize=None, checkpointing=False, steps=4):
    model = adapted(quantize, layout, lora_dropout=0.1).train()
    frozen = {n: p.numpy().copy() for n, p in model.named_parameters() if not p.requires_grad and p.numel() < 600}
    optimizer = flow.optim.AdamW(model.lora_parameters(), lr=0.02)
    placements, rows = model.placements, (flow.sbp.split(0), flow.sbp.broadcast)
    ids, labels = (flow.tensor(IDS, placement=placements[i], sbp=rows) for i in (0, -1))

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            for part, stage, placement in model.stages() if len(placements) > 1 else ():
                part.to(nn.graph.GraphModule).set_stage(stage, placement)
            for i in range(2 if checkpointing else 0):
                layer = model.get_submodule(f"model.layers.{i}")
                layer.to(nn.graph.GraphModule).activation_checkpointing = True

        def build(self, ids, labels):
            loss = self.model.loss(ids, labels)
            loss.backward()
            return loss

    def eager(ids, labels):
        optimizer.zero_grad()
        loss = model.loss(ids, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = Step() if graph else eager
    found = [
        step(ids, labels).mean().to_global(flow.placement.all("cpu"), flow.sbp.broadcast).item() for _ in range(steps)
    ]
    now = dict(model.named_parameters())
    for name, value in frozen.items():
        np.testing.assert_array_equal(now[name].numpy(), value)
    return found


@pytest.mark.parametrize("quantize", [None, 8], ids=["plain", "quantised"])
@pytest.mark.parametrize("layout", [{}, {"dp": 2}, {"tp": 2}, {"pp": 2}], ids=["one", "dp", "tp", "pp"])
def test_training_follows_one_rank_in_graphs_too(layout, quantize):
    wanted = flow.run_ranks(1, lambda rank: losses({}, False, quantize))[0]
    assert wanted[-1] < wanted[0] - 0.05
    n = int(np.prod(list(layout.values()), dtype=int))
    for graph in (False, True):
        found = flow.run_ranks(n, lambda rank: losses(layout, graph, quantize))
        np.testing.assert_allclose(found, [wanted] * n, rtol=1e-4)


def test_adapters_move_nothing_more():
    """What ops move implicitly, forward and backward, is what they move without adapters."""

    def run(rank):
        found = []
        for lora in (False, True):
            model = made(tp=2)
            if lora:
                model.add_lora()
            before = flow.boxing.counters()
            model.loss(flow.tensor(IDS), flow.tensor(IDS)).backward()
            found.append({name: n - before[name] for name, n in flow.boxing.counters().items()})
        assert found[0] == found[1] and found[0]["events"] > 0

    flow.run_ranks(2, run)


def test_with_activation_checkpointing():
    wanted = losses({}, False)
    np.testing.assert_allclose(losses({}, True, checkpointing=True), wanted, rtol=1e-5)


def test_a_graph_sees_that_adapters_come_and_go():
    model = made().eval()

    class Run(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model

        def build(self, ids):
            return self.model(ids)

    run, ids = Run(), flow.tensor(IDS)
    before = run(ids).numpy()
    model.add_lora(r=2)
    with flow.no_grad():
        for p in model.lora_parameters():
            p.fill_(0.3)
    with_adapters = model(ids).numpy()
    assert np.abs(with_adapters - before).max() > 1e-3
    np.testing.assert_allclose(run(ids).numpy(), with_adapters, atol=1e-5)
    model.merge_lora()
    np.testing.assert_allclose(run(ids).numpy(), with_adapters, atol=1e-4)
    model.unmerge_lora()
    model.remove_lora()
    np.testing.assert_allclose(run(ids).numpy(), before, atol=1e-4)


def test_files_are_peft_s(tmp_path):
    """By what PEFT documents: names, shapes, and that B A times lora_alpha / r is what is added to a weight."""
    safetensors = pytest.importorskip("safetensors.numpy")
    model = adapted(target_modules=["q_proj", "down_proj"], r=2, lora_alpha=6).eval()
    model.save_adapter(tmp_path, "somewhere/base")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["task_type"] == "CAUSAL_LM" and config["bias"] == "none"
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 6, 0)
    assert config["target_modules"] == ["down_proj", "q_proj"] and config["fan_in_fan_out"] is False
    assert config["base_model_name_or_path"] == "somewhere/base" and config["use_rslora"] is False
    tensors = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    assert {n: t.shape for n, t in tensors.items()} == {
        f"base_model.model.model.layers.{i}.{m}.lora_{f}.weight": shape
        for i in (0, 1)
        for m, into, out in (("self_attn.q_proj", 16, 16), ("mlp.down_proj", 32, 16))
        for f, shape in (("A", (2, into)), ("B", (out, 2)))
    }
    plain = made().eval()
    with flow.no_grad():
        for name, a in tensors.items():
            if ".lora_A." in name:
                path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                added = tensors[name.replace("lora_A", "lora_B")] @ a * 6 / 2
                p = plain.get_parameter(f"{path}.weight")
                p.add_(flow.tensor(added, placement=p.placement, sbp=p.sbp))
    ids = flow.tensor(IDS)
    np.testing.assert_allclose(model(ids).detach().numpy(), plain(ids).detach().numpy(), atol=1e-4)
    again = made().eval().load_adapter(tmp_path)
    np.testing.assert_array_equal(again(ids).detach().numpy(), model(ids).detach().numpy())


def test_files_that_peft_wrote(tmp_path):
    """With members that Holon does not know, and in bfloat16."""
    safetensors = pytest.importorskip("safetensors.numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    model = adapted(target_modules=["v_proj"])
    model.save_adapter(tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    more = {
        "auto_mapping": None,
        "init_lora_weights": True,
        "layers_to_transform": None,
        "megatron_config": None,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "revision": None,
        "use_dora": False,
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **more, "target_modules": r".*\.v_proj"}))
    tensors = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    halves = {n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()}
    safetensors.save_file(halves, tmp_path / "adapter_model.safetensors", metadata={"format": "pt"})

    def run(rank):
        read = made(tp=2).load_adapter(tmp_path)
        for name, p in read.named_parameters():
            if ".lora_" in name:
                assert p.requires_grad and p.dtype == flow.float32
                np.testing.assert_array_equal(p.numpy(), halves[f"base_model.model.{name}"].astype("f4"))

    flow.run_ranks(2, run)


def test_merged_checkpoints(tmp_path):
    model = adapted().eval()
    ids = flow.tensor(IDS)
    wanted = model(ids).detach().numpy()
    with pytest.raises(RuntimeError, match="merge_lora"):
        model.save_pretrained(tmp_path)
    model.merge_lora()
    model.save_pretrained(tmp_path)
    assert set(flow.load(tmp_path)) == set(made().state_dict())
    np.testing.assert_allclose(flow.models.from_pretrained(tmp_path)(ids).numpy(), wanted, atol=1e-4)
    quantised = adapted(quantize=8)
    with pytest.raises(RuntimeError, match="is quantised"):
        quantised.merge_lora()
