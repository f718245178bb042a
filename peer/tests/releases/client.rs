//! Checks of the client with a Python scheduler and two Python workers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use daskwire_cli::journey::{Form, Recorder, Step, journey};

use daskwire_comm::tls::TlsSettings;
use daskwire_messages::protocol::Unknown;
use daskwire_peer::client::{ClientOptions, Route, SubmitOptions};
use daskwire_peer::graph::{Argument, Function, Graph, Task};
use daskwire_peer::identity::{identity, options};
use daskwire_peer::worker::{Functions, Worker};
use daskwire_peer::{Array, Client, Key, Release, RequestError, Value};
use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Peer, TLS_PEM, scheduler_in};

use super::{Failure, Outcome, Trial, ensure, relay};

#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/fit.rs"]
mod fit;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/word_count.rs"]
mod word_count;

/// Timeout of a task. Only a defect causes a timeout.
const STEP: Duration = Duration::from_secs(120);

fn integer(value: Value) -> Result<i64, Failure> {
    Ok(i64::try_from(value)?)
}

pub(crate) async fn checks(trial: &mut Trial) {
    let release = trial.release.clone();
    let all = [&NAMES[..], &relay::NAMES].concat();
    if let Some(cluster) = trial.start(&all, |python| Cluster::with(python, 2)) {
        with(trial, cluster, &release).await;
    }
    over(trial, "tls", ["tls", "worker tls", "relay tls"]).await;
    over(trial, "ws", ["ws", "worker ws", "relay ws"]).await;
}

