//! The page still answers with many workers and tasks.

use std::time::{Duration, Instant};

use daskwire_testing::{Environment, Peer, python};

use crate::{browser, scheduler};

/// The longest time to draw the task stream, in milliseconds, without acceleration and on a busy
/// machine.
const MAX_DRAWING: f64 = 500.0;

/// The longest time for all tasks.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// Workers that answer at once, and tasks for them, see `load.py`.
fn load(scheduler: &Peer, workers: usize, tasks: usize) -> Peer {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser/load.py");
    Peer::spawn_with(
        &python(Environment::Current),
        script,
        &[
            scheduler.address(),
            &workers.to_string(),
            &tasks.to_string(),
        ],
    )
}

/// Clicks while tasks run. Each click must show what was asked for within `max_delay`.
fn clicks_are_answered(workers: usize, tasks: usize, max_delay: Duration) {
    let scheduler = scheduler("0", "0", &[]);
    let browser = browser(&scheduler, 1100);
    browser.open("/status");
    browser.wait_for_text("#connection", "Live");
    let running = load(&scheduler, workers, tasks);
    browser.wait("return Number(document.querySelector('canvas').dataset.records) > 2000");
    // Until the tasks have ended, and once more with all of them.
    let mut is_over = false;
    let started = Instant::now();
    while !is_over {
        assert!(started.elapsed() < MAX_TIME);
        let ended = "return (await (await fetch('data/cluster')).json()).finished";
        is_over = browser.run_async(ended).as_u64() >= Some(tasks as u64);
        for (selector, shown) in [
            ("nav a[href=workers]", "1–100 of"),
            ("nav a[href=tasks]", "found"),
            ("nav a[href=graph]", " group"),
            ("nav a[href=status]", "Task stream"),
        ] {
            let clicked = Instant::now();
            browser.click(selector);
            browser.wait_for_text("main", shown);
            let took = clicked.elapsed();
            eprintln!("{selector}: {took:.2?}");
            assert!(took < max_delay, "{selector}: {took:?}");
        }
    }
    browser.run("[...document.querySelectorAll('.stream-panel button')].find((each) => each.textContent === 'All').click()");
    std::thread::sleep(Duration::from_secs(1));
    let drawing = browser.run("return document.querySelector('canvas').dataset.milliseconds");
    let drawing: f64 = drawing
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a time");
    eprintln!("the task stream was drawn in {drawing} ms");
    assert!(drawing < MAX_DRAWING);
    browser.check_log_except(&[]);
    drop(running);
}

#[test]
fn a_thousand_workers_can_be_clicked() {
    // Other tests may take all processors meanwhile.
    clicks_are_answered(1_000, 5_000, Duration::from_secs(20));
}

/// Takes minutes: `cargo test -p daskwire-cli --release --test browser -- --ignored`.
#[test]
#[ignore = "a million tasks take minutes"]
fn a_million_tasks_can_be_looked_at() {
    clicks_are_answered(1_000, 1_000_000, Duration::from_secs(5));
}
