"""Forks Python processes that have imported modules, since this takes longer than most tests.

Usage: fork_server.py MODULE...

Modules that are not installed are skipped. Standard input is a socket for messages, each a JSON document. A request to start a process
is `{"arguments": [text, ...], "directory": path, "environment": {name: text, ...}}` with the
descriptors of its standard streams. The process behaves as `python ARGUMENTS`, and the reply is
`{"id": number}`. A request `{"wait": id}` is for a process that has ended. The reply is
`{"status": number}`, and the id may then be used again.
"""

import array
import ctypes
import json
import os
import runpy
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1

# The scripts of this folder must not be imported in place of modules.
del sys.path[0]
for name in sys.argv[1:]:
    try:
        __import__(name)
    except Exception:
        # Not all environments have all modules, and some modules fail there.
        pass


def run(request, descriptors, parent):
    # The process ends with the server, also if the test program was killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    for stream, descriptor in enumerate(descriptors):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    directory = request["directory"]
    os.environ.update(request["environment"])
    os.chdir(directory)
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].ORIGINAL_DIR = directory
    if "dask" in sys.modules:
        config = sys.modules["dask"].config
        config.PATH = directory
        config.refresh(paths=[directory])
    sys.argv = request["arguments"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path.insert(0, directory)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


def main():
    server = socket.socket(fileno=os.dup(0))
    while True:
        document, ancillary, _, _ = server.recvmsg(1 << 16, socket.CMSG_SPACE(3 * 4))
        if not document:
            return
        request = json.loads(document)
        if "wait" in request:
            reply = {"status": os.waitpid(request["wait"], 0)[1]}
        else:
            ((_, _, data),) = ancillary
            descriptors = array.array("i", data)
            parent = os.getpid()
            process = os.fork()
            if process == 0:
                server.close()
                run(request, descriptors, parent)
                return
            for descriptor in descriptors:
                os.close(descriptor)
            reply = {"id": process}
        server.send(json.dumps(reply).encode())


main()
