"""Every layer: its repr, the names of its state and its options as PyTorch's,
its result that of the function behind it, and NumPy's where that is cheap."""

import inspect
import math
import pickle

import numpy as np
import pytest
from harness.arrays import array, same, tensor

import holon
from holon import nn

F = nn.functional
B, S = holon.sbp.broadcast, holon.sbp.split


X = {1: (2, 4, 8), 2: (2, 4, 6, 8), 3: (2, 4, 4, 6, 8)}  # signals, images, volumes

# layer, its repr, shapes of inputs, the function behind it
FUNCTIONS = [
    (nn.ReLU(), "ReLU()", F.relu),
    (nn.ReLU(True), "ReLU(inplace=True)", F.relu),
    (nn.ReLU6(), "ReLU6()", F.relu6),
    (nn.LeakyReLU(0.2), "LeakyReLU(negative_slope=0.2)", lambda x: F.leaky_relu(x, 0.2)),
    (nn.LeakyReLU(inplace=True), "LeakyReLU(negative_slope=0.01, inplace=True)", F.leaky_relu),
    (nn.ELU(0.5), "ELU(alpha=0.5)", lambda x: F.elu(x, 0.5)),
    (nn.CELU(0.5), "CELU(alpha=0.5)", lambda x: F.celu(x, 0.5)),
    (nn.SELU(), "SELU()", F.selu),
    (nn.GELU("tanh"), "GELU(approximate='tanh')", lambda x: F.gelu(x, approximate="tanh")),
    (nn.QuickGELU(), "QuickGELU()", lambda x: x * F.sigmoid(1.702 * x)),
    (nn.SiLU(), "SiLU()", F.silu),
    (nn.Mish(), "Mish()", lambda x: x * F.tanh(F.softplus(x))),
    (nn.Sigmoid(), "Sigmoid()", F.sigmoid),
    (nn.LogSigmoid(), "LogSigmoid()", lambda x: F.sigmoid(x).log()),
    (nn.Tanh(), "Tanh()", F.tanh),
    (nn.Softplus(2.0), "Softplus(beta=2.0, threshold=20.0)", lambda x: F.softplus(x, 2.0)),
    (nn.Softsign(), "Softsign()", F.softsign),
    (nn.Softshrink(0.3), "Softshrink(0.3)", lambda x: F.softshrink(x, 0.3)),
    (nn.Hardshrink(), "Hardshrink(0.5)", F.hardshrink),
    (nn.Tanhshrink(), "Tanhshrink()", lambda x: x - F.tanh(x)),
    (nn.Threshold(0.1, 20), "Threshold(threshold=0.1, value=20)", lambda x: F.threshold(x, 0.1, 20)),
    (nn.Hardtanh(-0.5, 2), "Hardtanh(min_val=-0.5, max_val=2)", lambda x: x.clamp(-0.5, 2)),
    (nn.Hardswish(), "Hardswish()", F.hardswish),
    (nn.Hardsigmoid(), "Hardsigmoid()", F.hardsigmoid),
    (nn.GLU(1), "GLU(dim=1)", lambda x: F.glu(x, 1)),
    (nn.Softmax(1), "Softmax(dim=1)", lambda x: F.softmax(x, 1)),
    (nn.Softmin(1), "Softmin(dim=1)", lambda x: F.softmax(-x, 1)),
    (nn.LogSoftmax(1), "LogSoftmax(dim=1)", lambda x: F.log_softmax(x, 1)),
    (nn.Softmax2d(), "Softmax2d()", lambda x: F.softmax(x, 1)),
    (nn.PReLU(), "PReLU(num_parameters=1)", lambda x: F.leaky_relu(x, 0.25)),
    (nn.PReLU(4), "PReLU(num_parameters=4)", lambda x: F.leaky_relu(x, 0.25)),
    (nn.Identity(3, a=4), "Identity()", lambda x: x),
    (nn.Flatten(), "Flatten(start_dim=1, end_dim=-1)", lambda x: x.flatten(1)),
    (nn.Unflatten(-1, (2, -1)), "Unflatten(dim=-1, unflattened_size=(2, -1))", lambda x: x.reshape(2, 4, 6, 2, 4)),
    (
        nn.MaxPool2d(2),
        "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
        lambda x: F.max_pool2d(x, 2),
    ),
    (
        nn.MaxPool2d((3, 2), 2, (1, 0)),
        "MaxPool2d(kernel_size=(3, 2), stride=2, padding=(1, 0), dilation=1, ceil_mode=False)",
        lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0)),
    ),
    (
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        "AvgPool2d(kernel_size=3, stride=2, padding=1)",
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    (nn.AdaptiveAvgPool2d((3, None)), "AdaptiveAvgPool2d(output_size=(3, None))", lambda x: F.avg_pool2d(x, (2, 1))),
    (nn.AdaptiveMaxPool2d(2), "AdaptiveMaxPool2d(output_size=2)", lambda x: F.max_pool2d(x, (3, 4))),
    (
        nn.LocalResponseNorm(2),
        "LocalResponseNorm(2, alpha=0.0001, beta=0.75, k=1.0)",
        lambda x: F.local_response_norm(x, 2),
    ),
    (nn.PixelShuffle(2), "PixelShuffle(upscale_factor=2)", lambda x: F.pixel_shuffle(x, 2)),
    (nn.PixelUnshuffle(2), "PixelUnshuffle(downscale_factor=2)", lambda x: F.pixel_unshuffle(x, 2)),
    (
        nn.Upsample(scale_factor=2),
        "Upsample(scale_factor=2, mode='nearest')",
        lambda x: F.interpolate(x, scale_factor=2),
    ),
    (
        nn.Upsample((3, 5), mode="bilinear"),
        "Upsample(size=(3, 5), mode='bilinear')",
        lambda x: F.interpolate(x, (3, 5), mode="bilinear"),
    ),
    (
        nn.UpsamplingNearest2d(scale_factor=2),
        "UpsamplingNearest2d(scale_factor=2, mode='nearest')",
        lambda x: F.interpolate(x, scale_factor=2),
    ),
    (
        nn.UpsamplingBilinear2d(size=(3, 5)),
        "UpsamplingBilinear2d(size=(3, 5), mode='bilinear')",
        lambda x: F.interpolate(x, (3, 5), mode="bilinear", align_corners=True),
    ),
    (
        nn.Unfold(2, stride=2),
        "Unfold(kernel_size=2, dilation=1, padding=0, stride=2)",
        lambda x: F.unfold(x, 2, stride=2),
    ),
    (nn.ZeroPad2d(1), "ZeroPad2d((1, 1, 1, 1))", lambda x: F.pad(x, (1, 1, 1, 1))),
    (
        nn.ConstantPad2d((1, 0, 2, 3), 3.5),
        "ConstantPad2d(padding=(1, 0, 2, 3), value=3.5)",
        lambda x: F.pad(x, (1, 0, 2, 3), value=3.5),
    ),
    (nn.ReflectionPad2d(2), "ReflectionPad2d((2, 2, 2, 2))", lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect")),
    (
        nn.ReplicationPad2d((1, 2, 0, 3)),
        "ReplicationPad2d((1, 2, 0, 3))",
        lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"),
    ),
]


@pytest.mark.parametrize("layer, text, function", FUNCTIONS, ids=lambda v: v if isinstance(v, str) else "")
def test_layer_is_its_function(layer, text, function):
    assert repr(layer) == text
    x = tensor(*X[2])
    same(layer(x.clone()), function(x), 2e-6)
    again = pickle.loads(pickle.dumps(layer))
    assert repr(again) == text and type(again) is type(layer)
    if getattr(layer, "inplace", False):
        assert layer(x) is x


def test_layers_of_other_numbers_of_axes():
    for n in (1, 3):
        x, window = tensor(*X[n]), (2,) * n
        same(getattr(nn, f"MaxPool{n}d")(2)(x), getattr(F, f"max_pool{n}d")(x, window))
        same(getattr(nn, f"AvgPool{n}d")(2)(x), getattr(F, f"avg_pool{n}d")(x, window))
        halves = tuple(s // 2 for s in X[n][2:])
        same(getattr(nn, f"AdaptiveAvgPool{n}d")(halves)(x), getattr(F, f"avg_pool{n}d")(x, window))
        same(getattr(nn, f"AdaptiveMaxPool{n}d")(halves)(x), getattr(F, f"max_pool{n}d")(x, window))
        same(getattr(nn, f"ConstantPad{n}d")(1, 2.0)(x), F.pad(x, (1, 1) * n, value=2.0))
        same(getattr(nn, f"ZeroPad{n}d")(1)(x), F.pad(x, (1, 1) * n))
        for name, mode in (("Reflection", "reflect"), ("Replication", "replicate"), ("Circular", "circular")):
            same(getattr(nn, f"{name}Pad{n}d")(1)(x), F.pad(x, (1, 1) * n, mode=mode))
    with pytest.raises(ValueError, match="give one number, or 4"):
        nn.ZeroPad2d((1, 2))


def test_max_pool_with_indices_and_fold():
    x = tensor(*X[2])
    values, at = nn.MaxPool2d(2, return_indices=True)(x)
    flat = x.numpy().reshape(2, 4, 48)
    same(np.take_along_axis(flat, at.numpy().reshape(2, 4, -1), 2).reshape(values.shape), values)
    columns = nn.Unfold(2, stride=2)(x)
    assert columns.shape == (2, 16, 12)
    same(nn.Fold((6, 8), 2, stride=2)(columns), x)


def test_options_are_checked():
    assert (
        str(inspect.signature(nn.MaxPool2d))
        == "(kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False)"
    )
    with pytest.raises(TypeError, match="MaxPool2d: missing a required argument: 'kernel_size'"):
        nn.MaxPool2d()
    with pytest.raises(TypeError, match="unexpected keyword argument 'alpha'"):
        nn.ReLU(alpha=1)
    with pytest.raises(ValueError, match="cannot be cut"):
        nn.Unflatten(1, (3, -1))(tensor(2, 4))


# Layers with parameters: repr, names and shapes of the state

STATE = [
    (nn.Linear(3, 2), "Linear(in_features=3, out_features=2, bias=True)", {"weight": (2, 3), "bias": (2,)}),
    (
        nn.Bilinear(3, 4, 2, bias=False),
        "Bilinear(in1_features=3, in2_features=4, out_features=2, bias=False)",
        {"weight": (2, 3, 4)},
    ),
    (nn.Embedding(5, 3, padding_idx=-1), "Embedding(5, 3, padding_idx=4)", {"weight": (5, 3)}),
    (
        nn.Conv1d(4, 6, 3, padding=1),
        "Conv1d(4, 6, kernel_size=(3,), stride=(1,), padding=(1,))",
        {"weight": (6, 4, 3), "bias": (6,)},
    ),
    (
        nn.Conv2d(4, 6, (3, 2), 2, groups=2, bias=False, padding_mode="circular", padding="valid"),
        "Conv2d(4, 6, kernel_size=(3, 2), stride=(2, 2), groups=2, bias=False, padding_mode=circular)",
        {"weight": (6, 2, 3, 2)},
    ),
    (
        nn.Conv3d(4, 6, 3, dilation=2),
        "Conv3d(4, 6, kernel_size=(3, 3, 3), stride=(1, 1, 1), dilation=(2, 2, 2))",
        {"weight": (6, 4, 3, 3, 3), "bias": (6,)},
    ),
    (
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1),
        "ConvTranspose2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), output_padding=(1, 1))",
        {"weight": (4, 6, 3, 3), "bias": (6,)},
    ),
    (
        nn.ConvTranspose1d(4, 6, 3, groups=2),
        "ConvTranspose1d(4, 6, kernel_size=(3,), stride=(1,), groups=2)",
        {"weight": (4, 3, 3), "bias": (6,)},
    ),
    (
        nn.ConvTranspose3d(4, 6, 3),
        "ConvTranspose3d(4, 6, kernel_size=(3, 3, 3), stride=(1, 1, 1))",
        {"weight": (4, 6, 3, 3, 3), "bias": (6,)},
    ),
    (
        nn.BatchNorm2d(4),
        "BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)",
        {"weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,), "num_batches_tracked": ()},
    ),
    (
        nn.SyncBatchNorm(4, affine=False, track_running_stats=False),
        "SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False)",
        {},
    ),
    (nn.InstanceNorm2d(4), "InstanceNorm2d(4, eps=1e-05, momentum=0.1, affine=False, track_running_stats=False)", {}),
    (nn.GroupNorm(2, 4), "GroupNorm(2, 4, eps=1e-05, affine=True)", {"weight": (4,), "bias": (4,)}),
    (nn.LayerNorm([2, 4], bias=False), "LayerNorm((2, 4), eps=1e-05, elementwise_affine=True)", {"weight": (2, 4)}),
    (nn.RMSNorm(4), "RMSNorm((4,), eps=None, elementwise_affine=True)", {"weight": (4,)}),
    (nn.PReLU(3), "PReLU(num_parameters=3)", {"weight": (3,)}),
    (
        nn.MultiheadAttention(4, 2),
        "MultiheadAttention(\n  embed_dim=4, num_heads=2, batch_first=False\n  "
        "(out_proj): Linear(in_features=4, out_features=4, bias=True)\n)",
        {"in_proj_weight": (12, 4), "in_proj_bias": (12,), "out_proj.weight": (4, 4), "out_proj.bias": (4,)},
    ),
    (
        nn.MultiheadAttention(4, 2, kdim=3, vdim=5, bias=False),
        None,
        {"q_proj_weight": (4, 4), "k_proj_weight": (4, 3), "v_proj_weight": (4, 5), "out_proj.weight": (4, 4)},
    ),
]


@pytest.mark.parametrize("layer, text, state", STATE, ids=[type(row[0]).__name__ for row in STATE])
def test_state_is_pytorchs(layer, text, state):
    assert text is None or repr(layer) == text
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == state
    assert type(layer).__name__ in nn.__all__ and type(layer).__doc__


@pytest.mark.parametrize(
    "layer", [row[0] for row in STATE if row[2]], ids=[type(row[0]).__name__ for row in STATE if row[2]]
)
def test_state_round_trip(layer):
    for value in layer.state_dict().values():
        if value.is_floating_point():
            value.normal_()
    again = pickle.loads(pickle.dumps(layer))
    for parameter in again.parameters():
        nn.init.zeros_(parameter)
    again.load_state_dict(layer.state_dict())
    for name, value in again.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), layer.state_dict()[name].numpy(), err_msg=name)


