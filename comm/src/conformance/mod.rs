//! Conformance checks that every transport must pass, those of this
//! project and those of other crates.
//!
//! The checks cover the promises of [`daskwire::transport`](daskwire::transport) that can be observed
//! within seconds from outside the transport, and the behaviours that Dask's own
//! tests of comms require (`distributed/comm/tests`); each check names the Dask
//! test that it corresponds to. Limits, deadlines and peers that vanish are left
//! to the tests of the transport. Call [`check_transport`] from a test:
//!
//! ```
//! use daskwire_comm::Inproc;
//! use daskwire_comm::conformance::{Settings, check_transport};
//!
//! # #[tokio::main(flavor = "multi_thread", worker_threads = 4)]
//! # async fn main() {
//! let address = "inproc://checks".parse().expect("an address");
//! check_transport(Inproc, &address, Settings::default()).await;
//! # }
//! ```
//!
//! [`check_comms`] takes halves of any type ([`Pairs`]). Halves that block their
//! thread pass too, if the runtime has four threads.

mod checks;
mod resources;

use core::any::Any;
use core::fmt::Debug;
use core::future::poll_fn;
use core::panic::AssertUnwindSafe;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::panic::{catch_unwind, panic_any, resume_unwind};

use daskwire::transport::{CommReader, CommWriter};

use crate::runtime::{self, Task};
use crate::{Address, CommOptions, Listener, Traffic, Transport};
use checks::{
    a_cancelled_write_ends_the_comm, a_pending_read_ends_with_the_peer,
    a_writer_waits_for_its_reader, both_directions_at_once, closing_is_seen_by_both,
    closing_leaves_the_other_direction_open, closing_loses_nothing,
    closing_with_unread_data_loses_nothing, dropping_is_seen_by_the_peer,
    halves_can_be_dropped_separately, many_comms_at_once, messages_of_every_shape_arrive,
    messages_stay_in_order, messages_without_frames_are_refused, reads_are_cancel_safe,
};
#[cfg(target_os = "linux")]
pub use resources::closed_comms_release_resources;
pub use resources::dying_peers_are_detected;

/// A source of connected comms.
pub trait Pairs: Sync {
    /// The half that reads.
    type Reader: CommReader + Send + 'static;
    /// The half that writes.
    type Writer: CommWriter + Send + 'static;

    /// Makes a comm and returns its two ends, the connecting one first. On both
    /// ends handshakes are done, and messages of [`Settings::max_len`] are
    /// accepted.
    fn pair(&self) -> impl Future<Output = [(Self::Reader, Self::Writer); 2]> + Send;

    /// The expected properties of these comms.
    fn settings(&self) -> Settings {
        Settings::default()
    }
}

/// The expected properties of a transport, and the sizes of the checks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The size of the largest message, in bytes. Default: 40 MiB. Use less for slow
    /// links.
    pub max_len: usize,
    /// The maximum number of bytes that the link and all its buffers hold before a writer
    /// has to wait. Default: 64 MiB.
    pub buffered_len: usize,
    /// The number of messages that the check of their order sends. Default: 20,000.
    pub message_count: usize,
    /// The number of comms that are open at the same time. Default: 200. Use 1 for
    /// links that carry one comm.
    pub comm_count: usize,
    /// Whether reads and writes can be dropped before they are done. Those that block
    /// their thread cannot. Default: `true`.
    pub is_cancellable: bool,
    /// Whether sent messages arrive if the comm is closed and then dropped while it
    /// has unread data. A socket is reset then, which independent halves cannot
    /// prevent. Default: `true`.
    pub lingers: bool,
    /// The timeout of each check. Default: 120 seconds.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_len: 40 << 20,
            buffered_len: 64 << 20,
            message_count: 20_000,
            comm_count: 200,
            is_cancellable: true,
            lingers: true,
            timeout: Duration::from_secs(120),
        }
    }
}

impl Settings {
    /// Settings for a slow link that holds a few hundred bytes, such as a serial line:
    /// messages of 4 KiB at most, and fewer of them.
    pub fn small() -> Self {
        Self {
            max_len: 4 << 10,
            buffered_len: 64 << 10,
            message_count: 500,
            comm_count: 10,
            ..Self::default()
        }
    }

    /// `len`, limited to the size of the largest message.
    fn len(&self, len: usize) -> usize {
        len.min(self.max_len)
    }
}

type Frames = Vec<Vec<u8>>;

/// Runs all checks on a transport, over comms with a listener at `address`.
///
/// # Panics
///
/// If a check fails; the message begins with the name of the check.
pub async fn check_transport(
    transport: impl Transport + 'static,
    address: &Address,
    settings: Settings,
) {
    check_comms(&Bound::new(transport, address, settings).await).await;
}

/// A transport and a listener of it, which together make comms.
pub struct Bound<T> {
    transport: T,
    listener: Listener,
    address: Address,
    settings: Settings,
}

impl<T: Transport> Bound<T> {
    /// Listens at `address`.
    ///
    /// # Panics
    ///
    /// If the listener cannot be bound.
    pub async fn new(transport: T, address: &Address, settings: Settings) -> Self {
        let listen = expect(transport.bind(address).await);
        let listener = Listener::new(listen, CommOptions::default());
        Self {
            address: expect(listener.local_address()),
            transport,
            listener,
            settings,
        }
    }

    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }
}

