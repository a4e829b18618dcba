"""holon.models in Python: modules as others, in optimizers, graphs and pipelines; and its errors."""

import json

import numpy as np
import pytest
from harness.ranks import launch
from harness.small_models import LLAMA

import holon as flow
from holon import nn

IDS = np.random.default_rng(0).integers(0, 23, (4, 6))


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    flow.manual_seed(1)
    flow.models.from_config({**LLAMA, "tie_word_embeddings": request.param}).save_pretrained(folder)
    return folder


def test_a_model_is_a_module(checkpoint):
    model = flow.models.from_pretrained(checkpoint)
    assert isinstance(model, nn.Module) and isinstance(model, flow.models.Model) and not model.training
    assert model.get_parameter("model.norm.weight").shape == (16,)
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())
    assert model.config["hidden_size"] == 16 and json.loads((checkpoint / "config.json").read_text()) == model.config
    names = set(flow.load(checkpoint))
    assert names == set(model.state_dict())
    assert [stage for _, stage, _ in model.stages()] == [0] * len(list(model.stages()))


def losses(rank, folder, layout, graph, steps=3):
    """Of a few steps of training."""
    model = flow.models.from_pretrained(folder, **layout)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    placements = model.placements
    rows = (flow.sbp.split(0), flow.sbp.broadcast)
    ids = flow.tensor(IDS, placement=placements[0], sbp=rows)
    labels = flow.tensor(IDS, placement=placements[-1], sbp=rows)

    class Step(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            if len(placements) > 1:
                self.config.set_gradient_accumulation_steps(2)
                for part, stage, placement in model.stages():
                    part.to(nn.graph.GraphModule).set_stage(stage, placement)

        def build(self, ids, labels):
            loss = self.model.loss(ids, labels)
            loss.backward()
            return loss

    found, step = [], Step() if graph else None
    for _ in range(steps):
        if graph:
            loss = step(ids, labels).mean()
        else:
            optimizer.zero_grad()
            loss = model.loss(ids, labels)
            loss.backward()
            optimizer.step()
        found.append(loss.to_global(flow.placement.all("cpu"), flow.sbp.broadcast).item())
    return found


LAYOUTS = [{"dp": 2}, {"tp": 2}, {"pp": 2}, {"dp": 2, "tp": 2}, {"tp": 2, "pp": 2}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: "-".join(f"{k}{n}" for k, n in x.items()))
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_training_follows_one_rank(checkpoint, layout, graph):
    one = losses(0, checkpoint, {}, False)
    assert one[-1] < one[0]
    n = int(np.prod(list(layout.values())))
    results = flow.run_ranks(n, lambda rank: losses(rank, checkpoint, layout, graph))
    np.testing.assert_allclose(results[0], one, rtol=1e-4)
    assert all(r == results[0] for r in results)


PROGRAM = """
import sys
import holon as flow
model = flow.models.from_pretrained(sys.argv[1], tp=2, device=sys.argv[2])
ids = flow.arange(24).reshape(4, 6) % 23
loss = model.loss(ids, ids)
loss.backward()
model.save_pretrained(sys.argv[3])
print(loss.placement.type, loss.item(), model.get_parameter("model.norm.weight").grad.norm().item())
"""


@pytest.mark.parametrize("device, settings", [("cpu", {}), ("cuda", {"HOLON_SIMULATE": "cuda"})])
def test_ranks_that_are_processes(checkpoint, tmp_path, device, settings):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = launch(program, 2, arguments=[checkpoint, device, tmp_path / "saved"], **settings)
    assert done.returncode == 0, done.stderr
    model = flow.models.from_pretrained(tmp_path / "saved")
    ids = flow.arange(24).reshape(4, 6) % 23
    loss = model.loss(ids, ids)
    loss.backward()
    gradient = model.get_parameter("model.norm.weight").grad.norm().item()
    for line in done.stdout.splitlines():
        where, *numbers = line.split()
        assert where == device
        np.testing.assert_allclose([float(x) for x in numbers], [loss.item(), gradient], rtol=1e-5)
    assert len(done.stdout.splitlines()) == 2


def test_layers_that_predict_further_tokens_are_not_read(tmp_path):
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "moe_intermediate_size": 4, "n_routed_experts": 4}
    groups = {"n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    widths = {"qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "kv_lora_rank": 7, "q_lora_rank": 9}
    config = {**LLAMA, "model_type": "deepseek_v3", "architectures": None, **sizes, **groups, **widths}
    model = flow.models.from_config(config)
    model.save_pretrained(tmp_path)
    wanted = model(flow.tensor(IDS)).numpy()
    state = flow.load(tmp_path)
    state["model.layers.2.eh_proj.weight"] = flow.zeros(3)
    flow.save(state, tmp_path, format="hf")
    np.testing.assert_array_equal(flow.models.from_pretrained(tmp_path)(flow.tensor(IDS)).numpy(), wanted)
    with pytest.raises(ValueError, match="in n_group 3 groups"):
        flow.models.from_config({**config, "n_group": 3})


