"""The wheels carry what they need: in an empty environment, without a compiler,
they run the specification's programs and the examples."""

import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from harness import digits
from harness.ranks import ROOT, free_port
from harness.specification import PROGRAMS, RUNNER

spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools/wheels.py")
wheels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # the build is seconds where the compiler's cache has ./dev build's objects


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if not (ROOT / "build/dev/CMakeCache.txt").exists():
        pytest.skip("build/dev is not there: ./dev build")
    return wheels.build(tmp_path_factory.mktemp("wheels") / "dist")


@pytest.fixture(scope="module")
def env(built, tmp_path_factory):
    return wheels.Environment(tmp_path_factory.mktemp("installed") / "env", built)


def test_they_are_small_and_ask_for_numpy_alone(built):
    oneflow, holon = built
    assert holon.stat().st_size <= wheels.MAX_BYTES and oneflow.stat().st_size < 2**20
    with zipfile.ZipFile(holon) as z:
        names = z.namelist()
        metadata = z.read(next(n for n in names if n.endswith("dist-info/METADATA"))).decode()
    assert [x for x in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M) if "extra ==" not in x] == ["numpy>=1.24"]
    assert not [n for n in names if n.endswith((".cpp", ".a", ".o")) or "/tests/" in n]
    # Each library that comes along brings its licence.
    libraries = [n for n in names if re.match(r"holon/lib/lib(?!holon)[^/]*\.so[.\d]*$", n)]
    assert libraries and all(f"{n}.copyright" in names for n in libraries)


def test_what_is_loaded_comes_from_inside(built):
    wheels.check(built[0].parent)


def test_a_library_left_out_would_be_seen(env, tmp_path):
    moved = tmp_path / "libfmt"
    library = next(p for p in env.package.glob("lib/libfmt.so*") if p.suffix != ".copyright")
    library.rename(moved)
    try:
        assert any("libfmt" in line for line in wheels.foreign_libraries(env))
    finally:
        moved.rename(library)
    assert not wheels.foreign_libraries(env)


def test_there_is_no_compiler(env):
    found = [
        c
        for c in ("c++", "g++", "gcc", "cc", "clang++", "cmake", "ninja", "ld")
        if shutil.which(c, path=env.variables["PATH"])
    ]
    assert not found


@pytest.mark.skipif(
    RUNNER is None, reason="no folder shared/seeds above this repository: the specification's programs are not here"
)
def test_the_specifications_programs(env):
    done = subprocess.run(
        [sys.executable, RUNNER, "--python", env.python], env=env.variables, capture_output=True, text=True
    )
    passed = re.findall(r"^pass  (\S+)", done.stdout, re.M)
    assert passed == PROGRAMS, done.stdout + done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    digits.write(folder / "mnist", 500, 100)
    return folder


STARTED = {  # how a program is started on two ranks
    "holon-launch": lambda env: [env.bin / "holon-launch"],
    "holon": lambda env: [env.python, "-m", "holon.distributed.launch"],
    "oneflow": lambda env: [env.python, "-m", "oneflow.distributed.launch"],
}


@pytest.mark.parametrize("launcher", STARTED)
def test_every_launcher(env, launcher):
    out = env.run(
        *STARTED[launcher](env), "--nproc_per_node", 2, "--master_port", free_port(), ROOT / "examples/python/hello.py"
    )
    assert "rank 0 of 2 holds" in out and "rank 1 of 2 holds" in out and out.count("the sum is 28.0") == 2


@pytest.mark.parametrize(
    "program, ranks, said",
    [
        ("examples/python/data_parallel.py", 2, r"step 100  loss 0\.5"),
        ("examples/python/mlp.py", 1, r"9\d\.\d% of 1000 new points are told apart"),
        ("examples/python/lenet_mnist.py --batch 50", 2, r"of 100 test digits are right"),
        ("examples/gpt/train.py --tp 2 --steps 3 --layers 1 --width 32 --length 32 --batch 4 --sample 8", 2, r"loss"),
        (
            "examples/gpt/train.py --pipeline 2 --steps 3 --layers 2 --width 32 --length 32 --batch 4 --sample 8",
            2,
            r"loss",
        ),
    ],
)
def test_the_examples(env, data, program, ranks, said):
    path, *arguments = program.split()
    start = (
        [env.bin / "holon-launch", "--nproc_per_node", ranks, "--master_port", free_port()]
        if ranks > 1
        else [env.python]
    )
    out = env.run(*start, ROOT / path, *arguments, env={"HOLON_DATA_DIR": str(data)})
    assert re.search(said, out), out


def test_programs_in_cpp_find_it(env, tmp_path):
    cache = (ROOT / "build/dev/CMakeCache.txt").read_text()
    same = [
        f"-D{k}={re.search(rf'^{k}:[A-Z]+=(.*)$', cache, re.M).group(1)}"
        for k in ("CMAKE_MAKE_PROGRAM", "CMAKE_CXX_COMPILER")
    ]
    wheels.run(
        "cmake",
        "-G",
        "Ninja",
        "-S",
        ROOT / "tests/install/consumer",
        "-B",
        tmp_path,
        f"-DCMAKE_PREFIX_PATH={env.package}",
        *same,
    )
    wheels.run("cmake", "--build", tmp_path)
    assert env.run(tmp_path / "consumer") == "[2, 1] 6\nlearnt\n"
