"""The wheels carry what they need: in an empty environment, without a compiler,
they run the specification's programs and the examples."""

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from harness import digits, docs
from harness.installed import same_tools
from harness.ranks import ROOT
from harness.specification import PROGRAMS, RUNNER

spec = importlib.util.spec_from_file_location("wheels", ROOT / "tools/wheels.py")
wheels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wheels)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # the build is seconds where the compiler's cache has ./dev build's objects


# Of another Python, as a tree has it in which ./dev build ran with one.
STRAY = ROOT / "python/holon/_C.cpython-39-x86_64-linux-gnu.so"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if not (ROOT / "build/dev/CMakeCache.txt").exists():
        pytest.skip("build/dev is not there: ./dev build")
    dist = tmp_path_factory.mktemp("wheels") / "dist"
    STRAY.write_text("no extension")
    try:
        wheels.build(dist)
    finally:
        STRAY.unlink()
    return wheels.wheels_for(dist)


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
    assert [n for n in names if "/_C." in n and n.endswith(".so")] == [
        f"holon/_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    ]
    # Each library that comes along brings its licence.
    libraries = [n for n in names if re.match(r"holon/lib/lib(?!holon)[^/]*\.so[.\d]*$", n)]
    assert libraries and all(f"{n}.copyright" in names for n in libraries)


def test_they_say_how_new_a_glibc_they_need(built):
    assert re.search(r"-manylinux_2_\d+_x86_64\.whl$", built[1].name) or platform.machine() != "x86_64"


def test_what_is_loaded_comes_from_inside(env, tmp_path):
    wheels.check_libraries(env, tmp_path)


def test_a_tensor_of_eight_ranks_is_drawn(env, tmp_path):
    wheels.check_picture(env, tmp_path)


def test_a_bundled_library_is_loaded_by_itself(env):
    libraries = [p for p in env.package.glob("lib/lib*.so*") if p.suffix != ".copyright"]
    assert libraries
    load = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    for path in libraries:
        env.run(env.python, "-c", load, path)


def test_the_version(env):
    say = "import holon, importlib.metadata; print(holon.__version__, importlib.metadata.version('holon-tensor'))"
    ours, theirs = env.run(env.python, "-c", say).split()
    assert ours == theirs


def test_the_tutorial_with_the_extra_for_notebooks(built, tmp_path):
    wheels.run_tutorial(wheels.Environment(tmp_path / "env", built, notebook=True))


BACKEND = """
#include <string>
extern "C" const char* holon_device_version() { return "holon_device_version=" VERSION; }
extern "C" const char* holon_device_names() { return "cuda"; }
extern "C" void* holon_device_start(unsigned char, std::string* why_not) {
  *why_not = "the fake was loaded";
  return nullptr;
}
"""


def test_where_the_backend_for_cuda_devices_is_found(env, tmp_path):
    """Beside the library, or in the package holon_cuda: of the same folder of packages, or another one."""
    version = env.run(env.python, "-c", "import holon; print(holon.__version__)").strip()
    source = tmp_path / "backend.cpp"
    source.write_text(BACKEND)

    def backend(folder, version):
        folder.mkdir(exist_ok=True)
        command = ["c++", "-shared", "-fPIC", f'-DVERSION="{version}"', source, "-o", folder / "libholon_cuda.so"]
        wheels.run(*command)
        return folder / "libholon_cuda.so"

    def said(**variables):
        return env.run(env.python, "-c", "import holon; print(holon._C.why_no_device())", env=variables).strip()

    assert f"pip install holon-tensor-cuda=={version}" in said()
    other = backend(tmp_path / "holon_cuda", version)
    assert said(PYTHONPATH=str(tmp_path)) == "the fake was loaded"
    same = backend(env.package.parent / "holon_cuda", "77.8.9")
    beside = None
    try:
        assert f"{same} is version 77.8.9 and Holon is version {version}" in said()
        same.unlink()
        other.rename(same)
        assert said() == "the fake was loaded"
        beside = backend(env.package / "lib", "66.8.9")
        assert f"{beside} is version 66.8.9" in said()
    finally:
        shutil.rmtree(same.parent)
        if beside:
            beside.unlink()


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
    out = env.run(*STARTED[launcher](env), "--nproc_per_node", 2, ROOT / "examples/python/hello.py")
    assert "rank 0 of 2 holds" in out and "rank 1 of 2 holds" in out and out.count("the sum is 28.0") == 2


@pytest.mark.parametrize("command", [lambda env: [env.bin / "holon"], lambda env: [env.python, "-m", "holon"]])
def test_the_command(env, command, tmp_path):
    path = tmp_path / "a.safetensors"
    env.run(env.python, "-c", f"import holon as flow; flow.save({{'w': flow.ones(2, 3)}}, {str(path)!r})")
    assert "w  float32  [2, 3]  24 B" in env.run(*command(env), "checkpoint", "inspect", path)


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
    start = [env.bin / "holon-launch", "--nproc_per_node", ranks] if ranks > 1 else [env.python]
    out = env.run(*start, ROOT / path, *arguments, env={"HOLON_DATA_DIR": str(data)})
    assert re.search(said, out), out


def build_outside(source, binary, env):
    """A project in C++, against the installed package."""
    wheels.run("cmake", "-G", "Ninja", "-S", source, "-B", binary, f"-DCMAKE_PREFIX_PATH={env.package}", *same_tools())
    wheels.run("cmake", "--build", binary)


def test_programs_in_cpp_find_it(env, tmp_path):
    build_outside(ROOT / "tests/install/consumer", tmp_path, env)
    assert env.run(tmp_path / "consumer") == "[2, 1] 6\nlearnt\n"


def test_a_model_in_cpp_is_trained_from_python(env, tmp_path):
    blocks = docs.blocks((ROOT / "docs/guides/cpp.md").read_text())
    project = next(b.text for b in blocks if b.language == "cmake" and "MODULE" in b.text)
    (tmp_path / "CMakeLists.txt").write_text(project)
    shutil.copy(ROOT / "examples/both/models.cpp", tmp_path)
    build_outside(tmp_path, tmp_path / "build", env)
    library = tmp_path / "build/libmodels.so"
    out = env.run(env.python, ROOT / "examples/both/train.py", "--epochs", 15, "--library", library)
    assert re.search(r"(100|9\d)\.\d% of 300 new points are right", out), out
