"""holon explicit: programs whose implicit boxings are written into their source, those of backward too."""

import shutil
import subprocess

import pytest
from harness.contracts import EAGER_GPT, FIXED, LAYOUTS, command
from harness.ranks import ROOT, launch

import holon as flow
from holon import run_ranks

BLOCK = 'with flow.boxing_policy("silent"):'


@pytest.fixture
def gpt(tmp_path):
    """The GPT, whose model is beside the program."""
    shutil.copy(ROOT / "examples/gpt/model.py", tmp_path)
    # Results only: its losses, and at the end its parameters.
    text = EAGER_GPT.replace("range(4)", "range(2)").replace(str(ROOT / "examples/gpt"), str(tmp_path))
    text = "import hashlib\n" + text.replace("print(step, read, calls, ", "print(step, ")
    text += "values = b''.join(p.to_local().numpy().tobytes() for p in model.parameters())\n"
    text += "print('parameters', hashlib.sha256(values).hexdigest())\n"
    (tmp_path / "gpt.py").write_text(text)
    return tmp_path / "gpt.py"


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_explicit_gpt_runs_under_raise_with_equal_bits(gpt, layout):
    before = launch(gpt, 4, arguments=layout, **FIXED)
    # Tensor-parallel ranks make boxings in both directions, data-parallel ranks and stages none that are implicit.
    strict = launch(gpt, 4, arguments=layout, HOLON_BOXING_POLICY="raise", **FIXED)
    assert (strict.returncode != 0) == (layout[1] > 1)
    made = command("explicit", "-n", 4, "-o", gpt.parent / "explicit", gpt, *layout)
    assert made.returncode == 0, made.stderr
    assert "the program prints the same; gradients and parameters have the same bits" in made.stderr
    assert "allowed by a block" not in made.stderr
    for file in (gpt.parent / "explicit").glob("*.py"):
        shutil.copy(file, gpt.parent)
    after = launch(gpt, 4, arguments=layout, HOLON_BOXING_POLICY="raise", **FIXED)
    assert after.returncode == 0, after.stderr
    assert sorted(after.stdout.splitlines()) == sorted(before.stdout.splitlines()) != []
    model = (gpt.parent / "model.py").read_text()
    assert (".to_global(sbp=" in model and ".to_global(grad_sbp=" in model) == (layout[1] > 1)
    assert BLOCK not in model + gpt.read_text()
    # An expression is converted once, its value and its gradient.
    assert "]).to_global(" not in model and ("], grad_sbp=[" in model) == (layout[1] > 1)


NET = """
import holon as flow
from holon import nn
from holon.nn import functional as F

placement = flow.placement("cpu", ranks=[0, 1])
B, S = flow.sbp.broadcast, flow.sbp.split

flow.manual_seed(1)
up = nn.Linear(8, 16, placement=placement, sbp=S(0))
down = nn.Linear(16, 8, placement=placement, sbp=S(1))
side = nn.Linear(8, 16, placement=placement, sbp=B)
norm = nn.LayerNorm(16, placement=placement, sbp=B)
x = flow.randn(4, 8, placement=placement, sbp=S(0))
for step in range(2):
    h = up(x)
    h = F.gelu(h)
    # more
    y = down(h)
    loss = y.square().mean()
    loss.backward()
    print(step, loss.item())
"""


def explicit(source, folder, *options, bits="the same"):
    """Rewrites the program where it is; returns what the tool has told and the new text."""
    program = folder / "net.py"
    program.write_text(source)
    made = command("explicit", "-n", 2, *options, program, cwd=folder)
    assert made.returncode == 0, made.stderr
    assert f"the program prints the same; gradients and parameters have {bits} bits" in made.stderr
    subprocess.run(["patch", "-p1"], input=made.stdout, text=True, check=True, cwd=folder)
    done = launch(program, 2, HOLON_BOXING_POLICY="raise", **FIXED)
    assert done.returncode == 0, done.stderr
    return made.stderr, program.read_text()


def test_a_patch_makes_a_program_explicit(tmp_path):
    told, text = explicit(NET, tmp_path)
    assert "net.py:16: linear: S(0) -> B, float32 [4, 8]: explicit" in told
    assert "h = up(x.to_global(sbp=flow.sbp.broadcast, keep_grad_sbp=True))" in text
    broken = tmp_path / "broken.py"
    broken.write_text("raise KeyError(1)\n")
    told = command("explicit", "-n", 2, broken)
    assert told.returncode != 0 and "the program fails as it is" in told.stderr


