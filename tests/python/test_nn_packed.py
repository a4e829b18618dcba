"""Recurrent layers over packed sequences: each sequence's results are those that it has alone."""

import numpy as np
import pytest
from holon.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
)

import holon as flow
from holon import nn

LAYERS = [nn.LSTM, nn.GRU, nn.RNN]
LENGTHS = [2, 5, 1, 4]


def sequences(lengths=LENGTHS, width=3):
    flow.manual_seed(7)
    return [flow.randn(n, width, dtype=flow.float64) for n in lengths]


def layer_of(kind, **options):
    flow.manual_seed(8)
    return kind(3, 4, dtype=flow.float64, **options)


def test_packing_and_back():
    parts = sequences()
    packed = pack_sequence(parts, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [4, 3, 2, 2, 1]
    assert packed.sorted_indices.tolist() == [1, 3, 0, 2] and packed.unsorted_indices.tolist() == [2, 0, 3, 1]
    assert packed.data.shape == (12, 3)
    np.testing.assert_array_equal(packed.data[:4].numpy(), np.stack([parts[k][0].numpy() for k in (1, 3, 0, 2)]))
    padded, lengths = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0, total_length=6)
    assert padded.shape == (4, 6, 3) and lengths.tolist() == LENGTHS
    for k, part in enumerate(parts):
        np.testing.assert_array_equal(padded[k, : LENGTHS[k]].numpy(), part.numpy())
        assert (padded[k, LENGTHS[k] :].numpy() == -1).all()
    for got, part in zip(unpack_sequence(packed), parts):
        np.testing.assert_array_equal(got.numpy(), part.numpy())
    again = pack_padded_sequence(pad_sequence(parts, batch_first=True), LENGTHS, True, enforce_sorted=False)
    np.testing.assert_array_equal(again.data.numpy(), packed.data.numpy())
    falling = pack_sequence(sorted(parts, key=lambda s: -s.shape[0]))
    assert falling.sorted_indices is None and falling.unsorted_indices is None
    assert falling.to(flow.float32).data.dtype == flow.float32 and isinstance(falling, PackedSequence)
    data, batch_sizes, *_ = falling
    assert data is falling.data and batch_sizes is falling.batch_sizes
    with pytest.raises(ValueError, match="enforce_sorted=False"):
        pack_sequence(parts)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("given_states", [False, True])
def test_results_and_gradients(kind, bidirectional, given_states):
    layer = layer_of(kind, num_layers=2, bidirectional=bidirectional)
    parts = sequences()
    ways = 4 if bidirectional else 2
    states = [flow.randn(ways, 4, 4, dtype=flow.float64) for _ in range(2 if kind is nn.LSTM else 1)]

    def given(k):
        if not given_states:
            return None
        own = tuple(s[:, k : k + 1] if k is not None else s for s in states)
        return own if kind is nn.LSTM else own[0]

    y, last = layer(pack_sequence(parts, enforce_sorted=False), given(None))
    assert isinstance(y, PackedSequence)
    last = last if isinstance(last, tuple) else (last,)
    outputs = unpack_sequence(y)
    weights = [flow.randn(*o.shape, dtype=flow.float64) for o in outputs]
    loss = sum((o * w).sum() for o, w in zip(outputs, weights)) + sum((s * s).sum() for s in last)
    loss.backward()
    gradients = [p.grad.numpy().copy() for p in layer.parameters()]
    layer.zero_grad()
    alone = 0
    for k, part in enumerate(parts):
        out, ends = layer(part.unsqueeze(1), given(k))
        ends = ends if isinstance(ends, tuple) else (ends,)
        np.testing.assert_allclose(outputs[k].detach().numpy(), out[:, 0].detach().numpy(), atol=1e-12)
        for whole, own in zip(last, ends):
            np.testing.assert_allclose(whole[:, k].detach().numpy(), own[:, 0].detach().numpy(), atol=1e-12)
        alone = alone + (out[:, 0] * weights[k]).sum() + sum((s * s).sum() for s in ends)
    alone.backward()
    for got, p in zip(gradients, layer.parameters()):
        np.testing.assert_allclose(got, p.grad.numpy(), atol=1e-10)


def test_batch_first_concerns_padded_input_only():
    layer, first = layer_of(nn.LSTM), layer_of(nn.LSTM, batch_first=True)
    packed = pack_sequence(sequences(), enforce_sorted=False)
    np.testing.assert_array_equal(layer(packed)[0].data.detach().numpy(), first(packed)[0].data.detach().numpy())


def test_wrong_packed_sequences():
    layer = layer_of(nn.GRU)
    packed = pack_sequence(sequences(), enforce_sorted=False)
    with pytest.raises(ValueError, match="batch_sizes"):
        layer(packed._replace(batch_sizes=flow.tensor([4, 3])))
    with pytest.raises(ValueError, match="h0 has shape"):
        layer(packed, flow.zeros(1, 3, 4, dtype=flow.float64))
    x, weights = flow.ones(3, 2, 3), [flow.ones(1, 2, 4), flow.ones(12, 3), flow.ones(12, 4)]
    for sizes in ([2, 3], [2, 0], [1], [2, 2, 2, 2], []):
        with pytest.raises(ValueError, match="gru: .*batch_sizes"):
            flow.gru([x, *weights], False, 1, 0.0, False, False, False, sizes)


def test_on_several_ranks():
    parts = sequences()
    layer = layer_of(nn.LSTM, bidirectional=True)
    packed = pack_sequence(parts, enforce_sorted=False)
    want = layer(packed)
    values = [p.detach() for p in layer.parameters()]

    def run(rank):
        placement = flow.placement("cpu", [0, 1])

        def everywhere(t):
            return t.to_global(placement, flow.sbp.broadcast)

        other = nn.LSTM(3, 4, bidirectional=True, dtype=flow.float64, placement=placement, sbp=flow.sbp.broadcast)
        with flow.no_grad():
            for p, v in zip(other.parameters(), values):
                p.copy_(everywhere(v))
        out = []
        for sbp in (flow.sbp.broadcast, flow.sbp.split(1)):
            padded = everywhere(pad_sequence(parts)).to_global(placement, sbp)
            y, (h, c) = other(pack_padded_sequence(padded, LENGTHS, enforce_sorted=False))
            out.append(
                [everywhere_again.to_local().detach().numpy() for everywhere_again in map(everywhere, (y.data, h, c))]
            )
        return out

    for out in flow.run_ranks(2, run):
        for y, h, c in out:
            np.testing.assert_allclose(y, want[0].data.detach().numpy(), atol=1e-12)
            np.testing.assert_allclose(h, want[1][0].detach().numpy(), atol=1e-12)
            np.testing.assert_allclose(c, want[1][1].detach().numpy(), atol=1e-12)