/// Checks over a transport other than TCP, with a client, a worker and a relay in Rust.
async fn over(trial: &mut Trial, scheme: &str, names: [&'static str; 3]) {
    if scheme == "ws" && !trial.has_module("distributed/comm/ws.py") {
        for name in names {
            trial.report.add(name, Outcome::NotMade);
        }
        return;
    }
    let Some(scheduler) = trial.start(&names, |python| scheduler_in(python, scheme, 1)) else {
        return;
    };
    let [client, worker, relay] = names;
    trial.check(client, client_over(&scheduler, scheme)).await;
    trial.check(worker, worker_over(&scheduler, scheme)).await;
    let python = trial.interpreter.clone();
    let through = relay::through_both(&python, scheduler.address(), scheme);
    trial.check(relay, through).await;
}

const NAMES: [&str; 13] = [
    "identity",
    "journey",
    "word_count",
    "fit",
    "scatter, gather",
    "direct transfer",
    "submit",
    "arrays",
    "graph",
    "references",
    "release",
    "client logs",
    "errors",
];

async fn with(trial: &mut Trial, mut cluster: Cluster, release: &str) {
    let address = cluster.scheduler.address().to_owned();
    let address = address.as_str();
    trial.check("identity", identify(address, release)).await;
    trial.check("journey", journeys(address)).await;
    trial.check("word_count", counts_words(address)).await;
    trial.check("fit", fits(address)).await;
    trial
        .check("scatter, gather", transfers(address, Route::Scheduler))
        .await;
    trial
        .check("direct transfer", transfers(address, Route::Direct))
        .await;
    trial.check("submit", submits(address)).await;
    trial.check("arrays", arrays(address)).await;
    trial.check("graph", graph(address)).await;
    trial.check("references", references(address)).await;
    trial
        .check("release", releases(address, &mut cluster))
        .await;
    trial
        .check("client logs", async {
            cluster
                .warning()
                .map_or(Ok(()), |(line, _)| Err(line.into()))
        })
        .await;
    // These checks log errors: workers log tasks that fail.
    let check = async {
        errors(address).await?;
        // Both sides of a change, and the newest release.
        if ["2022.6.0", "2022.6.1", "2026.8.0"].contains(&release) {
            registrations(address).await?;
        }
        Ok(())
    };
    trial.check("errors", check).await;
    relay::checks(trial, address).await;
}

async fn identify(address: &str, release: &str) -> Result<(), Failure> {
    let transports = daskwire_peer::transports();
    let (found, _) = identity(&address.parse()?, &transports, &options(STEP)).await?;
    let shown = found.release.map(|release| release.to_string());
    ensure!(shown.as_deref() == Some(release), "{shown:?}");
    ensure!(found.workers.len() == 2, "{:?}", found.workers);
    Ok(())
}

/// Runs the journey of the command, and checks each step that a client observes.
async fn journeys(address: &str) -> Result<(), Failure> {
    let recorder = Arc::new(Recorder::new(false));
    recorder.set_name(address, "scheduler");
    let options = ClientOptions::default().with_observer(Arc::<Recorder>::clone(&recorder));
    let client = Client::connect_with(address, options).await?;
    let mut shown = String::new();
    let mut show = |line: &str| shown.push_str(line);
    let outcome = journey(&client, &recorder, Form::Text { verbose: false }, &mut show).await?;
    ensure!(outcome.result == Value::from(10), "{}", outcome.result);
    let (_, followed) = shown.split_once("# we follow z").unwrap_or_default();
    let steps = [
        Step::Client,
        Step::Aftermath,
        Step::Gather,
        Step::Collection,
    ];
    let mut rest = followed;
    for step in steps {
        let found = rest.split_once(&step.to_string());
        let Some((_, after)) = found else {
            return Err(format!("{step} is missing, or too early: {shown}").into());
        };
        rest = after;
    }
    client.close().await?;
    Ok(())
}

async fn counts_words(address: &str) -> Result<(), Failure> {
    let files = ["a b a", "b a c", "a"].map(str::to_owned).to_vec();
    let counted = word_count::most_common(address, files).await;
    let counted = counted.map_err(|error| error.to_string())?;
    let expected = [("a", 4), ("b", 2), ("c", 1)].map(|(word, count)| (word.to_owned(), count));
    ensure!(counted == expected, "{counted:?}");
    Ok(())
}

async fn fits(address: &str) -> Result<(), Failure> {
    let fitted = fit::fit(address).await.map_err(|error| error.to_string())?;
    let close = |value: f64, expected: f64| (value - expected).abs() < 0.01;
    let [a, b, c] = fitted.coefficients;
    ensure!(
        close(a, 3.0) && close(b, -2.0) && close(c, 1.0) && fitted.largest < 0.11,
        "{fitted:?}"
    );
    Ok(())
}

// ROLES CLIENT-7, CLIENT-10, CLIENT-11, CLIENT-13
async fn transfers(address: &str, route: Route) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let array = Array::from_slice(&[3], &[1.5, 2.5, 3.5])?;
    let data = [
        ("number", Value::from(7)),
        ("string", Value::from("seven")),
        ("bytes", Value::bytes(vec![7; 100_000])),
        ("list", Value::list([1, 2, 3])),
        ("array", Value::from(array.clone())),
        ("nested", Value::dict([("a", Value::list([array.clone()]))])),
        (
            "byte strings",
            Value::list([Value::bytes(vec![8; 100_000]), Value::bytes(vec![9; 10])]),
        ),
        (
            "mixed",
            Value::Tuple(vec![Value::from(array.clone()), Value::from(1), Value::from("x")].into()),
        ),
    ];
    let values: Vec<Value> = data.iter().map(|(_, value)| value.clone()).collect();
    let keys = data.map(|(key, value)| (Key::from(format!("{key}-{route:?}")), value));
    let futures = client.scatter_by(keys, route).await?;
    let back = client.gather_by(&futures, route).await?;
    ensure!(back == values, "{back:?}");
    let holders = client.who_has(&futures).await?;
    ensure!(
        holders.iter().all(|(_, held)| !held.is_empty()),
        "{holders:?}"
    );
    // A worker reads the array in the list in the dictionary.
    let list = client.submit(
        "operator.getitem",
        [Argument::from(&futures[5]), Argument::from("a")],
    )?;
    let sum = client.submit("numpy.sum", [&list])?;
    let sum = f64::try_from(sum.result_within(STEP).await?)?;
    ensure!(sum == 7.5, "{sum}");
    client.close().await?;
    Ok(())
}

