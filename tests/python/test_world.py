"""holon.world(n): ranks that stay behind one program, and %%ranks in a notebook."""

import pickle
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET

import pytest
from harness.ranks import environment

import holon as flow

START = (
    "import holon as flow\np = flow.placement('cpu', [0, 1, 2])\nx = flow.ones(6, placement=p, sbp=flow.sbp.split(0))\n"
)


@pytest.fixture
def ranks():
    with flow.world(3) as world:
        world.run(START)
        yield world


def test_names_live_from_call_to_call(ranks, capsys):
    assert ranks.run("y = x * flow.env.get_rank()\nx.sum().item()") == [6.0] * 3
    ranks.run("print(flow.env.get_rank() == int(y.to_local()[0]))")
    assert capsys.readouterr().out == "6.0\nTrue\n"
    assert [int(space["y"].to_local()[0].item()) for space in ranks.namespaces] == [0, 1, 2]


def test_what_ranks_print_is_shown_once_where_they_agree(ranks, capsys):
    ranks.run("print('alike')\nprint('alike')")
    assert capsys.readouterr().out == "alike\nalike\n"
    ranks.run("print('first' if flow.env.get_rank() == 0 else 'other')")
    assert capsys.readouterr().out == "[rank 0]\nfirst\n[ranks 1, 2]\nother\n"
    ranks.run("if flow.env.get_rank() == 1: print('alone')")
    assert capsys.readouterr().out == "[rank 1]\nalone\n"


def test_a_function_runs_on_all_ranks(ranks):
    def twice(value, *, more):
        return value * 2 + more + flow.env.get_rank()

    assert ranks.call(twice, 3, more=1) == [7, 8, 9]


def test_an_error_names_its_ranks_and_the_world_goes_on(ranks, capsys):
    ranks.run("flow.manual_seed(5)")
    for _ in range(3):  # each time the others are in the middle of a collective
        capsys.readouterr()
        with pytest.raises(
            flow.RanksError, match=r"^rank 1 of 3 raised ZeroDivisionError.*ranks 0, 2 waited for it"
        ) as e:
            ranks.run("print('before')\nif flow.env.get_rank() == 1:\n    1 / 0\nx.sum().item()")
        assert isinstance(e.value.__cause__, ZeroDivisionError) and sorted(e.value.errors) == [0, 1, 2]
        assert capsys.readouterr().out == "before\n"
        assert ranks.run("x.sum().item()") == [6.0] * 3
    assert len(set(ranks.run("flow.randn(1, placement=p, sbp=flow.sbp.broadcast).to_local().item()"))) == 1
    with pytest.raises(flow.RanksError, match=r"ranks 0, 1, 2 of 3 raised NameError: name 'nothing'"):
        ranks.run("nothing")
    with pytest.raises(flow.RanksError, match="rank 0 of 3 raised ValueError: a; ranks 1, 2 of 3 raised ValueError: b"):
        ranks.run("raise ValueError('b' if flow.env.get_rank() else 'a')")
    with pytest.raises(SyntaxError):
        ranks.run("1 +")


def test_random_numbers_and_the_gradient_mode_outlive_an_error(ranks):
    draw = "flow.randn(1, placement=p, sbp=flow.sbp.broadcast).to_local().item()"
    ranks.run("flow.manual_seed(7)")
    first, second = ranks.run(draw)[0], ranks.run(draw)[0]
    ranks.run("flow.manual_seed(7)\nflow.set_grad_enabled(False)")
    assert ranks.run(draw)[0] == first
    with pytest.raises(flow.RanksError):
        ranks.run("raise ValueError")
    assert ranks.run(draw)[0] == second and ranks.run("flow.is_grad_enabled()") == [False] * 3


