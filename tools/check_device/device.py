"""Part A's first check: the backend loads, and the device computes. Prints what the machine is, a JSON object a
line."""

import importlib.util
import json
import os
import platform
import subprocess


def machine():
    """Yields what those need who read the results elsewhere."""
    import holon

    yield {"python": platform.python_version(), "kernel": platform.release(), "libc": " ".join(platform.libc_ver())}
    properties = holon.cuda.get_device_properties(0)._asdict()
    yield {"holon": holon.__version__, "devices": holon.cuda.device_count(), "cores": os.cpu_count()} | properties
    yield {"libraries": {name: str(path) for name, path in dict(holon.cuda.libraries()).items()}}
    if importlib.util.find_spec("torch"):
        import torch

        yield {"torch": torch.__version__, "cuda_of_torch": torch.version.cuda}
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,memory.used", "--format=csv,noheader"]
        yield {"nvidia-smi": subprocess.run(query, capture_output=True, text=True, timeout=30).stdout.strip()}
    except OSError:
        yield {"nvidia-smi": "is not installed"}


def main():
    for line in machine():
        print(json.dumps(line), flush=True)
    import holon

    x = holon.arange(1 << 12, dtype=holon.float32, device="cuda")
    assert (x * 2 + 1).sum().item() == 2.0**24, "an element-wise kernel or a sum is wrong"  # exact in any order
    a = (x.reshape(64, 64) % 7).to(holon.bfloat16)  # whole numbers: the product is exact
    wanted = (a.cpu().to(holon.float64) @ a.cpu().to(holon.float64)).numpy()
    assert ((a.to(holon.float32) @ a.to(holon.float32)).cpu().numpy() == wanted).all(), "a product is wrong"


if __name__ == "__main__":
    main()
