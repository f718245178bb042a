"""Tests that shared memory is reused once nothing else uses it, and not before."""

import array
import importlib.util
import os
import socket
import sys
import threading
import time
from mmap import ACCESS_COPY, mmap

import numpy

spec = importlib.util.spec_from_file_location("daskwire.worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

LEN = 1 << 20


def share(segments, fill, length=LEN):
    """Returns a descriptor of shared memory, and the inode that identifies the memory."""
    body = memoryview(b"short")
    descriptor, places = segments.share([body, memoryview(bytes([fill]) * length)])
    assert places == {1: 0}
    assert os.pread(descriptor, length, 0) == bytes([fill]) * length
    return descriptor, os.fstat(descriptor).st_ino


def is_refused(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return True


segments = worker.Segments(4 * LEN)
first, file = share(segments, 1)
assert segments.len == LEN
# The memory cannot be written by way of the descriptor.
for mode in (os.O_RDONLY, os.O_RDWR):
    other = os.open(f"/proc/self/fd/{first}", mode)
    assert is_refused(os.pwrite, other, b"x", 0)
    assert is_refused(os.ftruncate, other, 2 * LEN)
    assert is_refused(os.ftruncate, other, 0)
    assert is_refused(mmap, other, 0)
    os.close(other)

# Each of these keeps the memory in use, so that a later result does not change it: a
# descriptor, a mapping, a mapping in a forked process, and a message in transit.
mapped = mmap(first, 0, access=ACCESS_COPY)
_, second = share(segments, 2)
assert second != file
os.close(first)
assert share(segments, 3)[1] not in (file, second)
assert mapped[:] == bytes([1]) * LEN

end, other_end = os.pipe()
forked = os.fork()
if not forked:
    os.close(other_end)
    os.read(end, 1)
    os._exit(mapped[:] != bytes([1]) * LEN)
mapped.close()
assert share(segments, 4)[1] != file
os.close(other_end)
assert os.waitpid(forked, 0)[1] == 0

segments = worker.Segments(4 * LEN)
one, other = socket.socketpair()
first, file = share(segments, 5)
one.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [first]))])
os.close(first)
descriptor, second = share(segments, 6)
assert second != file
os.close(descriptor)
_, received, _, _ = socket.recv_fds(other, 1, 1)
mapped = mmap(received[0], 0, access=ACCESS_COPY)
assert mapped[:] == bytes([5]) * LEN

# Once nothing uses it, the memory is reused for results that fit.
descriptor, third = share(segments, 7, LEN - LEN // 8)
assert third == second
os.close(descriptor)
assert share(segments, 8, LEN // 2)[1] not in (file, second)
assert mapped[:] == bytes([5]) * LEN
os.close(received[0])
mapped.close()
descriptor, again = share(segments, 9)
assert again == file
view = mmap(descriptor, 0, access=ACCESS_COPY)

# The memory is limited in total. Released memory keeps its contents for existing mappings.
assert segments.len == 2 * LEN + LEN // 2
for _ in range(10):
    share(segments, 10)
    assert segments.len <= 4 * LEN
share(segments, 11, 5 * LEN)
assert segments.len <= 4 * LEN
segments.clear()
assert segments.len == 0
assert view[:] == bytes([9]) * LEN and is_refused(mmap, descriptor, 0)

# Memory is not reused if its descriptor now refers to another file.
segments = worker.Segments(4 * LEN)
descriptor, file = share(segments, 12)
os.dup2(os.memfd_create("other"), segments.segments[0].writer)
os.close(descriptor)
assert share(segments, 13)[1] != file

# Without leases, memory is never reused.
class Unknown(worker.Segment):
    def is_free(self):
        return True


worker.Segment = Unknown
segments = worker.Segments(4 * LEN)
descriptor, file = share(segments, 12)
os.close(descriptor)
assert share(segments, 13)[1] != file and segments.len == 0

# Long frames are copied by several threads, as many as the system allows. All parts are copied
# afterwards, also if a thread is slow.
def slow(*part, copyto=numpy.copyto):
    is_helper = threading.current_thread() is not threading.main_thread()
    time.sleep(0.05 if is_helper else 0.002)
    copyto(*part)


def start(work, arguments):
    attempts.append(work)
    if len(attempts) > allowed:
        raise RuntimeError("can't start new thread")
    threading.Thread(target=work).start()


def copied(source):
    target = mmap(-1, len(source) + 1)
    with memoryview(target) as view:
        worker.copy(view[: len(source)], memoryview(source))
    assert target[:] == source + bytes(1)
    target.close()


numpy.copyto = slow
worker._thread.start_new_thread = start
os.sched_getaffinity = lambda process: range(3)
source = bytes(range(251)) * (9 * worker.COPIED_AT_ONCE // 251)
for allowed, attempted in ((2, 2), (1, 2), (0, 1)):
    attempts = []
    copied(source)
    assert len(attempts) == attempted
# A thread that starts late finds nothing to do, and does not keep the memory in use.
late = []
worker._thread.start_new_thread = lambda work, arguments: late.append(work)
copied(source)
for work in late:
    work()
# Short frames, and those in a process without numpy, are copied by one thread.
late.clear()
copied(source[: 2 * worker.COPIED_AT_ONCE - 1])
sys.modules["numpy"] = None
copied(source)
assert not late
print("passed")
