"""Peers that are no good scheduler, each at a port of its own.

    misbehave.py ROOM

ROOM is the length in bytes of the longest message that the firmware takes.
Prints `NAME PORT` for each of them, and ends with its standard input. Needs
nothing but the standard library.
"""

import pathlib
import random
import socket
import struct
import sys
import threading
import time

VECTORS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "vectors"
HANDSHAKE = (VECTORS / "modern-nosplit-2026.8.0/handshake.bin").read_bytes()


def message(body, announced=None):
    length = len(body) if announced is None else announced
    return struct.pack("<QQQ", 16 + length, 1, length) + body


def identity(length):
    """An identity of one worker in so many bytes."""
    head = b"\x82\xa2id\xa4full\xa7workers\x81\xa1w\xc6"
    rest = length - len(head) - 4
    return head + struct.pack(">I", rest) + bytes(rest)


def answer(connection, *messages):
    """Shakes hands, and answers when it has been asked."""
    connection.sendall(HANDSHAKE)
    asked = b""
    while b"identity" not in asked:
        asked += connection.recv(4096)
    for each in messages:
        connection.sendall(each)


def drip(connection):
    """A handshake that takes 30 seconds and more."""
    for byte in HANDSHAKE:
        connection.sendall(bytes([byte]))
        time.sleep(0.4)


ROOM = int(sys.argv[1])
PEERS = {
    "silent": lambda connection: None,
    "closing": lambda connection: connection.close(),
    "slow": drip,
    "web-server": lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "zeros": lambda connection: connection.sendall(bytes(4096)),
    "noise": lambda connection: connection.sendall(random.Random(1).randbytes(4096)),
    "no-handshake": lambda connection: connection.sendall(message(b"\x81\xa2op\xa5hello")),
    "full": lambda connection: answer(connection, message(identity(ROOM))),
    "too-long": lambda connection: answer(connection, message(identity(ROOM + 1))),
    "giant": lambda connection: answer(connection, message(b"", announced=1 << 40)),
    "refusing": lambda connection: answer(connection, message(b"\x82\xa6status\xa5error\xa4text\xa2no")),
    "broken": lambda connection: answer(connection, message(b"\x82\xa2id\xa2me\xa7workers\xdf\xff\xff\xff\xff")),
    "silent-later": lambda connection: answer(connection),
}


def serve(listener, peer):
    # Kept, for only the peer `closing` is to close.
    connections = []
    while True:
        connection, _ = listener.accept()
        connections.append(connection)
        try:
            peer(connection)
        except OSError:
            pass  # the firmware has left, as it should


for name, peer in PEERS.items():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(listener, peer), daemon=True).start()
    print(name, listener.getsockname()[1], flush=True)
print("ready", flush=True)
sys.stdin.read()
