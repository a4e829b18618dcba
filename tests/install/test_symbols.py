"""What the shared libraries export: what is declared in namespace holon, with the version of the ABI, and nothing of
another library (cmake/symbols.map.in, docs/guides/versioning.md)."""

import re

import pytest
from harness.installed import BUILD, needs_build, sh, soname_version
from harness.ranks import ROOT

pytestmark = needs_build
VERSION = f"HOLON_{soname_version()}"
C_FUNCTIONS = re.compile(r"holon_\w+")


def exported(library):
    """[(name, version)] of what a shared library defines for others, without the versions' own symbols."""
    lines = sh("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    parts = [(name, version) for name, _, version in (re.split(r"(@+|$)", n, maxsplit=1) for n in names)]
    return [(name, version) for name, version in parts if name != version]


def libraries():
    return [BUILD / "lib/libholon.so", *sorted(BUILD.glob("lib/libholon_gloo.so")), *BUILD.glob("lib/libholon_ucx.so")]


@pytest.mark.parametrize("library", libraries(), ids=lambda p: p.name)
def test_every_symbol_is_holons_and_has_the_version(library):
    symbols = [(n, v) for n, v in exported(library) if n != VERSION]
    assert symbols, "nothing is exported"
    assert not [n for n, v in symbols if v != VERSION]
    # The first name in a mangled one, behind what says of which kind the symbol is.
    kinds = r"_Z(?:T[ISVTC]|TWN?|THN?|Th\w+?_|Tv0_n\w+?_|GV|GR)?Z?(?:N[KRO]*)?5holon"
    assert not [n for n, _ in symbols if not (re.match(kinds, n) or C_FUNCTIONS.fullmatch(n))]


def test_the_public_functions_are_there():
    names = {name for name, _ in exported(BUILD / "lib/libholon.so")}
    demangled = set(sh("c++filt", *sorted(n for n in names if "matmul" in n or "Graph" in n)).splitlines())
    assert "holon::matmul(holon::Tensor const&, holon::Tensor const&)" in demangled
    assert "vtable for holon::nn::Graph" in demangled and "typeinfo for holon::nn::Graph" in demangled


def test_the_name_has_the_version():
    said = sh("objdump", "-p", BUILD / "lib/libholon.so")
    assert re.search(r"^\s+SONAME\s+(\S+)$", said, re.M).group(1) == f"libholon.so.{soname_version()}"


@pytest.mark.slow
def test_libraries_of_two_abis_in_one_process(tmp_path):
    """Each caller gets the function of the ABI that it was linked to, whichever was loaded first."""
    template = (ROOT / "cmake/symbols.map.in").read_text()
    for abi in ("0.1", "0.2"):
        (tmp_path / f"{abi}.map").write_text(template.replace("@HOLON_ABI@", abi))
        (tmp_path / f"{abi}.cpp").write_text(f'namespace holon {{ const char* abi() {{ return "{abi}"; }} }}\n')
        named = [f"-Wl,-soname,libholon.so.{abi}", "-o", tmp_path / f"libholon.so.{abi}"]
        sh("g++", "-shared", "-fPIC", tmp_path / f"{abi}.cpp", f"-Wl,--version-script={tmp_path}/{abi}.map", *named)
    for name, abi in (("old", "0.1"), ("new", "0.2")):
        (tmp_path / f"{name}.cpp").write_text(
            f"namespace holon {{ const char* abi(); }}\nconst char* {name}_abi() {{ return holon::abi(); }}\n"
        )
        linked = [tmp_path / f"libholon.so.{abi}", f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / f"lib{name}.so"]
        sh("g++", "-shared", "-fPIC", tmp_path / f"{name}.cpp", *linked)
    (tmp_path / "main.cpp").write_text(
        "#include <cstdio>\nconst char* old_abi();\nconst char* new_abi();\n"
        'int main() { std::printf("%s %s\\n", old_abi(), new_abi()); }\n'
    )
    libraries = [tmp_path / "libold.so", tmp_path / "libnew.so", f"-Wl,-rpath,{tmp_path}"]
    sh("g++", tmp_path / "main.cpp", *libraries, "-o", tmp_path / "main")
    assert sh(tmp_path / "main") == "0.1 0.2\n"


@pytest.mark.slow
def test_a_symbol_of_another_library_would_be_seen(tmp_path):
    source = tmp_path / "other.cpp"
    source.write_text("namespace other { void f() {} }\nnamespace holon { void g() {} }\n")
    sh("g++", "-shared", "-fPIC", source, "-o", tmp_path / "libother.so")
    assert ("_ZN5other1fEv", "") in exported(tmp_path / "libother.so")
    mapped = [f"-Wl,--version-script={BUILD}/generated/symbols.map", "-o", tmp_path / "libmapped.so"]
    sh("g++", "-shared", "-fPIC", source, *mapped)
    assert [s for s in exported(tmp_path / "libmapped.so") if s[0] != VERSION] == [("_ZN5holon1gEv", VERSION)]
