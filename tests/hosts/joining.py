"""Rounds in which strangers come to every port of a world that starts:
for the test of some, and the campaign of hundreds.

The ranks are on two hosts by name only, so that this needs neither root nor namespaces."""

import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
from pathlib import Path

from harness.ports import free_port
from harness.ranks import ROOT, environment

BUILD = Path(os.environ.get("HOLON_BUILD_DIR", ROOT / "build/dev"))
STRANGERS = Path(__file__).with_name("strangers.py")


def module(network):
    """The library with a network; without it no world of several hosts uses that."""
    return BUILD / f"lib/libholon_{network}.so"


def start(rank, size, port, token, mode="brief", **extra):
    command = [str(BUILD / "bin/comm_rank_program"), mode]
    env = environment(
        RANK=rank,
        WORLD_SIZE=size,
        LOCAL_RANK=rank,
        LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        HOLON_HOST=f"host{rank % 2}",
        HOLON_STORE_TOKEN=token,
        **extra,
    )
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def play(seed, limit_s=120):
    """One round. What was wrong with it, or "", and how many strangers came, by kind."""
    chance = random.Random(seed)
    size, token, port, mark = chance.randint(2, 5), secrets.token_hex(8), free_port(), f"{os.getpid()}-{seed}"
    command = [
        sys.executable,
        str(STRANGERS),
        "--seed",
        str(seed),
        "--mark",
        f"HOLON_TEST_MARK={mark}",
        "--token",
        token,
    ]
    strangers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    ranks, wrong = [], chance.randrange(1, size) if chance.random() < 0.2 else None
    try:
        assert strangers.stdout.readline().strip() == "scanning"
        # Rank 0 serves the store; the last rank starts when somebody has been there.
        *early, last = sorted(chance.sample(range(size), size), key=lambda r: r != 0 and chance.random())
        for r in early:
            ranks.append((r, start(r, size, port, token if r != wrong else "guess", HOLON_TEST_MARK=mark)))
        select.select([strangers.stdout], [], [], limit_s / 2)
        ranks.append((last, start(last, size, port, token if last != wrong else "guess", HOLON_TEST_MARK=mark)))
        trouble = ""
        if wrong is not None:
            outsider = dict(ranks)[wrong]
            text = outsider.communicate(timeout=limit_s)[0]
            if outsider.returncode != 1 or "its token is different" not in text:
                trouble = f"rank {wrong} of {size}, with another token: {outsider.returncode}, {text}"
            # The right one still finds its place.
            ranks.append((wrong, start(wrong, size, port, token, HOLON_TEST_MARK=mark)))
        for r, p in ranks:
            if p.returncode is None:
                text = p.communicate(timeout=limit_s)[0]
                if p.returncode != 0:
                    trouble += f"\nrank {r} of {size}: {p.returncode}, {text}"
    except subprocess.TimeoutExpired as e:
        trouble = f"ranks hang: {e}"
    finally:
        for _, p in ranks:
            if p.poll() is None:
                p.kill()
            p.communicate()
        strangers.send_signal(signal.SIGTERM)
        said = strangers.communicate(timeout=60)[0]
    return trouble and f"seed {seed}: {trouble}", json.loads(said.splitlines()[-1])
