"""Recurrent layers, and their cells, one step of them."""

import math

from .. import _C
from . import functional as F
from . import init
from .module import Module
from .parameter import Where, broadcast_over
from .utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def _reset(module):
    bound = 1 / math.sqrt(module.hidden_size) if module.hidden_size else 0
    for parameter in module.parameters():
        init.uniform_(parameter, -bound, bound)


def _zeros(like, *shape):
    """Zeros on the ranks of a tensor, the same on all."""
    where = (
        {"placement": like.placement, "sbp": broadcast_over(like.placement)}
        if like.is_global
        else {"device": like.device}
    )
    return _C.ops["zeros"](shape, dtype=like.dtype, **where)


def _lengths(batch_sizes):
    """Of packed sequences, longest first, by how many have each step."""
    return [sum(size > k for size in batch_sizes) for k in range(batch_sizes[0])]


class _Recurrent(Module):
    """num_layers layers over x [l, n, input_size] ([n, l, ...] if batch_first; without n for one sample). Returns the
    last layer's states of all steps, and the last states of all layers [num_layers * directions, n, hidden_size]. x may
    be a PackedSequence (nn.utils.rnn): then so are the states of all steps, and the last ones are those at each
    sequence's end.

    The parameters of layer k are weight_ih_l<k>, weight_hh_l<k>, bias_ih_l<k> and bias_hh_l<k>,
    with _reverse behind for the other direction.
    """

    _gates = 1

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        *,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__()
        if hidden_size < 1 or num_layers < 1:
            raise ValueError(
                f"{type(self).__name__}: hidden_size is {hidden_size}, num_layers {num_layers}; both count from 1."
            )
        if not 0 <= dropout <= 1:
            raise ValueError(f"{type(self).__name__}: dropout is {dropout}; it must be between 0 and 1.")
        self.input_size, self.hidden_size, self.num_layers, self.bias = input_size, hidden_size, num_layers, bias
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        where, rows, directions = (
            Where(placement, sbp, device, dtype),
            self._gates * hidden_size,
            2 if bidirectional else 1,
        )
        self._names = []  # of the parameters, as the op takes them
        for layer in range(num_layers):
            for suffix in ("", "_reverse")[:directions]:
                width = input_size if layer == 0 else hidden_size * directions
                for name, shape in (
                    ("weight_ih", (rows, width)),
                    ("weight_hh", (rows, hidden_size)),
                    ("bias_ih", (rows,)),
                    ("bias_hh", (rows,)),
                ):
                    if bias or len(shape) == 2:
                        name = f"{name}_l{layer}{suffix}"
                        make = where.parameter if len(shape) == 2 else where.bias
                        setattr(self, name, make(name, *shape))
                        self._names.append(name)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws evenly from +-1 / sqrt(hidden_size)."""
        _reset(self)

    def forward(self, x, hx=None):
        if isinstance(x, PackedSequence):
            return self._forward_packed(x, hx)
        if x.ndim not in (2, 3):
            raise ValueError(
                f"{type(self).__name__}: x must be [length, batch, width], or [length, width] for one sample; found "
                f"{list(x.shape)}."
            )
        states = self._states(x, self.batch_first) if hx is None else hx if isinstance(hx, (tuple, list)) else (hx,)
        y, *states = self._run(x, states, self.batch_first, None)
        return y, tuple(states) if len(states) > 1 else states[0]

    def _forward_packed(self, x, hx):
        padded, _ = pad_packed_sequence(PackedSequence(x.data, x.batch_sizes))
        if hx is None:
            states = self._states(padded, False)
        else:
            states = hx if isinstance(hx, (tuple, list)) else (hx,)
            if x.sorted_indices is not None:
                n = x.sorted_indices.shape[0]
                states = [s.index_select(1, x.sorted_indices) if s.shape[1] == n else s for s in states]
        y, *states = self._run(padded, states, False, x.batch_sizes.tolist())
        lengths = _lengths(x.batch_sizes.tolist())
        y = x._replace(data=pack_padded_sequence(y, lengths).data)
        if x.unsorted_indices is not None:
            states = [s.index_select(1, x.unsorted_indices) for s in states]
        return y, tuple(states) if len(states) > 1 else states[0]

    def _run(self, x, states, batch_first, batch_sizes):
        tensors = [x, *states, *(getattr(self, name) for name in self._names)]
        layers = (self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        return self._op(tensors, *layers, batch_first, batch_sizes)

    def _op(self, *args):
        return F.gru(*args)

    def _states(self, x, batch_first):
        batch = () if x.ndim == 2 else (x.shape[0 if batch_first else 1],)
        h0 = _zeros(x, self.num_layers * (2 if self.bidirectional else 1), *batch, self.hidden_size)
        return (h0,)

    def extra_repr(self):
        text = f"{self.input_size}, {self.hidden_size}"
        for name, default in (
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0),
            ("bidirectional", False),
        ):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text


class RNN(_Recurrent):
    __doc__ = "h = tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh), or relu by nonlinearity. " + (
        _Recurrent.__doc__ or ""
    )

    def __init__(
        self,
        input_size,
        hidden_size,
        num_layers=1,
        nonlinearity="tanh",
        bias=True,
        batch_first=False,
        dropout=0.0,
        bidirectional=False,
        *,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            placement=placement,
            sbp=sbp,
            device=device,
            dtype=dtype,
        )
        self.nonlinearity = _by_nonlinearity("RNN", nonlinearity)

    def _op(self, *args):
        return getattr(F, f"rnn_{self.nonlinearity}")(*args)


class LSTM(_Recurrent):
    __doc__ = "A long short-term memory, whose states are (h, c). " + (_Recurrent.__doc__ or "")
    _gates = 4

    def _op(self, *args):
        return F.lstm(*args)

    def _states(self, x, batch_first):
        return super()._states(x, batch_first) * 2


class GRU(_Recurrent):
    __doc__ = "A gated recurrent unit. " + (_Recurrent.__doc__ or "")
    _gates = 3


def _by_nonlinearity(layer, nonlinearity):
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"{layer}: nonlinearity is {nonlinearity!r}; it must be 'tanh' or 'relu'.")
    return nonlinearity


class _Cell(Module):
    _gates = 1

    def __init__(self, input_size, hidden_size, bias=True, *, placement=None, sbp=None, device=None, dtype=None):
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        where, rows = Where(placement, sbp, device, dtype), self._gates * hidden_size
        self.weight_ih = where.parameter("weight_ih", rows, input_size)
        self.weight_hh = where.parameter("weight_hh", rows, hidden_size)
        self.register_parameter("bias_ih", where.bias("bias_ih", rows) if bias else None)
        self.register_parameter("bias_hh", where.bias("bias_hh", rows) if bias else None)
        self.reset_parameters()

    def reset_parameters(self):
        """Draws evenly from +-1 / sqrt(hidden_size)."""
        _reset(self)

    def forward(self, x, hx=None):
        if x.ndim not in (1, 2):
            raise ValueError(
                f"{type(self).__name__}: x must be [batch, width], or [width] for one sample; found {list(x.shape)}."
            )
        return self._op(
            x, self._states(x) if hx is None else hx, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        )

    def _op(self, *args):
        return F.gru_cell(*args)

    def _states(self, x):
        return _zeros(x, *x.shape[:-1], self.hidden_size)

    def extra_repr(self):
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias else ", bias=False")


class RNNCell(_Cell):
    """tanh(x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh) for x [n, input_size] and h [n, hidden_size];
    or relu."""

    def __init__(
        self,
        input_size,
        hidden_size,
        bias=True,
        nonlinearity="tanh",
        *,
        placement=None,
        sbp=None,
        device=None,
        dtype=None,
    ):
        super().__init__(input_size, hidden_size, bias, placement=placement, sbp=sbp, device=device, dtype=dtype)
        self.nonlinearity = _by_nonlinearity("RNNCell", nonlinearity)

    def _op(self, *args):
        return getattr(F, f"rnn_{self.nonlinearity}_cell")(*args)

    def extra_repr(self):
        return super().extra_repr() + ("" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}")


class LSTMCell(_Cell):
    """One step of LSTM: (h, c) of x [n, input_size] and (h, c), each [n, hidden_size]."""

    _gates = 4

    def _op(self, x, hx, *weights):
        return tuple(F.lstm_cell(x, *hx, *weights))

    def _states(self, x):
        return (super()._states(x),) * 2


class GRUCell(_Cell):
    """One step of GRU: h of x [n, input_size] and h [n, hidden_size]."""

    _gates = 3
