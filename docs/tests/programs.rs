//! Runs each program in the README and the guide: those with a scheduler on a real cluster, and on
//! one of this process, which take the place of the one at `tcp://127.0.0.1:8786`.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use daskwire_docs::{Block, blocks as blocks_of, documents};
use daskwire_peer::Client;
use daskwire_peer::client::SubmitOptions;
#[cfg(target_os = "linux")]
use daskwire_peer::cluster::LocalCluster;
use daskwire_testing::Environment;

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
    if stands_for == "python3" {
        let python = daskwire_testing::python(Environment::Current);
        return python.into_os_string().into_string().expect("UTF-8").leak();
    }
    let address = ADDRESS.with_borrow(Clone::clone);
    let address = address.expect("a program runs on the thread of its test");
    address.leak()
}

/// Runs all programs with the address of a scheduler, and returns those that failed, with their
/// errors.
fn failed_programs(address: &str) -> Vec<String> {
    let mut failed = Vec::new();
    for (place, program) in blocks::PROGRAMS {
        eprintln!("{place}");
        let outcome = with_scheduler(address, program);
        failed.extend(outcome.err().map(|error| format!("{place}: {error}")));
    }
    failed
}

#[test]
fn programs_run_on_a_real_cluster() {
    let cluster = daskwire_testing::scheduler_with_workers(2);
    assert_eq!(failed_programs(cluster.address()), [""; 0]);
}

#[cfg(target_os = "linux")]
#[test]
fn programs_run_on_a_local_cluster() {
    let python = daskwire_testing::python(Environment::Current);
    let cluster = LocalCluster::builder().python(python);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let cluster = runtime.block_on(cluster.start()).expect("it starts");
    assert_eq!(failed_programs(&cluster.address().to_string()), [""; 0]);
    runtime.block_on(cluster.close());
}

/// The programs of the README, the guide and the examples can be read at a glance.
#[test]
fn programs_are_short() {
    let mut programs = Vec::new();
    for (place, block) in all_blocks("rust") {
        programs.push((place, block.code));
    }
    for folder in ["peer/examples", "peer/value/examples"] {
        for entry in fs::read_dir(workspace().join(folder)).expect("a folder") {
            let path = entry.expect("a file").path();
            // `ordered.rs` is a tool of the scripts in `peer/tests`, with two roles.
            if path.is_file() && !path.ends_with("ordered.rs") {
                let code = fs::read_to_string(&path).expect("text");
                programs.push((path.display().to_string(), code));
            }
        }
    }
    assert!(programs.len() >= 50, "only {} programs", programs.len());
    programs.retain(|(_, code)| code.lines().count() > MAX_LINE_COUNT);
    let long: Vec<_> = programs.into_iter().map(|(place, _)| place).collect();
    assert_eq!(long, [""; 0]);
}

