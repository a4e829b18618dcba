"""The ops of the older API, each with calls and what NumPy gives for them;
test_ops_values.py runs them on tensors, test_ops_jobs.py in jobs."""

import dataclasses
import itertools
import math as pymath
from collections.abc import Callable
from typing import Any

import numpy as np
import oneflow as flow
from oneflow.single_client import arrays, losses, math, nn, windows


@dataclasses.dataclass
class Case:
    function: Callable[..., Any]
    args: tuple
    kwargs: dict
    expected: Any  # arrays, worked out from args by the case's own formula
    training: bool | None = None  # what an op that asks for it is told

    def __str__(self) -> str:
        def text(v):
            return f"{v.dtype}{list(v.shape)}" if isinstance(v, np.ndarray) else repr(v)

        given = [text(a) for a in self.args] + [f"{k}={text(v)}" for k, v in self.kwargs.items()]
        return f"{self.function.__name__}({', '.join(given)})"


cases: list[Case] = []
covered: set[str] = set()


def case(function, expected, *args, training=None, **kwargs):
    """function(*args, **kwargs) must be expected: an array, or nested lists of them."""
    covered.add(function.__name__)
    cases.append(Case(function, args, kwargs, expected, training))


def a(*shape, low=-2.0, high=2.0, seed=0):
    """Distinct float32 values in no order."""
    n = int(np.prod(shape))
    values = low + (high - low) * (np.arange(n) + 0.37) / n
    return np.random.default_rng(n + seed).permutation(values).reshape(shape).astype(np.float32)


def i(*shape, high=5, seed=0, dtype=np.int32):
    return np.random.default_rng(int(np.prod(shape)) + seed).integers(0, high, shape).astype(dtype)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


X, Y = a(4, 6), a(4, 6, seed=1)
P = a(4, 6, low=0.1, high=0.9)  # probabilities
V = a(2, 4, 3)

# Elementwise functions

erf = np.vectorize(pymath.erf)
for name, f, x in [
    ("square", np.square, X), ("sqrt", np.sqrt, P), ("rsqrt", lambda x: 1 / np.sqrt(x), P), ("exp", np.exp, X),
    ("expm1", np.expm1, X), ("log", np.log, P), ("log1p", np.log1p, P), ("abs", np.abs, X), ("sign", np.sign, X),
    ("negative", np.negative, X), ("floor", np.floor, X), ("ceil", np.ceil, X), ("round", np.round, X),
    ("rint", np.round, X), ("reciprocal", lambda x: 1 / x, X), ("sin", np.sin, X), ("cos", np.cos, X),
    ("tan", np.tan, P), ("asin", np.arcsin, P), ("acos", np.arccos, P), ("atan", np.arctan, X), ("sinh", np.sinh, X),
    ("cosh", np.cosh, X), ("tanh", np.tanh, X), ("tanh_v2", np.tanh, X), ("asinh", np.arcsinh, X),
    ("acosh", np.arccosh, P + 1), ("atanh", np.arctanh, P), ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), X),
    ("sigmoid_v2", lambda x: 1 / (1 + np.exp(-x)), X), ("log_sigmoid", lambda x: -np.log1p(np.exp(-x)), X),
    ("softplus", lambda x: np.log1p(np.exp(x)), X), ("softsign", lambda x: x / (1 + np.abs(x)), X),
    ("gelu", lambda x: x * (1 + erf(x / np.sqrt(2))) / 2, X), ("relu", lambda x: np.maximum(x, 0), X),
    ("mish", lambda x: x * np.tanh(np.log1p(np.exp(x))), X), ("erf", erf, X), ("erfc", lambda x: 1 - erf(x), X),
]:  # fmt: skip
    case(getattr(math, name), f(x), x)

case(math.logical_not, np.array([0, 1, 0], np.int8), np.array([2, 0, -1], np.int32))
case(math.reciprocal_no_nan, np.array([0.5, 0, -1], np.float32), np.array([2, 0, -1], np.float32))

# Of two

