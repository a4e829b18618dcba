"""What a training step of GPT-2 124M asks of a device, as the emulator of the tests counts it: ./dev bench cuda --count

The step is that of benchmarks/cuda.py: bfloat16 by autocast, AdamW, gradients clipped to a norm of 1; eager, and
compiled into a recorded nn.Graph. Sizes are GPT-2's except the number of tokens (--tokens), since kernels run as loops
on the CPU; it is part of each name. Bytes are the pages of 4 KiB of the device's memory that each kernel, product and
copy reads, and those that it writes: what would pass to and from memory if caches held all that a kernel reads twice.

--layers, --width, --heads and --vocabulary run smaller models, --kind only one of eager and compiled. --against FILE
compares with the lines of an earlier run: a ratio above 1 is an improvement. --kernels lists the kernels on stderr.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATED = ROOT / "build/dev/lib/libholon_cuda_emulated.so"
WARM_UP = {"eager": 1, "compiled": 2}  # steps: the states are made, kernels compiled, the step recorded
UNITS = {
    "launches by the host": "launches",
    "kernels": "kernels",
    "library calls": "calls",
    "copies and fills": "copies",
    "bytes of kernels and copies": "B",
    "bytes of products": "B",
    "waits of the host": "waits",
}


def module_from(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counter:
    """The emulator's counters, from one call of lines() to the next."""

    def __init__(self, library):
        self.library, self.path = ctypes.CDLL(library), library
        self.library.emulated_launch_count.restype = ctypes.c_long
        self.launched = 0

    def stop(self):
        self.library.emulated_traffic(None)

    def lines(self):
        """Launches by the host, and for each kind of work (kind, address, times, bytes read, bytes written)."""
        with tempfile.NamedTemporaryFile("r", suffix=".traffic") as file:
            self.library.emulated_traffic(file.name.encode())
            lines = [line.split() for line in file.read().splitlines()]
        before, self.launched = self.launched, self.library.emulated_launch_count()
        return self.launched - before, [(kind, address, *map(int, rest)) for kind, address, *rest in lines]


def figures_of(launched, lines):
    """name -> value, in the order of UNITS."""

    def times(*kinds):
        return sum(n for kind, _, n, _, _ in lines if kind in kinds)

    def bytes_of(*kinds):
        return sum(read + written for kind, _, _, read, written in lines if kind in kinds)

    return dict(
        zip(
            UNITS,
            (
                launched,
                times("kernel", "chain"),
                times("product", "library"),
                times("copy", "fill"),
                bytes_of("kernel", "chain", "copy", "fill", "library", "collective"),
                bytes_of("product"),
                times("wait"),
            ),
        )
    )


def table(lines, library):
    """Kernels by bytes, with their names, as text."""
    resources = module_from(ROOT / "tools/cuda_resources.py")
    listed = subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True).stdout
    names = {}
    for line in listed.split("\n"):
        address, _, name = line.partition(" ")
        if address and name[:2] in ("t ", "T ", "W ", "V ", "u "):
            names.setdefault(int(address, 16), resources.short_name(name[2:]))
    text = f"{'times':>6} {'read MB':>9} {'written MB':>10}\n"
    for kind, address, times, read, written in sorted(lines, key=lambda x: -x[3] - x[4]):
        name = names.get(int(address, 16), kind) if kind == "kernel" else kind
        text += f"{times:6} {read / 1e6:9.2f} {written / 1e6:10.2f}  {name[:150]}\n"
    return text


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 12, "width": 768, "heads": 12, "vocabulary": 50304, "tokens": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--kind", choices=WARM_UP, action="append", help="default: both")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--kernels", action="store_true")
    return parser.parse_args(given)


def run(args):
    """In a process whose environment is that of main()."""
    sys.path.insert(0, str(ROOT / "python"))
    import holon

    before = {}
    if args.against:
        rows = [json.loads(line) for line in args.against.read_text().splitlines() if line.startswith("{")]
        before = {row["name"]: row["value"] for row in rows}
    gpt2 = module_from(ROOT / "benchmarks/cuda.py").Gpt2
    counter = Counter(os.environ["HOLON_CUDA_LIBRARY"])
    sizes = (args.layers, args.width, args.heads, args.vocabulary, 1, args.tokens)
    full = sizes[:4] == (12, 768, 12, 50304)
    model = "gpt2 124M" if full else f"gpt2 of {args.layers} layers, {args.width} wide, {args.vocabulary} tokens"
    for kind in args.kind or WARM_UP:
        holon.manual_seed(1)
        step = gpt2(holon, *sizes).step(kind == "compiled", clip=1.0)
        for _ in range(WARM_UP[kind]):
            step()
        holon.cuda.synchronize()
        counter.lines()
        step()
        launched, lines = counter.lines()
        counter.stop()
        if args.kernels:
            print(f"{kind}:\n{table(lines, counter.path)}", file=sys.stderr, flush=True)
        for what, value in figures_of(launched, lines).items():
            name = f"cuda {model} step of 1 x {args.tokens}, {kind}, clipped: {what}"
            old = before.get(name)
            ratio = round(old / value, 3) if old is not None and value else None
            against = args.against.name if old is not None else None
            print(
                json.dumps({"name": name, "value": value, "unit": UNITS[what], "against": against, "ratio": ratio}),
                flush=True,
            )


def main(given=None):
    args = arguments(given)
    if os.environ.get("EMULATED_TRAFFIC") == "1":
        run(args)
        return 0
    library = os.environ.get("HOLON_CUDA_LIBRARY", str(EMULATED))
    if not library.endswith("_emulated.so") or not Path(library).exists():
        print(
            f"cuda --count: {library} is not the emulator. Build it: ./dev build holon_cuda_emulated", file=sys.stderr
        )
        return 1
    # The host may touch the memory: that it does not is what the tests check.
    settings = {"EMULATED_TRAFFIC": "1", "EMULATED_STRICT": "0", "EMULATED_MEMORY_MB": "16384", "EMULATED_DEVICES": "1"}
    env = os.environ | settings | {"HOLON_CUDA_LIBRARY": library}
    return subprocess.run([sys.executable, __file__, *(sys.argv[1:] if given is None else given)], env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
