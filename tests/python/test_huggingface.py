"""Other programs' checkpoints: Hugging Face folders in and out, PyTorch files in, quantised weights, and names."""

import json
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from harness import ranks

import holon

S, B = holon.sbp.split, holon.sbp.broadcast


def safetensors_file(tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def f32(*values):
    return struct.pack(f"<{len(values)}f", *values)


def numbers(*shape):
    return holon.arange(int(np.prod(shape))).reshape(*shape).to(holon.float32)


def test_shards_with_an_index(tmp_path):
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(safetensors_file({"a": ("F32", [2], f32(1, 2))}))
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(safetensors_file({"b.c": ("F32", [1], f32(3))}))
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {"a": "model-00001-of-00002.safetensors", "b.c": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 12}, "weight_map": weight_map}))
    for path in (tmp_path, index):
        found = holon.load(path)
        assert {name: t.tolist() for name, t in found.items()} == {"a": [1, 2], "b.c": [3]}
    index.write_text(json.dumps({"weight_map": weight_map | {"d": "../model-00001-of-00002.safetensors"}}))
    with pytest.raises(
        RuntimeError, match="tensor 'd' should be in '../model-00001-of-00002.safetensors', which is not"
    ):
        holon.load(tmp_path)


def test_saved_folders_are_what_the_package_safetensors_reads(tmp_path):
    package = pytest.importorskip("safetensors", reason="the package safetensors is not installed")
    state = {f"layers.{i}.w": numbers(10, 3) + i for i in range(4)}
    state["flag"] = holon.tensor([True, False])
    state["half"] = holon.ones(3, dtype=holon.float16)
    holon.save(state, tmp_path / "m", format="hf", shard_size=250)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 4 * 120 + 2 + 6}
    assert set(index["weight_map"]) == set(state)
    assert set(index["weight_map"].values()) == {f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    for name, file in index["weight_map"].items():
        with package.safe_open(tmp_path / "m" / file, framework="numpy") as f:
            assert f.metadata()["format"] == "pt"
            np.testing.assert_array_equal(f.get_tensor(name), state[name].numpy())


def test_all_ranks_write_into_the_same_files(tmp_path):
    def save(rank):
        everywhere = {}
        place = holon.placement.all("cpu")
        for name, sbp in {"rows": S(0), "columns": S(1), "whole": B}.items():
            everywhere[name] = numbers(8, 6).to_global(place, B).to_global(place, sbp)
        holon.save({"model": everywhere, "local": holon.ones(2)}, tmp_path / "m", format="hf", shard_size="200B")
        back = holon.load(tmp_path / "m", map_location=place, sbp=S(1))
        for name in everywhere:
            assert back[f"model.{name}"].sbp == (S(1),)
            assert back[f"model.{name}"].full_value().tolist() == numbers(8, 6).tolist()

    for n in (2, 3, 4):
        holon.run_ranks(n, save)
        found = holon.load(tmp_path / "m")
        assert set(found) == {"model.rows", "model.columns", "model.whole", "local"}
        assert len(os.listdir(tmp_path / "m")) == 4
    with pytest.raises(ValueError, match="shard_size is '5 apples'"):
        holon.save({}, tmp_path / "m", format="hf", shard_size="5 apples")
    with pytest.raises(ValueError, match="format is 'pt'"):
        holon.save({}, tmp_path / "m", format="pt")
    with pytest.raises(TypeError, match="'epoch'.* is a integer"):
        holon.save({"epoch": 3}, tmp_path / "m", format="hf")


PROGRAM = """
import sys
import holon as flow

place = flow.placement.all("cpu")
rank = flow.env.get_rank()
w = flow.arange(4000).reshape(100, 40).to(flow.float32).to_global(place, flow.sbp.broadcast)
for sbp in (flow.sbp.split(0), flow.sbp.split(1)):
    flow.save({"w": w.to_global(place, sbp), "b": w}, sys.argv[1], format="hf", shard_size=10000)
    back = flow.load(sys.argv[1], map_location=place, sbp=sbp)
    assert (back["w"].to_local() == w.to_global(place, sbp).to_local()).all().item()
try:
    flow.save({"w": w}, sys.argv[1] + "/none/there", format="hf")
except RuntimeError as e:
    assert "rank 0: cannot create" in str(e), e
print("done", rank)
"""


@pytest.mark.parametrize("n", [2, 4])
def test_processes(tmp_path, n):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = ranks.launch(program, n, arguments=[tmp_path / "m"])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["done"] * n + [str(r) for r in range(n)])
    assert sorted(os.listdir(tmp_path / "m")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]


def test_quantised_weights(tmp_path):
    fp8 = bytes([0x38, 0x40, 0xB8, 0x7E])  # 1, 2, -1, 448
    content = safetensors_file(
        {
            "w": ("F8_E4M3", [2, 2], fp8),
            "w_scale_inv": ("F32", [1, 1], f32(0.5)),
            "experts_blocks": ("U8", [1, 1, 16], bytes([0x21] + [0] * 15)),
            "experts_scales": ("U8", [1, 1], bytes([128])),
        }
    )
    (tmp_path / "model.safetensors").write_bytes(content)
    found = holon.load(tmp_path)
    assert found["w"].dtype == holon.float8_e4m3fn and found["w"].tolist() == [[1, 2], [-1, 448]]
    assert found["experts_blocks"].dtype == holon.uint8
    found = holon.load(tmp_path, dequantize=holon.bfloat16)
    assert set(found) == {"w", "experts"} and found["w"].dtype == holon.bfloat16
    assert found["w"].tolist() == [[0.5, 1], [-0.5, 224]]
    assert found["experts"].shape == (1, 32) and found["experts"].tolist()[0][:3] == [1.0, 2.0, 0.0]
    with pytest.raises(TypeError, match="dequantize is int8"):
        holon.load(tmp_path, dequantize=holon.int8)


