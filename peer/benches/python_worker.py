"""Measures `daskwire worker --python` beside `dask worker`, in one run.

Usage: python_worker.py DASKWIRE [--rounds N] [--threads N] [--large MIB] [--pause SECONDS]
                        [--import MODULE] [WORK...]

DASKWIRE is the command, from a release build. The Python that runs this needs
distributed 2026.8.0, pandas and pyarrow, such as `target/python/libraries-*/bin/python`,
which the tests make; it runs all clusters, too.

Four clusters of a real scheduler are compared, each with the same number of threads
(default: 4) on each of its nodes. A node is

    daskwire    one `daskwire worker --python` with all threads
    threads     one `dask worker` with all threads
    singles     one `daskwire worker --python` of one thread for each thread
    processes   one `dask worker` of one thread for each thread

No worker has a nanny, but Dask's have the environment that a nanny would give them
(`distributed.nanny.pre-spawn-environ`).

In each round (default: 3) they do the same work one after the other, in an order that
rotates, and the processes of the other clusters are stopped, since a worker of Dask without
tasks samples its stack a hundred times a second. Arrays, the large input and shuffles are
run once before each measurement. With --pause, no work is, and each measurement follows that
time without work, except for `pace` and `flood`. A figure is the median over the rounds; a
ratio is that of the medians, below 1 if daskwire takes less. The first two compare clusters
with the same number of workers and threads, the third one worker of daskwire to several of
Dask. WORK is some of these, otherwise all of them.

On one node, without a real scheduler, which takes longer for a small task than a worker:

    flood     4,000 lambdas that are sent to the node at once, without inputs

With workers that answer each task at once and run none, so that only the scheduler and the
client take time; one of --threads threads, and --threads of one thread:

    pace      the lambdas of `tasks`

On one node:

    rest      memory before any work: the proportional set sizes of all its processes
    tasks     2,000 lambdas of `client.map`, gathered
    chain     300 lambdas, each of the result of the one before it
    python    8 tasks of a loop in Python that holds the interpreter lock
    lag       a call that keeps the interpreter lock for seconds on each thread: the
              longest time that a request for the worker's identity takes, and the
              longest time between two heartbeats
    arrays    8 arrays of 64 MiB, each made of the one before it
    input     a task with an input of --large (default: 1024) MiB that is on the worker:
              from `submit` until its first line runs

On two nodes:

    transfer  4 arrays of 64 MiB, made on one node and used on the other
    p2p       a shuffle of 1,000,000 rows in 16 partitions, peer to peer
    shuffle   the same by tasks
    loaded    memory three seconds after all work, like `rest`

With workers of their own, of one thread and 512 MiB:

    spill     1 GiB of random arrays made, and then each of them summed; workers of Dask
              compress what they spill if it is worthwhile, which these are not
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import dask
import msgpack
import numpy
import psutil
from dask._task_spec import Task
from distributed import Client, wait
from distributed.comm import CommClosedError, connect, listen
from distributed.core import rpc
from distributed.protocol import dumps, to_serialize
from distributed.protocol.utils import pack_frames

KINDS = ["daskwire", "threads", "singles", "processes"]
OF_DASKWIRE = ("daskwire", "singles")
OF_ONE_THREAD = ("singles", "processes")
# What is compared to what.
RATIOS = [("daskwire", "threads"), ("singles", "processes"), ("daskwire", "processes")]
MIB = 1 << 20
ARRAY = 64 * MIB // 8
# The messages with which workers report how a task has ended.
OUTCOMES = ("task-finished", "task-erred")


class Process:
    """A process that has logged a line, and its children."""

    def __init__(self, command, line, variables):
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            env={**variables, **os.environ},
        )
        log = []
        for text in self.process.stdout:
            log.append(text)
            found = re.search(line, text)
            if found:
                self.found = found.group(1)
                break
        else:
            sys.exit(f"{command} has ended:\n{''.join(log)}")
        # What it logs further is dropped, so that it can go on.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def tree(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_worker(kind, scheduler, own, options):
    """Starts a worker with options of its own, and returns its process."""
    own = [scheduler, "--no-nanny", *own]
    if kind in OF_DASKWIRE:
        command = [options.daskwire, "worker", *own, "--python", sys.executable]
        for module in options.imports:
            command += ["--python-import", module]
        return Process(command, r" at (\S+)", {})
    command = [sys.executable, "-m", "distributed.cli.dask_worker", *own]
    command += ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    variables = dask.config.get("distributed.nanny.pre-spawn-environ")
    variables = {name: str(value) for name, value in variables.items()}
    return Process(command, r"Registered to: +(\S+)", variables)


class Cluster:
    """A scheduler, a client, and nodes of one kind."""

    def __init__(self, kind, options, directory):
        self.kind = kind
        self.options = options
        self.directory = directory
        scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
        scheduler += ["--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        self.scheduler = Process([sys.executable, *scheduler], r"Scheduler at: +(\S+)", {})
        self.client = Client(self.scheduler.found, set_as_default=False)
        self.workers = []
        self.count = 0

    def add_node(self, threads=None, memory="8GiB"):
        """Starts a node, and returns the names of its workers."""
        threads = threads or self.options.threads
        each = 1 if self.kind in OF_ONE_THREAD else threads
        names = []
        for _ in range(threads // each):
            names.append(f"{self.kind}-{self.count}")
            self.count += 1
            own = ["--nthreads", str(each), "--memory-limit", memory, "--name", names[-1]]
            own += ["--local-directory", self.directory]
            address = self.scheduler.found
            self.workers.append(start_worker(self.kind, address, own, self.options))
        self.client.wait_for_workers(len(self.workers), timeout=60)
        return names

    def processor_time(self):
        return processor_time(self.workers)

    def memory(self):
        processes = [process for worker in self.workers for process in worker.tree()]
        return sum(process.memory_full_info().pss for process in processes) / MIB

    def settle(self):
        """Waits until the scheduler has no task any more."""
        while self.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
            time.sleep(0.02)
        time.sleep(0.1)

    @contextlib.contextmanager
    def stopped(self):
        """Stops all processes of the cluster until the end of a `with` block."""
        processes = [p for of in [self.scheduler, *self.workers] for p in of.tree()]
        for process in processes:
            process.suspend()
        try:
            yield
        finally:
            for process in processes:
                process.resume()

    def close(self):
        self.client.close()
        for process in [*self.workers, self.scheduler]:
            process.close()


def processor_time(workers):
    """The seconds that workers and their children have run."""
    return sum(sum(process.cpu_times()[:2]) for worker in workers for process in worker.tree())


class BareScheduler:
    """Registers workers, sends each of them tasks, and counts the results."""

    async def start(self, kind, options, directory):
        self.kind = kind
        self.registered = asyncio.Queue()
        self.listener = await listen("tcp://127.0.0.1:0", self.serve)
        threads = 1 if kind in OF_ONE_THREAD else options.threads
        self.workers, self.comms = [], []
        for count in range(options.threads // threads):
            own = ["--nthreads", str(threads), "--memory-limit", "8GiB"]
            own += ["--name", f"{kind}-{count}", "--local-directory", directory]
            address = self.listener.contact_address
            # In a thread, since the worker logs that it runs when it is registered.
            start = asyncio.to_thread(start_worker, kind, address, own, options)
            self.workers.append(await start)
            self.comms.append(await self.registered.get())

    async def serve(self, comm):
        reply = {"status": "OK", "heartbeat-interval": 5, "worker-plugins": {}}
        with contextlib.suppress(CommClosedError):
            while True:
                request = await comm.read()
                await comm.write({**reply, "time": time.time()})
                if request["op"] == "register-worker":
                    self.registered.put_nowait(comm)
                    return

    async def run(self, count, round):
        """Runs tasks, divided among the workers, and returns the figures for each of them."""
        each = count // len(self.workers)
        keys = [f"flood-{round}-{index}" for index in range(each)]
        tasks = [compute_task(key, Task(key, lambda x: x + 1, 1)) for key in keys]
        # Encoded before, to measure the worker alone.
        batches = [pack_frames(dumps(tasks[at : at + 100])) for at in range(0, each, 100)]
        data = b"".join(struct.pack("<Q", len(batch)) + batch for batch in batches)
        processor = processor_time(self.workers)
        started = time.perf_counter()
        await asyncio.gather(*(self.run_on(comm, data, each) for comm in self.comms))
        elapsed = time.perf_counter() - started
        processor = processor_time(self.workers) - processor
        for comm in self.comms:
            await comm.write([{"op": "free-keys", "keys": keys, "stimulus_id": "flood"}])
        return {
            "4,000 lambdas, sent to the node at once, each (µs)": elapsed / count * 1e6,
            "  processor time of the workers (µs)  ": processor / count * 1e6,
        }

    async def run_on(self, comm, data, count):
        await comm.stream.write(data)
        # To parse the messages would take as long as the fastest node takes for the tasks.
        finished, erred = (msgpack.dumps("op") + msgpack.dumps(op) for op in OUTCOMES)
        unread = b""
        while count:
            unread += await comm.stream.read_bytes(1 << 16, partial=True)
            if erred in unread:
                sys.exit(f"{self.kind}: a task has failed: {unread}")
            count -= unread.count(finished)
            # The rest may end with the first part of another outcome.
            unread = unread[unread.rfind(finished) + 1 :][-len(finished) :]

    async def close(self):
        self.listener.stop()
        for comm in self.comms:
            comm.abort()
        for worker in self.workers:
            await asyncio.to_thread(worker.close)


def compute_task(key, task):
    return {
        "op": "compute-task",
        "key": key,
        "run_spec": to_serialize(task),
        "priority": (0,),
        "who_has": {},
        "nbytes": {},
        "run_id": 0,
        "resource_restrictions": {},
        "actor": False,
        "annotations": {},
        "span_id": None,
        "stimulus_id": "flood",
    }


async def flood(options, directory):
    schedulers = []
    figures = {}
    try:
        for kind in KINDS:
            schedulers.append(BareScheduler())
            await schedulers[-1].start(kind, options, directory)
        for round in range(-1, options.rounds):
            for index in range(len(schedulers)):
                scheduler = schedulers[(index + round) % len(schedulers)]
                result = await scheduler.run(4000, round)
                await asyncio.sleep(0.2)
                if round >= 0:
                    add(figures, scheduler.kind, result)
    finally:
        for scheduler in schedulers:
            await scheduler.close()
    report(figures)


class AnsweringWorker:
    """A worker that reports the result 1 for each task, and runs none."""

    async def run(self, scheduler, threads, name):
        async with await listen("tcp://127.0.0.1:0", self.serve) as listener:
            comm = await connect(scheduler, deserialize=False)
            await comm.write(registration(listener.contact_address, threads, name))
            await comm.read()
            while True:
                # Other messages need no answer here.
                tasks = [m for m in await comm.read() if m["op"] == "compute-task"]
                await comm.write([finished(task["key"], task["run_id"]) for task in tasks])

    async def serve(self, comm):
        with contextlib.suppress(CommClosedError):
            while True:
                request = await comm.read()
                if request["op"] == "get_data":
                    data = {key: to_serialize(1) for key in request["keys"]}
                    await comm.write({"status": "OK", "data": data})
                    # The confirmation that the data has arrived.
                    await comm.read()


def run_answering_worker(*arguments):
    # The scheduler closes the comm at the end.
    with contextlib.suppress(CommClosedError):
        asyncio.run(AnsweringWorker().run(*arguments))


def registration(address, threads, name):
    transfer = {f"{way}_{what}": 0 for way in ("incoming", "outgoing") for what in TRANSFERRED}
    metrics = {
        "cpu": 0,
        "memory": 0,
        "time": time.time(),
        "managed_bytes": 0,
        "spilled_bytes": {"memory": 0, "disk": 0},
        "host_net_io": {"read_bps": 0, "write_bps": 0},
        "host_disk_io": {},
        "num_fds": 0,
        "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
        "task_counts": {},
        "digests_total_since_heartbeat": {},
        "event_loop_interval": 0.02,
        "transfer": transfer,
    }
    return {
        "op": "register-worker",
        "reply": False,
        "address": address,
        "status": "running",
        "server_id": name,
        "nthreads": threads,
        "name": name,
        "now": time.time(),
        "resources": {},
        "memory_limit": 8 << 30,
        "metrics": metrics,
        "services": {},
        "local_directory": "",
        "versions": {},
        "nanny": None,
        "extra": {},
        "stimulus_id": name,
    }


TRANSFERRED = ("bytes", "count", "count_total")


def finished(key, run_id):
    now = time.time()
    return {
        "op": "task-finished",
        "status": "OK",
        "key": key,
        "run_id": run_id,
        "nbytes": sys.getsizeof(1),
        "type": pickle.dumps(int),
        "typename": "int",
        "metadata": {},
        "thread": 1,
        "startstops": [{"action": "compute", "start": now, "stop": now}],
        "stimulus_id": "answer",
    }


def pace(options, directory):
    """Prints the time of `tasks` with workers that run nothing."""
    processes = multiprocessing.get_context("spawn")
    for count in (1, options.threads):
        cluster = Cluster("answering", options, directory)
        workers = []
        try:
            for index in range(count):
                arguments = (cluster.scheduler.found, options.threads // count, f"{index}")
                workers.append(processes.Process(target=run_answering_worker, args=arguments))
                workers[-1].start()
            cluster.client.wait_for_workers(count, timeout=60)
            times = []
            for _ in range(1 + options.rounds):
                times.append(timed(cluster, lambda: map_lambdas(cluster.client))[0] / 2000e-6)
                cluster.settle()
            median = statistics.median(times[1:])
            print(
                f"2,000 lambdas of `client.map`, answered at once by {count} x "
                f"{options.threads // count} threads, each (µs): {median:,.0f}"
            )
        finally:
            cluster.close()
            for worker in workers:
                worker.kill()
                worker.join()


def timed(cluster, work):
    """The seconds that a work takes, and those of the workers' processors."""
    processor = cluster.processor_time()
    started = time.perf_counter()
    kept = work()
    elapsed = time.perf_counter() - started
    processor = cluster.processor_time() - processor
    del kept
    return elapsed, processor


