"""Blob: what an op returns while a job function's body runs.
It has a shape and a dtype; values come when the job is called."""

from holon import _C


class Rows(int):
    """A blob's size along its first axis in the mirrored view, where devices may have less:
    an op that gets it gets the device's own."""

    def __new__(cls, blob):
        self = super().__new__(cls, blob._shape[0])
        self.blob = blob
        return self


class Blob:
    """A value of a job function: shape and dtype, no data.

    parts: of a stream (after unpack), how many parts follow each other; shape is one part's. Else None.
    """

    def __init__(self, job, shape, dtype, op_name, placement, parts=None):
        self._job = job
        self._shape = tuple(shape)
        self._dtype = dtype
        self._name = op_name
        self._placement = placement
        self._parts = parts
        self._distribute = None

    @property
    def shape(self):
        if self._shape and self._job.scope().mirrored:
            return (Rows(self), *self._shape[1:])
        return self._shape

    dtype = property(lambda self: self._dtype)
    op_name = property(lambda self: self._name)
    name = property(lambda self: self._name)
    logical_blob_name = property(lambda self: f"{self._name}/out")
    unique_name = logical_blob_name
    ndim = property(lambda self: len(self._shape))
    batch_axis = property(lambda self: 0 if self._shape else None)
    is_dynamic = property(lambda self: False)
    is_tensor_list = property(lambda self: False)
    parallel_conf = property(lambda self: self._placement.text())

    @property
    def split_axis(self):
        return getattr(self._distribute, "axis", None)

    @property
    def distribute(self):
        from .distribute import auto

        return self._distribute or auto()

    def dim(self):
        return len(self._shape)

    def size(self, dim=None):
        return self._shape if dim is None else self._shape[dim]

    def numel(self):
        n = 1
        for d in self._shape:
            n *= d
        return n

    def with_distribute(self, distribute):
        from .distribute import parallel_cast

        return parallel_cast(self, distribute=distribute)

    def with_split_distribute(self, axis):
        from .distribute import split

        return self.with_distribute(split(axis))

    def with_broadcast_distribute(self):
        from .distribute import broadcast

        return self.with_distribute(broadcast())

    def with_gradient_distribute(self, distribute):
        from .distribute import parallel_cast

        return parallel_cast(self, gradient_distribute=distribute)

    def numpy(self, *_):
        raise RuntimeError(
            f"numpy() of {self!r}: a blob has no values inside a job function. "
            "Return it from the job, or use watch(blob, handler)."
        )

    tolist = item = __array__ = numpy

    def __bool__(self):
        raise RuntimeError(
            f"{self!r} has no truth value: a job function's body runs once, without values. Use ops such as where."
        )

    def __len__(self):
        return self._shape[0]

    def __iter__(self):
        return (self[i] for i in range(self._shape[0]))

    def __getitem__(self, key):
        from .record import record

        return record(lambda x: x[key], (self,), {}, "getitem")

    def __getattr__(self, name):
        # Tensor's methods that are ops.
        if name.startswith("_") or name not in _C.ops or not hasattr(_C.Tensor, name):
            raise AttributeError(
                f"a blob has no '{name}'. Its ops are functions: flow.reshape(x, shape), flow.math.add(x, y)."
            )
        if name.endswith("_"):
            raise TypeError(f"{name}: a blob cannot be changed in place. Use {name[:-1]}().")
        from .record import record

        return lambda *args, **kwargs: record(lambda x, *a, **k: getattr(x, name)(*a, **k), (self, *args), kwargs, name)

    def __hash__(self):
        return id(self)

    def __repr__(self):
        parts = f", parts={self._parts}" if self._parts else ""
        return f"Blob({self._name}, shape={list(self._shape)}, dtype={self._dtype}{parts})"

    @staticmethod
    def __holon_function__(function, args, kwargs):
        """What holon's own ops call when a blob is among their arguments."""
        from .record import call_op

        return call_op(function, args, kwargs)


def _operator(name, reflected=False):
    def method(self, other):
        return self.__holon_function__(_C.ops[name], (other, self) if reflected else (self, other), {})

    return method


for _name, _op in {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
}.items():
    setattr(Blob, f"__{_name}__", _operator(_op))
    setattr(Blob, f"__r{_name}__", _operator(_op, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Blob, f"__{_name}__", _operator(_name))
Blob.__neg__ = lambda self: self.__holon_function__(_C.ops["neg"], (self,), {})  # type: ignore[operator]
