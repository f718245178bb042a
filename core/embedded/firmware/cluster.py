"""The emulated board in a cluster of Python.

Usage: cluster.py DIRECTORY

The directory has the programs for the board. Ends with an error as soon as
anything is not as it should be.
"""

import contextlib
import operator
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster, Worker, wait

warnings.simplefilter("error", UserWarning)
PROGRAMS = Path(sys.argv[1])
TIMEOUT = 30


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def board(program, *arguments, port=None):
    """The emulated board, with a program and its arguments. Its port 8000 is one of this host."""
    forward = f",hostfwd=tcp:127.0.0.1:{port}-:8000" if port else ""
    # Something else at each start.
    arguments = [*arguments, str(time.time_ns() % 2**32)]
    command = ["qemu-system-arm", "-M", "lm3s6965evb", "-display", "none", "-monitor", "none", "-serial", "none"]
    command += ["-nic", f"user,model=stellaris{forward}"]
    command += ["-semihosting-config", ",".join(["enable=on,target=native", *(f"arg={text}" for text in arguments)])]
    command += ["-kernel", str(PROGRAMS / program)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def from_board(address):
    """An address of this host as the board has to use it."""
    return address.replace("127.0.0.1", "10.0.2.2")


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: {found!r} instead of {expected!r}")
    print(f"{what}: {found!r}")


def until(what, is_so):
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(f"timed out: {what}")
        time.sleep(0.05)


def worker(client, scheduler):
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    arguments = ["worker", "worker", from_board(scheduler), address, "mcu"]

    def mcu(name, *args):
        return client.submit(operator.methodcaller(f"native:{name}"), *args, workers=["mcu"], pure=False)

    def python(function, *args):
        return client.submit(function, *args, workers=["python"], pure=False)

    def seen():
        return client.scheduler_info()["workers"][address]["last_seen"]

    with board(*arguments, port=port):
        client.wait_for_workers(2, timeout=TIMEOUT)
        check("hypot of numbers", mcu("hypot", 3, 4).result(TIMEOUT), 5.0)
        check("sum of an array", mcu("sum", np.arange(10)).result(TIMEOUT), 45.0)
        check("bytes reversed", mcu("reversed", b"abc").result(TIMEOUT), b"cba")
        scaled = mcu("scale", np.arange(100, dtype="f4"), 0.5)
        check("an array scaled", float(scaled.result(TIMEOUT).sum()), 2475.0)
        check("its value as an input in Python", python(np.sum, scaled).result(TIMEOUT), 2475.0)
        check("a value of Python as an input", mcu("sum", python(np.ones, 150)).result(TIMEOUT), 150.0)
        [data] = client.scatter([np.ones(7)], workers=["mcu"])
        check("scattered to it", mcu("sum", data).result(TIMEOUT), 7.0)
        many = [mcu("hypot", 0, number) for number in range(25)]
        check("25 tasks at once", client.gather(many) == [float(number) for number in range(25)], True)
        error = mcu("div", 1, 0).exception(TIMEOUT)
        check("an error", repr(error), "ZeroDivisionError('float division by zero')")
        error = client.submit(len, "abc", workers=["mcu"]).exception(TIMEOUT)
        check("a function of Python", type(error), NotImplementedError)
        del data, many, scaled
        uptime = mcu("uptime").result(TIMEOUT)
        before = seen()
        until("it sends heartbeats", lambda: seen() > before + 1)

        # Killed in mid-task, and started again: the task runs again.
        task = mcu("spin", 3)
        until("the task is on the board", lambda: any(client.processing()[address]))
        time.sleep(0.5)
    until("the scheduler notices", lambda: len(client.scheduler_info()["workers"]) == 1)
    check("the cluster without it", python(operator.add, 1, 2).result(TIMEOUT), 3)
    restarted = time.monotonic()
    with board(*arguments, port=port) as process:
        check("the task after a restart", task.result(TIMEOUT), 3)
        # The clock of a board that had not been restarted would have gone on.
        uptime_now = mcu("uptime").result(TIMEOUT)
        since = (time.monotonic() - restarted) * 1000
        check("the board has been restarted", uptime_now < uptime + since, True)

        value = mcu("hypot", 6, 8)
        wait(value)
        client.retire_workers([address])
        check("the board has ended with status", process.wait(TIMEOUT), 0)
        check("its value has moved", value.result(TIMEOUT), 10.0)
        output = process.stdout.read().decode()
        print(output, end="")
        if "flash" not in output:
            sys.exit("it does not say what memory it has used")


def client_on_board(client, scheduler):
    with board("client", "client", from_board(scheduler), f"mcu-client-{time.time_ns()}") as process:
        output, _ = process.communicate(timeout=TIMEOUT)
    output = output.decode()
    print(output, end="")
    check("the client on the board has ended with status", process.returncode, 0)
    for expected in [
        "operator.add(20, 1) = 21",
        "operator.mul(operator.add(20, 1), 2) = 42",
        'statistics.stdev(b"\\x01\\x02\\x04") = 1.5275252316519468',
        "operator.truediv(1, 0): ZeroDivisionError: division by zero",
    ]:
        if f"    {expected}\n" not in output:
            sys.exit(f"it does not say {expected!r}")
    until("the scheduler has forgotten its tasks", lambda: not client.who_has())


def main():
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            # Not by the cluster, for a name.
            async def start():
                return await Worker(cluster.scheduler_address, name="python", host="127.0.0.1", nthreads=1)

            python = client.sync(start)
            client.wait_for_workers(1)
            client_on_board(client, cluster.scheduler_address)
            worker(client, cluster.scheduler_address)
            client.sync(python.close)


if __name__ == "__main__":
    main()
