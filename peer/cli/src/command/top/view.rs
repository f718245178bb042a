//! The screen of `daskwire top`: a function of the last snapshot and of the keys
//! pressed.

use core::cmp::Ordering;

use crate::format::{bytes, count, duration};
use daskwire::display::Printable;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Gauge, Row, Table};

use crate::command::snapshot::{Snapshot, States, Worker};

/// The state from which the screen is drawn.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The last snapshot; `None` before the first one.
    pub(super) snapshot: Option<Snapshot>,
    /// The reason why the connection failed, if it failed.
    pub(super) failure: Option<String>,
    /// The column that workers are sorted by.
    pub(super) column: usize,
    /// Whether the sort order is reversed.
    pub(super) is_reversed: bool,
    /// The number of workers scrolled past.
    pub(super) skipped: usize,
}

/// A key that changes the view.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    /// Sorts by the previous column.
    Left,
    /// Sorts by the next column.
    Right,
    /// Reverses the sort order.
    Reverse,
    /// Scrolls up.
    Up(usize),
    /// Scrolls down.
    Down(usize),
}

/// A column of the table of workers.
struct Column {
    title: &'static str,
    width: u16,
    /// Narrow terminals omit the columns with the largest ranks.
    rank: usize,
    show: fn(&Worker) -> String,
    /// The order before reversal: largest numbers first, strings alphabetically.
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

/// Minimum width of the names of tasks.
const MIN_NAME_WIDTH: u16 = 12;

/// The columns with strings, which are aligned to the left.
const LEFT: usize = 3;

/// The columns that fit into a width, with their indices.
fn fitting(width: u16) -> Vec<(usize, &'static Column)> {
    let mut left = usize::from(width);
    let mut columns: Vec<_> = COLUMNS.iter().enumerate().collect();
    columns.sort_by_key(|(_, column)| column.rank);
    columns.retain(|(_, column)| {
        // Including the space before the next column.
        let needed = usize::from(column.width) + 1;
        let fits = needed <= left;
        left = if fits { left - needed } else { 0 };
        fits
    });
    columns.sort_by_key(|(index, _)| *index);
    columns
}

/// A part of a limit in percent; `None` without a limit.
fn percent(part: u64, limit: u64) -> Option<u64> {
    let percent = u128::from(part) * 100 / u128::from(limit).max(1);
    (limit > 0).then(|| u64::try_from(percent).unwrap_or(u64::MAX))
}

impl View {
    /// Changes the view.
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
        // At most a third of the screen, including the heading.
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
        let mut parts = vec![Part::of(2, "daskwire top".bold())];
        match (&self.failure, &self.snapshot) {
            (Some(failure), _) => {
                let failure = format!("{}; trying again", Printable(failure));
                parts.push(Part::of(0, failure.red().bold()));
            }
            (None, None) => parts.push(Part::of(0, "connecting")),
            (None, Some(_)) => {}
        }
        if let Some(snapshot) = &self.snapshot {
            parts.push(Part::of(1, Printable(&snapshot.address).to_string()));
            if let Some(release) = &snapshot.release {
                parts.push(Part::of(3, format!("distributed {}", Printable(release))));
            }
            if let Some(uptime) = snapshot.uptime {
                parts.push(Part::of(4, format!("up {}", duration(uptime))));
            }
        }
        draw_parts(frame, area, parts);
    }

