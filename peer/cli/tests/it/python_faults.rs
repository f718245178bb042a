//! Tests of faults of a whole `daskwire worker --python`.

use std::fs;

use crate::support::scratch::Scratch;
use crate::support::worker;
use daskwire_testing::Peer;
use daskwire_testing::cluster::{Cluster, until};
use daskwire_testing::process::{children, has_ended, python_processes};

/// Starts a worker that spills data beyond 10 MiB.
fn spilling_worker(cluster: &Cluster, name: &str, scratch: &Scratch) -> Peer {
    worker::python_worker(
        cluster.scheduler.address(),
        name,
        &["--local-directory", scratch.path()],
        &[("DASK_DISTRIBUTED__WORKER__MEMORY__TARGET", "0.01")],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_replaced_and_leaves_nothing_behind() {
    let mut cluster = Cluster::new(0);
    let scratch = Scratch::new("python-killed");
    let killed = spilling_worker(&cluster, "killed", &scratch);
    let other = spilling_worker(&cluster, "other", &scratch);
    // Each task of the second half waits until the worker has been killed.
    cluster.python(
        "from distributed import Event, get_worker\n\
         def make(n): return np.full(200_000, float(n))\n\
         def add(x, y, waits):\n    if waits:\n        Event(f'runs on {get_worker().name}').set()\n        \
         Event('go').wait()\n    return x + 2 * y\n\
         xs = client.map(make, range(60))\n\
         wait(xs)\n\
         first = [client.submit(add, x, xs[-1 - n], False) for n, x in enumerate(xs[:20])]\n\
         wait(first)\n\
         rest = [client.submit(add, x, xs[39 - n], True) for n, x in enumerate(xs[20:])]\n\
         sums = client.map(np.sum, first + rest)\n\
         total = client.submit(sum, sums)\n\
         Event('runs on killed').wait()",
    );
    until("spilling", || scratch.files().len() > 8).await;
    let processes = [children(killed.id()), python_processes(killed.id())].concat();
    assert_eq!(processes.len(), 3);
    // With SIGKILL
    drop(killed);
    for id in &processes {
        until("the end of a Python process", || has_ended(id)).await;
    }
    let pairs = (0..20)
        .map(|n| n + 2 * (59 - n))
        .chain((0..40).map(|n| n + 20 + 2 * (39 - n)));
    let total: u64 = pairs.map(|sum| sum * 200_000).sum();
    assert_eq!(
        cluster.python("Event('go').set()\nint(total.result())"),
        total.to_string()
    );
    let count = || fs::read_dir(&scratch.0).expect("exists").count();
    assert_eq!(count(), 2, "the dead one and the other one");
    let again = spilling_worker(&cluster, "killed", &scratch);
    assert_eq!(count(), 2, "the new one and the other one");
    assert_eq!(
        cluster.python("client.submit(lambda x: int(x[0]), xs[7], workers='killed').result()"),
        "7"
    );
    cluster.python("del xs, first, rest, sums, total");
    until("the end of the data", || scratch.files().is_empty()).await;
    for mut worker in [again, other] {
        assert!(worker.terminate(), "it ends well: {}", worker.log());
    }
    assert_eq!(count(), 0);
}