impl<T: Debug> Debug for Bound<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bound")
            .field("transport", &self.transport)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl<T: Transport> Pairs for Bound<T> {
    type Reader = crate::CommReader;
    type Writer = crate::CommWriter;

    async fn pair(&self) -> [(Self::Reader, Self::Writer); 2] {
        let options = CommOptions::default();
        let near = crate::connect(&self.transport, &self.address, &options, Traffic::Normal);
        let far = async { self.listener.accept().await?.handshake().await };
        let (near, far) = tokio::join!(Box::pin(near), Box::pin(far));
        [near, far].map(|comm| expect(comm).split())
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

/// Runs all checks on comms of any type.
///
/// # Panics
///
/// If a check fails; the message begins with the name of the check.
pub async fn check_comms<T: Pairs>(pairs: &T) {
    let settings = pairs.settings();
    macro_rules! check {
        ($($name:ident),* $(,)?) => {$(
            // Boxed, because the futures of all checks together are large.
            let check = Box::pin(caught($name(pairs, &settings)));
            match runtime::timeout(settings.timeout, check).await {
                Ok(Ok(())) => {}
                Ok(Err(panic)) => fail(stringify!($name), panic),
                Err(_) => panic!(
                    "{}: not done within {:?}",
                    stringify!($name),
                    settings.timeout
                ),
            }
        )*};
    }
    check!(
        messages_of_every_shape_arrive,
        messages_stay_in_order,
        both_directions_at_once,
        messages_without_frames_are_refused,
        closing_loses_nothing,
        closing_is_seen_by_both,
        closing_leaves_the_other_direction_open,
        halves_can_be_dropped_separately,
        dropping_is_seen_by_the_peer,
        a_writer_waits_for_its_reader,
        many_comms_at_once,
    );
    if settings.lingers {
        check!(closing_with_unread_data_loses_nothing);
    }
    if settings.is_cancellable {
        check!(
            reads_are_cancel_safe,
            a_cancelled_write_ends_the_comm,
            a_pending_read_ends_with_the_peer
        );
    }
}

/// Awaits a future and catches its panic.
async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Resumes a panic, with the name of the check before the message.
fn fail(check: &str, panic: Box<dyn Any + Send>) -> ! {
    let message = match panic.downcast_ref::<String>() {
        Some(message) => Some(message.as_str()),
        None => panic.downcast_ref::<&str>().copied(),
    };
    match message {
        Some(message) => panic!("{check}: {message}"),
        None => panic_any(panic),
    }
}

/// Runs a future that blocks its thread, on a separate thread.
fn spawn_blocking<V: Send + 'static>(task: impl Future<Output = V> + Send + 'static) -> Task<V> {
    runtime::spawn_blocking(move || {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(task).poll(&mut context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("halves that block their thread are never pending"),
        }
    })
}

/// Awaits a task, and resumes its panic.
async fn join<V>(task: Task<V>) -> V {
    match task.await {
        Ok(value) => value,
        Err(error) => match error.into_panic() {
            Some(panic) => resume_unwind(panic),
            None => panic!("a task was aborted"),
        },
    }
}

/// A message of frames with these lengths, whose contents depend on `seed`.
fn message(seed: usize, lens: &[usize]) -> Frames {
    /// Number of bytes after which the contents repeat.
    const PERIOD: usize = 1 << 11;
    let byte = |at: usize| (at.wrapping_mul(31).wrapping_add(seed) >> 3) as u8;
    let period: Vec<u8> = (0..PERIOD).map(byte).collect();
    let frame = |len: &usize| {
        let mut frame = period.repeat(len.div_ceil(PERIOD));
        frame.truncate(*len);
        frame
    };
    lens.iter().map(frame).collect()
}

async fn write<W: CommWriter>(writer: &mut W, frames: &Frames) -> Result<(), W::Error> {
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    writer.write_message(&slices).await
}

/// Reads the next message, including its empty frames, and checks the lengths.
async fn read<R: CommReader>(reader: &mut R) -> Result<Option<Frames>, R::Error> {
    let mut frames = Frames::new();
    let Some(count) = reader.read_message(&mut frames).await? else {
        return Ok(None);
    };
    frames.resize(count, Vec::new());
    let lengths: Vec<u64> = reader
        .prelude()
        .map(|prelude| prelude.lengths().collect())
        .unwrap_or_default();
    let found: Vec<u64> = frames.iter().map(|frame| frame.len() as u64).collect();
    assert_eq!(lengths, found, "the prelude of what was read");
    Ok(Some(frames))
}

#[track_caller]
fn expect<V, E: Debug>(outcome: Result<V, E>) -> V {
    match outcome {
        Ok(value) => value,
        Err(error) => panic!("failed: {error:?}"),
    }
}

/// Sends every message back until the peer closes, then closes.
async fn echo<R: CommReader, W: CommWriter>(mut reader: R, mut writer: W) {
    while let Some(frames) = expect(read(&mut reader).await) {
        expect(write(&mut writer, &frames).await);
    }
    expect(writer.close().await);
}
