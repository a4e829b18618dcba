"""Layers and models on two ranks against one:
rows of the batch divided, and heads, hidden units, channels or vocabulary."""

import numpy as np
import pytest

import holon
from holon import nn

F = nn.functional
B, S = holon.sbp.broadcast, holon.sbp.split


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def on_ranks(ranks, function):
    """function(placement) on so many ranks; all must return the same nested lists of arrays."""
    results = holon.run_ranks(ranks, lambda rank: function(holon.placement.all("cpu")))
    for other in results[1:]:
        compare(other, results[0], 0)
    return results[0]


def compare(found, expected, tolerance):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def result_and_gradients(module, *inputs):
    """What a module gives, the gradients of its inputs and parameters, and its buffers."""
    y = module(*inputs)
    y = y[0] if isinstance(y, tuple) else y
    weights = holon.tensor(array(*y.shape, seed=9), placement=y.placement, sbp=[B] * len(y.sbp))
    (y * weights).sum().backward()
    for p in module.parameters():
        assert p.grad.sbp == p.sbp
    tensors = [
        y.detach(),
        *(x.grad for x in inputs if x.requires_grad),
        *(p.grad for p in module.parameters()),
        *module.buffers(),
    ]
    return [t.numpy().copy() for t in tensors]


LAYERS = {
    "Linear": (lambda **w: nn.Linear(4, 3, **w), (6, 4)),
    "Conv1d": (lambda **w: nn.Conv1d(4, 2, 3, padding=1, **w), (6, 4, 5)),
    "Conv2d": (lambda **w: nn.Conv2d(4, 2, 3, padding=1, **w), (6, 4, 5, 5)),
    "Conv2d_reflect": (lambda **w: nn.Conv2d(4, 2, 3, padding=1, padding_mode="reflect", **w), (6, 4, 5, 5)),
    "Conv3d": (lambda **w: nn.Conv3d(4, 2, 2, **w), (6, 4, 3, 3, 3)),
    "ConvTranspose2d": (lambda **w: nn.ConvTranspose2d(4, 2, 3, 2, **w), (6, 4, 3, 3)),
    "BatchNorm1d": (lambda **w: nn.BatchNorm1d(4, **w), (6, 4)),
    "BatchNorm2d": (lambda **w: nn.BatchNorm2d(4, **w), (6, 4, 3, 3)),
    "InstanceNorm1d": (lambda **w: nn.InstanceNorm1d(4, affine=True, **w), (6, 4, 5)),
    "GroupNorm": (lambda **w: nn.GroupNorm(2, 4, **w), (6, 4, 5)),
    "LayerNorm": (lambda **w: nn.LayerNorm(4, **w), (6, 4)),
    "RMSNorm": (lambda **w: nn.RMSNorm(4, **w), (6, 4)),
    "PReLU": (lambda **w: nn.PReLU(4, **w), (6, 4)),
    "LSTM": (lambda **w: nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True, **w), (6, 5, 4)),
    "GRU": (lambda **w: nn.GRU(4, 3, batch_first=True, **w), (6, 5, 4)),
    "RNN": (lambda **w: nn.RNN(4, 3, batch_first=True, **w), (6, 5, 4)),
    "GRUCell": (lambda **w: nn.GRUCell(4, 3, **w), (6, 4)),
    "TransformerEncoderLayer": (lambda **w: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True, **w), (6, 5, 4)),
    "TransformerEncoderLayer_first": (
        lambda **w: nn.TransformerEncoderLayer(4, 2, 8, 0.0, norm_first=True, batch_first=True, **w),
        (6, 5, 4),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_rows_divided(name, ranks):
    make, shape = LAYERS[name]

    def run(sbp):
        def on(placement):
            holon.manual_seed(4)
            x = holon.tensor(array(*shape), placement=placement, sbp=sbp)
            x.requires_grad = True
            return result_and_gradients(make(placement=placement, sbp=B), x)

        return on

    compare(on_ranks(ranks, run(S(0))), on_ranks(1, run(B)), 2e-5)


# Of weights, by name, and of the input.
SPLIT = {
    "Linear": ({"weight": S(1), "bias": B}, S(1)),
    "Conv2d": ({"*": S(0)}, B),
    "BatchNorm2d": ({"num*": B, "*": S(0)}, S(1)),
    "GroupNorm": ({"*": S(0)}, S(1)),
    "PReLU": ({"*": S(0)}, S(1)),
    "InstanceNorm1d": ({"*": S(0)}, S(1)),
}


@pytest.mark.parametrize("name", SPLIT)
def test_channels_divided(name):
    make, shape = LAYERS[name]

    def run(sbp, of_x):
        def on(placement):
            holon.manual_seed(4)
            x = holon.tensor(array(*shape), placement=placement, sbp=of_x)
            x.requires_grad = True
            return result_and_gradients(make(placement=placement, sbp=sbp), x)

        return on

    compare(on_ranks(2, run(*SPLIT[name])), on_ranks(1, run(B, B)), 2e-5)


HEADS = {"?_proj_weight": S(0), "out_proj.weight": S(1), "*": B}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"need_weights": False}], ids=str)
def test_attention_divided_by_heads(options):
    def run(sbp):
        def on(placement):
            holon.manual_seed(2)
            layer = nn.MultiheadAttention(8, 4, packed=False, batch_first=True, placement=placement, sbp=sbp)
            nn.init.normal_(layer.in_proj_bias)
            x = holon.tensor(array(2, 5, 8), placement=placement, sbp=B)
            return result_and_gradients(lambda_module(layer, lambda x: layer(x, x, x, **options)), x)

        return on

    compare(on_ranks(2, run(HEADS)), on_ranks(1, run(B)), 2e-5)
    compare(on_ranks(4, run(HEADS)), on_ranks(1, run(B)), 2e-5)