def test_state_names_of_larger_modules():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1)
    norms = [f"norm{i}.{p}" for i in (1, 2) for p in ("weight", "bias")]
    attention = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    linears = [f"linear{i}.{p}" for i in (1, 2) for p in ("weight", "bias")]
    assert list(encoder.state_dict()) == [
        f"layers.0.{n}" for n in [*(f"self_attn.{a}" for a in attention), *linears, *norms]
    ]
    decoder = nn.TransformerDecoderLayer(4, 2, 8)
    assert {n.partition(".")[0] for n in decoder.state_dict()} == {
        "self_attn",
        "multihead_attn",
        "linear1",
        "linear2",
        "norm1",
        "norm2",
        "norm3",
    }
    whole = nn.Transformer(4, 2, 1, 1, 8)
    assert {n.partition(".")[0] for n in whole.state_dict()} == {
        "encoder",
        "decoder",
    } and "encoder.norm.weight" in whole.state_dict()


# Values


def test_bilinear():
    layer, a, b = nn.Bilinear(3, 4, 2), array(5, 3), array(5, 4, seed=1)
    expected = np.einsum("ni,oij,nj->no", a, layer.weight.detach().numpy(), b) + layer.bias.detach().numpy()
    same(layer(holon.tensor(a), holon.tensor(b)), expected, 1e-5)
    assert max(np.abs(p.detach().numpy()).max() for p in layer.parameters()) <= 1 / math.sqrt(3)


