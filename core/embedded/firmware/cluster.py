"""The emulated board in a cluster of Python.

Usage: cluster.py DIRECTORY [SECONDS DASKWIRE]

The directory has the programs for the board. Ends with an error as soon as
anything is not as it should be. With a time, the cluster then has random load
for that long, with the board and a worker in Rust that runs functions, of the
command DASKWIRE; both are killed and started again meanwhile.
"""

import contextlib
import datetime
import operator
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import dask
import numpy as np
from distributed import Client, LocalCluster, Worker, wait

warnings.simplefilter("error", UserWarning)
PROGRAMS = Path(sys.argv[1])
TIMEOUT = 30
# As in src/worker.rs.
KEYS = 32
VECTORS = Path(__file__).resolve().parents[2] / "tests" / "vectors"
HANDSHAKE = (VECTORS / "modern-nosplit-2026.8.0/handshake.bin").read_bytes()


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


def message(*frames):
    words = [8 + 8 * len(frames) + sum(map(len, frames)), len(frames), *map(len, frames)]
    return struct.pack(f"<{len(words)}Q", *words) + b"".join(frames)


def receive(connection, length):
    data = b""
    while len(data) < length:
        data += connection.recv(length - len(data)) or sys.exit("the board has closed a connection early")
    return data


def receive_body(connection):
    _, count = struct.unpack("<QQ", receive(connection, 16))
    lengths = struct.unpack(f"<{count}Q", receive(connection, 8 * count))
    return [receive(connection, length) for length in lengths][0]


