"""Images read between their pixels, pixel by pixel, and max unpooling."""

import itertools

import numpy as np
from op_table import a, i, row, wrong


def place(x, size, align):
    return (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2


def bounded(x, size, padding, align):
    """A coordinate moved into the image, where padding says so."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        low, high = (0, size - 1) if align else (-0.5, size - 0.5)
        if high <= low:
            x = 0.0
        else:
            period = 2 * (high - low)
            x = abs((x - low) % period)
            x = low + (x if x <= high - low else period - x)
    return min(max(x, 0), size - 1)


def cubic(s):
    """Keys' weights of the pixels at -1, 0, 1, 2 for a place s behind 0."""
    A = -0.75
    w = []
    for d in (1 + s, s, 1 - s, 2 - s):
        w.append((A + 2) * d**3 - (A + 3) * d**2 + 1 if d <= 1 else A * d**3 - 5 * A * d**2 + 8 * A * d - 4 * A)
    return w


def sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    axes = x.ndim - 2
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for n, at in itertools.product(range(x.shape[0]), np.ndindex(grid.shape[1:-1])):
        taps = []
        for k in range(axes):
            size = x.shape[2 + k]
            v = place(grid[(n, *at)][axes - 1 - k], size, align_corners)
            if mode == "nearest":
                pixels = [(np.round(bounded(v, size, padding_mode, align_corners)), 1.0)]
            elif mode == "bilinear":
                v = bounded(v, size, padding_mode, align_corners)
                f = np.floor(v)
                pixels = [(f, 1 - (v - f)), (f + 1, v - f)]
            else:
                f = np.floor(v)
                near = [bounded(f + d, size, padding_mode, align_corners) for d in (-1, 0, 1, 2)]
                pixels = list(zip(near, cubic(v - f)))
            taps.append([(int(p), w) for p, w in pixels if 0 <= p <= size - 1])
        for combination in itertools.product(*taps):
            weight = np.prod([w for _, w in combination])
            out[(n, slice(None), *at)] += weight * x[(n, slice(None), *(p for p, _ in combination))]
    return out


image, volume = a(2, 3, 4, 5), a(2, 2, 3, 4, 3)
grid, grid3 = a(2, 3, 4, 2, low=-2.7, high=2.7), a(2, 2, 3, 2, 3, low=-1.7, high=1.7)
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        for align in (False, True):
            options = {"mode": mode, "padding_mode": padding, "align_corners": align}
            row("grid_sample", sample, image, grid, rtol=2e-4, **options)
            if mode != "bicubic":
                row("grid_sample", sample, volume, grid3, rtol=2e-4, **options)
row("grid_sample", sample, a(1, 1, 1, 1), a(1, 2, 2, 2), "bilinear", "reflection", True)
row("grid_sample", sample, image, grid, dtypes=("float16",), rtol=2e-2)
# Corners that are exactly on pixels, and halves between: to even, as round() does.
corners = np.array([[[[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0], [0.25, -0.25]]]])
for mode in ("bilinear", "nearest", "bicubic"):
    row("grid_sample", sample, a(1, 2, 3, 5), corners, mode, "zeros", True, rtol=1e-5)
row("grid_sample", lambda x, g: np.zeros((1, 2, 1, 1)), a(1, 2, 3, 5), np.full((1, 1, 1, 2), np.nan))
wrong("grid_sample", image, grid[:1], error=ValueError, says=r"input is \[2, 3, 4, 5\], grid \[1, 3, 4, 2\]")
wrong("grid_sample", image, grid3, error=ValueError, says="it takes")
wrong("grid_sample", a(2, 3), grid, error=ValueError, says="it takes")
wrong("grid_sample", a(2, 3, 0, 5), grid, error=ValueError, says="no pixels")
wrong("grid_sample", image, grid, "cubic", error=ValueError, says="mode is 'cubic'")
wrong("grid_sample", volume, grid3, "bicubic", error=ValueError, says="is for images")
wrong("grid_sample", image, grid, "nearest", "edge", error=ValueError, says="padding_mode is 'edge'")
wrong("grid_sample", i(2, 3, 4, 5), grid, error=TypeError, says="input is int64")


def affine(theta, size, align_corners=False):
    sizes = size[2:]
    axes = [(np.linspace(-1, 1, s) if s > 1 else np.zeros(1)) * (1 if align_corners else (s - 1) / s) for s in sizes]
    places = np.stack([*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(sizes)], -1)
    return np.einsum("n...ij,n...j->n...i", theta[(slice(None), *[None] * len(sizes))], places[None])


for align in (False, True):
    row("affine_grid", affine, a(3, 2, 3), [3, 1, 4, 5], align, rtol=1e-5)
    row("affine_grid", affine, a(2, 3, 4), [2, 5, 1, 3, 2], align, rtol=1e-5)
wrong("affine_grid", a(3, 2, 3), [2, 1, 4, 5], error=ValueError, says=r"theta is \[3, 2, 3\], size \[2, 1, 4, 5\]")
wrong("affine_grid", a(3, 2, 3), [3, 1, 0, 5], error=ValueError, says="at least 1")
wrong("affine_grid", i(3, 2, 3), [3, 1, 4, 5], error=TypeError, says="floating")


def unpool(x, indices, kernel_size, stride=None, padding=0, output_size=None):
    n = {3: 1, 4: 2, 5: 3}[x.ndim]
    k, p = np.broadcast_to(kernel_size, n), np.broadcast_to(padding, n)
    s = k if stride is None else np.broadcast_to(stride, n)
    size = [(x.shape[2 + d] - 1) * s[d] - 2 * p[d] + k[d] for d in range(n)]
    size = list(output_size)[-n:] if output_size is not None else [int(v) for v in size]
    y = np.zeros((*x.shape[:2], int(np.prod(size))))
    for at in np.ndindex(x.shape):
        y[(*at[:2], indices[at])] = x[at]
    return y.reshape(*x.shape[:2], *size)


def places(*shape, below):
    """Different ones in each plane."""
    rng = np.random.default_rng(below)
    planes = [rng.permutation(below)[: int(np.prod(shape[2:]))] for _ in range(shape[0] * shape[1])]
    return np.array(planes).reshape(shape)


row("max_unpool1d", unpool, a(2, 3, 4), places(2, 3, 4, below=8), 2)
row("max_unpool1d", lambda x, at, *r: unpool(x[None], at[None], *r)[0], a(3, 4), places(1, 3, 4, below=8)[0], 2)
row("max_unpool1d", unpool, a(2, 3, 4), places(2, 3, 4, below=9), 2, None, 0, [9])
row("max_unpool2d", unpool, a(2, 3, 2, 3), places(2, 3, 2, 3, below=24), 2)
row("max_unpool2d", unpool, a(2, 3, 2, 2), places(2, 3, 2, 2, below=9), 3, 2, 1)
row("max_unpool2d", unpool, a(2, 3, 2, 2), places(2, 3, 2, 2, below=20), [2, 2], [2, 2], [0, 0], [2, 3, 4, 5])
row("max_unpool3d", unpool, a(2, 1, 2, 1, 2), places(2, 1, 2, 1, 2, below=32), 2)
for n, x in ((1, a(2, 3, 4)), (2, a(2, 3, 2, 2)), (3, a(2, 3, 2, 2, 2))):
    op, at = f"max_unpool{n}d", np.zeros(x.shape, np.int64)
    wrong(op, x, at[:1], 2, error=ValueError, says="indices has shape")
    wrong(op, x, at.astype(np.int32), 2, error=TypeError, says="int64")
    wrong(op, x, at + 100, 2, error=IndexError, says="100")
    few = (0, 0, 0) if n == 2 else (0, 0)
    wrong(op, x[few], at[few], 2, error=ValueError, says="takes")
    wrong(op, x, at, 2, None, 0, [30] * n, error=ValueError, says="output_size is")
    wrong(op, x, at, 0, error=ValueError, says="kernel_size")
