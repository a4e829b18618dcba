"""Recurrent layers on a cuda device: values and gradients as on the CPU."""

import numpy as np
import pytest

import holon as flow

TOL = {flow.float64: 1e-11, flow.float32: 4e-6, flow.bfloat16: 3e-2, flow.float16: 4e-3}


def close(a, b, dtype):
    np.testing.assert_allclose(
        a.detach().cpu().to(flow.float64).numpy(), b.detach().to(flow.float64).numpy(), rtol=TOL[dtype], atol=TOL[dtype]
    )


def compare(make, x_shape, dtype=flow.float32):
    results = []
    weights = None
    for device in ("cpu", "cuda"):
        flow.manual_seed(0)
        layer = make()
        if weights is None:
            weights = [p.detach().numpy() for p in layer.parameters()]
        for p, w in zip(layer.parameters(), weights):
            p.data = flow.tensor(w)
        layer = layer.to(dtype).to(device)
        rng = np.random.default_rng(1)
        x = flow.tensor(rng.standard_normal(x_shape), dtype=dtype).to(device).requires_grad_()
        before = dict(flow._C.host_runs())
        y, state = layer(x)
        states = list(state) if isinstance(state, tuple) else [state]
        loss = (y * flow.tensor(rng.standard_normal(tuple(y.shape)), dtype=dtype).to(device)).sum()
        for s in states:
            loss = loss + (s * flow.tensor(rng.standard_normal(tuple(s.shape)), dtype=dtype).to(device)).sum()
        loss.backward()
        assert dict(flow._C.host_runs()) == before
        results.append([y, *states, x.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*results):
        assert b.device.type == "cuda"
        close(b, a, dtype)


@pytest.mark.parametrize("kind", ["tanh", "relu", "lstm", "gru"])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "batch_first": True}], ids=str
)
def test_layers(kind, options):
    if kind in ("lstm", "gru"):
        compare(lambda: {"lstm": flow.nn.LSTM, "gru": flow.nn.GRU}[kind](5, 7, **options), (4, 3, 5))
    else:
        compare(lambda: flow.nn.RNN(5, 7, nonlinearity=kind, **options), (4, 3, 5))


@pytest.mark.parametrize("dtype", [flow.float64, flow.bfloat16, flow.float16], ids=str)
@pytest.mark.parametrize("kind", [flow.nn.LSTM, flow.nn.GRU, flow.nn.RNN])
def test_dtypes(kind, dtype):
    compare(lambda: kind(5, 7), (3, 2, 5), dtype)


def test_one_step_and_no_rows():
    compare(lambda: flow.nn.LSTM(5, 7), (1, 2, 5))
    compare(lambda: flow.nn.GRU(5, 40), (2, 0, 5))


@pytest.mark.parametrize("kind", [flow.nn.LSTMCell, flow.nn.GRUCell, flow.nn.RNNCell])
def test_cells(kind):
    flow.manual_seed(0)
    here = kind(5, 7)
    there = kind(5, 7)
    there.load_state_dict(here.state_dict())
    there = there.to("cuda")
    x = np.random.default_rng(0).standard_normal((3, 5)).astype("f")
    a, b = here(flow.tensor(x)), there(flow.tensor(x).cuda())
    for p, q in zip(a if isinstance(a, tuple) else [a], b if isinstance(b, tuple) else [b]):
        close(q, p, flow.float32)