#[test]
fn the_program_for_tls_runs() {
    let cluster = daskwire_testing::scheduler_with_workers_over("tls", 1);
    with_scheduler(cluster.address(), blocks::over_tls).expect("it runs");
    assert_eq!(cluster.warnings(), [""; 0]);
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

/// Runs the block of Python code of a document that contains `what`, after other lines,
/// with the scheduler of a client. Returns what it prints.
fn run_python(document: &str, what: &str, before: &str, client: &Client) -> String {
    let text = fs::read_to_string(workspace().join(document)).expect("text");
    let mut found = blocks_of(&text);
    found.retain(|block| block.language == "python" && block.code.contains(what));
    let [block] = &found[..] else {
        panic!("{document}: {} blocks", found.len())
    };
    let code = format!("{before}{}", block.code);
    let code = code.replace("tcp://127.0.0.1:8786", &client.scheduler().to_string());
    let ran = Command::new(daskwire_testing::python(Environment::Current))
        .args(["-c", &code])
        .output()
        .expect("there is Python");
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{document}: {error}");
    String::from_utf8(ran.stdout).expect("text")
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The blocks of a language in the README and the guide, with their places.
fn all_blocks(language: &str) -> Vec<(String, Block)> {
    let mut all = Vec::new();
    for path in documents(workspace()).expect("the guide") {
        let document = fs::read_to_string(&path).expect("text");
        let name = path.file_name().expect("a file").to_string_lossy();
        for block in blocks_of(&document) {
            if block.language == language {
                all.push((format!("{name}:{}", block.line), block));
            }
        }
    }
    all
}

/// The block for the microcontroller needs the worker that `core/embedded/firmware` runs
/// under emulation; its call is that of `cluster.py` there. That with a `LocalCluster` in Python
/// is run by `python/tests/test_local_cluster.py`.
#[test]
fn every_block_of_python_is_run() {
    let run = [
        "native:hypot\"), 3, 4, workers=[\"mcu\"]",
        "native:scale",
        "native:hypot",
        "from daskwire import LocalCluster",
    ];
    let mut run = run.to_vec();
    let found = all_blocks("python");
    assert_eq!(found.len(), run.len());
    for (place, block) in found {
        let index = run.iter().position(|what| block.code.contains(what));
        run.remove(index.unwrap_or_else(|| panic!("{place}: no test runs the block")));
    }
}

/// cargo resolves the dependencies that are shown, with packages of this repository by
/// their paths: the packages and their features exist.
#[test]
fn dependencies_that_are_shown_exist() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shown");
    fs::create_dir_all(folder.join("src")).expect("a folder");
    fs::write(folder.join("src/lib.rs"), "").expect("written");
    let resolve = |dependencies: &str| {
        // The versions of this workspace, most of which are downloaded already.
        fs::copy(workspace().join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
        let package = "[workspace]\n[package]\nname = \"shown\"\nedition = \"2024\"\n";
        fs::write(
            folder.join("Cargo.toml"),
            format!("{package}{dependencies}"),
        )
        .expect("written");
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["tree", "--quiet", "--depth", "1"]);
        let ran = cargo.current_dir(&folder).output().expect("cargo runs");
        match ran.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&ran.stderr).into_owned()),
        }
    };
    let found = all_blocks("toml");
    assert!(found.len() >= 9, "only {} blocks", found.len());
    for (place, block) in found {
        let mut dependencies = String::new();
        for line in block.code.lines() {
            let name = line.split(' ').next().unwrap_or_default();
            let path = PACKAGES.iter().find(|(package, _)| *package == name);
            let path =
                path.map(|(_, path)| format!("path = \"{}\"", workspace().join(path).display()));
            let line = match path {
                Some(path) => line.replace(REPOSITORY, &path),
                None => line.to_owned(),
            };
            dependencies.push_str(&line);
            dependencies.push('\n');
        }
        assert!(
            !dependencies.contains(REPOSITORY),
            "{place}: no such package"
        );
        resolve(&dependencies).unwrap_or_else(|error| panic!("{place}: {error}"));
        let wrong = dependencies.replacen("features = [", "features = [\"no-such\", ", 1);
        if wrong != dependencies {
            let error = resolve(&wrong).expect_err("there is no such feature");
            assert!(error.contains("no-such"), "{place}: {error}");
        }
    }
}

/// The maximum number of lines of a program.
const MAX_LINE_COUNT: usize = 60;

/// How programs name this repository in `Cargo.toml`, as long as nothing is published.
const REPOSITORY: &str = "git = \"https://github.com/daskwire/daskwire\"";

/// The packages of this repository that programs may depend on, and their folders.
const PACKAGES: [(&str, &str); 10] = [
    ("daskwire", "core"),
    ("daskwire-compression", "core/compression"),
    ("daskwire-pickle", "core/pickle"),
    ("daskwire-numpy", "core/numpy"),
    ("daskwire-embedded", "core/embedded"),
    ("daskwire-comm", "comm"),
    ("daskwire-tcp", "transport-tcp"),
    ("daskwire-quic", "transport-quic"),
    ("daskwire-ws", "transport-ws"),
    ("daskwire-peer", "peer"),
];

#[test]
fn the_worker_of_the_readme_works() {
    run_worker(blocks::worker_of_the_readme, async |client| {
        let hypot = client.submit("native:hypot", [3.0, 4.0])?;
        assert_eq!(f64::try_from(hypot.result().await?)?, 5.0);
        let printed = run_python("README.md", "native:hypot", "", client);
        assert_eq!(printed, "5.0\n");
        Ok(())
    });
}

#[test]
fn the_worker_of_the_guide_works() {
    run_worker(blocks::worker_of_the_guide, async |client| {
        let array = daskwire_peer::Array::from_slice(&[3], &[1.0, 2.0, 3.0])?;
        let scaled = client.call("native:scale").argument(array).argument(2.0);
        let scaled = scaled.with(SubmitOptions::default().resource("GPU", 1.0));
        let scaled = daskwire_peer::Array::try_from(scaled.submit()?.result().await?)?;
        assert_eq!(scaled.to_vec::<f64>()?, [2.0, 4.0, 6.0]);
        let failed = client.submit("native:parse", ["many"])?.result().await;
        let failed = failed.expect_err("it is no number").to_string();
        assert!(failed.contains("invalid digit"), "{failed}");
        let before = "import operator\nimport numpy as np\nfrom distributed import Client\n\
                      client = Client('tcp://127.0.0.1:8786')\n";
        run_python("docs/src/own-worker.md", "native:scale", before, client);
        Ok(())
    });
}
