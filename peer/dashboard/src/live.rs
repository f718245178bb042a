//! Live views: what changes all the time, as server-sent events.
//!
//! Each view is taken once in half a second for all viewers together, while at least one looks. A
//! viewer that reads slowly skips what it has missed.

use core::task::{Context, Poll, ready};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::MissedTickBehavior;

/// The time between two snapshots.
const INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of viewers.
const MAX_VIEWERS: usize = 64;

/// The time in which a viewer without news gets an empty message, by which proxies and this server
/// learn whether it is there.
const SILENCE: Duration = Duration::from_secs(15);

/// The time in which a viewer must read something.
const STALL: Duration = Duration::from_secs(30);

/// A view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Cluster,
    Prefixes,
    Workers,
    Stream,
    Bandwidth,
    Graph,
}

impl View {
    pub(crate) const ALL: [Self; 6] = [
        Self::Cluster,
        Self::Prefixes,
        Self::Workers,
        Self::Stream,
        Self::Bandwidth,
        Self::Graph,
    ];

    /// Its name in requests and events.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Prefixes => "prefixes",
            Self::Workers => "workers",
            Self::Stream => "stream",
            Self::Bandwidth => "bandwidth",
            Self::Graph => "graph",
        }
    }
}

/// A set of views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Views([bool; View::ALL.len()]);

impl Views {
    /// Reads names, separated by commas.
    ///
    /// # Errors
    ///
    /// The first name that is none of a view.
    pub(crate) fn parse(names: &str) -> Result<Self, &str> {
        let mut views = Self::default();
        for name in names.split(',') {
            let view = View::ALL.into_iter().find(|view| view.name() == name);
            views.0[view.ok_or(name)? as usize] = true;
        }
        Ok(views)
    }

    pub(crate) const fn contains(self, view: View) -> bool {
        self.0[view as usize]
    }

    /// Whether all views of another set are in this one.
    fn covers(self, other: Self) -> bool {
        View::ALL
            .into_iter()
            .all(|view| self.contains(view) || !other.contains(view))
    }
}

/// A message of the stream of tasks, which follows others.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The number of the row after its last one.
    pub(crate) next: u64,
    pub(crate) event: Bytes,
}

/// What viewers are shown until the next snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The views that it has.
    pub(crate) views: Views,
    /// The events of all views but the stream.
    pub(crate) events: [Option<Bytes>; View::ALL.len()],
    /// The last parts of the stream, oldest first.
    pub(crate) stream: VecDeque<Part>,
}

impl Snapshot {
    /// Adds the document of a view.
    pub(crate) fn add(&mut self, view: View, document: &[u8]) {
        self.views.0[view as usize] = true;
        self.events[view as usize] = Some(event(view, document));
    }
}

impl Snapshot {
    /// Adds the parts of the stream.
    pub(crate) fn add_stream(&mut self, parts: VecDeque<Part>) {
        self.views.0[View::Stream as usize] = true;
        self.stream = parts;
    }
}

/// An event for viewers. A document in JSON has no line ends.
pub(crate) fn event(view: View, document: &[u8]) -> Bytes {
    let head = ["event: ", view.name(), "\ndata: "].concat();
    [head.as_bytes(), document, b"\n\n"].concat().into()
}

/// The viewers, and what they are shown.
#[derive(Debug)]
pub(crate) struct Live {
    snapshot: watch::Sender<Arc<Snapshot>>,
    viewer_count: AtomicUsize,
    /// The number of viewers of each view.
    counts: Mutex<[usize; View::ALL.len()]>,
    has_viewers: Notify,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            snapshot: watch::Sender::new(Arc::default()),
            viewer_count: AtomicUsize::new(0),
            counts: Mutex::default(),
            has_viewers: Notify::new(),
        }
    }
}

impl Live {
    /// The views that viewers look at.
    fn wanted(&self) -> Views {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        Views(counts.map(|count| count > 0))
    }

    fn count(&self, views: Views, change: impl Fn(&mut usize)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for view in View::ALL {
            if views.contains(view) {
                change(&mut counts[view as usize]);
            }
        }
    }

