//! Checks with real schedulers, workers and clients of many releases of
//! `distributed`: those of `releases.txt`.
//!
//! By default, the releases marked `default` are checked. `DASKWIRE_RELEASES` selects
//! others: names separated by spaces, or `all`. Some checks then take longer, and the lines
//! of these releases in `RELEASES.md` are rewritten:
//!
//! ```sh
//! DASKWIRE_RELEASES=all cargo test -p daskwire-peer --test releases -- --nocapture
//! ```

mod client;
mod embedded;
mod mixed;
mod relay;
mod report;
#[path = "../it/support/embedded.rs"]
mod support;
mod worker;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use daskwire_testing::release::{ListedRelease, listed_releases};

use report::{Outcome, Report};

/// An error of a check: any error, or a string.
type Failure = Box<dyn Error + Send + Sync>;

/// Fails a check unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
use ensure;

/// Timeout of a check. Only a defect causes a timeout.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Number of heartbeats to wait for; workers of a small cluster send two per second.
const HEARTBEAT_COUNT: u32 = 4;

/// Number of heartbeats to wait for if releases are named: those of one minute.
const HEARTBEATS_OF_A_MINUTE: u32 = 120;

/// A release, its interpreter, and the outcomes of its checks.
struct Trial {
    release: String,
    interpreter: PathBuf,
    /// An interpreter with the same release and another version of Python.
    other: Option<PathBuf>,
    heartbeat_count: u32,
    report: Report,
}

impl Trial {
    /// Starts processes. If that fails, all checks in `names` fail.
    fn start<T>(&mut self, names: &[&'static str], start: impl FnOnce(&Path) -> T) -> Option<T> {
        let interpreter = self.interpreter.clone();
        let starting = AssertUnwindSafe(|| tokio::task::block_in_place(|| start(&interpreter)));
        match catch_unwind(starting) {
            Ok(started) => Some(started),
            Err(panic) => {
                let reason = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                for name in names {
                    self.report.add(name, Outcome::Fails(reason.clone()));
                }
                None
            }
        }
    }

    /// Whether an installed package of the release has a file.
    fn has_module(&self, path: &str) -> bool {
        let environment = self.interpreter.parent().and_then(Path::parent);
        let library = environment.map(|folder| folder.join("lib"));
        let pythons = library.and_then(|library| library.read_dir().ok());
        pythons
            .into_iter()
            .flatten()
            .flatten()
            .any(|python| python.path().join("site-packages").join(path).exists())
    }

    /// Runs a check, and records its outcome.
    async fn check(
        &mut self,
        name: &'static str,
        check: impl Future<Output = Result<(), Failure>>,
    ) {
        let outcome = match tokio::time::timeout(TIMEOUT, check).await {
            Ok(Ok(())) => Outcome::Works,
            Ok(Err(error)) => Outcome::of_error(&error.to_string()),
            Err(_) => Outcome::Fails(format!("not done within {TIMEOUT:?}")),
        };
        println!("{} {name}: {outcome}", self.release);
        self.report.add(name, outcome);
    }
}

async fn try_release(listed: &ListedRelease, heartbeat_count: u32) -> Report {
    let requirements = if listed.minors == [7] {
        include_str!("requirements-3.7.txt")
    } else {
        include_str!("requirements.txt")
    };
    let environment = tokio::task::block_in_place(|| listed.environment(requirements));
    let (interpreter, minor) = environment.unwrap_or_else(|reason| panic!("{reason}"));
    let other = tokio::task::block_in_place(|| listed.other_environment(requirements));
    let other = other.unwrap_or_else(|reason| panic!("{reason}"));
    let mut trial = Trial {
        release: listed.release.clone(),
        interpreter,
        other,
        heartbeat_count,
        report: Report::new(&listed.release, minor),
    };
    client::checks(&mut trial).await;
    worker::checks(&mut trial).await;
    mixed::checks(&mut trial).await;
    embedded::checks(&mut trial).await;
    trial.report
}

#[test]
fn releases_of_dask_work_or_are_refused() {
    let listed = listed_releases(include_str!("releases.txt"));
    let names = std::env::var("DASKWIRE_RELEASES").unwrap_or_default();
    let chosen: Vec<&ListedRelease> = match &*names {
        "" => listed.iter().filter(|release| release.is_default).collect(),
        "all" => listed.iter().collect(),
        names => {
            let find = |name: &str| {
                let found = listed.iter().find(|listed| listed.release == name);
                found.unwrap_or_else(|| panic!("{name} is not in releases.txt"))
            };
            names.split_whitespace().map(find).collect()
        }
    };
    assert!(!chosen.is_empty(), "no release is chosen");
    let is_default = names.is_empty();
    let heartbeat_count = if is_default {
        HEARTBEAT_COUNT
    } else {
        HEARTBEATS_OF_A_MINUTE
    };
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::new());
    let work = || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(listed) = chosen.get(index) else {
                break;
            };
            let report = runtime.block_on(try_release(listed, heartbeat_count));
            reports.lock().expect("no panic").push((index, report));
        }
    };
    thread::scope(|scope| {
        // Checks wait much of the time, so there are more threads than processors.
        let count = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(2 * count).min(chosen.len()) {
            // The futures of all checks together are large.
            let builder = thread::Builder::new().stack_size(16 << 20);
            builder.spawn_scoped(scope, work).expect("a thread");
        }
    });
    let mut reports = reports.into_inner().expect("no panic");
    reports.sort_by_key(|(index, _)| *index);
    let reports: Vec<Report> = reports.into_iter().map(|(_, report)| report).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("RELEASES.md");
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let names: Vec<&str> = listed.iter().map(|listed| &*listed.release).collect();
    if is_default {
        assert!(
            report::page(&names, &[], &old) == old,
            "RELEASES.md is not what its rows make; a run with DASKWIRE_RELEASES writes it again"
        );
    } else {
        let page = report::page(&names, &reports, &old);
        std::fs::write(path, page).expect("the page can be written");
    }
    let failures: Vec<String> = reports.iter().flat_map(Report::failures).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
