"""Dask's cluster classes in front of another scheduler.

Usage: spec_clusters.py COMMAND [NAME]

Each process of a cluster is started as a job queue or SSH would start it: the scheduler by
`COMMAND scheduler`, the workers by `dask worker` or `COMMAND worker --python` in turn. Prints
`ready done` if all checks pass, or that with this name, and ends with an exception otherwise.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

import dask
from distributed import Client, Event, SpecCluster, get_worker
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface

WAIT = 60  # seconds
COMMAND = sys.argv[1]


class Command(ProcessInterface):
    """A process that ends with the cluster."""

    started = []

    async def run(self, *command):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        Command.started.append(self)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    async def close(self):
        self.process.terminate()
        while self.process.poll() is None:
            await asyncio.sleep(0.02)
        await super().close()


class Scheduler(Command):
    async def start(self):
        await self.run(COMMAND, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        while not (found := re.search(r"Scheduler at:\s+(\S+)\n", self.text())):
            assert self.process.poll() is None, self.text()
            await asyncio.sleep(0.02)
        self.address = found[1]
        await super().start()


class Worker(Command):
    def __init__(self, scheduler, name=None, kind="daskwire"):
        super().__init__(scheduler=scheduler, name=name)
        self.scheduler, self.name, self.kind = scheduler, name, kind

    async def start(self):
        if self.kind == "dask":
            command = [sys.executable, "-m", "dask", "worker", self.scheduler]
            command += ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
        else:
            command = [COMMAND, "worker", self.scheduler, "--python", sys.executable]
        command += ["--name", str(self.name), "--nthreads", "1", "--no-nanny"]
        await self.run(*command)
        await super().start()


def new_cluster(kinds=("daskwire",)):
    """A cluster without workers. Those that are added are of these kinds, in turn."""

    class Cluster(SpecCluster):
        def new_worker_spec(self):
            number = self._i
            self._i += 1
            options = {"kind": kinds[number % len(kinds)]}
            return {number: {"cls": Worker, "options": options}}

    return Cluster(
        scheduler={"cls": Scheduler, "options": {}},
        worker={"cls": Worker, "options": {}},
        silence_logs=False,
    )


def eventually(condition, *more):
    deadline = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < deadline, ("it does not happen", *(part() for part in more))
        time.sleep(0.05)
    return value


def equal(one, other):
    assert one == other, f"{one!r} is not {other!r}"


def names(client):
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return {worker["name"] for worker in workers}


def here():
    return get_worker().name


def waits(event):
    assert Event(event).wait(WAIT)
    return get_worker().name


def scales():
    """Workers of both kinds come and go as asked, and take no results with them."""
    with new_cluster(("dask", "daskwire")) as cluster, Client(cluster, timeout=WAIT) as client:
        cluster.scale(4)
        client.wait_for_workers(4, timeout=WAIT)
        equal(names(client), {0, 1, 2, 3})
        # The cluster learns of its workers by `subscribe_worker_status`.
        eventually(lambda: len(cluster.scheduler_info["workers"]) == 4)
        futures = client.map(pow, range(100), [2] * 100, pure=False)
        equal(client.gather(futures), [n**2 for n in range(100)])
        kinds = {spec["options"]["kind"] for spec in cluster.worker_spec.values()}
        equal(kinds, {"dask", "daskwire"})
        cluster.scale(1)
        eventually(lambda: len(client.nthreads()) == 1, client.nthreads)
        equal(client.gather(futures), [n**2 for n in range(100)])
        eventually(lambda: len(cluster.workers) == 1)
        # The cluster forgets a worker that dies.
        [worker] = cluster.workers.values()
        worker.process.kill()
        eventually(lambda: not client.nthreads())
        eventually(lambda: not cluster.workers)
        cluster.scale(2)
        client.wait_for_workers(2, timeout=WAIT)
        equal(client.gather(client.map(pow, range(9), [3] * 9)), [n**3 for n in range(9)])
        equal(len(cluster.get_logs(cluster=False)), 3)


def adapts():
    """An adaptive cluster grows with its load, and shrinks when it is idle."""
    with new_cluster() as cluster, Client(cluster, timeout=WAIT) as client:
        adaptive = cluster.adapt(
            minimum=1, maximum=4, interval="100ms", wait_count=3, target_duration="500ms"
        )
        client.wait_for_workers(1, timeout=WAIT)
        equal(adaptive.minimum, 1)
        held = client.scatter(list(range(20)), hash=False)
        futures = client.map(waits, ["first"] * 60, pure=False)
        eventually(lambda: len(client.nthreads()) == 4, client.nthreads)
        # The new workers are used.
        eventually(lambda: all(client.processing().values()), client.processing)
        Event("first").set()
        equal(len(set(client.gather(futures))), 4)
        kept = client.map(pow, range(50), [2] * 50, pure=False)
        client.gather(kept)
        eventually(lambda: len(client.nthreads()) == 1, client.nthreads)
        # Results and data were moved before their workers were closed.
        equal(client.gather(kept), [n**2 for n in range(50)])
        equal(client.gather(held), list(range(20)))
        # It grows again.
        # The run times of tasks with this name are not known, and assumed to be long.
        futures = client.map(lambda event: waits(event), ["second"] * 60, pure=False)
        eventually(lambda: len(client.nthreads()) == 4, client.nthreads)
        Event("second").set()
        client.gather(futures)


def adapts_to_nothing():
    """The first task starts the first worker, and a cluster without tasks has none."""
    with new_cluster() as cluster, Client(cluster, timeout=WAIT) as client:
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
        time.sleep(0.5)
        equal(client.nthreads(), {})
        equal(client.submit(pow, 2, 10).result(WAIT), 1024)
        eventually(lambda: not client.nthreads())


def balances():
    """Tasks run in the order of their priorities, and idle workers take tasks of busy ones."""
    with new_cluster(("daskwire", "dask")) as cluster, Client(cluster, timeout=WAIT) as client:
        cluster.scale(1)
        client.wait_for_workers(1, timeout=WAIT)
        folder = tempfile.mkdtemp()

        def note(priority):
            time.sleep(0.005)
            with open(os.path.join(folder, "order"), "a") as order:
                order.write(f"{priority}\n")

        blocked = client.submit(time.sleep, 1, pure=False)
        eventually(lambda: any(client.processing().values()))
        futures = [
            client.submit(note, n, priority=n, pure=False) for n in (3, 1, 4, 0, 5, 2) for _ in "ab"
        ]
        client.gather([blocked, *futures])
        with open(os.path.join(folder, "order")) as order:
            order = [int(line) for line in order]
        # The first ones may be sent before the scheduler knows the others.
        late = order[2:]
        assert late == sorted(late, reverse=True), order

        # Tasks whose input is on a busy worker move to workers that join.
        data = client.scatter(b"x" * 1000, hash=False)
        blocked = client.submit(waits, "moved")
        eventually(lambda: any(client.processing().values()))
        many = client.map(lambda _, data: here(), range(100), data=data, pure=False)
        cluster.scale(3)
        client.wait_for_workers(3, timeout=WAIT)
        # One may be with the busy worker.
        eventually(lambda: sum(future.done() for future in many) >= 98)
        Event("moved").set()
        counts = {name: client.gather(many).count(name) for name in (0, 1, 2)}
        # The first that joins may do all of them.
        assert counts[1] + counts[2] >= 98, counts
        equal(blocked.result(WAIT), 0)

        # Tasks that name a worker stay there, whatever others do.
        stay = client.map(lambda _: here(), range(30), workers=[0], pure=False)
        equal(set(client.gather(stay)), {0})


CHECKS = [scales, adapts, adapts_to_nothing, balances]

if __name__ == "__main__":
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"})
    try:
        for check in CHECKS:
            if len(sys.argv) < 3 or check.__name__ == sys.argv[2]:
                start = time.monotonic()
                check()
                print(f"{time.monotonic() - start:6.2f} s  {check.__name__}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        for command in Command.started:
            print(f"---- {command} {command.text()}", file=sys.stderr)
        raise
    finally:
        for command in Command.started:
            command.process.kill()
    print("ready done", flush=True)
    sys.stdin.read()
