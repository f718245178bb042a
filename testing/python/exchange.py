"""Requests and replies over standard input and output, for the peers in this folder.

After a first line, `ready` and a word, both directions carry records: two u32 in
little-endian order with the lengths of a JSON document and of the bytes that belong to
it, then the document, then the bytes. The document of a request has a key `op`. The
document of a reply has `ok` and, if that is false, `error`.
"""

import json
import os
import pathlib
import struct
import sys
import traceback

# The modules that read and write a release's messages are stored with the vectors.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "core" / "tests" / "vectors"))


def serve(word, operations):
    """Answers requests until the input ends.

    `operations` maps `op` to a function of the document and the bytes, which
    returns a document, bytes, or a tuple of both.
    """
    questions = sys.stdin.buffer
    # Standard output is reserved for records, so other output goes to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(f"ready {word}\n".encode())
    answers.flush()
    # Python 3.7, which workers of old releases use, has no assignment expressions.
    for head in iter(lambda: questions.read(8), b""):
        document_len, data_len = struct.unpack("<II", head)
        question = json.loads(questions.read(document_len))
        data = questions.read(data_len)
        try:
            answer = operations[question["op"]](question, data)
        except Exception as error:
            traceback.print_exc()
            lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
            answer = {"ok": False, "error": "\n".join(lines)}
        document, data = answer if isinstance(answer, tuple) else ({}, answer) if isinstance(answer, bytes) else (answer, b"")
        text = json.dumps({"ok": True, **document}).encode("ascii")
        answers.write(struct.pack("<II", len(text), len(data)) + text + data)
        answers.flush()
