"""Posts messages while a thread sends, as a finalizer may that runs in this thread."""

import importlib.util
import socket
import sys

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)


def received(link):
    frames, _ = link.receive()
    return worker.read(frames)["op"]


own, other = (worker.Link(sock) for sock in socket.socketpair())
with own.lock:
    own.post({"op": "first"})
own.send(worker.write({"op": "second"}))
own.post({"op": "third"})
assert [received(other) for _ in range(3)] == ["first", "second", "third"]

# Log records are kept until the worker reads them, posted messages are not.
own.records.append([memoryview(worker.write({"op": "record"})[0])])
own.post({"op": "fourth"})
own.sends_records = True
own.post({"op": "fifth"})
assert [received(other) for _ in range(3)] == ["fourth", "fifth", "record"]

# A message may have values that are serialized in frames of their own.
own.post({"op": "stream", "message": {"value": worker.to_serialize([1]), "complex": 1j}})
frames, _ = other.receive()
message = worker.read(frames)["message"]
assert message["value"].load() == [1]
assert message["complex"].load() == 1j
print("passed")
