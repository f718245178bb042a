//! What `daskwire top` draws: a function of the last snapshot and of the keys that
//! were pressed.

use core::cmp::Ordering;

use daskwire::display::Printable;
use daskwire_cli::table::{bytes, count, duration};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Gauge, Paragraph, Row, Table};

use crate::snapshot::{Snapshot, Worker};

/// What is drawn.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The last snapshot; `None` before the first one.
    pub(super) snapshot: Option<Snapshot>,
    /// Why there is no connection, if there is none.
    pub(super) trouble: Option<String>,
    /// The column that workers are sorted by.
    pub(super) column: usize,
    /// Whether the order is that of the other direction.
    pub(super) is_reversed: bool,
    /// The number of workers above the first one that is shown.
    pub(super) skipped: usize,
}

/// A key that changes the view.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    /// Sorts by the previous column.
    Left,
    /// Sorts by the next column.
    Right,
    /// Sorts the other way around.
    Reverse,
    /// Shows earlier workers.
    Up(usize),
    /// Shows later workers.
    Down(usize),
}

/// A column of the table of workers.
struct Column {
    title: &'static str,
    width: u16,
    /// Narrow terminals lack the columns with the largest numbers.
    rank: usize,
    show: fn(&Worker) -> String,
    /// The order that is natural: largest numbers first, strings by the alphabet.
    compare: fn(&Worker, &Worker) -> Ordering,
}

/// Compares numbers, largest first.
macro_rules! largest {
    ($field:ident) => {
        |one, other| other.$field.cmp(&one.$field)
    };
}

const COLUMNS: [Column; 13] = [
    Column {
        title: "name",
        width: 16,
        rank: 0,
        show: |worker| Printable(&worker.name).to_string(),
        compare: |one, other| one.name.cmp(&other.name),
    },
    Column {
        title: "address",
        width: 22,
        rank: 12,
        show: |worker| Printable(&worker.address).to_string(),
        compare: |one, other| one.address.cmp(&other.address),
    },
    Column {
        title: "status",
        width: 8,
        rank: 9,
        show: |worker| Printable(&worker.status).to_string(),
        compare: |one, other| one.status.cmp(&other.status),
    },
    Column {
        title: "thr",
        width: 4,
        rank: 10,
        show: |worker| worker.thread_count.to_string(),
        compare: largest!(thread_count),
    },
    Column {
        title: "cpu",
        width: 6,
        rank: 1,
        show: |worker| format!("{:.0} %", worker.cpu),
        compare: |one, other| other.cpu.total_cmp(&one.cpu),
    },
    Column {
        title: "memory",
        width: 9,
        rank: 2,
        show: |worker| bytes(worker.memory),
        compare: largest!(memory),
    },
    Column {
        title: "of",
        width: 5,
        rank: 11,
        show: |worker| match percent(worker.memory, worker.memory_limit) {
            Some(percent) => format!("{percent} %"),
            None => "-".to_owned(),
        },
        compare: |one, other| {
            let part = |worker: &Worker| percent(worker.memory, worker.memory_limit);
            part(other).cmp(&part(one))
        },
    },
    Column {
        title: "spilled",
        width: 9,
        rank: 8,
        show: |worker| bytes(worker.spilled),
        compare: largest!(spilled),
    },
    Column {
        title: "running",
        width: 8,
        rank: 3,
        show: |worker| worker.executing.to_string(),
        compare: largest!(executing),
    },
    Column {
        title: "assigned",
        width: 9,
        rank: 6,
        show: |worker| worker.processing.to_string(),
        compare: largest!(processing),
    },
    Column {
        title: "stored",
        width: 7,
        rank: 7,
        show: |worker| worker.stored.to_string(),
        compare: largest!(stored),
    },
    Column {
        title: "in",
        width: 9,
        rank: 4,
        show: |worker| bytes(worker.incoming),
        compare: largest!(incoming),
    },
    Column {
        title: "out",
        width: 9,
        rank: 5,
        show: |worker| bytes(worker.outgoing),
        compare: largest!(outgoing),
    },
];

/// The columns with strings, which are aligned to the left.
const LEFT: usize = 3;

/// The states of tasks in the order of their lives.
const STATES: [(&str, &str); 5] = [
    ("waiting", "waiting"),
    ("processing", "processing"),
    ("memory", "in memory"),
    ("released", "released"),
    ("erred", "erred"),
];

