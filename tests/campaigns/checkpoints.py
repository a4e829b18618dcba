"""A Checkpointer saves into one folder again and again, while ranks are interrupted and killed, and each round says
what it left there.

A round makes a Checkpointer on ranks of its own, which restores what is there and saves SAVES times, one step after the
other, asynchronously or not. What goes wrong is as in saves.py. Then every checkpoint of the folder is loaded. Prints a
JSON line for each round. By hand:
    python tests/campaigns/checkpoints.py --folder /tmp/checkpoint --first 0 --count 1000
"""

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import saves  # noqa: E402

KEEP, SAVES = 2, 3


class State:
    """As saves.state(), of any step, with the step."""

    def __init__(self, world):
        self._world, self.loaded = world, None
        self.set(0)

    def set(self, step):
        self._state = {**saves.state(self._world, step), "step": step}

    def state_dict(self):
        return self._state

    def load_state_dict(self, state):
        self.loaded = mixed(dict(state))


def mixed(state):
    """The step of a state; else text that says what is wrong with it."""
    step = state.pop("step")
    whole = {name: t.full_value() if t.is_global else t for name, t in state.items()}
    bad = [name for name, t in whole.items() if (t.numpy() != step).any()]
    return f"step {step}, but {bad} are of another" if bad or len(state) != 4 else step


def train(plan, asynchronous, rank, folder, before, pids, library):
    import holon

    state = State(plan.world)
    checkpoints = holon.checkpoint.Checkpointer(folder, KEEP, state=state, asynchronous=asynchronous)
    if before:
        found = checkpoints.restore()
        assert found.step == before == state.loaded, (found, before, state.loaded)
    saves.get_ready(plan, rank, pids, library)
    for step in range(before + 1, before + 1 + SAVES):
        state.set(step)
        checkpoints.save(step, rank=rank)
    checkpoints.wait()


def all_in(folder):
    """The steps of the checkpoints in a folder; else text that says what is wrong."""
    import holon

    try:
        state = State(1)
        checkpoints = holon.checkpoint.Checkpointer(folder, KEEP, state=state)
        for step in checkpoints.steps():
            holon.checkpoint.verify(checkpoints.path(step))
            found = checkpoints.restore(step)
            if (found.step, state.loaded) != (step, step):
                return f"the checkpoint of step {step} has {state.loaded}"
        return checkpoints.steps()
    except (RuntimeError, ValueError) as e:
        return str(e)


def one_round(seed, folder, library, before, faults=True):
    plan, asynchronous = saves.Plan(seed, saves=SAVES), random.Random(seed).random() < 0.7
    plan.none |= not faults
    codes, said, seconds = saves.run_world(
        plan, lambda rank, pids: train(plan, asynchronous, rank, folder, before, pids, library)
    )
    steps = saves.in_child(lambda: all_in(folder))  # which also collects what is left
    result = {
        "seed": seed,
        "plan": {k: str(v) for k, v in vars(plan).items()},
        "world": plan.world,
        "asynchronous": asynchronous,
        "before": before,
        "found": (max(steps) if steps else 0) if isinstance(steps, list) else steps,
        "steps": steps,
        "codes": codes,
        "seconds": seconds,
        "names": {name: sorted(os.listdir(os.path.join(folder, name))) for name in sorted(os.listdir(folder))},
        "complete": all(code == 0 for code in codes),
        "stderr": said[-3000:],
    }
    result["bad"] = verdict(result)
    return result


def verdict(result):
    """What is wrong after a round; empty: nothing."""
    steps, before = result["steps"], result["before"]
    if not isinstance(steps, list):
        return [f"a checkpoint is damaged: {steps}"]
    bad, newest = [], result["found"]
    if not before <= newest <= before + SAVES:
        bad.append(f"lost: {newest}")
    if result["complete"] and (newest != before + SAVES or len(steps) != min(KEEP, newest)):
        bad.append(f"every rank has saved, and there are {steps}")
    if len(steps) > KEEP + 1:
        bad.append(f"there are {steps}")
    for name, files in result["names"].items():
        rest = [f for f in files if f != "holon-index.json" and not f.startswith("part-")]
        if rest or len({f.split("-")[1] for f in files if f.startswith("part-")}) != 1:
            bad.append(f"garbage: {name} has {files}")
    if result["seconds"] > 2 * saves.COMM_TIMEOUT_S:
        bad.append("a rank hung")
    return bad


def stream(folder, first, count):
    return saves.stream(folder, first, count, program=__file__)


if __name__ == "__main__":
    saves.main(one_round, __file__, __doc__)
