"""Clusters of daskwire in the hands of programs around Dask. See `managers.sh`.

Each function of `CHECKS` is a check, with a cluster of its own; the arguments are names of checks.
"""

import asyncio
import contextlib
import getpass
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import dask.array as da
import distributed
import psutil
from distributed import Client
from distributed.core import rpc

import daskwire

WAIT = 60  # seconds


def eventually(condition):
    deadline = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.05)
    return value


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def have_ended(processes):
    """Waits until processes have ended."""
    assert processes
    for process in processes:
        eventually(lambda: not is_alive(process))


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def use(client, count):
    """Runs tasks on a number of workers, all of which are daskwire's.

    Returns the processes of the scheduler and the workers.
    """
    client.wait_for_workers(count, timeout=WAIT)
    assert client.gather(client.map(abs, range(-10, 0))) == list(range(10, 0, -1))
    assert da.ones((10, 10), chunks=5).sum().compute() == 100
    workers = client.run(ancestors)
    assert len(workers) == count
    found = own("scheduler", client.run_on_scheduler(ancestors))
    for worker in workers.values():
        found += own("worker", worker)
    return found


def ancestors():
    """The ids and command lines of this process and those above it, the uppermost first."""
    this = psutil.Process()
    return [(process.pid, process.cmdline()) for process in [*reversed(this.parents()), this]]


def own(role, processes):
    """Those of a process's ancestors that are of a role of the command, and what they started."""
    for index, (_, command) in enumerate(processes):
        if runs(role, command):
            return [psutil.Process(pid) for pid, _ in processes[index:]]
    raise AssertionError(f"no {role} of daskwire: {processes}")


def runs(role, command):
    """Whether a command line is that of a role of the command, as a module or as a program."""
    for index, part in enumerate(command):
        if command[index - 1 : index] == ["-m"]:
            # `_process` has the id of a process and a folder before the arguments.
            first = {"daskwire": index + 1, "daskwire._process": index + 3}.get(part)
        else:
            is_program = index < 2 and os.path.basename(part) == "daskwire"
            first = index + 1 if is_program else None
        if first and command[first : first + 1] == [role]:
            return True
    return False


@contextlib.contextmanager
def started(*arguments):
    """A process of the command. Yields the file for the address."""
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "scheduler.json")
        command = [sys.executable, "-m", "daskwire", *arguments, "--scheduler-file", file]
        process = subprocess.Popen(command)
        try:
            yield file
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT)


@contextlib.contextmanager
def running(*arguments, workers=2):
    """A scheduler and workers. Yields the address."""
    options = ("--host", "127.0.0.1", "--port", "0", "--python", sys.executable, *arguments)
    with started("scheduler", *options) as file, contextlib.ExitStack() as stack:
        eventually(lambda: os.path.exists(file))
        for number in range(workers):
            command = [sys.executable, "-m", "daskwire", "worker", "--scheduler-file", file]
            command += ["--name", f"worker-{number}", "--python", sys.executable, "--nthreads", "1"]
            process = subprocess.Popen(command)
            stack.callback(process.wait, WAIT)
            stack.callback(process.terminate)
        with Client(scheduler_file=file, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=WAIT)
            yield client.scheduler.address


def prefect():
    """A flow whose tasks run on a cluster."""
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(PREFECT_HOME=home, PREFECT_SERVER_ANALYTICS_ENABLED="false")
        from prefect import flow, task
        from prefect_dask import DaskTaskRunner, get_dask_client

        @task
        def double(x):
            return 2 * x

        @task
        def array(size):
            with get_dask_client():
                return float(da.ones((size, size), chunks=5).sum().compute())

        def work():
            doubled = double.map(range(5))
            total = array.submit(10)
            return [future.result() for future in doubled], total.result()

        expected = [0, 2, 4, 6, 8], 100.0
        with running() as address:
            assert flow(task_runner=DaskTaskRunner(address=address))(work)() == expected


