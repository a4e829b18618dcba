"""save and load: bits come back, on any number of ranks; what cannot be saved is named;
a save that fails leaves the old file."""

import collections
import math
import os
import re
import textwrap

import numpy as np
import pytest
from harness import ranks

import holon
from holon import nn, optim

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
S, B, P = holon.sbp.split, holon.sbp.broadcast, holon.sbp.partial_sum


def bits(tensor):
    """The tensor's bytes, dtype and shape."""
    tensor = tensor.detach()
    if tensor.is_global:
        tensor = tensor.full_value()
    plain = (
        tensor.to(holon.float32) if tensor.dtype in (holon.float16, holon.bfloat16) else tensor
    )  # exact, and NumPy has it
    return str(tensor.dtype), tuple(tensor.shape), plain.numpy().tobytes()


def same(a, b):
    if isinstance(a, holon.Tensor):
        return bits(a) == bits(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, type(a)) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a and b != b)


def names_in(folder):
    return sorted(os.listdir(folder))


def test_values_come_back_with_their_types(tmp_path):
    obj = {
        "none": None,
        "bools": [True, False],
        "ints": [0, 1, -1, 2**63 - 1, -(2**63)],
        "floats": [0.1, 1.0, 1e308, 5e-324, math.pi, 1 / 3],
        "special": [math.inf, -math.inf, math.nan],
        "text": ["", 'ä\0"\\\n漢😀', "tensor"],
        "tuple": (1, (2.0, [3])),
        "empty": [[], (), {}],
        "dict": {0: "a", -1.5: "b", None: "c", "0": "d", "tensor": 1, "dict": [], "float": "inf"},
        "a.b": holon.ones(1),
        "a": {"b": holon.zeros(1)},
        "__metadata__": holon.ones(2),
    }
    for i, value in enumerate([obj, holon.ones(3), [holon.ones(1), 2], None, 3.5]):
        holon.save(value, tmp_path / str(i))
        assert same(holon.load(tmp_path / str(i)), value)
    holon.save({"z": -0.0, True: 1}, tmp_path / "z")
    found = holon.load(tmp_path / "z")
    assert math.copysign(1, found["z"]) == -1 and list(found) == ["z", True] and list(found)[1] is True
    ordered = collections.OrderedDict(b=1, a=collections.Counter("xxy"))
    ordered.move_to_end("b")
    holon.save(ordered, str(tmp_path / "o"))
    assert list(holon.load(str(tmp_path / "o")).items()) == [("a", {"x": 2, "y": 1}), ("b", 1)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype(tmp_path, dtype):
    base = (holon.randn(4, 6) * 3).to(getattr(holon, dtype))
    tensors = {
        "plain": base,
        "turned": base.transpose(0, 1),
        "every second": base[:, ::2],
        "row": base[1],
        "scalar": base[2, 3],
        "empty": base[:0],
        "expanded": base[0].expand(3, 6),
        "no elements": holon.zeros(2, 0, 3, dtype=base.dtype),
    }
    holon.save(tensors, tmp_path / "x")
    found = holon.load(tmp_path / "x")
    assert same(found, tensors)
    found["plain"].zero_()  # memory of its own
    assert same(holon.load(tmp_path / "x"), tensors)


def test_special_bits_of_floats(tmp_path):
    words = holon.tensor(np.array([0x7FC00001, 0xFFC12345, 0x80000000, 1, 0x7F800000], np.uint32).view(np.float32))
    holon.save(words, tmp_path / "x")
    assert holon.load(tmp_path / "x").numpy().tobytes() == words.numpy().tobytes()


@pytest.mark.parametrize(
    "obj, error, message",
    [
        ({"a": [1, {2}]}, TypeError, r"obj\['a'\]\[1\] is of type set"),
        ({"m": {"x": (0, object())}}, TypeError, r"obj\['m'\]\['x'\]\[1\] is of type object.*convert it"),
        ([np.ones(2)], TypeError, r"obj\[0\] is of type numpy.ndarray"),
        ({"f": len}, TypeError, r"obj\['f'\] is of type builtin_function"),
        ({(1, 2): 0}, TypeError, "a key of the dict obj is tuple"),
        ({"b": b"x"}, TypeError, r"obj\['b'\] is of type bytes"),
        ({"n": 2**63}, ValueError, r"obj\['n'\] does not fit in 64 bits"),
        (["\ud800"], ValueError, r"obj\[0\] is not valid Unicode"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path, obj, error, message):
    with pytest.raises(error, match=message):
        holon.save(obj, tmp_path / "x")
    assert names_in(tmp_path) == []


def test_an_object_that_holds_itself(tmp_path):
    loop = []
    loop.append({"x": loop})
    with pytest.raises(ValueError, match="more than 100 levels"):
        holon.save(loop, tmp_path / "x")


def test_mistakes(tmp_path):
    x = holon.ones(2)
    with pytest.raises(RuntimeError, match="no/x.*No such file"):
        holon.save(x, tmp_path / "no/x")
    with pytest.raises(RuntimeError, match="not a regular file"):
        holon.save(x, "/dev/null")
    with pytest.raises(ValueError, match="global_dst_rank is 1; the ranks of this world are 0 to 0"):
        holon.save(x, tmp_path / "x", global_dst_rank=1)
    with pytest.raises(ValueError, match="the path is empty"):
        holon.save(x, "")
    with pytest.raises(TypeError):
        holon.save(x, 3)
    with pytest.raises(RuntimeError, match=r"cannot open .*nothing: No such file"):
        holon.load(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match="is a folder without holon-index.json"):
        holon.load(tmp_path)
    holon.save(x, tmp_path / "x")
    with pytest.raises(ValueError, match="global_src_rank is 3"):
        holon.load(tmp_path / "x", global_src_rank=3)
    with pytest.raises(ValueError, match="map_location"):
        holon.load(tmp_path / "x", sbp=B)
    with pytest.raises(TypeError, match="load"):
        holon.load(tmp_path / "x", map_location=3)
    with pytest.raises(ValueError, match="does not fit"):
        holon.load(tmp_path / "x", map_location=holon.placement("cpu", [0]), sbp=[B, B])
    assert holon.load(tmp_path / "x", map_location="cpu").tolist() == [1, 1]


def test_files_are_replaced_as_a_whole(tmp_path):
    holon.save({"x": 1}, tmp_path / "f")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    holon.save({"x": 2}, tmp_path / "link")
    assert holon.load(tmp_path / "f") == {"x": 2} and (tmp_path / "link").is_symlink()
    assert names_in(tmp_path) == ["f", "link"]
    # Into a folder that is there already.
    (tmp_path / "d").mkdir()
    (tmp_path / "d/notes").write_text("mine")
    holon.save({"x": 3}, tmp_path / "d")
    assert holon.load(tmp_path / "d") == {"x": 3} and names_in(tmp_path / "d") == ["holon.safetensors", "notes"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, resource, signal, sys
        import holon
        os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(__file__))
        holon.save({"x": holon.ones(10)}, "f")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            holon.save({"x": holon.zeros(100_000)}, "f")
        except RuntimeError as e:
            print(e)
        assert holon.load("f")["x"].tolist() == [1.0] * 10
    """)
    )
    done = ranks.run(program)
    assert done.returncode == 0, done.stderr
    assert "cannot write f: File too large" in done.stdout
    assert names_in(tmp_path) == ["f", "program.py"]


class Net(nn.Module):
    def __init__(self, **where):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8, **where), nn.GELU(), nn.Linear(8, 3, **where))
        self.register_buffer("seen", holon.zeros(1, **where))

    def forward(self, x):
        return self.layers(x)


def make(kind, **where):
    holon.manual_seed(3)
    model = Net(**where)
    optimizer = {
        "sgd": lambda: optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        "adamw": lambda: optim.AdamW(
            [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(model.parameters())], amsgrad=True
        ),
        "adagrad": lambda: optim.Adagrad(model.parameters(), lr=0.1),
    }[kind]()
    return model, optimizer, optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def train(model, optimizer, schedule, steps, x):
    losses = []
    for _ in range(steps):
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["sgd", "adamw", "adagrad"])
def test_training_goes_on_as_if_nothing_had_happened(tmp_path, kind):
    x = holon.randn(5, 6)
    parts = make(kind)
    train(*parts, 4, x)
    holon.save(
        {name: part.state_dict() for name, part in zip(("model", "optimizer", "schedule"), parts)}, tmp_path / "run"
    )
    rest = train(*parts, 4, x)
    others = make(kind)
    found = holon.load(tmp_path / "run")
    for name, part in zip(("model", "optimizer", "schedule"), others):
        part.load_state_dict(found[name])
    assert train(*others, 4, x) == rest
    assert same(parts[0].state_dict(), others[0].state_dict())


def graph_of(kind, **where):
    model, optimizer, schedule = make(kind, **where)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, lr_sch=schedule)

        def build(self, x):
            loss = (self.model(x) ** 2).mean()
            loss.backward()
            return loss

    return Train()


def test_a_graph_goes_on(tmp_path):
    x = holon.randn(5, 6)
    first = graph_of("adamw")
    for _ in range(3):
        first(x)
    holon.save(first.state_dict(), tmp_path / "graph")
    second = graph_of("adamw")
    second.load_state_dict(holon.load(tmp_path / "graph"))
    assert [first(x).item() for _ in range(3)] == [second(x).item() for _ in range(3)]


LAYOUTS = {
    1: [([0], S(0)), ([0], B)],
    2: [([0, 1], S(0)), ([0, 1], S(1)), ([1, 0], S(0)), ([0, 1], B), ([0, 1], P), ([1], B)],
    4: [
        ([0, 1, 2, 3], S(0)),
        ([3, 1], S(1)),
        ([[0, 1], [2, 3]], [S(0), S(1)]),
        ([[0, 1], [2, 3]], [S(0), B]),
        ([[0, 1], [2, 3]], [B, P]),
        ([[0, 2], [1, 3]], [S(0), S(0)]),
    ],
}


def laid_out(n):
    """Global tensors in all layouts, of uneven sizes, some with empty parts, and what else there is."""
    obj = {"epoch": 3, "local": holon.arange(4), "half": {}}
    for i, (where, sbp) in enumerate(LAYOUTS[n]):
        placement = holon.placement("cpu", where)
        value = (holon.arange(35).reshape(7, 5) * (i + 1)).to(holon.float32)
        obj[f"x{i}"] = value.to_global(holon.placement.all("cpu"), B).to_global(placement, sbp)
        obj["half"][i] = obj[f"x{i}"][:3].to(holon.bfloat16)
    obj["nothing"] = holon.zeros(0, 5, placement=holon.placement.all("cpu"), sbp=S(0))
    return obj


def wholes(obj):
    if isinstance(obj, holon.Tensor):
        return bits(obj)
    return {k: wholes(v) for k, v in obj.items()} if isinstance(obj, dict) else obj


@pytest.mark.parametrize("n", [1, 2, 4])
def test_global_tensors_in_one_file(tmp_path, n):
    def program(rank):
        obj = laid_out(n)
        want, path = wholes(obj), tmp_path / "x"
        for dst in {0, n - 1}:
            holon.save(obj, path, global_dst_rank=dst)
            plain = holon.load(path)
            assert not plain["x0"].is_global and wholes(plain) == want
            for src in {0, n - 1}:
                found = holon.load(path, global_src_rank=src)
                assert found["x0"].placement == holon.placement("cpu", [src]) and found["x0"].sbp == (B,)
                assert found["local"].is_global and wholes(found) == want
            everywhere = holon.placement.all("cpu")
            found = holon.load(path, map_location=everywhere)
            assert found["x0"].placement == everywhere and found["x0"].sbp == (B,) and wholes(found) == want
            found = holon.load(path, map_location=everywhere, sbp=S(1), global_src_rank=0 if dst else None)
            assert found["x0"].sbp == (S(1),) and found["local"].sbp == (B,) and wholes(found) == want
        return names_in(tmp_path)

    assert holon.run_ranks(n, program) == [["x"]] * n


@pytest.mark.parametrize("n", [1, 2, 4])
def test_global_tensors_in_a_folder(tmp_path, n):
    def save(rank):
        obj = laid_out(n)
        (tmp_path / "x").mkdir(exist_ok=True)
        holon.save(obj["local"], tmp_path / "y")
        for _ in range(2):  # the second replaces the first
            holon.save(obj, tmp_path / "x")
        found = holon.load(tmp_path / "x")
        for i, (_, sbp) in enumerate(LAYOUTS[n]):
            if P not in (sbp if isinstance(sbp, list) else [sbp]):
                assert found[f"x{i}"].placement == obj[f"x{i}"].placement and found[f"x{i}"].sbp == obj[f"x{i}"].sbp
        assert not found["local"].is_global
        return wholes(obj), wholes(found)

    (want, found), *others = holon.run_ranks(n, save)
    assert found == want and all(o == (want, found) for o in others)
    files = names_in(tmp_path / "x")
    assert (
        files[0] == "holon-index.json"
        and len(files) <= n + 1
        and all(f.endswith(f"-of-{n}.safetensors") for f in files[1:])
    )
    # A part is held by one rank only: the folder is no larger than the values.
    assert sum((tmp_path / "x" / f).stat().st_size for f in files[1:]) < sum(len(b[2]) for b in flat(want)) + n * 6000

    def load(rank):
        world = holon.env.get_world_size()
        everywhere = holon.placement.all("cpu")
        found = [
            holon.load(tmp_path / "x"),
            holon.load(tmp_path / "x", "cpu"),
            holon.load(tmp_path / "x", global_src_rank=world - 1),
            holon.load(tmp_path / "x", everywhere),
            holon.load(tmp_path / "x", everywhere, sbp=S(0)),
        ]
        assert not found[1]["x0"].is_global and found[2]["x0"].placement == holon.placement("cpu", [world - 1])
        return [wholes(f) for f in found]

    for world in (1, 2, 3, 4):
        for results in holon.run_ranks(world, load):
            assert all(r == want for r in results), world


def flat(obj):
    return [b for v in obj.values() for b in (flat(v) if isinstance(v, dict) else [v] if isinstance(v, tuple) else [])]


def test_between_the_two_forms(tmp_path):
    def program(rank):
        x = holon.ones(4, placement=holon.placement.all("cpu"), sbp=S(0))
        holon.save({"x": x}, tmp_path / "d")
        holon.save({"x": x * 2}, tmp_path / "d", global_dst_rank=0)
        two = holon.load(tmp_path / "d")["x"].tolist()
        names = names_in(tmp_path / "d")
        holon.comm.barrier()
        holon.save({"x": x * 3}, tmp_path / "d")
        return (
            two,
            names,
            holon.load(tmp_path / "d")["x"].full_value().tolist(),
            "holon.safetensors" in names_in(tmp_path / "d"),
        )

    for found in holon.run_ranks(2, program):
        assert found == ([2] * 4, ["holon.safetensors"], [3] * 4, False)


def test_model_and_optimizer_on_other_ranks(tmp_path):
    """Trained on 2 ranks with split weights; goes on with 1 and 4, with the same losses."""
    x = holon.randn(8, 6).numpy()

    def start(n, form):
        def program(rank):
            everywhere = holon.placement.all("cpu")
            parts = make("adamw", placement=everywhere, sbp=S(0))
            batch = holon.tensor(x, placement=everywhere, sbp=B)
            if n == 2:
                train(*parts, 3, batch)
                state = {name: part.state_dict() for name, part in zip("mos", parts)}
                holon.save(state, tmp_path / "file", global_dst_rank=1)
                holon.save(state, tmp_path / "folder")
            else:
                found = holon.load(tmp_path / form, global_src_rank=0 if form == "file" else None)
                for name, part in zip("mos", parts):
                    part.load_state_dict(found[name])
                assert parts[0].layers[0].weight.sbp == (S(0),)
            return train(*parts, 3, batch)

        return holon.run_ranks(n, program)[0]

    want = start(2, None)
    for n in (1, 4):
        for form in ("file", "folder"):
            np.testing.assert_allclose(start(n, form), want, rtol=1e-5)


def test_errors_are_the_same_on_all_ranks(tmp_path):
    def program(rank):
        everywhere = holon.placement.all("cpu")
        x = holon.ones(6, placement=everywhere, sbp=S(0))
        path = tmp_path / "missing" / "x"
        messages = []
        for call in [
            lambda: holon.save(x, path, global_dst_rank=1),
            lambda: holon.save(x, path),
            lambda: holon.save({"a": x} if rank else {"b": x}, tmp_path / "x"),
            lambda: holon.save([x] * (1 + rank), tmp_path / "x", global_dst_rank=0),
            lambda: holon.save(x, tmp_path / "x", global_dst_rank=rank),
            lambda: holon.load(tmp_path / "missing", global_src_rank=2),
            lambda: holon.load(tmp_path / "missing", map_location=everywhere),
            lambda: holon.save(x, tmp_path / "file"),
        ]:
            try:
                call()
                messages.append(None)
            except (RuntimeError, ValueError) as e:
                messages.append(f"{type(e).__name__}: {e}")
        return messages, (x * 2).sum().item()  # the world is whole

    (tmp_path / "file").write_text("something")
    results = holon.run_ranks(3, program)
    assert all(r == results[0] for r in results)
    messages, total = results[0]
    assert total == 12
    for found, text in zip(
        messages,
        [
            "rank 1: cannot write .*missing/x: No such file",
            "rank 0: cannot create the folder",
            r"ValueError: .*different global tensors.*rank 0 b: float32 \[6\] S\(0\).*rank 1 a: ",
            "rank 1 1: float32",
            "rank 0 to rank 0; rank 1 to rank 1",
            "rank 2: cannot open",
            "rank 0: cannot open",
            "rank 0: cannot create the folder",
        ],
    ):
        assert found is not None and re.search(text, found), found
    assert names_in(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "something"


def test_one_rank_cannot_write_its_part(tmp_path):
    """Rank 1's disk fills up in the middle: both raise, and the earlier save is still there."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, resource, signal
        import holon
        os.chdir(os.path.dirname(__file__))
        rank, everywhere = holon.env.get_rank(), holon.placement.all("cpu")
        rows = {"placement": everywhere, "sbp": holon.sbp.split(0)}
        old, new = ({"x": holon.full((n,), n, **rows), "n": n} for n in (10, 100_000))
        holon.save(old, "folder")
        holon.save(old, "file", global_dst_rank=1)
        if rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        for target, dst in (("folder", None), ("file", 1)):
            try:
                holon.save(new, target, global_dst_rank=dst)
                print("saved")
            except RuntimeError as e:
                print("error" if "rank 1: cannot write" in str(e) and "too large" in str(e) else e)
            found = holon.load(target, global_src_rank=0)
            print(found["n"], found["x"].full_value().tolist() == [10] * 10)
    """)
    )
    done = ranks.launch(program, 2, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == sorted(["error", "10 True"] * 4 + [""])
    assert names_in(tmp_path) == ["file", "folder", "program.py"] and len(names_in(tmp_path / "folder")) == 3


def test_processes(tmp_path):
    """Four processes save, two load."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys
        import holon
        os.chdir(os.path.dirname(__file__))
        everywhere = holon.placement.all("cpu")
        x = holon.arange(1000).reshape(50, 20)
        if holon.env.get_world_size() == 4:
            grid = holon.placement("cpu", [[0, 1], [2, 3]])
            g = x.to_global(everywhere, holon.sbp.broadcast).to_global(grid, [holon.sbp.split(1), holon.sbp.split(0)])
            holon.save({"x": g}, "folder")
            holon.save({"x": g}, "file", global_dst_rank=2)
        everywhere_split = {"map_location": everywhere, "sbp": holon.sbp.split(1)}
        for options in ({}, {"global_src_rank": 1}, {"map_location": "cpu"}, everywhere_split):
            for name in ("folder", "file"):
                found = holon.load(name, **options)["x"]
                found = found.full_value() if found.is_global else found
                assert (found == x).all().item(), (options, name)
        print("fine")
    """)
    )
    for n in (4, 2):
        done = ranks.launch(program, n, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["fine"] * n
