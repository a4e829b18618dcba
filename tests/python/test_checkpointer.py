"""Checkpointer: training goes on as if it had not been interrupted, on any ranks; what is not complete is not there."""

import os
import textwrap

import numpy as np
import pytest
from harness import ranks
from harness.training import Training

import holon
from holon import nn, optim, utils
from holon.checkpoint import Checkpointer, verify

S, B = holon.sbp.split, holon.sbp.broadcast


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_losses_are_those_of_an_uninterrupted_run(tmp_path, n, asynchronous):
    def first(rank):
        training = Training(3, S(0), asynchronous=asynchronous)
        checkpoints = training.checkpointer(tmp_path / "run")
        training.train(10)
        assert checkpoints.restore() is None
        assert checkpoints.save(10, note={"best": 0.5, "t": holon.ones(2)})
        losses = training.train(20)
        checkpoints.wait()
        return losses

    def second(rank):
        training = Training(4, S(0))
        found = training.checkpointer(tmp_path / "run").restore()
        assert found.step == 10 and found.extra["note"]["best"] == 0.5 and found.extra["note"]["t"].tolist() == [1, 1]
        return training.train(20)

    want = holon.run_ranks(n, first)
    assert holon.run_ranks(n, second) == want  # bit for bit
    assert len(set(want[0])) == 20


def test_another_layout_and_number_of_ranks(tmp_path):
    """Two-way data parallel goes on with split weights on one, two and four ranks."""

    def start(n, layout, restore):
        def program(rank):
            training = Training(3, layout)
            checkpoints = training.checkpointer(tmp_path / "run")
            if restore:
                assert checkpoints.restore().step == 5
                assert training.model[0].weight.sbp == (layout,)
            else:
                training.train(5)
                checkpoints.save(5)
            return training.train(5)

        return holon.run_ranks(n, program)[0]

    want = start(2, B, False)
    assert start(2, B, True) == want
    for n, layout in [(1, B), (2, S(0)), (4, S(0))]:
        np.testing.assert_allclose(start(n, layout, True), want, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 2])
def test_fresh_processes(tmp_path, n):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys
        import holon
        sys.path.insert(0, sys.argv[2])
        from harness.training import Training
        training = Training(int(sys.argv[1]), holon.sbp.split(0), asynchronous=True)
        checkpoints = training.checkpointer(os.path.join(os.path.dirname(__file__), "run"))
        if not checkpoints.restore():
            training.train(10)
            checkpoints.save(10)
        losses = training.train(20)
        if holon.env.get_rank() == 0:
            print([x.hex() for x in losses])
    """)
    )

    def run(seed):
        done = ranks.launch(program, n, timeout=100, arguments=[seed, ranks.ROOT / "tests"])
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run(1)
    assert run(2) == first and first.count("0x") == 20
    assert verify(tmp_path / "run" / "step-00000010")["files"] == n  # also where nobody has waited for it


def graph_of(zero):
    """A data-parallel step, compiled, whose optimizer states may be split."""
    holon.manual_seed(3)
    everywhere = holon.placement.all("cpu")
    model = nn.Linear(64, 32).to_global(everywhere, B)
    optimizer = optim.AdamW(model.parameters(), lr=0.01)

    class Train(nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer, lr_sch=optim.lr_scheduler.CosineAnnealingLR(optimizer, 40))
            if zero:
                self.config.enable_zero(True, stage=zero, shard_min_size=1)

        def build(self, x):
            loss = (nn.functional.dropout(self.model(x), 0.3) ** 2).mean()
            loss.backward()
            return loss

    return Train(), holon.ones(8, 64, placement=everywhere, sbp=S(0))


@pytest.mark.parametrize("n, zero", [(1, 0), (2, 0), (2, 1), (2, 3)])
def test_a_graph(tmp_path, n, zero):
    def first(rank):
        graph, x = graph_of(zero)
        checkpoints = Checkpointer(tmp_path, graph=graph, asynchronous=True)
        for _ in range(3):
            graph(x)
        checkpoints.save(3)
        losses = [graph(x).item() for _ in range(20)]
        checkpoints.wait()
        return losses

    def second(rank):
        graph, x = graph_of(zero)
        assert Checkpointer(tmp_path, graph=graph).restore().step == 3
        return [graph(x).item() for _ in range(20)]

    want = holon.run_ranks(n, first)
    assert holon.run_ranks(n, second) == want
    if n == 2:  # one rank goes on alone
        np.testing.assert_allclose(holon.run_ranks(1, second)[0], want[0], rtol=1e-4)


def test_keep_steps_and_mistakes(tmp_path):
    model = nn.Linear(2, 2)
    checkpoints = Checkpointer(tmp_path / "run", keep=2, model=model)
    assert checkpoints.latest() is None and checkpoints.steps() == []
    for step in (1, 2, 3):
        checkpoints.save(step, step=step)
    assert checkpoints.steps() == [2, 3] and checkpoints.latest() == 3
    assert checkpoints.restore(2) == (2, {"step": 2})
    assert list(holon.load(checkpoints.path(3))) == ["model", "extra"]
    with pytest.raises(ValueError, match="no checkpoint of step 1 in .*run; there are 2, 3"):
        checkpoints.restore(1)
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpointer(tmp_path / "run", keep=0)
    with pytest.raises(ValueError, match="while_saving is 'stop'"):
        Checkpointer(tmp_path / "run", while_saving="stop")
    with pytest.raises(TypeError, match="model is a int, which has no state_dict"):
        Checkpointer(tmp_path / "run", model=3)
    with pytest.raises(ValueError, match="no ema, also model.*strict=False"):
        Checkpointer(tmp_path / "run", ema=nn.Linear(2, 2)).restore()
    assert Checkpointer(tmp_path / "run", ema=nn.Linear(2, 2)).restore(strict=False).step == 3
    with pytest.raises(TypeError, match=r"obj\['extra'\]\['x'\] is of type object"):
        checkpoints.save(4, x=object())
    holon.save({"w": holon.ones(1, placement=holon.placement.all("cpu"), sbp=B)}, checkpoints.path(9))
    with pytest.raises(RuntimeError, match="step-00000009 was not saved by Checkpointer"):
        checkpoints.restore()


def test_damage_is_named(tmp_path):
    checkpoints = Checkpointer(tmp_path, model=nn.Linear(200, 200))
    checkpoints.save(1)
    assert verify(checkpoints.path(1))["bytes"] == 4 * (200 * 200 + 200)
    (part,) = [name for name in os.listdir(checkpoints.path(1)) if name.startswith("part")]
    file = os.path.join(checkpoints.path(1), part)
    with open(file, "r+b") as f:
        f.seek(-70_000, os.SEEK_END)
        f.write(b"\xff\xff\xff\xff")
    for call in (lambda: verify(checkpoints.path(1)), checkpoints.restore):
        with pytest.raises(RuntimeError, match=f"{part}.*checksum differs.*'model.weight'"):
            call()


def test_a_full_disk_is_an_error_of_the_next_save(tmp_path):
    """Rank 1's disk fills up in an asynchronous save."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, resource, signal
        import holon
        os.chdir(os.path.dirname(__file__))
        rank, everywhere = holon.env.get_rank(), holon.placement.all("cpu")
        x = holon.zeros(100_000, placement=everywhere, sbp=holon.sbp.split(0))

        class State:
            def state_dict(self):
                return {"x": x}
            def load_state_dict(self, state):
                self.x = state["x"]

        state = State()
        checkpoints = holon.checkpoint.Checkpointer("run", keep=1, asynchronous=True, state=state)
        checkpoints.save(1)
        checkpoints.wait()
        if rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        x += 1
        checkpoints.save(2)
        try:
            checkpoints.save(3)
            print("saved")
        except RuntimeError as e:
            parts = ("step 2 was not saved", "rank 1: cannot write run/step-00000002/part-", "too large")
            print("error" if all(part in str(e) for part in parts) else e)
        print(checkpoints.steps(), checkpoints.restore().step, state.x.sum().item())
    """)
    )
    done = ranks.launch(program, 2, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == sorted(["error", "[1] 1 0.0"] * 2 + [""])


def test_an_error_of_the_last_save_is_seen(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, sys
        import holon
        os.chdir(os.path.dirname(__file__))
        open("run/step-00000001", "w").close()
        if sys.argv[1] == "with":
            with holon.checkpoint.Checkpointer("run", asynchronous=True) as checkpoints:
                checkpoints.save(1)
        else:
            checkpoints = holon.checkpoint.Checkpointer("run", asynchronous=True)
            checkpoints.save(1)
    """)
    )
    (tmp_path / "run").mkdir()
    for way, code in (("with", 1), ("exit", 0)):
        done = ranks.launch(program, 1, timeout=60, arguments=[way])
        assert (done.returncode != 0) == bool(code), done.stderr
        assert "the checkpoint of step 1 was not saved" in done.stderr


