"""Padding, interpolation and rearrangements of images."""

import numpy as np
from op_table import ALL_FLOATS, a, i, m, row, wrong
from values_conv import adaptive


def pad(x, pad, mode="constant", value=None):
    widths = [(0, 0)] * x.ndim
    cut = [slice(None)] * x.ndim
    for k in range(len(pad) // 2):
        before, after = pad[2 * k], pad[2 * k + 1]
        d = x.ndim - 1 - k
        widths[d] = (max(before, 0), max(after, 0))
        cut[d] = slice(max(-before, 0), (x.shape[d] + widths[d][0] + widths[d][1] + min(after, 0)) or None)
    how = {"constant": {"constant_values": value or 0}, "reflect": {}, "replicate": {}, "circular": {}}[mode]
    p = np.pad(x, widths, {"replicate": "edge", "circular": "wrap"}.get(mode, mode), **how)
    return p[tuple(slice(c.start, None if c.stop is None else c.stop) for c in cut)]


for p in ([1, 2], [0, 0], [2, 0, 1, 3], [-1, 2], [1, -2, -1, 0], [0, 1, 0, 0, 1, 1]):
    row("pad", pad, a(4, 5, 6), p, dtypes=ALL_FLOATS)
    row("pad", pad, a(4, 5, 6), p, "constant", 1.5)
    row("pad", pad, i(4, 5, 6), p, "constant", 3)
for mode in ("reflect", "replicate", "circular"):
    for p in ([1, 2], [2, 0, 1, 3], [3, 3, 2, 2, 1, 1]):
        row("pad", pad, a(4, 5, 6), p, mode, dtypes=ALL_FLOATS)
row("pad", pad, a(4, 5), [9, 8], "replicate")
row("pad", pad, m(3, 2), [1, 1])
row("pad", pad, a(0, 3), [1, 1, 2, 0])
wrong("pad", a(2, 3), [1], error=ValueError, says="two for each axis")
wrong("pad", a(2, 3), [1, 1, 1, 1, 1, 1], error=ValueError, says="at most")
wrong("pad", a(2, 3), [-2, -2], error=ValueError, says="crops more")
wrong("pad", a(2, 3), [3, 0], "reflect", error=ValueError, says="only 2")
wrong("pad", a(2, 3), [4, 0], "circular", error=ValueError, says="only 3")
wrong("pad", a(2, 3), [1, 0], "mirror", error=ValueError, says="mode is")
wrong("pad", a(2, 3), [1, 0], "reflect", 2.0, error=ValueError, says="value is for")


def matrix(n, m, kind, corners, scale):
    """The m x n matrix that takes an axis to its new size."""
    w = np.zeros((m, n))
    for o in range(m):
        if kind.startswith("nearest"):
            w[o, min(int(np.floor((o + (0.5 if kind.endswith("exact") else 0)) * scale)), n - 1)] = 1
            continue
        at = o * scale if corners else (o + 0.5) * scale - 0.5
        if kind == "linear":
            at = max(at, 0)
            k = min(int(at), n - 1)
            w[o, k] += 1 - (at - k)
            w[o, min(k + 1, n - 1)] += at - k
        else:
            k = int(np.floor(at))
            for j in range(-1, 3):
                d = abs(at - (k + j))
                c = 1.25 * d**3 - 2.25 * d**2 + 1 if d <= 1 else -0.75 * (d**3 - 5 * d**2 + 8 * d - 4)
                w[o, np.clip(k + j, 0, n - 1)] += c
    return w


def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None):
    n = x.ndim - 2
    given = scale_factor if not recompute_scale_factor else None
    if size is None:
        size = [int(np.floor(s * scale_factor)) for s in x.shape[2:]]
    size = [size] * n if isinstance(size, int) else list(size)
    if mode == "area":
        return adaptive(n, lambda w, axes: w.mean(axes))(x, tuple(size))
    kind = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    for d in range(n):
        old, new = x.shape[2 + d], size[d]
        scale = ((old - 1) / (new - 1) if new > 1 else 0) if align_corners else 1 / given if given else old / new
        x = np.moveaxis(np.moveaxis(x, 2 + d, -1) @ matrix(old, new, kind, align_corners, scale).T, -1, 2 + d)
    return x


HALF = {"dtypes": ALL_FLOATS, "rtol": 2e-2}
for n, modes in ((1, ["linear"]), (2, ["bilinear", "bicubic"]), (3, ["trilinear"])):
    x = a(2, 3, *(5, 4, 3)[:n])
    for mode in ("nearest", "nearest-exact", "area"):
        row("interpolate", interpolate, x, 7, None, mode)
        row("interpolate", interpolate, x, 2, None, mode)
    row("interpolate", interpolate, x, 6, **HALF)
    row("interpolate", interpolate, x, scale_factor=2.0)
    for mode in modes:
        for corners in (False, True):
            row("interpolate", interpolate, x, 7, None, mode, corners)
            row("interpolate", interpolate, x, 2, None, mode, corners)
            row("interpolate", interpolate, x, 1, None, mode, corners)
        row("interpolate", interpolate, x, None, 1.7, mode)
        row("interpolate", interpolate, x, None, 1.7, mode, False, True)
        row("interpolate", interpolate, x, 6, None, mode, **HALF)
