//! Tests of the drawn screen, without a terminal.

use console::measure_text_width;
use daskwire::display::is_printable;

use super::view::{Key, View};
use crate::command::snapshot::{Snapshot, Worker};

fn drawn(view: &View, width: usize, height: usize) -> Vec<String> {
    let lines = view.draw(width, height).into_iter().map(|line| {
        let text: String = line.iter().map(|span| span.content().as_str()).collect();
        assert!(measure_text_width(&text) <= width, "{text:?}");
        text.trim_end().to_owned()
    });
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), height);
    lines
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn worker(name: &str, cpu: f64, memory: u64) -> Worker {
    Worker {
        address: format!("tcp://10.0.0.{}:4000", name.len()),
        name: name.to_owned(),
        status: "running".to_owned(),
        nthreads: 2,
        cpu,
        memory,
        memory_limit: 1 << 30,
        processing: 5,
        executing: 2,
        ready: 1,
        stored: 7,
        incoming: 20 << 20,
        outgoing: 30 << 10,
        ..Worker::default()
    }
}

fn snapshot() -> Snapshot {
    let states = |states: &[(&str, u64)]| {
        let states = states.iter();
        states
            .map(|(state, count)| ((*state).to_owned(), *count))
            .collect()
    };
    Snapshot {
        address: "tcp://10.0.0.1:8786".to_owned(),
        release: Some("2026.8.0".to_owned()),
        uptime: Some(200.0),
        workers: vec![
            worker("bob", 150.0, 900 << 20),
            worker("al", 10.0, 100 << 20),
        ],
        prefixes: vec![
            ("load".to_owned(), states(&[("memory", 4)])),
            (
                "sum".to_owned(),
                states(&[("processing", 3), ("waiting", 2), ("erred", 1)]),
            ),
        ],
    }
}

#[test]
fn shows_totals_workers_and_tasks() {
    let mut view = View::default();
    assert_eq!(drawn(&view, 40, 5)[0], "daskwire top  connecting");
    view.snapshot = Some(snapshot());
    let lines = drawn(&view, 140, 16);
    assert_eq!(
        lines[0],
        "daskwire top  tcp://10.0.0.1:8786  distributed 2026.8.0  up 3 min"
    );
    for part in [
        "2 workers, 4 threads",
        "cpu 160 % of 400 %",
        "memory 0.98 GiB of 2.00 GiB",
        "in 40.0 MiB  out 60.0 KiB  spilled 0 B",
    ] {
        assert!(lines[1].contains(part), "{part}: {}", lines[1]);
    }
    assert_eq!(
        lines[2],
        "tasks  2 waiting  3 processing  4 in memory  0 released  1 erred  on workers: 4 running, \
         2 ready"
    );
    assert_eq!(
        words(&lines[4]),
        [
            "name▼", "address", "status", "thr", "cpu", "memory", "of", "spilled", "running",
            "assigned", "stored", "in", "out"
        ]
    );
    assert_eq!(
        words(&lines[5]).join(" "),
        "al tcp://10.0.0.2:4000 running 2 10 % 100.0 MiB 9 % 0 B 2 5 7 20.0 MiB 30.0 KiB"
    );
    assert!(lines[6].starts_with("bob "), "{}", lines[6]);
    // Prefixes with unfinished tasks come first.
    let tasks: Vec<_> = lines[7..15]
        .iter()
        .filter(|line| !line.is_empty())
        .collect();
    assert!(tasks[0].starts_with("tasks "), "{tasks:?}");
    assert_eq!(words(tasks[1]), ["sum", "2", "3", "0", "0", "1"]);
    assert_eq!(words(tasks[2]), ["load", "0", "0", "4", "0", "0"]);
    assert!(lines[15].starts_with("q quit"), "{}", lines[15]);
}