class Name:
    """Pickled as the global of another module."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


class Stored(tuple):
    """A persistent id."""


class Pickler(pickle._Pickler):
    """In pure Python, so that names of modules that are not there can be written."""

    def persistent_id(self, obj):
        return tuple(obj) if isinstance(obj, Stored) else None

    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Name):
            self.write(f"c{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Call):
            self.save(obj.function)
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(obj, save_persistent_id)


def tensor(key, n, offset, shape, stride, storage="FloatStorage"):
    return Call(
        Name("torch._utils", "_rebuild_tensor_v2"),
        Stored(("storage", Name("torch", storage), key, "cpu", n)),
        offset,
        shape,
        stride,
        False,
        Call(Name("collections", "OrderedDict")),
    )


def write_torch(path, obj, storages, protocol=2):
    """A file as torch.save() writes it, by Python's own modules."""
    import io

    program = io.BytesIO()
    Pickler(program, protocol).dump(obj)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("model/data.pkl", program.getvalue())
        archive.writestr("model/byteorder", "little")
        for key, raw in storages.items():
            archive.writestr(f"model/data/{key}", raw)
        archive.writestr("model/version", "3\n")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_files_of_torch_save(tmp_path, protocol):
    obj = {
        "model": {"w": tensor("0", 6, 0, (2, 3), (3, 1)), "t": tensor("0", 6, 0, (3, 2), (1, 3))},
        "bf16": tensor("1", 3, 1, (2,), (1,), "BFloat16Storage"),
        "optimizer": {
            "state": {0: {"step": 3.0}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}],
        },
        "epoch": 7,
        "name": "näme",
        "none": None,
        "big": 2**40,
    }
    write_torch(tmp_path / "x.pt", obj, {"0": f32(*range(6)), "1": bytes.fromhex("803f0040803f")}, protocol)
    found = holon.load(tmp_path / "x.pt")
    assert found["model"]["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["model"]["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found["bf16"].dtype == holon.bfloat16 and found["bf16"].tolist() == [2, 1]
    assert {k: found[k] for k in ("optimizer", "epoch", "name", "none", "big")} == {
        k: obj[k] for k in ("optimizer", "epoch", "name", "none", "big")
    }

    def part(rank):
        t = holon.load(tmp_path / "x.pt", map_location=holon.placement.all("cpu"), sbp=S(0))["model"]["t"]
        assert t.full_value().tolist() == [[0, 3], [1, 4], [2, 5]]

    holon.run_ranks(2, part)


def test_a_file_that_would_call_something_is_not_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/called",)

    for name, program in {"evil.pt": pickle.dumps({"a": Evil()}, 2), "evil4.pt": pickle.dumps([Evil()], 4)}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("model/data.pkl", program)
        with pytest.raises(RuntimeError, match=r"this file would call posix\.system; it is not read"):
            holon.load(tmp_path / name)
    assert not (tmp_path / "called").exists()


def test_shards_of_pytorch(tmp_path):
    write_torch(tmp_path / "pytorch_model-00001-of-00001.bin", {"a": tensor("0", 2, 0, (2,), (1,))}, {"0": f32(1, 2)})
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}})
    )
    assert holon.load(tmp_path)["a"].tolist() == [1, 2]


def test_names_and_layouts_of_another_program():
    layer = "model.layers.{i}."
    keys = holon.KeyMap(
        [
            ("wte", "model.embed.weight"),
            ("h.{i}.qkv", [layer + "q", layer + "k", layer + "v"], {"kind": "join", "parts": [2, 1, 1]}),
            ("h.{i}.up", layer + "up", {"kind": "transpose"}),
            ("h.{i}.experts", layer + "experts.{e}", {"kind": "stack"}),
        ]
    )
    theirs = {"model.embed.weight": numbers(4, 2)}
    for i in range(2):
        theirs |= {f"model.layers.{i}.{name}": numbers(n, 3) for name, n in {"q": 4, "k": 2, "v": 2, "up": 5}.items()}
        theirs |= {f"model.layers.{i}.experts.{e}": numbers(2, 2) + e for e in range(3)}
    ours = keys.apply(theirs)
    assert {name: tuple(t.shape) for name, t in ours.items()} == {
        "wte": (4, 2),
        **{
            f"h.{i}.{name}": s
            for i in range(2)
            for name, s in {"qkv": (8, 3), "up": (3, 5), "experts": (3, 2, 2)}.items()
        },
    }
    back = keys.inverse().apply(ours)
    assert {name: t.tolist() for name, t in back.items()} == {name: t.tolist() for name, t in theirs.items()}
    with pytest.raises(ValueError, match="no rule has the name 'x'"):
        keys.apply({"x": numbers(1)})
    with pytest.raises(ValueError, match="a rule has no option 'dim'"):
        holon.KeyMap([("a", "b", {"dim": 1})])
    with pytest.raises(ValueError, match="the kind of a rule is 'glue'"):
        holon.KeyMap([("a", "b", {"kind": "glue"})])
