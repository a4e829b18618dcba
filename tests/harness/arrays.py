"""Arrays to feed to what is tested, and comparison with what NumPy says."""

import numpy as np

import holon


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tensor(*shape, seed=0):
    return holon.tensor(array(*shape, seed=seed))


def same(a, b, tolerance=1e-6):
    if isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y, tolerance)
        return
    a, b = (x.detach().numpy() if isinstance(x, holon.Tensor) else np.asarray(x) for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
