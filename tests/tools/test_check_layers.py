"""The check of the layers finds what it is for."""

import subprocess
import sys

import pytest
from harness.ranks import ROOT

CHECK = ROOT / "tools/check_layers.py"


def run(root):
    done = subprocess.run([sys.executable, str(CHECK), str(root)], capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path):
    files = {
        "holon/CMakeLists.txt": "set(HOLON_LAYERS base array ops)\n",
        "holon/base/CMakeLists.txt": "holon_layer(base error.cpp)\n",
        "holon/base/error.h": "",
        "holon/base/error.cpp": '#include "holon/base/error.h"\n',
        "holon/array/CMakeLists.txt": (
            "set(HOLON_FOLDERS host . cpu)\n"
            "foreach(i x y)\n  list(APPEND s cpu/loop_${i}.cpp)\nendforeach()\nholon_layer(array ${s})\n"
        ),
        "holon/array/array.h": '#include "holon/base/error.h"\n',
        "holon/array/host/page.h": "",
        "holon/array/cpu/loop_x.cpp": '#include "holon/array/array.h"\n',
        "holon/ops/CMakeLists.txt": "file(GLOB rooms *.cpp)\nholon_layer(ops ${rooms})\n",
        "holon/ops/sum.cpp": (
            '#include "holon/ops/scan.h"\n#include "holon/op_names/scan.h"\n#include "holon/array/array.h"\n'
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_this_tree():
    code, out = run(ROOT)
    assert code == 0, out


def test_a_good_tree(tree):
    assert run(tree) == (0, "layers: 3 in order\n")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("holon/base/error.h", '#include "holon/array/array.h"\n', "array is above base"),
        ("holon/array/array.h", "#  include <holon/ops/scan.h>\n", "ops is above array"),
        ("holon/base/lost.cpp", "", "holon/base/lost.cpp: no source of"),
        ("holon/array/cpu/other.cpp", "", "holon/array/cpu/other.cpp: no source of"),
        ("holon/attic/old.h", "", "holon/attic: not in HOLON_LAYERS"),
        ("holon/array/array.h", '#include "holon/array/cpu/loop.h"\n', "cpu is above . in holon/array"),
        ("holon/array/host/page.h", '#include "holon/array/array.h"\n', ". is above host in holon/array"),
        ("holon/array/simd/vec.h", "", "holon/array/simd: not in HOLON_FOLDERS"),
        ("holon/base/posix/file.h", "", "holon/base/posix: not in HOLON_FOLDERS"),
        ("holon/ops/max.cpp", '#include "holon/holon.h"\n', "which is for users"),
        ("holon/ops/max.cpp", '#include "holon/ops.h"\n', "which is for users"),
    ],
)
def test_a_fault_is_found(tree, name, text, message):
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    code, out = run(tree)
    assert code == 1 and message in out and len(out.splitlines()) == 1


def test_comments_do_not_count(tree):
    (tree / "holon/base/error.h").write_text('// #include "holon/array/array.h"\n/*\n#include "holon/ops.h"\n*/\n')
    assert run(tree)[0] == 0
