"""The checks of ./dev check-device, of a machine with a CUDA device in four parts of nine minutes (__main__.py)."""