for name, f in [
    ("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide),
    ("minimum", np.minimum), ("maximum", np.maximum), ("broadcast_max", np.maximum), ("broadcast_min", np.minimum),
    ("mod", np.mod), ("floor_mod", np.mod), ("floordiv", np.floor_divide), ("atan2", np.arctan2),
    ("squared_difference", lambda x, y: (x - y) ** 2),
]:  # fmt: skip
    case(getattr(math, name), f(X, Y), X, Y)
    case(getattr(math, name), f(X, Y[:, :1]), X, Y[:, :1])
for name, f in [
    ("add", np.add),
    ("subtract", np.subtract),
    ("multiply", np.multiply),
    ("divide", np.divide),
    ("maximum", np.maximum),
]:
    case(getattr(math, name), f(X, np.float32(0.75)), X, 0.75)
    case(getattr(math, name), f(np.float32(0.75), X), 0.75, X)
case(math.pow, P**Y, P, Y)
case(math.pow, X**2, X, 2)
case(math.broadcast_pow, P ** Y[0], P, Y[0])
case(math.mod, np.array([1, 2, 0], np.int32), np.array([-3, 2, 4], np.int32), 4)
case(math.xlogy, X * np.log(P), X, P)
case(math.xdivy, np.array([0, 2], np.float32), np.array([0, 6], np.float32), np.array([0, 3], np.float32))
case(math.add, X + Y + P, [X, Y, P])
case(math.add_n, X + Y + P, [X, Y, P])
case(math.add_n, X, [X])

R = np.round(X)
for name, f in [
    ("equal", np.equal), ("not_equal", np.not_equal), ("less", np.less), ("less_equal", np.less_equal),
    ("greater", np.greater), ("greater_equal", np.greater_equal),
]:  # fmt: skip
    case(getattr(math, name), f(R, np.round(Y)).astype(np.int8), R, np.round(Y))
    case(getattr(math, name), f(R, 1).astype(np.int8), R, 1)
for name, f in [("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor)]:
    case(
        getattr(math, name),
        f(i(4, 6, high=2), i(4, 6, high=2, seed=1)).astype(np.int8),
        i(4, 6, high=2),
        i(4, 6, high=2, seed=1),
    )

case(math.clip_by_value, np.clip(X, -1, 0.5), X, -1, 0.5)
case(math.clip_by_value, np.clip(X, None, 0.5), X, max_value=0.5)
case(math.clip_by_value, np.clip(X, 0, None), X, min_value=0)
case(math.clip_by_scalar, np.clip(X, -1, 1), X, -1.0, 1.0)
case(math.polyval, 2 * X**2 - 3 * X + 0.5, [2, -3, 0.5], X)

# Reductions

for name, f in [
    ("reduce_sum", np.sum), ("reduce_mean", np.mean), ("reduce_max", np.max), ("reduce_min", np.min),
    ("reduce_prod", np.prod), ("reduce_variance", np.var), ("reduce_std", np.std),
    ("reduce_euclidean_norm", lambda x, **k: np.sqrt(np.sum(x * x, **k))),
    ("reduce_logsumexp", lambda x, **k: np.log(np.sum(np.exp(x), **k))),
    ("two_stage_reduce_max", np.max), ("two_stage_reduce_min", np.min),
]:  # fmt: skip
    for axis, keep in itertools.product([None, 0, 1, -1, [0, 2], [2, 1], [0, 1, 2]], [False, True]):
        whole = axis is None or axis == [0, 1, 2]
        expected = f(V, axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keep)
        case(getattr(math, name), expected.reshape(1) if whole and not keep else expected, V, axis, keep)
case(math.reduce_sum, np.array([10], np.int32), np.array([1, 2, 3, 4], np.int32), 0)
case(math.reduce_sum, V, V, [])
case(math.reduce_any, np.array([1, 0], np.int8), np.array([[0, 3], [0, 0]], np.int32), 1)
case(math.reduce_all, np.array([0, 1, 0], np.int8), np.array([[0, 3, 1], [1, 1, 0]], np.int8), [0])
case(math.reduce_any, np.array([1], np.int8), np.array([[0.0, 0.5]], np.float32))
case(math.reduce_all, np.array([[0]], np.int8), np.array([[0.0, 0.5]], np.float32), keepdims=True)

# Positions and orders

case(math.argmax, V.argmax(-1).astype(np.int32), V)
case(math.argmax, V.argmax(0).astype(np.int32), V, axis=0)
case(math.argmax, np.array([2], np.int32), np.array([1, 2, 5, 0], np.float32))
case(math.top_k, np.argsort(-X, 1)[:, :3].astype(np.int32), X, k=3)
case(math.top_k, np.argsort(-X, 0)[:1].astype(np.int32), X, axis=0)
case(
    math.in_top_k,
    np.array([1, 0, 1], np.int8),
    np.array([0, 1, 2], np.int32),
    np.array([[9, 1, 2], [3, 0, 5], [1, 2, 1.5]], np.float32),
    2,
)
case(math.tril, np.tril(X), X)
case(math.tril, np.tril(X, 1) + np.triu(np.full_like(X, 7), 2), X, 1, 7)
case(math.fused_scale_tril, np.tril(X, -1) * 3, X, -1, scale=3)
case(math.l2_normalize, X / np.sqrt((X**2).sum(1, keepdims=True)), X)
case(math.l2_normalize, X / np.sqrt((X**2).sum(0, keepdims=True)), X, 0)
case(math.l2_normalize, np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), 1)
S = np.zeros((4, 6), np.float32)
np.add.at(S, [3, 0, 3, 1], X)
case(math.unsorted_segment_sum, S, X, np.array([3, 0, 3, 1], np.int32), 4)
S = np.zeros((4, 2), np.float32)
np.add.at(S.T, [1, 0, 1, 1, 0, 1], X.T)
case(math.unsorted_segment_sum, S, X, np.array([1, 0, 1, 1, 0, 1], np.int32), 2, axis=1)
S = np.zeros((5, 3), np.float32)
np.add.at(S, i(2, 4).reshape(-1), V.reshape(8, 3))
case(math.unsorted_segment_sum, S, V, i(2, 4), 5)
case(math.unsorted_segment_sum_like, S, V, i(2, 4), a(5, 3))

# Shapes

case(arrays.reshape, V.reshape(2, 12), V, [2, -1])
case(arrays.reshape, V.reshape(-1), V, (24,))
case(arrays.reshape_like, V.reshape(4, 6), V, X)
case(arrays.dynamic_reshape, V.reshape(4, 6), V, [4, 6])
case(arrays.flatten, V.reshape(-1), V)
case(arrays.flatten, V.reshape(2, 12), V, 1)
case(arrays.flatten, V.reshape(8, 3), V, 0, 1)
case(arrays.transpose, V.transpose(1, 2, 0), V, [1, 2, 0])
case(arrays.transpose, V.transpose(), V)
case(arrays.squeeze, X, X.reshape(1, 4, 1, 6))
case(arrays.squeeze, X.reshape(1, 4, 6), X.reshape(1, 4, 1, 6), axis=[-2])
case(arrays.squeeze, np.ones(1, np.float32), np.ones((1, 1), np.float32))
case(arrays.expand_dims, X[:, None], X, 1)
case(arrays.expand_dims, X[..., None], X, -1)
case(arrays.broadcast_like, np.broadcast_to(X[:1], (4, 6)), X[:1], Y)
case(arrays.broadcast_like, np.broadcast_to(X[0][:, None], (6, 4)), X[0], np.zeros((6, 4), np.float32), [1])
case(arrays.concat, np.concatenate([X, Y]), [X, Y])
case(arrays.concat, np.concatenate([X, Y, P], 1), [X, Y, P], axis=-1)
case(arrays.concat, X, [X], 0)
case(arrays.concat, np.concatenate([X, Y]), values=[X, Y])
case(arrays.stack, np.stack([X, Y], 2), [X, Y], 2)
case(arrays.stack, np.stack([X, Y]), [X, Y])
case(arrays.reverse, X[:, ::-1], X, 1)
case(arrays.reverse, X[::-1, ::-1], X, [0, 1])
case(arrays.pad, np.pad(X, ((1, 0), (2, 3)), constant_values=1.5), X, ((1, 0), (2, 3)), 1.5)
Im = a(2, 3, 4, 5)
case(arrays.reflection_pad2d, np.pad(Im, ((0, 0), (0, 0), (2, 1), (1, 2)), mode="reflect"), Im, [1, 2, 2, 1])
case(arrays.replication_pad2d, np.pad(Im, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge"), Im, 1)
case(arrays.constant_pad2d, np.pad(Im, ((0, 0), (0, 0), (0, 3), (1, 2)), constant_values=2), Im, [1, 2, 0, 3], 2)
case(arrays.zero_pad_2d, np.pad(Im, ((0, 0), (0, 0), (1, 1), (1, 1))), Im, 1)

# Parts

case(arrays.slice, V[0:1, 1:3, :2], V, [0, 1, 0], [1, 2, 2])
case(arrays.slice, V[:, 1:, -2:-1], V, [None, 1, -2], [None, -1, 1])
case(arrays.slice_v2, V[:, 1:4:2], V, [(None, None, None), (1, 4, 2)])
case(arrays.slice_v2, V[:, ::-1, 2::-2], V, [(None, None, None), (None, None, -1), (2, None, -2)])
S = X.copy()
S[1:3, ::2] = 9
case(arrays.slice_update, S, X, np.full((2, 3), 9, np.float32), [(1, 3, 1), (None, None, 2)])
case(arrays.gather, X[[3, 1, 1]], X, np.array([3, 1, 1], np.int32))
case(arrays.gather, V[:, [[0, 3], [2, 2]]], V, np.array([[0, 3], [2, 2]], np.int64), axis=1)
case(arrays.gather, np.stack([V[0, [1, 0]], V[1, [3, 3]]]), V, np.array([[1, 0], [3, 3]], np.int32), batch_dims=1)
case(
    arrays.gather,
    np.stack([V[0][:, [1, 2]], V[1][:, [0, 0]]]),
    V,
    np.array([[1, 2], [0, 0]], np.int32),
    axis=2,
    batch_dims=1,
)
case(arrays.dim_gather, np.take_along_axis(X, i(4, 2, high=6).astype(int), 1), X, 1, i(4, 2, high=6))
case(arrays.gather_nd, X[[1, 3], [5, 0]], X, np.array([[1, 5], [3, 0]], np.int32))
case(arrays.gather_nd, X[[2, 0]], X, np.array([[2], [0]], np.int32))
S = np.zeros((5, 6), np.float32)
np.add.at(S, [4, 0, 4, 2], X)
case(arrays.scatter_nd, S, np.array([[4], [0], [4], [2]], np.int32), X, [5, 6])
S = X.copy()
S[[2, 0]] = Y[:2]
case(arrays.tensor_scatter_nd_update, S, X, np.array([[2], [0]], np.int32), Y[:2])
S = X.copy()
np.add.at(S, [2, 2], Y[:2])
case(arrays.tensor_scatter_nd_add, S, X, np.array([[2], [2]], np.int32), Y[:2])
M = i(4, 6, high=2, dtype=np.int8)
case(arrays.where, np.where(M, X, Y), M, X, Y)
case(arrays.where, np.where(M[:, :1], X, Y), M[:, :1].astype(np.int32), X, Y)
case(arrays.masked_fill, np.where(M, np.float32(4), X), X, M, 4)
case(arrays.sort, np.sort(X), X)
case(arrays.sort, -np.sort(-X, 0), X, axis=0, direction="DESCENDING")
case(arrays.argsort, np.argsort(X).astype(np.int32), X)
case(arrays.argsort, np.argsort(-X, 0).astype(np.int32), X, 0, "DESCENDING")

# Values

case(arrays.one_hot, np.eye(5, dtype=np.float32)[i(4)], i(4), 5, dtype=flow.float32)
case(arrays.one_hot, np.eye(5, dtype=np.int32)[i(4)].T, i(4), 5, axis=0)
case(arrays.one_hot, np.where(np.eye(5)[i(2, 3)], 0.5, -1).astype(np.float32), i(2, 3), 5, 0.5, -1.0)
case(arrays.cast, X.astype(np.int32), X, flow.int32)
case(arrays.cast, X, X, flow.float32)
case(arrays.identity, X, X)
case(arrays.identity_n, [X, Y], [X, Y])
case(arrays.constant, np.full((2, 3), 1.5, np.float32), 1.5, flow.float32, (2, 3))
case(arrays.constant, np.array([3], np.int32), 3)
case(arrays.constant_scalar, np.array([2], np.float64), 2, flow.float64)
case(arrays.constant_like, np.full((4, 6), 7, np.int32), X, 7, flow.int32)
case(arrays.zeros_like, np.zeros((4, 6), np.float32), X)
case(arrays.ones_like, np.ones((4, 6), np.int8), X, flow.int8)
case(arrays.range, np.arange(5), 5)
case(arrays.range, np.arange(1, 7, 2, dtype=np.int32), 1, 7, 2, dtype=flow.int32)
case(arrays.range, np.arange(1, 0, -0.25, dtype=np.float32), 1.0, 0.0, -0.25)
case(arrays.elem_cnt, np.array([24], np.int32), V)
case(arrays.matmul, X @ Y.T, X, Y, transpose_b=True)
case(arrays.matmul, X.T @ Y, X, Y, True)
case(arrays.matmul, V @ V.transpose(0, 2, 1), V, V, False, True)
case(arrays.matmul, X @ a(6, 3), X, a(6, 3))
case(arrays.diag, np.diag(X, 1), X, 1)
case(arrays.diag, np.diag(X[0]), X[0])
D = X - Y
case(arrays.smooth_l1_loss, np.where(np.abs(D) < 0.5, D * D, np.abs(D) - 0.25), X, Y, 0.5)

# nn: activations, norms

for name, f in [
    ("relu", lambda x: np.maximum(x, 0)), ("relu6", lambda x: np.clip(x, 0, 6)),
    ("softsign", lambda x: x / (1 + np.abs(x))), ("softplus", lambda x: np.log1p(np.exp(x))),
    ("mish", lambda x: x * np.tanh(np.log1p(np.exp(x)))), ("gelu", lambda x: x * (1 + erf(x / np.sqrt(2))) / 2),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x))), ("tanh", np.tanh), ("swish", lambda x: x / (1 + np.exp(-x))),
    ("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6), ("hardsigmoid", lambda x: np.clip(x + 3, 0, 6) / 6),
    ("logsigmoid", lambda x: -np.log1p(np.exp(-x))),
    ("selu", lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    ("elu", lambda x: np.where(x > 0, x, np.expm1(x))), ("hardtanh", lambda x: np.clip(x, -1, 1)),
    ("leaky_relu", lambda x: np.where(x > 0, x, 0.2 * x)),
]:  # fmt: skip
    case(getattr(nn, name), f(X), X)
case(nn.leaky_relu, np.where(X > 0, X, 0.5 * X), X, 0.5)
case(nn.elu, np.where(X > 0, X, 2 * np.expm1(X)), X, 2.0)
case(nn.hardtanh, np.clip(X, -0.5, 1.5), X, -0.5, 1.5)
case(nn.softmax, softmax(V), V)
case(nn.softmax, softmax(V, 1), V, axis=1)
case(nn.logsoftmax, np.log(softmax(V, 1)), V, 1)
case(nn.bias_add, Im + a(3)[:, None, None], Im, a(3))
case(nn.bias_add, Im + a(5), Im, a(5), "NHWC")
case(nn.bias_add, X + a(6), X, a(6))
case(nn.moments, [V.mean((0, 1)), V.var((0, 1))], V, [0, 1])
case(nn.moments, [V.mean(-1, keepdims=True), V.var(-1, keepdims=True)], V, -1, True)
C = (slice(None), None, None)
G, H = a(3, low=0.5, high=1.5), a(3, seed=5)
case(nn.batch_normalization, (Im - H[C]) / np.sqrt(G[C] + 1e-5), Im, H, G)
case(nn.batch_normalization, (Im - H[C]) / np.sqrt(G[C] + 0.1) * G[C] + H[C], Im, H, G, H, G, 0.1)
case(nn.batch_normalization, (V - H) / np.sqrt(G + 1e-5) + G, V, H, G, offset=G, axis=-1)


def normed(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


case(nn.layer_norm, normed(V, (1, 2)), V)
case(nn.layer_norm, normed(V, (1, 2)) * G + H, V, G, H)
case(nn.layer_norm, normed(V, (1, 2), 0.1) * V[0] + V[1], V, V[0], V[1], 1, 1, 0.1)
case(nn.layer_norm, normed(V, 2) * G, V, gamma=G, begin_norm_axis=2)
case(nn.dropout, X, X, 0.4, training=False)
case(nn.dropout, X, X, 0.0, training=True)
case(nn.upsample, Im.repeat(2, 2).repeat(3, 3), Im, (2, 3))
case(nn.upsample, Im.repeat(2, 1).repeat(2, 2), Im, data_format="NHWC")
case(
    nn.pixel_shuffle,
    a(1, 8, 2, 3).reshape(1, 2, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 6),
    a(1, 8, 2, 3),
    2,
)


def bilinear_by_2(x):
    """Twice as long along the last axis: each new element lies a quarter from its old one."""
    edge = np.concatenate([x[..., :1], x, x[..., -1:]], -1)
    low, high = 0.25 * edge[..., :-2] + 0.75 * x, 0.75 * x + 0.25 * edge[..., 2:]
    return np.stack([low, high], -1).reshape(*x.shape[:-1], -1)


case(nn.upsample, bilinear_by_2(bilinear_by_2(Im).swapaxes(2, 3)).swapaxes(2, 3), Im, 2, "NCHW", "bilinear")

# Losses

L = i(4, high=6)
own = -np.log(softmax(X)[np.arange(4), L])
case(losses.sparse_softmax_cross_entropy_with_logits, own, L, X)
case(losses.sparse_softmax_cross_entropy_with_logits, own, L[:, None], X)
case(losses.sparse_softmax_cross_entropy_with_logits, own.reshape(2, 2), L.reshape(2, 2), X.reshape(2, 2, 6))
case(losses.sparse_softmax_cross_entropy_with_logits, own, L.astype(np.int8), X)
case(losses.sparse_cross_entropy, -np.log(P[np.arange(4), L]), L, P)
case(losses.sparse_cross_entropy, -np.log(P[np.arange(4), L]), L[:, None].astype(np.int64), P)
case(losses.softmax_cross_entropy_with_logits, -(P * np.log(softmax(X))).sum(1), P, X)
case(losses.sigmoid_cross_entropy_with_logits, np.log1p(np.exp(X)) - X * P, P, X)
for reduction, r in [
    ("none", lambda x: x),
    ("mean", lambda x: x.mean().reshape(1)),
    ("sum", lambda x: x.sum().reshape(1)),
]:
    case(losses.MSELoss, r((X - Y) ** 2), X, Y, reduction)
    case(losses.L1Loss, r(np.abs(X - Y)), X, Y, reduction)
    case(losses.BCELoss, r(-np.log(np.where(Y > 0, P, 1 - P))), P, (Y > 0).astype(np.float32), None, reduction)
    case(losses.BCEWithLogitsLoss, r(P * (np.log1p(np.exp(X)) - X * P)), X, P, P, reduction=reduction)
    case(losses.KLDivLoss, r(P * (np.log(P) - X)), X, P, reduction=reduction)
    case(losses.MarginRankingLoss, r(np.maximum(0, 0.5 - np.sign(P) * (X - Y))), X, Y, np.sign(P), 0.5, reduction)
    far = [np.sqrt((((X - other) + 1e-6) ** 2).sum(1)) for other in (Y, P)]
    case(losses.TripletMarginLoss, r(np.maximum(far[0] - far[1] + 1, 0)), X, Y, P, reduction=reduction)
case(losses.BCEWithLogitsLoss, (-(2 * P * np.log(1 / (1 + np.exp(-X))) + (1 - P) * np.log(1 - 1 / (1 + np.exp(-X))))),
     X, P, pos_weight=np.full(6, 2, np.float32), reduction="none")  # fmt: skip
case(losses.KLDivLoss, (np.exp(Y) * (Y - X)).mean().reshape(1), X, Y, True)

# Convolutions and pools: loops over windows of an image with padding around it


def sides(padding, size, k, s):
    """Padding by the words of the older API, worked out one output at a time."""
    if not isinstance(padding, str):
        return padding
    if padding == "VALID":
        return 0, 0
    out = (size + s - 1) // s
    need = max(0, (out - 1) * s + k - size)
    return (need // 2, need - need // 2) if padding == "SAME_UPPER" else (need - need // 2, need // 2)


def each_window(x, kernel, stride, around, dilation, fill):
    n = len(kernel)
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *around], constant_values=fill)
    outs = [(x.shape[2 + d] - (kernel[d] - 1) * dilation[d] - 1) // stride[d] + 1 for d in range(n)]
    for place in itertools.product(*map(range, outs)):
        key = tuple(slice(p * s, p * s + (k - 1) * dl + 1, dl) for p, s, k, dl in zip(place, stride, kernel, dilation))
        yield outs, place, x[(slice(None), slice(None), *key)]


def convolved(x, w, stride, padding, dilation=None, groups=1):
    n = w.ndim - 2
    stride = [stride] * n if isinstance(stride, int) else stride
    dilation = [1] * n if dilation is None else [dilation] * n if isinstance(dilation, int) else dilation
    around = [
        sides(
            padding if isinstance(padding, str) else padding[2 + d],
            x.shape[2 + d],
            (w.shape[2 + d] - 1) * dilation[d] + 1,
            stride[d],
        )
        for d in range(n)
    ]
    result, per = None, w.shape[0] // groups
    for outs, place, window in each_window(x, w.shape[2:], stride, around, dilation, 0):
        result = np.zeros((x.shape[0], w.shape[0], *outs)) if result is None else result
        for g in range(groups):
            part = window[:, g * w.shape[1] : (g + 1) * w.shape[1]]
            result[(slice(None), slice(g * per, (g + 1) * per), *place)] = np.tensordot(
                part, w[g * per : (g + 1) * per], ([*range(1, n + 2)],) * 2
            )
    return result


def pooled(kind, x, kernel, stride, padding, ceil=False):
    n = x.ndim - 2
    kernel, stride = ([v] * n if isinstance(v, int) else v for v in (kernel, stride))
    around = [
        sides(padding if isinstance(padding, str) else padding[2 + d], x.shape[2 + d], kernel[d], stride[d])
        for d in range(n)
    ]
    if ceil:
        around = [(b, e + (-(size + b + e - k)) % s) for (b, e), size, k, s in zip(around, x.shape[2:], kernel, stride)]
    result = None
    for outs, place, window in each_window(x, kernel, stride, around, [1] * n, np.nan):
        result = np.zeros((*x.shape[:2], *outs)) if result is None else result
        flat = window.reshape(*x.shape[:2], -1)
        result[(slice(None), slice(None), *place)] = np.nanmax(flat, -1) if kind == "max" else np.nanmean(flat, -1)
    return result


def last(x):
    """Channels to the end."""
    return np.moveaxis(x, 1, -1)


Im = a(2, 4, 6, 7)
W = a(6, 4, 3, 2, seed=3) / 4
for padding in ("VALID", "SAME", "same_lower", "SAME_UPPER", ((0, 0), (0, 0), (1, 2), (0, 1)), (0, 0, 1, 1)):
    word = padding.upper() if isinstance(padding, str) else [(p, p) if isinstance(p, int) else p for p in padding]
    for stride in (1, 2, [2, 3]):
        case(windows.conv2d, convolved(Im, W, stride, word), Im, W, stride, padding)
case(windows.conv2d, last(convolved(Im, W, 2, "SAME")), last(Im), last(W), 2, "SAME", "NHWC")
case(
    windows.conv2d,
    last(convolved(Im, W, 1, [(0, 0), (0, 0), (0, 2), (1, 1)])),
    last(Im),
    last(W),
    1,
    [0, (0, 2), (1, 1), 0],
    "NHWC",
)
case(windows.conv2d, convolved(Im, W, 1, "SAME", [2, 1]), Im, W, 1, "SAME", dilations=[2, 1])
case(windows.conv2d, convolved(Im, W[:, :2], 1, "VALID", None, 2), Im, W[:, :2], 1, "VALID", groups=2)
case(windows.conv1d, convolved(a(3, 4, 9), a(2, 4, 4), 2, "SAME"), a(3, 4, 9), a(2, 4, 4), 2, "SAME")
case(
    windows.conv1d,
    last(convolved(a(3, 4, 9), a(2, 4, 3), 1, "VALID", 2)),
    last(a(3, 4, 9)),
    last(a(2, 4, 3)),
    1,
    "VALID",
    "NWC",
    2,
)
case(
    windows.conv3d,
    convolved(a(2, 2, 4, 5, 3), a(3, 2, 2, 2, 3), 1, "SAME"),
    a(2, 2, 4, 5, 3),
    a(3, 2, 2, 2, 3),
    1,
    "SAME",
)
case(windows.conv3d, last(convolved(a(2, 2, 4, 5, 3), a(3, 2, 2, 2, 3), [2, 1, 1], "VALID")), last(a(2, 2, 4, 5, 3)),
     last(a(3, 2, 2, 2, 3)), [2, 1, 1], "VALID", "NDHWC")  # fmt: skip
case(windows.compat_conv2d, convolved(Im, W, 1, "SAME_UPPER"), Im, W, 1, "SAME")
case(
    windows.same_padding, np.pad(Im, ((0, 0), (0, 0), (1, 1), (1, 0))), Im, "SAME_LOWER", "NCHW", (3, 2), (1, 1), (1, 1)
)
case(
    windows.same_padding,
    np.pad(last(Im), ((0, 0), (1, 1), (0, 1), (0, 0))),
    last(Im),
    "SAME_UPPER",
    "NHWC",
    (3, 2),
    1,
    1,
)


def transposed(x, w, stride, around, sizes):
    """Every element of x spreads w over the result, of which around and sizes cut a part."""
    stride = [stride] * 2 if isinstance(stride, int) else stride
    full = np.zeros(
        (x.shape[0], w.shape[1], *[(n - 1) * s + k + 8 for n, s, k in zip(x.shape[2:], stride, w.shape[2:])])
    )
    for y0, x0 in itertools.product(range(x.shape[2]), range(x.shape[3])):
        spread = np.einsum("nc,cohw->nohw", x[:, :, y0, x0], w)
        full[:, :, y0 * stride[0] : y0 * stride[0] + w.shape[2], x0 * stride[1] : x0 * stride[1] + w.shape[3]] += spread
    return full[:, :, around[0] : around[0] + sizes[0], around[1] : around[1] + sizes[1]]


J, U = a(2, 3, 4, 5), a(3, 2, 3, 3, seed=4)
case(windows.conv2d_transpose, transposed(J, U, 1, (0, 0), (6, 7)), J, U, None, 1, "VALID")
case(windows.conv2d_transpose, transposed(J, U, 2, (0, 0), (9, 11)), J, U, None, [2, 2])
case(windows.conv2d_transpose, transposed(J, U, 2, (0, 0), (10, 12)), J, U, [2, 2, 10, 12], 2, "VALID")
case(windows.conv2d_transpose, transposed(J, U, 2, (0, 0), (8, 10)), J, U, None, 2, "SAME")
case(windows.conv2d_transpose, transposed(J, U, 2, (1, 1), (7, 9)), J, U, [2, 2, 7, 9], 2, "SAME")
case(windows.conv2d_transpose, transposed(J, U[..., :2, :2], 1, (0, 0), (4, 5)), J, U[..., :2, :2], None, 1, "SAME")
case(windows.conv2d_transpose, transposed(J, U, 2, (1, 0), (7, 11)), J, U, None, 2, ((0, 0), (0, 0), (1, 1), (0, 0)))
case(
    windows.conv2d_transpose,
    last(transposed(J, U, 2, (0, 0), (8, 10))),
    last(J),
    last(U),
    [2, 8, 10, 2],
    2,
    "SAME",
    "NHWC",
)
case(windows.deconv2d, transposed(J, U, 1, (0, 0), (6, 7)), strides=1, input=J, filters=U)

for kind, f2, f3 in [("max", windows.max_pool2d, windows.max_pool3d), ("avg", windows.avg_pool2d, windows.avg_pool3d)]:
    for padding in ("VALID", "SAME", "SAME_UPPER", ((0, 0), (0, 0), (1, 0), (0, 1))):
        for ksize, stride in ((2, 2), (3, 2), ([2, 3], [1, 2])):
            case(f2, pooled(kind, Im, ksize, stride, padding), Im, ksize, stride, padding)
    case(f2, last(pooled(kind, Im, 3, 2, "SAME")), last(Im), 3, 2, "SAME", "NHWC")
    case(f2, pooled(kind, Im, 3, 2, "VALID", True), Im, 3, 2, "VALID", ceil_mode=True)
    case(f2, pooled(kind, Im, 3, 2, [(0, 0), (0, 0), (1, 1), (1, 1)], True), Im, 3, 2, [0, 0, 1, 1], ceil_mode=True)
    T = a(2, 2, 4, 5, 3)
    case(f3, pooled(kind, T, 2, 2, "SAME"), T, 2, 2, "SAME")
    case(f3, last(pooled(kind, T, [3, 2, 2], 1, "VALID")), last(T), [3, 2, 2], 1, "VALID", "NDHWC")
