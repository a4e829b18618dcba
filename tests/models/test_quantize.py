"""Models with quantised weights in Python: the bytes of their state are the documented ones; their memory is less."""

import gc

import numpy as np
import pytest
from harness.small_models import LLAMA

import holon as flow

# Widths whose groups of 32 are whole.
WIDE = {**LLAMA, "hidden_size": 64, "intermediate_size": 96}


def made(config=WIDE, **layout):
    flow.manual_seed(3)
    return flow.models.from_config(config, **layout).eval()


def numbers_of(blocks, bits):
    """The numbers of uint8 [..., bytes], by the form that holon/kernels/quantized.h describes."""
    scale = (blocks[..., -1].astype(np.uint32) << 24 | blocks[..., -2].astype(np.uint32) << 16).view(np.float32)
    integers = blocks[..., :-2]
    if bits == 8:
        integers = integers.view(np.int8)
    else:
        integers = np.concatenate([integers & 15, integers >> 4], -1).astype(np.int8) - 8
    return integers * scale[..., None], scale


def mx_numbers_of(blocks):
    """The same of MXFP4."""
    codes = np.concatenate([blocks[..., :16] & 15, blocks[..., :16] >> 4], -1)
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return (
        np.where(codes & 8, np.float32(-1), np.float32(1))
        * numbers[codes & 7]
        * np.exp2(blocks[..., 16:].astype(np.float32) - 127)
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [8, 32])
def test_a_weight_is_its_integers_times_their_scale(bits, group_size):
    def run(rank):
        plain, model = made(tp=2), made(tp=2).quantize(bits, group_size)
        before, after = plain.state_dict(), model.state_dict()
        assert list(before) == list(after)
        quantised = [n for n, t in after.items() if t.dtype == flow.uint8]
        assert len(quantised) == 7 * WIDE["num_hidden_layers"]
        for name in quantised:
            wanted, blocks = before[name].numpy(), after[name].numpy()
            assert blocks.shape == (len(wanted), wanted.shape[1] // group_size, group_size * bits // 8 + 2)
            found, scale = numbers_of(blocks, bits)
            wanted = wanted.reshape(found.shape)
            assert (np.abs(found - wanted) <= scale[..., None] / 2 * (1 + 1e-6)).all()
            # The largest number of a group is what its scale is made of.
            largest = np.abs(wanted).max(-1)
            np.testing.assert_allclose(scale * (7 if bits == 4 else 127), largest, rtol=1 / 128)
            # Computed with these numbers the logits are the same.
            p = plain.get_parameter(name)
            p.data = flow.tensor(found.reshape(p.shape), placement=p.placement, sbp=p.sbp)
        ids = flow.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
        with flow.no_grad():
            np.testing.assert_allclose(model(ids).numpy(), plain(ids).numpy(), atol=1e-4)

    flow.run_ranks(2, run)


def test_its_memory_is_less():
    config = {**WIDE, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 8}

    def bytes_of(model):
        return sum(t.numel() * t.element_size() for t in model.state_dict().values())

    def run(rank):
        gc.collect()
        before = flow.cpu.memory_allocated()
        model = made(config)
        whole, allocated = bytes_of(model), flow.cpu.memory_allocated() - before
        assert allocated >= whole
        model.quantize(4)
        gc.collect()
        rest = bytes_of(model)
        linear = sum(t.numel() for t in model.state_dict().values() if t.dtype == flow.uint8)
        # 4.5 bits in place of 32; embeddings, the head and norms stay.
        assert rest - linear == whole - linear / 18 * 32 * 4
        assert flow.cpu.memory_allocated() - before <= allocated - 0.95 * (whole - rest)

    flow.run_ranks(1, run)


def test_a_checkpoint_is_read_quantised(tmp_path):
    def run(rank):
        made(tp=2).save_pretrained(tmp_path)
        model = flow.models.from_pretrained(tmp_path, tp=2, quantize=8)
        again = made(tp=2).quantize(8)
        ids = flow.tensor([[1, 2, 3, 4]])
        tokens = model.generate(ids, max_new_tokens=8)
        np.testing.assert_array_equal(tokens, again.generate(ids, max_new_tokens=8))
        other = flow.models.from_config(WIDE, tp=2).eval().quantize(8)
        other.load_state_dict(model.state_dict())
        np.testing.assert_array_equal(other.generate(ids, max_new_tokens=8), tokens)

    flow.run_ranks(2, run)


MOE = {
    **WIDE,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}


@pytest.mark.parametrize("layout", [{}, {"ep": 2}, {"tp": 2}])
@pytest.mark.parametrize("format", ["int", "mxfp4"])
def test_experts(layout, format):
    """Generation is that of dequantised weights, on every layout, and memory is counted."""
    names = {"int": 4.5, "mxfp4": 4.25}
    ids = flow.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])

    def run(rank):
        plain, model = made(MOE, **layout), made(MOE, **layout).quantize(4, format=format)
        before, after = plain.state_dict(), model.state_dict()
        experts = [n for n, t in after.items() if t.ndim == 4]
        assert len(experts) == 3 * MOE["num_hidden_layers"]
        for name, blocks in after.items():
            if blocks.dtype != flow.uint8:
                continue
            bytes_of = blocks.numel() * 8 / before[name].numel()
            assert bytes_of == names[format]
            found = numbers_of(blocks.numpy(), 4)[0] if format == "int" else mx_numbers_of(blocks.numpy())
            p = plain.get_parameter(name)
            p.data = flow.tensor(found.reshape(p.shape), placement=p.placement, sbp=p.sbp)
        with flow.no_grad():
            np.testing.assert_allclose(model(ids).numpy(), plain(ids).numpy(), atol=1e-4)
        tokens = model.generate(ids, max_new_tokens=6).numpy()
        np.testing.assert_array_equal(tokens, plain.generate(ids, max_new_tokens=6).numpy())
        np.testing.assert_array_equal(
            model.generate(ids, max_new_tokens=6, cache_implementation="static").numpy(), tokens
        )

    flow.run_ranks(2 if layout else 1, run)


def test_mxfp4_weights_are_those_of_quantize_mxfp4():
    model, plain = made().quantize(format="mxfp4"), made()
    name = "model.layers.0.mlp.up_proj.weight"
    blocks, scales = flow.quantize_mxfp4(plain.get_parameter(name).detach())
    wanted = flow.dequantize_mxfp4(blocks, scales, flow.float32).numpy()
    found = mx_numbers_of(model.get_parameter(name).numpy())
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    with pytest.raises(ValueError, match="groups of 32"):
        made().quantize(4, 16, format="mxfp4")
    with pytest.raises(ValueError, match="it must be int or mxfp4"):
        made().quantize(4, format="nf4")


def test_its_weights_are_not_learned(tmp_path):
    def run(rank):
        model = made().quantize(4)
        weight = model.get_parameter("model.layers.0.mlp.up_proj.weight")
        assert weight.dtype == flow.uint8 and not weight.requires_grad
        ids = flow.tensor([[1, 2, 3, 4]])
        model.loss(ids, ids).backward()
        assert weight.grad is None
        assert np.abs(model.get_parameter("model.embed_tokens.weight").grad.numpy()).max() > 0
        with pytest.raises(RuntimeError, match="the model is quantised"):
            model.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="quantised already"):
            model.quantize(4)
        with pytest.raises(ValueError, match="bits is 2"):
            made().quantize(2)
        with pytest.raises(ValueError, match="the group_size 64 does not divide the 96 inputs"):
            made().quantize(4, 64)

    flow.run_ranks(1, run)
