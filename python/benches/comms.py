"""Compares comms of this package with those of Dask, in one process.

Usage: comms.py [ROUNDS]

The cases are a round trip of 100 bytes (small), an array of 64 MiB with a short reply (large), and
a new comm with a request, its reply and the end (new). Each line has the elapsed time and the
processor time: the median of all rounds (default: 15), and the ratio to Dask's own `tcp://` or
`tls://` in the same round as median, minimum and maximum. Both ends run in one process, so the
processor time is that of both.
"""

import asyncio
import statistics
import sys
import time

import daskwire  # noqa: F401  Before any Security is used.
import numpy as np
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize
from distributed.security import Security

PAIRS = [("tcp+rs", "tcp"), ("tls+rs", "tls"), ("quic", "tls"), ("quic", "tcp")]
SCHEMES = ["tcp", "tls", "tcp+rs", "tls+rs", "quic"]


async def answer(comm):
    try:
        while True:
            message = await comm.read()
            await comm.write({"len": len(message["data"])})
    except CommClosedError:
        pass


async def ask(comm, data):
    await comm.write({"data": data})
    await comm.read()


async def small(_, comm):
    for _ in range(200):
        await ask(comm, bytes(100))


ARRAY = np.ones(64 << 20, "u1")


async def large(_, comm):
    for _ in range(2):
        await ask(comm, to_serialize(ARRAY))


async def new(make, _):
    comms = []
    for _ in range(20):
        comm = await make()
        await ask(comm, b"")
        comms.append(comm)
    # Concurrently: over QUIC, each waits for an acknowledgement, which may take 25 ms.
    await asyncio.gather(*(comm.close() for comm in comms))


async def main(rounds):
    security = Security.temporary()
    makers, comms = {}, {}
    listeners = []
    for scheme in SCHEMES:
        plain = scheme.startswith("tcp")
        listen_args = {} if plain else security.get_listen_args("scheduler")
        connect_args = {} if plain else security.get_connection_args("client")
        listener = await listen(f"{scheme}://127.0.0.1:0", answer, **listen_args)
        listeners.append(listener)

        def make(address=listener.contact_address, args=connect_args):
            return connect(address, **args)

        makers[scheme] = make
        comms[scheme] = await make()
    print("| what | comm | beside | time | processor time |")
    print("| --- | --- | --- | ---: | ---: |")
    for case, count in [(small, 200), (large, 2), (new, 20)]:
        taken = {scheme: [] for scheme in SCHEMES}
        for _ in range(rounds + 1):
            for scheme in SCHEMES:
                start = time.perf_counter(), time.process_time()
                await case(makers[scheme], comms[scheme])
                end = time.perf_counter(), time.process_time()
                taken[scheme].append([(b - a) / count for a, b in zip(start, end)])
        for ours, theirs in PAIRS:
            cells = []
            for kind in (0, 1):
                # The first round warms up.
                both = list(zip(taken[ours], taken[theirs]))[1:]
                ratios = [a[kind] / b[kind] for a, b in both]
                median = statistics.median(a[kind] for a, _ in both)
                cells.append(
                    f"{median * 1e6:,.0f} µs, {statistics.median(ratios):.2f} "
                    f"({min(ratios):.2f} to {max(ratios):.2f})"
                )
            print(f"| {case.__name__} | {ours} | {theirs} | {' | '.join(cells)} |", flush=True)
    for comm in comms.values():
        await comm.close()
    for listener in listeners:
        listener.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
