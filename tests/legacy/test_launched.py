"""The same programs as processes of the launcher, one for each device."""

import textwrap

import pytest
from harness.ranks import launch, run

PROGRAM = """
    import sys
    import numpy as np
    import oneflow as flow
    import oneflow.typing as tp
    sys.path.insert(0, {tests!r})
    from legacy.small_net import WAYS, batches, data, train_and_predict

    way = {{w.__name__: w for w in WAYS}}[{way!r}]
    train, predict = train_and_predict(2, way)
    flow.train.CheckPoint().init()
    losses = [train(x, y) for x, y in batches(4)]
    flow.train.CheckPoint().save({folder!r})
    flow.train.CheckPoint().load({folder!r})
    losses += [train(x, y) for x, y in batches(2, seed=5)]
    last = predict(batches(1, seed=9)[0][0])
    weights = flow.get_all_variables()["output-weight"].numpy()
    print("RESULT", " ".join(f"{{v:.4f}}" for v in [*(l.sum() for l in losses), last.sum(), weights.sum()]), flush=True)
"""

MIRRORED = """
    import numpy as np
    import oneflow as flow
    import oneflow.typing as tp

    flow.config.gpu_device_num(2)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    seen = []

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.ListNumpy.Placeholder((3, 2))) -> tp.ListNumpy:
        w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        loss = x * w
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0.9).minimize(loss)

        def handler(v: tp.ListNumpy):
            seen.append([a.shape for a in v])

        flow.watch(loss, handler)
        return loss

    parts = [np.ones((3, 2), np.float32), np.full((1, 2), 5, np.float32)]
    for _ in range(3):
        a, b = train(parts)
    assert seen == [[(3, 2), (1, 2)]] * 3, seen
    w = flow.get_all_variables()["w"].numpy()

    flow.clear_default_session()
    flow.config.gpu_device_num(2)
    config.default_placement_scope(flow.scope.placement("gpu", ["0:1", "0:0"]))

    @flow.global_function(function_config=config)
    def lists(x: tp.ListListNumpy.Placeholder((2, 2))) -> tp.ListListNumpy:
        return x * 2

    found = lists([[np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)], [np.full((2, 2), 3, np.float32)]])
    assert [[x.tolist() for x in device] for device in found] == [[[[2, 2]], [[2], [2]]], [[[6, 6], [6, 6]]]], found
    print("RESULT", a.shape, b.shape, f"{a.sum():.4f} {b.sum():.4f}", w, flush=True)
"""


def results(done):
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("RESULT")]


@pytest.fixture
def program(tmp_path):
    from pathlib import Path

    def write(text, **words):
        path = tmp_path / "program.py"
        path.write_text(
            textwrap.dedent(text.format(tests=str(Path(__file__).parent.parent), **words))
            if words
            else textwrap.dedent(text)
        )
        return path

    return write


@pytest.mark.parametrize("way", ["data", "model", "stages"])
def test_processes_compute_what_threads_do(program, tmp_path, way):
    alone = results(run(program(PROGRAM, way=way, folder=str(tmp_path / "alone"))))
    launched = results(launch(program(PROGRAM, way=way, folder=str(tmp_path / "launched")), 2))
    assert len(alone) == 1 and len(launched) == 2 and launched[0] == launched[1]
    a, b = ([float(v) for v in line.split()[1:]] for line in (alone[0], launched[0]))
    assert a == pytest.approx(b, rel=1e-3, abs=1e-3)


def test_mirrored_view(program):
    path = program(MIRRORED)
    alone, launched = results(run(path)), results(launch(path, 2))
    assert launched == alone * 2


def test_number_of_processes_is_that_of_devices(program):
    path = program("""
        import oneflow as flow
        import oneflow.typing as tp

        @flow.global_function()
        def job() -> tp.Numpy:
            return flow.constant(1.0, shape=(4,))

        import sys
        if len(sys.argv) == 1:
            flow.config.gpu_device_num(3)
        print("RESULT", job())
    """)
    done = launch(path, 2)
    assert done.returncode != 0 and "asks for 1 machine(s) with 3 device(s) each, and 2 processes run it" in done.stderr


def test_error_of_one_process(program):
    path = program("""
        import oneflow as flow
        import oneflow.typing as tp
        from oneflow.single_client.record import op

        @op
        def odd(x):
            if x.is_global and flow.env.get_rank() == 1:
                raise ZeroDivisionError("on one rank")
            return x.to_global(x.placement, flow.sbp.broadcast) + 1 if x.is_global else x + 1

        @flow.global_function()
        def job() -> tp.Numpy:
            return odd(flow.constant(1.0, shape=(4,)))

        job()
    """)
    done = launch(path, 2)  # the number of devices is that of the processes, where the program says none
    assert done.returncode != 0 and "ZeroDivisionError: on one rank (in odd" in done.stderr


def test_end_of_the_program_waits_for_callbacks(program):
    """And an error that nobody asked for is shown."""
    path = program("""
        import numpy as np
        import oneflow as flow
        import oneflow.typing as tp

        flow.config.gpu_device_num(3)

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((300, 300))) -> tp.Callback[tp.Numpy]:
            return flow.matmul(x, x)

        for i in range(4):
            job(np.ones((300, 300), np.float32))(lambda v, i=i: print("RESULT", i, v[0, 0]))
        job(np.ones((300, 300), np.float32))(lambda v: v[300])
    """)
    for done in (run(path, timeout=60), launch(path, 3)):
        got = results(done)
        assert sorted(set(got)) == [f"RESULT {i} 300.0" for i in range(4)], done.stdout
        assert "IndexError" in done.stderr
