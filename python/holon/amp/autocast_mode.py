"""Regions in which ops cast their inputs, each after its class."""

from functools import wraps

from .. import _C


class autocast:
    """For a `with` block, or as a decorator: products run in `dtype`, losses and sums in float32;
    what was before comes back after.

    Gradients arrive at float32 parameters in float32. cache_enabled: a parameter is cast once, not at each use.

    dtype=float8_e4m3fn: products run in bfloat16; the factors of matmul and linear are rounded to float8 first, and the
    gradients of their results to float8_e5m2, scaled by powers of two, so that results are those of products in float8.
    float8_block: the side of the blocks of weights that have a scale each; 0: one scale for each tensor.
    recipe: scales products by parameters otherwise than by the values of the step itself (amp.DelayedScaling).
    """

    def __init__(self, device_type="cpu", dtype=None, enabled=True, cache_enabled=True, *, float8_block=0, recipe=None):
        if device_type not in ("cpu", "cuda") and device_type not in _C.device_types():
            types = " or ".join(map(repr, _C.device_types()))
            raise ValueError(f"autocast: device_type is {device_type!r}; it must be {types}.")
        self.device = device_type
        self.fast_dtype = (
            _C.parse_dtype(dtype) if dtype is not None else _C.float16 if device_type == "cuda" else _C.bfloat16
        )
        self._enabled, self._cache = bool(enabled), bool(cache_enabled)
        self._block, self._recipe = float8_block, recipe
        if recipe is not None and not isinstance(recipe, _C.Float8Recipe):
            raise TypeError(f"autocast: recipe is a {type(recipe).__name__}; it must be one of amp, as DelayedScaling.")
        if self._enabled and self.fast_dtype not in (_C.bfloat16, _C.float16, _C.float8_e4m3fn, _C.float8_e5m2):
            raise ValueError(
                f"autocast: dtype is {self.fast_dtype}; it must be bfloat16, float16, float8_e4m3fn or float8_e5m2."
            )
        self._before = []

    def __enter__(self):
        depth = _C.autocast_mode()[3]
        mode = (self._enabled, self.fast_dtype, self._cache, depth + 1, self._block, self._recipe)
        self._before.append(_C.set_autocast_mode(*mode))
        return self

    def __exit__(self, *error):
        _C.set_autocast_mode(*self._before.pop())

    def __call__(self, function):
        from inspect import isgeneratorfunction  # not needed by most programs, and slow to import

        if isgeneratorfunction(function):
            raise TypeError(
                f"{function.__name__} is a generator, which stops inside the block: write `with` in it instead."
            )

        @wraps(function)
        def wrapped(*args, **kwargs):
            float8 = {"float8_block": self._block, "recipe": self._recipe}
            with autocast(self.device, self.fast_dtype, self._enabled, self._cache, **float8):
                return function(*args, **kwargs)

        return wrapped


def is_autocast_enabled(device_type="cpu"):
    """Returns whether ops cast their inputs here."""
    return _C.autocast_mode()[0]


def get_autocast_dtype(device_type="cpu"):
    """Returns the dtype that products run in, here or in the next region."""
    return _C.autocast_mode()[1]


def clear_autocast_cache():
    """Releases the parameters that were cast."""
    _C.clear_autocast_cache()


def custom_fwd(fwd=None, *, device_type="cpu", cast_inputs=None):
    """Decorates the forward of an autograd.Function:
    with cast_inputs its tensors are cast to that dtype and autocast is off."""
    if fwd is None:
        return lambda f: custom_fwd(f, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def wrapped(*args, **kwargs):
        if cast_inputs is None or not is_autocast_enabled():
            return fwd(*args, **kwargs)

        def cast(x):
            return (
                x.to(cast_inputs) if isinstance(x, _C.Tensor) and x.is_floating_point() and x.dtype != _C.float64 else x
            )

        with autocast(device_type, enabled=False):
            return fwd(*map(cast, args), **{name: cast(x) for name, x in kwargs.items()})

    return wrapped


def custom_bwd(bwd=None, *, device_type="cpu"):
    """Decorates the backward of an autograd.Function. Backward never casts, so that nothing is to be done."""
    return bwd if bwd is not None else lambda f: f
