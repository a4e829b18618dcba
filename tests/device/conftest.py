"""Tests of a backend outside of holon/ (toy/): what the CUDA emulator does on cuda devices, done on toy ones."""

import os
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[2] / "build/dev/lib/libholon_toy.so"

# Before holon is asked for its first device, here and in the programs that the tests start.
os.environ["HOLON_DEVICE_LIBRARIES"] = str(LIBRARY)
