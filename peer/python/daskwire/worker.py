"""Runs Python tasks for a worker in Rust.

The worker (`daskwire worker --python`) starts a process of this module, the template,
which forks a process for each thread of the worker. The worker sends such a process
tasks with their inputs, and receives the results. The process only runs tasks: the
worker communicates with the scheduler and with its peers, and stores the data.

Worker and process exchange Dask messages over a socket, each a list of frames.
Long frames stay in shared memory (memfd), and only a descriptor of it is sent.
Received memory is mapped copy-on-write, so that a task may write to its inputs, as in
Dask, without changing them for other tasks.

A scheduler (`daskwire scheduler --python`) has helpers instead, which run `scheduler.py`.

One further process is the host, started on demand. It runs code that has state or
answers peers: plugins, P2P shuffles, actors, and the functions of `Client.run`. Its
`Host` object is a worker of distributed that was never started; the worker in Rust
passes it sockets on which requests of peers, or tasks, arrive.

With `--python-processes`, there are only hosts, of which the first is the one that answers
peers, and all tasks are run by their threads. These share a cache, and keep results that
cannot be pickled.

Only distributed and its dependencies are imported.
"""

from __future__ import annotations

import _thread
import array
import asyncio
import contextlib
import contextvars
import ctypes
import errno
import fcntl
import functools
import gc
import hashlib
import importlib
import inspect
import logging
import mmap
import os
import pickle as builtin_pickle
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping
from time import sleep, thread_time
from types import CoroutineType, FunctionType, ModuleType, SimpleNamespace
from urllib.parse import urlsplit

import msgpack

import dask
from dask.base import tokenize
from dask.utils import SerializableLock, parse_timedelta, typename

import distributed.comm.tcp
import distributed.threadpoolexecutor
import distributed.worker
from distributed import Reschedule
from distributed.actor import Actor
from distributed.comm.core import Listener
from distributed.core import ConnectionPool, PooledRPCCall, Status, error_message, rpc
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import monotonic, time
from distributed.preloading import process_preloads
from distributed.protocol import dumps, pickle, to_serialize
from distributed.protocol.compression import decompress
from distributed.protocol.serialize import (
    _is_dumpable,
    merge_and_deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    serialize_and_split,
)
from distributed.protocol.utils import msgpack_opts
from distributed.sizeof import safe_sizeof
from distributed.utils import (
    LoopRunner,
    ensure_memoryview,
    import_file,
    in_async_call,
    sync,
    thread_state,
)
from distributed.worker_state_machine import TaskState
from tornado.iostream import IOStream

logger = logging.getLogger("distributed.worker")

# Without Dask's meters, which take longer than a small task.
serialize_and_split = inspect.unwrap(serialize_and_split)
merge_and_deserialize = inspect.unwrap(merge_and_deserialize)
decompress = inspect.unwrap(decompress)

# The layout of a message, as in link.rs: the number of frames, the number of
# descriptors, and the length of the inline frames; for each frame the index of its
# descriptor, or -1 if it is inline, its offset and its length; the inline frames.
HEAD = struct.Struct("<IIQ")
ENTRY = struct.Struct("<qQQ")
MAX_DESCRIPTORS = 200
LONG = 64 << 10

# A plain number: operations of `enum` take longer than the system call.
MSG_CTRUNC = int(socket.MSG_CTRUNC)

# The layout of the timeout of a socket, which 32-bit systems with 64-bit times changed.
SO_RCVTIMEO_NEW = 66
TIMEVAL = struct.Struct("@qq" if socket.SO_RCVTIMEO == SO_RCVTIMEO_NEW else "@ll")

# Length in bytes of what is received with one system call: several short messages.
RECEIVED_AT_ONCE = 16 << 10

# Maximum length in bytes of the headers whose parsed form is kept.
MAX_CACHED_HEADER = 256

# Length in bytes of the inputs of which short results are not cached.
MAX_VIEWED = 1 << 20

# Without this option, each mapping holds a duplicate of the descriptor.
UNTRACKED = {"trackfd": False} if sys.version_info >= (3, 13) else {}
ALIGNMENT = 64

# Time in seconds for which an idle process keeps memory for reuse, as in process.rs.
MEMORY_KEPT = 2

# Minimum timeout of a link in seconds: a shorter one would be rounded to none.
MIN_TIMEOUT = 0.001

# Length in bytes of the parts of a frame that several threads copy, and their maximum number.
COPIED_AT_ONCE = 4 << 20
MAX_COPYING = 4

# From Linux's fcntl.h. Older versions of Python lack some of them.
F_SETSIG = 10
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
F_ADD_SEALS = 1033
SEAL_SHRINK, SEAL_GROW = 0x0002, 0x0004
SEAL_WRITE, SEAL_FUTURE_WRITE = 0x0008, 0x0010
SEALS = SEAL_SHRINK | SEAL_GROW


