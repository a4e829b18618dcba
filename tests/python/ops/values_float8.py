"""Rounding to float8, and what holds it: ml_dtypes has the numbers, which NumPy lacks."""

from op_table import no_truth

for op in ("round_float8", "round_gradient", "quantize_float8", "float8_scale", "scaled_mm"):
    no_truth(op, "tests/python/test_float8.py")
