"""Variables as a whole: read, loaded, written to folders and read back on other devices."""

import os

import numpy as np
import oneflow as flow
import pytest
from legacy.small_net import batches, model, run, stages, train_and_predict


def values():
    return {name: v.numpy() for name, v in flow.get_all_variables().items()}


def same(a, b):
    assert set(a) == set(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def trained(n, way, steps):
    flow.clear_default_session()
    train, predict = train_and_predict(n, way)
    for x, y in batches(steps):
        train(x, y)
    return train, predict


@pytest.mark.parametrize("before, after", [(1, 4), (4, 1), (2, 3)], ids=str)
def test_round_trip_between_numbers_of_devices(tmp_path, before, after):
    """Momentum and the number of calls come back too: training goes on as if it had not been interrupted."""
    trained(before, model, 3)
    flow.train.CheckPoint().save(str(tmp_path / "a"))
    saved = values()
    assert saved["System-Train-TrainStep-train"] == [3]

    trained(after, stages, 0)
    flow.train.CheckPoint().load(str(tmp_path / "a"))
    same(values(), saved)

    flow.clear_default_session()
    train, _ = train_and_predict(after, stages)
    flow.train.CheckPoint().load(str(tmp_path / "a"))
    losses = [train(x, y) for x, y in batches(6)[3:]]
    np.testing.assert_allclose(np.stack(losses), run(1)[0][3:], rtol=2e-4, atol=2e-5)


def test_files(tmp_path):
    trained(2, model, 1)
    path = tmp_path / "c"
    flow.checkpoint.save(path)
    saved = values()
    assert (path / "snapshot_done").read_bytes() == b""
    for name, value in saved.items():
        np.testing.assert_array_equal(
            np.frombuffer((path / name / "out").read_bytes(), value.dtype).reshape(value.shape), value
        )
        assert "data_type: k" in (path / name / "meta").read_text()
    got = flow.checkpoint.get(path)
    same({name: v.numpy() for name, v in got.items()}, saved)
    w = got["output-weight"]
    assert w.shape == (6, 8) and w.dtype == flow.float32
    with pytest.raises(AssertionError, match="is not an empty folder"):
        flow.checkpoint.save(path)
    flow.checkpoint.save(tmp_path / "one", {"w": np.arange(3)})
    np.testing.assert_array_equal(flow.checkpoint.get(tmp_path / "one")["w"].numpy(), [0, 1, 2])


def test_init_does_not_reset():
    train, _ = trained(2, model, 2)
    before = values()
    flow.train.CheckPoint().init()
    same(values(), before)


def test_load_variables():
    trained(2, model, 1)
    bias = np.arange(8, dtype=np.float32)
    flow.load_variables({"hidden-bias": bias, "other": bias})
    np.testing.assert_array_equal(values()["hidden-bias"], bias)
    with pytest.raises(RuntimeError, match="no variable named 'other'"):
        flow.load_variables({"other": bias}, ignore_mismatch=False)
    with pytest.raises(AssertionError, match=r"'hidden-bias' has the shape \[8\]; the value has \[7\]"):
        flow.load_variables({"hidden-bias": bias[:7]})
    with pytest.raises(AssertionError, match="is oneflow.float32; the value is float64"):
        flow.load_variables({"hidden-bias": bias.astype(np.float64)})
    with pytest.raises(AssertionError, match="takes a dict"):
        flow.load_variables([bias])
    np.testing.assert_array_equal(values()["hidden-bias"], bias)


def damage(path, what):
    folder = path / "hidden-bias"
    if what == "short":
        (folder / "out").write_bytes((folder / "out").read_bytes()[:-1])
    elif what == "no bytes":
        os.remove(folder / "out")
    elif what == "no meta":
        os.remove(folder / "meta")
    elif what == "meta":
        (folder / "meta").write_bytes(b"\xff\x00 dim: -3")
    elif what == "huge":
        (folder / "meta").write_text("shape { dim: 99999999999 dim: 99999999999 } data_type: kFloat")
    else:
        os.remove(path / "snapshot_done")


@pytest.mark.parametrize("what", ["short", "no bytes", "no meta", "meta", "huge", "not done"])
def test_damaged_folders(tmp_path, what):
    trained(1, model, 0)
    flow.checkpoint.save(tmp_path / "c")
    before = values()
    damage(tmp_path / "c", what)
    with pytest.raises(RuntimeError, match="checkpoint.get: .*c"):
        flow.train.CheckPoint().load(tmp_path / "c")
    same(values(), before)
    with pytest.raises(AssertionError, match="is not a folder"):
        flow.checkpoint.get(tmp_path / "nothing")


def test_manager(tmp_path):
    train, _ = trained(2, model, 0)
    manager = flow.train.SimpleCheckPointManager(str(tmp_path / "all"))
    assert manager.list_checkpoints() == [] and manager.latest_checkpoint() is None
    manager.initialize_or_restore()
    for x, y in batches(3):
        train(x, y)
        manager.save()
    assert (
        manager.list_checkpoints() == [f"snapshot_{i:08d}" for i in range(3)]
        and manager.latest_checkpoint() == "snapshot_00000002"
    )
    saved = values()
    trained(1, model, 1)
    manager.initialize_or_restore()
    same(values(), saved)
