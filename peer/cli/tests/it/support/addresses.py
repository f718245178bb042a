"""Reads the hosts of addresses, also of schemes that distributed does not know."""

import importlib.util
import sys

spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

assert worker.host_of("tcp://127.0.0.1:8786") == "127.0.0.1"
assert worker.host_of("tls://[::1]:8786") == "::1"
assert worker.host_of("quic://example.com:8786") == "example.com"
assert worker.host_of("unix:///run/scheduler") == ""
print("passed")
