"""visualize: who holds what, as text, in colour and as SVG, without a word to other ranks."""

import xml.etree.ElementTree as ElementTree

import pytest
from harness import ranks

import holon as flow


def test_on_one_rank_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import holon as flow\n"
        "p = flow.placement('cpu', ranks=[0, 1, 2])\n"
        "x = flow.zeros(7, 4, placement=p, sbp=flow.sbp.split(0))\n"
        "if flow.env.get_rank() == 1:\n"
        "    before = flow._C.comm_stats()\n"
        "    flow.visualize(x, file='x.svg')\n"
        "    assert flow._C.comm_stats() == before\n"
    )
    done = ranks.launch(program, 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [
        "          0:4",
        "  0:3 |  rank 0  |",
        "  3:5 | rank 1 * |",
        "  5:7 |  rank 2  |",
        "* this rank",
    ]
    svg = ElementTree.parse(tmp_path / "x.svg").getroot()
    texts = [e.text for e in svg.iter() if e.tag.endswith("text")]
    assert {"rank 0", "rank 1", "rank 2", "0:3", "3:5", "5:7"} <= set(texts)


def test_ranks_as_threads_and_every_layout():
    def f(rank):
        if rank:
            return None
        p = flow.placement("cpu", ranks=[[0, 1], [2, 3]])
        kinds = [flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum]
        pictures = {}
        for a in kinds:
            for b in kinds:
                picture = flow.visualize(flow.zeros(5, 3, 6, placement=p, sbp=[a, b]))
                ElementTree.fromstring(picture.svg)
                pictures[a, b] = picture.text
        return pictures

    pictures = flow.run_ranks(4, f)[0]
    assert len(set(pictures.values())) == 16
    assert "ranks 0 + 1 = 2 + 3" in pictures[flow.sbp.broadcast, flow.sbp.partial_sum]
    assert "ranks 0-3" in pictures[flow.sbp.broadcast, flow.sbp.broadcast]


def test_local(capsys):
    picture = flow.visualize(flow.zeros(2, 3))
    assert (
        capsys.readouterr().out
        == str(picture)
        == "float32 [2, 3], local\n          0:3\n  0:2 | rank 0 * |\n* this rank\n"
    )
    assert "float32 [2, 3]" in repr(picture) and picture._repr_svg_() == picture.svg


def test_in_colour():
    console = pytest.importorskip("rich.console").Console(force_terminal=True, width=100, record=True)
    picture = flow.visualize(flow.zeros(2, 3, placement=flow.placement("cpu", ranks=[0]), sbp=flow.sbp.broadcast))
    picture._print_in_colour(console)
    shown = console.export_text()
    assert "rank 0 *" in shown and "0:3" in shown and "0:2" in shown


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"x.png' does not end in .svg"):
        flow.visualize(flow.zeros(2), file=tmp_path / "x.png")
    with pytest.raises(TypeError, match="takes a tensor, got list"):
        flow.visualize([1, 2])