def test_quantised_weights_are_read_as_numbers(checkpoint, tmp_path):
    """float8 with a scale for each block of 128 x 128, as DeepSeek-V3's."""
    header, content, name = {}, b"", "model.layers.1.mlp.down_proj.weight"
    tensors = {n: ("F32", t.shape, t.numpy().tobytes()) for n, t in flow.load(checkpoint).items()}
    signs = np.random.default_rng(2).integers(0, 2, (16, 20)) == 1
    tensors[name] = ("F8_E4M3", (16, 20), np.where(signs, 0xB8, 0x40).astype("u1").tobytes())  # -1 or 2
    tensors[f"{name}_scale_inv"] = ("F32", (1, 1), np.float32(0.125).tobytes())
    for n, (dtype, shape, data) in tensors.items():
        header[n] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    model = flow.models.from_pretrained(tmp_path)
    found = model.get_parameter(name)
    assert found.dtype == flow.float32
    np.testing.assert_array_equal(found.detach().numpy(), np.where(signs, -0.125, 0.25))


def test_names_of_older_files(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = flow.models.from_config({"model_type": "bert", "vocab_size": 23, **sizes, "max_position_embeddings": 8})
    model.eval().save_pretrained(tmp_path)
    state = flow.load(tmp_path)
    for now, before in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        state = {n.replace(now, before): t for n, t in state.items()}
    state["bert.embeddings.position_ids"] = flow.arange(8).reshape(1, 8)
    state["cls.seq_relationship.bias"] = flow.zeros(2)
    flow.save(state, tmp_path, format="hf")
    ids = flow.tensor(IDS)
    found = flow.models.from_pretrained(tmp_path)(ids)
    np.testing.assert_array_equal(found.numpy(), model(ids).numpy())


def test_all_wrong_tensors_are_listed(checkpoint, tmp_path):
    state = flow.load(checkpoint)
    del state["model.layers.0.mlp.up_proj.weight"], state["model.layers.1.self_attn.q_proj.weight"]
    state["model.norm.weight"], state["other"] = flow.zeros(3), flow.zeros(2)
    flow.save(state, tmp_path, format="hf")
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    with pytest.raises(ValueError, match="missing") as error:
        flow.models.from_pretrained(tmp_path)
    for text in (
        "missing (2): model.layers.0.mlp.up_proj.weight [20, 16], model.layers.1.self_attn.q_proj.weight [16, 16]",
        "not expected (1): other",
        "of another shape (1): model.norm.weight is [3], not [16]",
    ):
        assert text in str(error.value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "known: BertForMaskedLM, .*LlamaForCausalLM"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"hidden_act": "swoosh"}, "'swoosh' is not supported"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type is 'longrope'"),
        ({"model_type": "mistral", "architectures": None, "sliding_window": -3}, "sliding_window is -3"),
        ({"attention_dropout": 2.0}, "a probability must be from 0 to 1"),
        ({"vocab_size": None}, "has no 'vocab_size'"),
        ({"hidden_size": "wide"}, "must be an integer"),
        (
            {"model_type": "mixtral", "architectures": None, "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok is 3 of 2 experts",
        ),
    ],
)
def test_configurations_that_are_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        flow.models.from_config({**LLAMA, **change})


