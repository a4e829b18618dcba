"""The command `holon`, as it is called at the shell."""

import json
import subprocess
import sys

import pytest
from harness.ranks import environment

import holon as flow


def holon(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "holon", *map(str, arguments)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.safetensors"
    flow.manual_seed(1)
    flow.save({"weight": flow.randn(6, 4), "bias": flow.zeros(4)}, path)
    return path


def test_inspect(saved):
    done = holon("checkpoint", "inspect", saved)
    assert done.returncode == 0 and "weight  float32  [6, 4]  96 B" in done.stdout, done.stderr
    found = json.loads(holon("checkpoint", "inspect", "--json", saved).stdout)
    assert found["bytes"] == 112 and [t["name"] for t in found["tensors"]] == ["weight", "bias"]


def test_convert_verify_and_diff(saved, tmp_path):
    for arguments in (
        ("convert", saved, tmp_path / "hf", "--format", "hf", "--shard-size", "100"),
        ("reshard", tmp_path / "hf", tmp_path / "parts", "--files", 2),
        ("convert", tmp_path / "parts", tmp_path / "b.safetensors"),
        ("verify", tmp_path / "parts"),
        ("diff", saved, tmp_path / "b.safetensors"),
    ):
        done = holon("checkpoint", *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert (tmp_path / "hf/model-00002-of-00002.safetensors").exists()
    again = flow.load(tmp_path / "hf")
    assert (again["weight"] == flow.load(saved)["weight"]).all()


def test_what_differs(saved, tmp_path):
    flow.save({"weight": flow.load(saved)["weight"] + 1, "more": flow.ones(2)}, tmp_path / "b.safetensors")
    done = holon("checkpoint", "diff", saved, tmp_path / "b.safetensors")
    assert done.returncode == 1 and done.stdout.splitlines()[0] == "bias: is in A only"
    assert "weight: 24 of 24 elements differ, by up to 1" in done.stdout and "more: is in B only" in done.stdout


def test_damage_is_found(saved):
    data = bytearray(saved.read_bytes())
    data[-3] ^= 4
    saved.write_bytes(data)
    done = holon("checkpoint", "verify", saved)
    assert done.returncode == 2 and str(saved) in done.stderr and not done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "subcommand is required"),
        (("checkpoint",), "subcommand is required"),
        (("checkpoint", "inspect"), "path is required"),
        (("checkpoint", "inspect", "/no/such/file"), "/no/such/file"),
        (("checkpoint", "convert", "/no/such/file", "/tmp/x", "--format", "zip"), "--format"),
        (("checkpoint", "reshard", "a", "b", "--files", "0"), "files is 0"),
    ],
)
def test_mistakes(arguments, message):
    done = holon(*arguments)
    assert done.returncode == 2 and message in done.stderr and done.stderr.startswith("holon: "), done


def test_help_lists_the_commands():
    done = holon("checkpoint", "--help")
    assert done.returncode == 0
    for name in ("inspect", "verify", "diff", "convert", "reshard"):
        assert name in done.stdout