// ROLES CLIENT-1, CLIENT-2, CLIENT-3, CLIENT-4, CLIENT-9
async fn submits(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let x = client.submit("operator.add", [1, 2])?;
    let y = client.submit("operator.mul", [7, 6])?;
    let z = client.submit("operator.add", [&x, &y])?;
    ensure!(
        integer(z.result_within(STEP).await?)? == 45,
        "1 + 2 + 7 * 6"
    );
    // A string that equals a key
    let key = Key::from("a-key");
    let named = client.call("operator.neg").argument(1).key(key).submit()?;
    let same = client
        .call("operator.add")
        .argument("a-key")
        .argument("!")
        .submit()?;
    ensure!(
        same.result_within(STEP).await?.as_str() == Some("a-key!"),
        "a string stays a string"
    );
    ensure!(
        integer(named.result_within(STEP).await?)? == -1,
        "a key of its own"
    );
    let rounded = client
        .call("builtins.round")
        .argument(2.567)
        .keyword("ndigits", 1)
        .submit()?;
    ensure!(
        rounded.result_within(STEP).await? == Value::from(2.6),
        "a keyword argument"
    );
    let items = [Argument::from(&x), Argument::from(&y), Argument::from(1)];
    let sum = client.submit("builtins.sum", [Argument::list(items)])?;
    ensure!(
        integer(sum.result_within(STEP).await?)? == 46,
        "results in a list"
    );
    let entry = (Argument::from("k"), Argument::from(&y));
    let got = client.submit(
        "operator.getitem",
        [Argument::Dict(vec![entry]), Argument::from("k")],
    )?;
    ensure!(
        integer(got.result_within(STEP).await?)? == 42,
        "a result in a dictionary"
    );
    let tuple = Argument::Tuple(vec![Argument::from(&x), Argument::from(5)]);
    let max = client.submit("builtins.max", [tuple])?;
    ensure!(
        integer(max.result_within(STEP).await?)? == 5,
        "a result in a tuple"
    );
    let tuple = Value::Tuple(vec![Value::from(1), Value::from(2)].into());
    let plain = client.submit("builtins.len", [Argument::Value(tuple)])?;
    ensure!(
        integer(plain.result_within(STEP).await?)? == 2,
        "a plain tuple"
    );
    let partial = Function::Partial {
        function: Box::new(Function::python("builtins.pow")),
        arguments: vec![Argument::from(2)],
        keywords: Vec::new(),
    };
    let power = client.submit(partial, [10])?;
    ensure!(
        integer(power.result_within(STEP).await?)? == 1024,
        "a partial"
    );
    let many = client.map("operator.neg", 0..100)?;
    let many = client.gather(&many).await?;
    ensure!(
        many.len() == 100 && many[99] == Value::from(-99),
        "{many:?}"
    );
    let scattered = client.scatter([20, 22]).await?;
    let total = client.submit("operator.add", [&scattered[0], &scattered[1]])?;
    ensure!(
        integer(total.result_within(STEP).await?)? == 42,
        "scattered data"
    );
    let restricted = client
        .call("operator.add")
        .argument(&x)
        .argument(100)
        .with(
            SubmitOptions::default()
                .workers(["worker-1"])
                .retries(2)
                .priority(10.0),
        )
        .submit()?;
    ensure!(
        integer(restricted.result_within(STEP).await?)? == 103,
        "restricted to a worker"
    );
    let workers = client.workers().await?;
    ensure!(workers.len() == 2, "{workers:?}");
    client.close().await?;
    cancels(address).await
}

// ROLES CLIENT-6, CLIENT-8
async fn cancels(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let slow = client.submit("time.sleep", [1])?;
    client.cancel([&slow], true)?;
    let cancelled = slow.result_within(STEP).await;
    ensure!(cancelled.is_err(), "a cancelled task gives {cancelled:?}");
    // Wait until the scheduler has handled all of these messages.
    let data = client.scatter([1]).await?;
    let next = client.submit("operator.neg", [&data[0]])?;
    ensure!(
        integer(next.result_within(STEP).await?)? == -1,
        "-1 after cancelling"
    );
    client.close().await?;
    Ok(())
}

