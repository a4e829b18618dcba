"""Graphs over several hosts: they train as on one, and faults are told on all of them."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import graph_program  # noqa: E402
from namespaces import Hosts  # noqa: E402
from test_graph_equality import compiled, eager, expect_alike  # noqa: E402
from test_hosts import by_hand, finish, pytestmark, wait_until_ready  # noqa: E402, F401

import holon as flow  # noqa: E402

PROGRAM = [sys.executable, Path(graph_program.__file__)]


@pytest.mark.parametrize(
    "per_host, model, layout, shape, options",
    [
        (1, "Gpt", "in a row", (1, 1, 2), {"micro_batches": 4}),
        (1, "Convnet", "in a row", (1, 1, 2), {"micro_batches": 8, "schedule": "zero_bubble", "checkpoint": True}),
        (2, "Gpt", "in a row", (4, 1, 1), {"micro_batches": 2, "zero": 2}),
        (2, "Gpt", "in a row", (2, 2, 1), {"amp": True, "zero": 1}),
        (2, "Gpt", "in a row", (2, 1, 2), {"micro_batches": 4, "zero": 3}),
        (2, "Gpt", "across", (2, 1, 2), {"micro_batches": 2, "zero": 2, "checkpoint": True}),
        (2, "Convnet", "across", (2, 1, 2), {"micro_batches": 4, "schedule": "zero_bubble"}),
        (2, "Gpt", "across", (1, 2, 2), {"micro_batches": 4, "schedule": "gpipe"}),
    ],
    ids=str,
)
def test_a_graph_trains_as_on_one_host(tmp_path, per_host, model, layout, shape, options):
    path = tmp_path / "result.npz"
    command = [*PROGRAM, "train", model, layout, json.dumps(shape), json.dumps(options), path]
    with Hosts(2) as hosts:
        codes, outputs = finish(by_hand(hosts, per_host, command, HOLON_MACHINE_COSTS="fixed"))
    assert codes == [0] * 2 * per_host, outputs
    state = dict(np.load(path))
    found = state.pop("losses").tolist(), state

    kind, here = graph_program.MODELS[model], graph_program.LAYOUTS[layout](*shape)
    graph = flow.run_ranks(here.ranks, lambda rank: compiled(kind, here, options))[0]
    steps = flow.run_ranks(here.ranks, lambda rank: eager(kind, here, options, here.dp))[0]
    amp = options.get("amp")
    expect_alike(graph, found, 2e-2 if amp else 5e-5)
    expect_alike(steps, found, 5e-2 if amp else 2e-4)


@pytest.mark.parametrize(
    "per_host, layout", [(1, {"ep": 2}), (2, {"ep": 4}), (2, {"dp": 2, "ep": 2}), (2, {"ep": 2, "pp": 2})], ids=str
)
def test_experts_train_as_on_one_rank(tmp_path, per_host, layout):
    path = tmp_path / "losses.json"
    command = [*PROGRAM, "experts", json.dumps(layout), path]
    with Hosts(2) as hosts:
        codes, outputs = finish(by_hand(hosts, per_host, command, HOLON_MACHINE_COSTS="fixed"))
    assert codes == [0] * 2 * per_host, outputs
    wanted = flow.run_ranks(1, lambda rank: graph_program.losses_of_experts({}, False))[0]
    assert wanted[2] < wanted[0]
    found = json.loads(path.read_text())
    np.testing.assert_allclose(found["eager"], wanted, rtol=2e-5)
    np.testing.assert_allclose(found["graph"], wanted, rtol=2e-5)


LIMIT = 30


@pytest.mark.parametrize("kind", ["pipeline", "parallel"])
@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_that_is_killed_in_a_step(kind, victim):
    """Every other rank, on both hosts, raises long before the time-out and says who it was."""
    with Hosts(2) as hosts:
        ranks = by_hand(hosts, 2, [*PROGRAM, "work", kind], HOLON_COMM_TIMEOUT_S=LIMIT)
        wait_until_ready(ranks)
        start = time.monotonic()
        os.kill(ranks[victim].pid, signal.SIGKILL)
        codes, outputs = finish(ranks)
        took = time.monotonic() - start
        assert hosts.processes() == []
    assert codes[victim] == -signal.SIGKILL and took < LIMIT, (took, outputs)
    for rank, text in enumerate(outputs):
        if rank != victim:
            assert codes[rank] == 1 and re.search(rf"Error: .*\brank {victim}\b", text), text


@pytest.mark.parametrize("kind", ["pipeline", "parallel"])
def test_a_rank_that_stands_still_in_a_step(kind):
    """A rank of the other host is stopped: all raise within the time-out, and it is named."""
    limit, victim = 2, 2
    with Hosts(2) as hosts:
        ranks = by_hand(hosts, 2, [*PROGRAM, "work", kind], HOLON_COMM_TIMEOUT_S=limit)
        wait_until_ready(ranks)
        start = time.monotonic()
        os.kill(ranks[victim].pid, signal.SIGSTOP)
        try:
            codes, outputs = finish([r for i, r in enumerate(ranks) if i != victim])
            took = time.monotonic() - start
        finally:
            ranks[victim].kill()
            ranks[victim].communicate()
        assert hosts.processes() == []
    assert codes == [1] * 3 and took < limit + 40, (took, outputs)
    # Who gives up first is told to the others: its neighbour here, or one of the other host.
    named = rf"[Rr]ank {victim} (is stopped|did not)|ranks \[{victim}, 3\] on|transfer \[{victim}\] ->"
    assert any(re.search(named, text) for text in outputs), outputs


@pytest.mark.parametrize(
    "what, says",
    [
        ("op", r"the ranks have captured different graphs. The first difference is node \d+:.*\n.*tanh.*\n.*relu"),
        ("constant", r"the ranks have captured different graphs. The first difference is node \d+:"),
        ("config", r"the ranks compile a graph differently:\n.*rank 0, 1: .*ZeRO 0.*\n.*rank 2, 3: .*ZeRO 1"),
    ],
)
def test_another_graph_on_another_host(what, says):
    with Hosts(2) as hosts:
        codes, outputs = finish(by_hand(hosts, 2, [*PROGRAM, "mismatch", what], HOLON_COMM_TIMEOUT_S=LIMIT))
    assert codes == [1] * 4, outputs
    for text in outputs:
        assert re.search(says, text), text
        assert "Every rank must run the same build() with the same config" in text, text
