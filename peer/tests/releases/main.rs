//! Checks with real schedulers, workers and clients of many releases of
//! `distributed`: those of `releases.txt`.
//!
//! By default those marked `default`. `DASKWIRE_RELEASES` names others, separated
//! by spaces; `all` is each of the list, and writes `RELEASES.md`:
//!
//! ```sh
//! DASKWIRE_RELEASES=all cargo test -p daskwire-peer --test releases -- --nocapture
//! ```

mod client;
mod relay;
mod report;
mod worker;

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
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

/// Timeout of a check.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A release with its interpreter, and what the checks found.
struct Trial {
    release: String,
    interpreter: PathBuf,
    report: Report,
}

impl Trial {
    /// Starts processes; if they fail to start, all of `names` fail.
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

async fn try_release(listed: &ListedRelease) -> Report {
    let requirements = include_str!("requirements.txt");
    let environment = tokio::task::block_in_place(|| listed.environment(requirements));
    let (interpreter, minor) = environment.unwrap_or_else(|reason| panic!("{reason}"));
    let mut trial = Trial {
        release: listed.release.clone(),
        interpreter,
        report: Report::new(&listed.release, minor),
    };
    client::checks(&mut trial).await;
    relay::checks(&mut trial).await;
    worker::checks(&mut trial).await;
    trial.report
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_of_dask_work_or_are_refused() {
    let listed = listed_releases(include_str!("releases.txt"));
    let names = std::env::var("DASKWIRE_RELEASES").unwrap_or_default();
    let is_all = names == "all";
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
    let mut reports = Vec::new();
    for release in chosen {
        reports.push(try_release(release).await);
    }
    if is_all {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("RELEASES.md");
        std::fs::write(page, report::page(&reports)).expect("the page can be written");
    }
    let failures: Vec<String> = reports.iter().flat_map(Report::failures).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
