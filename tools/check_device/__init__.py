"""./dev check-device: what can be learnt of a machine with a CUDA device in four parts of nine minutes (__main__.py)."""
