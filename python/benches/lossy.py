"""Compares QUIC with Dask's TCP for jobs on Python clusters over a link that loses packets.

Usage: lossy.py [ROUNDS]        as root, on Linux, in an environment with this package

CUBIC and BBR have to be allowed: sysctl -w net.ipv4.tcp_allowed_congestion_control="reno cubic bbr"

One network namespace runs the scheduler and a worker, another one a worker and the client. This
program connects them by a TUN device in each: it forwards each packet after 10 ms, so that a round
trip takes 20 ms, at 100 Mbit/s with a queue of 1 MB, and drops some at random. Each line has the
time of a job: the median of all rounds (default: 3), the minimum and the maximum, and the ratio of
the median to that of Dask's `tcp://` with CUBIC at the same loss. All kinds of comms take turns in
each round.

`array` adds a matrix to its transpose, for which the workers exchange blocks of 1.3 MB; `tasks` is
20 chains of 10 tasks, which alternate between the workers.
"""

import fcntl
import heapq
import json
import os
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

KINDS = [("tcp", "cubic"), ("tcp", "bbr"), ("quic", "cubic"), ("quic", "bbr")]
LOSSES = [0, 1, 5]
DELAY = 0.010
BYTES_PER_SECOND = 100e6 / 8
MAX_QUEUED = 1e6 / BYTES_PER_SECOND
NEAR, FAR = "daskwire-near", "daskwire-far"
ADDRESSES = {NEAR: "10.99.0.1", FAR: "10.99.0.2"}
JOB_TIMEOUT = 600


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class Link:
    """A link between two new network namespaces, served by a child process."""

    def __init__(self, loss):
        self.remove()
        devices = []
        for index, (namespace, address) in enumerate(ADDRESSES.items()):
            ip("netns", "add", namespace)
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            name = f"dwlink{index}"
            tunsetiff, tun, no_info = 0x400454CA, 0x0001, 0x1000
            request = struct.pack("16sH", name.encode(), tun | no_info)
            fcntl.ioctl(device, tunsetiff, request)
            ip("link", "set", name, "netns", namespace)
            ip("-n", namespace, "address", "add", f"{address}/24", "dev", name)
            ip("-n", namespace, "link", "set", name, "up", "txqueuelen", "10000")
            ip("-n", namespace, "link", "set", "lo", "up")
            devices.append(device)
        self.child = os.fork()
        if self.child == 0:
            self.serve(devices, loss / 100)
        for device in devices:
            os.close(device)

    @staticmethod
    def serve(devices, loss):
        """Forwards packets between the devices until the process is killed."""
        poll = select.poll()
        other = dict(zip(devices, reversed(devices)))
        for device in devices:
            poll.register(device, select.POLLIN)
        # The time when the last packet of each direction has left the queue, and the packets
        # in transit, ordered by arrival.
        sent = dict.fromkeys(devices, 0.0)
        packets, count = [], 0
        while True:
            wait = None if not packets else max(0, packets[0][0] - time.monotonic()) * 1000
            for device, _ in poll.poll(wait):
                for _ in range(64):
                    try:
                        packet = os.read(device, 65536)
                    except BlockingIOError:
                        break
                    now = time.monotonic()
                    start = max(now, sent[device])
                    if random.random() < loss or start - now > MAX_QUEUED:
                        continue
                    sent[device] = start + len(packet) / BYTES_PER_SECOND
                    count += 1
                    arrival = sent[device] + DELAY
                    heapq.heappush(packets, (arrival, count, other[device], packet))
            now = time.monotonic()
            while packets and packets[0][0] <= now:
                _, _, device, packet = heapq.heappop(packets)
                try:
                    os.write(device, packet)
                except BlockingIOError:
                    pass

    def close(self):
        os.kill(self.child, 9)
        os.waitpid(self.child, 0)
        self.remove()

    @staticmethod
    def remove():
        for namespace in ADDRESSES:
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL)


