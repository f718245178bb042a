//! What threads of workers did, and how fast they sent data to each other.

use core::hash::Hash;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use daskwire_scheduler::state::{Span, SpanKind, WorkerId};
use serde::Serialize;
use serde_json::json;

use super::{SLICE, Viewed, cut, to_vec};
use crate::live::{Part, View, event};

/// Maximum number of rows in a message.
const MAX_ROWS: u64 = 5_000;

/// Number of rows that are kept for new viewers.
const MAX_KEPT: u64 = 10_000;

/// Number of spans that are read at once.
const PART: usize = 1_000;

/// Maximum number of workers in a matrix.
const MAX_PEERS: usize = 64;

/// What is remembered between snapshots, while there are viewers.
#[derive(Debug, Default)]
pub(crate) struct Streaming {
    is_recording: bool,
    next: u64,
    parts: VecDeque<Part>,
    /// The addresses of workers, also of those that have left.
    addresses: HashMap<WorkerId, Arc<str>>,
    /// Mean bandwidths, by sender and receiver.
    rates: BTreeMap<(String, String), f64>,
}

#[derive(Serialize)]
struct Message<'m> {
    from: u64,
    next: u64,
    lost: u64,
    /// Seconds since 1970.
    base: f64,
    workers: Vec<&'m str>,
    threads: Vec<i64>,
    prefixes: Vec<&'m str>,
    /// The worker, its thread, the start in microseconds since the base, how many it took, the kind, and
    /// the prefix.
    rows: Vec<(usize, usize, i64, i64, u8, usize)>,
}

impl Streaming {
    /// Starts to record spans, or ends it, as they are looked at or not.
    pub(crate) fn record(&mut self, viewed: &Viewed<'_>, is_wanted: bool) {
        if self.is_recording != is_wanted {
            viewed.scheduler.record_spans(is_wanted);
            self.is_recording = is_wanted;
            self.parts.clear();
            self.next = viewed.inspect(|state| state.span_count());
        }
    }

    /// The last messages, with the spans that have come since the snapshot before.
    pub(crate) fn parts(&mut self, viewed: &Viewed<'_>) -> VecDeque<Part> {
        let workers = viewed.workers();
        if self.addresses.len() > 4 * workers.len() + 1_000 {
            self.addresses.clear();
        }
        for worker in workers {
            let address = || Arc::from(&*cut(&worker.address));
            self.addresses.entry(worker.id).or_insert_with(address);
        }
        let from = self.next;
        let end = viewed.inspect(|state| state.span_count());
        // More could not be told apart.
        let mut next = from.max(end.saturating_sub(MAX_ROWS));
        let mut spans: Vec<Span> = Vec::new();
        while next < end {
            let left = usize::try_from(end - next).unwrap_or(usize::MAX);
            let (first, part) = viewed.inspect(|state| state.spans(next, left.min(PART)));
            if part.is_empty() {
                break;
            }
            next = first + part.len() as u64;
            spans.extend(part);
        }
        if !spans.is_empty() {
            let event = event(View::Stream, &to_vec(&self.message(from, next, &spans)));
            self.parts.push_back(Part { next, event });
            self.next = next;
        }
        let oldest = self.next.saturating_sub(MAX_KEPT);
        self.parts.retain(|part| part.next > oldest);
        self.parts.clone()
    }

    fn message<'m>(&'m self, from: u64, next: u64, spans: &'m [Span]) -> Message<'m> {
        let (mut workers, mut prefixes) = (Table::default(), Table::default());
        let mut threads = Table::default();
        let base = spans.first().map_or(0.0, |span| span.start.floor());
        #[expect(clippy::cast_possible_truncation, reason = "casts saturate")]
        let micros = |seconds: f64| (seconds * 1e6).round() as i64;
        let rows = spans.iter().map(|span| {
            let address = self
                .addresses
                .get(&span.worker)
                .map_or("", |address| address);
            let kind = match span.kind {
                SpanKind::Compute => 0,
                SpanKind::Transfer => 1,
                SpanKind::DiskWrite => 2,
                SpanKind::DiskRead => 3,
                SpanKind::Deserialize => 4,
                SpanKind::Failed => 5,
                _ => 6,
            };
            let worker = workers.place(address);
            let prefix = prefixes.place(&*span.prefix);
            let (since, took) = (span.start - base, span.stop - span.start);
            let thread = threads.place(span.thread);
            (worker, thread, micros(since), micros(took), kind, prefix)
        });
        let rows: Vec<_> = rows.collect();
        Message {
            from,
            next,
            lost: next - from - rows.len() as u64,
            base,
            workers: workers.names,
            threads: threads.names,
            prefixes: prefixes.names,
            rows,
        }
    }

    /// The bandwidths between workers, those of the busiest.
    pub(crate) fn bandwidth(&mut self, viewed: &Viewed<'_>) -> serde_json::Value {
        let mut after = None;
        let mut measured = Vec::new();
        loop {
            let (rates, last) = viewed.inspect(|state| state.overview_bandwidths(after, SLICE));
            measured.extend(rates);
            if last.is_none() {
                break;
            }
            after = last;
        }
        for rate in measured {
            let pair = (rate.from, rate.to);
            let mean = self.rates.entry(pair).or_insert(rate.rate);
            *mean = 0.75 * *mean + 0.25 * rate.rate;
        }
        let known: HashSet<&str> = viewed.workers().iter().map(|it| &*it.address).collect();
        self.rates
            .retain(|(from, to), _| known.contains(from.as_str()) && known.contains(to.as_str()));
        let mut sums: HashMap<&str, f64> = HashMap::new();
        for ((from, to), rate) in &self.rates {
            *sums.entry(from).or_default() += rate;
            *sums.entry(to).or_default() += rate;
        }
        let mut busiest: Vec<(&str, f64)> = sums.into_iter().collect();
        busiest.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(other.0)));
        busiest.truncate(MAX_PEERS);
        let places = busiest.iter().enumerate();
        let places: HashMap<&str, usize> =
            places.map(|(place, (name, _))| (*name, place)).collect();
        let rows = self.rates.iter().filter_map(|((from, to), rate)| {
            Some((*places.get(&**from)?, *places.get(&**to)?, *rate))
        });
        let rows: Vec<(usize, usize, f64)> = rows.collect();
        let names: Vec<_> = busiest.iter().map(|(name, _)| cut(name)).collect();
        let document = json!({"workers": names, "rows": rows});
        // Pairs that are not shown are not remembered.
        if self.rates.len() > 16 * MAX_PEERS * MAX_PEERS {
            self.rates.clear();
        }
        document
    }
}

/// Names that are written once.
struct Table<N> {
    names: Vec<N>,
    places: HashMap<N, usize>,
}

impl<N> Default for Table<N> {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            places: HashMap::new(),
        }
    }
}

impl<N: Copy + Eq + Hash> Table<N> {
    fn place(&mut self, name: N) -> usize {
        *self.places.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }
}
