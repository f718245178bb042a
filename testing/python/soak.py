"""Workers in Rust and of Dask that join, leave, stop and are killed under random load.

Usage: soak.py --daskwire COMMAND [--python] [--scheduler] [--seconds N] [--seed N]

The scheduler is Dask's, run by this interpreter, or with `--scheduler` that of the command.
With `--python`, the workers in Rust run tasks in processes of this interpreter; all of them
must be gone at the end. A third of the workers that come and go are those of Dask. Prints a table of
samples, each taken while the cluster is idle. Fails if a result is wrong or late, or if
open files, memory or the scheduler's records of tasks still grow after a third of the
time.
"""

import argparse
import contextlib
import math
import operator
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

os.environ.update(
    # Stopped workers are removed during the soak, and tasks do not fail because several
    # of their workers were killed.
    DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="12s",
    DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1000",
    # Dask's logs of events are bounded. Small bounds are reached early.
    DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH="1000",
    DASK_DISTRIBUTED__ADMIN__LOG_LENGTH="1000",
    DASK_DISTRIBUTED__DIAGNOSTICS__COMPUTATIONS__MAX_HISTORY="10",
)

from distributed import Client  # noqa: E402

LATE = 90  # seconds
# An environment variable of workers, which their processes inherit.
MARK = "DASKWIRE_SOAK"
LOADS = 4
STEADY_WORKERS = 3
MAX_PASSING_WORKERS = 5

options = argparse.ArgumentParser()
options.add_argument("--daskwire", required=True)
options.add_argument("--python", action="store_true")
options.add_argument("--scheduler", action="store_true")
options.add_argument("--seconds", type=float, default=600)
options.add_argument("--seed", type=int, default=1)
options = options.parse_args()


def fail(reason):
    raise SystemExit(f"soak: {reason} (seed {options.seed})")