class Cluster:
    """A cluster over the link: scheduler and worker at one end, worker and client at the other."""

    def __init__(self):
        self.processes = []

    def start(self, scheme, congestion, options):
        for namespace in ADDRESSES:
            setting = f"net.ipv4.tcp_congestion_control={congestion}"
            command = ["ip", "netns", "exec", namespace, "sysctl", "-q", "-w", setting]
            subprocess.run(command, check=True)
        self.environment = os.environ | {
            "DASK_DISTRIBUTED__COMM__QUIC__CONGESTION": congestion,
            "DASK_DISTRIBUTED__COMM__RETRY__COUNT": "3",
        }
        options = options if scheme == "quic" else []
        dask = [sys.executable, "-m", "dask"]
        self.start_until(
            FAR,
            [*dask, "scheduler", "--protocol", scheme, "--host", ADDRESSES[FAR], "--no-dashboard", *options],
            "Scheduler at:",
        )
        address = f"{scheme}://{ADDRESSES[FAR]}:8786"
        for namespace in (FAR, NEAR):
            self.start_until(
                namespace,
                [*dask, "worker", address, "--no-nanny", "--nthreads", "1", "--no-dashboard",
                 "--host", ADDRESSES[namespace], "--name", namespace, *options],
                "Registered to:",
            )
        self.client = self.spawn(
            NEAR, [sys.executable, __file__, "client", address, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        self.read()

    def spawn(self, namespace, command, **options):
        command = ["ip", "netns", "exec", namespace, *command]
        process = subprocess.Popen(command, env=self.environment, text=True, **options)
        self.processes.append(process)
        return process

    def start_until(self, namespace, command, ready):
        log = tempfile.NamedTemporaryFile("w+")
        process = self.spawn(namespace, command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while ready not in Path(log.name).read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command}: {Path(log.name).read_text()}")
            time.sleep(0.1)

    def read(self):
        line = self.client.stdout.readline()
        if not line:
            sys.exit("the client has ended")
        return json.loads(line)

    def run(self, job):
        """Runs a job and returns the time that it took, in seconds."""
        print(job, file=self.client.stdin, flush=True)
        return self.read()

    def close(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def client(address, options):
    """Runs the jobs named on the standard input."""
    import daskwire  # noqa: F401  Before any Security is used.
    import dask.array as da
    from distributed import Client, Security

    files = dict(zip(options[::2], options[1::2]))
    security = Security(
        tls_ca_file=files.get("--tls-ca-file"),
        tls_client_cert=files.get("--tls-cert"),
        tls_client_key=files.get("--tls-key"),
    )

    def array(client):
        matrix = da.random.random((1600, 1600), chunks=(400, 400))
        matrix = client.persist(matrix)
        assert float((matrix + matrix.T).sum()) > 0

    def tasks(client):
        values = [0]
        for index in range(200):
            worker = (NEAR, FAR)[index % 2]
            if index % 10 == 0:
                value = index
            value = client.submit(lambda value: value + 1, value, workers=worker, pure=False)
            values.append(value)
        client.gather(values[1:])

    jobs = {"array": array, "tasks": tasks}
    with Client(address, security=security if options else None, timeout=60) as connected:
        print(json.dumps(None), flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            jobs[line.strip()](connected)
            print(json.dumps(time.perf_counter() - start), flush=True)


def certificate(directory):
    """Creates a certificate for all roles and returns the options for it."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ed25519 -nodes -days 2 -subj /CN=lossy"
    subprocess.run(
        [*command.split(), "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL
    )
    return ["--tls-ca-file", str(cert), "--tls-cert", str(cert), "--tls-key", str(key)]


def main(rounds):
    with tempfile.TemporaryDirectory() as directory:
        options = certificate(Path(directory))
        print("| job | loss | comm | seconds | ratio |")
        print("| --- | ---: | --- | ---: | ---: |")
        for loss in LOSSES:
            taken = {}
            for _ in range(rounds):
                for kind in KINDS:
                    with closing(Link(loss)), closing(Cluster()) as cluster:
                        cluster.start(*kind, options)
                        # The first job also opens comms.
                        for job in ("tasks", "array", "tasks"):
                            taken.setdefault((job, kind), []).append(cluster.run(job))
            for job in ("array", "tasks"):
                base = statistics.median(taken[job, KINDS[0]])
                for kind in KINDS:
                    times = taken[job, kind]
                    median = statistics.median(times)
                    print(
                        f"| {job} | {loss} % | {kind[0]}, {kind[1]} | {median:.2f} "
                        f"({min(times):.2f} to {max(times):.2f}) | {median / base:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], sys.argv[3:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
