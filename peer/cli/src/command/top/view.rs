//! The screen of `daskwire top`: a function of the last snapshot and of the keys
//! pressed.

use core::cmp::Ordering;

use console::{Alignment, measure_text_width, pad_str, truncate_str};
use crossterm::style::{StyledContent, Stylize as _, style};
use daskwire::display::Printable;

use crate::command::snapshot::{Snapshot, States, Worker};
use crate::format::{bytes, count, duration};

/// A text in one style.
pub(super) type Span = StyledContent<String>;

/// The spans of a line of the screen.
pub(super) type Line = Vec<Span>;

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
    width: usize,
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
        show: |worker| worker.nthreads.to_string(),
        compare: largest!(nthreads),
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
const MIN_NAME_WIDTH: usize = 12;

/// The columns with strings, which are aligned to the left.
const LEFT: usize = 3;

/// The columns that fit into a width, with their indices.
fn fitting(width: usize) -> Vec<(usize, &'static Column)> {
    let mut left = width;
    let mut columns: Vec<_> = COLUMNS.iter().enumerate().collect();
    columns.sort_by_key(|(_, column)| column.rank);
    columns.retain(|(_, column)| {
        // Including the space before the next column.
        let needed = column.width + 1;
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

    /// Draws the lines of a screen, as many as its height and each cut to its width.
    pub(super) fn draw(&self, width: usize, height: usize) -> Vec<Line> {
        let mut lines = vec![self.head(width)];
        if let Some(snapshot) = &self.snapshot {
            // At most a third of the screen, including the heading.
            let tasks = match snapshot.prefixes.len() {
                0 => 0,
                prefix_count => (prefix_count + 2).min(height / 3),
            };
            lines.extend([
                totals(snapshot, width),
                states(snapshot, width),
                Line::new(),
            ]);
            // Small screens keep room for a heading, a worker, and the help.
            lines.truncate(height.saturating_sub(3));
            let workers = height.saturating_sub(lines.len() + tasks + 1).max(2);
            let end = lines.len() + workers;
            lines.extend(self.workers(snapshot, width, workers));
            lines.resize(end, Line::new());
            lines.extend(task_table(snapshot, width, tasks));
        }
        lines.resize(height.saturating_sub(1), Line::new());
        let help = "q quit   ←→ sort   r reverse   ↑↓ scroll";
        lines.push(vec![help.to_owned().dim()]);
        lines.truncate(height);
        for line in &mut lines {
            let mut left = width;
            for span in line {
                let text = cut(span.content(), left);
                left -= measure_text_width(&text);
                *span = Span::new(*span.style(), text);
            }
        }
        lines
    }

    fn head(&self, width: usize) -> Line {
        let mut parts = vec![(2, "daskwire top".to_owned().bold())];
        match (&self.failure, &self.snapshot) {
            (Some(failure), _) => {
                let failure = format!("{}; trying again", Printable(failure));
                parts.push((0, failure.dark_red().bold()));
            }
            (None, None) => parts.push((0, style("connecting".to_owned()))),
            (None, Some(_)) => {}
        }
        if let Some(snapshot) = &self.snapshot {
            parts.push((1, style(Printable(&snapshot.address).to_string())));
            if let Some(release) = &snapshot.release {
                parts.push((3, style(format!("distributed {}", Printable(release)))));
            }
            if let Some(uptime) = snapshot.uptime {
                parts.push((4, style(format!("up {}", duration(uptime)))));
            }
        }
        fitting_parts(parts, width)
    }

    fn workers(&self, snapshot: &Snapshot, width: usize, height: usize) -> Vec<Line> {
        if snapshot.workers.is_empty() {
            return vec![vec!["The cluster has no workers.".to_owned().dim()]];
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
        let columns = fitting(width);
        let cells = |text: &dyn Fn(usize, &Column) -> String| -> Vec<String> {
            let cells = columns.iter().map(|&(index, column)| {
                let alignment = if index < LEFT {
                    Alignment::Left
                } else {
                    Alignment::Right
                };
                cell(&text(index, column), column.width, alignment)
            });
            cells.collect()
        };
        let titles = cells(&|index, column| {
            let arrow = if index == self.column { arrow } else { "" };
            format!("{}{arrow}", column.title)
        });
        let titles = titles.into_iter().zip(&columns).map(|(title, (index, _))| {
            let title = title.bold();
            [if *index == self.column {
                title.underlined()
            } else {
                title
            }]
        });
        let heading = titles.collect::<Vec<_>>().join(&style(" ".to_owned()));
        let skipped = self.skipped.min(workers.len().saturating_sub(1));
        let rows = workers.iter().skip(skipped).map(|worker| {
            let row = style(cells(&|_, column| (column.show)(worker)).join(" "));
            vec![match percent(worker.memory, worker.memory_limit) {
                // Dask spills above 70 % and pauses above 80 %.
                _ if worker.status != "running" => row.dim(),
                Some(80..) => row.dark_red(),
                Some(70..) => row.dark_yellow(),
                _ => row,
            }]
        });
        core::iter::once(heading).chain(rows).take(height).collect()
    }
}

/// The text of a cell of a table: padded to a width, or cut to it with an ellipsis.
/// Aligned to the right, it keeps its end, and its characters are one column wide.
fn cell(text: &str, width: usize, alignment: Alignment) -> String {
    let excess = match alignment {
        Alignment::Right => text.chars().count().saturating_sub(width),
        Alignment::Left | Alignment::Center => 0,
    };
    let text = match excess {
        0 => cut(text, width),
        _ => core::iter::once('…')
            .chain(text.chars().skip(excess + 1))
            .collect(),
    };
    pad_str(&text, width, alignment, None).into_owned()
}

/// A text that fits into a width: the text, or its start with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    // Characters may have no width, and a peer may send any number of them.
    let max_count = 4 * width + 16;
    let end = text.char_indices().nth(max_count).map(|(end, _)| end);
    let text = &text[..end.unwrap_or(text.len())];
    // Some characters are wider together than one by one, which `truncate_str` ignores.
    let mut cuts = (0..=width)
        .rev()
        .map(|width| truncate_str(text, width, "…"));
    let cut = cuts.find(|cut| measure_text_width(cut) <= width);
    cut.unwrap_or_default().into_owned()
}

/// The parts of a line that fit, two columns apart. Narrow terminals omit the parts with
/// the largest ranks; the part with the lowest rank is always drawn.
fn fitting_parts(parts: Vec<(usize, Span)>, width: usize) -> Line {
    const SPACE: usize = 2;
    let mut left = width + SPACE;
    let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
    parts.sort_by_key(|(_, (rank, _))| *rank);
    let mut is_first = true;
    parts.retain(|(_, (_, span))| {
        let needed = measure_text_width(span.content()) + SPACE;
        let fits = needed <= left || is_first;
        is_first = false;
        left = if fits { left.saturating_sub(needed) } else { 0 };
        fits
    });
    parts.sort_by_key(|(index, _)| *index);
    let spans: Vec<[Span; 1]> = parts.into_iter().map(|(_, (_, span))| [span]).collect();
    spans.join(&style(" ".repeat(SPACE)))
}

fn totals(snapshot: &Snapshot, width: usize) -> Line {
    let threads = snapshot.sum(|worker| worker.nthreads);
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
    let mut left = width + 1;
    let [
        counts_width,
        memory_width,
        cpu_width,
        transfers_width,
        spilled_width,
    ] = widths.map(|width| {
        let fits = width < left;
        left = if fits { left - width - 1 } else { 0 };
        fits.then_some(width)
    });
    let text = |text: String| move |width| vec![style(cell(&text, width, Alignment::Left))];
    let gauge = |ratio, label: String| move |width| gauge(ratio, &label, width);
    let parts = [
        counts_width.map(text(counts_line)),
        cpu_width.map(gauge(ratio(cpu / 100.0, threads), cpu_label)),
        memory_width.map(gauge(used, memory_label)),
        transfers_width.map(text(transfers)),
        spilled_width.map(text(spilled)),
    ];
    let parts: Vec<Line> = parts.into_iter().flatten().collect();
    parts.join(&style(" ".to_owned()))
}

/// A gauge with its label, which is ASCII, in the centre.
fn gauge(ratio: f64, label: &str, width: usize) -> Line {
    let text = pad_str(label, width, Alignment::Center, None);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "for display"
    )]
    let filled = (width as f64 * ratio).round() as usize;
    let (filled, empty) = text.split_at(filled.min(text.len()));
    let colored = |text: &str| text.to_owned().dark_green().on_dark_grey();
    // Reversed, so that it is visible without colours, too.
    vec![colored(filled).reverse(), colored(empty)]
}