class Link:
    """Messages over a socket."""

    def __init__(self, sock):
        self.sock = sock
        self.buffer = memoryview(bytearray(RECEIVED_AT_ONCE))
        # The part of the buffer that is not in a message yet.
        self.unread = self.buffer[:0]
        # Received in the order of their messages.
        self.descriptors = deque()
        self.lock = threading.Lock()
        # Messages to send before the next one.
        self.posted = deque()
        # Log records to send. The worker reads messages of a process only while it runs a
        # task. Until then, the last records are kept, so that no thread waits to log.
        self.records = deque(maxlen=100)
        self.sends_records = False
        self.timeout = 0
        # Called if nothing has arrived for the time of `set_timeout`.
        self.on_timeout = None

    def set_timeout(self, seconds):
        """Sets the time in seconds after which `receive` calls `on_timeout`. 0: never."""
        if seconds != self.timeout:
            self.timeout = seconds
            # Unlike a timeout of Python's, this one takes no system call for each message.
            option = TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, option)

    def receive(self):
        """Waits for a message, and returns its frames and its descriptors."""
        frame_count, descriptor_count, length = HEAD.unpack(self._take(HEAD.size))
        descriptors = self._take_descriptors(descriptor_count) if descriptor_count else []
        table = self._take(frame_count * ENTRY.size)
        rest = self._take(length)
        maps = {}
        frames = []
        for index, offset, length in ENTRY.iter_unpack(table):
            if index < 0:
                frames.append(rest[offset : offset + length])
                continue
            if index not in maps:
                mapped = mmap.mmap(
                    descriptors[index], 0, access=mmap.ACCESS_COPY, **UNTRACKED
                )
                maps[index] = memoryview(mapped)
            frames.append(maps[index][offset : offset + length])
        return frames, descriptors

    def _take_descriptors(self, count):
        # The first descriptors come with the head, and up to as many with each byte after it.
        self._take((count - 1) // MAX_DESCRIPTORS)
        if len(self.descriptors) < count:
            raise OSError("descriptors are missing")
        return [self.descriptors.popleft() for _ in range(count)]

    def _take(self, count):
        """Returns the next bytes, in memory of their own: a value may refer to it."""
        unread = self.unread
        if count <= len(unread):
            self.unread = unread[count:]
            return memoryview(bytearray(unread[:count]))
        taken = memoryview(bytearray(count))
        end = 0
        while end < count:
            if not self.unread:
                self._receive_more()
            part = self.unread[: count - end]
            taken[end : end + len(part)] = part
            self.unread = self.unread[len(part) :]
            end += len(part)
        return taken

    def _receive_more(self):
        # The system returns bytes of one message with descriptors at most.
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        while True:
            try:
                count, ancillary, flags, _ = self.sock.recvmsg_into(
                    [self.buffer], space, socket.MSG_CMSG_CLOEXEC
                )
                break
            except BlockingIOError:
                self.on_timeout()
        if not count:
            raise EOFError
        if flags & MSG_CTRUNC:
            raise OSError("too many open files: descriptors are missing")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.extend(array.array("i", data[: len(data) - len(data) % 4]))
        self.unread = self.buffer[:count]

    def send(self, frames, shared=None):
        """Sends a message. May be called by several threads.

        `shared` is the descriptor of shared memory that contains the long frames, and
        their offsets there, by index. The descriptor is closed. Processes that were forked
        send nothing: they have no link, but may print with the plugins of this one.
        """
        if self.sock.fileno() < 0:
            return
        frames = [ensure_memoryview(frame) for frame in frames]
        descriptor, places = shared or share_alone(frames)
        table = bytearray()
        rest = []
        length = 0
        for index, frame in enumerate(frames):
            if index in places:
                table += ENTRY.pack(0, places[index], frame.nbytes)
                continue
            table += ENTRY.pack(-1, length, frame.nbytes)
            rest.append(frame)
            length += frame.nbytes
        descriptors = [] if descriptor is None else [descriptor]
        head = HEAD.pack(len(frames), len(descriptors), length)
        rights = []
        if descriptors:
            rights = [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            ]
        data = b"".join([head, table, *rest])
        try:
            with self.lock:
                self._send_queue(self.posted)
                sent = self.sock.sendmsg([data], rights)
                if sent < len(data):
                    self.sock.sendall(memoryview(data)[sent:])
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self.send_queues()

    def post(self, message):
        """Sends a short message. If another thread is sending, that thread sends it afterwards."""
        frames = dumps(message, context={"compression": False})
        self.posted.append([ensure_memoryview(frame) for frame in frames])
        self.send_queues()

    def send_queues(self):
        """Sends posted messages and log records, unless a thread is sending, which does so
        afterwards.

        Does not wait for the lock: this thread may have it, and log in a finalizer.
        """
        while self.posted or (self.sends_records and self.records):
            if not self.lock.acquire(blocking=False):
                return
            try:
                self._send_queue(self.posted)
                if self.sends_records:
                    self._send_queue(self.records)
            except OSError:
                # The worker has ended, and this process is about to.
                self.posted.clear()
                self.sends_records = False
            finally:
                self.lock.release()

    def _send_queue(self, queue):
        while queue:
            frames = queue.popleft()
            if self.sock.fileno() >= 0:
                table = bytearray()
                length = 0
                for frame in frames:
                    table += ENTRY.pack(-1, length, frame.nbytes)
                    length += frame.nbytes
                head = HEAD.pack(len(frames), 0, length)
                self.sock.sendall(b"".join([head, table, *frames]))


def place(frames):
    """Returns the offsets of long frames in shared memory, by index, and its length."""
    places = {}
    length = 0
    for index, frame in enumerate(frames):
        if frame.nbytes >= LONG:
            places[index] = length
            length += -(-frame.nbytes // ALIGNMENT) * ALIGNMENT
    return places, length


def fill(frames, places, length):
    """Copies frames to new shared memory, and returns its descriptor, not sealed yet."""
    descriptor = os.memfd_create("daskwire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, length)
        for index, offset in places.items():
            left = frames[index]
            while left:
                count = os.pwrite(descriptor, left, offset)
                left = left[count:]
                offset += count
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def seal(descriptor):
    """Seals shared memory. The worker maps it, and relies on it never changing."""
    try:
        fcntl.fcntl(descriptor, F_ADD_SEALS, SEALS | SEAL_WRITE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def share_alone(frames):
    """Copies long frames to new shared memory, if the system provides it.

    Returns its descriptor, and the offsets of the copied frames, by index. Without
    shared memory, these are `None` and an empty dict.
    """
    places, length = place(frames)
    if places:
        with contextlib.suppress(OSError):
            return seal(fill(frames, places, length)), places
    return None, {}


def copy(target, source):
    """Copies a frame, a long one with several threads if numpy is loaded.

    One processor alone does not use all of the memory's bandwidth.
    """
    numpy = sys.modules.get("numpy")
    threads = min(len(os.sched_getaffinity(0)), MAX_COPYING)
    if numpy is None or threads == 1 or source.nbytes < 2 * COPIED_AT_ONCE:
        target[:] = source
        return
    count = -(-source.nbytes // COPIED_AT_ONCE)
    # Unlike a memoryview, numpy copies without the GIL.
    target = numpy.array_split(numpy.frombuffer(target, "u1"), count)
    source = numpy.array_split(numpy.frombuffer(source, "u1"), count)
    parts = iter(list(zip(target, source)))
    copied = threading.Semaphore(0)

    def work():
        for part in parts:
            numpy.copyto(*part)
            # Before the caller may close the memory.
            del part
            copied.release()

    # If the processors are busy, a thread may start when all is copied. Nothing waits for it.
    with contextlib.suppress(RuntimeError):
        for _ in range(threads - 1):
            _thread.start_new_thread(work, ())
    work()
    for _ in range(count):
        copied.acquire()


class Segment:
    """Shared memory that only this process can write to."""

    def __init__(self, descriptor, length):
        self.length = length
        # Opened anew: for leases, the system counts how often a file was opened, which
        # excludes duplicates of a descriptor and mappings of it.
        path = f"/proc/self/fd/{descriptor}"
        self.writer = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.identity = os.fstat(self.writer).st_ino
            self.map = mmap.mmap(self.writer, length, **UNTRACKED)
            try:
                # With this seal, only the existing mapping can be written to.
                fcntl.fcntl(self.writer, F_ADD_SEALS, SEALS | SEAL_FUTURE_WRITE)
            except BaseException:
                self.map.close()
                raise
        except BaseException:
            os.close(self.writer)
            raise

    def reader(self):
        """Opens a read-only descriptor for other processes."""
        return os.open(f"/proc/self/fd/{self.writer}", os.O_RDONLY | os.O_CLOEXEC)

    def is_free(self):
        """Returns whether no reader has the memory open or mapped.

        The system grants a lease for writing only then. Descriptors of `reader` count
        wherever they are: in the worker, in other processes and those that they have
        forked, in mappings, and in messages that are not received yet.
        """
        try:
            # A task may have closed the descriptor, and opened another file.
            if os.fstat(self.writer).st_ino != self.identity:
                return False
            # Another program may open the file while there is a lease. The default signal for
            # this would end the process; this one is ignored.
            fcntl.fcntl(self.writer, F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.writer, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(self.writer, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    def fill(self, frames, places):
        with memoryview(self.map) as view:
            for index, offset in places.items():
                frame = frames[index]
                copy(view[offset : offset + frame.nbytes], frame)

    def close(self):
        self.map.close()
        os.close(self.writer)


class Segments:
    """Shared memory that is reused when no other process uses it any more.

    The system takes several times as long to provide new memory as to copy to it.
    """

    MAX_LEN = 256 << 20
    MIN_SHARED = 256 << 10
    MAX_COUNT = 32

    def __init__(self, max_len):
        self.max_len = min(max_len, self.MAX_LEN)
        self.len = 0
        # The most recently used last.
        self.segments = []

    def share(self, frames):
        """Copies long frames to shared memory.

        Returns its descriptor, and the offsets of the copied frames, by index. The
        descriptor is `None` if no frame was copied.
        """
        places, length = place(frames)
        if not places:
            return None, places
        # A segment much longer than the result is left for longer ones.
        fits = range(length, length + length // 4 + 1)
        for segment in self.segments:
            if segment.length in fits and segment.is_free():
                segment.fill(frames, places)
                try:
                    descriptor = segment.reader()
                except OSError:
                    break
                self.segments.remove(segment)
                self.segments.append(segment)
                return descriptor, places
        try:
            descriptor = fill(frames, places, length)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # All frames are sent through the socket.
                return None, {}
            raise MemoryError(f"no shared memory for {length} bytes: {error}") from None
        if self.MIN_SHARED <= length <= self.max_len:
            reader = self._keep(descriptor, length)
            if reader is not None:
                os.close(descriptor)
                return reader, places
        return seal(descriptor), places

    def _keep(self, descriptor, length):
        """Keeps new memory for reuse. Returns a read-only descriptor, or `None` on failure."""
        try:
            segment = Segment(descriptor, length)
        except OSError:
            return None
        try:
            was_free = segment.is_free()
            reader = segment.reader()
        except OSError:
            segment.close()
            return None
        if not was_free or segment.is_free():
            # The system does not tell whether others use the memory, so it is never reused.
            self.max_len = 0
            os.close(reader)
            segment.close()
            return None
        self.segments.append(segment)
        self.len += length
        self._limit()
        return reader

    def _limit(self):
        """Closes segments until the limits are met, preferably those that are free."""
        while self.len > self.max_len or len(self.segments) > self.MAX_COUNT:
            others = self.segments[:-1]
            free = (segment for segment in others if segment.is_free())
            segment = next(free, others[0])
            self.segments.remove(segment)
            self.len -= segment.length
            segment.close()

    def clear(self):
        """Closes all segments. Readers keep the memory that they have open or mapped."""
        for segment in self.segments:
            segment.close()
        self.segments.clear()
        self.len = 0


class ProcessLock:
    """A lock like `threading.Lock`, which also excludes the other processes of the worker.

    It locks a byte of a file that all of them have open. The system unlocks it when the
    process ends.
    """

    # The layout of `struct flock`: type, origin, start, length, process.
    LAYOUT = struct.Struct("@hhqqi")
    # Maximum pause in seconds between two attempts of an `acquire` with a timeout.
    MAX_PAUSE = 0.01
    # The file; `None` before a process has received it.
    file = None

    @classmethod
    def open(cls, descriptor):
        """Opens the file of a descriptor.

        The locks belong to this opening, not to the process or the thread.
        """
        cls.file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)

    @classmethod
    def forked(cls):
        """Opens the file anew, so that a forked process does not share its parent's locks."""
        inherited = cls.file
        if inherited is not None:
            cls.open(inherited)
            os.close(inherited)

    def __init__(self, token):
        # Equal for equal tokens in all processes.
        name = token if isinstance(token, str) else tokenize(token)
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8)
        self.byte = int.from_bytes(digest.digest(), "big") >> 2
        # Excludes the threads of this process.
        self.lock = threading.Lock()

    def acquire(self, blocking=True, timeout=-1):
        deadline = monotonic() + timeout
        # Checks the arguments, too.
        if not self.lock.acquire(blocking, timeout):
            return False
        try:
            is_acquired = self._exclude_processes(blocking, timeout, deadline)
        except BaseException:
            self.lock.release()
            raise
        if not is_acquired:
            self.lock.release()
        return is_acquired

    def _exclude_processes(self, blocking, timeout, deadline):
        if blocking and timeout < 0:
            self._control(F_OFD_SETLKW, fcntl.F_WRLCK)
            return True
        pause = 0.001
        while True:
            try:
                self._control(F_OFD_SETLK, fcntl.F_WRLCK)
                return True
            except BlockingIOError:
                left = deadline - monotonic() if blocking else 0
                if left <= 0:
                    return False
            sleep(min(pause, left))
            pause = min(2 * pause, self.MAX_PAUSE)

    def release(self):
        if not self.lock.locked():
            raise RuntimeError("release unlocked lock")
        self._control(F_OFD_SETLK, fcntl.F_UNLCK)
        self.lock.release()

    def locked(self):
        return self.lock.locked() or self._control(F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK

    def _control(self, operation, kind):
        """Calls the system for the byte of this lock. Returns the kind of lock in the answer."""
        if self.file is None:
            return fcntl.F_UNLCK
        request = self.LAYOUT.pack(kind, os.SEEK_SET, self.byte, 1, 0)
        return self.LAYOUT.unpack(fcntl.fcntl(self.file, operation, request))[0]

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


def share_serializable_locks():
    """Makes Dask's `SerializableLock` exclude tasks in all processes of the worker.

    Dask relies on all tasks being threads of one process.
    """
    locks = weakref.WeakValueDictionary()
    # Reentrant: a finalizer may create a lock, too.
    creating = threading.RLock()

    def __init__(self, token=None):
        self.token = token or str(uuid.uuid4())
        with creating:
            lock = locks.get(self.token)
            if lock is None:
                lock = locks[self.token] = ProcessLock(self.token)
            self.lock = lock

    SerializableLock.__init__ = __init__


LIBC = ctypes.CDLL(None)


class MallocInfo(ctypes.Structure):
    """What `mallinfo2` of glibc 2.33 and later returns."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        ).split()
    ]


class Heap:
    """Memory of the C library, which keeps what tasks have freed for their next values.

    By default, the C library returns the memory of a large array to the system as soon as
    it is freed. The system clears the memory of the next one, which takes as long as many
    computations with it.
    """

    # From malloc.h of glibc.
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
    # Maximum length of values whose memory is kept. Longer ones get memory of their own, which
    # the system clears only when it is used: not at once, as the C library would have to.
    MAX_VALUE = 128 << 20
    # The same in versions of glibc before 2.35.
    OLD_MAX_VALUE = 32 << 20
    # Less is not worth keeping: glibc itself keeps values of up to 128 KiB.
    MIN_LEN = 1 << 20
    # glibc's thresholds, in Dask's workers and by default.
    TRIM_THRESHOLD, MMAP_THRESHOLD = 65536, 128 << 10
    # Minimum time in seconds between two measurements, which visit all free memory.
    INTERVAL = 0.1

    def __init__(self, max_len):
        """Keeps `max_len` bytes of freed memory, if the C library is glibc."""
        self.max_len = max_len
        # Whether memory may have been freed since it was last returned.
        self.is_used = False
        self.returns_at_once = False
        self.measured_at = 0
        # The memory of Python itself, which changes little.
        self.other = 0
        functions = ("mallinfo2", "mallopt", "malloc_trim")
        self.is_kept = (
            max_len >= self.MIN_LEN
            and not self.is_set("mmap_max", "mmap_threshold", "trim_threshold")
            and all(hasattr(LIBC, name) for name in functions)
        )
        if self.is_kept:
            LIBC.mallinfo2.restype = MallocInfo
            LIBC.malloc_trim.argtypes = [ctypes.c_size_t]
            # `malloc_trim` does not return the ends of other arenas, which threads get.
            if not self.is_set("arena_max"):
                LIBC.mallopt(self.M_ARENA_MAX, 1)
            self.keep()
            self.trim()
            # Modules that are preloaded may free memory.
            self.is_used = True

    def is_set(self, *names):
        """Returns whether the user has set any of these parameters of glibc's allocator."""
        variables = dict(os.environ)
        if variables.get("MALLOC_TRIM_THRESHOLD_") == str(self.TRIM_THRESHOLD):
            # By Dask's default configuration.
            del variables["MALLOC_TRIM_THRESHOLD_"]
        tunables = variables.get("GLIBC_TUNABLES", "")
        variables = {name.rstrip("_") for name in variables}
        return any(
            f"glibc.malloc.{name}=" in tunables or f"MALLOC_{name.upper()}" in variables
            for name in names
        )

    def keep(self):
        """Keeps memory that is freed from now on."""
        self.returns_at_once = False
        if self.is_kept:
            length = min(self.max_len, self.MAX_VALUE)
            if not LIBC.mallopt(self.M_MMAP_THRESHOLD, length):
                LIBC.mallopt(self.M_MMAP_THRESHOLD, min(length, self.OLD_MAX_VALUE))
            LIBC.mallopt(self.M_TRIM_THRESHOLD, min(self.max_len, 0x7FFF_FFFF))

    def return_at_once(self):
        """Returns free memory to the system, and also what is freed from now on."""
        self.returns_at_once = True
        if self.is_kept:
            LIBC.mallopt(self.M_MMAP_THRESHOLD, self.MMAP_THRESHOLD)
            LIBC.mallopt(self.M_TRIM_THRESHOLD, self.TRIM_THRESHOLD)
            self.trim()

    def limit(self, now):
        """Returns memory to the system if more than the limit is free, after a task."""
        self.is_used = self.is_kept
        if self.is_kept and now - self.measured_at >= self.INTERVAL:
            self.measured_at = now
            other = self.measure()
            if other - self.other > self.max_len:
                self.trim()
            else:
                self.other = min(self.other, other)

    def trim(self):
        """Returns all free memory to the system."""
        if self.is_kept:
            self.is_used = False
            LIBC.malloc_trim(0)
            self.other = self.measure()

    def measure(self):
        """Returns the length of this process's memory that is in no value of the C library."""
        info = LIBC.mallinfo2()
        try:
            with open("/proc/self/statm") as statm:
                _, resident, shared, *_ = map(int, statm.read().split())
        except OSError:
            # The process has no descriptor left.
            return self.other
        return (resident - shared) * mmap.PAGESIZE - info.uordblks - info.hblkhd


class Payload:
    """A serialized value of a message."""

    __slots__ = ("kind", "header", "fields", "frames")

    def __init__(self, kind, header, fields, frames):
        self.kind = kind
        self.header = header
        # The header, without conversion of its extension types.
        self.fields = fields
        self.frames = frames

    @property
    def nbytes(self):
        return sum(frame.nbytes for frame in self.frames)

    def load(self):
        # Most tasks and small values are one pickle.
        fields = self.fields
        is_pickle = fields.get("serializer") == "pickle" and len(self.frames) == 1
        if is_pickle and not any(fields.get("compression") or ()):
            return pickle.loads(self.frames[0])
        if self.kind == "__Pickled__":
            header = msgpack.loads(self.header)
            frames = decompress(header, self.frames)
            return pickle.loads(header["pickled-obj"], buffers=frames)
        header = msgpack.loads(
            self.header,
            object_hook=msgpack_decode_default,
            use_list=False,
            **msgpack_opts,
        )
        frames = self.frames
        if "compression" in header:
            frames = decompress(header, frames)
        return merge_and_deserialize(header, frames)


def read_header(header):
    """Parses the header of a payload. The result must not be changed."""
    if len(header) <= MAX_CACHED_HEADER:
        return read_short_header(bytes(header))
    return msgpack.loads(header, strict_map_key=False)


@functools.lru_cache(100)
def read_short_header(header):
    """Parses a header, once if it is that of many payloads, such as most tasks."""
    return msgpack.loads(header, strict_map_key=False)


def read(frames):
    """Parses the body of a message, without deserializing its payloads."""

    def decode(obj):
        # Most tasks have no inputs.
        if not obj:
            return obj
        for kind in ("__Serialized__", "__Pickled__"):
            index = obj.get(kind, 0)
            if index:
                header = frames[index]
                fields = read_header(header)
                end = index + 1 + fields["num-sub-frames"]
                return Payload(kind, header, fields, frames[index + 1 : end])
        return msgpack_decode_default(obj)

    return msgpack.loads(frames[0], object_hook=decode, use_list=False, **msgpack_opts)


def write(message, *frames):
    """Encodes a message, and returns its frames."""
    body = msgpack.dumps(message, default=msgpack_encode_default, use_bin_type=True)
    return [body, *frames]


# Types of frequent results that Dask pickles, with the same header for all of them.
SCALARS = {type(None), bool, int, float, complex, str}


def serialize(value):
    """Returns the header and the frames of a value, as Dask serializes it."""
    if type(value) in SCALARS:
        frame = builtin_pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if len(frame) < LONG:
            return scalar_header(), [memoryview(frame)]
    return serialize_with_dask(value)


def serialize_with_dask(value):
    """Like `serialize`, by Dask's functions for values of any type."""
    header, frames = serialize_and_split(to_serialize(value), on_error="raise", context={})
    header["num-sub-frames"] = len(frames)
    header = msgpack.dumps(header, default=msgpack_encode_default, use_bin_type=True)
    return memoryview(header), [ensure_memoryview(frame) for frame in frames]


@functools.cache
def scalar_header():
    """Returns the header of a scalar."""
    header, _ = serialize_with_dask(None)
    return header


class Quiet(threading.local):
    """Keeps Dask from logging that a result cannot be pickled.

    It is kept in the process, or the error is that of its task.
    """

    is_entered = False

    def __enter__(self):
        self.is_entered = True

    def __exit__(self, *_):
        self.is_entered = False

    def filter(self, _):
        return not self.is_entered


quiet = Quiet()
logging.getLogger(pickle.__name__).addFilter(quiet)

importing = threading.RLock()

# Maximum time in seconds for which a thread waits for others that load.
MAX_LOADING = 10


@contextlib.contextmanager
def loading():
    """Lets one thread at a time load a task or an input, all of which Dask loads on one thread.

    Otherwise, a task could use a module of a package that another thread still imports. Does not
    wait without end: what another thread loads may itself wait for this one.
    """
    is_alone = importing.acquire(timeout=MAX_LOADING)
    try:
        yield
    finally:
        if is_alone:
            importing.release()


def serialize_failure(value, error):
    """Returns the header and the frames that Dask sends for a value that cannot be pickled.

    The receiver raises an exception when it loads them.
    """
    name = type(value).__name__
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    text = f"Could not serialize object of type {name}\n{trace[:10_000]}"
    while error is not None:
        # They refer to the value.
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    header = {"serializer": "error", "num-sub-frames": 1}
    return memoryview(msgpack.dumps(header)), [memoryview(text.encode(errors="replace"))]


def describe_unpicklable(value, error):
    """Returns the error of a result that cannot be pickled, where no process may keep it."""
    return TypeError(
        f"the result, of type {typename(type(value))}, cannot be pickled. With "
        "--python-processes 1, the worker keeps such results in its process for other tasks, as "
        f"Dask's workers do. {error}"
    )


class Cache:
    """Values that tasks have used or produced, the least recently used first."""

    def __init__(self, max_len):
        self.max_len = max_len
        self.len = 0
        self.values = OrderedDict()

    def get(self, key):
        value, _ = self.values[key]
        self.values.move_to_end(key)
        return value

    def length(self, key):
        return self.values[key][1]

    def put(self, key, value, length):
        """Stores a value. Returns the keys of the values that are not cached any more."""
        # An estimate of the overhead of an entry, in bytes.
        length += 256
        self.remove(key)
        if length > self.max_len:
            return [key]
        self.values[key] = value, length
        self.len += length
        gone = []
        while self.len > self.max_len:
            other, (_, length) = self.values.popitem(last=False)
            self.len -= length
            gone.append(other)
        return gone

    def remove(self, key):
        _, length = self.values.pop(key, (None, 0))
        self.len -= length


class SharedCache:
    """The cache of a host, for all of its threads, the least recently used value first.

    The worker sends all inputs with each task. Their numbers tell whether a value is that of
    the input: a key may be computed again.
    """

    def __init__(self, max_len):
        self.max_len = max_len
        self.len = 0
        # The number, the value and its length, by key.
        self.values = OrderedDict()
        # The keys and numbers of inputs that a thread is loading.
        self.loading = set()
        self.changed = threading.Condition()

    def load(self, key, number, load):
        """Returns a value: one that is cached, or that of `load`, which also returns its length.

        Waits for another thread that loads the value.
        """
        with self.changed:
            self.changed.wait_for(lambda: (key, number) not in self.loading)
            if key in self.values and self.values[key][0] == number:
                self.values.move_to_end(key)
                return self.values[key][1]
            self.loading.add((key, number))
        try:
            value, length = load()
            self.put(key, value, length, number)
            return value
        finally:
            with self.changed:
                self.loading.discard((key, number))
                self.changed.notify_all()

    def put(self, key, value, length, number):
        """Stores a value, unless there is a later one."""
        # An estimate of the overhead of an entry, in bytes.
        length += 256
        # Freed without the lock: finalizers may wait for other threads.
        gone = []
        with self.changed:
            if key in self.values and self.values[key][0] > number:
                return
            gone.append(self._pop(key))
            if length <= self.max_len:
                self.values[key] = number, value, length
                self.len += length
            while self.len > self.max_len:
                gone.append(self._pop(next(iter(self.values))))

    def remove(self, key):
        with self.changed:
            gone = self._pop(key)
        del gone

    def _pop(self, key):
        number, value, length = self.values.pop(key, (0, None, 0))
        self.len -= length
        return value

    def clear(self):
        with self.changed:
            values, self.values = self.values, OrderedDict()
            self.len = 0
        del values


class LogHandler(logging.Handler):
    """Copies records to the log of the worker, as formatted by a worker in Python."""

    MAX_LEN = 10_000

    def __init__(self, link):
        super().__init__()
        self.setFormatter(logging.Formatter(dask.config.get("distributed.admin.log-format")))
        self.link = link
        logger.addHandler(self)

    def handle(self, record):
        # Without the lock of the handler: a thread that sends may log in a finalizer.
        if self.filter(record):
            self.emit(record)

    def emit(self, record):
        try:
            # Records may have values of any type, which the worker would refuse.
            message = {
                "op": "log",
                "created": float(record.created),
                "level": str(record.levelname),
                "text": self.format(record)[: self.MAX_LEN],
            }
            (body,) = write(message)
            record = [memoryview(body)]
        except Exception:
            self.handleError(record)
        else:
            self.link.records.append(record)
            self.link.send_queues()


class NeedsHost(BaseException):
    """Moves the running task to the host."""


class Plugins(dict):
    """The plugins of a process that is not the host."""

    def __missing__(self, name):
        if name == "shuffle":
            raise NeedsHost
        raise KeyError(name)


class KnownTasks(Mapping):
    """The tasks that a process knows, as in Dask's `WorkerState.tasks`."""

    def __init__(self):
        # The annotations of the tasks that the process runs, by key.
        self.annotations = {}
        # The task whose transition is reported to plugins.
        self.reported = None

    def __getitem__(self, key):
        reported = self.reported
        if reported is not None and reported.key == key:
            return reported
        return TaskState(key, state="executing", annotations=self.annotations[key])

    def __iter__(self):
        keys = set(self.annotations)
        reported = self.reported
        if reported is not None:
            keys.add(reported.key)
        return iter(keys)

    def __len__(self):
        return len(list(iter(self)))


def host_of(address):
    """Returns the host of an address of any scheme, or an empty string."""
    return urlsplit(address).hostname or ""


def sync_all(loop, function, *arguments):
    """Calls a function on a loop and waits for its result, like Dask's `sync`.

    Also raises exceptions such as `SystemExit`, which would end the thread of the loop.
    """

    async def call():
        try:
            result = function(*arguments)
            if inspect.isawaitable(result):
                result = await result
            return result, None
        except Exception:
            raise
        except BaseException as error:
            return None, error

    result, error = sync(loop, call)
    if error is not None:
        raise error
    return result


# Dask's plugins that install packages on workers, in any release.
INSTALLERS = {"_InstallWorkerPlugin", "PackageInstall", "PipInstall", "CondaInstall"}


def is_installer(plugin):
    """Returns whether a plugin installs packages, which one process of the worker does for all."""
    module = WorkerPlugin.__module__
    classes = type(plugin).__mro__
    return any(cls.__module__ == module and cls.__name__ in INSTALLERS for cls in classes)


class Worker:
    """The object that `get_worker()` returns: the part of Dask's `Worker` that tasks use."""

    def __init__(self, link, start):
        self.link = link
        LogHandler(link)
        self.id = start["id"]
        self.name = start["name"]
        self.address = self.worker_address = self.contact_address = start["address"]
        self.ip = host_of(self.address)
        self.scheduler_address = start["scheduler"]
        self.nthreads = start["nthreads"]
        self.local_directory = start["local_directory"]
        self.memory_limit = start["memory_limit"]
        self.memory_manager = SimpleNamespace(memory_limit=self.memory_limit)
        self.state = SimpleNamespace(
            address=self.address,
            nthreads=self.nthreads,
            total_resources=dict(start["resources"]),
            tasks=KnownTasks(),
            actors={},
        )
        self.status = Status.running
        self.active_threads = {}
        self.plugins = Plugins()
        # Data is stored in the worker in Rust. Code that finds no data here asks the worker.
        self.data = {}
        self._lock = threading.RLock()
        self._client = None
        self._runner = None
        self._scheduler = None
        self.preloads = None
        # Messages to the scheduler from preload modules, until the worker accepts them. Then
        # `None`.
        self.early = []
        if start["preload"]:
            arguments = start["preload_argv"] or dask.config.get(
                "distributed.worker.preload-argv"
            )
            self.preloads = process_preloads(self, start["preload"], arguments)
            sync_all(self.loop, self.preloads.start)

    def __repr__(self):
        return f"<Worker {self.address!r}, name: {self.name}, status: {self.status.name}>"

    def __getattr__(self, name):
        raise AttributeError(
            f"the worker has no attribute {name!r} in this process, which runs the tasks of one "
            "thread. With --python-processes 1, all tasks share the process, and the worker, of "
            "plugins and of Client.run"
        )

    def get_current_task(self):
        return self.active_threads[threading.get_ident()]

    def log_event(self, topic, msg):
        if not _is_dumpable(msg):
            raise TypeError(
                f"Message must be msgpack serializable. Got {type(msg)=} instead."
            )
        self.batched_send({"op": "log-event", "topic": topic, "msg": msg})

    def batched_send(self, msg):
        """Sends a message on the worker's stream to the scheduler."""
        message = {"op": "stream", "message": msg}
        if self.early is None:
            self.link.post(message)
        else:
            self.early.append(message)

    def start_task(self, key, annotations):
        """Records that a task runs, and sends what was logged before: the worker reads messages."""
        early, self.early = self.early, None
        for message in early or []:
            self.link.post(message)
        self.link.sends_records = True
        self.link.send_queues()
        self.state.tasks.annotations[key] = annotations or {}

    def stop_task(self, key):
        self.link.sends_records = False
        self.state.tasks.annotations.pop(key, None)

    def handle_stimulus(self, *events):
        """Does nothing: `Pool` reports tasks that secede."""

    @property
    def loop(self):
        # Checked without the lock, which a task may hold while it waits for the loop.
        if self._scheduler is None:
            self._start_loop()
        return self._runner.loop

    def _start_loop(self):
        with self._lock:
            if self._runner is None:
                self._runner = LoopRunner(asynchronous=False)
                self._runner.start()
                pool = ConnectionPool(connection_args=self.connection_args)
                # Started here, since the thread of the loop could not wait for it.
                sync(self._runner.loop, pool.start)
                self._scheduler = pool(self.scheduler_address)

    io_loop = loop

    @property
    def rpc(self):
        return self.scheduler.pool

    @property
    def scheduler(self):
        if self._scheduler is None:
            self._start_loop()
        return self._scheduler

    @property
    def security(self):
        return distributed.security.Security()

    @property
    def connection_args(self):
        return self.security.get_connection_args("worker")

    @property
    def client(self):
        return self._client or self._get_client()

    def _get_client(self, timeout=None):
        if timeout is None:
            timeout = dask.config.get("distributed.comm.timeouts.connect")
        timeout = parse_timedelta(timeout, "s")
        with self._lock:
            if self._client is None or self._client.status not in (
                "running",
                "connecting",
            ):
                self._client = self._new_client(timeout)
        self.log_event(
            "worker-get-client", {"client": self._client.id, "timeout": timeout}
        )
        return self._client

    def _new_client(self, timeout):
        with contextlib.suppress(ValueError):
            client = distributed.default_client()
            if client.scheduler and client.scheduler.address == self.scheduler_address:
                return client
        return distributed.Client(
            self.scheduler_address,
            loop=self.loop,
            set_as_default=True,
            asynchronous=in_async_call(self.loop),
            direct_to_workers=True,
            name="worker",
            timeout=timeout,
        )

    async def close(self, *_, **__):
        """Asks the scheduler to retire this worker, or ends it if no other can take its data."""
        retired = await self.scheduler.retire_workers(
            workers=[self.address],
            close_workers=True,
            remove=True,
            stimulus_id=f"worker-close-{time()}",
        )
        if self.address not in retired:
            async with rpc(self.address, connection_args=self.connection_args) as worker:
                await worker.terminate()

    close_gracefully = close

    def tear_down(self):
        """Tears down the plugins and the preload modules."""
        for name in list(self.plugins):
            self.remove_plugin(name)
        if self.preloads is not None:
            sync_all(self.loop, self.preloads.teardown)

    async def upload_file(self, filename, data, load=True):
        """Imports a file that the host has written."""
        if load:
            import_file(os.path.join(self.local_directory, filename))
        return {"status": "OK", "nbytes": len(data)}

    def add_plugin(self, name, pickled):
        """Sets up a plugin in this process. The host has its own instance."""
        self.remove_plugin(name)
        try:
            plugin = pickle.loads(pickled)
            self.plugins[name] = plugin
            if is_installer(plugin):
                # The host has installed the packages. Python caches which modules exist.
                importlib.invalidate_caches()
            elif hasattr(plugin, "setup"):
                # On the event loop, as in Dask.
                sync_all(self.loop, functools.partial(plugin.setup, worker=self))
        except Exception:
            logger.exception("Worker plugin %s failed to setup", name)

    def remove_plugin(self, name):
        plugin = self.plugins.pop(name, None)
        try:
            if hasattr(plugin, "teardown"):
                sync_all(self.loop, functools.partial(plugin.teardown, worker=self))
        except Exception:
            logger.exception("Worker plugin %s failed to teardown", name)

    def update_data(self, data, **_):
        """Sends values to the worker, and blocks until it has stored them."""
        failures = []

        async def update():
            async with rpc(self.address, connection_args=self.connection_args) as peer:
                await peer.update_data(
                    data={key: to_serialize(value) for key, value in data.items()}
                )

        def run():
            try:
                asyncio.run(update())
            except BaseException as error:
                failures.append(error)

        # The caller is a coroutine but does not await this call, so another thread has to
        # run the loop.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]


class Pool:
    """A stand-in for the thread pool of Dask, for `secede` and `rejoin`.

    It starts no threads: the worker replaces the whole process of a task that secedes.
    """

    def __init__(self, link, key, heap):
        self.link = link
        self.key = key
        self.heap = heap
        self.has_seceded = False
        self._threads = {threading.current_thread()}
        self._rejoin_lock = threading.Lock()
        self._rejoin_list = []

    def _adjust_thread_count(self):
        # Only `secede` calls this. Reported here rather than by the event of `secede`, which
        # the loop handles later, perhaps after the task has called `rejoin`.
        self.has_seceded = True
        # The task may wait for long.
        self.heap.return_at_once()
        self.link.send(
            write(
                {
                    "op": "long-running",
                    "key": self.key,
                    "compute_duration": time() - thread_state.start_time,
                }
            )
        )

    def submit(self, _):
        """Waits until the worker has a thread for the task. Only `rejoin` calls this."""
        if self.has_seceded:
            self.link.set_timeout(0)
            self.link.send(write({"op": "rejoin", "key": self.key}))
            # The worker sends nothing else while a task runs.
            self.link.receive()
            self.has_seceded = False
        with self._rejoin_lock:
            while self._rejoin_list:
                thread, event = self._rejoin_list.pop()
                self._threads.add(thread)
                event.set()


def measure(value):
    """Returns the size of a value in bytes, for which a library may give any kind of number."""
    if type(value) in SCALARS:
        # As Dask does, in a third of the time.
        return sys.getsizeof(value)
    try:
        return max(0, int(safe_sizeof(value)))
    except (TypeError, ValueError, OverflowError):
        return 0


def is_coroutine(task):
    """Returns `task.is_coro`, but without computing it for most functions.

    That takes longer than many tasks.
    """
    function = getattr(task, "func", None)
    if (
        type(function) is FunctionType
        and not function.__code__.co_flags & inspect.CO_COROUTINE
        # Decorators mark coroutines that are not `async def` with attributes.
        and not function.__dict__
    ):
        return False
    return task.is_coro


def end_process(end):
    """Ends this process at once, with the exit code of a `SystemExit`."""
    code = end.code
    if code is None:
        code = 0
    elif not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def describe_task(task):
    """Returns the text for a task in the log, even if the `repr` of an argument fails."""
    if isinstance(task, str):
        return task
    try:
        return repr(task)[:1000]
    except Exception:
        return "< could not convert task to str >"


class ActorReference:
    """An object whose pickle is loaded as the proxy of an actor."""

    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return Actor, self.arguments


class Executor:
    """Runs tasks one after the other."""

    def __init__(self, link, start, host=None):
        self.link = link
        self.host = host
        # Before threads are started. The memory of the host is returned at once.
        self.heap = Heap(0 if host else start["cache_len"])
        self.worker = host or Worker(link, start)
        # The threads of a host use its cache.
        self.cache = Cache(0 if host else start["cache_len"])
        self.segments = Segments(self.cache.max_len // 2)
        self.classes = {}
        self.state = {
            "scheduler": start["scheduler"],
            "worker": self.worker,
        }
        distributed.worker._worker_cvar.set(self.worker)
        distributed.threadpoolexecutor.thread_state.proceed = True

    @classmethod
    def serve_thread(cls, link, *arguments):
        try:
            # Constructed in the thread that runs the tasks, since it sets thread-local state.
            cls(link, *arguments).serve()
        finally:
            # The worker would wait for a reply otherwise.
            link.sock.close()

    def serve(self):
        self.link.on_timeout = self.return_memory
        idle_since = monotonic()
        self.return_later(MEMORY_KEPT)
        while True:
            try:
                frames, descriptors = self.link.receive()
            except (EOFError, ConnectionError):
                return
            for descriptor in descriptors:
                os.close(descriptor)
            message = read(frames)
            del frames
            if message["op"] == "run-task":
                key = message["key"]
                self.worker.start_task(key, message["annotations"])
                reply = self.run(message)
                self.worker.stop_task(key)
                self.link.send(*reply)
                # Holds the frames of the result.
                del reply
                idle_since = monotonic()
                self.heap.limit(idle_since)
                self.return_later(MEMORY_KEPT)
            elif message["op"] == "forget":
                for key in message["keys"]:
                    self.cache.remove(key)
                self.heap.is_used = self.heap.is_kept
                # The worker expects that memory is returned this long after the task.
                left = idle_since + MEMORY_KEPT - monotonic()
                if left > MIN_TIMEOUT:
                    self.return_later(left)
                else:
                    self.return_memory()
                    idle_since = monotonic()
            elif message["op"] == "return-memory":
                self.cache = Cache(self.cache.max_len)
                self.return_memory()
            elif message["op"] == "plugin-add":
                self.worker.add_plugin(message["name"], message["plugin"])
            elif message["op"] == "plugin-remove":
                self.worker.remove_plugin(message["name"])
            # Its inputs would stay mapped until the next message.
            del message

    def return_later(self, seconds):
        """Returns memory that is kept for further tasks if no message arrives in this time."""
        if self.segments.len or self.heap.is_used:
            self.link.set_timeout(seconds)

    def return_memory(self):
        """Returns memory that is kept for further tasks. None is kept until the next task."""
        self.segments.clear()
        self.heap.return_at_once()
        self.link.set_timeout(0)

    def run(self, message):
        """Runs a task. Returns the frames of the reply, and the `shared` of `Link.send`."""
        key = message["key"]
        # Keys of values that the reply reports as not cached: at first all inputs in the
        # message, since the worker counts them as cached.
        gone = [name for name, payload in message["data"].items() if payload is not None]
        times = {"start": time(), "stop": None, "cpu": 0.0}
        task = "< could not deserialize task >"
        pool = Pool(self.link, key, self.heap)
        if self.heap.returns_at_once:
            self.heap.keep()
        try:
            if self.host is not None:
                self.host.wait_for_commands(message["command_count"])
            with loading():
                task = message["run_spec"].load()
            longest = max(map(self.length, message["data"].items()), default=0)
            # Its arguments must not take memory while the result is serialized.
            result = self.evaluate(message, task, pool, gone, times)
            task = "< could not serialize the result >"
            return self.finished(message, result, longest, gone, times)
        except SystemExit as end:
            # The worker reports the exit code.
            end_process(end)
        except Reschedule:
            return write({"op": "reschedule", "gone": gone}), None
        except NeedsHost:
            return write({"op": "needs-host", "gone": gone}), None
        except BaseException as error:
            times["stop"] = times["stop"] or time()
            state = "long-running" if pool.has_seceded else "executing"
            return self.erred(key, state, task, error, gone, times), None

    def length(self, item):
        """Returns the length of an input in bytes. `item` is its key and its payload."""
        name, payload = item
        return self.cache.length(name) if payload is None else payload.nbytes

    def erred(self, key, state, task, error, gone, times):
        try:
            failure = error_message(error)
        except Exception as second:
            # The text of the exception cannot be made.
            failure = error_message(second)
        logger.error(
            "Compute Failed\n"
            "Key:       %s\n"
            "State:     %s\n"
            "Task:  %s\n"
            "Exception: %r\n"
            "Traceback: %r\n",
            key,
            state,
            describe_task(task),
            failure["exception_text"],
            failure["traceback_text"],
        )
        traceback = failure["traceback"]
        return write(
            {
                "op": "task-erred",
                "exception": failure["exception"].data,
                "traceback": traceback and traceback.data,
                "exception_text": failure["exception_text"],
                "traceback_text": failure["traceback_text"],
                "gone": gone,
                **times,
            }
        )

    def load(self, message, gone):
        """Returns the inputs of a task, by key."""
        inputs = message["data"]
        # Looked up first, since inputs in the message may evict them from the cache.
        data = {
            name: self.cache.get(name)
            for name, payload in inputs.items()
            if payload is None
        }
        # To measure a data frame takes as long as to load it.
        sizes = message["nbytes"]
        loaded = [
            (name, payload.load(), payload.nbytes)
            for name, payload in inputs.items()
            if payload is not None
        ]
        gone.clear()
        for name, value, length in loaded:
            data[name] = value
            size = sizes[name] if name in sizes else measure(value)
            gone += self.cache.put(name, value, max(length, size))
        return data

    def evaluate(self, message, task, pool, gone, times):
        key = message["key"]
        if self.host is not None:
            data = self.host.load(message)
            gone.clear()
        else:
            data = self.load(message, gone)
        # Tasks that this one submits join its span. Annotating takes as long as a small task.
        span = (message["annotations"] or {}).get("span")
        annotated = contextlib.nullcontext() if span is None else dask.annotate(span=span)
        del message
        distributed.threadpoolexecutor.thread_state.executor = pool
        ident = threading.get_ident()
        self.worker.active_threads[ident] = key
        times["start"] = time()
        cpu = thread_time()
        thread_state.start_time = times["start"]
        thread_state.execution_state = self.state
        thread_state.key = key
        try:
            with annotated:
                if is_coroutine(task):
                    return sync_all(self.worker.loop, self.await_task, task, data)
                # As in Dask, changes to context variables end with the task.
                result = contextvars.copy_context().run(task, data)
                if type(result) is CoroutineType:
                    # The function is the result of another task.
                    return sync_all(self.worker.loop, self.await_result, result)
                return result
        finally:
            times["stop"] = time()
            times["cpu"] = thread_time() - cpu
            del thread_state.start_time, thread_state.execution_state, thread_state.key
            del self.worker.active_threads[ident]

    async def await_task(self, task, data):
        distributed.worker._worker_cvar.set(self.worker)
        return await task(data)

    async def await_result(self, result):
        distributed.worker._worker_cvar.set(self.worker)
        return await result

    def finished(self, message, result, longest, gone, times):
        key = message["key"]
        stored = result
        if message["is_actor"]:
            self.host.state.actors[key] = result
            stored = ActorReference(type(result), self.host.address, key)
        is_kept = False
        try:
            with quiet:
                header, frames = serialize(stored)
        except Exception as error:
            if self.host is None or not self.host.is_shared:
                raise describe_unpicklable(result, error) from error
            is_kept = True
            header, frames = serialize_failure(result, error)
            self.host.kept[key] = message["number"], result
        nbytes = measure(result)
        length = sum(frame.nbytes for frame in frames)
        name, class_pickle = self.describe(type(result))
        # Not the sum of both lengths: the frames may be memory of the result. A result that is
        # much shorter than an input may be a view of it, and would keep all of it in memory.
        is_view = longest >= MAX_VIEWED and longest > 4 * max(length, nbytes)
        if is_view or self.host is not None:
            gone.append(key)
        else:
            gone += self.cache.put(key, result, max(length, nbytes))
        if self.host is not None and not (is_view or is_kept or message["is_actor"]):
            self.host.cache.put(key, result, max(length, nbytes), message["number"])
        # The first frame is the body, which is filled in below.
        frames = [memoryview(b""), header, *frames]
        descriptor = None
        try:
            descriptor, places = self.segments.share(frames)
            frames[:1] = write(
                {
                    "op": "task-finished",
                    "result": {"__Serialized__": 1},
                    "nbytes": nbytes,
                    "type": class_pickle,
                    "typename": name,
                    "gone": gone,
                    "held": self.segments.len,
                    "is_kept": is_kept,
                    **times,
                }
            )
        except BaseException:
            # The worker does not learn of the result, so it must not stay cached.
            self.cache.remove(key)
            if self.host is not None:
                self.host.forget([key])
            gone.append(key)
            if descriptor is not None:
                os.close(descriptor)
            raise
        return frames, (descriptor, places)

    def describe(self, cls):
        """Returns the name of a class and its pickle, as Dask reports them to the scheduler."""
        described = self.classes.get(cls)
        if described is None:
            # Dask reports `None` for its type, too.
            shown = None if cls is type(None) else cls
            name = typename(shown)
            try:
                class_pickle = pickle.dumps(shown)
            except Exception:
                class_pickle = pickle.dumps(name)
            described = name, class_pickle
            if len(self.classes) < 1000:
                self.classes[cls] = described
        return described


def end_with_worker(lifeline):
    """Makes the system kill this process group when the other end of a pipe is closed.

    The worker holds that end, so this works however the worker ends, and whatever
    this process and those that it has forked are doing.
    """
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    # The pipe may have been closed before.
    with contextlib.suppress(BlockingIOError):
        os.read(lifeline, 1)
        os._exit(1)


def leave_to_worker(sock):
    """Ignores SIGTERM in this process, and undoes this in processes that it forks.

    Service managers signal all processes of a service, but the worker decides when this
    process ends: it hands its data over first. Forked processes also close the socket.
    """

    # SIGTERM is blocked until the forked process has restored the default handler, since
    # it would be ignored before.
    masks = threading.local()

    def fork():
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def restore():
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def forked():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        restore()
        # A copy of the socket would hide the end of this process from the worker.
        sock.close()

    # Not SIG_IGN, which programs that this process executes would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(before=fork, after_in_parent=restore, after_in_child=forked)


class Scheduler(PooledRPCCall):
    """The scheduler's RPC proxy, which reports the shuffles of the host to the worker."""

    def __init__(self, address, pool, link):
        super().__init__(address, pool)
        self._link = link

    def __getattr__(self, name):
        call = super().__getattr__(name)
        if not name.startswith("shuffle_get"):
            return call

        async def get(**arguments):
            answer = await call(**arguments)
            if answer["status"] == "OK":
                run = answer["run_spec"]
                self._link.send(write({"op": "shuffle", "id": run.id, "run_id": run.run_id}))
            return answer

        return get


def load_failure(payload):
    """Returns an exception or a traceback in the form in which Dask stores it."""
    if payload is None:
        return None
    try:
        value = payload.load()
        return to_serialize(value if isinstance(value, bytes) else pickle.dumps(value))
    except Exception:
        return None


class Host(distributed.worker.Worker):
    """The `Worker` that extensions use. It is never started: the worker in Rust runs."""

    def __init__(self, link, start):
        super().__init__(
            start["scheduler"],
            nthreads=start["nthreads"],
            resources=dict(start["resources"]),
            name=start["name"],
            local_directory=start["local_directory"],
            contact_address=start["address"],
            memory_limit=start["memory_limit"] or 0,
            data=dict,
            lifetime=0,
            needs_workdir=False,
            preload=start["preload"],
            preload_argv=start["preload_argv"],
            blocked_handlers=dask.config.get("distributed.worker.blocked-handlers", []),
        )
        self.id = start["id"]
        self.ip = host_of(start["address"])
        self.state.address = start["address"]
        self.state.tasks = KnownTasks()
        self.local_directory = start["local_directory"]
        self.link = link
        self.scheduler = Scheduler(start["scheduler"], self.rpc, link)
        # The state last reported; `None` at first, since an earlier host may have
        # reported either.
        self.is_watched = None
        # Whether all tasks run here, or in further processes of this kind.
        self.is_shared = start["is_shared"]
        self.cache = SharedCache(start["cache_len"])
        # Results that cannot be pickled, with their numbers, by key.
        self.kept = {}
        if not start["has_shuffles"]:
            self.plugins = Plugins()
        # The number of commands handled that tasks depend on.
        self.command_count = 0
        self.counted = threading.Condition()

    async def start_host(self, start):
        await self.rpc.start()
        self.thread_id = threading.get_ident()
        self._status = Status.running
        await self.preloads.start()
        for name, plugin in start["plugins"].items():
            await self.plugin_add(plugin=plugin, name=name)
        self.watch()
        stale = start["stale_shuffles"]
        if "shuffle" in self.plugins:
            self.plugins["shuffle"].shuffle_runs._stale_run_ids.update(stale)
            inputs_done = self.handlers["shuffle_inputs_done"]

            async def inputs_of_current_runs_done(shuffle_id, run_id):
                # An error about a run of an earlier host would fail the task of its
                # barrier, which may be that of the next run by then.
                if run_id > stale.get(shuffle_id, 0):
                    await inputs_done(shuffle_id, run_id)

            self.handlers["shuffle_inputs_done"] = inputs_of_current_runs_done
        for shuffle, run_id in stale.items():
            # The part of the shuffle that this worker held is lost.
            answer = await self.scheduler.shuffle_get(id=shuffle, worker=self.address)
            if answer["status"] == "OK" and answer["run_spec"].run_id == run_id:
                await self.scheduler.shuffle_barrier(
                    id=shuffle, run_id=run_id, consistent=False
                )

    async def plugin_add(self, plugin, name=None, catch_errors=True):
        try:
            return await super().plugin_add(plugin, name, catch_errors)
        finally:
            self.watch()

    async def plugin_remove(self, name):
        try:
            return await super().plugin_remove(name)
        finally:
            self.watch()

    def watch(self):
        """Reports to the worker whether any plugin observes transitions of tasks."""
        default = WorkerPlugin.transition
        methods = [plugin.transition for plugin in self.plugins.values()]
        is_watched = any(getattr(method, "__func__", method) is not default for method in methods)
        if is_watched != self.is_watched:
            self.is_watched = is_watched
            self.link.send(write({"op": "watch", "is_watched": is_watched}))

    def notify_plugins(self, transitions):
        for transition in transitions:
            key, start, finish = transition["key"], transition["start"], transition["finish"]
            if finish == "forgotten" and start != "released":
                # Dask reports this as two transitions.
                self.notify_of(transition, start, "released")
                start = "released"
            self.notify_of(transition, start, finish)

    def notify_of(self, transition, start, finish):
        key = transition["key"]
        tasks = self.state.tasks
        # Plugins look the task up, which only the worker in Rust has.
        tasks.reported = TaskState(
            key,
            state=finish,
            annotations=tasks.annotations.get(key, {}),
            exception=load_failure(transition["exception"]),
            traceback=load_failure(transition["traceback"]),
            exception_text=transition["exception_text"],
            traceback_text=transition["traceback_text"],
        )
        try:
            self.state._notify_plugins("transition", key, start, finish)
        finally:
            tasks.reported = None

    async def set_resources(self, **resources):
        await super().set_resources(**resources)
        self.link.post({"op": "resources", "resources": self.state.total_resources})

    close = close_gracefully = Worker.close

    # Dask's has the event loop send it, perhaps after the result of the task.
    log_event = Worker.log_event

    async def close_host(self):
        for name in list(self.plugins):
            await self.plugin_remove(name=name)
        await self.preloads.teardown()

    def batched_send(self, msg):
        """Sends a message on the worker's stream to the scheduler."""
        # With the link of the task that runs in this thread, so that it precedes the result.
        is_task = hasattr(thread_state, "execution_state")
        link = distributed.threadpoolexecutor.thread_state.executor.link if is_task else self.link
        link.post({"op": "stream", "message": msg})

    def handle_stimulus(self, *events):
        """Does nothing: `Pool` reports tasks that secede."""

    update_data = Worker.update_data

    def start_task(self, key, annotations):
        self.state.tasks.annotations[key] = annotations or {}

    def stop_task(self, key):
        self.state.tasks.annotations.pop(key, None)

    def load(self, message):
        """Returns the inputs of a task, by key."""
        numbers, sizes = message["numbers"], message["nbytes"]

        def load(name, payload):
            with loading():
                value = payload.load()
            size = sizes[name] if name in sizes else measure(value)
            return value, max(payload.nbytes, size)

        data = {}
        for name, payload in message["data"].items():
            number, value = self.kept.get(name, (None, None))
            if number is None or number != numbers.get(name):
                load_this = functools.partial(load, name, payload)
                value = self.cache.load(name, numbers.get(name, 0), load_this)
            data[name] = value
        return data

    def forget(self, keys):
        """Drops the actors and values of keys."""
        for key in keys:
            self.state.actors.pop(key, None)
            self.kept.pop(key, None)
            self.cache.remove(key)

    def listen(self, start):
        """Executes the worker's commands until it closes the host."""
        while True:
            try:
                frames, descriptors = self.link.receive()
            except (EOFError, ConnectionError):
                return
            message = read(frames)
            if message["op"] == "socket":
                sock = socket.socket(fileno=descriptors[0])
                if message["is_comm"]:
                    self.loop.add_callback(self.answer, sock)
                else:
                    run = Executor.serve_thread
                    arguments = (Link(sock), start, self)
                    threading.Thread(target=run, args=arguments, daemon=True).start()
            elif message["op"] == "forget":
                self.forget(message["keys"])
                self.count_command()
            elif message["op"] == "return-memory":
                self.cache.clear()
            elif message["op"] == "plugin-add":
                self.loop.add_callback(self.change_plugin, message["name"], message["plugin"])
            elif message["op"] == "plugin-remove":
                self.loop.add_callback(self.change_plugin, message["name"], None)
            elif message["op"] == "stream":
                self.loop.add_callback(self.handle_stream_message, message["message"])
            elif message["op"] == "transitions":
                self.loop.add_callback(self.notify_plugins, message["transitions"])
            elif message["op"] == "close":
                return

    async def change_plugin(self, name, pickled):
        """Adds or replaces a plugin, or removes it if `pickled` is `None`.

        Tasks that start later wait for this.
        """
        try:
            if pickled is not None:
                await self.plugin_add(plugin=pickled, name=name)
            elif name in self.plugins:
                await self.plugin_remove(name=name)
        finally:
            self.count_command()

    async def handle_stream_message(self, message):
        """Handles a message received on the scheduler's stream.

        Tasks do not wait for what an asynchronous handler does.
        """
        message = dict(message)
        handler = self.stream_handlers.get(message.pop("op"))
        result = None
        try:
            if handler is not None:
                result = handler(**message)
        finally:
            self.count_command()
        if inspect.isawaitable(result):
            await result

    def count_command(self):
        with self.counted:
            self.command_count += 1
            self.counted.notify_all()

    def wait_for_commands(self, count):
        """Waits until the commands that the worker sent before a task have been handled.

        They arrive on another socket: without waiting, a task could join the run of a shuffle
        that has failed, or an actor be dropped in place of the one before it.
        """
        with self.counted:
            self.counted.wait_for(lambda: self.command_count >= count)

    async def answer(self, sock):
        """Answers the requests received on a comm."""
        sock.setblocking(False)
        comm = distributed.comm.tcp.TCP(IOStream(sock), self.address, self.address)
        try:
            await Listener.on_connection(None, comm)
        except OSError:
            return
        await self.handle_comm(comm)


def ignore_unix(set_timeout):
    def set_tcp_timeout(stream):
        if stream.socket.family != socket.AF_UNIX:
            set_timeout(stream)

    return set_tcp_timeout


async def serve_host(link, start):
    # The options that it sets exist for TCP only.
    module = distributed.comm.tcp
    module.set_tcp_timeout = ignore_unix(module.set_tcp_timeout)
    LogHandler(link)
    link.sends_records = True
    host = Host(link, start)
    await host.start_host(start)
    link.send(write({"op": "ready"}))
    loop = asyncio.get_running_loop()
    has_ended = asyncio.Event()

    def listen():
        try:
            host.listen(start)
        finally:
            loop.call_soon_threadsafe(has_ended.set)

    # Not in a thread for which the end of the loop waits.
    threading.Thread(target=listen, daemon=True).start()
    await has_ended.wait()
    await host.close_host()


def run_host(link, start):
    """Runs the host until the worker closes it, or Python code exits."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(serve_host(link, start))
        end = SystemExit()
    except SystemExit as error:
        end = error
    except BrokenPipeError:
        # The worker has ended.
        end = SystemExit(1)
    except BaseException:
        logger.exception("The host has failed")
        end = SystemExit(1)
    # Does not wait for threads of tasks.
    end_process(end)


def run_helper(link, name, source, directory):
    """Serves a scheduler with the module that it sends, `scheduler` or `plugins`.

    Modules that clients upload to the directory are imported from there.
    """
    names = os.listdir(directory) if os.path.isdir(directory) else ()
    archives = [name for name in names if name.endswith((".egg", ".pyz", ".zip"))]
    sys.path[:0] = [directory, *(os.path.join(directory, name) for name in archives)]
    module = ModuleType(f"daskwire.{name}")
    sys.modules[module.__name__] = module
    exec(compile(source, f"daskwire/{name}.py", "exec"), module.__dict__)
    with contextlib.suppress(BrokenPipeError):
        module.serve(link)


def main(sock):
    """Forks a process for each socket that the worker sends, and ends those processes.

    The modules that the command line names are imported first, so that all processes share
    their memory.
    """
    # Service managers signal all processes of a service, but the worker ends this one.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # The statuses of the processes would be lost if it were ignored.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    share_serializable_locks()
    for module in sys.argv[1:]:
        try:
            importlib.import_module(module)
        except Exception as error:
            sys.exit(f"cannot import {module}: {type(error).__name__}: {error}")
    # Tasks do not see these arguments.
    del sys.argv[1:]
    # Collections would write to the objects of the modules, and so copy their memory.
    gc.collect()
    gc.freeze()
    link = Link(sock)
    while True:
        try:
            frames, descriptors = link.receive()
            message = read(frames)
            if message["op"] == "fork":
                process, failure = None, ""
                try:
                    process = os.fork()
                except OSError as error:
                    failure = str(error)
                if process == 0:
                    break
                if process:
                    # A group of its own, with which the processes that it starts are killed.
                    os.setpgid(process, process)
                os.close(descriptors[0])
                link.send(write({"op": "forked", "id": process, "error": failure}))
            elif message["op"] == "kill":
                for kill in [os.killpg, os.kill]:
                    with contextlib.suppress(OSError):
                        kill(message["id"], signal.SIGKILL)
            elif message["op"] == "wait":
                process = status = 0
                with contextlib.suppress(ChildProcessError):
                    process, status = os.waitpid(message["id"], os.WNOHANG)
                link.send(write({"op": "ended", "status": status if process else None}))
        except (EOFError, ConnectionError):
            return
    sock.close()
    run(socket.socket(fileno=descriptors[0]))


def run(sock):
    """Runs tasks, or the host, until the worker closes the socket."""
    if "numpy.random" in sys.modules:
        # Python's own generator is seeded again in forked processes, this one is not.
        sys.modules["numpy.random"].seed()
    leave_to_worker(sock)
    link = Link(sock)
    try:
        frames, (lifeline, locks) = link.receive()
    except (EOFError, ConnectionError):
        # The worker has ended while it started this process.
        return
    end_with_worker(lifeline)
    ProcessLock.open(locks)
    os.close(locks)
    os.register_at_fork(after_in_child=ProcessLock.forked)
    # Each input of a task may need a descriptor of shared memory.
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    start = read(frames)
    if start["op"] == "start-helper":
        run_helper(link, start["name"], start["module"], start["local_directory"])
        return
    # Modules that clients upload are imported from there.
    sys.path.insert(0, start["local_directory"])
    if start["is_host"]:
        run_host(link, start)
    executor = Executor(link, start)
    with contextlib.suppress(BrokenPipeError):
        link.send(write({"op": "ready"}))
        executor.serve()
    executor.worker.tear_down()
