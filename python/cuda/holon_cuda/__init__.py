"""Holon's backend for CUDA devices: libholon_cuda.so, which Holon loads from here when a cuda device is first used."""
