"""Convolutions and pools against loops over windows."""

import itertools

import numpy as np
from op_table import ALL_FLOATS, a, i, row, wrong


def tuple_of(v, n):
    return (v,) * n if isinstance(v, int) else tuple(v)


def windows(x, kernel, stride, padding, dilation, fill, ceil=False):
    """Yields (place, window) of the last len(kernel) axes; padding: before and behind each axis."""
    n = len(kernel)
    size = []
    for d in range(n):
        room = x.shape[d - n] + padding[d] + padding[n + d] - dilation[d] * (kernel[d] - 1) - 1
        out = (room + (stride[d] - 1 if ceil else 0)) // stride[d] + 1
        if ceil and (out - 1) * stride[d] >= x.shape[d - n] + padding[d]:
            out -= 1
        size.append(out)
    more = [stride[d] if ceil else 0 for d in range(n)]
    p = np.pad(
        x, [(0, 0)] * (x.ndim - n) + [(padding[d], padding[n + d] + more[d]) for d in range(n)], constant_values=fill
    )
    for place in itertools.product(*map(range, size)):
        cut = tuple(slice(o * s, o * s + dl * (k - 1) + 1, dl) for o, s, k, dl in zip(place, stride, kernel, dilation))
        yield size, place, p[(..., *cut)]