row("interpolate", interpolate, a(1, 2, 4, 5), (8, 3), None, "bilinear")
wrong("interpolate", a(2, 3), 4, error=ValueError, says="takes")
wrong("interpolate", a(2, 3, 4), error=ValueError, says="either size or scale_factor")
wrong("interpolate", a(2, 3, 4), 4, 2.0, error=ValueError, says="either size or scale_factor")
wrong("interpolate", a(2, 3, 4), 4, None, "bilinear", error=ValueError, says="does not apply to")
wrong("interpolate", a(2, 3, 4), 4, None, "cubist", error=ValueError, says="does not apply to")
wrong("interpolate", a(2, 3, 4), 0, error=ValueError, says="at least 1")
wrong("interpolate", a(2, 3, 4), None, -1.0, error=ValueError, says="positive")
wrong("interpolate", a(2, 3, 4), 4, None, "nearest", True, error=ValueError, says="align_corners")
wrong("interpolate", i(2, 3, 4), 4, error=TypeError, says="floating")


def pixel_shuffle(x, r):
    *lead, c, h, w = x.shape
    k = len(lead)
    y = x.reshape(*lead, c // (r * r), r, r, h, w)
    return y.transpose(*range(k), k, k + 3, k + 1, k + 4, k + 2).reshape(*lead, c // (r * r), h * r, w * r)


def pixel_unshuffle(x, r):
    *lead, c, h, w = x.shape
    k = len(lead)
    y = x.reshape(*lead, c, h // r, r, w // r, r)
    return y.transpose(*range(k), k, k + 2, k + 4, k + 1, k + 3).reshape(*lead, c * r * r, h // r, w // r)


row("pixel_shuffle", pixel_shuffle, a(2, 8, 3, 4), 2)
row("pixel_shuffle", pixel_shuffle, i(9, 3, 4), 3)
row("pixel_unshuffle", pixel_unshuffle, a(2, 2, 6, 4), 2)
row("channel_shuffle", lambda x, g: x.reshape(2, g, 6 // g, 3).swapaxes(1, 2).reshape(2, 6, 3), a(2, 6, 3), 3)
wrong("pixel_shuffle", a(2, 6, 3, 3), 2, error=ValueError, says="takes")
wrong("pixel_unshuffle", a(2, 6, 3, 3), 2, error=ValueError, says="takes")
wrong("channel_shuffle", a(2, 6, 3), 4, error=ValueError, says="divide")


def pair(v):
    return (v, v) if isinstance(v, int) else tuple(v)


def unfold(x, kernel_size, dilation=1, padding=0, stride=1):
    if x.ndim == 3:
        return unfold(x[None], kernel_size, dilation, padding, stride)[0]
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = map(pair, (kernel_size, dilation, padding, stride))
    p = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    oh, ow = (p.shape[2] - dh * (kh - 1) - 1) // sh + 1, (p.shape[3] - dw * (kw - 1) - 1) // sw + 1
    cols = [
        p[:, :, r * sh : r * sh + dh * (kh - 1) + 1 : dh, c * sw : c * sw + dw * (kw - 1) + 1 : dw].reshape(
            x.shape[0], -1
        )
        for r in range(oh)
        for c in range(ow)
    ]
    return np.stack(cols, 2)


def fold(y, output_size, kernel_size, *rest):
    """The transpose of unfold, by its matrix."""
    h, w = pair(output_size)
    kh, kw = pair(kernel_size)
    lead, c = y.shape[:-2], y.shape[-2] // (kh * kw)
    units = np.eye(c * h * w).reshape(c * h * w, c, h, w)
    basis = unfold(units, kernel_size, *rest).reshape(c * h * w, -1)
    return (y.reshape(*lead, -1) @ basis.T).reshape(*lead, c, h, w)


row("unfold", unfold, a(2, 3, 5, 6), 2, dtypes=ALL_FLOATS)
row("unfold", unfold, a(2, 3, 5, 6), (3, 2), (1, 2), (1, 0), (2, 1))
row("unfold", unfold, i(3, 5, 6), 3)
row("fold", fold, a(2, 12, 20), (5, 6), 2, dtypes=ALL_FLOATS)
row("fold", fold, a(2, 12, 6), (4, 6), 2, 1, 0, 2)
row("fold", fold, a(8, 12), (2, 3), 2, 1, 1)
wrong("unfold", a(2, 3), 2, error=ValueError, says="takes")
wrong("unfold", a(2, 3, 4, 5), 6, error=ValueError, says="larger than the padded")
wrong("unfold", a(2, 3, 4, 5), 2, 0, error=ValueError, says="dilation")
wrong("fold", a(2, 12, 20), (5, 5), 2, error=ValueError, says="windows")
wrong("fold", a(2, 11, 20), (5, 6), 2, error=ValueError, says="windows")
wrong("fold", a(2), (5, 6), 2, error=ValueError, says="takes")
