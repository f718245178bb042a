"""A comm of this release to a tls:// listener that sends back what it gets.

Usage: tls_client.py ADDRESS CA-FILE CERT KEY VERSION CLOSE LENGTH...

VERSION is 1.2 or 1.3. For each LENGTH a message with that many bytes in it goes
there and has to come back the same. Then the comm is closed (CLOSE is `close`)
or dropped without a word (`abort`). Prints `ready` and the version of TLS that
was spoken.
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
    version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
    security = Security(
        tls_ca_file=ca_file,
        tls_client_cert=cert,
        tls_client_key=key,
        tls_min_version=version,
        tls_max_version=version,
        require_encryption=True,
    )
    comm = await connect(address, timeout=30, **security.get_connection_args("client"))
    for length in lengths:
        data = os.urandom(int(length))
        await comm.write({"op": "echo", "data": to_serialize(data), "length": length})
        answer = await comm.read()
        assert answer == {"op": "echo", "data": data, "length": length}, length
    spoken = comm.stream.socket.version()
    if close == "close":
        await comm.close()
    else:
        comm.abort()
    print(f"ready {spoken}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
