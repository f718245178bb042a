//! The page still answers with many workers and tasks.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use daskwire_testing::{Environment, Peer, python};

use crate::{browser, dashboard_port, scheduler};

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
    thread::sleep(Duration::from_secs(1));
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

/// The longest share of the processor time of the dashboard in that of the rest of the scheduler.
const MAX_SHARE: f64 = 0.05;

/// The processor time of the threads of a process by their numbers, in seconds, and whether each is of
/// the dashboard.
fn thread_times(process: u32) -> BTreeMap<u32, (bool, f64)> {
    /// Units of time in `/proc`, per second.
    const TICKS: f64 = 100.0;
    let mut times = BTreeMap::new();
    let folder = format!("/proc/{process}/task");
    for thread in fs::read_dir(folder).expect("it runs").flatten() {
        let id = thread.file_name().to_string_lossy().parse();
        // It may have ended.
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else {
            continue;
        };
        let (name, fields) = stat.rsplit_once(')').expect("a name");
        let is_dashboard = name.ends_with("(http");
        let mut fields = fields.split_whitespace().skip(11);
        let mut time = || -> f64 { fields.next().expect("a time").parse().expect("a number") };
        times.insert(
            id.expect("a number"),
            (is_dashboard, (time() + time()) / TICKS),
        );
    }
    times
}

/// The body of the response to a request.
fn get(port: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("UTF-8");
    let (_, body) = response.split_once("\r\n\r\n").expect("a head");
    body.to_owned()
}

/// The views that the page Status shows.
const VIEWS: [&str; 5] = ["cluster", "prefixes", "workers", "stream", "bandwidth"];

/// The number of events that a viewer has got, by view.
type Seen = Arc<Mutex<BTreeMap<String, u64>>>;

/// Reads what the page Status shows, as often as a browser does, until the scheduler ends.
fn view(port: &str) -> Seen {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let request = format!("GET /data/live?views={} HTTP/1.1\r\n\r\n", VIEWS.join(","));
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("HTTP/1.1 200 OK"));
    let seen = Seen::default();
    let counts = Arc::clone(&seen);
    thread::spawn(move || {
        for line in lines {
            if let Some(view) = line.strip_prefix("event: ") {
                *counts
                    .lock()
                    .expect("no panic")
                    .entry(view.to_owned())
                    .or_default() += 1;
            }
        }
    });
    seen
}

/// What ten people who look cost the scheduler, in processor time, while tasks run. Needs a release
/// build: `cargo test -p daskwire-cli --release --test browser -- --ignored --nocapture ten_viewers`.
#[test]
#[ignore = "times of a build without optimisation say little"]
fn ten_viewers_cost_little_of_what_tasks_cost() {
    const WORKERS: usize = 20;
    const TASKS: u64 = 200_000;
    let scheduler = scheduler("0", "0", &[]);
    let port = dashboard_port(&scheduler);
    let running = load(&scheduler, WORKERS, TASKS as usize);
    let viewers: Vec<Seen> = (0..10).map(|_| view(&port)).collect();
    let finished = || -> u64 {
        let cluster = get(&port, "/data/cluster");
        let cluster: serde_json::Value = serde_json::from_str(&cluster).expect("JSON");
        cluster["finished"].as_u64().expect("a number")
    };
    let started = Instant::now();
    let mut times = BTreeMap::new();
    while finished() < TASKS {
        assert!(started.elapsed() < MAX_TIME);
        // Threads end when they have nothing to do.
        times.extend(thread_times(scheduler.id()));
        thread::sleep(Duration::from_millis(500));
    }
    times.extend(thread_times(scheduler.id()));
    let sum = |of_dashboard: bool| -> f64 {
        let times = times.values();
        let times = times.filter(|(is_dashboard, _)| *is_dashboard == of_dashboard);
        times.map(|(_, time)| time).sum()
    };
    let (viewed, worked) = (sum(true), sum(false));
    for seen in viewers {
        let seen = seen.lock().expect("no panic");
        // Twice a second, as long as the processors have time for it.
        let least = started.elapsed().as_secs() / 2;
        let has_seen = |view: &&str| seen.get(*view).is_some_and(|count| *count >= least);
        assert!(VIEWS.iter().all(has_seen), "{least}: {seen:?}");
    }
    assert!(viewed > 0.0 && worked > 0.0);
    let share = viewed / worked;
    eprintln!(
        "ten viewers: {viewed:.2} s of processor time, beside {worked:.2} s for {TASKS} tasks in {:.1} s: {share:.3}",
        started.elapsed().as_secs_f64()
    );
    assert!(share < MAX_SHARE, "{share}");
    drop(running);
}
