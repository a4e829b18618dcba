"""FloatTensor, LongTensor and so on: constructors of local tensors of one dtype."""

from . import _C


class _Kind(type):
    """isinstance(x, LongTensor) asks for the dtype."""

    def __call__(cls, *data):
        if not data:
            return _C.ops["empty"]((0,), dtype=cls.dtype)
        if all(isinstance(d, int) and not isinstance(d, bool) for d in data):
            return _C.ops["empty"](*data, dtype=cls.dtype)
        if len(data) > 1:
            raise TypeError(f"{cls.__name__}: takes sizes, or data; got {len(data)} arguments.")
        if isinstance(data[0], _C.Size):
            return _C.ops["empty"](data[0], dtype=cls.dtype)
        return data[0].to(cls.dtype) if isinstance(data[0], _C.Tensor) else _C.tensor(data[0], dtype=cls.dtype)

    def __instancecheck__(cls, value):
        return isinstance(value, _C.Tensor) and value.dtype == cls.dtype

    def __repr__(cls):
        return f"<class '{_C.get_printoptions()['prefix']}.{cls.__name__}'>"


def _kind(name, dtype):
    return _Kind(
        name,
        (),
        {
            "dtype": dtype,
            "__doc__": f"A local tensor of {dtype.name}: of data, or of sizes with whatever values memory has.",
            "__module__": "holon",
        },
    )


BoolTensor = _kind("BoolTensor", _C.bool)
ByteTensor = _kind("ByteTensor", _C.uint8)
CharTensor = _kind("CharTensor", _C.int8)
DoubleTensor = _kind("DoubleTensor", _C.float64)
FloatTensor = _kind("FloatTensor", _C.float32)
HalfTensor = _kind("HalfTensor", _C.float16)
IntTensor = _kind("IntTensor", _C.int32)
LongTensor = _kind("LongTensor", _C.int64)
BFloat16Tensor = _kind("BFloat16Tensor", _C.bfloat16)
