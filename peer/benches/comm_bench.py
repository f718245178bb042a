"""Dask's own comm over loopback TCP, for the benchmark beside this file.

A process of its own sends back a byte for each message; prints the median
seconds of each kind of message as JSON.
"""

import asyncio
import json
import multiprocessing
import statistics
import time
import warnings

warnings.simplefilter("ignore")

import numpy
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

LARGE = 64 << 20


def serve(pipe):
    async def run():
        async def handle(comm):
            try:
                while True:
                    message = await comm.read()
                    await comm.write(message["n"])
            except OSError:
                pass

        listener = await listen("tcp://127.0.0.1:0", handle)
        pipe.send(listener.contact_address)
        await asyncio.Event().wait()

    asyncio.run(run())


async def measure(address):
    comm = await connect(address)

    async def rounds(count, message):
        times = []
        for _ in range(count):
            started = time.perf_counter()
            await comm.write(message)
            await comm.read()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])

    array = to_serialize(numpy.ones(LARGE // 8))
    result = {
        "large": await rounds(16, {"n": 1, "data": array}),
        "small": await rounds(3001, {"n": 1, "data": b"x" * 80}),
    }
    times = []
    for _ in range(201):
        started = time.perf_counter()
        another = await connect(address)
        await another.write({"n": 1})
        await another.read()
        times.append(time.perf_counter() - started)
        await another.close()
    result["new"] = statistics.median(times[1:])
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    asyncio.run(measure(ours.recv()))
    server.terminate()
