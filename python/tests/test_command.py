"""Tests of the command `daskwire`, run by `python -m daskwire` and as a script."""

import pathlib
import re
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest
from conftest import rust_worker
from distributed import Client, LocalCluster

CAPTURE = pathlib.Path(__file__).parents[2] / "peer/cli/tests/captures/lo.pcap"
MODULE = [sys.executable, "-m", "daskwire"]
SCRIPT = [str(pathlib.Path(sys.executable).with_name("daskwire"))]


def catches(process, number):
    """Whether a process handles a signal, according to its `/proc` status."""
    assert process.poll() is None
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return bool(int(re.search("SigCgt:\t(.*)", status)[1], 16) & 1 << number - 1)


def daskwire(*arguments, command=MODULE, **options):
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("command", [MODULE, SCRIPT], ids=["module", "script"])
def test_version(command):
    process = daskwire("--version", command=command)
    assert process.returncode == 0, process.stderr
    assert process.stdout == f"daskwire {version('daskwire')}\n"


def test_help_has_the_name_of_the_command():
    process = daskwire("inspect", "--help")
    assert process.returncode == 0
    assert "Usage: daskwire inspect" in process.stdout


def test_wrong_arguments():
    process = daskwire("inspect", "--nothing")
    assert process.returncode == 2
    assert "--nothing" in process.stderr
    assert process.stdout == ""


def test_other_failures(tmp_path):
    process = daskwire("inspect", tmp_path / "absent")
    assert process.returncode == 1
    assert "absent" in process.stderr and "Traceback" not in process.stderr


def test_inspect():
    process = daskwire("inspect", CAPTURE)
    assert process.returncode == 0, process.stderr
    assert "tcp" in process.stdout
    assert len(process.stdout.splitlines()) > 20


def test_dask_is_not_imported():
    code = """if True:
        import sys, daskwire
        assert "distributed" not in sys.modules and "dask" not in sys.modules
        import distributed.security
        assert hasattr(distributed.security.Security._get_tls_context, "__wrapped__")
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_local_cluster_refuses_early_releases_of_dask():
    code = """if True:
        import distributed
        distributed.__version__ = "2025.3.1"
        from daskwire import LocalCluster
    """
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = "ImportError: daskwire.LocalCluster needs distributed 2025.4.0 or later, not 2025.3.1"
    assert process.stderr.splitlines()[-1] == expected


def test_a_reader_that_stops_reading():
    process = subprocess.Popen(
        [*MODULE, "inspect", str(CAPTURE)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 0


def restore_sigint():
    """Restores SIGINT, which shells ignore for programs that they start in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals(number):
    relay = subprocess.Popen(
        [*MODULE, "relay", "--listen", "tcp://127.0.0.1:0", "--connect", "tcp://127.0.0.1:1"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=restore_sigint,
    )
    try:
        assert "forwarding from tcp://127.0.0.1:" in relay.stderr.readline()
        while not catches(relay, number):
            pass
        relay.send_signal(number)
        assert "stopping" in relay.communicate(timeout=60)[1]
        assert relay.returncode == 0
    finally:
        relay.kill()


def test_control_c_ends_other_commands():
    """Control-C ends a command without a signal handler, here one that reads its input."""
    process = subprocess.Popen(
        [*MODULE, "inspect", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=restore_sigint,
    )
    try:
        while "_native" not in pathlib.Path(f"/proc/{process.pid}/maps").read_text():
            assert process.poll() is None
        while catches(process, signal.SIGINT):
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.stderr.read() == b""
    finally:
        process.kill()


def test_several_workers():
    """Worker processes are started by the same interpreter, with the same arguments."""
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster:
        options = ["--nworkers", "2", "--nthreads", "1", "--name", "rust", "--memory-limit", "1GiB"]
        workers = rust_worker(cluster.scheduler_address, *options)
        with workers, Client(cluster) as client:
            client.wait_for_workers(2, timeout=60)
            names = {worker["name"] for worker in client.scheduler_info()["workers"].values()}
            assert names == {"rust-0", "rust-1"}