async fn errors(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let bad = client.submit("operator.truediv", [1, 0])?;
    let after = client.submit("operator.neg", [&bad])?;
    for future in [&bad, &after] {
        match future.result_within(STEP).await {
            Err(error) => ensure!(error.to_string().contains("division by zero"), "{error}"),
            Ok(value) => return Err(format!("{value}").into()),
        }
    }
    // The client and the scheduler remain usable.
    let good = client.submit("operator.add", [3, 4])?;
    ensure!(integer(good.result_within(STEP).await?)? == 7, "3 + 4");
    client.close().await?;
    Ok(())
}

/// A scheduler refuses a worker whose fields differ from those of its release.
// ROLES WORKER-1
async fn registrations(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let needs_server_id = client.release() >= Some(Release::new(2022, 6, 1));
    let mut registration = Unknown::new("register-worker")
        .field("address", "tcp://127.0.0.1:1")
        .field("status", "running");
    if !needs_server_id {
        registration = registration.field("server_id", "a-worker");
    }
    let expected = if needs_server_id {
        "missing"
    } else {
        "got an unexpected keyword argument"
    };
    // Unlike a worker, a client requests a reply, which contains the error.
    match client.request::<Value>(registration).await {
        Err(RequestError::Remote(error)) => {
            let text = error.to_string();
            ensure!(
                text.contains(expected) && text.contains("'server_id'"),
                "{error}"
            );
        }
        other => return Err(format!("{other:?}").into()),
    }
    let workers = client.workers().await?;
    ensure!(workers.len() == 2, "{workers:?}");
    client.close().await?;
    Ok(())
}

// ROLES CLIENT-10, CLIENT-13
async fn arrays(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let numbers: Vec<f64> = (0..100_000).map(f64::from).collect();
    let array = Array::from_slice(&[numbers.len()], &numbers)?;
    let sum = client.submit("numpy.sum", [Value::from(array.clone())])?;
    let sum = sum.result_within(STEP).await?;
    ensure!(f64::try_from(sum.clone())? == 4_999_950_000.0, "{sum}");
    let doubled = client.submit(
        "numpy.add",
        [Value::from(array.clone()), Value::from(array)],
    )?;
    let Value::Array(doubled) = doubled.result_within(STEP).await? else {
        return Err("numpy.add gives an array".into());
    };
    ensure!(doubled.to_vec::<f64>()?[99_999] == 199_998.0, "doubled");
    client.close().await?;
    Ok(())
}

// ROLES CLIENT-5
async fn graph(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let key = |level: i64, index: i64| Key::list([Key::from("tree"), level.into(), index.into()]);
    let mut tasks: Vec<Task> = (0..512)
        .map(|index| Task::new(key(0, index), "operator.mul", [index, 2]))
        .collect();
    let (mut width, mut level) = (512, 0);
    while width > 1 {
        (width, level) = (width / 2, level + 1);
        tasks.extend((0..width).map(|index| {
            let inputs = [key(level - 1, 2 * index), key(level - 1, 2 * index + 1)];
            Task::new(key(level, index), "operator.add", inputs)
        }));
    }
    ensure!(tasks.len() > 1000, "{} tasks", tasks.len());
    let root = vec![key(level, 0)];
    let futures = client.submit_graph(&Graph { tasks }, root, &SubmitOptions::default())?;
    let result = integer(futures[0].result_within(STEP).await?)?;
    ensure!(
        result == (0..512).map(|index| index * 2).sum::<i64>(),
        "{result}"
    );
    client.close().await?;
    Ok(())
}

