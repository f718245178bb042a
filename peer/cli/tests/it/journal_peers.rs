//! Data that clients have scattered, over each transport, after the scheduler was killed.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use daskwire_comm::tls::TlsSettings;
use daskwire_peer::client::{ClientOptions, SubmitOptions};
use daskwire_peer::graph::{Argument, Graph, Task};
use daskwire_peer::{Client, Key, transports_with_tls};
use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, TLS_ARGUMENTS, TLS_PEM, python};

use crate::scheduler_command::scheduler_at;
use crate::support::scratch::Scratch;
use crate::support::worker::{python_worker, rust_worker};

/// Kills a scheduler, and starts one with the same arguments at the same port.
pub(crate) fn kill(mut scheduler: Peer, arguments: &[&str]) -> Peer {
    let address = scheduler.address().to_owned();
    scheduler.signal("KILL");
    assert!(!scheduler.ended());
    drop(scheduler);
    let (_, port) = address.rsplit_once(':').expect("a port");
    let next = scheduler_at(port, arguments);
    assert_eq!(next.address(), address);
    next
}

#[tokio::test(flavor = "multi_thread")]
async fn scattered_data_and_results_outlive_a_scheduler_over_each_transport() {
    for scheme in ["tcp", "tls", "quic", "wss"] {
        let scratch = Scratch::new(&format!("journal-{scheme}"));
        let tls = match scheme {
            "tcp" => &[][..],
            _ => &TLS_ARGUMENTS[..],
        };
        let journal = ["--journal", scratch.path(), "--journal-sync", "always"];
        let arguments = [&journal[..], &["--protocol", scheme], tls].concat();
        let first = scheduler_at("0", &arguments);
        let address = first.address().to_owned();
        assert!(address.starts_with(scheme), "{address}");
        let threads = [&["--nthreads", "1"][..], tls].concat();
        let _worker = rust_worker(&address, "kept", None, &threads, &[]);
        let settings = TlsSettings::new(Path::new(TLS_PEM), Path::new(TLS_PEM));
        let transports = transports_with_tls(&settings.build().expect("valid files"));
        let options = ClientOptions::default().with_transports(transports);
        let client = Client::connect_with(&address, options)
            .await
            .expect("it connects");
        let mut futures = client.scatter([40]).await.expect("it is stored");
        let add = async |name: &str, number: i64| {
            let arguments = [Argument::from(futures[0].key()), Argument::from(number)];
            let graph: Graph = [Task::new(name, "operator.add", arguments)]
                .into_iter()
                .collect();
            let options = SubmitOptions::default();
            let added = client.submit_graph_when_connected(&graph, vec![Key::from(name)], &options);
            added.await.expect("it connects again").remove(0)
        };
        let sum = add("before", 2).await;
        client
            .gather(core::slice::from_ref(&sum))
            .await
            .expect("it is computed");
        let second = tokio::task::block_in_place(|| kill(first, &arguments));
        client
            .gather(core::slice::from_ref(&sum))
            .await
            .expect("it is kept");
        let later = add("after", 3).await;
        futures.extend([sum, later]);
        let results = client.gather(&futures).await;
        let results = results.unwrap_or_else(|error| panic!("{scheme}: {error}\n{}", second.log()));
        let results: Result<Vec<i64>, _> = results.into_iter().map(i64::try_from).collect();
        assert_eq!(results.expect("numbers"), [40, 42, 43], "{scheme}");
        let log = second.log();
        assert!(log.contains("continues with 2 tasks"), "{scheme}: {log}");
        client.close().await.expect("it is connected");
    }
}

/// On a worker in Rust: an actor, data and a result. On one of Dask: the same, and a shuffle is
/// between the two.
const BEFORE: &str = "\
import dask.array as da, os, uuid
class Counter:
    n = 0
    def add(self):
        self.n += 1
        return self.n

def noted(name):
    open(f'{folder}/{name}-{uuid.uuid4()}', 'w').close()
    return name

def late(block, block_info=None):
    while block_info[0]['chunk-location'][0] == 0 and not os.path.exists(f'{folder}/go'):
        time.sleep(0.01)
    return block