/// `queued` and `no-worker` take room only while there are such tasks.
#[test]
fn shows_tasks_that_no_worker_has() {
    let mut snapshot = snapshot();
    let states = [("queued", 1_234), ("no-worker", 6), ("processing", 3)];
    let states = states.map(|(state, count)| (state.to_owned(), count));
    snapshot.prefixes.push(("fit".to_owned(), states.into()));
    let view = View {
        snapshot: Some(snapshot),
        ..View::default()
    };
    let lines = drawn(&view, 80, 16);
    assert_eq!(
        lines[2],
        "tasks  2 waiting  6 no worker  1234 queued  6 processing  4 in memory  1 erred"
    );
    let words = |line: &String| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let heading = lines.iter().rposition(|line| line.starts_with("tasks "));
    let table = &lines[heading.expect("a table")..];
    assert_eq!(
        words(&table[0]).join(" "),
        "tasks waiting no worker queued processing in memory released erred"
    );
    // The prefix with the most unfinished tasks is the first.
    assert_eq!(words(&table[1]).join(" "), "fit 0 6 1234 3 0 0 0");
    assert_eq!(words(&table[2]).join(" "), "sum 2 0 0 3 0 0 1");
    // Each number is below the end of its title.
    for (number, title) in [("1234", "queued"), ("6", "no worker")] {
        let end = |line: &str, word: &str| line.find(word).map(|start| start + word.len());
        assert_eq!(end(&table[1], number), end(&table[0], title), "{table:#?}");
    }
}

#[test]
fn keys_sort_and_scroll() {
    let mut view = View {
        snapshot: Some(snapshot()),
        ..View::default()
    };
    let names = |view: &View| {
        let lines = drawn(view, 140, 16);
        let rows = lines[5..7]
            .iter()
            .filter_map(|line| line.split_whitespace().next());
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&view), ["al", "bob"]);
    view.press(Key::Reverse);
    assert_eq!(names(&view), ["bob", "al"]);
    view.press(Key::Reverse);
    // The fifth column is the processor use, sorted by the largest value first.
    (0..4).for_each(|_| view.press(Key::Right));
    assert!(drawn(&view, 140, 16)[4].contains("cpu▼"));
    assert_eq!(names(&view), ["bob", "al"]);
    view.press(Key::Down(1));
    assert_eq!(names(&view)[0], "al");
    view.press(Key::Down(usize::MAX));
    assert_eq!(names(&view)[0], "al");
    view.press(Key::Up(usize::MAX));
    assert_eq!(names(&view)[0], "bob");
    (0..5).for_each(|_| view.press(Key::Left));
    assert!(drawn(&view, 140, 16)[4].contains("out▼"));
    // Fewer workers than the view has scrolled past.
    view.press(Key::Down(1));
    view.snapshot
        .as_mut()
        .expect("a snapshot")
        .workers
        .truncate(1);
    assert_eq!(names(&view)[0], "bob");
}

#[test]
fn narrow_terminals_have_fewer_columns() {
    let view = View {
        snapshot: Some(snapshot()),
        ..View::default()
    };
    let lines = drawn(&view, 64, 16);
    assert_eq!(
        words(&lines[4]),
        ["name▼", "cpu", "memory", "running", "in", "out"]
    );
    assert_eq!(
        words(&lines[6]).join(" "),
        "bob 150 % 900.0 MiB 2 20.0 MiB 30.0 KiB"
    );
    // The names of tasks remain, and states without tasks are omitted first.
    let lines = drawn(&view, 50, 16);
    let heading = lines.iter().rposition(|line| line.starts_with("tasks "));
    let table = &lines[heading.expect("a table")..];
    assert_eq!(
        words(&table[0]).join(" "),
        "tasks waiting processing in memory"
    );
    assert_eq!(words(&table[1]), ["sum", "2", "3", "0"]);
    let lines = drawn(&view, 14, 16);
    assert!(lines.iter().any(|line| line == "sum"), "{lines:?}");
}

