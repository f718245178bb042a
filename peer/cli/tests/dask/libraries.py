"""Runs programs of libraries on clusters of Dask, of daskwire and of both, and compares what they return.

Usage: PYTHON libraries.py DASKWIRE [PROGRAM...]

DASKWIRE is the path of the command. PYTHON has dask with array and dataframe, distributed, xarray, scikit-learn
and lightgbm; see `libraries.sh`. Each cluster has two workers, of the mixed one one is of Dask. Prefect is a check of
`managers.py`. Results must be equal, and no log may have a kind of warning that those of Dask's cluster do not have.
"""

import contextlib
import operator
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, as_completed

WAIT = 120  # seconds

# The part of a log's line that tells what has gone wrong; the scheduler of daskwire has no levels.
BAD = re.compile(r"(WARNING|ERROR|CRITICAL) - .{,24}|Traceback|panicked")
# What depends on the load of the machine.
HARMLESS = re.compile(r"unresponsive|full garbage collection|heartbeat")


def array(client):
    x = da.arange(40_000, chunks=4_000).reshape((200, 200)).rechunk((50, 50)).astype(float)
    y = (x + x.T) - x.mean(axis=0)
    return [
        float(y.sum().compute()),
        (x[:20] @ x[:, :20]).compute().tolist(),
        np.linalg.norm(da.linalg.qr(x.rechunk((50, 200)))[1].compute()).round(6).item(),
        da.percentile(x.ravel(), [10, 50, 90]).compute().tolist(),
    ]


def rechunk(client):
    """A rechunk by P2P."""
    with dask.config.set({"array.rechunk.method": "p2p"}):
        x = da.arange(90_000, chunks=9_000).reshape((300, 300)).rechunk((300, 10))
        return (x.rechunk((10, 300)) * 2).sum(axis=1).compute().tolist()


def frame():
    numbers = pd.DataFrame({"a": np.arange(3_000) % 17, "b": np.arange(3_000), "c": 1.5})
    numbers["d"] = numbers.a.map("value {}".format)
    return dd.from_pandas(numbers, npartitions=6)


def dataframe(client, method="tasks"):
    with dask.config.set({"dataframe.shuffle.method": method}):
        numbers = frame()
        other = dd.from_pandas(pd.DataFrame({"a": range(17), "e": range(0, 34, 2)}), npartitions=3)
        merged = numbers.merge(other, on="a", broadcast=False)
        return [
            numbers.groupby("d").agg({"b": "sum", "c": "mean"}).compute().sort_index().to_dict(),
            merged.compute().sort_values("b").e.tolist(),
            numbers.shuffle("a").compute().sort_values("b").d.tolist(),
            numbers.set_index("b", npartitions=4).loc[100:110].compute().d.tolist(),
            numbers.drop_duplicates(subset=["a"], split_out=2).a.sum().compute().item(),
        ]


def dataframe_p2p(client):
    return dataframe(client, "p2p")


def bag(client):
    numbers = db.from_sequence(range(1_000), npartitions=7)
    groups = numbers.groupby(lambda number: number % 5, shuffle="tasks")
    return [
        numbers.map(lambda number: number**2).filter(lambda number: number % 3).sum().compute(),
        sorted(groups.map(lambda group: (group[0], sum(group[1]))).compute()),
        sorted(numbers.foldby(lambda number: number % 7, operator.add).compute()),
        numbers.topk(3).compute(),
    ]


def delayed(client):
    layer = [dask.delayed(operator.neg)(number) for number in range(65)]
    while len(layer) > 1:
        layer = [dask.delayed(sum)(layer[i : i + 4]) for i in range(0, len(layer), 4)]
    persisted = client.persist(dask.delayed(operator.add)(layer[0], 1))
    return [layer[0].compute(), persisted.compute()]


def futures(client):
    scattered = client.scatter(np.arange(1_000), broadcast=True)
    sums = client.map(lambda number, values: int(values[number:].sum()), range(20), values=scattered)
    failing = client.submit(operator.truediv, 1, 0)
    return [
        sorted(future.result() for future in as_completed(sums)),
        repr(failing.exception()),
    ]


def xarray(client):
    import xarray

    days = pd.date_range("2025-01-01", periods=120)
    values = da.arange(120 * 60, chunks=600).reshape((120, 60)).astype(float)
    data = xarray.Dataset({"heat": (("time", "x"), values)}, coords={"time": days})
    parts = data.chunk({"time": 30, "x": 20})
    doubled = xarray.map_blocks(lambda block: block * 2, parts)
    return [
        parts.groupby("time.month").mean().heat.compute().values.tolist(),
        parts.heat.rolling(time=5).mean().isel(time=60).compute().values.tolist(),
        float(doubled.heat.sum().compute()),
        parts.persist().heat.std("time").compute().values.round(9).tolist(),
    ]