def test_while_workers_load_batches(tmp_path):
    """Workers are forked while a thread writes."""
    data = utils.data.TensorDataset(holon.arange(400).reshape(100, 4))
    loader = utils.data.DataLoader(data, 4, shuffle=True, generator=1, num_workers=2)
    state = nn.Linear(500, 500)
    checkpoints = Checkpointer(tmp_path, model=state, loader=loader, asynchronous=True)
    seen = []
    for epoch in range(3):
        for i, (x,) in enumerate(loader):
            seen.append(x.tolist())
            if i % 10 == 0:
                checkpoints.save(100 * epoch + i)
    checkpoints.wait()
    again = utils.data.DataLoader(data, 4, shuffle=True, generator=1, num_workers=2)
    assert Checkpointer(tmp_path, model=state, loader=again).restore(210).step == 210
    assert [x.tolist() for (x,) in again] == seen[61:]


def test_parts_by_name(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    holon.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "x")
    assert sorted(holon.load(tmp_path / "x", prefix="model.0.")) == ["bias", "weight"]
    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    other.load_state_dict(holon.load(tmp_path / "x", prefix="model."))
    assert (other[1].weight == model[1].weight).all()
    found = holon.load(tmp_path / "x", select=lambda name: name.endswith("bias"), key_map=lambda name: name[6:])
    assert sorted(found) == ["0.bias", "1.bias"]
    assert holon.load(tmp_path / "x", prefix="none", strict=False) == {}
    with pytest.raises(ValueError, match="no tensor of .*x is selected by the prefix 'none'"):
        holon.load(tmp_path / "x", prefix="none")
    with pytest.raises(TypeError, match="key_map must be a KeyMap, or return a string; it returned"):
        holon.load(tmp_path / "x", key_map=len)
    with pytest.raises(ZeroDivisionError):
        holon.load(tmp_path / "x", select=lambda name: 1 / 0)

    def program(rank):
        everywhere = holon.placement.all("cpu")
        found = holon.load(
            tmp_path / "x", everywhere, sbp=lambda name: S(1) if name.endswith("weight") else B, prefix="model."
        )
        return {name: (t.sbp, t.full_value().tolist()) for name, t in found.items()}

    for found in holon.run_ranks(2, program):
        assert found["0.weight"] == ((S(1),), model[0].weight.tolist())
        assert found["0.bias"] == ((B,), model[0].bias.tolist())
