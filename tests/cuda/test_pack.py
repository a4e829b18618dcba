"""./dev pack's archive runs where there is Python, NumPy and glibc and nothing else: unpacked in an empty root, with
the emulator in place of the backend."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
from harness import ranks

EMULATED = os.environ.get("HOLON_CUDA_LIBRARY", "")
pytestmark = [
    pytest.mark.skipif(not EMULATED.endswith("emulated.so"), reason="the archive is made where there is an emulator"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # the extension is built; the compiler's cache has the rest
]
RUN = "/holon-pack/run"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    target = tmp_path_factory.mktemp("pack") / "pack.tar.xz"
    command = [sys.executable, ranks.ROOT / "tools/pack.py", "--output", target, "--backend", EMULATED, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ranks.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"pack.tar.xz: [\d.]+ MB, Python 3\.\d+, glibc 2\.\d+ or newer", done.stdout)
    return target


def needs(path):
    """The files of libraries that a program or an extension is loaded with; glibc's loader is one of them."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return {Path(p) for p in re.findall(r"(/\S+) \(0x", said)}


def copy(path, root):
    """To the path that it has here: where a link leads, too."""
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(path.resolve(), target)


def install_python(root):
    """The interpreter, its library and NumPy, and the libraries of C that they load: the compiler's own, which NumPy
    needs, is not there."""
    python = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    without = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "dist-packages", "idlelib")
    shutil.copytree(library, root / library.relative_to("/"), ignore=without)
    program = "import sys; print(next(p for p in sys.path if p.endswith('-packages')))"
    found = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    site = root / Path(found).relative_to("/")
    numpy = Path(importlib.util.find_spec("numpy").origin).parent
    (site / "nvidia/cu13/lib").mkdir(parents=True)
    shutil.copytree(numpy, site / "numpy", ignore=shutil.ignore_patterns("tests", "__pycache__"))
    if (libs := numpy.with_name("numpy.libs")).exists():
        shutil.copytree(libs, site / "numpy.libs")
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(python, root / "usr/bin/python3")
    loaded = [python, Path("/bin/sh").resolve(), *library.glob("lib-dynload/*.so"), *numpy.rglob("*.so")]
    for path in {p for file in loaded for p in needs(file)}:
        if not path.name.startswith(("libstdc++", "libgcc_s")) and not path.is_relative_to(numpy.parent):
            copy(path, root)
    (root / "bin").mkdir(exist_ok=True)
    shutil.copy(Path("/bin/sh").resolve(), root / "bin/sh")


@pytest.fixture(scope="module")
def bare(archive, tmp_path_factory):
    """A function that runs a command in the root: arguments -> the finished process."""
    root = tmp_path_factory.mktemp("bare")
    for name in ("tmp", "dev/shm", "work", "proc"):
        (root / name).mkdir(parents=True)
    (root / "dev/null").touch()
    install_python(root)
    with tarfile.open(archive) as tar:
        tar.extractall(root)
    # With /proc, by which the loader finds where a program is.
    enter = 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    said = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp", "OMP_NUM_THREADS": "1"}

    def run(*command, **extra):
        change = ["/usr/bin/unshare", "--map-root-user", "--mount", "/bin/sh", "-c", enter, root]
        return subprocess.run([*change, *command], env=said | extra, capture_output=True, text=True, timeout=600)

    try:
        done = run("/bin/sh", "-c", "exit 7")
    except FileNotFoundError:
        pytest.skip("no unshare")
    if done.returncode != 7:
        pytest.skip(f"no other root: {done.stderr.strip()}")
    run.root = root
    return run


EMULATOR = {"HOLON_CUDA_LIBRARY": "/holon-pack/python/holon_cuda/libholon_cuda_emulated.so"}