def conv(n):
    def f(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
        if x.ndim == n + 1:
            return f(x[None], w, bias, stride, padding, dilation, groups)[0]
        stride, dilation, padding = tuple_of(stride, n), tuple_of(dilation, n), tuple_of(padding, n)
        padding = padding * 2 if len(padding) == n else padding
        out, per, fan = None, x.shape[1] // groups, w.shape[0] // groups
        for size, place, window in windows(x, w.shape[2:], stride, padding, dilation, 0):
            out = np.zeros((x.shape[0], w.shape[0], *size)) if out is None else out
            for g in range(groups):
                part = window[:, g * per : (g + 1) * per].reshape(x.shape[0], -1)
                out[(slice(None), slice(g * fan, (g + 1) * fan), *place)] = (
                    part @ w[g * fan : (g + 1) * fan].reshape(fan, -1).T
                )
        return out if bias is None else out + bias.reshape(-1, *(1,) * n)

    return f


def conv_transpose(n):
    def f(x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        if x.ndim == n + 1:
            return f(x[None], w, bias, stride, padding, output_padding, groups, dilation)[0]
        stride, dilation, padding, more = (tuple_of(v, n) for v in (stride, dilation, padding, output_padding))
        kernel, per, fan = w.shape[2:], x.shape[1] // groups, w.shape[1]
        full = [
            (s - 1) * st + d * (k - 1) + 1 + m for s, st, d, k, m in zip(x.shape[2:], stride, dilation, kernel, more)
        ]
        out = np.zeros((x.shape[0], fan * groups, *full))
        for place in itertools.product(*map(range, x.shape[2:])):
            cut = tuple(slice(o * s, o * s + d * (k - 1) + 1, d) for o, s, k, d in zip(place, stride, kernel, dilation))
            for g in range(groups):
                at = (slice(None), slice(g * fan, (g + 1) * fan), *cut)
                out[at] += np.einsum(
                    "nc,co...->no...",
                    x[(slice(None), slice(g * per, (g + 1) * per), *place)],
                    w[g * per : (g + 1) * per],
                )
        out = out[(slice(None), slice(None), *(slice(p, size - p) for p, size in zip(padding, full)))]
        return out if bias is None else out + bias.reshape(-1, *(1,) * n)

    return f


F32 = {"dtypes": ALL_FLOATS}
row("conv1d", conv(1), a(2, 3, 9), a(4, 3, 3), a(4), **F32)
row("conv1d", conv(1), a(2, 4, 9), a(6, 2, 3), None, 2, 1, 2, 2)
row("conv1d", conv(1), a(4, 9), a(6, 4, 3))
row("conv2d", conv(2), a(2, 3, 7, 6), a(4, 3, 3, 3), a(4), **F32)
row("conv2d", conv(2), a(2, 3, 7, 6), a(5, 3, 3, 2), None, (2, 1), (1, 0))
row("conv2d", conv(2), a(2, 3, 7, 6), a(5, 3, 2, 2), None, 1, (0, 1, 1, 0))
row("conv2d", conv(2), a(2, 4, 7, 6), a(6, 2, 3, 3), a(6), 1, 2, 2, 2)
row("conv2d", conv(2), a(2, 16, 7, 6), a(16, 1, 3, 3), a(16), 1, 1, 1, 16)
row("conv2d", conv(2), a(1, 20, 8, 8), a(33, 20, 1, 1), None, dtypes=("float32", "float64"), rtol=1e-5)
row("conv2d", conv(2), a(3, 7, 6), a(4, 3, 3, 3), a(4))
row("conv2d", lambda x, w: np.zeros((0, 4, 5, 4)), a(0, 3, 7, 6), a(4, 3, 3, 3))
row("conv3d", conv(3), a(2, 3, 4, 5, 6), a(4, 3, 2, 3, 2), a(4), (1, 2, 1), (1, 0, 1), **F32)
row("conv3d", conv(3), a(1, 4, 4, 5, 6), a(4, 2, 2, 2, 2), None, 1, 1, (2, 1, 1), 2)
row("conv_transpose1d", conv_transpose(1), a(2, 3, 5), a(3, 4, 3), a(4), 2, 1, 1)
row("conv_transpose1d", conv_transpose(1), a(4, 5), a(4, 3, 3), None, 1, 0, 0, 2, 2)
row("conv_transpose2d", conv_transpose(2), a(2, 3, 4, 5), a(3, 4, 3, 3), a(4), **F32)
row("conv_transpose2d", conv_transpose(2), a(2, 3, 4, 5), a(3, 4, 3, 2), a(4), (2, 3), (1, 0), (1, 2))
row("conv_transpose2d", conv_transpose(2), a(2, 4, 4, 5), a(4, 3, 3, 3), None, 2, 1, 0, 2, 2)
row("conv_transpose2d", conv_transpose(2), a(2, 4, 4, 5), a(4, 3, 2, 2), a(6), 1, 0, 2, 2, 3)
row("conv_transpose3d", conv_transpose(3), a(1, 2, 2, 3, 4), a(2, 3, 2, 2, 2), a(3), (1, 2, 1), (0, 1, 0))

for n, x, w in ((1, (2, 3, 9), (4, 3, 3)), (2, (2, 3, 7, 6), (4, 3, 3, 3)), (3, (1, 3, 4, 4, 4), (4, 3, 2, 2, 2))):
    op = f"conv{n}d"
    wrong(op, a(*x), a(w[0], 2, *w[2:]), error=ValueError, says="channels do not fit")
    wrong(op, a(*x), a(*w), a(3), error=ValueError, says="bias is")
    wrong(op, a(*x), a(*w), None, 0, error=ValueError, says="stride")
    wrong(op, a(*x), a(*w), None, 1, -1, error=ValueError, says="padding")
    wrong(op, a(*x), a(*w), None, 1, 0, 9, error=ValueError, says="larger than the padded input")
    wrong(op, a(*x), a(*w), groups=2, error=ValueError, says="channels do not fit")
    wrong(op, a(*x[1:]), a(*w[1:]), error=ValueError, says="axes")
    wrong(op, i(*x), i(*w), error=TypeError, says="floating")
    op = f"conv_transpose{n}d"
    w = (3, 4, *w[2:])
    wrong(op, a(*x), a(2, *w[1:]), error=ValueError, says="channels do not fit")
    wrong(op, a(*x), a(*w), a(3), error=ValueError, says="bias is")
    wrong(op, a(*x), a(*w), None, 1, 9, error=ValueError, says="the size")
    wrong(op, a(*x), a(*w), None, 2, 0, 2, error=ValueError, says="output_padding")


def pool(n, fold, fill):
    def f(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, **rest):
        kernel = tuple_of(kernel_size, n)
        stride = kernel if stride is None else tuple_of(stride, n)
        p = tuple_of(padding, n) * 2
        out = None
        for size, place, window in windows(x, kernel, stride, p, tuple_of(dilation, n), fill, ceil_mode):
            out = np.zeros((*x.shape[: x.ndim - n], *size)) if out is None else out
            out[(..., *place)] = fold(window, tuple(range(-n, 0)), **rest)
        return out

    return f


def max_pool(n):
    return pool(n, lambda w, axes: w.max(axes), -np.inf)


def max_index(n):
    def f(x, *args, **kwargs):
        places = np.broadcast_to(np.arange(np.prod(x.shape[-n:])).reshape(x.shape[-n:]), x.shape)
        y = max_pool(n)(x, *args, **kwargs)
        # Elements are distinct: the place of a maximum is that of its value.
        flat, result = x.reshape(*x.shape[: x.ndim - n], -1), y.reshape(*y.shape[: y.ndim - n], -1)
        hit = flat[..., None, :] == result[..., None]
        return y, (hit * places.reshape(flat.shape)[..., None, :]).sum(-1).reshape(y.shape).astype(np.int64)

    return f


def avg_pool(n):
    def f(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        sums = pool(n, lambda w, axes: w.sum(axes), 0)
        total = sums(x, kernel_size, stride, padding, 1, ceil_mode)
        if divisor_override:
            return total / divisor_override
        ones = np.ones(x.shape[-n:])
        if count_include_pad:  # windows count up to the padding's end
            ones = np.pad(ones, [(p, p) for p in tuple_of(padding, n)], constant_values=1)
            padding = 0
            count = sums(ones, kernel_size, stride, 0, 1, ceil_mode)
            return total / count[tuple(slice(0, s) for s in total.shape[-n:])]
        return total / sums(ones, kernel_size, stride, padding, 1, ceil_mode)

    return f


X = {1: (2, 3, 9), 2: (2, 3, 7, 6), 3: (2, 2, 5, 6, 4)}
for n, x in X.items():
    row(f"max_pool{n}d", max_pool(n), a(*x), 2, dtypes=ALL_FLOATS)
    row(f"max_pool{n}d", max_pool(n), a(*x), 3, 2, 1)
    row(f"max_pool{n}d", max_pool(n), a(*x), 2, 1, 1, 2)
    row(f"max_pool{n}d", max_pool(n), a(*x), 3, 2, 1, 1, True)
    row(f"max_pool{n}d", max_pool(n), a(*x[1:]), 2)
    row(f"max_pool{n}d_with_indices", max_index(n), a(*x), 2)
    row(f"max_pool{n}d_with_indices", max_index(n), a(*x), 3, 2, 1)
    row(f"avg_pool{n}d", avg_pool(n), a(*x), 2, dtypes=ALL_FLOATS)
    row(f"avg_pool{n}d", avg_pool(n), a(*x), 3, 2, 1)
    row(f"avg_pool{n}d", avg_pool(n), a(*x), 3, 2, 1, False, False)
    row(f"avg_pool{n}d", avg_pool(n), a(*x), 3, 2, 1, True, False)
    row(f"avg_pool{n}d", avg_pool(n), a(*x[1:]), 2)
    if n > 1:
        row(f"avg_pool{n}d", avg_pool(n), a(*x), 3, 2, 1, False, True, 5)
        row(f"avg_pool{n}d", avg_pool(n), a(*x), 3, 2, divisor_override=7)
wrong("max_pool2d", a(1, 2, 0, 4), 2, padding=1, error=ValueError, says="no element of x")
wrong("max_pool1d", a(1, 2, 2), 2, padding=1, dilation=3, error=ValueError, says="no element of x")
row("max_pool2d", max_pool(2), a(1, 2, 40, 40), 20)
row("max_pool2d", max_pool(2), a(2, 3, 7, 6), (3, 2), (1, 2), (1, 0))


def adaptive(n, fold):
    def f(x, output_size):
        size = (
            tuple_of(output_size, n)
            if not isinstance(output_size, list) or len(output_size) == n
            else tuple(output_size) * n
        )
        out = np.zeros((*x.shape[: x.ndim - n], *size))
        for place in itertools.product(*map(range, size)):
            cut = tuple(slice(o * s // k, -(-(o + 1) * s // k)) for o, s, k in zip(place, x.shape[-n:], size))
            out[(..., *place)] = fold(x[(..., *cut)], tuple(range(-n, 0)))
        return out

    return f


def adaptive_max(n):
    def f(x, output_size):
        y = adaptive(n, lambda w, axes: w.max(axes))(x, output_size)
        flat, result = x.reshape(*x.shape[: x.ndim - n], 1, -1), y.reshape(*y.shape[: y.ndim - n], -1, 1)
        return y, (flat == result).argmax(-1).reshape(y.shape)

    return f


for n, x in X.items():
    for size in (1, 2, 3, tuple(range(2, 2 + n)) if n > 1 else 4):
        row(f"adaptive_avg_pool{n}d", adaptive(n, lambda w, axes: w.mean(axes)), a(*x), size, dtypes=ALL_FLOATS)
        row(f"adaptive_max_pool{n}d", adaptive_max(n), a(*x), size)
    row(f"adaptive_avg_pool{n}d", adaptive(n, lambda w, axes: w.mean(axes)), a(*x[1:]), 2)
for n in (1, 2):
    row(
        f"lp_pool{n}d",
        lambda x, p, *rest, n=n: pool(n, lambda w, axes: (w**p).sum(axes), 0)(x, *rest) ** (1 / p),
        a(*X[n], low=0.1),
        3.0,
        2,
    )
    row(
        f"lp_pool{n}d",
        lambda x, p, *rest, n=n: pool(n, lambda w, axes: (w**p).sum(axes), 0)(x, *rest) ** (1 / p),
        a(*X[n]),
        2.0,
        3,
        2,
    )
    wrong(f"lp_pool{n}d", a(*X[n]), 0.0, 2, error=ValueError, says="norm_type")
for kind, n in itertools.product(("max", "avg"), X):
    op = f"{kind}_pool{n}d"
    wrong(op, a(*X[n]), 0, error=ValueError, says="kernel_size")
    wrong(op, a(*X[n]), 2, 0, error=ValueError, says="stride")
    wrong(op, a(*X[n]), 2, 2, 2, error=ValueError, says="more than half")
    wrong(op, a(*X[n]), 20, error=ValueError, says="larger than the padded input")
    wrong(op, a(*X[n][2:]), 2, error=ValueError, says="axes")
    wrong(op, i(*X[n]), 2, error=TypeError, says="floating")
    wrong(f"adaptive_{kind}_pool{n}d", a(*X[n]), 0, error=ValueError, says="output_size")
    wrong(f"adaptive_{kind}_pool{n}d", a(*X[n][2:]), 2, error=ValueError, says="axes")