    fn draw_workers(&self, frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
        if snapshot.workers.is_empty() {
            frame.render_widget(Line::from("The cluster has no workers.").dim(), area);
            return;
        }
        let mut workers: Vec<&Worker> = snapshot.workers.iter().collect();
        if let Some(column) = COLUMNS.get(self.column) {
            // The sort is stable, so that workers keep their places between snapshots.
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
                // Dask spills above 70 % and pauses above 80 %.
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

/// A part of a line.
struct Part<'s> {
    /// Narrow terminals omit the parts with the largest ranks.
    rank: usize,
    span: Span<'s>,
}

impl<'s> Part<'s> {
    fn of(rank: usize, span: impl Into<Span<'s>>) -> Self {
        let span = span.into();
        Self { rank, span }
    }
}

/// Draws the parts of a line that fit, two columns apart. The part with the lowest rank
/// is always drawn.
fn draw_parts(frame: &mut Frame<'_>, area: Rect, parts: Vec<Part<'_>>) {
    const SPACE: usize = 2;
    let mut left = usize::from(area.width) + SPACE;
    let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
    parts.sort_by_key(|(_, part)| part.rank);
    let mut is_first = true;
    parts.retain(|(_, part)| {
        let needed = part.span.width() + SPACE;
        let fits = needed <= left || is_first;
        is_first = false;
        left = if fits { left.saturating_sub(needed) } else { 0 };
        fits
    });
    parts.sort_by_key(|(index, _)| *index);
    let mut spans = Vec::with_capacity(2 * parts.len());
    for (_, part) in parts {
        if !spans.is_empty() {
            spans.push(" ".repeat(SPACE).into());
        }
        spans.push(part.span);
    }
    frame.render_widget(Line::from(spans), area);
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
    let threads_count = usize::try_from(threads).unwrap_or(usize::MAX);
    let counts_line = format!(
        "{}, {}",
        count(snapshot.workers.len(), "worker"),
        count(threads_count, "thread")
    );
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let ratio = |part: f64, all: u64| (part / (all.max(1) as f64)).clamp(0.0, 1.0);
    let cpu_label = format!("cpu {cpu:.0} % of {} %", threads.saturating_mul(100));
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    let used = ratio(memory as f64, limit);
    let memory_label = match limit {
        0 => format!("memory {}", bytes(memory)),
        _ => format!("memory {} of {}", bytes(memory), bytes(limit)),
    };
    let sum = |number: fn(&Worker) -> u64| bytes(snapshot.sum(number));
    let transfers = format!(
        "in {}  out {}",
        sum(|worker| worker.incoming),
        sum(|worker| worker.outgoing)
    );
    // Separated from the transfers by two columns.
    let spilled = format!(" spilled {}", sum(|worker| worker.spilled));
    // Shown in this order as far as they fit. Gauges have a minimum width, so that they do
    // not move.
    let widths = [
        counts_line.len().max(24),
        memory_label.len().max(32),
        cpu_label.len().max(20),
        transfers.len(),
        spilled.len(),
    ];
    let mut left = usize::from(area.width) + 1;
    let [
        counts_width,
        memory_width,
        cpu_width,
        transfers_width,
        spilled_width,
    ] = widths.map(|width| {
        let fits = width < left;
        left = if fits { left - width - 1 } else { 0 };
        u16::try_from(width).unwrap_or(u16::MAX) * u16::from(fits)
    });
    let mut rest = area;
    let mut take = |width: u16| {
        let taken = Rect { width, ..rest };
        let used = width.saturating_add(u16::from(width > 0));
        rest.x = rest.x.saturating_add(used);
        rest.width = rest.width.saturating_sub(used);
        taken.intersection(area)
    };
    let (counts_area, cpu_area) = (take(counts_width), take(cpu_width));
    let (memory_area, transfers_area) = (take(memory_width), take(transfers_width));
    let spilled_area = take(spilled_width);
    let gauge = |ratio: f64, label: String| {
        let ratio = if ratio.is_finite() { ratio } else { 0.0 };
        let gauge = Gauge::default().ratio(ratio).label(label);
        gauge.gauge_style(Style::new().green().on_dark_gray())
    };
    frame.render_widget(Line::from(counts_line), counts_area);
    frame.render_widget(gauge(ratio(cpu / 100.0, threads), cpu_label), cpu_area);
    frame.render_widget(gauge(used, memory_label), memory_area);
    frame.render_widget(Line::from(transfers), transfers_area);
    frame.render_widget(Line::from(spilled), spilled_area);
}

fn draw_states(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let states = snapshot.states();
    let mut parts = vec![Part::of(0, "tasks".bold())];
    for (index, (state, label)) in snapshot.shown_states().into_iter().enumerate() {
        let number = states.get(state).copied().unwrap_or(0);
        let part = Span::from(format!("{number} {label}"));
        parts.push(match (state, number) {
            ("erred", 1..) => Part::of(1, part.red().bold()),
            ("no-worker", 1..) => Part::of(1, part.yellow().bold()),
            (_, 0) => Part::of(20 + index, part.dim()),
            _ => Part::of(2 + index, part),
        });
    }
    let ready = snapshot.sum(|worker| worker.ready);
    let running = snapshot.sum(|worker| worker.executing);
    let on_workers = format!("on workers: {running} running, {ready} ready");
    parts.push(Part::of(10, on_workers));
    draw_parts(frame, area, parts);
}

/// Draws the prefixes with the most unfinished tasks, then those with the most tasks.
fn draw_tasks(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let mut prefixes: Vec<_> = snapshot.prefixes.iter().collect();
    prefixes.sort_by_cached_key(|(name, states)| {
        let number = |state| states.get(state).copied().unwrap_or(0);
        let unfinished = ["waiting", "no-worker", "queued", "processing"].map(number);
        let pending = unfinished.into_iter().fold(0, u64::saturating_add);
        let all = states
            .values()
            .fold(0_u64, |all, count| all.saturating_add(*count));
        (core::cmp::Reverse((pending, all)), name.clone())
    });
    let mut shown = snapshot.shown_states();
    let number = |states: &States, state: &str| states.get(state).copied().unwrap_or(0).to_string();
    // Numbers are never truncated.
    let width = |&(state, label): &(&str, &str)| {
        let numbers = prefixes
            .iter()
            .map(|(_, states)| number(states, state).len());
        let width = numbers.max().unwrap_or(0).max(label.len());
        u16::try_from(width).unwrap_or(u16::MAX)
    };
    // Narrow terminals omit states, first those without tasks.
    let all = snapshot.states();
    let mut ranked = shown.clone();
    ranked.sort_by_key(|(state, _)| all.get(*state).is_none_or(|count| *count == 0));
    let mut left = area.width.saturating_sub(MIN_NAME_WIDTH);
    ranked.retain(|state| {
        let rest = left.checked_sub(width(state).saturating_add(2));
        left = rest.unwrap_or(0);
        rest.is_some()
    });
    shown.retain(|state| ranked.contains(state));
    let widths: Vec<u16> = shown.iter().map(width).collect();
    let rows = prefixes.iter().map(|(name, states)| {
        let numbers = shown
            .iter()
            .map(|(state, _)| Cell::from(Line::from(number(states, state)).right_aligned()));
        Row::new(
            [Cell::from(Printable(name).to_string())]
                .into_iter()
                .chain(numbers),
        )
    });
    let titles = shown
        .iter()
        .map(|(_, label)| Cell::from(Line::from(*label).right_aligned()));
    let heading = Row::new([Cell::from("tasks")].into_iter().chain(titles));
    let numbers_width = widths.iter().fold(0_u16, |sum, width| {
        sum.saturating_add(*width).saturating_add(2)
    });
    let name = area.width.saturating_sub(numbers_width).min(32);
    let widths = core::iter::once(name).chain(widths);
    let table = Table::new(rows, widths.map(Constraint::Length))
        .column_spacing(2)
        .header(
            heading
                .style(Style::new().add_modifier(Modifier::BOLD))
                .top_margin(1),
        );
    frame.render_widget(table, area);
}