def test_embedding_with_padding():
    layer, at = nn.Embedding(5, 3, padding_idx=2), holon.tensor([[0, 2], [2, 4]])
    assert layer.weight[2].tolist() == [0, 0, 0] and layer.weight.requires_grad
    layer(at).sum().backward()
    assert layer.weight.grad.tolist() == [[1] * 3, [0] * 3, [0] * 3, [0] * 3, [1] * 3]
    given = tensor(4, 2)
    frozen = nn.Embedding.from_pretrained(given)
    assert not frozen.weight.requires_grad and frozen(holon.tensor([3])).tolist() == given[3:].tolist()
    assert nn.Embedding.from_pretrained(given, freeze=False, padding_idx=1).weight.requires_grad
    for wrong in (5, -6):
        with pytest.raises(ValueError, match="the table has 5 rows"):
            nn.Embedding(5, 3, padding_idx=wrong)
    with pytest.raises(ValueError, match=r"must be \[rows, width\]"):
        nn.Embedding.from_pretrained(tensor(4))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_convolutions(n):
    x, layer = tensor(*X[n]), getattr(nn, f"Conv{n}d")(4, 6, 3, 2, 1, groups=2)
    same(layer(x), getattr(F, f"conv{n}d")(x, layer.weight, layer.bias, 2, 1, 1, 2))
    same(getattr(nn, f"Conv{n}d")(4, 6, 2, padding="same")(x).shape, (2, 6, *X[n][2:]))
    back = getattr(nn, f"ConvTranspose{n}d")(6, 4, 3, 2, 1, 1, groups=2)
    y = layer(x)
    same(back(y), getattr(F, f"conv_transpose{n}d")(y, back.weight, back.bias, 2, 1, 1, 2))
    assert back(y, output_size=X[n][2:]).shape == X[n] == back(y).shape
    with pytest.raises(ValueError, match="it must be from"):
        back(y, output_size=(99,) * n)


