//! Tests of the client without async, and of clients that the environment tells their
//! scheduler, on a real cluster.

use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use daskwire_peer::client::blocking::Client;
use daskwire_peer::client::{ClientOptions, ConnectError, TaskError};
use daskwire_peer::{Client as AsyncClient, Value};
use daskwire_testing::{Environment, Peer, address_after, python, scheduler_with_workers, worker};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn methods_of_the_blocking_client_wait() {
    let cluster = scheduler_with_workers(2);
    let client = Client::connect(cluster.address()).expect("it connects");

    let data = client.scatter([[1, 2], [3, 4]]).expect("stored");
    let sums = client.map("builtins.sum", &data).expect("submitted");
    let values = client.gather(&sums).expect("gathered");
    assert_eq!(values, [Value::from(3), Value::from(7)]);
    let failing = client
        .submit("operator.floordiv", [1, 0])
        .expect("submitted");
    let error = client
        .gather(std::slice::from_ref(&failing))
        .expect_err("it fails");
    assert!(error.to_string().contains("ZeroDivisionError"), "{error}");

    let sleeps = client.map("time.sleep", [0.05, 0.1]).expect("submitted");
    client.wait(&sleeps);
    assert!(sleeps.iter().all(|sleep| sleep.is_done()));
    // A task that failed is done as well.
    client.wait([&failing]);

    // Results may cause further tasks, whose results come from the same iterator.
    let first = client.submit("operator.add", [1, 1]).expect("submitted");
    let mut results = client.results([first]);
    let mut seen = Vec::new();
    while let Some((index, result)) = results.next() {
        let number = i64::try_from(result.expect("a number")).expect("an integer");
        seen.push((index, number));
        if number < 16 {
            let next = client
                .submit("operator.mul", [number, 2])
                .expect("submitted");
            assert_eq!(results.add(next), index + 1);
        }
    }
    assert_eq!(seen, [(0, 2), (1, 4), (2, 8), (3, 16)]);
    let added = results.add(failing);
    let (index, result) = results.next().expect("a result");
    assert_eq!(index, added);
    assert!(
        matches!(result, Err(TaskError::Failed { .. })),
        "{result:?}"
    );
    client.close().expect("closed");
}

/// The test runs itself, in processes with the variables: a process cannot safely change
/// its own.
#[test]
fn schedulers_are_found_by_the_environment() {
    const EXPECTED: &str = "DASKWIRE_TEST_SCHEDULER";
    if let Ok(expected) = env::var(EXPECTED) {
        connect_by_the_environment(&expected);
        return;
    }
    let path = env::temp_dir().join(format!("daskwire-environment-{}", std::process::id()));
    let scheduler = scheduler_with_file(&path);
    let _worker = worker(scheduler.address(), "worker");
    let file = path.to_str().expect("a name in UTF-8");
    let address = scheduler.address();
    for (variables, expected) in [
        (&[("DASK_SCHEDULER_ADDRESS", address)][..], address),
        (&[("DASK_SCHEDULER_FILE", file)], address),
        (
            &[
                ("DASK_SCHEDULER_ADDRESS", address),
                ("DASK_SCHEDULER_FILE", "/nowhere"),
            ],
            address,
        ),
        (
            &[
                ("DASK_SCHEDULER_ADDRESS", ""),
                ("DASK_SCHEDULER_FILE", file),
            ],
            address,
        ),
        (&[("DASK_SCHEDULER_FILE", "/nowhere")], "no file"),
        (&[], "not named"),
    ] {
        let ran = Command::new(env::current_exe().expect("this program"))
            .args([
                "--exact",
                "client_blocking::schedulers_are_found_by_the_environment",
                "--nocapture",
            ])
            .env_remove("DASK_SCHEDULER_ADDRESS")
            .env_remove("DASK_SCHEDULER_FILE")
            .envs(variables.iter().copied())
            .env(EXPECTED, expected)
            .output()
            .expect("it starts");
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{variables:?}: {error}");
        let printed = String::from_utf8_lossy(&ran.stdout);
        assert!(printed.contains("1 passed"), "{variables:?}: {printed}");
    }

    let client = Client::connect_to_file(&path, ClientOptions::default()).expect("it connects");
    assert_eq!(client.scheduler().to_string(), address);
    client.close().expect("closed");
    fs::remove_file(&path).expect("removed");
    let error = Client::connect_to_file(&path, ClientOptions::default());
    let error = error.expect_err("there is no file");
    assert!(matches!(error, ConnectError::File { .. }), "{error}");
}

/// Connects both clients; `expected` is the address of the scheduler, or an error.
fn connect_by_the_environment(expected: &str) {
    let client = match Client::from_env(ClientOptions::default()) {
        Ok(client) => client,
        Err(ConnectError::File { .. }) => return assert_eq!(expected, "no file"),
        Err(ConnectError::NotNamed) => return assert_eq!(expected, "not named"),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(client.scheduler().to_string(), expected);
    let sum = client.submit("operator.add", [1, 2]).expect("submitted");
    assert_eq!(client.result(&sum).expect("a result"), Value::from(3));
    let connecting = AsyncClient::from_env(ClientOptions::default());
    let other = client.block_on(connecting).expect("it connects");
    assert_eq!(other.scheduler().to_string(), expected);
    client.block_on(other.close()).expect("closed");
    client.close().expect("closed");
}

/// Starts a scheduler that writes a file, and waits for the file.
fn scheduler_with_file(path: &std::path::Path) -> Peer {
    let mut command = Command::new(python(Environment::Current));
    let arguments = "-m distributed.cli.dask_scheduler --host 127.0.0.1 --port 0 \
                     --no-dashboard --dashboard-address 127.0.0.1:0";
    command.args(arguments.split_whitespace());
    command.arg("--scheduler-file").arg(path);
    let scheduler = Peer::spawn_command("dask scheduler", &mut command, |log| {
        address_after(log, "Scheduler at:")
    });
    // The file is written after the line in the log.
    let deadline = Instant::now() + TIMEOUT;
    while fs::read_to_string(path).map_or(true, |text| !text.trim_end().ends_with('}')) {
        assert!(Instant::now() < deadline, "there is no file");
        std::thread::sleep(Duration::from_millis(20));
    }
    scheduler
}
