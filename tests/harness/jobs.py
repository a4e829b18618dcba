"""Jobs of several processes that run at once."""

import signal
import subprocess
import sys
import textwrap

from .ports import free_port
from .ranks import environment


class Job:
    """The ranks of a program as processes. There is no launcher: nothing but the library ends the other ranks of one
    that is lost. One rank runs as a plain program. What is left at the end of `with` is killed."""

    def __init__(self, program, ranks, *arguments, **extra):
        port = free_port()
        self._ranks = []
        for rank in range(ranks):
            of_rank = {
                "RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": ranks,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            self._ranks.append(
                subprocess.Popen(
                    [sys.executable, str(program), *map(str, arguments)],
                    env=environment(**(of_rank if ranks > 1 else {}), **extra),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def pid(self, rank):
        return self._ranks[rank].pid

    def signal(self, rank, number):
        self._ranks[rank].send_signal(number)

    def line(self, rank):
        """Returns the next line that a rank prints."""
        return self._ranks[rank].stdout.readline().rstrip()

    def wait(self, ranks=None, timeout=100):
        """Returns what each of the ranks, or all, has printed. Errors: one has failed."""
        out = []
        for rank in range(len(self._ranks)) if ranks is None else ranks:
            stdout, stderr = self._ranks[rank].communicate(timeout=timeout)
            assert self._ranks[rank].returncode == 0, stderr
            out.append(stdout)
        return out

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self._ranks:
            process.wait()
            for pipe in (process.stdout, process.stderr):
                pipe.close()


def program(path, text):
    """Writes a program into a file, and returns that."""
    path.write_text(textwrap.dedent(text))
    return path
