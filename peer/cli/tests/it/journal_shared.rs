//! Objects that clients in Python share, after the scheduler was killed.

use std::fs;
use std::time::Duration;

use daskwire_peer::Client;

use crate::journal_peers::kill;
use crate::scheduler_command::scheduler_at;
use crate::support::scratch::Scratch;
use crate::support::worker::python_worker;
use daskwire_testing::cluster::Cluster;
use daskwire_testing::{Environment, Peer, python};

/// Puts something into each kind of object. The lock, the semaphore and the event stay as they are.
const SHARE: &str = "\
from distributed import Event, Lock, Queue, Semaphore, Variable
x = client.submit(lambda: 41 + 1, key='x')
x.result()
Variable('future').set(x)
Variable('data').set({'a': [1, 'b']})
queue = Queue('queue')
for value in [1, x, 'three']: queue.put(value)
Event('event').set()
lock, semaphore = Lock('lock'), Semaphore(3, 'semaphore')
client.set_metadata(['place', 'x'], 3)
client.publish_dataset(dataset=[x, 5])
lock.acquire(), semaphore.acquire(), queue.get()";

/// A list that is not in a pickle arrives as a tuple, as from Dask's scheduler.
const DATA: (&str, &str) = ("Variable('data').get(timeout=5)", "{'a': (1, 'b')}");

/// What a client finds, after the imports.
const FOUND: [(&str, &str); 9] = [
    (
        "from distributed import Event, Lock, Queue, Semaphore, Variable\nVariable('future').get(timeout=5).result()",
        "42",
    ),
    DATA,
    ("queue = Queue('queue')\nqueue.qsize()", "2"),
    (
        "queue.get(timeout=5).result(), queue.get(timeout=5)",
        "(42, 'three')",
    ),
    ("Event('event').is_set()", "True"),
    ("Lock('lock').acquire(timeout=1)", "False"),
    ("Semaphore(3, 'semaphore').get_value()", "1"),
    ("client.get_metadata(['place', 'x'])", "3"),
    (
        "future, number = client.get_dataset('dataset')\nfuture.result(), number, client.list_datasets()",
        "(42, 5, ('dataset',))",
    ),
];

fn client(scheduler: Peer) -> Cluster {
    let interpreter = python(Environment::Current);
    let client = Peer::spawn_with(&interpreter, "worker_client.py", &[scheduler.address()]);
    Cluster { client, scheduler }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_what_another_has_shared_before_the_scheduler_was_killed() {
    let scratch = Scratch::new("journal-shared");
    let journal = ["--journal", scratch.path(), "--journal-sync", "always"];
    let mut before = client(scheduler_at("0", &journal));
    let address = before.scheduler.address().to_owned();
    let _worker = python_worker(&address, "kept", &[], &[]);
    assert_eq!(before.python(SHARE), "(True, True, 1)");
    assert_eq!(before.python(DATA.0), DATA.1);
    // First the client, which keeps the lock, then the scheduler.
    let Cluster {
        client: sharing,
        mut scheduler,
    } = before;
    drop(sharing);
    scheduler.signal("KILL");
    assert!(!scheduler.ended());
    drop(scheduler);

    let (_, port) = address.rsplit_once(':').expect("a port");
    let mut after = client(scheduler_at(port, &journal));
    assert_eq!(after.scheduler.address(), address);
    for (code, value) in FOUND {
        assert_eq!(after.python(code), value, "{code}");
    }
}

/// What the guide says is lost, or has to be done again.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_logs_and_waiting_requests_do_not_outlive_a_scheduler() {
    let scratch = Scratch::new("journal-lost");
    let files = Scratch::new("journal-lost-files");
    let uploaded = files.0.join("uploaded.py");
    fs::write(&uploaded, "VALUE = 7").expect("there is space");
    let journal = ["--journal", scratch.path(), "--journal-sync", "always"];
    let mut before = client(scheduler_at("0", &journal));
    let address = before.scheduler.address().to_owned();
    let _kept = python_worker(&address, "kept", &[], &[]);
    before.python("client.wait_for_workers(1, timeout=60)");
    let value = |on: &str| {
        format!(
            "client.submit(lambda: __import__('uploaded').VALUE, workers=['{on}'], pure=False).result(timeout=60)"
        )
    };
    before.python(&format!("client.upload_file({uploaded:?})"));
    assert_eq!(before.python(&value("kept")), "7");
    assert_eq!(
        before.python("client.log_event('topic', 1)\nlen(client.get_events('topic'))"),
        "1"
    );
    let [holder, waiting] = [(); 2].map(|()| Client::connect(&address));
    let (holder, waiting) = (
        holder.await.expect("it connects"),
        waiting.await.expect("it connects"),
    );
    let lock = holder.lock("lock").await.expect("it is made");
    let lease = lock.acquire(None).await.expect("it is free");
    let lock = waiting.lock("lock").await.expect("it is there");
    let acquiring = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire(Some(Duration::from_secs(60))).await }
    });
    let Cluster {
        client: ended,
        scheduler,
    } = before;
    drop(ended);
    let scheduler = tokio::task::block_in_place(|| kill(scheduler, &journal));
    let cut = acquiring.await.expect("it does not panic");
    let error = cut.expect_err("its connection has ended");
    assert!(error.is_retryable(), "{error}");
    let again = tokio::spawn(async move { lock.acquire(Some(Duration::from_secs(60))).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!again.is_finished(), "the other client has the lock");
    drop(lease);
    let again = again.await.expect("it does not panic");
    drop(again.expect("the lock is free"));

    let mut after = client(scheduler);
    let log = after.scheduler.log();
    assert!(log.contains("have to be registered again"), "{log}");
    assert_eq!(after.python("client.get_events('topic')"), "()");
    // The worker that stayed still has the file, and one that joins gets it only once it is uploaded again.
    let _late = python_worker(&address, "late", &[], &[]);
    after.python("client.wait_for_workers(2, timeout=60)");
    assert_eq!(after.python(&value("kept")), "7");
    let error = after
        .try_python(&value("late"))
        .expect_err("it is not there");
    assert!(error.contains("No module named 'uploaded'"), "{error}");
    after.python(&format!("client.upload_file({uploaded:?})"));
    assert_eq!(after.python(&value("late")), "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_a_client_shuts_down_is_over() {
    let scratch = Scratch::new("journal-shut-down");
    let journal = ["--journal", scratch.path()];
    let mut before = client(scheduler_at("0", &journal));
    let address = before.scheduler.address().to_owned();
    let mut worker = python_worker(&address, "worker", &[], &[]);
    assert_eq!(
        before.python("x = client.submit(lambda: 42, key='x')\nx.result(timeout=60)"),
        "42"
    );
    before.python("client.shutdown()");
    assert!(before.scheduler.ended(), "{}", before.scheduler.log());
    assert!(worker.ended(), "{}", worker.log());
    // What clients had wanted is over, too.
    let (_, port) = address.rsplit_once(':').expect("a port");
    let after = client(scheduler_at(port, &journal));
    let log = after.scheduler.log();
    assert!(!log.contains("continues with"), "{log}");
}
