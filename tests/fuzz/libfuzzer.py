#!/usr/bin/env python3
"""Runs the readers of files under libFuzzer, which looks for inputs that reach code that none has reached.

  tests/fuzz/libfuzzer.py [--seconds S] [READER...]

The readers' code (holon/checkpoint/{core,formats,transfer} and load()) is compiled by Clang with AddressSanitizer, and
the rest is the library of build/dev. What was found to be worth keeping stays in build/fuzz/READER. An input that
crashes a reader, takes more than ten seconds or 2 GiB is written into build/fuzz, and the exit status is 1. So it is if
hardly any of the code was seen, since then a reader has reached the library's own. ctest replays the seeds and changes
of them without any of this.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD, OUT = ROOT / "build/dev", ROOT / "build/fuzz"
READERS = sorted(p.name.removesuffix("_reader.cpp") for p in (ROOT / "tests/fuzz/readers").glob("*_reader.cpp"))
FLAGS = "-std=c++20 -O1 -g -fopenmp -w -DFMT_SHARED -fno-omit-frame-pointer".split()
SANITIZERS = "address"
LEAST_SEEN = 300  # edges: readers have more than a thousand


def clang():
    for name in ["clang++", *(f"clang++-{n}" for n in range(25, 13, -1))]:
        if path := shutil.which(name):
            return path
    sys.exit("libfuzzer.py: there is no clang++. Install clang, and its run time (Debian: clang).")


def compiled(compiler, source):
    """The object of a source, made again if it is older than any source or header."""
    made = OUT / "objects" / (str(source.relative_to(ROOT)).replace("/", ".") + ".o")
    newest = max(p.stat().st_mtime for p in [source, *(ROOT / "holon").rglob("*.h"), *source.parent.glob("*.h")])
    if not made.exists() or made.stat().st_mtime < newest:
        includes = [f"-I{p}" for p in (ROOT, ROOT / "tests/cpp", BUILD / "generated")]
        command = [compiler, *FLAGS, f"-fsanitize=fuzzer-no-link,{SANITIZERS}", *includes, "-c", source, "-o", made]
        subprocess.run([str(c) for c in command], check=True)
    return made


def build(compiler, reader, objects):
    program = OUT / f"{reader}_fuzzer"
    own = compiled(compiler, ROOT / f"tests/fuzz/readers/{reader}_reader.cpp")
    library = BUILD / "lib"
    # The library's own OpenMP: only one version of Clang's can be installed, and may be another Clang's.
    command = [compiler, "-fopenmp=libgomp", f"-fsanitize=fuzzer,{SANITIZERS}", own, *objects, "-o", program]
    command += [f"-L{library}", f"-Wl,-rpath,{library}", "-lholon", "-lfmt", "-lsodium", "-lz", "-lpthread"]
    subprocess.run([str(c) for c in command], check=True)
    return program


def fuzz(reader, program, seconds):
    corpus = OUT / reader
    corpus.mkdir(exist_ok=True)
    subprocess.run([str(BUILD / f"tests/{reader}_reader"), "--write", str(corpus)], check=True)
    options = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={OUT}/{reader}-"]
    log = OUT / f"{reader}.log"
    # The library itself is built without the sanitizer.
    environment = dict(os.environ, ASAN_OPTIONS="detect_container_overflow=0", OMP_NUM_THREADS="1")
    with log.open("w") as out:
        done = subprocess.run(
            [str(program), *options, str(corpus)], stdout=out, stderr=subprocess.STDOUT, env=environment
        )
    lines = log.read_text(errors="replace").splitlines()
    ended = next(
        (line for line in reversed(lines) if line.startswith(("Done", "SUMMARY", "==")) or "ERROR" in line), ""
    )
    seen = max((int(n) for n in re.findall(r"\bcov: (\d+)", "\n".join(lines))), default=0)
    print(f"{reader}: exit status {done.returncode}, {seen} edges, {ended} ({log})", flush=True)
    if seen < LEAST_SEEN:
        print(f"{reader}: {seen} edges are too few: its code is not the instrumented one", flush=True)
    return done.returncode == 0 and seen >= LEAST_SEEN


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    options = parser.parse_args()
    if unknown := set(options.readers) - set(READERS):
        parser.error(f"there is no reader {sorted(unknown)[0]}; there are {', '.join(READERS)}")
    compiler = clang()
    (OUT / "objects").mkdir(parents=True, exist_ok=True)
    checkpoint = ROOT / "holon/checkpoint"
    sources = [p for d in ("core", "formats", "transfer") for p in sorted((checkpoint / d).glob("*.cpp"))]
    sources.append(checkpoint / "load.cpp")
    with ThreadPoolExecutor(options.jobs) as pool:
        objects = list(pool.map(lambda source: compiled(compiler, source), sources))
        readers = options.readers or READERS
        programs = list(pool.map(lambda reader: build(compiler, reader, objects), readers))
        fine = list(pool.map(lambda reader, program: fuzz(reader, program, options.seconds), readers, programs))
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