def test_what_it_holds(archive):
    assert archive.stat().st_size < 60e6
    with tarfile.open(archive) as tar:
        names = {member.name for member in tar}
        about = json.load(tar.extractfile("holon-pack/pack.json"))
    assert about["glibc"].startswith("2.") and about["pythons"] == [sysconfig.get_python_version()] and about["commit"]
    assert {f"holon-pack/{n}" for n in ("run", "LICENSE", "benchmarks/cuda.py", "build/dev/tests/ops_test")} <= names
    tests = {p.name for p in (ranks.ROOT / "tests/cuda").glob("test_*.py")}
    assert {f"holon-pack/tests/cuda/{n}" for n in tests} <= names
    # Each library that comes along brings its licence.
    libraries = [n for n in names if re.search(r"/lib/(compiler/)?lib(?!holon)[^/]*\.so[.\d]*$", n)]
    assert len(libraries) > 5 and all(f"{n}.copyright" in names for n in libraries)


def test_it_runs_in_an_empty_root(bare):
    done = bare("/bin/sh", "-c", "python3 -c 'import numpy'")
    assert "libstdc++.so.6" in done.stderr  # so that Holon's own is used
    done = bare(RUN, "python", "-c", "import holon; print((holon.ones(2, 3) @ holon.ones(3, 4)).sum().item())")
    assert (done.returncode, done.stdout) == (0, "24.0\n"), done.stderr


def test_without_a_device(bare):
    done = bare(RUN, "check-device", "A")
    assert done.returncode == 1 and "check-device: there is no device: " in done.stderr


def test_check_device(bare):
    only = ["--only", "device", "--only", "test_runtime"]
    done = bare(RUN, "check-device", "A", "--results", "/work/results", *only, **EMULATOR)
    assert done.returncode == 0, done.stdout + done.stderr
    # Another call runs what has not run.
    only += ["--only", "test_sort", "--only", "test_conformance[[]one_rank[]]"]
    done = bare(RUN, "check-device", "A", "--results", "/work/results", *only, **EMULATOR)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (bare.root / "work/results/A.jsonl").read_text().splitlines()]
    assert [(line["check"], line["status"]) for line in lines if "status" in line] == [
        ("device", "passed"),
        ("test_runtime", "passed"),
        ("test_conformance[one_rank]", "passed"),
        ("test_sort", "passed"),
    ]
    # Where programs in C++ find NVIDIA's libraries.
    assert os.readlink(bare.root / "holon-pack/nvidia").endswith("-packages/nvidia")
    counts = {line["check"]: line["tests"] for line in lines if "tests" in line}
    assert counts["test_runtime"]["passed"] > 5 and counts["test_conformance[one_rank]"] == {"passed": 1}


def test_a_crash_there_costs_one_line(bare):
    """What has run stays, and the rest runs."""
    tests = bare.root / "holon-pack/tests/cuda"
    (tests / "test_zz_crash.py").write_text(
        "import os, signal\ndef test_before():\n    pass\n"
        "def test_crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ndef test_after():\n    pass\n"
    )
    try:
        only = ["--only", "device", "--only", "test_zz*"]
        done = bare(RUN, "check-device", "A", "--results", "/work/crash", *only, **EMULATOR)
    finally:
        (tests / "test_zz_crash.py").unlink()
    lines = [json.loads(line) for line in (bare.root / "work/crash/A.jsonl").read_text().splitlines()]
    assert done.returncode == 1
    assert [line["status"] for line in lines if "status" in line] == ["passed", "failed"]
    assert [line["tests"] for line in lines if "tests" in line] == [{"passed": 2, "crashed": 1}]
    assert "crashed: tests/cuda/test_zz_crash.py::test_crash: SIGSEGV" in done.stdout


def test_a_python_that_does_not_fit(bare):
    done = bare(RUN, "check-device", "A", HOLON_PYTHON="/bin/sh")
    assert (
        done.returncode == 1
        and "none of /bin/sh has NumPy and is a Python that an extension is here for" in done.stderr
    )