def map_lambdas(client):
    return client.gather(client.map(lambda x: x + 1, range(2000), pure=False))


def tasks(cluster):
    elapsed, processor = timed(cluster, lambda: map_lambdas(cluster.client))
    return {
        "2,000 lambdas of `client.map`, each (µs)": elapsed / 2000e-6,
        "  processor time of the workers (µs)": processor / 2000e-6,
    }


def chain(cluster):
    def work():
        future = cluster.client.submit(lambda: 0, pure=False)
        for _ in range(300):
            future = cluster.client.submit(lambda x: x + 1, future, pure=False)
        return future.result()

    elapsed, processor = timed(cluster, work)
    return {
        "300 lambdas, one after the other, each (µs)": elapsed / 300e-6,
        "  processor time of the workers (µs) ": processor / 300e-6,
    }


def loop(n):
    total = 0
    for i in range(n):
        total += i % 7
    return total


def python(cluster):
    client = cluster.client
    work = lambda: client.gather(client.map(loop, [3_000_000] * 8, pure=False))
    return {"8 loops in Python that hold the interpreter lock (s)": timed(cluster, work)[0]}


def lag(cluster):
    """The worst answer of a worker, and the worst time between its heartbeats."""

    def watch(dask_scheduler):
        beats = dask_scheduler.beats = {}
        handler = dask_scheduler.handlers["heartbeat_worker"]
        dask_scheduler.unwatched = handler

        def heartbeat_worker(address, **arguments):
            beats.setdefault(address, []).append(time.time())
            return handler(address=address, **arguments)

        dask_scheduler.handlers["heartbeat_worker"] = heartbeat_worker

    def unwatch(dask_scheduler):
        dask_scheduler.handlers["heartbeat_worker"] = dask_scheduler.unwatched
        return dask_scheduler.beats

    client = cluster.client
    addresses = list(client.scheduler_info(n_workers=-1)["workers"])
    client.run_on_scheduler(watch)
    started = time.time()
    threads = cluster.options.threads
    # A call into C that does not let go of the lock.
    futures = client.map(lambda n: sum(range(n)), [40_000_000] * 2 * threads, pure=False)

    async def probe(address):
        worst = 0
        async with rpc(address) as worker:
            while not all(future.done() for future in futures):
                before = time.perf_counter()
                await worker.identity()
                worst = max(worst, time.perf_counter() - before)
                await asyncio.sleep(0.005)
        return worst

    async def probe_all():
        return max(await asyncio.gather(*map(probe, addresses)))

    worst = asyncio.run(probe_all())
    wait(futures)
    ended = time.time()
    beats = client.run_on_scheduler(unwatch)
    gaps = []
    for address in addresses:
        times = [started, *beats.get(address, []), ended]
        gaps += [later - sooner for sooner, later in zip(times, times[1:])]
    return {
        "calls that keep the lock: the worst answer of a worker (ms)": worst * 1e3,
        "  the worst time between heartbeats (ms)": max(gaps) * 1e3,
    }


