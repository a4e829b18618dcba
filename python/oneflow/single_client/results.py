"""What comes out of a call of a job: values, and futures of them."""

import threading

import numpy as np


class Value:
    """A result on the host: one array (the whole), or one for each device (mirrored view);
    of tensor lists, a list for each."""

    def __init__(self, devices, mirrored):
        self._devices, self._mirrored = devices, mirrored

    def numpy(self, parallel_id=None):
        """The whole, or the part of one device."""
        if parallel_id is not None:
            return self.numpy_list()[parallel_id]
        if not self._mirrored:
            return self._devices[0]
        assert not any(isinstance(d, list) for d in self._devices), (
            "numpy: a list of tensors has no one array; use tp.ListListNumpy."
        )
        return np.concatenate([np.atleast_1d(d) for d in self._devices]) if len(self._devices) > 1 else self._devices[0]

    def numpy_list(self, *_):
        return list(self._devices)

    def numpy_lists(self):
        return [d if isinstance(d, list) else [d] for d in self._devices]

    ndarray = numpy
    ndarray_list = numpy_list
    shape = property(lambda self: self.numpy().shape)
    dtype = property(lambda self: self.numpy().dtype)

    def __array__(self, dtype=None, copy=None):
        return self.numpy().astype(dtype or self.numpy().dtype)

    def __getattr__(self, name):
        # The array's methods: mean(), sum(), ...
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.numpy(), name)

    def __getitem__(self, key):
        return self.numpy()[key]

    def __len__(self):
        return len(self.numpy())

    def __float__(self):
        return float(self.numpy().item())

    def __repr__(self):
        return repr(self.numpy())


def _operator(name):
    def method(self, *others):
        return getattr(self.numpy(), name)(*(o.numpy() if isinstance(o, Value) else o for o in others))

    return method


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "neg",
    "matmul",
):
    setattr(Value, f"__{_name}__", _operator(f"__{_name}__"))
Value.__hash__ = object.__hash__  # type: ignore[method-assign]


class Future:
    """The result of a call that did not wait."""

    def __init__(self):
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks = []
        self._value = self._error = None

    def get(self):
        """Waits for the result. Errors: what the call raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def async_get(self, callback):
        """callback(result) on another thread, once it is there."""
        assert callable(callback), f"async_get: takes a function of the result, got {type(callback).__name__}."
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        if self._error is None:
            self._later(callback)

    def _later(self, callback):
        from . import session

        session.default().deliver(lambda: callback(self._value))

    def finish(self, value=None, error=None):
        """Called on the thread that delivers results."""
        with self._lock:
            self._value, self._error = value, error
            self._done.set()
        if error is None:
            for callback in self._callbacks:
                callback(value)
