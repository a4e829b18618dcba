#!/usr/bin/env python3
"""Makes dist/holon-pack.tar.xz: all that ./dev check-device needs on a machine with a CUDA device that has Python,
NumPy, a driver and NVIDIA's libraries, and neither a compiler nor a network.

  tools/pack.py PYTHON...    with an extension for each of these Pythons (./dev pack chooses them)
      --backend FILE         and this backend, such as the tests' emulator, instead of one that is built

The wheels of these Pythons and that of the CUDA backend, for compute capability 9.0 alone, are unpacked into one
folder, as if it were a tree: the package in python/, C++ tests in build/dev/, tests, documents and tools where they are
in the tree."""

import argparse
import datetime
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import wheels
from wheels import ROOT, run

MAX_BYTES = 60 * 10**6
ARCHITECTURES = "90-real"
# C++ programs that tests/cuda starts.
PROGRAMS = ("bin/boxing_rank_program", "tests/ops_test", "tests/data_test", "tests/prepared_test")
# Tracked files, by git's patterns.
SOURCES = """LICENSE *.md pyproject.toml docs tools benchmarks/cuda.py examples/gpt examples/*.py tests/conftest.py
tests/cuda tests/harness""".split()
# What the target's Python may lack: packages without binaries, after its own in the search.
PYTEST = ("pytest", "pytest-timeout")
# Used where the system's are missing or older: two of one name in a process do not mix.
OF_THE_COMPILER = re.compile(r"lib(stdc\+\+|gcc_s|ubsan)\.so")


def unpack(wheel, folder):
    """An extension for each Python joins the package; all else is the same in each wheel."""
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            top, target = name.split("/")[0], folder / name
            if top.endswith((".dist-info", ".data")) or name.endswith("/"):
                continue
            data = z.read(name)
            if target.exists() and target.read_bytes() != data:
                sys.exit(f"{name} differs between wheels: sources changed meanwhile, or build/pack is to be removed")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o755 if z.getinfo(name).external_attr >> 16 & 0o100 else 0o644)


def copy_sources(folder):
    for name in run("git", "ls-files", "--", *SOURCES, cwd=ROOT).splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)


def copy_programs(folder):
    """Without symbols, and finding the libraries of the package."""
    for name in PROGRAMS:
        source, target = ROOT / "build/dev" / name, folder / "build/dev" / name
        if not source.exists():
            sys.exit(f"{source} is not there: ./dev pack builds it")
        target.parent.mkdir(parents=True, exist_ok=True)
        run("strip", "-o", target, source)
        run(tool("patchelf"), "--force-rpath", "--set-rpath", "$ORIGIN/../../../python/holon/lib", target)


def copy_pytest(folder):
    for file in run(sys.executable, "-c", wheels.FILES, *PYTEST).splitlines():
        if "__pycache__" in file:
            continue
        if file.endswith(".so"):
            sys.exit(f"{file} is of one Python: {', '.join(PYTEST)} need what the archive cannot carry")
        source = Path(run(sys.executable, "-c", wheels.DESCRIBE).split("\n")[4]) / file
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / file)


def require_libraries(backend):
    """Where their headers are missing the backend is built without."""
    data = backend.read_bytes()
    if missing := [name for name in (b"libcudnn.so.", b"libnccl.so.") if name not in data]:
        sys.exit(f"{backend.name} was built without {b' and '.join(missing).decode()}: ./dev pack needs their headers")


def copy_backend(file, folder):
    folder.mkdir(parents=True)
    run("strip", "-o", folder / file.name, file)
    run(tool("patchelf"), "--force-rpath", "--set-rpath", "$ORIGIN/../holon/lib", folder / file.name)
    (folder / "__init__.py").touch()


def copy_compilers(folder, paths):
    folder.mkdir(parents=True)
    for name in {name for path in paths for name in needs(path) if OF_THE_COMPILER.match(name)}:
        found = Path(run("g++", f"-print-file-name={name}").strip()).resolve()
        shutil.copy(found, folder / name)
        shutil.copy(copyright_of(found), folder / f"{name}.copyright")


