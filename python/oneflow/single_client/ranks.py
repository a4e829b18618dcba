"""The ranks that run jobs: threads of this process, one for each device,
or under the launcher this process as one of several."""

import queue
import threading

from holon import _C

from . import signature
from .results import Future

_MOST_IN_FLIGHT = 64


class _Task:
    """Work for all ranks that this process has."""

    def __init__(self, function, ranks, new_state=False):
        self.function, self.new_state = function, new_state
        self.results = dict.fromkeys(ranks)
        self.error = None
        self.done = threading.Event()
        self._left = len(self.results)
        self._lock = threading.Lock()

    def finish(self, rank, result):
        with self._lock:
            self.results[rank] = result
            self._left -= 1
            if not self._left:
                self.done.set()

    def fail(self, error):
        self.error = error
        self.done.set()

    def wait(self):
        self.done.wait()
        if self.error is not None:
            raise self.error
        return [self.results[rank] for rank in sorted(self.results)]


class _World:
    """Calls go to the ranks in order, and what comes of them is delivered in that order by one thread."""

    def __init__(self, n):
        self.n = n
        self.error = self._unseen = None
        self._in_flight = threading.Semaphore(_MOST_IN_FLIGHT)
        self._deliveries = queue.SimpleQueue()
        self._deliverer = threading.Thread(target=self._deliver_all, name="holon results", daemon=True)
        self._deliverer.start()

    def check(self):
        if self.error is not None:
            raise RuntimeError(
                f"the session has ended by an error in an earlier call: {self.error}\n"
                "clear_default_session() starts over."
            ) from self.error

    def run(self, function, state=False):
        """function(state of the rank) on each rank; with state, function(rank) makes it.
        Returns the results in order of the ranks."""
        self.check()
        self._not_delivering("this")
        return self.submit(function, state).wait()

    def call(self, job, args, session):
        arrays = signature.arrays_of(job, args, job.n_devices)
        self.check()
        self._not_delivering(job.name)
        self._in_flight.acquire()
        numbers = job.next_step()
        try:
            task = self.submit(lambda rank: rank.call(job, arrays, numbers))
        except BaseException:
            self._in_flight.release()
            raise
        future = Future()
        self._deliveries.put((task, job, future))
        return job.returned(future)

    def deliver(self, function):
        """function() on the thread that delivers, after the results of the calls before."""
        self._deliveries.put(function)

    def sync(self):
        """Waits until all calls are delivered."""
        self._not_delivering("sync_default_session")
        reached = threading.Event()
        self._deliveries.put(reached.set)
        reached.wait()
        error, self._unseen = self._unseen, None
        if error is not None:
            raise error

    def close(self):
        """Ends when all calls are delivered. Returns the error that nobody has seen, or None."""
        self._deliveries.put(None)
        if threading.current_thread() is not self._deliverer:
            self._deliverer.join()
        return self._unseen

    def _not_delivering(self, what):
        if threading.current_thread() is self._deliverer:
            raise RuntimeError(
                f"{what}: a handler or callback of a job cannot call a job or wait for one: "
                "results come in order, on this thread."
            )

    def _deliver_all(self):
        while True:
            item = self._deliveries.get()
            if item is None:
                return
            try:
                if callable(item):
                    item()
                else:
                    self._deliver(*item)
            except Exception as error:  # of a callback that nobody waits for
                self._unseen = error

    def _deliver(self, task, job, future):
        try:
            value = job.delivered(task.wait())
        except BaseException as error:
            if not job.is_watched:
                self._unseen = error
            future.finish(error=error)
        else:
            future.finish(value)
        finally:
            self._in_flight.release()


class Threads(_World):
    """Ranks 0 to n - 1 as threads of this process."""

    def __init__(self, n):
        super().__init__(n)
        self._queues = [queue.SimpleQueue() for _ in range(n)]
        self._pending = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="holon ranks", daemon=True)
        self._thread.start()

    def submit(self, function, new_state=False):
        task = _Task(function, range(self.n), new_state)
        with self._lock:
            self.check()
            self._pending = [t for t in self._pending if not t.done.is_set()]
            self._pending.append(task)
            for q in self._queues:
                q.put(task)
        return task

    def close(self):
        for q in self._queues:
            q.put(None)
        self._thread.join()
        return super().close()

    def _run(self):
        try:
            _C.run_ranks(self.n, self._work)
        except BaseException as error:
            with self._lock:
                self.error = error
                for task in self._pending:
                    if not task.done.is_set():
                        task.fail(error)

    def _work(self, rank):
        state = None
        try:
            while True:
                task = self._queues[rank].get()
                if task is None:
                    return
                result = task.function(rank if task.new_state else state)
                if task.new_state:
                    state, result = result, None
                task.finish(rank, result)
        except BaseException:
            # run_ranks() ends the others' waits for this rank; who waits for work is told here.
            for q in self._queues:
                q.put(None)
            raise


class Process(_World):
    """This process as one rank of several, which run the same program."""

    def __init__(self, n):
        super().__init__(n)
        self._state = None

    def submit(self, function, new_state=False):
        rank = _C.rank()
        task = _Task(function, [rank], new_state)
        try:
            result = function(rank if new_state else self._state)
            if new_state:
                self._state, result = result, None
            task.finish(rank, result)
        except BaseException as error:
            self.error = error
            task.fail(error)
        return task


def start(n):
    """A world of n ranks."""
    return Process(n) if _C.world_size() > 1 else Threads(n)