def test_layouts_that_are_wrong():
    def run(rank):
        moe = {"model_type": "mixtral", "architectures": None, "num_local_experts": 3, "num_experts_per_tok": 2}
        for change, layout, message in [
            ({}, {"tp": 4}, "2 are running"),
            ({}, {"cp": 4}, "x cp 4 are 4 ranks; 2 are running"),
            ({}, {"dp": 0}, "dp is 0"),
            ({"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4}, {"tp": 2}, "does not divide the 3"),
            ({"num_hidden_layers": 1}, {"pp": 2}, "1 layers are fewer than the 2 stages"),
            (moe, {"ep": 2}, "ep 2 does not divide the 3 experts"),
        ]:
            with pytest.raises(ValueError, match=message):
                flow.models.from_config({**LLAMA, **change}, **layout)

    flow.run_ranks(2, run)


def test_inputs_that_are_wrong(checkpoint):
    model = flow.models.from_pretrained(checkpoint)
    ids = flow.tensor(IDS)
    for error, message, call in [
        (IndexError, "not in", lambda: model(ids + 23)),
        (IndexError, r"hold -\d+", lambda: model(ids - 30)),
        (ValueError, "longer than the 32 positions", lambda: model(flow.zeros(1, 33, dtype=flow.int64))),
        (ValueError, r"\[batch, length\]", lambda: model(ids[0])),
        (ValueError, r"\[batch, length\]", lambda: model(ids[:, :0])),
        (TypeError, "must be int64", lambda: model(ids.float())),
        (ValueError, "takes no token_type_ids", lambda: model(ids, token_type_ids=ids)),
        (ValueError, "attention_mask has shape", lambda: model(ids, attention_mask=ids[:, 1:])),
        (TypeError, "attention_mask is float32", lambda: model(ids, attention_mask=ids.float())),
        (ValueError, "labels have shape", lambda: model.loss(ids, ids[:, 1:])),
        (IndexError, "labels hold 23", lambda: model.loss(ids, ids * 0 + 23)),
    ]:
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(RuntimeError, match="config.json cannot be read"):
        flow.models.from_pretrained(checkpoint / "nothing")


def test_inputs_of_other_families_that_are_wrong():
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vit = flow.models.from_config({"model_type": "vit", **vision, "image_size": 8, "patch_size": 4})
    sizes = {"vocab_size": 23, "d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    t5 = flow.models.from_config({"model_type": "t5", **sizes})
    bert = flow.models.from_config({"model_type": "bert", "vocab_size": 23, **vision, "max_position_embeddings": 8})
    ids, pixels = flow.tensor(IDS), flow.zeros(2, 3, 8, 8)
    for error, message, call in [
        (ValueError, r"it must be \[batch, 3, 8, 8\]", lambda: vit(flow.zeros(2, 3, 8, 9))),
        (ValueError, r"it must be \[batch, 3, 8, 8\]", lambda: vit(flow.zeros(2, 1, 8, 8))),
        (TypeError, "pixels are int64", lambda: vit(flow.zeros(2, 3, 8, 8, dtype=flow.int64))),
        (ValueError, "takes no attention_mask", lambda: vit(pixels, attention_mask=ids)),
        (IndexError, "labels hold 2", lambda: vit.loss(pixels, flow.tensor([0, 2]))),
        (ValueError, "decoder_input_ids are missing", lambda: t5(ids)),
        (ValueError, "4 rows of tokens and 1", lambda: t5(ids, decoder_input_ids=ids[:1])),
        (ValueError, "takes no position_ids", lambda: t5(ids, position_ids=ids, decoder_input_ids=ids)),
        (IndexError, "token_type_ids hold 2", lambda: bert(ids, token_type_ids=flow.full_like(ids, 2))),
        (ValueError, "longer than the 8 positions", lambda: bert(flow.zeros(1, 9, dtype=flow.int64))),
    ]:
        with pytest.raises(error, match=message):
            call()