def lambda_module(layer, call):
    outer = nn.Module()
    outer.layer = layer
    outer.forward = call
    return outer


def test_heads_need_no_message_before_the_last_product():
    def on(placement):
        layer = nn.MultiheadAttention(8, 4, packed=False, bias=False, batch_first=True, placement=placement, sbp=HEADS)
        x = holon.ones(2, 5, 8, placement=placement, sbp=B)
        with holon.boxing_policy("raise"):
            y = layer(x, x, x, need_weights=False)[0]
        assert y.sbp == (holon.sbp.partial_sum,)
        return []

    on_ranks(2, on)


BLOCK = {
    "self_attn.?_proj_weight": S(0),
    "linear1.*": S(0),
    "self_attn.out_proj.weight": S(1),
    "linear2.weight": S(1),
    "*": B,
}


def test_transformer_layer_divided_by_heads_and_hidden_units():
    def run(sbp):
        def on(placement):
            holon.manual_seed(2)
            layer = nn.TransformerEncoderLayer(
                8, 4, 16, 0.0, "gelu", batch_first=True, packed=False, placement=placement, sbp=sbp
            )
            x = holon.tensor(array(2, 5, 8), placement=placement, sbp=B)
            x.requires_grad = True
            return result_and_gradients(layer, x)

        return on

    compare(on_ranks(2, run(BLOCK)), on_ranks(1, run(B)), 2e-5)


def test_a_block_on_a_grid_of_ranks():
    """Rows of the batch over the first axis of a 2 x 2 grid, heads and hidden units over the second."""
    grid_sbp = {name: [B, sbp] for name, sbp in BLOCK.items()}

    def on_grid(placement):
        placement = holon.placement("cpu", [[0, 1], [2, 3]])
        holon.manual_seed(2)
        layer = nn.TransformerEncoderLayer(
            8, 4, 16, 0.0, batch_first=True, packed=False, placement=placement, sbp=grid_sbp
        )
        x = holon.tensor(array(2, 5, 8), placement=placement, sbp=[S(0), B])
        return result_and_gradients(layer, x)

    def on_one(placement):
        holon.manual_seed(2)
        layer = nn.TransformerEncoderLayer(8, 4, 16, 0.0, batch_first=True, packed=False, placement=placement, sbp=B)
        return result_and_gradients(layer, holon.tensor(array(2, 5, 8), placement=placement, sbp=B))

    compare(on_ranks(4, on_grid), on_ranks(1, on_one), 2e-5)


class Net(nn.Module):
    def __init__(self, **where):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False, **where),
            nn.BatchNorm2d(4, **where),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, **where),
            nn.BatchNorm2d(6, **where),
            nn.ReLU(),
        )
        self.drop = nn.Dropout2d(0.3)
        self.head = nn.Linear(6 * 4, 3, **where)

    def forward(self, x):
        return self.head(self.drop(self.body(x)).flatten(1))


def test_training_with_batch_norm_and_dropout_equals_one_rank():
    def run(sbp):
        def on(placement):
            holon.manual_seed(1)
            model = Net(placement=placement, sbp=B)
            optimizer = holon.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            losses = []
            for step in range(6):
                x = holon.tensor(array(7, 1, 8, 8, seed=step), placement=placement, sbp=sbp)
                target = holon.tensor(np.random.default_rng(step).integers(0, 3, 7), placement=placement, sbp=sbp)
                loss = F.cross_entropy(model(x), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            model.eval()
            x = holon.tensor(array(3, 1, 8, 8), placement=placement, sbp=B)
            return [
                np.array(losses),
                model(x).detach().numpy(),
                *(v.numpy().copy() for v in model.state_dict().values()),
            ]

        return on

    compare(on_ranks(2, run(S(0))), on_ranks(1, run(B)), 5e-4)


def test_channel_dropout_draws_alike_under_every_layout():
    def run(sbp):
        def on(placement):
            holon.manual_seed(8)
            return [nn.Dropout2d(0.5)(holon.ones(4, 6, 3, 2, placement=placement, sbp=sbp)).numpy().copy()]

        return on

    one = on_ranks(1, run(B))
    for sbp in (B, S(0), S(1), S(2)):
        compare(on_ranks(2, run(sbp)), one, 0)


def test_composed_layers_pass_their_names_on():
    def on(placement):
        names = []

        def sbp(name):
            names.append(name)
            return B

        model = nn.Transformer(4, 2, 1, 1, 8, placement=placement, sbp=sbp)
        assert sorted({*names}) == sorted(n for n, _ in model.named_parameters())
        return []

    on_ranks(1, on)
