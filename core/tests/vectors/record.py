"""Records what the two sides of a connection send in a real session of a release.

    python record.py --release 2026.8.0 --out DIR

Runs a scheduler, two workers and a client of the release, with a proxy before the
scheduler, and writes DIR/<generation>-0.stream.bin, .json (what the client sent on its
longest connection) and -1 (what the scheduler sent). They hold the ports, times and ids of
this run, so that no two recordings are alike: they are recorded once, and
`generate.py --check` reads them again with the release that wrote them.

The release is installed as for `generate.py`.
"""

import argparse
import asyncio
import json
import os
import pathlib
import sys
import tempfile

import generate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", required=True, help="version of distributed, 2.23.0 or later")
    parser.add_argument("--python", help="an interpreter that has this release installed")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="directory to write to")
    arguments = parser.parse_args()
    if "DASKWIRE_GENERATE" not in os.environ:
        sys.exit(generate.run_inside(arguments))

    from release import Release

    release = Release()
    if release.name != arguments.release:
        sys.exit(f"{sys.executable} has distributed {release.name}, not {arguments.release}")
    with tempfile.TemporaryDirectory() as folder:
        connections = asyncio.run(session(folder))
    longest = max(connections, key=lambda sides: sum(map(len, sides)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for side, data in enumerate(longest):
        path = arguments.out / f"{release.generation}-{side}.stream.bin"
        path.write_bytes(data)
        described = release.describe_stream(bytes(data))
        path.with_suffix(".json").write_text(json.dumps(described, separators=(",", ":")) + "\n")
        print(f"{path}: {len(described['messages'])} messages, {len(data)} bytes")


async def session(folder):
    """Runs a session; the bytes of each of the client's connections, of both sides.

    `folder` is for the workers' files.
    """
    from distributed import Client, Scheduler, Worker

    connections = []

    async def carry(reader, writer, recorded):
        while data := await reader.read(1 << 16):
            recorded += data
            writer.write(data)
            await writer.drain()
        writer.close()

    async def forward(reader, writer):
        address = scheduler.address.removeprefix("tcp://").rsplit(":", 1)
        their_reader, their_writer = await asyncio.open_connection(*address)
        sides = (bytearray(), bytearray())
        connections.append(sides)
        await asyncio.gather(
            carry(reader, their_writer, sides[0]), carry(their_reader, writer, sides[1]), return_exceptions=True
        )

    options = {"host": "127.0.0.1", "dashboard_address": ":0"}
    async with Scheduler(port=0, **options) as scheduler:
        options |= {"nthreads": 1, "local_directory": folder}
        async with Worker(scheduler.address, **options), Worker(scheduler.address, **options):
            proxy = await asyncio.start_server(forward, "127.0.0.1", 0)
            port = proxy.sockets[0].getsockname()[1]
            async with Client(f"tcp://127.0.0.1:{port}", asynchronous=True) as client:
                total = client.submit(sum, client.map(abs, range(-5, 5)))
                length = client.submit(len, await client.scatter(bytes(1000)))
                failed = client.submit(divmod, 1, 0)
                assert await client.gather([total, length]) == [25, 1000]
                assert isinstance(await failed.exception(), ZeroDivisionError)
            proxy.close()
    return connections


if __name__ == "__main__":
    main()
