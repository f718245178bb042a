//! Shuffles whose workers lose their processes.

use std::process::Command;

use daskwire_testing::cluster::Cluster;
use daskwire_testing::process::{host_ended, python_processes};

use crate::worker;

/// Programs that start a shuffle as `f`, one task of which waits for the event `go`, and the
/// prefix of a task that has finished by then.
const BLOCKED_SHUFFLES: [(&str, &str); 3] = [
    // While it transfers its inputs
    (
        "left = dd.from_map(part, range(8), ['transfer'] * 8, meta=meta)\n\
         f = client.compute(left.shuffle('a', shuffle_method='p2p', npartitions=6).groupby('a').b.sum())",
        "shuffle-transfer",
    ),
    // While it computes its outputs
    (
        "left = dd.from_map(part, range(8), [''] * 8, meta=meta)\n\
         f = client.compute(left.shuffle('a', shuffle_method='p2p', npartitions=6)\
         .map_partitions(unpack, meta=meta).groupby('a').b.sum())",
        "shuffle-barrier",
    ),
    // A join with another table
    (
        "left = dd.from_map(part, range(8), ['transfer'] * 8, meta=meta)\n\
         right = dd.from_pandas(pd.DataFrame({'a': range(7), 'c': 1.0}), npartitions=3)\n\
         f = client.compute(left.merge(right, on='a', shuffle_method='p2p').groupby('a').b.sum())",
        "hash-join-transfer",
    ),
];

/// Parts of the lines that Dask's scheduler logs when a worker reports that it has lost its
/// part of a shuffle, and when the barrier of the run before this reaches a worker that has
/// already left that run; and of the line of a worker in Python that has sent data of a run to a
/// host that was started again and takes part in the next run.
const RESTARTS: [&str; 8] = [
    // Of the barrier, to a worker whose host has ended
    "Failure during broadcast of ",
    " restarted due to data inconsistency during barrier",
    " restarted due to stimulus 'p2p-barrier-inconsistent-",
    " deactivated due to stimulus 'p2p-barrier-inconsistent-",
    " failed: Exception: P2PConsistencyError(\"No active shuffle with id=",
    " failed: Exception: P2PConsistencyError('run_id=",
    "Exception while handling op shuffle_barrier",
    "Exception while handling op shuffle_inputs_done",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_shuffle_starts_again_when_processes_are_killed() {
    let interpreter = daskwire_testing::python_with_libraries();
    let arguments = ["--nthreads", "2", "--no-nanny"];
    let mut run_count = 0;
    for python_count in [0, 1] {
        let mut cluster = Cluster::with(&interpreter, python_count);
        let killed = worker(&cluster, "a", Some(&interpreter), &arguments);
        let other = worker(&cluster, "b", Some(&interpreter), &arguments);
        cluster.python(
            "import os\nimport dask.dataframe as dd\nfrom distributed import Event\n\
             meta = pd.DataFrame({'a': [1], 'b': [1.0]})\n\
             def part(n, waits):\n    if n == 7 and waits == 'transfer': Event('go').wait()\n    \
             return pd.DataFrame({'a': np.arange(100) % 7, 'b': np.arange(100.0) + n})\n\
             def unpack(part):\n    Event('go').wait()\n    return part\n\
             def done(prefix):\n    def count(dask_scheduler):\n        \
             return sum(prefix in str(key) and task.state == 'memory' for key, task in dask_scheduler.tasks.items())\n    \
             return client.run_on_scheduler(count)\n\
             [address] = [a for a, w in client.scheduler_info()['workers'].items() if w['name'] == 'a']\n\
             def shuffle_runs(dask_worker):\n    \
             active = dask_worker.plugins['shuffle'].shuffle_runs._active_runs\n    \
             return {shuffle: run.run_id for shuffle, run in active.items()}\n\
             async def inputs_done(shuffle, run, dask_scheduler):\n    \
             message = {'op': 'shuffle_inputs_done', 'shuffle_id': shuffle, 'run_id': run}\n    \
             return await dask_scheduler.broadcast(msg=message, workers=[address])\n\
             def without_errors(runs):\n    \
             return all(client.run_on_scheduler(inputs_done, *run) == {address: None} for run in runs.items())",
        );
        for (index, (shuffle, done)) in BLOCKED_SHUFFLES.into_iter().enumerate() {
            // Functions outside of tasks run in the host, which yields its process id.
            let host = cluster.python(&format!(
                "Event('go').clear()\n{shuffle}\n\
                 while not done('{done}'): time.sleep(0.01)\n\
                 runs = client.run(shuffle_runs, workers=[address])[address]\n\
                 client.run(os.getpid, workers=[address])[address]"
            ));
            // Kill either the host only or all processes.
            let ids = match index % 2 == python_count {
                true => vec![host],
                false => python_processes(killed.id()),
            };
            let status = Command::new("kill").arg("-9").args(&ids).status();
            assert!(status.is_ok_and(|status| status.success()));
            let sums = "Event('go').set()\n\
                        f.result(timeout=120).sort_index().to_dict()";
            let expected =
                "pd.concat([part(n, '') for n in range(8)]).groupby('a').b.sum().to_dict()";
            let expected = cluster.python(expected);
            let result = cluster.try_python(sums);
            let logs = |cluster: &Cluster| {
                format!(
                    "{}\n{}\n{}",
                    cluster.scheduler.log(),
                    killed.log(),
                    other.log()
                )
            };
            assert_eq!(
                result.as_ref(),
                Ok(&expected),
                "{shuffle}\n{}",
                logs(&cluster)
            );
            // The scheduler may report the inputs of earlier runs late, and would fail the
            // barrier if the report were an error. A shuffle whose outputs were computed may have
            // ended before the kill.
            if done.ends_with("transfer") {
                let late = cluster.python("without_errors(runs)");
                assert_eq!(late, "True", "{shuffle}\n{}", logs(&cluster));
                // The next host answers for them too.
                let late = cluster.python(
                    "_ = client.run(lambda: os.kill(os.getpid(), 9), workers=[address], on_error='return')\n\
                     without_errors(runs)",
                );
                assert_eq!(late, "True", "{shuffle}\n{}", logs(&cluster));
                run_count += cluster
                    .python("len(runs)")
                    .parse::<u32>()
                    .expect("a number");
            }
            cluster.python("del f");
        }
        let ended = host_ended(killed.address());
        let ended = ended.each_ref().map(String::as_str);
        cluster.check_logs_except(&[&ended[..], &RESTARTS].concat());
    }
    assert!(run_count > 0, "the worker took part in no shuffle");
}