def sklearn(client):
    import joblib
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    # No nested parallelism: Dask loses data that several tasks of a worker scatter at first.
    values, labels = make_classification(200, random_state=1)
    tree = DecisionTreeClassifier(random_state=1)
    search = GridSearchCV(tree, {"max_depth": [2, 4], "min_samples_leaf": [1, 3]}, cv=3)
    forest = RandomForestClassifier(n_estimators=5, random_state=1)
    with joblib.parallel_config("dask"):
        search.fit(values, labels)
        forest.fit(values, labels)
    scores = search.cv_results_["mean_test_score"].round(9).tolist()
    return [search.best_params_, scores, forest.predict_proba(values[:20]).tolist()]


def lightgbm(client):
    import lightgbm

    values = da.random.default_rng(1).random((1_000, 4), chunks=(250, 4))
    target = values[:, 0] * 3 + values[:, 1]
    model = lightgbm.DaskLGBMRegressor(client=client, n_estimators=10, verbose=-1)
    model.fit(values, target)
    # Which worker has which part changes the model slightly.
    error = (model.predict(values) - target).std() / target.std()
    return bool(error.compute() < 0.5)


PROGRAMS = {
    program.__name__: program
    for program in (
        array,
        rechunk,
        dataframe,
        dataframe_p2p,
        bag,
        delayed,
        futures,
        xarray,
        sklearn,
        lightgbm,
    )
}


@contextlib.contextmanager
def cluster(scheduler, workers):
    """Starts a cluster. Yields a client, and a function that returns bad lines of its logs."""
    daskwire, python = os.path.abspath(sys.argv[1]), sys.executable
    commands = {
        "scheduler": {
            "dask": [python, "-m", "distributed.cli.dask_scheduler"],
            "daskwire": [daskwire, "scheduler", "--python", python],
        },
        "worker": {
            "dask": [python, "-m", "distributed.cli.dask_worker", "--no-nanny"],
            "daskwire": [daskwire, "worker", "--python", python],
        },
    }
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "scheduler.json"
        logs = []

        def start(role, kind, *arguments):
            logs.append(folder / f"{role}-{len(logs)}-{kind}.log")
            command = [*commands[role][kind], "--host", "127.0.0.1", *arguments]
            command += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", file]
            with open(logs[-1], "w") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait, WAIT)
            stack.callback(process.terminate)

        start("scheduler", scheduler, "--port", "0")
        deadline = time.monotonic() + WAIT
        while not file.exists():
            assert time.monotonic() < deadline, logs[0].read_text()
            time.sleep(0.1)
        for number, kind in enumerate(workers):
            own = ["--nthreads", "2", "--memory-limit", "2GiB", "--local-directory", folder]
            kind, *more = kind.split(maxsplit=1)
            own += " ".join(more).split()
            start("worker", kind, "--name", str(number), *own)

        def bad_lines():
            """The bad lines of all logs, by their kinds."""
            found = {}
            for log in logs:
                for line in log.read_text().splitlines():
                    if (bad := BAD.search(line)) and not HARMLESS.search(line):
                        found.setdefault(bad[0], f"{log.name}: {line}")
            return found

        with Client(scheduler_file=str(file), timeout=WAIT) as client:
            client.wait_for_workers(len(workers), timeout=WAIT)
            yield client, bad_lines


# The scheduler and the workers of each cluster; the results are those of the first.
ONE_PROCESS = "daskwire --python-processes 1"
CLUSTERS = {
    "Dask": ("dask", ["dask", "dask"]),
    "daskwire": ("daskwire", ["daskwire", "daskwire"]),
    "daskwire, one process for each worker": ("daskwire", [ONE_PROCESS, ONE_PROCESS]),
    "daskwire, workers of Dask": ("daskwire", ["dask", "dask"]),
    "mixed": ("daskwire", [ONE_PROCESS, "dask"]),
}
# It keeps a socket as a result, see `docs/src/own-worker.md`.
NEEDS_ONE_PROCESS = {"lightgbm"}


def main():
    programs = sys.argv[2:] or PROGRAMS
    expected, usual, failures = {}, set(), 0
    for name, (scheduler, workers) in CLUSTERS.items():
        with cluster(scheduler, workers) as (client, bad_lines):
            for program in programs:
                if "daskwire" in workers and program in NEEDS_ONE_PROCESS:
                    continue
                begun = time.monotonic()
                try:
                    result = PROGRAMS[program](client)
                    outcome = "equal"
                    if expected.setdefault(program, result) != result:
                        outcome = f"DIFFERENT: {result!r:.300}, not {expected[program]!r:.300}"
                except Exception as error:
                    outcome = f"FAILED: {error!r:.300}"
                failures += outcome != "equal"
                print(f"{name}: {program}: {outcome}, {time.monotonic() - begun:.1f} s", flush=True)
            logged = bad_lines()
        if scheduler == "dask":
            usual.update(logged)
        for kind in logged.keys() - usual:
            failures += 1
            print(f"{name}: LOGGED: {logged[kind]:.300}", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
