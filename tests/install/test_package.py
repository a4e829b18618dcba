"""The Debian package that CPack makes of a build: what is in it, what it needs, and that programs are compiled against
it."""

import os
import re
import shutil
import subprocess

import pytest
from harness.installed import BUILD, needs_build, same_tools, sh, soname_version
from harness.ranks import ROOT

pytestmark = [pytest.mark.slow, needs_build]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file") if not shutil.which(tool)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("package")
    sh("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", folder)
    (made,) = folder.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def root(package, tmp_path_factory):
    """The package unpacked, as another root would have it."""
    folder = tmp_path_factory.mktemp("root")
    sh("dpkg-deb", "-x", package, folder)
    return folder


def field(package, name):
    return sh("dpkg-deb", "-f", package, name).strip()


def test_its_name_and_what_it_needs(package):
    assert package.name == f"holon-dev_{field(package, 'Version')}_{field(package, 'Architecture')}.deb"
    assert field(package, "Package") == "holon-dev" and field(package, "Section") == "libdevel"
    assert field(package, "Architecture") == sh("dpkg", "--print-architecture").strip()
    needed = {d.split()[0] for d in field(package, "Depends").split(", ")}
    assert {"libc6", "libstdc++6", "libgomp1", "libdnnl2", "libsodium23", "zlib1g"} <= needed, needed
    assert not [name for name in needed if name.startswith("holon")]


def test_what_packages_of_programs_depend_on(package, tmp_path):
    sh("dpkg-deb", "-e", package, tmp_path)
    library, abi, needed = (tmp_path / "shlibs").read_text().split(maxsplit=2)
    assert (library, abi) == ("libholon", soname_version())
    version = field(package, "Version")
    least, below = re.fullmatch(r"holon-dev \(>= (\S+)\), holon-dev \(<< (\S+)\)\n", needed).groups()
    for release, fits in ((version, True), (f"{abi}.99", True), (below, False), ("0.0.9", False)):
        compare = ["dpkg", "--compare-versions", release]
        inside = all(subprocess.call([*compare, *bound]) == 0 for bound in (("ge", least), ("lt", below)))
        assert inside == fits, release
    assert (tmp_path / "triggers").read_text() == "activate-noawait ldconfig\n"


def test_its_files(package, root):
    files = {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}
    assert all(f.startswith("usr/") for f in files)
    wanted = ("usr/include/holon/holon.h", "usr/include/holon/ops.h", "usr/bin/holon-launch", "usr/bin/holon")
    assert set(wanted) <= files
    assert f"usr/lib/libholon.so.{soname_version()}" in files and "usr/lib/libholon.so" in files
    assert "usr/lib/pkgconfig/holon.pc" in files and "usr/share/doc/holon-dev/copyright" in files
    assert not [f for f in files if "/usr/local" in f or f.endswith((".cpp", ".o", ".a"))]
    assert "(debuglink)" not in sh("file", root / "usr/lib/libholon.so")
    assert "not stripped" not in sh("file", "-L", root / "usr/lib/libholon.so")


def test_a_program_is_compiled_against_it_and_runs(root, tmp_path):
    binary = tmp_path / "build"
    found = f"-DHolon_DIR={root}/usr/lib/cmake/Holon"
    sh("cmake", "-G", "Ninja", "-S", ROOT / "tests/install/consumer", "-B", binary, *same_tools(), found)
    sh("cmake", "--build", binary)
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    assert sh(binary / "consumer", env=environment) == "[2, 1] 6\nlearnt\n"
