//! Tests of the data of Rust workers in a real Dask cluster: spilled to disk and read
//! back, moved, lost and recomputed.

use crate::support::worker;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::support::scratch::Scratch;
use daskwire_peer::WorkerStatus;
use daskwire_peer::client::{ClientOptions, Route};
use daskwire_peer::worker::{Builder, Functions, MemoryThresholds, Worker};
use daskwire_peer::{Client, Value};
use daskwire_testing::Peer;
use daskwire_testing::cluster::{Cluster, until};

/// Configures a worker in this process that spills all data.
fn spilling(cluster: &Cluster, name: &str, scratch: &Scratch) -> Builder {
    let address = cluster.scheduler.address().parse().expect("an address");
    Worker::builder(address)
        .name(name)
        .nthreads(2)
        .functions(Functions::builtins().function("zeros", |len: usize| Value::bytes(vec![0; len])))
        .memory_limit(1 << 30)
        .memory_thresholds(
            MemoryThresholds::default()
                .with_target(0.0)
                .with_spill(None)
                .with_pause(None),
        )
        .local_directory(scratch.path())
}

fn rust_worker(cluster: &Cluster, name: &str, scratch: &Scratch, arguments: &[&str]) -> Peer {
    let own = [
        "--no-nanny",
        "--local-directory",
        scratch.path(),
        "--nthreads",
        "2",
    ];
    let arguments = [&own[..], arguments].concat();
    worker::rust_worker(cluster.scheduler.address(), name, None, &arguments, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn forwards_data_through_disk_without_deserializing() {
    let mut cluster = Cluster::new(1);
    let scratch = Scratch::new("forwarding");
    // Data that only the Python worker has is fetched directly from it.
    let code = "df = pd.DataFrame({'a': range(100000), 'b': list('abcd') * 25000})\n\
                made = [df, np.arange(1e6).reshape(1000, 1000).T, b'x' * 3000000, {'k': [1, df]},\n\
                        np.random.default_rng(1).random(5 << 20)]\n\
                futures = client.scatter(made, workers='worker-0', hash=False)\n\
                client.amm.stop()\n\
                [f.key for f in futures]";
    let keys = cluster.python(code).replace('\'', "\"");
    let keys: Vec<String> = serde_json::from_str(&keys).expect("a list of strings");
    let options = ClientOptions::default().with_route(Route::Direct);
    let client = Client::connect_with(cluster.scheduler.address(), options)
        .await
        .expect("it connects");
    let futures: Vec<_> = keys
        .iter()
        .map(|key| client.future(key.as_str()).expect("exists"))
        .collect();
    let before = client.gather_serialized(&futures, Route::Direct).await;
    let before = before.expect("all are there");

    // Another worker fetches the data, and spills it.
    let worker = spilling(&cluster, "rust", &scratch).start().await;
    let worker = worker.expect("worker starts");
    let code = "name = {i['name']: w for w, i in client.scheduler_info()['workers'].items()}\n\
                client.replicate(futures, n=2)\n\
                client.retire_workers([name['worker-0']])\n\
                {w for ws in client.who_has(futures).values() for w in ws} == {name['rust']}";
    assert_eq!(cluster.python(code), "True");
    until("spilling", || worker.holdings().memory_len == 0).await;
    assert_eq!(scratch.files().len(), futures.len());
    let after = client.gather_serialized(&futures, Route::Direct).await;
    let after = after.expect("all are there");
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.header(), after.header());
        assert_eq!(before.frames(), after.frames(), "frame for frame");
    }
    let code = "back = client.gather(futures)\n\
                (back[0].equals(df), (back[1] == made[1]).all(), back[2] == made[2],\n\
                 back[3]['k'][1].equals(df), (back[4] == made[4]).all())";
    assert_eq!(
        cluster.python(code),
        "(True, np.True_, True, True, np.True_)"
    );
    let counters = worker.counters();
    assert_eq!(counters.deserialized.count, 0);
    assert_eq!(counters.serialized.count, 0);
    assert_eq!(counters.copied_len, 0);
    assert!(counters.spilled.count >= 5 && counters.unspilled.count >= 10);
    client.close().await.expect("it closes");
    cluster.check_logs();
    worker.close().await;
    assert!(scratch.files().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_max_spill_goes_to_disk() {
    let mut cluster = Cluster::new(0);
    let scratch = Scratch::new("max-spill");
    let notices: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&notices);
    let worker = spilling(&cluster, "rust", &scratch)
        .max_spill(3_500_000)
        .on_notice(move |notice| heard.lock().expect("no panic").push(notice.to_owned()))
        .start()
        .await
        .expect("worker starts");
    let code = "xs = client.map(operator.mul, [bytes([i]) for i in range(10)], [1000000] * 10)\n\
                wait(xs)\n\
                sum(client.gather(client.map(len, xs)))";
    assert_eq!(cluster.python(code), "10000000");
    let is_told = || {
        let notices = notices.lock().expect("no panic");
        notices.iter().any(|notice| notice.contains("(max-spill)"))
    };
    until("a notice", is_told).await;
    // `len` may have read all of the data back, whose files are kept.
    until("spilling", || worker.holdings().spilled_len > 1_000_000).await;
    let holdings = worker.holdings();
    assert!(holdings.memory_len >= 6_000_000, "{holdings:?}");
    let files = scratch.files();
    let len = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    let disk_len: u64 = files.iter().map(len).sum();
    // Each file has a header and a checksum beside the data.
    assert!(disk_len <= 3_501_000, "{disk_len} in {files:?}");
    // Once there is room on disk, data is spilled again.
    cluster.python("del xs");
    until("releasing", || worker.keys().is_empty()).await;
    let code = "x = client.submit(operator.mul, b'x', 3000000)\nwait(x) and None";
    cluster.python(code);
    until("spilling", || worker.holdings().disk_count == 1).await;
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_read_inputs_from_disk_and_metrics_report_it() {
    let mut cluster = Cluster::new(1);
    let scratch = Scratch::new("tasks");
    let worker = spilling(&cluster, "rust", &scratch).start().await;
    let worker = worker.expect("worker starts");
    // The active memory manager would drop one of the copies that both workers fetch.
    let code = "client.amm.stop()\n\
                xs = client.map(operator.mul, [bytes([i]) for i in range(20)], [1000000] * 20, workers='rust')\n\
                wait(xs)\n\
                len(xs)";
    assert_eq!(cluster.python(code), "20");
    until("spilling", || worker.holdings().memory_len == 0).await;
    let code = "ns = client.map(len, xs, workers='rust')\n\
                here = client.submit(len, xs[3], workers='worker-0', pure=False)\n\
                (sum(client.gather(ns)), here.result())";
    assert_eq!(cluster.python(code), "(20000000, 1000000)");
    assert!(worker.counters().unspilled.count > 20);
    let tasks = worker.task_counters();
    assert_eq!(tasks["len"].count, 20);
    assert_eq!(tasks["len"].unspilled.count, 20);
    // The statistics for the dashboard and the active memory manager
    let code = "address = next(w for w, i in client.scheduler_info()['workers'].items() if i['name'] == 'rust')\n\
                def memory(dask_scheduler):\n\
                \x20   worker = dask_scheduler.workers[address]\n\
                \x20   return worker.memory.spilled, worker.memory.managed, worker.metrics['spilled_bytes']\n\
                spilled, managed, bytes_ = client.run_on_scheduler(memory)\n\
                (spilled // 1000000, bytes_['memory'] // 1000000, managed < 1000000)";
    let is_reported = || {
        let found = cluster.python(code);
        // Visible in the output if the test fails.
        println!("{found}");
        found == "(20, 20, True)"
    };
    until("a heartbeat", is_reported).await;
    let code = "def reads(dask_scheduler):\n\
                \x20   return [d for g in dask_scheduler.task_prefixes['len'].groups for d in g.all_durations]\n\
                'disk-read' in client.run_on_scheduler(reads)";
    assert_eq!(cluster.python(code), "True");
    cluster.check_logs();
}

/// Flips a bit of each spill file, and returns the number of files.
fn damage(scratch: &Scratch) -> usize {
    let files = scratch.files();
    for path in &files {
        let mut file = fs::read(path).expect("exists");
        let at = file.len() / 2;
        file[at] ^= 1;
        fs::write(path, file).expect("writable directory");
    }
    files.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn recomputes_data_damaged_on_disk() {
    let mut cluster = Cluster::new(1);
    let scratch = Scratch::new("damaged");
    let notices = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&notices);
    let worker = spilling(&cluster, "rust", &scratch)
        .on_notice(move |message| log.lock().expect("unpoisoned").push(message.to_owned()))
        .start()
        .await
        .expect("worker starts");
    let code = "x = client.submit(operator.mul, b'ab', 1000000, workers='rust')\n\
                y = client.submit(operator.mul, b'abc', 1000000, workers='rust')\n\
                wait([x, y])\n\
                len([x, y])";
    assert_eq!(cluster.python(code), "2");
    until("spilling", || worker.holdings().memory_len == 0).await;
    assert_eq!(damage(&scratch), 2);
    // A task on this worker needs one of the keys, a task on the Python worker the other.
    let code = "here = client.submit(len, x, workers='rust')\n\
                there = client.submit(len, y, workers='worker-0')\n\
                (here.result(), there.result())";
    assert_eq!(cluster.python(code), "(2000000, 3000000)");
    until("spilling", || worker.holdings().memory_len == 0).await;
    assert_eq!(worker.counters().lost_count, 2);
    assert_eq!(notices.lock().expect("unpoisoned").len(), 2);
    let code = "events = [e['text'] for _, e in client.get_events('worker-notice')]\n\
                (len(events), all('its data is lost' in e for e in events))";
    assert_eq!(cluster.python(code), "(2, True)");
    // Data that is damaged again is recomputed again.
    damage(&scratch);
    assert_eq!(
        cluster.python("len(client.submit(operator.add, x, y, workers='rust').result())"),
        "5000000"
    );
    assert_eq!(worker.status(), WorkerStatus::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_with_failing_disk_keeps_data_in_memory() {
    let mut cluster = Cluster::new(0);
    let scratch = Scratch::new("failing");
    let worker = spilling(&cluster, "rust", &scratch).start().await;
    let worker = worker.expect("worker starts");
    for entry in fs::read_dir(&scratch.0).expect("exists").flatten() {
        fs::remove_dir_all(entry.path()).expect("it is ours");
    }
    let code = "xs = client.map(operator.mul, [bytes([i]) for i in range(20)], [100000] * 20)\n\
                sum(map(len, client.gather(xs)))";
    assert_eq!(cluster.python(code), "2000000");
    until("failing", || worker.counters().spill_failure_count > 0).await;
    assert_eq!(
        cluster.python("sum(client.gather(client.map(len, xs)))"),
        "2000000"
    );
    let code = "[e['text'].split(':')[0] for _, e in client.get_events('worker-notice')]";
    assert_eq!(
        cluster.python(code),
        "['cannot write to disk, and data stays in memory']"
    );
    assert_eq!(worker.counters().spilled.count, 0);
    cluster.check_logs();
}

/// The peak resident memory of a process in bytes.
fn peak(peer: &Peer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", peer.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("Linux reports it") * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn computes_with_four_times_the_memory_limit() {
    const LIMIT: u64 = 256 << 20;
    let mut cluster = Cluster::new(0);
    let scratch = Scratch::new("four-times");
    let limit = LIMIT.to_string();
    let mut worker = rust_worker(
        &cluster,
        "rust",
        &scratch,
        &["--memory-limit", limit.as_str()],
    );
    // 128 arrays of 8 MiB, all of which are kept until the end
    let code = "xs = [client.submit(native('linspace'), i, i + 1, 1 << 20) for i in range(128)]\n\
                wait(xs)\n\
                hashes = client.map(native('sha256'), xs, pure=False)\n\
                import hashlib\n\
                some = (0, 64, 127)\n\
                pairs = [client.submit(native('dot'), xs[i], xs[i], pure=False) for i in some]\n\
                expected = [np.linspace(i, i + 1, 1 << 20) for i in some]\n\
                (client.gather(hashes) == [hashlib.sha256(np.linspace(i, i + 1, 1 << 20)).hexdigest() for i in range(128)],\n\
                 all(abs(pair.result() / float(e @ e) - 1) < 1e-9 for pair, e in zip(pairs, expected)),\n\
                 all((xs[i].result() == e).all() for i, e in zip(some, expected)))";
    assert_eq!(cluster.python(code), "(True, True, True)");
    assert!(scratch.files().len() > 64, "most of it is on disk");
    let peak = peak(&worker);
    assert!(
        peak <= LIMIT + LIMIT / 10,
        "{} MiB of memory with a limit of {} MiB",
        peak >> 20,
        LIMIT >> 20
    );
    // Releasing data removes it from disk, too.
    cluster.python("del xs, hashes, pairs");
    until("removing", || scratch.files().is_empty()).await;
    cluster.check_logs();
    assert!(worker.terminate(), "it ends well: {}", worker.log());
    let left = fs::read_dir(&scratch.0).expect("exists").count();
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_is_replaced_and_its_files_are_removed() {
    let mut cluster = Cluster::new(1);
    let scratch = Scratch::new("killed");
    let limit = ["--memory-limit", "128MiB"];
    let killed = rust_worker(&cluster, "killed", &scratch, &limit);
    let _other = rust_worker(&cluster, "other", &scratch, &limit);
    let code = "xs = [client.submit(native('linspace'), i, i + 1, 1 << 19, workers=['killed', 'other'],\n\
                \x20                   allow_other_workers=False) for i in range(64)]\n\
                ys = [client.submit(native('mean'), x, workers=['killed', 'other']) for x in xs]\n\
                zs = [client.submit(operator.add, y, time.sleep(0.001) or i) for i, y in enumerate(ys)]\n\
                wait(xs)\n\
                slow = [client.submit(time.sleep, 0.05 + i / 1e6, workers=['killed', 'other']) for i in range(40)]\n\
                more = [client.submit(native('dot'), x, xs[-i], workers=['killed', 'other']) for i, x in enumerate(xs)]\n\
                total = client.submit(sum, zs)\n\
                len(more)";
    assert_eq!(cluster.python(code), "64");
    until("spilling", || scratch.files().len() > 8).await;
    drop(killed);
    let code = "wait(slow + more)\n\
                (round(total.result(), 6), {f.status for f in more + slow})";
    assert_eq!(cluster.python(code), "(4064.0, {'finished'})");
    let count = || fs::read_dir(&scratch.0).expect("exists").count();
    assert_eq!(count(), 2, "the dead one and the other one");
    let _again = rust_worker(&cluster, "killed", &scratch, &limit);
    assert_eq!(count(), 2, "the new one and the other one");
    assert_eq!(
        cluster.python("client.submit(operator.add, 1, 1, workers='killed').result()"),
        "2"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn graphs_are_computed_by_one_worker_in_python_and_two_in_rust() {
    let mut cluster = Cluster::new(1);
    let scratch = Scratch::new("mixed");
    let limit = ["--memory-limit", "1GiB"];
    let mut one = rust_worker(&cluster, "one", &scratch, &limit);
    let _two = rust_worker(&cluster, "two", &scratch, &limit);
    for (code, value) in [
        // Alternating: computed in Rust, modified in Python, summed in Rust
        (
            "xs = [client.submit(native('linspace'), i, i + 1, 10001, workers=['one', 'two']) for i in range(30)]\n\
             ys = [client.submit(np.multiply, x, 2, workers='worker-0') for x in xs]\n\
             zs = [client.submit(native('sum'), y, workers=['one', 'two']) for y in ys]\n\
             round(client.submit(sum, zs, workers='worker-0').result(), 3)",
            "9000900.0",
        ),
        // Functions that both kinds of worker support, run on any worker
        (
            "ns = [n for w in ('one', 'two', 'worker-0') for n in\n\
             \x20     client.map(operator.add, range(500), [1] * 500, workers=w, pure=False)]\n\
             ns = client.map(operator.mul, ns, [2] * 1500)\n\
             total = client.submit(sum, ns)\n\
             total.result()",
            "751500",
        ),
        (
            "client.submit(native('crc32'), b'123456789', workers='one').result() == 0xcbf43926",
            "True",
        ),
        (
            "client.submit(native('words'), 'b a b', workers='two').result()",
            "{'a': 1, 'b': 2}",
        ),
        (
            "client.amm.stop()\n\
             client.rebalance(xs)\n\
             client.replicate(xs, n=3)\n\
             {len(w) for w in client.who_has(xs).values()}",
            "{3}",
        ),
        (
            "client.amm.start()\n\
             name = {i['name']: w for w, i in client.scheduler_info()['workers'].items()}\n\
             only = client.scatter([b'x' * 1000 + bytes([i]) for i in range(50)], workers='two', hash=False)\n\
             retired = client.retire_workers([name['two']])\n\
             (list(retired) == [name['two']], sum(map(len, client.gather(only))), total.result())",
            "(True, 50050, 751500)",
        ),
    ] {
        assert_eq!(cluster.python(code), value, "{code}");
    }
    // A worker that is asked to end hands over the data that only it has.
    let code = "only = client.scatter([b'y' * 1000 + bytes([i]) for i in range(50)], workers='one', hash=False)\n\
                len(only)";
    assert_eq!(cluster.python(code), "50");
    assert!(one.terminate(), "it ends well: {}", one.log());
    // Its last lines may still be read.
    one.wait_for_line(&["other workers have copies of all data"]);
    let code = "(sum(map(len, client.gather(only))),\n\
                {w for ws in client.who_has(only).values() for w in ws} == {name['worker-0']})";
    assert_eq!(cluster.python(code), "(50050, True)");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn value_larger_than_the_target_is_available_to_its_task() {
    let mut cluster = Cluster::new(1);
    let scratch = Scratch::new("larger");
    let worker = spilling(&cluster, "rust", &scratch).start().await;
    let worker = worker.expect("worker starts");
    // Each input arrives only after the previous task has run.
    let code = "xs = client.map(np.ones, [1000000 + i for i in range(8)], workers='worker-0')\n\
                wait(xs)\n\
                [client.submit(len, x, workers='rust').result() - 1000000 for x in xs]";
    assert_eq!(cluster.python(code), "[0, 1, 2, 3, 4, 5, 6, 7]");
    let tasks = worker.task_counters();
    assert_eq!(tasks["len"].count, 8);
    assert_eq!(tasks["len"].unspilled.count, 0, "it was still in memory");
    cluster.check_logs();
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_a_directory_that_cannot_be_created() {
    let cluster = Cluster::new(0);
    let scratch = Scratch::new("no-place");
    let file = scratch.0.join("file");
    fs::write(&file, b"").expect("writable directory");
    let started = spilling(&cluster, "rust", &scratch)
        .local_directory(&file)
        .start()
        .await;
    let error = started.expect_err("it is a file").to_string();
    assert!(
        error.starts_with("the directory for spilled data cannot be created: "),
        "{error}"
    );
    assert!(error.contains("no-place"), "{error}");
}

/// A client in Python reads what the worker compresses, and the worker what the client does. They
/// are at two addresses, since nothing is compressed within a host.
#[tokio::test(flavor = "multi_thread")]
async fn data_is_compressed_if_dask_is_configured_so() {
    let mut cluster = Cluster::new(0);
    for codec in ["lz4", "snappy"] {
        let worker = worker::rust_worker(
            cluster.scheduler.address(),
            codec,
            None,
            &["--no-nanny", "--host", "127.0.0.2"],
            &[("DASK_DISTRIBUTED__COMM__COMPRESSION", codec)],
        );
        let code = format!(
            "import dask\n\
             from distributed.core import connect\n\
             dask.config.set({{'distributed.comm.compression': '{codec}'}})\n\
             future = client.submit(operator.mul, b'x', 100_000, workers='{codec}', pure=False)\n\
             wait(future)\n\
             async def ask():\n    \
                 comm = await connect('{}', deserialize=False)\n    \
                 keys = [future.key]\n    \
                 await comm.write(dict(op='get_data', keys=keys, who=None, reply=True))\n    \
                 [datum] = (await comm.read())['data'].values()\n    \
                 await comm.write('OK')\n    \
                 await comm.close()\n    \
                 length = sum(map(len, datum.frames))\n    \
                 return datum.header['compression'], length < 10_000\n\
             codecs, is_short = client.sync(ask)\n\
             direct = client.gather(future, direct=True)\n\
             [there] = client.scatter([b'y' * 100_000], workers='{codec}', direct=True, hash=False)\n\
             length = client.submit(len, there, pure=False).result()\n\
             codecs, is_short, direct == b'x' * 100_000, length",
            worker.address(),
        );
        let found = cluster.python(&code);
        assert_eq!(found, format!("(('{codec}',), True, True, 100000)"));
    }
}
