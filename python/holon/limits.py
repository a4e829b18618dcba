"""The limits of dtypes: finfo and iinfo, as NumPy's."""

from . import _C

# Bits of the significand that are stored, and the largest exponent.
_FLOATS = {_C.float64: (52, 1023), _C.float32: (23, 127), _C.float16: (10, 15), _C.bfloat16: (7, 127)}
_FLOATS |= {_C.float8_e4m3fn: (3, 8), _C.float8_e5m2: (2, 15)}


class finfo:
    """Limits of a floating point dtype: bits, eps (1 + eps is the next number after 1), max, min, tiny
    (the smallest normal number), smallest_subnormal, resolution (10 to the power of minus the decimal digits)."""

    def __init__(self, dtype=_C.float32):
        if dtype not in _FLOATS:
            raise TypeError(f"finfo: {dtype} is not a floating point dtype. Use iinfo() for integers.")
        mantissa, exponent = _FLOATS[dtype]
        self.dtype, self.bits = str(dtype).split(".")[-1], dtype.itemsize * 8
        self.eps = 2.0**-mantissa
        self.max = (2.0 - self.eps) * 2.0**exponent
        smallest = 1 - exponent
        if dtype == _C.float8_e4m3fn:  # the largest exponent has numbers, too, and the largest significand is NaN
            self.max, smallest = 448.0, -6
        self.min = -self.max
        self.tiny = self.smallest_normal = 2.0**smallest
        self.smallest_subnormal = 2.0 ** (smallest - mantissa)
        self.resolution = 10.0 ** -int(mantissa * 0.30102999566398120)

    def __repr__(self):
        return (
            f"finfo(resolution={self.resolution:g}, min={self.min:g}, max={self.max:g}, eps={self.eps:g}, "
            f"smallest_normal={self.smallest_normal:g}, tiny={self.tiny:g}, dtype={self.dtype})"
        )


class iinfo:
    """Limits of an integer dtype: bits, max, min."""

    def __init__(self, dtype):
        if dtype in _FLOATS or dtype == _C.bool:
            raise TypeError(f"iinfo: {dtype} is not an integer dtype. Use finfo() for floating point dtypes.")
        self.dtype, self.bits = str(dtype).split(".")[-1], dtype.itemsize * 8
        signed = not self.dtype.startswith("u")
        self.max = 2 ** (self.bits - signed) - 1
        self.min = -self.max - 1 if signed else 0

    def __repr__(self):
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