def jobqueue():
    """Jobs that are workers in Rust, for a scheduler in Rust."""
    from dask_jobqueue.local import LocalCluster

    with LocalCluster(
        cores=1,
        memory="1GB",
        processes=1,
        scheduler_cls=daskwire.Scheduler,
        scheduler_options={"host": "127.0.0.1", "dashboard_address": ":0"},
        worker_command="daskwire worker",
        worker_extra_args=["--python", sys.executable, "--no-nanny"],
        config_name="local",
    ) as cluster, Client(cluster) as client:
        cluster.scale(jobs=2)
        processes = use(client, 2)
        cluster.scale(jobs=1)
        eventually(lambda: len(client.scheduler_info()["workers"]) == 1)
        cluster.adapt(minimum_jobs=1, maximum_jobs=2, interval="200ms")
        futures = client.map(time.sleep, [0.5] * 20, pure=False)
        client.wait_for_workers(2, timeout=WAIT)
        client.cancel(futures)
    have_ended(processes)


def kubernetes():
    """What the operator of dask-kubernetes asks a scheduler for, over HTTP and by RPC."""
    port = free_port()
    with running("--dashboard-address", f"127.0.0.1:{port}", workers=3) as address:
        asyncio.run(operate(address, f"http://127.0.0.1:{port}"))


async def operate(address, url):
    import aiohttp

    async with aiohttp.ClientSession() as session:
        # The probes of the pod.
        async with session.get(f"{url}/health") as response:
            assert response.status == 200
        # Dask does not serve these pages by default, either. Then the operator uses RPC.
        for _ in range(20):
            async with session.post(f"{url}/api/v1/retire_workers", json={"n": 1}) as response:
                assert response.status > 300, response.status
                await response.text()
        for name in "adaptive_target", "check_idle":
            async with session.get(f"{url}/api/v1/{name}") as response:
                assert response.status > 300, response.status
    async with rpc(address) as scheduler:
        assert await scheduler.adaptive_target() == 0
        names = await scheduler.workers_to_close(n=1, attribute="name")
        assert len(names) == 1, names
        await scheduler.retire_workers(names=names)
        identity = await scheduler.identity()
        left = {worker["name"] for worker in identity["workers"].values()}
        assert len(left) == 2 and not left & set(names), (left, names)
        idle_since = await scheduler.check_idle()
        assert abs(float(idle_since) - time.time()) < WAIT, idle_since


def ssh():
    """SSHCluster, with a server of its own on this machine."""
    from distributed import SSHCluster

    with ssh_server() as options:
        with SSHCluster(
            ["127.0.0.1"] * 3,
            connect_options=options,
            scheduler_options={"port": 0, "dashboard_address": ":0"},
            worker_options={"nthreads": 1, "memory_limit": "1GiB"},
            remote_python=f"{sys.executable} -m daskwire.spec",
        ) as cluster, Client(cluster) as client:
            processes = use(client, 2)
        have_ended(processes)
        with SSHCluster(
            ["127.0.0.1"] * 2,
            connect_options=options,
            scheduler_options={"port": 0, "dashboard_address": ":0"},
            worker_options={"nthreads": 1, "n_workers": 2},
            worker_class="distributed.Worker",
            remote_python=f"{sys.executable} -m daskwire.spec",
        ) as cluster, Client(cluster) as client:
            processes = use(client, 2)
        have_ended(processes)


@contextlib.contextmanager
def ssh_server():
    """A server of OpenSSH. Yields the options with which asyncssh connects to it."""
    server = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
    assert server, "the server of OpenSSH is missing (Debian: openssh-server)"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for key in "host", "user":
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
            subprocess.run(command, check=True)
        (folder / "authorized").write_text((folder / "user.pub").read_text())
        port = free_port()
        (folder / "config").write_text(
            f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nMaxStartups 50\n"
        )
        os.makedirs("/run/sshd", exist_ok=True)
        process = subprocess.Popen([server, "-D", "-e", "-f", folder / "config"])
        try:
            eventually(lambda: answers(port))
            yield {
                "port": port,
                "username": getpass.getuser(),
                "client_keys": [str(folder / "user")],
                "known_hosts": None,
            }
        finally:
            process.terminate()
            process.wait()


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True


CHECKS = {check.__name__: check for check in [kubernetes, jobqueue, ssh, prefect]}


def main():
    logging.getLogger("distributed").setLevel(logging.WARNING)
    print(f"distributed {distributed.__version__}")
    for name in sys.argv[1:] or CHECKS:
        begun = time.monotonic()
        CHECKS[name]()
        print(f"{name}: passed in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
