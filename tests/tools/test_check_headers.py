"""The check of the headers finds what it is for."""

import subprocess
import sys

import pytest
from harness.ranks import ROOT

GOOD = "#pragma once\n#include <vector>\nstd::vector<int> f();\n"
FIRST, OWN = '#include "holon/a.h"\n', '#include "holon/own.h"\n'
LEANING = "#pragma once\nstd::vector<int> g();\n"  # on what was included before


@pytest.mark.parametrize(
    "files, said",
    [
        ({"a.h": GOOD}, "1 headers, of which 1 were compiled: 0 errors"),
        ({"a.h": GOOD, "b.h": LEANING}, "holon/b.h:"),
        ({"a.h": GOOD, "a.cpp": '// Why.\n#include "holon/a.h"\n'}, "1 headers, of which 0 were compiled: 0 errors"),
        ({"b.h": LEANING, "a.cpp": '#include <vector>\n#include "holon/b.h"\n'}, "holon/b.h:"),
        (
            {"a.h": GOOD.replace("#pragma once", ""), "a.cpp": '#include "holon/a.h"\n'},
            "holon/a.h: it does not say #pragma once",
        ),
        ({"a.h": GOOD, "loop_body.h": "no header at all"}, "1 headers, of which 1 were compiled: 0 errors"),
        ({"a.h": GOOD + "#include <fmt/format.h>\n", "a.cpp": FIRST}, "it is installed and includes <fmt/format.h>"),
        ({"a.h": GOOD + "#include <zlib.h>\n", "a.cpp": FIRST}, "it is installed and includes <zlib.h>"),
        ({"a.h": GOOD, "own.h": GOOD + "#include <zlib.h>\n", "a.cpp": FIRST, "own.cpp": OWN}, ": 0 errors"),
        ({"a.h": GOOD + '#include "holon/own.h"\n', "own.h": GOOD, "a.cpp": FIRST}, 'includes "holon/own.h"'),
        ({}, "0 headers"),
    ],
)
def test_headers(files, said, tmp_path):
    (tmp_path / "holon").mkdir()
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake/Install.cmake").write_text(r'set(HOLON_PRIVATE_HEADERS "/holon/own\\.h$")')
    for name, text in files.items():
        (tmp_path / "holon" / name).write_text(text)
    done = subprocess.run(
        [sys.executable, ROOT / "tools/check_headers.py", tmp_path, "c++", "-std=c++20", f"-I{tmp_path}"],
        capture_output=True,
        text=True,
    )
    assert said in done.stdout, done.stdout + done.stderr
    assert (done.returncode == 0) == (" 0 errors" in done.stdout and "0 headers" not in done.stdout)
