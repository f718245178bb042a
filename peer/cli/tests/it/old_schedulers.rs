//! Schedulers of old releases, which encode tasks differently, must not be harmed.
//! Releases newer than those tested are only warned about.

use crate::support::command::{Ran, run};
use daskwire_testing::{Environment, Peer};

fn daskwire(line: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(&words, None)
}

#[test]
fn refuses_a_scheduler_of_2020() {
    let scheduler = Peer::spawn(Environment::Documented, "old_scheduler.py", &[]);
    let at = scheduler.address();
    let identity = || {
        let ran = daskwire(&format!("identity {at}"));
        ran.good("identity").to_owned()
    };
    let before = identity();
    assert!(
        before.contains("runs on    distributed 2.30.1, Python 3"),
        "{before}"
    );
    let ran = daskwire(&format!("worker {at}"));
    let error = ran.refused("worker");
    let found = "the scheduler runs distributed 2.30.1, which a worker in Rust does not support: \
                 upgrade the cluster to 2022.1.0 or later";
    assert!(error.ends_with(found), "{error}");
    let ran = daskwire(&format!("submit {at} operator.add 1 2 --timeout 60"));
    assert_eq!(ran.good("submit").trim(), "3");
    assert!(identity().contains("workers    1, 1 thread"));
}

#[test]
fn warns_of_a_scheduler_of_2027() {
    let scheduler = Peer::spawn(Environment::Current, "newer_scheduler.py", &[]);
    let at = scheduler.address();
    let ran = daskwire(&format!("ps {at}"));
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(
        ran.err,
        "daskwire: the scheduler runs distributed 2027.1.0, but this program was tested only \
         with releases up to 2026.8.0\n"
    );
    let ran = daskwire(&format!("-v ps {at}"));
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let count = ran.err.matches("was tested only").count();
    assert_eq!(count, 1, "{}", ran.err);
}