@pytest.mark.parametrize(
    "cell",
    [
        "while True: pass",
        "if flow.env.get_rank(): x.sum().item()",  # rank 0 never comes
        "if flow.env.get_rank(): x.sum().item()\nwhile True: time.sleep(0.01)",
    ],
)
def test_ctrl_c_interrupts_every_rank(cell, tmp_path):
    """In a process of its own: it gets a signal once its ranks are at work."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import os, signal, threading, time
        import holon as flow
        world = flow.world(3)
        world.run({START!r} + "import os, signal, threading, time")
        for _ in range(3):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                world.run({cell!r})
            except KeyboardInterrupt:
                print("interrupted", world.run("x.sum().item()"))
        world.close()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        env=environment(HOLON_COMM_TIMEOUT_S=200),
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("interrupted [6.0, 6.0, 6.0]") == 3, done.stdout


def test_bad_worlds():
    for n in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="a world has at least one"):
            flow.world(n)
    world = flow.world(1)
    world.close()
    world.close()
    with pytest.raises(RuntimeError, match="it is closed"):
        world.run("1")


def test_a_rank_cannot_give_work_to_its_own_world(ranks):
    with pytest.raises(flow.RanksError, match="cannot give work to its own world"):
        ranks.call(lambda: ranks.run("1"))


def test_cells_of_a_notebook(capsys):
    shells = pytest.importorskip("IPython.core.interactiveshell", reason="needs IPython")
    shell = shells.InteractiveShell.instance()

    def cell(text):
        return shell.run_cell(text)

    try:
        assert cell("%load_ext holon").success
        assert cell(f"%%ranks 3\n{START}x.sum().item()").success
        assert capsys.readouterr().out.endswith("6.0\n")
        assert cell("%%ranks\nflow.env.get_rank()").success
        assert capsys.readouterr().out == "[rank 0]\n0\n[rank 1]\n1\n[rank 2]\n2\n"
        assert cell("%%ranks\nx").success  # drawn once, not once for each rank
        assert capsys.readouterr().out.count("HTML") == 1
        failed = cell("%%ranks\nif flow.env.get_rank() == 2:\n    raise ValueError('no')\nx.sum().item()")
        assert isinstance(failed.error_in_exec, flow.RanksError)
        assert str(failed.error_in_exec) == "rank 2 of 3 raised ValueError: no; ranks 0, 1 waited for it"
        capsys.readouterr()
        assert cell("%%ranks 2\nimport holon as flow\nflow.env.get_world_size()").success
        assert capsys.readouterr().out == "2 ranks instead of 3: names of earlier cells are gone\n2\n"
        assert "takes one number" in str(cell("%%ranks many\n1").error_in_exec)
    finally:
        cell("%unload_ext holon")
        shells.InteractiveShell.clear_instance()


def test_values_draw_themselves():
    p = flow.placement("cpu", [[0]])
    x = flow.ones(2, 2, placement=p, sbp=[flow.sbp.split(0), flow.sbp.broadcast])
    assert "<svg" in x._repr_html_() and flow.ones(2)._repr_html_() is None
    assert "<svg" in p._repr_html_() and "placement" in p._repr_html_()


def test_an_explanation_draws_itself():
    split, broadcast, partial_sum = flow.sbp.split, flow.sbp.broadcast, flow.sbp.partial_sum

    def rank(_):
        p, first = flow.placement("cpu", [0, 1, 2]), flow.placement("cpu", [0])
        x = flow.ones(6, 4, placement=p, sbp=split(0))
        found = [flow.explain(x, sbp=sbp) for sbp in (split(1), broadcast, split(0))]
        return [*found, flow.explain(x.to_global(sbp=partial_sum), placement=first, sbp=split(0))]

    for text in flow.run_ranks(3, rank)[0]:
        drawn = ET.fromstring(f"<div>{text._repr_html_()}</div>")
        pictures = [part for part in drawn if part.tag.endswith("svg")]
        words = ["".join(part.itertext()).removeprefix("\u2193 ") for part in drawn if not part.tag.endswith("svg")]
        assert words == [line.strip() for line in text.splitlines()]
        assert len(pictures) == 1 + len(re.findall(r"^  \d+\. ", text, re.M))
        titles = [next(part.text for part in picture if part.tag.endswith("text")) for picture in pictures]
        source, target = text.split(", float32")[0].split(" -> ")
        assert (titles[0], titles[-1]) == (f"float32 [6, 4], {source}", f"float32 [6, 4], {target}")
        assert repr(text) == str(text) and pickle.loads(pickle.dumps(text)) == text
