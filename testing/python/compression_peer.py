"""Compresses and decompresses blocks with the codecs of Python.

Uses the records of exchange.py; the word after `ready` is the version of
python-lz4.

    {"op": "compress", "codec": NAME} and data
        The data, compressed as distributed compresses it.
    {"op": "decompress", "codec": NAME} and a block
        The decompressed data.
"""

import exchange  # noqa: I001

import lz4
from distributed.protocol.compression import compressions


def compress(question, data):
    return bytes(compressions[question["codec"]].compress(data))


def decompress(question, data):
    return bytes(compressions[question["codec"]].decompress(data))


if __name__ == "__main__":
    exchange.serve(lz4.__version__, {"compress": compress, "decompress": decompress})
