"""The `distributed` release of this interpreter: what it writes, what it reads.

`Release.write` sends a message through the release's own TCP comm over a
loopback socket and returns every byte that came out of the other end.
`Release.describe` feeds bytes to the release's own comm and says what it made
of them, stopped just before a payload would be unpickled: so the headers, and
the frames after decompressing and merging, are the release's, and nothing in
the bytes is ever executed.

Works from 2.23.0, the first release with a handshake, to the current one.
"""

import asyncio
import contextlib
import hashlib
import importlib
import logging
import random
import struct
import warnings

warnings.simplefilter("ignore")

import distributed
import msgpack
from distributed.comm.tcp import TCP
from tornado.tcpclient import TCPClient

from tagged import Placeholder, fingerprint, tag

# `import ... as` would find the functions of the same names instead.
protocol_compression = importlib.import_module("distributed.protocol.compression")
protocol_core = importlib.import_module("distributed.protocol.core")
protocol_serialize = importlib.import_module("distributed.protocol.serialize")
protocol_utils = importlib.import_module("distributed.protocol.utils")

# A message that is refused is reported by the caller, once.
logging.disable(logging.CRITICAL)

READ_TIMEOUT_S = 30


class Release:
    """The release that `import distributed` finds."""

    def __init__(self):
        self.name = distributed.__version__
        self.version = tuple(int(part) for part in self.name.split(".")[:3])
        if self.version < (2, 23, 0):
            raise RuntimeError(f"distributed {self.name} has no handshake; 2.23.0 is the first that works here")
        self.is_classic = self.version < (2021, 3, 1)
        if self.version >= (2023, 11, 0):
            self.prefix = "nosplit"
        elif self.version >= (2021, 3, 0):
            self.prefix = "total"
        else:
            self.prefix = "none"
        layout = "classic" if self.is_classic else "modern"
        family = layout if self.prefix == "none" else f"{layout}-{self.prefix}"
        self.generation = f"{family}-{self.name}"

    def write(self, message, *, codec=None, shard_len=None, serializers=None, on_error="message", seed=0):
        """Every byte that this release's comm sends for `message`.

        `codec` is what the handshake is taken to have settled on, `shard_len`
        the size at which payload frames are split. The writer decides whether
        to compress by looking at random samples; `seed` fixes them.
        """
        return asyncio.run(self._write(message, codec, shard_len, serializers, on_error, seed))

    def read_forwardable(self, data):
        """The message in `data` as a scheduler holds it, payloads unopened."""
        return asyncio.run(self._read(data, deserialize=False))

    def read_value(self, data):
        """The message in `data` as a worker gets it, payloads unpickled.

        Executes what the pickles in `data` ask for: for bytes from a test only.
        """
        return asyncio.run(self._read(data, deserialize=True))

    def describe(self, data):
        """What this release makes of `data`, one message: see README.md."""
        prefix_value, frames = self.split(data)
        with self._stopped_before_unpickling() as payloads:
            message = asyncio.run(self._read(data, deserialize=True))
        description = {"generation": self.generation, "version": self.name, "prefix": self.prefix}
        if prefix_value is not None:
            description["prefix_value"] = prefix_value
        if self.prefix == "nosplit":
            description["nosplit_frames"] = _nosplit_count(prefix_value, frames)
        description["frames"] = [fingerprint(frame) for frame in frames]
        description["message"] = tag(message)
        paths = dict(_placeholder_paths(message))
        bytestrings = _bytestring_paths(frames) if self.is_classic else None
        description["payloads"] = [
            _describe_payload(paths[index], bytestrings, *payload) for index, payload in enumerate(payloads)
        ]
        return description

    def split(self, data):
        """The leading u64, or None, and the frames of one message.

        Written independently of the release, as a check on its framing.
        """
        prefix_value, at = None, 0
        if self.prefix != "none":
            (prefix_value,) = struct.unpack_from("<Q", data, 0)
            at = 8
        (frame_count,) = struct.unpack_from("<Q", data, at)
        if frame_count > (len(data) - at - 8) // 8:
            raise ValueError(f"{frame_count} frames announced in {len(data)} bytes")
        lengths = struct.unpack_from(f"<{frame_count}Q", data, at + 8)
        at += 8 + 8 * frame_count
        if at + sum(lengths) != len(data):
            raise ValueError(f"the frames end at byte {at + sum(lengths)}, the input at {len(data)}")
        frames = []
        for length in lengths:
            frames.append(data[at : at + length])
            at += length
        return prefix_value, frames

    def describe_stream(self, data):
        """What this release makes of `data`, whole messages back to back: see README.md."""
        messages = []
        offset = 0
        while offset < len(data):
            end = offset + self._message_len(data[offset:])
            described = self.describe(data[offset:end])
            messages.append(
                {
                    "offset": offset,
                    "len": end - offset,
                    "n_frames": len(described["frames"]),
                    "n_payloads": len(described["payloads"]),
                    "message": described["message"],
                }
            )
            offset = end
        return {
            "kind": "stream",
            "generation": self.generation,
            "version": self.name,
            "prefix": self.prefix,
            "sha256": hashlib.sha256(data).hexdigest(),
            "messages": messages,
        }

    def _message_len(self, data):
        """The length of the first message in `data`."""
        at = 0 if self.prefix == "none" else 8
        (frame_count,) = struct.unpack_from("<Q", data, at)
        lengths = struct.unpack_from(f"<{frame_count}Q", data, at + 8)
        return at + 8 + 8 * frame_count + sum(lengths)

    async def _write(self, message, codec, shard_len, serializers, on_error, seed):
        received = asyncio.get_running_loop().create_future()

        async def collect(reader, writer):
            received.set_result(await reader.read())
            writer.close()

        async with self._connected(collect, deserialize=True) as comm:
            comm.handshake_options = {"compression": codec, "pickle-protocol": 5}
            with self._splitting_at(comm, shard_len):
                random.seed(seed)
                await comm.write(message, serializers=serializers, on_error=on_error)
            await comm.close()
            return await received

    async def _read(self, data, deserialize):
        async def send(reader, writer):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            writer.close()

        async with self._connected(send, deserialize) as comm:
            return await asyncio.wait_for(comm.read(), READ_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def _connected(self, serve, deserialize):
        """The release's comm on one end of a loopback socket, `serve` on the other."""
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        stream = await TCPClient().connect("127.0.0.1", port)
        address = f"tcp://127.0.0.1:{port}"
        comm = TCP(stream, address, address, deserialize=deserialize)
        # Big messages would be handled on another thread, which only adds noise.
        comm.allow_offload = False
        try:
            yield comm
        finally:
            comm.abort()
            server.close()

    @contextlib.contextmanager
    def _splitting_at(self, comm, shard_len):
        if shard_len is None:
            yield
        elif self.version >= (2021, 7, 2):
            comm.max_shard_size = shard_len
            yield
        else:
            # No setting for it yet: it is the default of an argument.
            split = protocol_utils.frame_split_size
            before, split.__defaults__ = split.__defaults__, (shard_len,)
            try:
                yield
            finally:
                split.__defaults__ = before

    @contextlib.contextmanager
    def _stopped_before_unpickling(self):
        """Payloads are kept, as (kind, header, frames), instead of being unpickled."""
        payloads = []
        pickled_header = None

        def keep(kind, header, frames):
            payloads.append((kind, header, [bytes(frame) for frame in frames]))
            return Placeholder(len(payloads) - 1)

        def deserialize(header, frames, deserializers=None):
            return keep("serialized", header, frames)

        def unpack(*args, **options):
            # The pickle alone reaches pickle.loads(); its header passes here just before.
            nonlocal pickled_header
            value = msgpack.loads(*args, **options)
            if isinstance(value, dict) and "pickled-obj" in value:
                pickled_header = value
            return value

        def unpickle(_pickle, *, buffers=()):
            buffers = list(buffers)
            if self.version < (2023, 9, 3) and "compression" in pickled_header:
                # These releases compress the buffers and forget to decompress them.
                buffers = protocol_compression.decompress(pickled_header, buffers)
            return keep("pickled", pickled_header, buffers)

        if hasattr(protocol_core, "_deserialize"):
            replaced = [(protocol_core, "_deserialize", deserialize)]
        else:
            replaced = [(protocol_serialize, "deserialize", deserialize)]
        if hasattr(protocol_core, "pickle"):
            replaced.append((protocol_core, "msgpack", _Overlay(msgpack, loads=unpack)))
            replaced.append((protocol_core, "pickle", _Overlay(protocol_core.pickle, loads=unpickle)))
        originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
        for module, name, substitute in replaced:
            setattr(module, name, substitute)
        try:
            yield payloads
        finally:
            for module, name, original in originals:
                setattr(module, name, original)


class _Overlay:
    """A module with some of its names replaced."""

    def __init__(self, module, **names):
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name):
        return getattr(self._module, name)


def _nosplit_count(prefix_value, frames):
    """How many whole frames the leading u64 covers; at the most, if some are empty."""
    covered, count = 8 + 8 * len(frames), 0
    while count < len(frames) and covered + len(frames[count]) <= prefix_value:
        covered += len(frames[count])
        count += 1
    if covered != prefix_value:
        raise ValueError(f"the leading u64, {prefix_value}, ends inside a frame")
    return count


def _placeholder_paths(value, path=()):
    """(payload index, keys and indices that lead to it) of each placeholder."""
    if isinstance(value, Placeholder):
        yield value.index, path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _placeholder_paths(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _placeholder_paths(item, (*path, index))


def _bytestring_paths(frames):
    """Classic: the paths of payloads that were plain bytes in the message."""
    if len(frames) < 3:
        return set()
    header = msgpack.loads(frames[2], use_list=False, raw=False, strict_map_key=False)
    return set(header["bytestrings"])


def _describe_payload(path, bytestrings, kind, header, frames):
    described = {
        "path": tag(path),
        "kind": kind,
        "header": tag(header),
        "frames": [fingerprint(frame) for frame in frames],
        "compression": list(header.get("compression") or []),
    }
    if bytestrings is not None:
        described["bytestring"] = path in bytestrings
    return described