def too_large(client, mcu, address):
    """Batches, arguments and data of peers that are too large for the board."""

    def registered():
        return client.scheduler_info()["workers"][address]["id"]

    first = registered()
    kept = mcu("hypot", 3, 4)
    wait(kept, TIMEOUT)
    full = f"MemoryError('the role holds at most {KEYS} tasks and results (KEYS of its Memory)')"
    for count in [160, 200, 500]:
        started = time.monotonic()
        hypot = operator.methodcaller("native:hypot")
        many = client.map(hypot, range(count), [0] * count, workers=["mcu"], pure=False)
        wait(many, TIMEOUT * 4)
        print(f"a batch of {count} tasks takes {time.monotonic() - started:.1f} s")
        good = [number for number, future in enumerate(many) if future.status == "finished"]
        results = client.gather([many[number] for number in good])
        check("as many tasks as there is room for finish", (len(good), results == good), (KEYS - 1, True))
        errors = {repr(future.exception()) for future in many if future.status == "error"}
        check("all others fail", errors, {full})
        del many
        until("their results are released", lambda: len(client.has_what()[address]) == 1)
    for length in [1_000_000, 4_000_000]:
        for argument in [bytes(length), np.ones(length // 8)]:
            error = mcu("sum", argument).exception(TIMEOUT * 4)
            check(f"{type(argument).__name__} of {length} bytes", "MESSAGE of worker::Memory" in repr(error), True)
            check("the next task", mcu("hypot", 6, 8).result(TIMEOUT), 10.0)
    inputs = client.map(float, range(100), workers=["python"])
    error = mcu("sum", inputs).exception(TIMEOUT)
    check("a message with 100 inputs", "MESSAGE of worker::Memory" in repr(error), True)

    host, port = address.removeprefix("tcp://").split(":")
    for _ in range(6):
        with socket.create_connection((host, int(port)), TIMEOUT) as peer:
            peer.settimeout(TIMEOUT)
            # A frame of a GiB, of which as much is sent as the board takes.
            with contextlib.suppress(ConnectionError):
                peer.sendall(struct.pack("<QQQ", 1 << 30, 1, 1 << 30) + bytes(64 << 20))
                sys.exit("the board reads what it cannot use")
    with contextlib.suppress(Exception):
        client.scatter(np.ones(1 << 19), workers=["mcu"])
    check("a value of its own after that", mcu("hypot", kept, 12).result(TIMEOUT), 13.0)
    check("it has stayed registered", registered() == first, True)


def misbehaving_scheduler():
    """The board with a scheduler that sends an invalid message, and then more than the board takes."""
    registrations = []

    def serve(connection):
        connection.sendall(HANDSHAKE)
        receive_body(connection)
        while True:
            if b"register-worker" not in receive_body(connection):
                connection.sendall(message(b"\x82\xa4host\x80\xa8packages\x80"))
                continue
            connection.sendall(message(b"\x82\xa6status\xa2OK\xa4time\x00"))
            registrations.append(time.monotonic())
            connection.sendall(message(b"\xc1") + bytes(200_000))

    def accept():
        while True:
            connection, _ = listener.accept()
            kept.append(connection)
            threading.Thread(target=quietly, args=(serve, connection), daemon=True).start()

    def quietly(function, connection):
        with contextlib.suppress(OSError, SystemExit):
            function(connection)

    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        scheduler = f"tcp://10.0.2.2:{listener.getsockname()[1]}"
        with board("worker", "worker", scheduler, "tcp://127.0.0.1:1", "mcu"):
            until("it has registered three times", lambda: len(registrations) >= 3)
    print(f"registered three times in {registrations[2] - registrations[0]:.1f} s")


def wait_for(path):
    """A task of others, which ends once a file exists."""
    while not Path(path).exists():
        time.sleep(0.01)
    return 1


def sent(dask_scheduler):
    """The number of tasks of others on each worker, and of those that are queued."""
    tasks = [task for task in dask_scheduler.tasks.values() if "wait_for" in str(task.key)]
    return dict(Counter(str(task.processing_on.name if task.processing_on else task.state) for task in tasks))


def others(client):
    """Tasks and data that are not meant for the board: what the scheduler decides about them."""
    with tempfile.TemporaryDirectory() as directory:
        gate = Path(directory) / "gate"
        tasks = client.map(wait_for, [str(gate)] * 300, pure=False)
        until("the tasks are sent", lambda: sum(client.run_on_scheduler(sent).values()) == 300)
        until("none waits", lambda: "waiting" not in client.run_on_scheduler(sent))
        decided = client.run_on_scheduler(sent)
        gate.touch()
        total = sum(client.gather(tasks))
    values = [1, "two", [3.0], {"four": object}, np.ones(5), np.arange(10_000)]
    data = [client.scatter(value, hash=False) for value in values * 5]
    names = {address: info["name"] for address, info in client.scheduler_info()["workers"].items()}
    holders = sorted({names[holder] for held in client.who_has(data).values() for holder in held})
    return decided, total, len(client.gather(data)), holders


def worker(client, scheduler):
    alone = others(client)
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
        client.wait_for_workers(3, timeout=TIMEOUT)
        check("tasks and data of others, as without the board", others(client), alone)
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
        error = mcu("hypot", 3, datetime.date(2026, 1, 1)).exception(TIMEOUT)
        check("an argument that it does not understand", "does not support: datetime.date" in str(error), True)
        shared = client.submit(len, "abc", workers=["mcu", "python"], pure=False)
        check("a function of Python that another worker may run", shared.result(TIMEOUT), 3)
        check("without a worker's name", client.submit(operator.methodcaller("native:hypot"), 6, 8).result(TIMEOUT), 10.0)
        for refused in (lambda: client.scatter([{"a": 1}], workers=["mcu"]), lambda: client.run(len, "", workers=[address])):
            try:
                check("a request that it does not support", refused(), "an error")
            except Exception as found:
                check("a request that it does not support", "does not support" in str(found), True)
        check("tasks and data of others again", others(client), alone)
        del data, many, scaled
        too_large(client, mcu, address)
        uptime = mcu("uptime").result(TIMEOUT)
        before = seen()
        until("it sends heartbeats", lambda: seen() > before + 1)

        # Killed in mid-task, and started again: the task runs again.
        task = mcu("spin", 3)
        until("the task is on the board", lambda: any(client.processing()[address]))
        time.sleep(0.5)
    until("the scheduler notices", lambda: len(client.scheduler_info()["workers"]) == 2)
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


def increment(number):
    return number + 1


@contextlib.contextmanager
def rust(command, scheduler, port):
    """A worker in Rust that runs functions."""
    command = [command, "worker", scheduler, "--name", "rust", "--nthreads", "2", "--no-nanny", "--no-dashboard"]
    command += ["--host", "127.0.0.1", "--worker-port", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def soak(client, scheduler, seconds, command):
    """Random load of others, of the board and of a worker in Rust."""
    alone = others(client)
    ports = [free_port(), free_port()]
    mcu, native = (f"tcp://127.0.0.1:{port}" for port in ports)
    start = [
        lambda: board("worker", "worker", from_board(scheduler), mcu, "mcu", port=ports[0]),
        lambda: rust(command, scheduler, ports[1]),
    ]
    hypot, counts, chance = operator.methodcaller("native:hypot"), Counter(), random.Random(1)

    def load():
        """Starts work; returns its kind, a future and the expected result."""
        kind, number = chance.randrange(7), chance.randrange(100)
        if kind == 0:
            futures = client.map(increment, range(number), pure=False)
            return "tasks of others", client.submit(sum, futures, pure=False), sum(range(1, number + 1))
        if kind == 1:
            return "scatters of others", client.scatter([{"number": number}], hash=False)[0], {"number": number}
        if kind == 2:
            array = client.submit(np.ones, (number + 1, 100), pure=False)
            return "arrays of others", client.submit(np.sum, array, pure=False), 100.0 * (number + 1)
        if kind == 3:
            return "tasks of the board", client.submit(hypot, 3 * number, 4 * number, workers=[mcu], pure=False), 5.0 * number
        if kind == 4:
            data = client.submit(np.arange, number, pure=False)
            total = client.submit(operator.methodcaller("native:sum"), data, workers=[mcu], pure=False)
            return "inputs of the board", total, float(sum(range(number)))
        if kind == 5:
            both = client.submit(operator.mul, number, 7, workers=[native], pure=False)
            return "tasks of the worker in Rust", client.submit(operator.neg, both, workers=[native], pure=False), -7 * number
        return "tasks given back", client.submit(increment, number, workers=[mcu, "python"], pure=False), number + 1

    with contextlib.ExitStack() as stack:
        running = [contextlib.ExitStack(), contextlib.ExitStack()]
        for one, begin in zip(running, start):
            stack.push(one)
            one.enter_context(begin())
        client.wait_for_workers(4, timeout=TIMEOUT)
        end = time.monotonic() + seconds
        kill = time.monotonic() + 30
        while time.monotonic() < end:
            work = [load() for _ in range(20)]
            if time.monotonic() > kill:
                kill += 30
                which = chance.randrange(2)
                running[which].close()
                running[which].enter_context(start[which]())
                counts["restarts of " + ("the board", "the worker in Rust")[which]] += 1
            for kind, future, expected in work:
                result = future.result(2 * TIMEOUT)
                if result != expected:
                    sys.exit(f"{kind}: {result!r} instead of {expected!r}")
                counts[kind] += 1
            del work, future
            if counts["tasks of others"] % 20 == 0:
                until("both are back", lambda: len(client.scheduler_info()["workers"]) == 4)
                check("tasks and data of others", others(client), alone)
                counts["comparisons with a cluster without them"] += 1
        until("the scheduler has forgotten the tasks", lambda: not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))
        for kind, count in sorted(counts.items()):
            print(f"    {kind}: {count}")


def main():
    # Killed workers are no reason to fail tasks here.
    dask.config.set({"distributed.scheduler.allowed-failures": 1000, "distributed.scheduler.worker-ttl": "10 s"})
    with LocalCluster(n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            # Not by the cluster, for a name.
            async def start(name):
                return await Worker(cluster.scheduler_address, name=name, host="127.0.0.1", nthreads=1)

            workers = [client.sync(start, name) for name in ("python", "python-2")]
            client.wait_for_workers(2)
            client_on_board(client, cluster.scheduler_address)
            worker(client, cluster.scheduler_address)
            if len(sys.argv) > 2:
                soak(client, cluster.scheduler_address, float(sys.argv[2]), sys.argv[3])
            misbehaving_scheduler()
            for python in workers:
                client.sync(python.close)


if __name__ == "__main__":
    main()