def copyright_of(library):
    """dpkg knows a file by the path that its package has installed, with or without the /usr before."""
    for path in (library, str(library).removeprefix("/usr")):
        done = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if done.returncode == 0:
            return f"/usr/share/doc/{done.stdout.split(':')[0]}/copyright"
    sys.exit(f"no package has {library}: its licence is unknown")


def tool(name):
    beside = Path(sys.executable).parent / name
    return beside if beside.exists() else name


def binaries(folder):
    """Files that the loader reads."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def needs(path):
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "--dynamic", "--wide", path))


def needed_version(paths, symbol):
    """The newest version of GLIBC or GLIBCXX that a file asks for, as (2, 34)."""
    found = {(0,)}
    for path in paths:
        for text in re.findall(rf"\b{symbol}_([\d.]+)\b", run("readelf", "--version-info", "--wide", path)):
            found.add(tuple(map(int, text.split("."))))
    return max(found)


def outside(folder):
    """What binaries need that is neither in the archive, nor glibc's or the compiler's, nor NVIDIA's."""
    paths = list(binaries(folder))
    inside = {p.name for p in paths}
    for path in paths:
        for name in needs(path):
            if name not in inside and not wheels.OF_THE_SYSTEM.match(name) and not name.startswith("libcublasLt.so"):
                yield f"{path.relative_to(folder)} needs {name}"


def describe(folder, pythons, backend):
    paths = list(binaries(folder))
    ours = [p for p in paths if p.parent.name != "compiler"]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "version": re.search(r"project\(Holon VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1),
        "commit": commit.stdout.strip(),
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "pythons": pythons,
        "glibc": ".".join(map(str, needed_version(paths, "GLIBC"))),
        "libstdc++": "GLIBCXX_" + ".".join(map(str, needed_version(ours, "GLIBCXX"))),
        "backend": backend.name if backend else f"CUDA, {ARCHITECTURES}",
    }


def of_nobody(info):
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def archive(folder, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with tarfile.open(part, "w:xz", preset=9) as tar:
        tar.add(folder, folder.name, filter=of_nobody)
    size = part.stat().st_size
    if size > MAX_BYTES:
        part.unlink()
        sys.exit(f"{target.name} would have {size / 1e6:.1f} MB; {MAX_BYTES / 1e6:.0f} are allowed")
    part.replace(target)
    return size


def make(target, pythons, backend=None):
    with tempfile.TemporaryDirectory() as temporary:
        dist, folder = Path(temporary, "wheels"), Path(temporary, "holon-pack")
        architectures = {} if backend else {"HOLON_CUDA_ARCHITECTURES": ARCHITECTURES}
        wheels.build(dist, pythons, not backend, ROOT / "build/pack", **architectures)
        copy_sources(folder)
        shutil.copy(ROOT / "tools/check_device/run", folder / "run")
        for python in pythons:
            unpack(wheels.wheels_for(dist, python)[-1], folder / "python")
        if backend:
            copy_backend(backend, folder / "python/holon_cuda")
        else:
            unpack(wheels.wheels_for(dist, pythons[0], cuda=True)[-1], folder / "python")
            require_libraries(folder / "python/holon_cuda/libholon_cuda.so")
        shutil.rmtree(folder / "python/holon/include", ignore_errors=True)
        copy_programs(folder)
        copy_pytest(folder / "lib/pytest")
        copy_compilers(folder / "lib/compiler", list(binaries(folder)))
        if missing := list(outside(folder)):
            sys.exit("not in the archive:\n" + "\n".join(missing))
        about = describe(folder, [run(p, "-c", wheels.DESCRIBE).split("\n")[1] for p in pythons], backend)
        (folder / "pack.json").write_text(json.dumps(about, indent=2) + "\n")
        size = archive(folder, target)
    print(f"{target}: {size / 1e6:.1f} MB, Python {' and '.join(about['pythons'])}, glibc {about['glibc']} or newer")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist/holon-pack.tar.xz")
    parser.add_argument("--backend", type=lambda p: Path(p).absolute())
    parser.add_argument("pythons", nargs="+", type=lambda p: Path(p).absolute())
    given = parser.parse_args()
    make(given.output, given.pythons, given.backend)
