#!/usr/bin/env python3
"""Boxing between two hosts of two ranks each, by each network between hosts or those that are named, against what
iperf3 moves over the same link in the same run.

The hosts are network namespaces of this machine, so both sides' work shares its cores. The limit's time is that of the
bytes that must cross in the busier direction, at the rate that iperf3 reaches with as many processes as a host has
ranks, both ways at once where the boxing uses both ways. iperf3 sends one small buffer again and again, so its bytes
stay in the caches; what is redistributed comes from memory and goes there. One JSON object a line; nothing where
namespaces cannot be made or iperf3 is not installed.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/hosts"))

RANKS_PER_HOST, PORT = 2, 29507
NETWORKS = ["gloo", "ucx"]
SIZES = [256 << 10, 4 << 20, 64 << 20]
REPEATS = 9


def cases():
    """name, from, to, share of the tensor's bytes that cross in the busier direction, both ways at once"""
    import holon as flow

    everywhere = flow.placement("cpu", ranks=[0, 1, 2, 3])
    first, second = flow.placement("cpu", ranks=[0, 1]), flow.placement("cpu", ranks=[2, 3])
    B, P, S0, S1 = flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split(0), flow.sbp.split(1)
    return [
        ("all_reduce", (everywhere, P), (everywhere, B), 1, True),
        ("reduce_scatter", (everywhere, P), (everywhere, S0), 1 / 2, True),
        ("all_gather", (everywhere, S0), (everywhere, B), 1 / 2, True),
        ("all_to_all", (everywhere, S0), (everywhere, S1), 1 / 4, True),
        ("copy to the other host", (first, S0), (second, S0), 1, False),
        ("broadcast to the other host", (first, S0), (second, B), 1, False),
    ]


def emit(name, value, unit, against, ratio):
    line = {"name": name, "value": round(value, 3), "unit": unit, "against": against, "ratio": round(ratio, 3)}
    print(json.dumps(line), flush=True)


def predicted(explanation):
    """Seconds, of the plan's first line: "...: 1 step, at most 96 bytes per rank, 12.3 us"."""
    number, unit = str(explanation).splitlines()[0].rsplit(", ", 1)[1].split()
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]


def rank():
    import holon as flow

    for size in SIZES:
        rows = size // 4 // 1024
        for name, (p0, s0), (p1, s1), share, both in cases():
            x = flow.ones(rows, 1024, placement=p0, sbp=s0)
            everywhere = flow.placement("cpu", ranks=[0, 1, 2, 3])
            one = flow.ones(4, placement=everywhere, sbp=flow.sbp.split(0))
            times = []
            inner = max(1, min(20, (32 << 20) // size))
            for i in range(REPEATS + 1):
                one.to_global(everywhere, flow.sbp.broadcast).numpy()  # all start together
                start = time.perf_counter()
                for _ in range(inner):
                    x.to_global(p1, s1)
                one.to_global(everywhere, flow.sbp.broadcast).numpy()
                if i:
                    times.append((time.perf_counter() - start) / inner)
            if flow.env.get_rank() == 0:
                print(
                    "RES",
                    json.dumps(
                        {
                            "name": name,
                            "size": size,
                            "share": share,
                            "both": both,
                            "s": statistics.median(times),
                            "predicted": predicted(flow.boxing.explain(x, p1, s1)),
                        }
                    ),
                    flush=True,
                )


def iperf(hosts, both_ways):
    """Bytes per second in the slower direction: a client and a server for each rank, as one iperf3 has one thread."""
    ways = [(0, 1), (1, 0)] if both_ways else [(0, 1)]
    pairs = [(a, b, 5201 + 10 * a + k) for a, b in ways for k in range(RANKS_PER_HOST)]
    servers = [hosts.popen(b, ["iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL) for _, b, port in pairs]
    time.sleep(0.3)
    clients = [
        hosts.popen(
            a, ["iperf3", "-J", "-c", hosts.address(b), "-t", "2", "-p", port], stdout=subprocess.PIPE, text=True
        )
        for a, b, port in pairs
    ]
    rates = dict.fromkeys(ways, 0.0)
    for (a, b, _), client in zip(pairs, clients, strict=True):
        rates[a, b] += json.loads(client.communicate(timeout=30)[0])["end"]["sum_received"]["bits_per_second"] / 8
    for server in servers:
        server.wait(timeout=30)
    return min(rates.values())


def times(hosts, network):
    """(name, size, share, both ways, seconds, predicted) of each boxing over this network, as measured on rank 0."""
    launch = Path(os.environ.get("HOLON_BUILD_DIR", ROOT / "build/dev")) / "bin/holon-launch"
    options = ["--nproc_per_node", RANKS_PER_HOST, "--master_addr", hosts.address(0), "--master_port", PORT]
    ranks = [
        hosts.popen(
            i,
            [launch, "--nnodes", 2, "--node_rank", i, *options, "--python", sys.executable, __file__],
            env=os.environ | {"HOLON_NETWORK": network},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    output = [p.communicate(timeout=300)[0] for p in ranks]
    if any(p.returncode for p in ranks):
        sys.exit(f"hosts: the ranks ended with {[p.returncode for p in ranks]} over {network}")
    return [json.loads(line[4:]).values() for line in output[0].splitlines() if line.startswith("RES")]


def main():
    from namespaces import Hosts, missing

    reason = missing() or (None if shutil.which("iperf3") else "iperf3 is not installed")
    if reason:
        print(f"hosts: {reason}", file=sys.stderr)
        return
    networks = sys.argv[1:] or NETWORKS
    with Hosts(2) as hosts:
        before = {both: iperf(hosts, both) for both in (False, True)}
        found = {network: times(hosts, network) for network in networks}
        after = {both: iperf(hosts, both) for both in (False, True)}
    for network, rows in found.items():
        errors = []
        for name, size, share, both, seconds, expected in rows:
            errors.append(abs(expected - seconds) / seconds)
            rate = (before[both] + after[both]) / 2
            limit = size * share / rate
            text = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
            case = f"{name} {text}, 2 hosts x {RANKS_PER_HOST} ranks, {network}"
            each_way = " each way" if both else ""
            emit(case, seconds * 1e6, "us", f"iperf3, {rate / 1e9:.2f} GB/s{each_way}", limit / seconds)
            emit(f"predicted, {case}", expected * 1e6, "us", f"measured, {seconds * 1e6:.1f} us", expected / seconds)
        error = statistics.median(errors)
        emit(f"predicted times, median error, {network}", error, "fraction", "goal, 0.25", 0.25 / error)


if __name__ == "__main__":
    rank() if "RANK" in os.environ else main()