def arrays(cluster):
    client = cluster.client

    def work():
        future = client.submit(numpy.ones, ARRAY, pure=False)
        for _ in range(7):
            future = client.submit(lambda array: array + 1, future, pure=False)
        wait(future)
        return future

    elapsed = timed(cluster, work)[0]
    return {"8 arrays of 64 MiB on one node, each of the one before (ms)": elapsed / 8e-3}


def large_input(cluster):
    client = cluster.client
    array = client.submit(numpy.ones, cluster.options.large * MIB // 8, pure=False)
    wait(array)

    def first_line(array):
        return time.time()

    started = time.time()
    after = client.submit(first_line, array, pure=False).result() - started
    return {f"until a task with {cluster.options.large} MiB of input runs (ms)": after * 1e3}


def transfer(cluster):
    client = cluster.client
    make = client.map(
        lambda n: numpy.full(ARRAY, float(n)), range(4), pure=False, workers=cluster.nodes[0]
    )
    wait(make)
    use = lambda: client.gather(
        client.map(lambda array: array[-1], make, pure=False, workers=cluster.nodes[1])
    )
    return {"arrays of 64 MiB to the other node, each (ms)": timed(cluster, use)[0] / 4e-3}


def frame(cluster, method):
    import dask.dataframe as dd
    import pandas

    def part(n):
        random = numpy.random.default_rng(n)
        columns = {"key": random.integers(0, 1000, 62_500), "value": random.random(62_500)}
        return pandas.DataFrame(columns).assign(name=lambda f: "n" + f.key.astype(str))

    data = dd.from_map(part, range(16)).shuffle("key", shuffle_method=method)
    with dask.config.set(scheduler=cluster.client):
        return timed(cluster, lambda: cluster.client.compute(data.value.sum()).result())[0]


def p2p(cluster):
    return {"shuffle of a data frame, peer to peer (s)": frame(cluster, "p2p")}


def shuffle(cluster):
    return {"shuffle of a data frame, by tasks (s)": frame(cluster, "tasks")}


def memory(when, pause=0):
    def measure(cluster):
        time.sleep(pause)
        return {f"memory of a node {when} (MiB)": cluster.memory() / len(cluster.nodes)}

    return measure


def spill(cluster):
    [name] = cluster.nodes[-1]
    client = cluster.client

    def make():
        futures = client.map(
            lambda n: numpy.random.default_rng(n).random(4 * MIB),
            range(32),
            pure=False,
            workers=name,
        )
        wait(futures)
        return futures

    futures = []
    made = timed(cluster, lambda: futures.extend(make()))[0]
    read = timed(
        cluster,
        lambda: client.gather(client.map(numpy.sum, futures, pure=False, workers=name)),
    )[0]
    return {
        "1 GiB of arrays made on a worker of 512 MiB (s)": made,
        "  each of them summed (s)": read,
    }


ON_ONE_NODE = {
    "rest": memory("at rest"),
    "tasks": tasks,
    "chain": chain,
    "python": python,
    "lag": lag,
    "arrays": arrays,
    "input": large_input,
}
ON_TWO_NODES = {
    "transfer": transfer,
    "p2p": p2p,
    "shuffle": shuffle,
    "loaded": memory("3 s after this work", 3),
}
ON_A_SMALL_WORKER = {"spill": spill}
# The first run of these imports modules or starts processes.
WARMED = {"tasks", "python", "p2p", "shuffle"}
# Without --pause, these are run once before each measurement, since idle workers return memory
# to the system.
REPEATED = {"arrays", "input", "transfer", "p2p", "shuffle"}


def measure(works, wanted, clusters, rounds, pause):
    for name, work in works.items():
        if name not in wanted:
            continue
        count = 1 if name in ("rest", "loaded") else rounds
        figures = {}
        for round in range(-(name in WARMED), count):
            for index in range(len(clusters)):
                cluster = clusters[(index + round) % len(clusters)]
                with contextlib.ExitStack() as stack:
                    for other in clusters:
                        if other is not cluster:
                            stack.enter_context(other.stopped())
                    stack.enter_context(cluster.client.as_current())
                    # For what it did not do while it was stopped, such as heartbeats.
                    time.sleep(0.5)
                    if pause is not None:
                        time.sleep(pause)
                    elif name in REPEATED:
                        work(cluster)
                        cluster.settle()
                    result = work(cluster)
                    cluster.settle()
                if round >= 0:
                    add(figures, cluster.kind, result)
        report(figures)


def add(figures, kind, result):
    for what, figure in result.items():
        figures.setdefault(what, {}).setdefault(kind, []).append(figure)


def report(figures):
    """Prints a line of the table for each figure, with its medians and their ratios."""
    for what, of in figures.items():
        medians = {kind: statistics.median(of[kind]) for kind in KINDS}
        ratios = " | ".join(f"{medians[one] / medians[other]:.2f}" for one, other in RATIOS)
        shown = " | ".join(
            f"{median:,.0f}" if median >= 1000 else f"{median:.4g}" for median in medians.values()
        )
        print(f"| {what} | {shown} | {ratios} |", flush=True)


def main():
    names = ["pace", "flood", *ON_ONE_NODE, *ON_TWO_NODES, *ON_A_SMALL_WORKER]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("daskwire", help="the command")
    parser.add_argument("work", nargs="*", help=f"some of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--large", type=int, default=1024, help="MiB of the large input")
    parser.add_argument("--pause", type=float, help="seconds without work before each measurement")
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="start daskwire with --python-import MODULE; may be given several times",
    )
    options = parser.parse_intermixed_args()
    wanted = options.work or names
    for name in set(wanted).difference(names):
        parser.error(f"no such work: {name}")
    directory = tempfile.mkdtemp(prefix="daskwire-bench-")
    clusters = []
    try:
        if "pace" in wanted:
            pace(options, directory)
        if wanted == ["pace"]:
            return
        ratios = [f"{one} to {other}" for one, other in RATIOS]
        print(f"| | {' | '.join([*KINDS, *ratios])} |")
        print("| --- |" + " ---: |" * len([*KINDS, *RATIOS]), flush=True)
        if "flood" in wanted:
            asyncio.run(flood(options, directory))
        if {"pace", "flood"}.issuperset(wanted):
            return
        for kind in KINDS:
            clusters.append(Cluster(kind, options, directory))
            clusters[-1].nodes = [clusters[-1].add_node()]
        measure(ON_ONE_NODE, wanted, clusters, options.rounds, options.pause)
        if not ON_TWO_NODES.keys().isdisjoint(wanted):
            for cluster in clusters:
                cluster.nodes.append(cluster.add_node())
            measure(ON_TWO_NODES, wanted, clusters, options.rounds, options.pause)
        if not ON_A_SMALL_WORKER.keys().isdisjoint(wanted):
            for cluster in clusters:
                cluster.nodes.append(cluster.add_node(threads=1, memory="512MiB"))
            measure(ON_A_SMALL_WORKER, wanted, clusters, options.rounds, options.pause)
    finally:
        for cluster in clusters:
            cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    # So that the clusters end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
