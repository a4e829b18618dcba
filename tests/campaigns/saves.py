"""Saves into one folder again and again, while ranks are interrupted and killed, and says what each round leaves there.

A round is a save of a new state by ranks of its own. Signals come before or after some call for a file
(file_faults.cpp), or at any moment; SIGINT to one rank or all, SIGKILL to one. Then the folder is loaded. Prints a JSON
line for each round. By hand:
    python tests/campaigns/saves.py --folder /tmp/checkpoint --first 0 --count 1000 --format hf
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "faults")]
MOST_CALLS = {"holon": 28, "hf": 56}  # of rank 0 in a save, by format
COMM_TIMEOUT_S = 60


def build(folder):
    """The library of faults, to be preloaded; None where there is no compiler."""
    library = Path(folder) / "file_faults.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O1", "-shared", "-fPIC", str(HERE / "file_faults.cpp")]
    try:
        subprocess.run([*command, "-ldl", "-o", str(library)], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return library


def state(world, step):
    """Tensors split in several ways, broadcast and local, all filled with the number of the step."""
    import holon

    everywhere = holon.placement.all("cpu")
    value = float(step)
    whole = holon.full((4 * world + 1, 6), value, placement=everywhere, sbp=holon.sbp.broadcast)
    return {
        "rows": whole.to_global(everywhere, holon.sbp.split(0)),
        "columns": whole.to_global(everywhere, holon.sbp.split(1)),
        "whole": whole,
        "local": holon.full((3,), value),
    }


def found_in(folder):
    """The step whose state the folder holds as a whole; else text that says what is wrong."""
    import holon

    try:
        obj = holon.load(folder, "cpu")
    except RuntimeError as e:
        return str(e)
    step = int(obj["local"][0].item())
    mixed = [name for name, t in obj.items() if (t.numpy() != step).any()]
    return f"step {step}, but {mixed} are of another" if mixed or len(obj) != 4 else step


def in_child(function):
    """What function returns in a fork, by JSON."""
    out, to = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(out)
            os.write(to, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(to)
    with os.fdopen(out) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "the process that loads has died"


class Plan:
    """What goes wrong in a round."""

    def __init__(self, seed, form="holon", saves=1):
        rng = random.Random(seed * 7919 + 5)
        self.world = rng.randint(2, 4)
        self.none = rng.random() < 0.15
        self.signal = rng.choice([signal.SIGINT, signal.SIGINT, signal.SIGKILL])
        self.by_call = rng.random() < 0.75
        self.rank = rng.choice([0, 0, rng.randrange(self.world)])  # at whose call: rank 0 makes the most
        self.at = rng.randrange(saves * (MOST_CALLS[form] if self.rank == 0 else 9))
        self.after = rng.random() < 0.5
        self.delay = rng.uniform(0, saves * 0.03)
        others = [r for r in range(self.world) if r != self.rank]
        targets = [[self.rank], [rng.choice(others)]]
        if self.signal == signal.SIGINT:
            targets += [others, list(range(self.world))]
        self.targets = rng.choice(targets)
        self.wait = rng.choice([0, 0.005, 0.03])
        self.options = {} if form == "holon" else {"format": "hf", "shard_size": rng.choice([100, 100, 10000])}


def get_ready(plan, rank, pids, library):
    """Says that the rank is ready, and prepares the fault if it is to come at a call of this rank."""
    import holon

    holon.comm.barrier()
    (Path(pids).parent / f"ready-{rank}").touch()
    if not plan.none and plan.by_call and rank == plan.rank:
        while not os.path.exists(pids):
            time.sleep(0.001)
        known = json.loads(Path(pids).read_text())
        targets = [known[r] for r in plan.targets]
        ctypes.CDLL(str(library)).arm(
            plan.at,
            int(plan.signal),
            (ctypes.c_int * len(targets))(*targets),
            len(targets),
            int(plan.wait * 1e6),
            int(plan.after),
        )


def save(plan, rank, folder, step, pids, library):
    import holon

    obj = state(plan.world, step)
    get_ready(plan, rank, pids, library)
    holon.save(obj, folder, **plan.options)


def run_world(plan, body):
    """Runs body(rank, pids) on the plan's ranks, and lets go wrong what the plan says: each rank's code, what they
    wrote to stderr, and the seconds that it took."""
    from campaign import start_rank
    from harness.ports import free_port

    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryFile("w+") as output:
        pids = os.path.join(own, "pids")
        port, variables = free_port(), {"HOLON_COMM_TIMEOUT_S": str(COMM_TIMEOUT_S)}
        ranks = [
            start_rank(r, plan.world, port, output, variables, lambda r=r: body(r, pids)) for r in range(plan.world)
        ]
        Path(pids + "~").write_text(json.dumps(ranks))
        os.rename(pids + "~", pids)
        running, codes, struck = dict(zip(ranks, range(plan.world))), {}, plan.none or plan.by_call
        while running:
            if not struck and all(os.path.exists(os.path.join(own, f"ready-{r}")) for r in plan.targets):
                time.sleep(plan.delay)
                for r in plan.targets:
                    if ranks[r] in running:
                        os.kill(ranks[r], plan.signal)
                struck = True
            for pid in list(running):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
            if time.monotonic() - begin > 3 * COMM_TIMEOUT_S:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        output.seek(0)
        return [codes[r] for r in range(plan.world)], output.read(), round(time.monotonic() - begin, 3)


def one_round(seed, folder, library, before, faults=True, form="holon"):
    plan, step = Plan(seed, form), before + 1
    plan.none |= not faults
    codes, said, seconds = run_world(plan, lambda rank, pids: save(plan, rank, folder, step, pids, library))
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    result = {
        "seed": seed,
        "plan": {k: str(v) for k, v in vars(plan).items()},
        "world": plan.world,
        "format": form,
        "before": before,
        "found": in_child(lambda: found_in(folder)),
        "codes": codes,
        "seconds": seconds,
        "names": names,
        "complete": all(code == 0 for code in codes),
        "stderr": said[-3000:],
    }
    result["bad"] = verdict(result)
    return result


def verdict(result):
    """What is wrong after a round; empty: nothing."""
    found, names, world = result["found"], result["names"], result["world"]
    bad = []
    if found not in (result["before"], result["before"] + 1):
        bad.append(f"lost: {found}")
    if result["complete"] and found != result["before"] + 1:
        bad.append("every rank has saved, but the old state is there")
    # What a complete save leaves is an index and a file of each rank; any other, what one save makes in addition.
    parts, temporary = [n for n in names if n.startswith("part-")], [n for n in names if n.startswith(".holon-")]
    if result["format"] == "hf":
        shards = [f"model-{i:05}-of-00004.safetensors" for i in range(1, 5)] + ["model.safetensors.index.json"]
        if result["complete"] and names != ["model.safetensors"] and names != shards:
            bad.append(f"garbage after a save: {names}")
    elif result["complete"] and (len(parts) != world or temporary):
        bad.append(f"garbage after a save: {names}")
    if len({n.split("-")[1] for n in parts}) > 2 or len(temporary) > world + 2:
        bad.append(f"garbage of more than one save: {names}")
    if result["seconds"] > 2 * COMM_TIMEOUT_S:
        bad.append("a rank hung")
    return bad


def stream(folder, first, count, form=None, program=__file__):
    """Runs a program of rounds, this one, and yields its rounds, each as it ends. form: of what it saves."""
    from harness.ranks import environment

    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryFile("w+") as errors:
        library = build(own)
        if not library:
            raise RuntimeError(
                "file_faults.cpp needs a C++ compiler and found none: ./dev build installs one, or set CXX"
            )
        process = subprocess.Popen(
            [sys.executable, program, "--folder", folder, "--first", str(first), "--count", str(count)]
            + ["--library", str(library)]
            + (["--format", form] if form else []),
            env=environment(LD_PRELOAD=library),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            for line in process.stdout:
                yield json.loads(line)
            process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        assert process.returncode == 0, errors.read()[-3000:]


def run(folder, first, count, form=None):
    return list(stream(folder, first, count, form))


def main(one_round=one_round, program=__file__, description=__doc__):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", required=True, help="its name has the word checkpoint")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--format", choices=MOST_CALLS, help="of what is saved")
    parser.add_argument("--library", help="of build(), which is preloaded; without, this program does both")
    args = parser.parse_args()
    if not args.library:
        for result in stream(args.folder, args.first, args.count, args.format, program):
            print(json.dumps(result), flush=True)
        return
    import holon  # noqa: F401  (once for all forks)

    options = {"form": args.format} if args.format else {}
    first = one_round(args.first, args.folder, args.library, 0, faults=False, **options)
    print(json.dumps(first), flush=True)
    step = first["found"]
    for seed in range(args.first, args.first + args.count):
        result = one_round(seed, args.folder, args.library, step, **options)
        print(json.dumps(result), flush=True)
        if not isinstance(result["found"], int):
            break  # nothing is left to save over
        step = result["found"]


if __name__ == "__main__":
    main()
