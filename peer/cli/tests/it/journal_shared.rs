//! Objects that clients in Python share, after the scheduler was killed.

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
