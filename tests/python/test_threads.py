"""Threads that a program starts itself, and a rank that is handed to one of them (ContextHandoff)."""

import threading

import pytest
from harness.ranks import launch

import holon as flow


def in_thread(call):
    """What the call returns or raises on a thread of its own."""
    result = []

    def run():
        try:
            result.append(call())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert result, "the thread did not end in a minute"
    return result[0]


def test_modes_and_random_numbers_are_the_threads_own():
    flow.manual_seed(3)
    first = flow.rand(4).tolist()
    flow.manual_seed(3)
    with flow.no_grad():
        assert in_thread(flow.is_grad_enabled) is True

    def draw():
        flow.manual_seed(5)
        return flow.rand(4).tolist()

    assert in_thread(draw) != first
    assert flow.rand(4).tolist() == first


def test_a_handoff_continues_what_it_has():
    rank = flow.ContextHandoff()

    def draw():
        with rank:
            return flow.rand(4).tolist()

    def seeded():
        with rank:
            flow.manual_seed(5)
            return flow.rand(4).tolist()

    first, second = in_thread(seeded), in_thread(draw)
    flow.manual_seed(5)
    assert [first, second] == [flow.rand(4).tolist(), flow.rand(4).tolist()]


def test_one_thread_at_a_time():
    rank = flow.ContextHandoff()

    def enter():
        with rank:
            pass

    with rank:
        error = in_thread(enter)
        assert isinstance(error, RuntimeError) and "used by two threads at a time" in str(error)
        error = in_thread(lambda: rank.__exit__(None, None, None))
        assert isinstance(error, RuntimeError) and "has not entered" in str(error)
        with pytest.raises(RuntimeError, match="has been handed to itself"):
            flow.ContextHandoff()
    with pytest.raises(RuntimeError, match="has not entered"):
        rank.__exit__(None, None, None)
    assert in_thread(enter) is None


PROGRAM = """
import threading
import holon as flow

p = flow.placement("cpu", [0, 1])
x = flow.ones(4, 4, placement=p, sbp=flow.sbp.split(0))
results = {}

def without():
    try:
        x.sum().item()
    except RuntimeError as error:
        results["without"] = str(error)

def work(rank, factor):
    with rank:
        for _ in range(50):
            results[factor] = (x * factor).sum().item()

x.sum().item()
other = threading.Thread(target=without)
other.start()
other.join()
ranks = [flow.ContextHandoff() for _ in range(2)]
threads = [threading.Thread(target=work, args=(rank, 3 + i)) for i, rank in enumerate(ranks)]
for thread in threads:
    thread.start()
own = [x.sum().item() for _ in range(50)]
for thread in threads:
    thread.join()
assert own == [16.0] * 50 and results[3] == 48.0 and results[4] == 64.0, results
assert "a second thread" in results["without"] and "ContextHandoff" in results["without"], results
print("done", flush=True)
"""


def test_threads_of_ranks_communicate_next_to_each_other(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = launch(program, 2)
    assert done.returncode == 0 and done.stdout.split() == ["done"] * 2, done.stderr
