//! Schedulers of releases that have tasks in another form: nothing here harms them.

#[path = "support/command.rs"]
mod command;
mod support;

use command::{Ran, run};
use support::{Environment, Peer};

fn daskwire(line: &str) -> Ran {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(&words, None)
}

#[test]
fn a_scheduler_of_2020_is_left_alone() {
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
    assert!(error.contains("up to 2021.2.0"), "{error}");
    let ran = daskwire(&format!("submit {at} operator.add 1 2 --timeout 10"));
    let error = ran.refused("submit");
    assert!(error.contains("up to 2021.2.0"), "{error}");
    assert!(identity().contains("workers    1, 1 thread"));
}
