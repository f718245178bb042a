//! Checks of the worker, beside a worker in Python, with a scheduler and a client
//! in Python.

use std::time::Duration;

use daskwire_peer::worker::{Ended, Functions, Worker};
use daskwire_testing::cluster::Cluster;

use super::{Failure, Outcome, Trial, ensure};

const NAMES: [&str; 9] = [
    "join",
    "map over both",
    "chains across",
    "worker errors",
    "data",
    "steal",
    "replicate",
    "heartbeats",
    "retire",
];

pub(crate) async fn checks(trial: &mut Trial) {
    let Some(mut cluster) = trial.start(&NAMES, |python| Cluster::with(python, 1)) else {
        trial
            .report
            .add("worker logs", Outcome::Fails("no cluster".to_owned()));
        return;
    };
    let address = cluster.scheduler.address().parse().expect("an address");
    let started = Worker::builder(address)
        .name("rust")
        .nthreads(1)
        .memory_limit(1 << 30)
        .functions(Functions::python().function("hypot", |x: f64, y: f64| x.hypot(y)))
        .start()
        .await;
    let worker = match started {
        Ok(worker) => worker,
        Err(error) => {
            for name in NAMES {
                trial
                    .check(name, async { Err(error.to_string().into()) })
                    .await;
            }
            trial.check("worker logs", logs(&cluster)).await;
            return;
        }
    };
    let mut code = Code(&mut cluster);
    trial.check("join", code.gives(JOIN)).await;
    trial.check("map over both", code.gives(MAP)).await;
    trial.check("chains across", code.gives(CHAINS)).await;
    trial.check("worker errors", code.errors()).await;
    trial.check("data", code.gives(DATA)).await;
    trial.check("steal", code.gives(STEAL)).await;
    trial.check("replicate", code.gives(REPLICATE)).await;
    trial.check("heartbeats", code.heartbeats(&worker)).await;
    trial.check("retire", code.retires(&worker)).await;
    trial.check("worker logs", logs(&cluster)).await;
}

async fn logs(cluster: &Cluster) -> Result<(), Failure> {
    cluster
        .warning()
        .map_or(Ok(()), |(line, _)| Err(line.into()))
}

/// Code for the client, and what it must give.
type Lines = &'static [(&'static str, &'static str)];

// ROLES WORKER-1
const JOIN: Lines = &[
    (
        "sorted(str(w['name']) for w in client.scheduler_info()['workers'].values())",
        "['rust', 'worker-0']",
    ),
    (
        "client.submit(operator.add, 1, 2, workers='rust').result()",
        "3",
    ),
    (
        "client.submit(native('hypot'), 3, 4, workers='rust').result()",
        "5.0",
    ),
];

// ROLES WORKER-2, WORKER-3, WORKER-4
const MAP: Lines = &[
    (
        "fs = client.map(operator.mul, range(300), range(300), workers=['rust', 'worker-0'])\n\
         sum(client.gather(fs)) == sum(n * n for n in range(300))",
        "True",
    ),
    (
        "len({w for ws in client.who_has(fs).values() for w in ws})",
        "2",
    ),
    ("del fs", "None"),
    (
        "f = client.submit(operator.add, 0, 1, pure=False)\n\
         for _ in range(50): f = client.submit(operator.add, f, 1, pure=False)\n\
         f.result()",
        "51",
    ),
    (
        "client.submit(sorted, [3, 1, 2], reverse=True, workers='rust').result()",
        "[3, 2, 1]",
    ),
    (
        "client.submit(operator.add, 'x', 'y', key=('block', 0), workers='rust').result()",
        "'xy'",
    ),
    (
        "import functools\n\
         client.submit(functools.partial(pow, 2), 10, workers='rust').result()",
        "1024",
    ),
    (
        "a, b = client.submit(operator.neg, 1), client.submit(operator.neg, 2)\n\
         client.submit(sum, [a, b, 10], workers='rust').result()",
        "7",
    ),
    (
        "client.submit(operator.getitem, {'k': a}, 'k', workers='rust').result()",
        "-1",
    ),
    (
        "import dask\n\
         dask.delayed(sum)([dask.delayed(operator.add)(i, a) for i in range(20)]).compute(workers='rust')",
        "170",
    ),
];

const CHAINS: Lines = &[
    (
        "x = client.submit(np.arange, 1e4, workers='worker-0')\n\
         y = client.submit(len, x, workers='rust')\n\
         z = client.submit(operator.add, y, 1, workers='worker-0')\n\
         client.submit(operator.neg, z, workers='rust').result()",
        "-10001",
    ),
    (
        "xs = client.map(operator.add, range(50), range(50), workers=['rust', 'worker-0'], pure=False)\n\
         ys = [client.submit(sum, xs[i::10], workers='rust' if i % 2 else 'worker-0') for i in range(10)]\n\
         client.submit(sum, ys, workers='rust').result()",
        "2450",
    ),
    ("del x, y, z, xs, ys", "None"),
];

