"""What a new op compiles again: its own source, the functions of all ops, and what includes holon/ops.h or
holon/op_names.h, which are for users. Everything in the tree includes the headers of the families that it uses."""

import shutil
import subprocess
import sys

import pytest
from harness.ranks import ROOT

BUILD = ROOT / "build/dev"
MOST = 25
NEW_OP = """
#include "holon/dispatch/dispatch.h"
HOLON_OP(seventh_of, "seventh_of(Tensor x) -> Tensor").doc("x / 7.");
"""


def generate(folder, sources):
    subprocess.run([sys.executable, ROOT / "tools/generate_ops.py", folder, *sources], check=True)
    return {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The generated files as they are, and those that a new family of one op writes or changes."""
    sources = sorted((ROOT / "holon/ops").glob("*.cpp"))
    folder = tmp_path_factory.mktemp("generated")
    before = generate(folder, sources)
    times = {name: (folder / name).stat().st_mtime_ns for name in before}
    new = tmp_path_factory.mktemp("ops") / "seventh.cpp"
    new.write_text(NEW_OP)
    after = generate(folder, [*sources, new])
    changed = {name for name in after if (folder / name).stat().st_mtime_ns != times.get(name)}
    gone = generate(folder, sources)
    return before, changed, after, gone


def test_a_new_op_changes_its_own_files_and_the_sums(written):
    before, changed, after, gone = written
    own = {f"holon/{folder}/seventh.h" for folder in ("ops", "internal_ops", "op_names")}
    assert changed == own | {"holon/ops.h", "holon/internal_ops.h", "holon/op_names.h", "ops_functions.cpp"}
    assert "Tensor seventh_of(const Tensor& x);" in after["holon/ops/seventh.h"]
    assert '#include "holon/ops/seventh.h"' in after["holon/ops.h"]
    assert gone == before


def test_few_objects_depend_on_the_sums():
    if not (BUILD / "build.ninja").exists():
        pytest.skip("build/dev is not there: ./dev build")
    listed = subprocess.run(["ninja", "-C", BUILD, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    users = set()
    for entry in listed.split("\n\n"):
        target, *files = entry.splitlines() or [""]
        sums = tuple(f"generated/holon/{name}.h" for name in ("ops", "internal_ops", "op_names"))
        if any(f.strip().endswith(sums) for f in files):
            users.add(target.split(":")[0])
    assert any("examples" in u for u in users), "the examples include holon/holon.h"
    assert any("ops_functions" in u for u in users)
    rebuilt = sorted(users) + ["the op's source"]
    assert len(rebuilt) <= MOST, (
        "a new op compiles these again: include the header of the ops' family, holon/ops/<family>.h or "
        "holon/op_names/<family>.h, where holon.h, ops.h or op_names.h is not the point:\n" + "\n".join(rebuilt)
    )


def test_a_source_with_its_own_header_declares_no_ops(tmp_path):
    shutil.copy(ROOT / "holon/ops/values.h", tmp_path)
    source = tmp_path / "values.cpp"
    source.write_text(NEW_OP)
    done = subprocess.run(
        [sys.executable, ROOT / "tools/generate_ops.py", tmp_path / "generated", source], capture_output=True, text=True
    )
    assert done.returncode == 1 and "values.cpp declares ops" in done.stderr