def test_programs_that_differ_from_run_to_run(tmp_path):
    # Times that it prints do not count, its gradients do.
    program = tmp_path / "net.py"
    program.write_text("import time\n" + NET.replace("print(step, ", "print(time.time_ns(), "))
    made = command("explicit", "-n", 2, program, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "the program prints something else in each run; gradients and parameters have the same bits" in made.stderr
    assert made.stdout.count("+    ") == 2 and BLOCK not in made.stdout
    program.write_text("import os\n" + NET.replace("flow.manual_seed(1)", "flow.manual_seed(os.getppid())"))
    made = command("explicit", "-n", 2, program, cwd=tmp_path)
    assert made.returncode != 0 and "Seed its random numbers" in made.stderr and made.stdout == ""


def test_a_gradient_is_converted_on_its_forward_line(tmp_path):
    # What follows takes the result split along its classes, and so comes its gradient.
    told, text = explicit(NET.replace("# more", "h = flow.softmax(h, -1) * h"), tmp_path)
    assert "net.py:18: backward, softmax_backward: S(1) -> B, float32 [4, 16]: explicit" in told
    assert ", -1).to_global(grad_sbp=flow.sbp.broadcast) * h" in text and BLOCK not in text


def test_two_operands_of_one_line_are_converted(tmp_path):
    told, text = explicit(NET.replace("# more", "h = norm(h) + norm(h * 2)"), tmp_path)
    assert told.count("net.py:18: layer_norm_stats: S(1) -> B, float32 [4, 16]: explicit") == 2
    assert "norm(h.to_global(" in text and "norm((h * 2).to_global(" in text


def test_a_conversion_with_other_bits_is_taken_only_if_asked(tmp_path):
    # Backward keeps a split leaf as it is, and gathers it again; to_global's result is kept whole.
    source = NET.replace("sbp=S(0))\nfor step", "sbp=S(0)).requires_grad_()\nfor step")
    told, text = explicit(source, tmp_path)
    assert (
        "net.py:16: linear: S(0) -> B, float32 [4, 8]: allowed by a block, no to_global on this line replaces it with "
        "the same bits; --rounding takes one that makes sums in another order" in told
    )
    assert f"    {BLOCK}  # linear: S(0) -> B, float32 [4, 8]\n        h = up(x)\n" in text
    told, text = explicit(source, tmp_path, "--rounding", bits="other")
    assert "h = up(x.to_global(sbp=flow.sbp.broadcast, keep_grad_sbp=True))" in text and BLOCK not in text


def test_what_no_line_can_say_gets_a_block_and_a_reason(tmp_path):
    # Between the modules of a Sequential the program has no expression.
    source = NET.replace("    h = up(x)\n    h = F.gelu(h)\n    # more\n    y = down(h)\n", "    y = net(x)\n").replace(
        "for step", "net = nn.Sequential(up, nn.GELU(), norm, down)\nfor step"
    )
    told, text = explicit(source, tmp_path)
    assert text.count(BLOCK) == 2
    assert (
        "net.py:17: layer_norm_stats: S(1) -> B, float32 [4, 16]: allowed by a block, it is not an operand on this line"
    ) in told
    number = 1 + text.splitlines().index("        y = net(x.to_global(sbp=flow.sbp.broadcast, keep_grad_sbp=True))")
    assert (
        "layer_norm_backward: S(1) -> B, float32 [4, 16]: allowed by a block, in the gradient of layer_norm_stats, and "
        f"no to_global(grad_sbp=...) on net.py:{number} replaces it\n"
    ) in told


def test_a_refusal_in_backward_names_the_forward_line(tmp_path):
    program = tmp_path / "net.py"
    program.write_text(
        NET.replace("h = up(x)", "h = up(x.to_global(sbp=B))")
        .replace("# more", "h = flow.softmax(h.to_global(sbp=B), -1) * 1\n    h = h.to_global(sbp=S(1), grad_sbp=S(1))")
        .replace("loss = y", "loss = y.to_global(sbp=B)")
    )
    done = launch(program, 2, HOLON_BOXING_POLICY="raise", **FIXED)
    assert done.returncode != 0
    assert (
        "softmax_backward: S(1) -> B" in done.stderr
        and f"This is in backward, the gradient of softmax, recorded at {program}:18. There, x.to_global(grad_sbp=...) "
        "converts the gradient."
        in done.stderr
    ), done.stderr


def test_a_gradient_is_kept_as_it_comes():
    def rank(_):
        placement = flow.placement("cpu", [0, 1])
        x = flow.ones(4, 4, placement=placement, sbp=flow.sbp.split(0)).requires_grad_()
        y = x * 1
        seen = []
        y.register_hook(lambda g: seen.append(g.sbp))
        gradient = flow.ones(4, 4, placement=placement, sbp=flow.sbp.broadcast)
        y.to_global(sbp=flow.sbp.broadcast, keep_grad_sbp=True).backward(gradient)
        assert seen == [(flow.sbp.broadcast,)] and x.grad.sbp == (flow.sbp.split(0),)
        # Of a leaf too, whose own gradient has the leaf's layout.
        x.to_global(sbp=flow.sbp.broadcast, keep_grad_sbp=True).backward(gradient)
        assert x.grad.sbp == (flow.sbp.split(0),) and float(x.grad.sum().item()) == 32
        with pytest.raises(Exception, match="grad_sbp and keep_grad_sbp were both given"):
            y.to_global(sbp=flow.sbp.broadcast, grad_sbp=flow.sbp.broadcast, keep_grad_sbp=True)

    run_ranks(2, rank)