/// In a graph, keys stand for results wherever they occur, and equal strings for
/// themselves.
// ROLES CLIENT-9
async fn references(address: &str) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let outside = client.submit("operator.add", [20, 1])?;
    let one = || Argument::from(Key::from("one"));
    let all = || vec![one(), Argument::from("one"), Argument::from(&outside)];
    let entry = |key: &str, value| (Argument::from(key), value);
    let plain = Value::list(["one", "two"]);
    let tasks = [
        Task::new("one", "operator.add", [1, 2]),
        Task::new("string", "operator.add", ["one", "!"]),
        Task::new("list", "builtins.repr", [Argument::list(all())]),
        Task::new("tuple", "builtins.repr", [Argument::Tuple(all())]),
        Task::new(
            "dict",
            "builtins.repr",
            [Argument::Dict(vec![
                entry("k", one()),
                entry("one", Argument::from("one")),
            ])],
        ),
        Task::new(
            "nested",
            "builtins.repr",
            [Argument::list([Argument::list([Argument::Tuple(all())])])],
        ),
        Task::new("plain", "builtins.repr", [Argument::Value(plain)]),
        Task::new("keyword", "builtins.dict", [0; 0])
            .keyword("a", one())
            .keyword("b", "one"),
    ];
    let expected = [
        ("string", "one!"),
        ("list", "[3, 'one', 21]"),
        ("tuple", "(3, 'one', 21)"),
        ("dict", "{'k': 3, 'one': 'one'}"),
        ("nested", "[[(3, 'one', 21)]]"),
        ("plain", "['one', 'two']"),
    ];
    let mut keys: Vec<Key> = expected.iter().map(|(key, _)| Key::from(*key)).collect();
    keys.push(Key::from("keyword"));
    let graph = Graph {
        tasks: tasks.into(),
    };
    let futures = client.submit_graph(&graph, keys, &SubmitOptions::default())?;
    for (future, (key, value)) in futures.iter().zip(expected) {
        let found = future.result_within(STEP).await?;
        ensure!(found.as_str() == Some(value), "{key}: {found}");
    }
    let keyword = futures[expected.len()].result_within(STEP).await?;
    let found = (keyword.get("a"), keyword.get("b"));
    ensure!(
        found == (Some(&Value::from(3)), Some(&Value::from("one"))),
        "{keyword}"
    );
    client.close().await?;
    Ok(())
}

// ROLES CLIENT-12
/// Released results are forgotten by the scheduler and by workers.
async fn releases(address: &str, cluster: &mut Cluster) -> Result<(), Failure> {
    let client = Client::connect(address).await?;
    let x = client.submit("operator.add", [1000, 1])?;
    let y = client.submit("operator.neg", [&x])?;
    ensure!(
        integer(y.result_within(STEP).await?)? == -1001,
        "-(1000 + 1)"
    );
    let keys = [x.key().clone(), y.key().clone()];
    drop((x, y));
    loop {
        let states = client.task_status(keys.clone()).await?;
        if states.iter().all(|(_, state)| state.is_none()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.close().await?;
    // Nothing of earlier clients remains, either.
    let code = "client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))";
    while cluster.try_python(code)? != "0" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn client_over(scheduler: &Peer, scheme: &str) -> Result<(), Failure> {
    let address = scheduler.address();
    ensure!(address.starts_with(&format!("{scheme}://")), "{address}");
    let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
    let options = ClientOptions::default()
        .with_transports(daskwire_peer::transports_with_tls(&settings.build()?));
    let client = Client::connect_with(address, options).await?;
    let data = client.scatter([1]).await?;
    let sum = client.submit(
        "operator.add",
        [Argument::from(&data[0]), Argument::from(1)],
    )?;
    ensure!(integer(sum.result_within(STEP).await?)? == 2, "1 + 1");
    client.close().await?;
    Ok(())
}

/// A Rust worker and a Python worker exchange data over a transport.
async fn worker_over(scheduler: &Peer, scheme: &str) -> Result<(), Failure> {
    let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
    let transports = daskwire_peer::transports_with_tls(&settings.build()?);
    let worker = Worker::builder(scheduler.address().parse()?)
        .name("rust")
        .functions(Functions::builtins())
        .transports(transports.clone())
        .start()
        .await?;
    ensure!(
        worker.address().starts_with(&format!("{scheme}://")),
        "{}",
        worker.address()
    );
    let options = ClientOptions::default().with_transports(transports);
    let client = Client::connect_with(scheduler.address(), options).await?;
    let mut last = client.submit("operator.add", [1, 2])?;
    for name in ["rust", "worker-0", "rust", "worker-0"] {
        let next = client.call("operator.neg").argument(&last);
        last = next
            .with(SubmitOptions::default().workers([name]))
            .submit()?;
    }
    let value = integer(last.result_within(STEP).await?)?;
    ensure!(value == 3, "{value}");
    ensure!(worker.transfers().received_len > 0, "nothing was fetched");
    client.close().await?;
    worker.close().await;
    let warnings = scheduler.warnings();
    ensure!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}
