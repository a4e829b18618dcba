"""Files of the format safetensors from elsewhere, and damaged ones:
an error that names the file, never anything worse."""

import json
import random
import struct

import numpy as np
import pytest

import holon


def safetensors_file(tensors, metadata=None):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_file_of_another_program(tmp_path):
    content = safetensors_file(
        {
            "b.w": ("F32", [2, 1], struct.pack("<2f", 1, 2)),
            "a": ("I64", [], struct.pack("<q", -5)),
            "e": ("BF16", [0], b""),
        },
        {"format": "pt"},
    )
    (tmp_path / "x").write_bytes(content)
    found = holon.load(tmp_path / "x")
    assert found["b.w"].tolist() == [[1], [2]] and found["a"].item() == -5 and found["e"].dtype == holon.bfloat16
    assert set(found) == {"b.w", "a", "e"}


def test_the_package_safetensors_reads_our_files(tmp_path):
    package = pytest.importorskip("safetensors.numpy", reason="the package safetensors is not installed")
    tensors = {
        "layer.weight": holon.randn(3, 4),
        "n": holon.arange(5),
        "flag": holon.tensor([True, False]),
        "half": holon.ones(3, dtype=holon.float16),
    }
    holon.save({"model": tensors, "step": 3}, tmp_path / "x")
    found = package.load_file(tmp_path / "x")
    assert {f"model.{name}" for name in tensors} == set(found)
    for name, t in tensors.items():
        np.testing.assert_array_equal(found[f"model.{name}"], t.numpy())
    package.save_file({"w": np.arange(6.0).reshape(2, 3)}, tmp_path / "y")
    assert holon.load(tmp_path / "y")["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def header(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "found 0 bytes"),
        (b"\0" * 7, "found 7 bytes"),
        (b"\xff" * 8 + b"{}", "its header should have 18446744073709551615 bytes"),
        (struct.pack("<Q", 3) + b"{}", "should have 3 bytes"),
        (header(b"{"), "not a JSON"),
        (header(b"[]"), "not a JSON object"),
        (header(b"[" * 100000), "not a JSON"),
        (header(b"[" * 100000 + b"]" * 100000), "not a JSON object"),
        (header(b'{"a":3}'), "no dtype, shape and data_offsets"),
        (header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'), "truncated"),
        (header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"12345"), "truncated or damaged"),
        (header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"1234"), "not occupy the bytes 0 to 4"),
        (header(b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', b"1234"), "not a list of sizes"),
        (header(b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}'), "does not occupy"),
        (header(b'{"a":{"dtype":"F32","shape":[1e30],"data_offsets":[0,0]}}'), "not a list of sizes"),
        (header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}', b"1234"), "does not occupy"),
        (header(b'{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}', b"1"), "F4, which Holon does not"),
        (header(b'{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}', b"1"), "9 axes"),
        (
            header(
                b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
                b'"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
                b"123",
            ),
            "begin at 1; those before it end at 2",
        ),
        (
            header(
                b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                b'"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}',
                b"123",
            ),
            "begin at 2",
        ),
        (
            header(
                b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
                b"1",
            ),
            "'a' appears twice",
        ),
        (header(b'{"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}', b"\1\2"), "element 1 is not a bool"),
        (header(b'{"__metadata__":{"holon":3}}'), "not text"),
        (header(b'{"__metadata__":{"holon":"x"}}'), "structure"),
        (header(b'{"__metadata__":{"holon":"{\\"tensor\\":\\"q\\"}"}}'), "tensor 'q' is referred to"),
        (header(b'{"__metadata__":{"holon":"{\\"dict\\":[[[],1]]}"}}'), "an invalid key"),
        (header(b'{"__metadata__":{"holon":"{\\"dict\\":[[1]]}"}}'), "not a pair"),
        (header(b'{"__metadata__":{"holon":"{\\"code\\":1}"}}'), "an object 'code'"),
        (header(b'{"__metadata__":{"holon":"' + b"[" * 5000 + b"]" * 5000 + b'"}}'), "levels deep"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, message):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(RuntimeError, match=message) as e:
        holon.load(tmp_path / "x.safetensors")
    assert "x.safetensors" in str(e.value)


def damage(content, rng):
    """The content with a few bytes changed, taken out, put in, or cut off."""
    content = bytearray(content)
    kind = rng.randrange(5)
    if kind == 0:
        return bytes(content[: rng.randrange(len(content))])
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(min(len(content), rng.choice([16, 400, len(content)])))
        if kind == 1:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            content[at] = rng.choice(b'0129-[]{}",:eE.')
        elif kind == 3:
            del content[at : at + rng.randrange(1, 9)]
        else:
            content[at:at] = rng.choice([b"9", b"0", b"[", b"{", b"-", b"99999999999", b"\0\0"])
        if not content:
            break
    return bytes(content)


def test_random_damage_never_does_worse_than_an_error(tmp_path):
    def save(rank):
        everywhere = holon.placement.all("cpu")
        x = holon.arange(35).reshape(7, 5).to_global(everywhere, holon.sbp.broadcast)
        obj = {
            "x": x.to_global(everywhere, holon.sbp.split(0)),
            "y": [x.to_global(everywhere, holon.sbp.split(1)), x > 3],
            "n": 1,
        }
        holon.save(obj, tmp_path / "folder")

    holon.run_ranks(2, save)
    holon.save(
        {"a": holon.randn(7, 3), "b": [holon.arange(5), {"c": holon.tensor([True, False])}], "n": 1.5},
        tmp_path / "file",
    )
    rng, loaded, refused = random.Random(0), 0, 0
    targets = [tmp_path / "file", *(tmp_path / "folder").iterdir()]
    whole = {path: path.read_bytes() for path in targets}
    for _ in range(600):
        path = rng.choice(targets)
        path.write_bytes(damage(whole[path], rng))
        try:
            holon.load(
                path if path.name == "file" else tmp_path / "folder", map_location="cpu" if rng.random() < 0.5 else None
            )
            loaded += 1
        except RuntimeError as e:
            assert str(tmp_path) in str(e)
            refused += 1
        path.write_bytes(whole[path])
    assert refused > 300 and loaded + refused == 600
