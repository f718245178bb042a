"""A listener of the release of this environment that echoes messages.

Prints `ready tcp://127.0.0.1:PORT`. Handshake, framing and messages are those of the
release. Payloads are not deserialized, so they are echoed in the way a scheduler
forwards them. Two messages have fixed replies:

    {"op": "known"}    {"status": "OK", "array": arange(6.).reshape(2, 3),
                        "bytes": b"daskwire" * 2000, "n": 7}, the array and the
                       bytes as payloads
    {"op": "close"}    none: the connection is closed
"""

import asyncio
import sys
import warnings

warnings.simplefilter("ignore")

import numpy
from distributed.comm import CommClosedError, listen
from distributed.protocol import to_serialize


def known():
    array = numpy.arange(6.0).reshape(2, 3)
    return {"status": "OK", "array": to_serialize(array), "bytes": to_serialize(b"daskwire" * 2000), "n": 7}


async def answer(comm):
    try:
        while True:
            message = await comm.read()
            op = message.get("op") if isinstance(message, dict) else None
            if op == "close":
                break
            await comm.write(known() if op == "known" else message)
    except CommClosedError:
        pass
    await comm.close()


async def main():
    async with listen("tcp://127.0.0.1:0", answer, deserialize=False) as listener:
        print(f"ready {listener.contact_address}", flush=True)
        # The process ends with its parent, even if the parent was killed.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