kept, lost = [{'workers': [name], 'allow_other_workers': True} for name in ('kept', 'lost')]
actor = client.submit(Counter, actor=True, **kept)
lost_actor = client.submit(Counter, actor=True, **lost)
counts = actor.result().add().result(), lost_actor.result().add().result()
data = client.scatter({'kept': 41}, workers=['kept'])['kept']
lost_data = client.scatter({'lost': 42}, workers=['lost'])['lost']
needs = client.submit(operator.add, lost_data, 1, key='needs')
results = [client.submit(noted, name, key=name, **place) for name, place in (('k', kept), ('l', lost))]
array = da.ones((8, 40), chunks=(1, 40)).map_blocks(late, dtype=float).rechunk((8, 5), method='p2p')
sum = client.compute(array.sum())
client.publish_dataset(
    actor=actor, lost_actor=lost_actor, data=data, lost_data=lost_data, needs=needs, results=results, sum=sum
)
wait([needs, *results])
counts, client.gather(results), needs.result()";

/// What another client finds.
const FOUND: [(&str, &str); 5] = [
    (
        "dataset = {name: client.get_dataset(name) for name in client.list_datasets()}\n\
         float(dataset['sum'].result(timeout=60))",
        "320.0",
    ),
    ("client.gather(dataset['results'])", "['k', 'l']"),
    ("dataset['data'].result(timeout=10)", "41"),
    (
        "dataset['actor'].result(timeout=10).add().result(timeout=10)",
        "2",
    ),
    (
        "dataset['lost_actor'].result(timeout=10).add().result(timeout=10)",
        "1",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn actors_shuffles_and_results_outlive_a_scheduler_with_mixed_workers() {
    let scratch = Scratch::new("journal-mixed");
    let noted = Scratch::new("journal-mixed-runs");
    let interpreter = python(Environment::Current);
    let interpreter = interpreter.to_str().expect("UTF-8");
    let arguments = [
        "--journal",
        scratch.path(),
        "--journal-sync",
        "always",
        "--python",
        interpreter,
    ];
    let client = |scheduler: Peer| {
        let interpreter = python(Environment::Current);
        let client = Peer::spawn_with(&interpreter, "worker_client.py", &[scheduler.address()]);
        Cluster { client, scheduler }
    };
    let mut before = client(scheduler_at("0", &arguments));
    let address = before.scheduler.address().to_owned();
    let _kept = python_worker(&address, "kept", &[], &[]);
    let lost = daskwire_testing::worker(&address, "lost");
    before.python("client.wait_for_workers(2, timeout=60)");
    before.python(&format!("folder = {:?}", noted.path()));
    assert_eq!(before.python(BEFORE), "((1, 1), ['k', 'l'], 43)");
    // Killed before the last input of the shuffle is there.
    let inputs =
        "len([key for keys in client.has_what().values() for key in keys if 'late' in str(key)])";
    let deadline = Instant::now() + Duration::from_secs(60);
    while before.python(inputs) != "7" {
        assert!(Instant::now() < deadline, "{}", before.scheduler.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let Cluster {
        client: ended,
        scheduler,
    } = before;
    drop(ended);
    let scheduler = tokio::task::block_in_place(|| kill(scheduler, &arguments));
    drop(lost);
    fs::write(noted.0.join("go"), "").expect("there is space");
    let _second = daskwire_testing::worker(&address, "second");
    let mut after = client(scheduler);
    for (code, value) in FOUND {
        let found = after.try_python(code);
        assert_eq!(
            found.as_deref(),
            Ok(value),
            "{code}: {}",
            after.scheduler.log()
        );
    }
    // Data that only a worker of Dask had is lost, and so is what needs it again.
    for name in ["lost_data", "needs"] {
        let lost = after.try_python(&format!("dataset['{name}'].result(timeout=10)"));
        let error = lost.expect_err("it is lost");
        assert!(error.contains("unknown key"), "{name}: {error}");
    }
    // What the worker in Rust had did not run again.
    let runs = format!(
        "import os\nsorted(name[0] for name in os.listdir({:?}))",
        noted.path()
    );
    assert_eq!(after.python(&runs), "['g', 'k', 'l', 'l']");
}
