"""Microscaling formats: ml_dtypes has their numbers, which NumPy lacks."""

from op_table import no_truth

for op in ("quantize_mx", "dequantize_mx", "quantize_mxfp4", "dequantize_mxfp4"):
    no_truth(op, "tests/python/test_microscaling.py")