fn states(snapshot: &Snapshot, width: usize) -> Line {
    let states = snapshot.states();
    let mut parts = vec![(0, "tasks".to_owned().bold())];
    for (index, (state, label)) in snapshot.shown_states().into_iter().enumerate() {
        let number = states.get(state).copied().unwrap_or(0);
        let part = style(format!("{number} {label}"));
        parts.push(match (state, number) {
            ("erred", 1..) => (1, part.dark_red().bold()),
            ("no-worker", 1..) => (1, part.dark_yellow().bold()),
            (_, 0) => (20 + index, part.dim()),
            _ => (2 + index, part),
        });
    }
    let ready = snapshot.sum(|worker| worker.ready);
    let running = snapshot.sum(|worker| worker.executing);
    let on_workers = format!("on workers: {running} running, {ready} ready");
    parts.push((10, style(on_workers)));
    fitting_parts(parts, width)
}

/// Draws the prefixes with the most unfinished tasks, then those with the most tasks,
/// below a heading and an empty line.
fn task_table(snapshot: &Snapshot, width: usize, height: usize) -> Vec<Line> {
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
    let number_width = |&(state, label): &(&str, &str)| {
        let numbers = prefixes
            .iter()
            .map(|(_, states)| number(states, state).len());
        numbers.max().unwrap_or(0).max(label.len())
    };
    // Narrow terminals omit states, first those without tasks.
    let all = snapshot.states();
    let mut ranked = shown.clone();
    ranked.sort_by_key(|(state, _)| all.get(*state).is_none_or(|count| *count == 0));
    let mut left = width.saturating_sub(MIN_NAME_WIDTH);
    ranked.retain(|state| {
        let rest = left.checked_sub(number_width(state) + 2);
        left = rest.unwrap_or(0);
        rest.is_some()
    });
    shown.retain(|state| ranked.contains(state));
    let widths: Vec<usize> = shown.iter().map(number_width).collect();
    let numbers_width = widths.iter().fold(0, |sum, width| sum + width + 2);
    let name_width = width.saturating_sub(numbers_width).min(32);
    let row = |name: &str, text: &dyn Fn(&str, &str) -> String| {
        let numbers = shown.iter().zip(&widths);
        let numbers = numbers
            .map(|((state, label), width)| cell(&text(state, label), *width, Alignment::Right));
        let name = cell(name, name_width, Alignment::Left);
        let cells: Vec<String> = core::iter::once(name).chain(numbers).collect();
        style(cells.join("  "))
    };
    let heading = row("tasks", &|_, label| label.to_owned()).bold();
    let rows = prefixes.iter().map(|(name, states)| {
        let name = Printable(name).to_string();
        vec![row(&name, &|state, _| number(states, state))]
    });
    let head = [Line::new(), vec![heading]];
    head.into_iter().chain(rows).take(height).collect()
}
