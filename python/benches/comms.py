"""Compares comms of this package with those of Dask, between two processes.

Usage: comms.py [ROUNDS]

The cases are a round trip of 100 bytes (small), 200 messages of 100 bytes with a reply to each,
written before the replies are read (many), an array of 64 MiB with a short reply (large), and a
new comm with a request, its reply and the end (new). Each line has the elapsed time and the
processor time for one of these: the median of all rounds (default: 15), and the ratio to Dask's
own `tcp://` or `tls://` in the same round as median, minimum and maximum. The processor time is
that of both processes.
"""

import asyncio
import multiprocessing
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


def serve(security, pipe):
    asyncio.run(serve_until_closed(security, pipe))


async def serve_until_closed(security, pipe):
    """Listens, sends the addresses, and then the processor time whenever asked for it."""
    listeners = {}
    for scheme in SCHEMES:
        plain = scheme.startswith("tcp")
        args = {} if plain else security.get_listen_args("scheduler")
        listeners[scheme] = await listen(f"{scheme}://127.0.0.1:0", answer, **args)
    pipe.send({scheme: listener.contact_address for scheme, listener in listeners.items()})
    is_closed = asyncio.Event()

    def tell():
        try:
            pipe.recv()
            pipe.send(time.process_time())
        except EOFError:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            is_closed.set()

    asyncio.get_running_loop().add_reader(pipe.fileno(), tell)
    await is_closed.wait()
    for listener in listeners.values():
        listener.stop()


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


async def many(_, comm):
    async def write():
        for _ in range(200):
            await comm.write({"data": bytes(100)})

    writing = asyncio.create_task(write())
    for _ in range(200):
        await comm.read()
    await writing


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
    pipe, far_pipe = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    server = context.Process(target=serve, args=(security, far_pipe), daemon=True)
    server.start()
    far_pipe.close()
    makers, comms = {}, {}
    for scheme, address in pipe.recv().items():
        plain = scheme.startswith("tcp")
        args = {} if plain else security.get_connection_args("client")

        def make(address=address, args=args):
            return connect(address, **args)

        makers[scheme] = make
        comms[scheme] = await make()

    def times():
        pipe.send("processor time")
        return time.perf_counter(), time.process_time() + pipe.recv()

    print("| what | comm | beside | time | processor time |")
    print("| --- | --- | --- | ---: | ---: |")
    for case, count in [(small, 200), (many, 200), (large, 2), (new, 20)]:
        taken = {scheme: [] for scheme in SCHEMES}
        for _ in range(rounds + 1):
            for scheme in SCHEMES:
                start = times()
                await case(makers[scheme], comms[scheme])
                end = times()
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
    pipe.close()
    server.join()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