const DATA: Lines = &[
    (
        "x = client.scatter(np.arange(1e5), workers='rust')\n\
         float(client.submit(np.sum, x, workers='worker-0').result())",
        "4999950000.0",
    ),
    (
        "(client.gather(x) == np.arange(1e5)).all() and client.submit(len, x, workers='rust').result()",
        "100000",
    ),
    (
        "o = client.scatter({1: [object]}, workers='rust', hash=False)\n\
         (client.gather(o), client.gather(o, direct=True)) == ({1: [object]}, {1: [object]})",
        "True",
    ),
    ("del x, o", "None"),
];

const STEAL: Lines = &[(
    "client.submit(time.sleep, 0.1, workers='rust', pure=False).result()\n\
     client.submit(time.sleep, 0.1, workers='worker-0', pure=False).result()\n\
     fs = [client.submit(time.sleep, 0.1 + i / 1000, workers='rust', allow_other_workers=True)\n\
           for i in range(40)]\n\
     wait(fs)\n\
     where = [w[0] for w in client.who_has(fs).values()]\n\
     n = len(set(where))\n\
     del fs\n\
     n",
    "2",
)];

const REPLICATE: Lines = &[
    (
        "x = client.submit(operator.add, 'a', 'b', workers='rust')\n\
         y = client.submit(operator.add, 'c', 'd', workers='worker-0')\n\
         wait([x, y]) and None\n\
         client.replicate([x, y], n=2)\n\
         client.gather([x, y])",
        "['ab', 'cd']",
    ),
    ("del x, y", "None"),
];

struct Code<'c>(&'c mut Cluster);

impl Code<'_> {
    async fn gives(&mut self, lines: Lines) -> Result<(), Failure> {
        for (code, value) in lines {
            let found = self
                .0
                .try_python(code)
                .map_err(|error| format!("{code}: {error}"))?;
            let is_empty = *value == "None" && found.is_empty();
            ensure!(found == *value || is_empty, "{code}: {found}");
        }
        Ok(())
    }

    async fn errors(&mut self) -> Result<(), Failure> {
        for (code, error) in [
            (
                "client.submit(operator.truediv, 1, 0, workers='rust').result()",
                "ZeroDivisionError: division by zero",
            ),
            (
                "client.submit(operator.neg, client.submit(int, 'x', workers='rust'), workers='worker-0').result()",
                "ValueError: invalid literal for int() with base 10: 'x'",
            ),
            (
                "client.submit(lambda x: x, 1, workers='rust').result()",
                "NotImplementedError: ",
            ),
            (
                "client.submit(native('nothing'), workers='rust').result()",
                "NotImplementedError: ",
            ),
        ] {
            match self.0.try_python(code) {
                Err(found) => ensure!(found.starts_with(error), "{code}: {found}"),
                Ok(value) => return Err(format!("{code}: {value}").into()),
            }
        }
        self.gives(&[(
            "client.submit(operator.add, 1, 1, workers='rust').result()",
            "2",
        )])
        .await
    }

    // ROLES WORKER-6
    /// The scheduler keeps the worker, and all that was released is gone from it.
    async fn heartbeats(&mut self, worker: &Worker) -> Result<(), Failure> {
        let code = "a = b = f = None\n\
                    m = [w['metrics'] for w in client.scheduler_info()['workers'].values() if w['name'] == 'rust'][0]\n\
                    m['memory'] > 0";
        let found = self.0.try_python(code)?;
        ensure!(found == "True", "{found}");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let seen = "[time.time() - w['last_seen'] < 3 for w in client.scheduler_info()['workers'].values()]";
        let found = self.0.try_python(seen)?;
        ensure!(found == "[True, True]", "{found}");
        ensure!(worker.keys().is_empty(), "{:?}", worker.keys());
        Ok(())
    }

    async fn retires(&mut self, worker: &Worker) -> Result<(), Failure> {
        let code = "fs = client.map(operator.add, range(50), range(50), workers='rust')\n\
                    wait(fs) and None\n\
                    name = {i['name']: w for w, i in client.scheduler_info()['workers'].items()}\n\
                    retired = client.retire_workers([name['rust']])\n\
                    sum(client.gather(fs))";
        let found = self.0.try_python(code)?;
        ensure!(found == "2450", "{found}");
        let ended = tokio::time::timeout(Duration::from_secs(20), worker.ended()).await?;
        ensure!(matches!(ended, Ended::ByScheduler { .. }), "{ended}");
        Ok(())
    }
}
