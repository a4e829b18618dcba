"""What is loaded as a backend, and what is refused."""

import os
import subprocess
import sys

import pytest
from harness.ranks import ROOT, environment

import holon as flow

SOURCE = """
#include <string>
#ifdef VERSION
extern "C" const char* holon_device_version() { return "holon_device_version=" VERSION; }
#endif
extern "C" const char* holon_device_names() { return NAMES; }
extern "C" void* holon_device_start(unsigned char type, std::string* why_not) {
  *why_not = "the shelf is empty";
  return nullptr;
}
"""


def build(path, names, version=flow.__version__):
    source = path.with_suffix(".cpp")
    source.write_text(SOURCE)
    flags = [f'-DNAMES="{names}"'] + ([f'-DVERSION="{version}"'] if version else [])
    subprocess.run(["c++", "-shared", "-fPIC", *flags, source, "-o", path], check=True)
    return path


def refused(path, *words):
    before = flow._C.device_types()
    with pytest.raises(RuntimeError, match="load_device_library: ") as error:
        flow.load_device_library(path)
    for word in (str(path), *words):
        assert word in str(error.value), error.value
    assert flow._C.device_types() == before


def test_a_library_is_loaded_once():
    assert flow.device("toy:2").type == "toy" and flow.device("plaything:2") == flow.device("toy:2")
    types = flow._C.device_types()
    assert flow.load_device_library(os.environ["HOLON_DEVICE_LIBRARIES"]) == "toy"
    assert flow._C.device_types() == types and types[:1] == ["cpu"]


def test_what_is_refused(tmp_path):
    flow.device("toy")
    refused(tmp_path / "none.so", "there is no file")
    text = tmp_path / "text.so"
    text.write_text("no library")
    refused(text, "cannot be loaded")
    refused(build(tmp_path / "old.so", "robot", "77.8.9"), "is version 77.8.9", flow.__version__)
    refused(build(tmp_path / "unversioned.so", "robot", None), "it is not a device backend of Holon")
    refused(build(tmp_path / "twin.so", "doll toy"), "the name toy is that of another type of devices")
    refused(build(tmp_path / "cuda.so", "cuda"), "HOLON_CUDA_LIBRARY")


PROGRAM = """
import sys
import holon as flow
print(flow.load_device_library(sys.argv[1]), flow._C.device_types())
for wrong in ("robot", "robot:0"):
    try:
        flow.device(wrong)
    except RuntimeError as error:
        print(error)
try:
    flow.placement("robot", [0])
except RuntimeError as error:
    print(error)
"""


def test_a_type_without_a_device_says_why(tmp_path):
    library = build(tmp_path / "robot.so", "robot")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library],
        env=environment(HOLON_DEVICE_LIBRARIES=""),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "robot ['cpu', 'cuda', 'robot']"
    assert rest == ['a robot device was requested and there is none: the shelf is empty. Use "cpu".'] * 3


def test_a_list_with_a_file_that_is_not_there(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import holon; print(holon.ones(2).sum().item()); holon.device('robot')"],
        env=environment(HOLON_DEVICE_LIBRARIES=tmp_path / "none.so"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "2.0\n" and done.returncode != 0  # nobody needs it until a device is asked for
    assert "load_device_library: there is no file" in done.stderr


VARIANTS = """
#include <holon/array/device_runtime.h>
#include <holon/kernels/copy.h>
#include <holon/kernels/variants.h>
namespace {
void fill(holon::Array&, holon::Scalar) {}
HOLON_DEVICE_KERNEL(fill, fill);
#ifdef WRONG
void copy(const holon::Array&, const holon::Array&) {}
HOLON_DEVICE_KERNEL(copy, copy);
#endif
}
namespace again {
HOLON_DEVICE_KERNEL(fill, fill);
}
holon::DeviceRuntime* start(holon::DeviceType, std::string*) { return nullptr; }
HOLON_DEVICE_BACKEND("robot", start)
"""


@pytest.mark.slow
def test_variants_that_are_wrong(tmp_path):
    source = tmp_path / "variants.cpp"
    source.write_text(VARIANTS)
    built = ROOT / "build/dev"
    command = ["c++", "-std=c++20", "-DFMT_SHARED", f"-I{ROOT}", f"-I{built}/generated", source]
    done = subprocess.run([*command, "-DWRONG", "-fsyntax-only"], capture_output=True, text=True)
    assert done.returncode != 0 and "the variant's parameters are not those of copy" in done.stderr
    library = tmp_path / "twice.so"
    subprocess.run([*command, "-shared", "-fPIC", "-o", library, built / "lib/libholon.so"], check=True)
    program = """if True:
        import sys
        import holon as flow
        for call in (flow.load_device_library, lambda path: flow.device("robot")):
            try:
                call(sys.argv[1])
            except RuntimeError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", program, library], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.count("the kernel fill has two variants for robot devices") == 2, done