/// The columns that have space, with their numbers.
fn fitting(width: u16) -> Vec<(usize, &'static Column)> {
    let mut left = usize::from(width);
    let mut columns: Vec<_> = COLUMNS.iter().enumerate().collect();
    columns.sort_by_key(|(_, column)| column.rank);
    columns.retain(|(_, column)| {
        // With the space before the next column.
        let needed = usize::from(column.width) + 1;
        let fits = needed <= left;
        left = if fits { left - needed } else { 0 };
        fits
    });
    columns.sort_by_key(|(index, _)| *index);
    columns
}

/// The part of a limit in percent; `None` without a limit.
fn percent(part: u64, limit: u64) -> Option<u64> {
    let percent = u128::from(part) * 100 / u128::from(limit).max(1);
    (limit > 0).then(|| u64::try_from(percent).unwrap_or(u64::MAX))
}

impl View {
    /// Changes what is shown.
    pub(super) fn press(&mut self, key: Key) {
        match key {
            Key::Left => self.column = (self.column + COLUMNS.len() - 1) % COLUMNS.len(),
            Key::Right => self.column = (self.column + 1) % COLUMNS.len(),
            Key::Reverse => self.is_reversed = !self.is_reversed,
            Key::Up(count) => self.skipped = self.skipped.saturating_sub(count),
            Key::Down(count) => {
                let worker_count = self.snapshot.as_ref().map_or(0, |it| it.workers.len());
                let last = worker_count.saturating_sub(1);
                self.skipped = self.skipped.saturating_add(count).min(last);
            }
        }
    }

    /// Draws everything.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let prefix_count = self.snapshot.as_ref().map_or(0, |it| it.prefixes.len());
        let area = frame.area();
        // At most a third of the screen, with the heading.
        let tasks = u16::try_from(prefix_count)
            .unwrap_or(u16::MAX)
            .saturating_add(2);
        let tasks = if prefix_count == 0 {
            0
        } else {
            tasks.min(area.height / 3)
        };
        let [head, totals, states, workers, tasks, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Min(2),
            Constraint::Length(tasks),
            Constraint::Length(1),
        ])
        .areas(area);
        self.head(frame, head);
        if let Some(snapshot) = &self.snapshot {
            draw_totals(frame, totals, snapshot);
            draw_states(frame, states, snapshot);
            self.draw_workers(frame, workers, snapshot);
            draw_tasks(frame, tasks, snapshot);
        }
        let help = "q quit   ←→ sort   r reverse   ↑↓ scroll";
        frame.render_widget(Line::from(help).dim(), keys);
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut parts = vec!["daskwire top".bold()];
        if let Some(snapshot) = &self.snapshot {
            parts.push(format!("  {}", Printable(&snapshot.address)).into());
            if let Some(release) = &snapshot.release {
                parts.push(format!("  distributed {}", Printable(release)).into());
            }
            if let Some(uptime) = snapshot.uptime {
                parts.push(format!("  up {}", duration(uptime)).into());
            }
        }
        match (&self.trouble, &self.snapshot) {
            (Some(trouble), _) => {
                // First, so that a narrow terminal shows it.
                let trouble = format!("  {}; trying again", Printable(trouble));
                parts.insert(1, trouble.red().bold());
            }
            (None, None) => parts.push("  connecting".into()),
            (None, Some(_)) => {}
        }
        frame.render_widget(Line::from(parts), area);
    }

    fn draw_workers(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        if snapshot.workers.is_empty() {
            frame.render_widget(Line::from("The cluster has no workers.").dim(), area);
            return;
        }
        let mut workers: Vec<&Worker> = snapshot.workers.iter().collect();
        if let Some(column) = COLUMNS.get(self.column) {
            // Stable, so that workers do not jump between snapshots.
            workers.sort_by(|one, other| {
                let order = (column.compare)(one, other);
                let order = if self.is_reversed {
                    order.reverse()
                } else {
                    order
                };
                order.then_with(|| one.address.cmp(&other.address))
            });
        }
        let arrow = if self.is_reversed { "▲" } else { "▼" };
        let cell = |index: usize, content: String| {
            let line = Line::from(content);
            Cell::from(if index < LEFT {
                line
            } else {
                line.right_aligned()
            })
        };
        let columns = fitting(area.width);
        let heading = columns.iter().map(|&(index, column)| {
            if index == self.column {
                cell(index, format!("{}{arrow}", column.title)).underlined()
            } else {
                cell(index, column.title.to_owned())
            }
        });
        let skipped = self.skipped.min(workers.len().saturating_sub(1));
        let rows = workers.iter().skip(skipped).map(|worker| {
            let cells = columns.iter();
            let row = Row::new(cells.map(|&(index, column)| cell(index, (column.show)(worker))));
            match percent(worker.memory, worker.memory_limit) {
                // Dask spills from 70 % on and pauses from 80 % on.
                _ if worker.status != "running" => row.dim(),
                Some(80..) => row.red(),
                Some(70..) => row.yellow(),
                _ => row,
            }
        });
        let widths = columns
            .iter()
            .map(|(_, column)| Constraint::Length(column.width));
        let table = Table::new(rows, widths)
            .header(Row::new(heading).style(Style::new().add_modifier(Modifier::BOLD)));
        frame.render_widget(table, area);
    }
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let threads = snapshot.sum(|worker| worker.thread_count);
    let (memory, limit) = (
        snapshot.sum(|worker| worker.memory),
        snapshot.sum(|worker| worker.memory_limit),
    );
    let cpu = snapshot
        .workers
        .iter()
        .fold(0.0, |sum, worker| sum + worker.cpu);
    let [counts, cpu_area, memory_area, transfers] = Layout::horizontal([
        Constraint::Length(26),
        Constraint::Length(22),
        Constraint::Length(36),
        Constraint::Min(0),
    ])
    .spacing(1)
    .areas(area);
    let threads_count = usize::try_from(threads).unwrap_or(usize::MAX);
    let line = format!(
        "{}, {}",
        count(snapshot.workers.len(), "worker"),
        count(threads_count, "thread")
    );
    frame.render_widget(Line::from(line), counts);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let ratio = |part: f64, all: u64| (part / (all.max(1) as f64)).clamp(0.0, 1.0);
    let gauge = |ratio: f64, label: String| {
        let ratio = if ratio.is_finite() { ratio } else { 0.0 };
        let gauge = Gauge::default().ratio(ratio).label(label);
        gauge.gauge_style(Style::new().green().on_dark_gray())
    };
    let label = format!("cpu {cpu:.0} % of {} %", threads.saturating_mul(100));
    frame.render_widget(gauge(ratio(cpu / 100.0, threads), label), cpu_area);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let used = ratio(memory as f64, limit);
    let label = match limit {
        0 => format!("memory {}", bytes(memory)),
        _ => format!("memory {} of {}", bytes(memory), bytes(limit)),
    };
    frame.render_widget(gauge(used, label), memory_area);
    let line = format!(
        "in {}  out {}  spilled {}",
        bytes(snapshot.sum(|worker| worker.incoming)),
        bytes(snapshot.sum(|worker| worker.outgoing)),
        bytes(snapshot.sum(|worker| worker.spilled)),
    );
    frame.render_widget(Line::from(line), transfers);
}

