"""How this Holon was built, for programs that ask: OneFlow's names."""

from holon.utils.cpp_extension import include_paths, library_path

__all__ = [
    "get_include",
    "get_lib",
    "has_rpc_backend_grpc",
    "has_rpc_backend_local",
    "with_cuda",
    "with_rdma",
    "with_xla",
]


def get_include():
    """Returns the folder of the C++ headers."""
    return include_paths()[0]


def get_lib():
    """Returns the path of the C++ library."""
    return library_path()


def with_cuda():
    return False


def with_rdma():
    return False


def with_xla():
    return False


def has_rpc_backend_grpc():
    """Returns False: ranks find each other through their own store."""
    return False


def has_rpc_backend_local():
    return False


def __getattr__(name):
    from holon._missing import error

    raise error("sysconfig", name, __all__)
