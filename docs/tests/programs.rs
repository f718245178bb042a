//! Runs each program in the README and the guide: those with a scheduler on a real
//! cluster, which takes the place of the one at `tcp://127.0.0.1:8786`.

use std::cell::RefCell;
use std::time::Duration;

use daskwire_peer::Client;
use daskwire_peer::client::Submission;

/// The blocks, as modules. A block with a name that no test runs is dead code.
#[deny(dead_code)]
#[allow(
    clippy::all,
    missing_docs,
    unused_qualifications,
    unnameable_types,
    reason = "what is in the guide is for its readers"
)]
mod blocks {
    include!(concat!(env!("OUT_DIR"), "/programs.rs"));

    pub(crate) fn worker_of_the_readme() -> Result<(), String> {
        readme::worker::main().map_err(|error| error.to_string())
    }

    pub(crate) fn worker_of_the_guide() -> Result<(), String> {
        own_worker::worker::main().map_err(|error| error.to_string())
    }

    pub(crate) fn over_tls() -> Result<(), String> {
        tls::client::main().map_err(|error| error.to_string())
    }
}

thread_local! {
    static ADDRESS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a program with the address of a scheduler.
fn with_scheduler<R>(address: &str, program: impl FnOnce() -> R) -> R {
    ADDRESS.set(Some(address.to_owned()));
    program()
}

/// What a program gets in place of a string of the guide.
fn stand_in(stands_for: &str) -> &'static str {
    if stands_for.ends_with(".pem") {
        return daskwire_testing::TLS_PEM;
    }
    let address = ADDRESS.with_borrow(Clone::clone);
    let address = address.expect("a program runs on the thread of its test");
    address.leak()
}

#[test]
fn programs_run_on_a_real_cluster() {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    let mut failed = Vec::new();
    for (place, program) in blocks::PROGRAMS {
        eprintln!("{place}");
        let outcome = with_scheduler(cluster.address(), program);
        failed.extend(outcome.err().map(|error| format!("{place}: {error}")));
    }
    assert_eq!(failed, [""; 0]);
}

#[test]
fn the_program_for_tls_runs() {
    let cluster = daskwire_testing::scheduler_with_workers_over("tls", 1);
    with_scheduler(cluster.address(), blocks::over_tls).expect("it runs");
    assert_eq!(cluster.complaints(), [""; 0]);
}

/// Starts a worker, which is the first of its cluster, has the check use it, and
/// retires it.
fn run_worker(
    worker: fn() -> Result<(), String>,
    check: impl AsyncFnOnce(&Client) -> Result<(), Box<dyn std::error::Error>>,
) {
    let scheduler = daskwire_testing::scheduler();
    let address = scheduler.address().to_owned();
    let worker = std::thread::spawn(move || with_scheduler(&address, worker));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let checked = runtime.block_on(async {
        let client = Client::connect(scheduler.address()).await?;
        client.wait_for_workers(1, Duration::from_secs(60)).await?;
        check(&client).await?;
        let workers = client.workers().await?;
        client.close().await?;
        Ok::<_, Box<dyn std::error::Error>>(workers.len())
    });
    assert_eq!(checked.expect("it works"), 1);
    // A worker ends with its scheduler.
    drop(scheduler);
    worker.join().expect("no panic").expect("the worker ends");
}

#[test]
fn the_worker_of_the_readme_works() {
    run_worker(blocks::worker_of_the_readme, async |client| {
        let hypot = client.submit("native:hypot", [3.0, 4.0])?;
        assert_eq!(f64::try_from(hypot.result().await?)?, 5.0);
        Ok(())
    });
}

#[test]
fn the_worker_of_the_guide_works() {
    run_worker(blocks::worker_of_the_guide, async |client| {
        let array = daskwire_peer::Array::from_slice(&[3], &[1.0, 2.0, 3.0])?;
        let scaled = client.call("native:scale").argument(array).argument(2.0);
        let scaled = scaled.with(Submission::default().resource("GPU", 1.0));
        let scaled = daskwire_peer::Array::try_from(scaled.submit()?.result().await?)?;
        assert_eq!(scaled.to_vec::<f64>()?, [2.0, 4.0, 6.0]);
        let failed = client.submit("native:parse", ["many"])?.result().await;
        let failed = failed.expect_err("it is no number").to_string();
        assert!(failed.contains("invalid digit"), "{failed}");
        Ok(())
    });
}