fn draw_states(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let states = snapshot.states();
    let mut parts: Vec<Span<'_>> = vec!["tasks  ".bold()];
    for (state, label) in STATES {
        let number = states.get(state).copied().unwrap_or(0);
        let part = Span::from(format!("{number} {label}   "));
        parts.push(match (state, number) {
            ("erred", 1..) => part.red().bold(),
            (_, 0) => part.dim(),
            _ => part,
        });
    }
    let ready = snapshot.sum(|worker| worker.ready);
    let running = snapshot.sum(|worker| worker.executing);
    parts.push(format!("on workers: {running} running, {ready} ready").into());
    frame.render_widget(Paragraph::new(Line::from(parts)), area);
}

/// The prefixes with most tasks that are not done, then with most tasks.
fn draw_tasks(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let mut prefixes: Vec<_> = snapshot.prefixes.iter().collect();
    prefixes.sort_by_cached_key(|(name, states)| {
        let number = |state| states.get(state).copied().unwrap_or(0);
        let pending = number("waiting").saturating_add(number("processing"));
        let all = states
            .values()
            .fold(0_u64, |all, count| all.saturating_add(*count));
        (core::cmp::Reverse((pending, all)), name.clone())
    });
    let rows = prefixes.into_iter().map(|(name, states)| {
        let numbers = STATES.iter().map(|(state, _)| {
            let number = states.get(*state).copied().unwrap_or(0);
            Cell::from(Line::from(number.to_string()).right_aligned())
        });
        Row::new(
            [Cell::from(Printable(name).to_string())]
                .into_iter()
                .chain(numbers),
        )
    });
    let titles = STATES
        .iter()
        .map(|(_, label)| Cell::from(Line::from(*label).right_aligned()));
    let heading = Row::new([Cell::from("tasks")].into_iter().chain(titles));
    // Numbers are shown whole.
    let name = area.width.saturating_sub(5 * 12).min(32);
    let widths = [Constraint::Length(name)]
        .into_iter()
        .chain([Constraint::Length(11); 5]);
    let table = Table::new(rows, widths).header(
        heading
            .style(Style::new().add_modifier(Modifier::BOLD))
            .top_margin(1),
    );
    frame.render_widget(table, area);
}