/// The heading drops whole parts, the least important ones first.
#[test]
fn narrow_terminals_have_fewer_parts_of_the_heading() {
    let view = View {
        snapshot: Some(snapshot()),
        ..View::default()
    };
    let heading = |width| -> Vec<String> {
        let lines = drawn(&view, width, 16).into_iter().take(3);
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let narrow = heading(80);
    assert_eq!(
        narrow[0],
        "daskwire top  tcp://10.0.0.1:8786  distributed 2026.8.0  up 3 min"
    );
    for part in ["cpu 160 % of 400 %", "memory 0.98 GiB of 2.00 GiB"] {
        assert!(narrow[1].contains(part), "{part}: {}", narrow[1]);
    }
    assert!(!narrow[1].contains("in "), "{}", narrow[1]);
    assert_eq!(
        narrow[2],
        "tasks  2 waiting  3 processing  4 in memory  1 erred"
    );
    let narrower = heading(58);
    assert_eq!(
        narrower[0],
        "daskwire top  tcp://10.0.0.1:8786  distributed 2026.8.0"
    );
    assert!(!narrower[1].contains("cpu"), "{}", narrower[1]);
    assert!(narrower[1].ends_with("memory 0.98 GiB of 2.00 GiB"));
    let narrowest = heading(24);
    assert_eq!(
        narrowest,
        [
            "tcp://10.0.0.1:8786",
            "2 workers, 4 threads",
            "tasks  1 erred"
        ]
    );
}

#[test]
fn keeps_the_last_snapshot_while_there_is_no_connection() {
    let view = View {
        snapshot: Some(snapshot()),
        failure: Some("cannot connect to tcp://10.0.0.1:8786: refused".to_owned()),
        ..View::default()
    };
    let lines = drawn(&view, 140, 16);
    let expected =
        "daskwire top  cannot connect to tcp://10.0.0.1:8786: refused; trying again  tcp";
    assert!(lines[0].starts_with(expected), "{}", lines[0]);
    assert!(lines[5].starts_with("al "), "{}", lines[5]);
}

#[test]
fn hostile_names_are_escaped_and_any_size_can_be_drawn() {
    let hostile = "\x1b[2J\u{202e}\n\u{200b}";
    let mut snapshot = snapshot();
    snapshot.address = hostile.to_owned();
    snapshot.release = Some(hostile.to_owned());
    snapshot
        .prefixes
        .push((hostile.to_owned(), [(hostile.to_owned(), u64::MAX)].into()));
    snapshot.uptime = Some(f64::NAN);
    for worker in &mut snapshot.workers {
        worker.name = hostile.to_owned();
        worker.status = hostile.to_owned();
        worker.cpu = f64::NAN;
        worker.memory = u64::MAX;
        worker.memory_limit = 1;
    }
    let view = View {
        snapshot: Some(snapshot),
        failure: Some(hostile.to_owned()),
        ..View::default()
    };
    for (width, height) in [(0, 0), (1, 1), (20, 3), (80, 8), (300, 60)] {
        for line in drawn(&view, width, height) {
            assert!(line.chars().all(is_printable), "{line:?}");
        }
    }
    assert!(drawn(&view, 200, 20)[0].contains("\\u{1b}[2J"));
}

#[test]
fn long_names_are_cut() {
    let mut snapshot = snapshot();
    let long = "n".repeat(1 << 16);
    for worker in &mut snapshot.workers {
        worker.name = long.clone();
        worker.address = long.clone();
        worker.status = long.clone();
        worker.stored = 123_456_789;
    }
    snapshot
        .prefixes
        .push((long.clone(), [("processing".to_owned(), 7)].into()));
    // Characters without a width, after the first one.
    let marked = format!("m{}", "\u{301}".repeat(1 << 16));
    snapshot
        .prefixes
        .push((marked, [("processing".to_owned(), 8)].into()));
    let view = View {
        snapshot: Some(snapshot),
        ..View::default()
    };
    let lines = drawn(&view, 140, 20);
    let row: Vec<_> = words(&lines[5]);
    assert_eq!(row[0], format!("{}…", "n".repeat(15)));
    assert_eq!(row[1], format!("{}…", "n".repeat(21)));
    assert_eq!(row[2], format!("{}…", "n".repeat(7)));
    // The end of a number, which is the part that changes.
    assert!(row.contains(&"…456789"), "{row:?}");
    let tasks = lines.iter().rfind(|line| line.starts_with('n'));
    let name = words(tasks.expect("a line"))[0].to_owned();
    assert_eq!(name, format!("{}…", "n".repeat(31)));
    for line in &lines {
        assert!(line.len() < 4096, "{}", line.len());
    }
}