    /// Takes snapshots of the views that viewers look at, as long as `take` returns any. It is called
    /// on a thread that may wait, and once with no views after the last viewer has left.
    pub(crate) async fn run<T>(self: Arc<Self>, take: T)
    where
        T: Fn(Views) -> Option<Snapshot> + Send + Sync + 'static,
    {
        let take = Arc::new(take);
        let mut interval = tokio::time::interval(INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = Views::default();
        loop {
            if before == Views::default() && self.wanted() == Views::default() {
                self.has_viewers.notified().await;
            }
            interval.tick().await;
            let views = self.wanted();
            before = views;
            let take = Arc::clone(&take);
            match tokio::task::spawn_blocking(move || take(views)).await {
                Ok(Some(snapshot)) => {
                    self.snapshot.send_replace(Arc::new(snapshot));
                }
                Ok(None) => return,
                // A panic, of which the thread has printed the message. Viewers see no news.
                Err(_) => {}
            }
        }
    }

    /// Starts to show views. Rows of the stream are shown from a number on. Returns `None` if there are
    /// too many viewers.
    pub(crate) fn view(
        self: &Arc<Self>,
        views: Views,
        cursor: u64,
        viewing: Viewing,
    ) -> Option<Messages> {
        let before = self.viewer_count.fetch_add(1, Ordering::AcqRel);
        // Counted down when it is dropped.
        let viewer = Viewer {
            live: Arc::clone(self),
            views,
        };
        self.count(views, |count| *count += 1);
        if before >= MAX_VIEWERS {
            return None;
        }
        self.has_viewers.notify_one();
        viewing.0.has_begun.store(true, Ordering::Release);
        let (sender, batches) = mpsc::channel(1);
        tokio::spawn(async move {
            tokio::select! {
                () = viewer.show(cursor, &sender, &viewing) => {}
                () = sender.closed() => {}
            }
        });
        let rest = Vec::new().into_iter();
        Some(Messages { batches, rest })
    }
}

struct Viewer {
    live: Arc<Live>,
    views: Views,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.live.count(self.views, |count| *count -= 1);
        self.live.viewer_count.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Viewer {
    /// Sends messages until the viewer has left, or reads nothing.
    async fn show(&self, mut cursor: u64, to: &mpsc::Sender<Vec<Bytes>>, viewing: &Viewing) {
        let mut snapshots = self.live.snapshot.subscribe();
        // One that others look at is not older than half a second.
        let is_new = self.live.snapshot.borrow().views.covers(self.views);
        if is_new {
            snapshots.mark_changed();
        }
        loop {
            let is_silent = match tokio::time::timeout(SILENCE, snapshots.changed()).await {
                Ok(Ok(())) => false,
                // There is a sender as long as there are viewers.
                Ok(Err(_)) => return,
                Err(_) => true,
            };
            // What it reads next is the newest then.
            let place = match tokio::time::timeout(STALL, to.reserve()).await {
                Ok(Ok(place)) => place,
                Ok(Err(_)) => return,
                Err(_) => return viewing.0.has_stalled.notify_one(),
            };
            let messages = match is_silent {
                true => vec![Bytes::from_static(b":\n\n")],
                false => {
                    let snapshot = Arc::clone(&snapshots.borrow_and_update());
                    self.messages(&snapshot, &mut cursor)
                }
            };
            place.send(messages);
        }
    }

    /// The messages of a snapshot that the viewer wants and has not got.
    fn messages(&self, snapshot: &Snapshot, cursor: &mut u64) -> Vec<Bytes> {
        let views = View::ALL.into_iter();
        let views = views.filter(|view| self.views.contains(*view));
        let events = views.filter_map(|view| snapshot.events[view as usize].clone());
        let mut messages: Vec<Bytes> = events.collect();
        if self.views.contains(View::Stream) {
            for part in &snapshot.stream {
                if part.next > *cursor {
                    *cursor = part.next;
                    messages.push(part.event.clone());
                }
            }
        }
        messages
    }
}

/// The messages for a viewer. Those of a snapshot come at once, so that they are written at once.
#[derive(Debug)]
pub(crate) struct Messages {
    batches: mpsc::Receiver<Vec<Bytes>>,
    /// The rest of a batch.
    rest: std::vec::IntoIter<Bytes>,
}

impl Messages {
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(message) = self.rest.next() {
                return Poll::Ready(Some(message));
            }
            match ready!(self.batches.poll_recv(context)) {
                Some(batch) => self.rest = batch.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }

    #[cfg(test)]
    async fn next(&mut self) -> Option<Bytes> {
        core::future::poll_fn(|context| self.poll_next(context)).await
    }
}

/// Whether a connection belongs to a viewer, and when that reads nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Viewing(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    has_begun: AtomicBool,
    has_stalled: Notify,
}

impl Viewing {
    pub(crate) fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Acquire)
    }

    /// Waits until the viewer has read nothing for too long. Cancel safe.
    pub(crate) async fn stalled(&self) {
        self.0.has_stalled.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    /// Runs as many viewers for ten seconds, and none before and after. Returns how many snapshots
    /// were taken, and how many messages each viewer has read.
    async fn watch(viewer_count: usize) -> (usize, Vec<usize>) {
        let live = Arc::new(Live::default());
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&taken);
        let running = tokio::spawn(Arc::clone(&live).run(move |views| {
            if views != Views::default() {
                assert!(views.contains(View::Cluster) && !views.contains(View::Stream));
                counted.fetch_add(1, Ordering::Relaxed);
            }
            let mut snapshot = Snapshot::default();
            snapshot.add(View::Cluster, b"{}");
            Some(snapshot)
        }));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(taken.load(Ordering::Relaxed), 0);
        let views = Views::parse("cluster").expect("a view");
        let viewers = (0..viewer_count).map(|_| {
            let messages = live.view(views, 0, Viewing::default());
            let mut messages = messages.expect("few viewers");
            tokio::spawn(async move {
                let mut count = 0;
                let end = tokio::time::sleep(Duration::from_secs(10));
                let mut end = core::pin::pin!(end);
                loop {
                    tokio::select! {
                        message = messages.next() => {
                            assert_eq!(message.expect("a message"), "event: cluster\ndata: {}\n\n");
                            count += 1;
                        }
                        () = &mut end => return count,
                    }
                }
            })
        });
        let viewers: Vec<JoinHandle<usize>> = viewers.collect();
        let mut counts = Vec::new();
        for viewer in viewers {
            counts.push(viewer.await.expect("no panic"));
        }
        let before = taken.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let after = taken.load(Ordering::Relaxed);
        assert!(after <= before + 1, "{after} after {before}");
        running.abort();
        (before, counts)
    }

    #[tokio::test(start_paused = true)]
    async fn ten_viewers_cost_the_scheduler_as_much_as_one() {
        let (taken, counts) = watch(1).await;
        assert!((19..=21).contains(&taken), "{taken}");
        assert!((19..=21).contains(&counts[0]), "{counts:?}");
        let (taken_for_ten, counts) = watch(10).await;
        assert!(taken_for_ten <= taken + 1, "{taken_for_ten}");
        assert!(
            counts.iter().all(|count| (19..=21).contains(count)),
            "{counts:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_viewer_that_reads_slowly_skips_and_one_that_reads_nothing_is_found() {
        let live = Arc::new(Live::default());
        let views = Views::parse("stream").expect("a view");
        let viewing = Viewing::default();
        let messages = live.view(views, 0, viewing.clone());
        let mut messages = messages.expect("few viewers");
        let mut number = 0;
        let mut publish = || {
            number += 1;
            let part = |next: u64| Part {
                next,
                event: next.to_string().into(),
            };
            let mut snapshot = Snapshot::default();
            // The last three are kept.
            snapshot.add_stream((number..number + 3).map(part).collect());
            live.snapshot.send_replace(Arc::new(snapshot));
        };
        tokio::task::yield_now().await;
        for _ in 0..10 {
            publish();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let mut read = Vec::new();
        while let Ok(Some(message)) =
            tokio::time::timeout(Duration::from_millis(100), messages.next()).await
        {
            read.push(String::from_utf8_lossy(&message).into_owned());
        }
        // Those of the first snapshot, which it was about to read, and of the last one.
        assert_eq!(read, ["1", "2", "3", "10", "11", "12"]);
        let stalled = tokio::time::timeout(SILENCE, viewing.stalled()).await;
        assert!(stalled.is_err(), "it reads all that there is");
        // One message waits, and the next one after a silence is not read in time.
        publish();
        let stalled = tokio::time::timeout(2 * STALL, viewing.stalled()).await;
        stalled.expect("it is found");
    }
}
