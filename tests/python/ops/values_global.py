"""Ops that move tensors between ranks, for which NumPy has no truth."""

from op_table import no_truth

no_truth("to_global", "test_global_binding.py, and boxing_test of every pair of layouts")
no_truth("to_local", "test_global_binding.py")
