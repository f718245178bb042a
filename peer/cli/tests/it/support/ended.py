"""Starts a process whose worker has ended meanwhile, as one that is stopped during its start."""

import importlib.util
import socket
import sys

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

own, other = socket.socketpair()
other.close()
worker.run(own)

# Unread data resets a connection.
own, other = socket.socketpair()
own.send(b"unread")
other.close()
worker.run(own)

print("passed")
