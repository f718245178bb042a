"""A comm of this release to a listener that echoes messages.

Usage: echo_client.py ADDRESS CA-FILE CERT KEY VERSION CLOSE LENGTH...

VERSION is 1.2 or 1.3; for a tcp:// address the four arguments before CLOSE are
ignored. For each LENGTH, a message with that many bytes is sent and must be echoed
unchanged. Then the comm is closed (CLOSE is `close`) or dropped without
closing (`abort`). Prints `ready` and the negotiated version of TLS.
"""

import asyncio
import os
import ssl
import sys
import warnings

warnings.simplefilter("ignore")

from distributed.comm import connect
from distributed.protocol import to_serialize
from distributed.security import Security


async def main():
    address, ca_file, cert, key, version, close, *lengths = sys.argv[1:]
    arguments = {}
    if address.startswith("tls://"):
        arguments = tls_arguments(ca_file, cert, key, version)
    comm = await connect(address, timeout=30, **arguments)
    for length in map(int, lengths):
        piece = os.urandom(min(length, 1 << 20))
        # If the length is a multiple of the piece, the slice does not copy.
        data = (piece * -(-length // len(piece)))[:length]
        await comm.write({"op": "echo", "data": to_serialize(data), "length": length})
        answer = await comm.read()
        assert answer == {"op": "echo", "data": data, "length": length}, length
        del data, answer
    spoken = comm.stream.socket.version() if arguments else "TCP"
    if close == "close":
        await comm.close()
    else:
        comm.abort()
    print(f"ready {spoken}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def tls_arguments(ca_file, cert, key, version):
    version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    security = Security(
        tls_ca_file=ca_file,
        tls_client_cert=cert,
        tls_client_key=key,
        tls_min_version=version,
        tls_max_version=version,
        require_encryption=True,
    )
    return security.get_connection_args("client")


if __name__ == "__main__":
    asyncio.run(main())