@pytest.mark.parametrize("mode, numpy_mode", [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")])
def test_padding_modes(mode, numpy_mode):
    layer, x = nn.Conv2d(4, 3, (3, 5), padding=(1, 2), padding_mode=mode), array(*X[2])
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (2, 2)), numpy_mode)
    same(layer(holon.tensor(x)), F.conv2d(holon.tensor(around), layer.weight, layer.bias), 1e-5)
    with pytest.raises(ValueError, match="padding_mode is 'mirror'"):
        nn.Conv2d(1, 1, 1, padding_mode="mirror")


@pytest.mark.parametrize(
    "layer, n", [(nn.BatchNorm1d, 1), (nn.BatchNorm2d, 2), (nn.BatchNorm3d, 3), (nn.SyncBatchNorm, 2)]
)
def test_batch_norm(layer, n):
    layer, x = layer(4, momentum=0.3), array(*X[n])
    axes = (0, *range(2, n + 2))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    same(layer(holon.tensor(x)), (x - mean) / np.sqrt(var + 1e-5), 1e-4)
    count = x.size / 4
    same(layer.running_mean, 0.3 * mean.reshape(4), 1e-5)
    same(layer.running_var, 0.7 + 0.3 * var.reshape(4) * count / (count - 1), 1e-5)
    assert layer.num_batches_tracked.item() == 1
    shape = (1, 4) + (1,) * n
    running = layer.running_mean.numpy().copy().reshape(shape), layer.running_var.numpy().copy().reshape(shape)
    same(layer.eval()(holon.tensor(x)), (x - running[0]) / np.sqrt(running[1] + 1e-5), 1e-4)
    assert layer.num_batches_tracked.item() == 1
    layer.reset_running_stats()
    assert layer.running_mean.tolist() == [0] * 4 and layer.running_var.tolist() == [1] * 4
    with pytest.raises(ValueError, match="axes; found"):
        layer(tensor(3, 4, 1, 1, 1, 1))


