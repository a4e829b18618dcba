"""Where NVIDIA's libraries are found: folders of fake ones, as PyPI's packages and toolkits lay them out.
No device is needed."""

import os
import shutil
import subprocess
import sys

import pytest

import holon

CXX = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(CXX is None, reason="there is no compiler for the fake libraries")


def library(path, code, *options):
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".cpp")
    source.write_text(code)
    subprocess.run(
        [CXX, "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, source, *options],
        check=True,
        capture_output=True,
    )
    return path


def run(program, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


FIND = """
import sys
sys.path.append(sys.argv[2])  # before the import, as site-packages are
import holon as flow
path, missing = flow._C.load_vendor_library(sys.argv[1])
print(path if path else "missing: " + missing)
assert flow.cuda.libraries()[sys.argv[1]] == (path or "not found: " + missing)
"""


def test_in_a_package_of_pypi(tmp_path):
    there = library(tmp_path / "site/nvidia/fake/lib/libholonfake.so.7", "int seven() { return 7; }")
    assert run(FIND, "libholonfake.so.7", tmp_path / "site") == str(there)


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
@pytest.mark.parametrize("folder", ["lib64", "lib"])
def test_in_a_toolkit(tmp_path, variable, folder):
    there = library(tmp_path / "cuda" / folder / "libholonfake.so.7", "int seven() { return 7; }")
    assert run(FIND, "libholonfake.so.7", tmp_path / "none", **{variable: str(tmp_path / "cuda")}) == str(there)


def test_the_loader_comes_first_and_packages_before_toolkits(tmp_path):
    package = library(tmp_path / "site/nvidia/cu13/lib/libholonfake.so.7", "int seven() { return 7; }")
    toolkit = library(tmp_path / "cuda/lib64/libholonfake.so.7", "int seven() { return 7; }")
    loader = library(tmp_path / "path/libholonfake.so.7", "int seven() { return 7; }")
    environment = {"CUDA_HOME": str(tmp_path / "cuda")}
    assert run(FIND, "libholonfake.so.7", tmp_path / "site", **environment) == str(package)
    assert run(FIND, "libholonfake.so.7", tmp_path / "site", LD_LIBRARY_PATH=str(loader.parent), **environment) == str(
        loader
    )
    package.unlink()
    assert run(FIND, "libholonfake.so.7", tmp_path / "site", **environment) == str(toolkit)


def test_what_a_library_needs_is_found_too(tmp_path):
    site = tmp_path / "site/nvidia"
    inner = library(site / "cu13/lib/libholoninner.so.1", "int one() { return 1; }")
    middle = library(site / "other/lib/libholonmiddle.so.2", "int one(); int two() { return one() + 1; }", str(inner))
    outer = library(site / "cudnn/lib/libholonouter.so.3", "int two(); int three() { return two() + 1; }", str(middle))
    program = FIND + "import ctypes; print(ctypes.CDLL(path)._Z5threev())"
    assert run(program, "libholonouter.so.3", tmp_path / "site").split() == [str(outer), "3"]
    inner.unlink()
    text = run(FIND, "libholonouter.so.3", tmp_path / "site")
    assert text.startswith("missing") and "libholonouter.so.3 needs" in text and "libholoninner.so.1" in text, text


def test_what_is_nowhere_or_broken_says_where_it_was_looked_for(tmp_path):
    text = run(FIND, "libholonfake.so.7", tmp_path)
    assert "libholonfake.so.7" in text and "nvidia/*/lib" in text and "/usr/local/cuda*" in text, text
    broken = tmp_path / "site/nvidia/fake/lib/libholonfake.so.7"
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    text = run(FIND, "libholonfake.so.7", tmp_path / "site")
    assert text.startswith("missing") and str(broken) in text, text


BACKEND = """
#include <string>
int seven();
#ifdef VERSION
extern "C" const char* holon_device_version() { return "holon_device_version=" VERSION; }
#endif
extern "C" const char* holon_device_names() { return "cuda"; }
extern "C" void* holon_device_start(unsigned char, std::string* why_not) {
  *why_not = "the fake was loaded " + std::to_string(seven());
  return nullptr;
}
"""
SEVEN = "int seven() { return 7; }"
OURS = '-DVERSION="' + holon.__version__ + '"'
ASK = "import sys; sys.path.append(sys.argv[1]); import holon as flow; print(flow._C.why_no_device())"


def test_the_backend_loads_when_what_it_needs_is_in_a_package_only(tmp_path):
    need = library(tmp_path / "site/nvidia/cu13/lib/libholonfake.so.7", SEVEN)
    backend = library(tmp_path / "libbackend.so", BACKEND, OURS, str(need))
    assert run(ASK, tmp_path / "site", HOLON_CUDA_LIBRARY=str(backend)) == "the fake was loaded 7"
    need.unlink()
    text = run(ASK, tmp_path / "site", HOLON_CUDA_LIBRARY=str(backend))
    assert f"{backend} cannot be loaded: " in text and "libholonfake.so.7" in text and "nvidia/*/lib" in text, text


OTHER = """
import sys, warnings
sys.path.append(sys.argv[1])
import holon as flow
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    assert not flow.cuda.is_available()
print([str(w.message) for w in seen])
try:
    flow.ones(2, device="cuda")
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("loads", [True, False], ids=["which loads", "which does not"])
def test_a_backend_of_another_version(tmp_path, loads):
    code = BACKEND + (SEVEN if loads else "")  # a function that this version of the library does not have
    backend = library(tmp_path / "libbackend.so", code, '-DVERSION="77.8.9"')
    warned, raised = run(OTHER, tmp_path, HOLON_CUDA_LIBRARY=str(backend)).splitlines()
    told = f"{backend} is version 77.8.9 and Holon is version {holon.__version__}: they must be the same. "
    told += f"pip install holon-tensor-cuda=={holon.__version__}"
    assert told in warned and told in raised, warned + raised


def test_a_library_that_is_no_backend(tmp_path):
    for code in (SEVEN, BACKEND + SEVEN):
        other = library(tmp_path / "libother.so", code)
        text = run(ASK, tmp_path, HOLON_CUDA_LIBRARY=str(other))
        assert text == f"{other} cannot be loaded: it is not a CUDA backend of Holon"


def test_no_backend_is_no_fault(tmp_path):
    there_is_none = str(tmp_path / "libnone.so")
    warned, raised = run(OTHER, tmp_path, HOLON_CUDA_LIBRARY=there_is_none).splitlines()
    assert warned == "[]" and f"{there_is_none} is not there" in raised, warned + raised
    assert f"pip install holon-tensor-cuda=={holon.__version__}" in raised and "./dev build --cuda" in raised, raised