class Process:
    """A process and its resource usage."""

    all = []

    def __init__(self, *command, **more):
        self.log = tempfile.TemporaryFile("w+")
        more = {"stdout": self.log, "stderr": self.log} | more
        self.process = subprocess.Popen(command, **more)
        self.stopped_until = None
        Process.all.append(self)

    def signal(self, number):
        self.process.send_signal(number)

    def is_gone(self):
        return self.process.poll() is not None

    def end(self):
        if not self.is_gone():
            self.process.kill()
        self.process.wait()
        self.log.close()
        if self in Process.all:
            Process.all.remove(self)

    def tail(self):
        self.log.seek(0)
        return self.log.read()[-2000:]

    def fd_count(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss(self):
        """Returns the resident memory in MiB."""
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def start_scheduler():
    command = [options.daskwire] if options.scheduler else [sys.executable, "-m", "dask"]
    command += ["scheduler", "--host", "127.0.0.1", "--port", "0"]
    command += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    process = Process(*command)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not process.is_gone():
        for line in process.tail().splitlines():
            if "Scheduler at:" in line:
                return process, line.split()[-1]
        time.sleep(0.1)
    fail(f"the scheduler did not start: {process.tail()}")


class Load(threading.Thread):
    """Random tasks and their expected results."""

    def __init__(self, client, number):
        super().__init__(daemon=True)
        self.client = client
        self.chance = random.Random(100 * options.seed + number)
        self.open = []
        self.count = 0
        self.failure = None
        self.may_start = threading.Event()
        self.may_start.set()

    def run(self):
        try:
            while True:
                if not self.may_start.is_set():
                    time.sleep(0.02)
                elif len(self.open) < 100:
                    self.some()
                else:
                    time.sleep(0.02)
                self.check()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.failure = error

    def expect(self, future, value):
        self.open.append((future, value, time.monotonic()))
        self.count += 1

    def submit(self, function, *args, **kwargs):
        return self.client.submit(function, *args, pure=False, **kwargs)

    def some(self):
        """Submits a few tasks that depend on each other."""
        one, other = self.chance.randrange(1000), self.chance.randrange(1, 1000)
        kind = self.chance.randrange(6)
        if kind == 0:
            sums = [self.submit(operator.add, one, number) for number in range(20)]
            self.expect(self.submit(sum, sums), 20 * one + 190)
        elif kind == 1:
            chain = self.submit(operator.mul, one, other)
            for number in range(10):
                chain = self.submit(operator.add, chain, number)
            self.expect(chain, one * other + 45)
        elif kind == 2:
            # The result is larger than the inputs of its task.
            text = self.submit(operator.mul, "x" * 100, one)
            lengths = [self.submit(len, text) for _ in range(5)]
            self.expect(self.submit(max, lengths), 100 * one)
        elif kind == 3:
            data = self.chance.randbytes(self.chance.randrange(200_000))
            # Scattered data cannot be recomputed, so workers that stay hold it.
            data_future = self.client.scatter(data, workers=steady_addresses(), hash=False)
            self.expect(self.submit(len, data_future), len(data))
        elif kind == 4:
            bad = self.submit(operator.floordiv, one, 0)
            self.expect(self.submit(operator.neg, bad), ZeroDivisionError)
        else:
            for number in range(20):
                self.expect(self.submit(operator.sub, one, number), one - number)

    def check(self):
        """Checks the results of tasks that have ended."""
        done = [entry for entry in self.open if entry[0].done()]
        self.open = [entry for entry in self.open if not entry[0].done()]
        # Raising an exception here would keep all futures alive.
        errors = [future.exception(timeout=LATE) for future, _, _ in done]
        good = [entry[0] for entry, error in zip(done, errors) if error is None]
        results = iter(self.client.gather(good))
        for (future, value, _), error in zip(done, errors):
            result = next(results) if error is None else type(error)
            if result != value:
                fail(f"{future.key} is {result}, not {value}")
        late = [entry for entry in self.open if time.monotonic() - entry[2] > LATE]
        if late:
            future = late[0][0]
            fail(f"{future.key} is {future.status} after {LATE} seconds")


def start_worker(address, of_dask=False):
    command = [sys.executable, "-m", "dask"] if of_dask else [options.daskwire]
    command += ["worker", address, "--no-nanny", "--nthreads", "2"]
    if of_dask:
        command += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    elif options.python:
        command += ["--python", sys.executable]
    return Process(*command, env=os.environ | {MARK: str(os.getpid())})


def left_processes():
    """Returns the ids of the processes that workers have started."""
    mark = f"{MARK}={os.getpid()}".encode()
    left = []
    for entry in os.scandir("/proc"):
        # Processes may end meanwhile.
        with contextlib.suppress(OSError):
            with open(f"{entry.path}/environ", "rb") as environ:
                if entry.name.isdigit() and mark in environ.read().split(b"\0"):
                    left.append(entry.name)
    return left


def check_gone():
    """Checks that the processes of workers have ended with them."""
    deadline = time.monotonic() + LATE
    while left := left_processes():
        if time.monotonic() > deadline:
            fail(f"processes are left: {left}")
        time.sleep(0.1)


class Churn(threading.Thread):
    """Starts, stops and kills workers unless it is paused."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address = address
        self.chance = random.Random(options.seed + 1)
        self.workers = []
        self.happened = dict.fromkeys(["come", "come of Dask", "go", "stop", "killed"], 0)
        self.lock = threading.Lock()
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.wait(self.chance.uniform(0.1, 0.8)):
            with self.lock:
                self.resume(time.monotonic())
                self.step()

    def resume(self, now):
        for worker in self.workers:
            if worker.stopped_until is not None and worker.stopped_until < now:
                worker.stopped_until = None
                worker.signal(signal.SIGCONT)

    def pause(self):
        self.lock.acquire()
        self.resume(math.inf)

    def go_on(self):
        self.lock.release()

    def step(self):
        """Starts a worker, or asks one to end, stops it, or kills it."""
        for worker in [worker for worker in self.workers if worker.is_gone()]:
            self.workers.remove(worker)
            worker.end()
        if len(self.workers) < self.chance.randrange(MAX_PASSING_WORKERS + 1):
            of_dask = self.chance.randrange(3) == 0
            self.workers.append(start_worker(self.address, of_dask))
            self.happened["come of Dask" if of_dask else "come"] += 1
            return
        running = [worker for worker in self.workers if worker.stopped_until is None]
        if not running:
            return
        worker = self.chance.choice(running)
        what = self.chance.choice(["go", "stop", "killed"])
        self.happened[what] += 1
        if what == "go":
            worker.signal(signal.SIGTERM)
        elif what == "killed":
            worker.signal(signal.SIGKILL)
        else:
            # Some pauses exceed the time for which the scheduler waits.
            length = self.chance.choice([0.5, 0.5, 1, 1, 2, 2, 5, 20])
            worker.stopped_until = time.monotonic() + length
            worker.signal(signal.SIGSTOP)


def kept(dask_scheduler):
    return {
        "tasks": len(dask_scheduler.tasks),
        "prefixes": len(dask_scheduler.task_prefixes),
        "metrics": len(dask_scheduler.cumulative_worker_metrics),
    }


def check_failures(loads):
    for load in loads:
        if load.failure is not None:
            raise load.failure
    if scheduler.is_gone():
        fail("the scheduler has ended")


def quiet(loads):
    """Waits until the cluster is idle."""
    deadline = time.monotonic() + 2 * LATE
    for load in loads:
        load.may_start.clear()
    while any(load.open for load in loads):
        check_failures(loads)
        time.sleep(0.05)
    while True:
        left = client.run_on_scheduler(kept) if not options.scheduler else None
        left = left or {"tasks": len(client.who_has()), "prefixes": 0, "metrics": 0}
        if left["tasks"] == 0:
            return left
        if time.monotonic() > deadline:
            fail(f"{left['tasks']} tasks are left though no client wants them")
        time.sleep(0.1)


def steady_addresses():
    return [address for address, name in workers_at_start]


def sample(loads, churn):
    churn.pause()
    left = quiet(loads)
    row = {"second": time.monotonic() - start, "results": sum(load.count for load in loads)} | left
    row |= {"fds": scheduler.fd_count(), "rss": scheduler.rss()}
    for number, worker in enumerate(steady):
        if worker.is_gone():
            fail(f"worker {number} has ended: {worker.tail()}")
        row |= {f"fds {number}": worker.fd_count(), f"rss {number}": worker.rss()}
    if not samples:
        print("  ".join(f"{name:>8}" for name in row), flush=True)
    print("  ".join(f"{value:8.0f}" for value in row.values()), flush=True)
    samples.append(row)
    churn.go_on()
    for load in loads:
        load.may_start.set()


def check_flat():
    """Checks that no median of the last third of the samples exceeds the second by much."""
    third = len(samples) // 3
    if third == 0:
        fail("there are too few samples: it takes 30 seconds at least")
    for name in samples[0]:
        if name in ("second", "results"):
            continue
        middle = [row[name] for row in samples[third : 2 * third]]
        last = [row[name] for row in samples[2 * third :]]
        # Workers that are connected have comms, some counted events are rare, and memory
        # is freed in pieces.
        room = {"tasks": 0, "prefixes": 0, "metrics": 30}.get(name, 8)
        if name.startswith("rss"):
            room = 16 + 0.1 * max(middle)
        median = sorted(last)[len(last) // 2]
        if median > max(middle) + room or not math.isfinite(median):
            fail(f"{name} grows: {middle}, then {last}")


scheduler, address = start_scheduler()
samples = []
churn = Churn(address)
try:
    steady = [start_worker(address) for _ in range(STEADY_WORKERS)]
    client = Client(address, set_as_default=False)
    client.wait_for_workers(STEADY_WORKERS, timeout=60)
    workers_at_start = [(worker, worker) for worker in client.ncores()]
    loads = [Load(client, number) for number in range(LOADS)]
    start = time.monotonic()
    interval = min(10, options.seconds / 12)
    for thread in [churn, *loads]:
        thread.start()
    while time.monotonic() < start + options.seconds:
        deadline = time.monotonic() + interval
        while time.monotonic() < deadline:
            check_failures(loads)
            time.sleep(0.1)
        sample(loads, churn)
    check_flat()
    client.close()
    events = ", ".join(f"{count} {what}" for what, count in churn.happened.items())
    count = samples[-1]["results"]
    print(f"soak: {count} results were right; workers: {events}")
finally:
    churn.is_over.set()
    for process in list(Process.all):
        process.end()
check_gone()