def test_batch_norm_that_counts_all_batches_alike():
    layer, batches = nn.BatchNorm1d(3, momentum=None), [array(5, 3, seed=i) for i in range(3)]
    for x in batches:
        layer(holon.tensor(x))
    same(layer.running_mean, np.mean([x.mean(0) for x in batches], 0), 1e-5)


def test_norms():
    x = array(*X[2])
    for layer, groups in ((nn.InstanceNorm2d(4), 4), (nn.GroupNorm(2, 4), 2), (nn.GroupNorm(1, 4, affine=False), 1)):
        rows = x.reshape(2, groups, -1)
        expected = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
        same(layer(holon.tensor(x)), expected.reshape(x.shape), 1e-4)
    one = nn.InstanceNorm2d(4)(holon.tensor(x[0]))
    same(one, nn.InstanceNorm2d(4)(holon.tensor(x))[0], 1e-5)
    tracked = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    tracked(tensor(2, 4, 8))
    assert np.abs(tracked.running_mean.numpy()).max() > 0
    tracked.eval()
    assert tracked(tensor(2, 4, 8)).shape == (2, 4, 8)
    same(nn.RMSNorm(8, eps=1e-6)(holon.tensor(x)), x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), 1e-5)
    with pytest.raises(ValueError, match="do not divide 4 channels"):
        nn.GroupNorm(3, 4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_channel_dropout(n):
    holon.manual_seed(1)
    layer = getattr(nn, f"Dropout{n}d")(0.4)
    y = layer(holon.ones(50, 40, *(3,) * n)).numpy().reshape(50, 40, -1)
    assert set(np.unique(y)) == {0, np.float32(1 / 0.6)} and (y == y[:, :, :1]).all()
    assert abs((y[:, :, 0] == 0).mean() - 0.4) < 0.05
    x = holon.ones(4, *(3,) * n)
    assert layer(x).shape == x.shape and layer.eval()(x) is x


def test_losses_are_their_functions():
    x, y = tensor(5, 3), tensor(5, 3, seed=1)
    p, q, target = F.sigmoid(x), F.sigmoid(y), holon.tensor([0, 2, 1, 1, 2])
    sign, weight = holon.tensor([1.0, -1, 1, -1, 1]), holon.tensor([1.0, 2, 3])
    cases = [
        (nn.L1Loss, {}, (x, y), F.l1_loss),
        (nn.MSELoss, {}, (x, y), F.mse_loss),
        (nn.SmoothL1Loss, {"beta": 0.5}, (x, y), F.smooth_l1_loss),
        (nn.HuberLoss, {"delta": 0.5}, (x, y), F.huber_loss),
        (nn.CrossEntropyLoss, {"weight": weight, "label_smoothing": 0.1}, (x, target), F.cross_entropy),
        (nn.CrossEntropyLoss, {"ignore_index": 2}, (x, target), F.cross_entropy),
        (nn.NLLLoss, {"weight": weight}, (F.log_softmax(x), target), F.nll_loss),
        (nn.KLDivLoss, {"log_target": True}, (F.log_softmax(x), F.log_softmax(y)), F.kl_div),
        (nn.BCELoss, {"weight": weight}, (p, q), F.binary_cross_entropy),
        (nn.BCEWithLogitsLoss, {"pos_weight": weight}, (x, q), F.binary_cross_entropy_with_logits),
        (nn.CosineEmbeddingLoss, {"margin": 0.2}, (x, y, sign), F.cosine_embedding_loss),
        (nn.TripletMarginLoss, {"margin": 0.5, "swap": True}, (x, y, tensor(5, 3, seed=2)), F.triplet_margin_loss),
        (nn.MarginRankingLoss, {"margin": 0.1}, (x[:, 0], y[:, 0], sign), F.margin_ranking_loss),
        (nn.HingeEmbeddingLoss, {"margin": 0.5}, (x[:, 0], sign), F.hinge_embedding_loss),
    ]
    for kind, options, inputs, function in cases:
        for reduction in ("mean", "sum", "none"):
            layer = kind(**options, reduction=reduction)
            assert repr(layer) == f"{kind.__name__}()"
            same(layer(*inputs), function(*inputs, **options, reduction=reduction))
    assert set(nn.BCELoss(weight).state_dict()) == {"weight"}


def test_distances():
    a, b = array(5, 3), array(5, 3, seed=1)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    same(nn.CosineSimilarity()(holon.tensor(a), holon.tensor(b)), cosine, 1e-5)
    same(nn.PairwiseDistance()(holon.tensor(a), holon.tensor(b)), np.linalg.norm(a - b + 1e-6, axis=1), 1e-5)


# Initial values and utilities


def test_init_of_matrices_and_windows():
    assert nn.init.eye_(holon.empty(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    for shape, groups in (((4, 2, 3), 1), ((2, 4, 3, 2), 1), ((4, 2, 3, 3, 3), 2)):
        w, expected = nn.init.dirac_(holon.empty(*shape), groups).numpy(), np.zeros(shape)
        for g in range(groups):
            for d in range(min(shape[0] // groups, shape[1])):
                expected[(g * shape[0] // groups + d, d, *(k // 2 for k in shape[2:]))] = 1
        np.testing.assert_array_equal(w, expected)
    for shape in ((3, 5), (5, 3), (4, 2, 3)):
        w = nn.init.orthogonal_(holon.empty(*shape), gain=2).numpy().reshape(shape[0], -1)
        square = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
        same(square, 4 * np.eye(len(square)), 1e-5)
    for wrong in (
        lambda: nn.init.eye_(holon.empty(2)),
        lambda: nn.init.dirac_(holon.empty(2, 2)),
        lambda: nn.init.orthogonal_(holon.empty(2)),
        lambda: nn.init.dirac_(holon.empty(3, 2, 2), 2),
        lambda: nn.init.calculate_gain("swish"),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert nn.init.calculate_gain("selu") == 0.75 and nn.init.calculate_gain("conv_transpose2d") == 1


def test_sparse_init():
    w = nn.init.sparse_(holon.empty(10, 4), 0.35, std=1.0).numpy()
    assert ((w == 0).sum(0) == 4).all()


@pytest.mark.parametrize("sbp", [S(0), S(1)], ids=["S0", "S1"])
def test_init_does_not_depend_on_the_layout(sbp):
    fills = [
        nn.init.eye_,
        nn.init.orthogonal_,
        nn.init.kaiming_normal_,
        nn.init.xavier_uniform_,
        nn.init.trunc_normal_,
        lambda w: nn.init.sparse_(w, 0.5),
    ]

    def run(rank):
        everywhere = holon.placement.all("cpu")
        for fill in fills:
            results = []
            for layout in (B, sbp):
                holon.manual_seed(7)
                w = holon.empty(5, 4, placement=everywhere, sbp=layout)
                fill(w)
                assert w.sbp == (layout,)
                results.append(w.numpy())
            np.testing.assert_array_equal(*results)
        w = nn.init.dirac_(holon.empty(4, 4, 3, placement=everywhere, sbp=sbp))
        np.testing.assert_array_equal(w.numpy()[:, :, 1], np.eye(4))

    holon.run_ranks(2, run)


def test_parameters_as_a_vector():
    model, other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert vector.shape == (13,)
    nn.utils.vector_to_parameters(vector, other.parameters())
    for a, b in zip(model.parameters(), other.parameters()):
        assert a.tolist() == b.tolist()
    with pytest.raises(ValueError, match="have 13 elements"):
        nn.utils.vector_to_parameters(vector[:5], other.parameters())


def test_skip_init_and_pad_sequence():
    layer = nn.utils.skip_init(nn.Linear, 3, 4, bias=False)
    assert type(layer) is nn.Linear and layer.weight.shape == (4, 3)
    a, b = holon.ones(2, 3), holon.ones(4, 3)
    padded = nn.utils.rnn.pad_sequence([a, b], batch_first=True, padding_value=7.0)
    assert padded.shape == (2, 4, 3) and padded[0].tolist() == [[1] * 3] * 2 + [[7] * 3] * 2
    assert nn.utils.rnn.pad_sequence([a, b]).shape == (4, 2, 3)
    assert [x.tolist() for x in nn.utils.rnn.unpad_sequence(padded, [2, 4], batch_first=True)] == [
        a.tolist(),
        b.tolist(),
    ]
    with pytest.raises(ValueError, match="in their first axis only"):
        nn.utils.rnn.pad_sequence([a, holon.ones(2, 2)])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 2)], ids=str)
def test_softmax_without_dim(shape):
    x, dim = tensor(*shape), 0 if len(shape) in (0, 1, 3) else 1
    for layer, function in ((nn.Softmax, F.softmax), (nn.LogSoftmax, F.log_softmax), (nn.Softmin, F.softmin)):
        want = function(x, dim)
        for found in (layer()(x), layer(None)(x), function(x), function(x, dim=None)):
            same(found, want, 0)
    same(F.softmax(x).sum(dim), np.ones([n for a, n in enumerate(shape) if a != dim]), 1e-6)


def test_weight_norm():
    layer, x = nn.Linear(3, 4), tensor(2, 3)
    before = layer(x)
    weight = layer.weight.detach().numpy().copy()
    assert nn.utils.weight_norm(layer) is layer
    assert {n: tuple(p.shape) for n, p in layer.named_parameters()} == {
        "bias": (4,),
        "weight_g": (4, 1),
        "weight_v": (4, 3),
    }
    same(layer.weight_g, np.linalg.norm(weight, axis=1, keepdims=True), 1e-6)
    same(layer(x), before, 1e-5)
    layer(x).sum().backward()
    assert layer.weight_g.grad is not None and np.abs((layer.weight_v.grad.numpy() * weight).sum(1)).max() < 1e-5
    with holon.no_grad():
        layer.weight_g.mul_(2)
    same(layer(x), 2 * (before - layer.bias) + layer.bias, 1e-5)
    with pytest.raises(RuntimeError, match="has one already"):
        nn.utils.weight_norm(layer)
    nn.utils.remove_weight_norm(layer)
    same(layer.weight, 2 * weight, 1e-5)
    assert [n for n, _ in layer.named_parameters()] == ["bias", "weight"]
    with pytest.raises(ValueError, match="has none"):
        nn.utils.remove_weight_norm(layer)
    whole = nn.utils.weight_norm(nn.Conv2d(1, 2, 3), dim=None)
    assert whole.weight_g.shape == () and nn.utils.weight_norm(nn.Linear(2, 3), dim=-1).weight_g.shape == ()
    before = nn.Linear(2, 3)
    kept = before.weight.detach().clone()
    nn.utils.remove_weight_norm(nn.utils.weight_norm(before, dim=-1))
    same(before.weight, kept, 1e-6)
    with pytest.raises(IndexError, match="dim 4"):
        nn.utils.weight_norm(nn.Conv2d(1, 2, 3), dim=4)


CORE = """linear relu gelu softmax log_softmax dropout layer_norm embedding cross_entropy sparse_softmax_cross_entropy
nll_loss mse_loss conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d
max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d batch_norm tanh sigmoid silu leaky_relu elu celu selu
softplus hardtanh hardswish hardsigmoid relu6 mish logsigmoid softsign softshrink hardshrink tanhshrink threshold glu
prelu pad one_hot group_norm instance_norm rms_norm local_response_norm interpolate normalize pixel_shuffle
pixel_unshuffle smooth_l1_loss l1_loss huber_loss kl_div binary_cross_entropy binary_cross_entropy_with_logits unfold
fold scaled_dot_product_attention cosine_similarity cosine_embedding_loss pairwise_distance triplet_margin_loss
margin_ranking_loss hinge_embedding_loss soft_margin_loss bilinear dropout1d dropout2d dropout3d softmin""".split()


@pytest.mark.parametrize("name", CORE)
def test_functional_has_pytorchs_names(name):
    function = getattr(F, name)
    assert callable(function) and function.__doc__ and name in dir(F)
