//! Closing a connection without losing sent data.
//!
//! A socket that is closed with unread data, or that receives data afterwards, is
//! reset, and a reset discards data that the peer has not read yet. Messages that were
//! sent before a proper close would be lost whenever the peer sends at the same time.
//! A connection that was closed before it was dropped therefore stays open in the
//! background until the peer ends it too.

use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::sync::Semaphore;

use crate::descriptors;
use crate::runtime::{self, Spawner};

/// The time that the peer has to end a connection that was closed and dropped locally.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The maximum number of bytes that the peer may send while a connection lingers.
const MAX_LEN: u64 = 64 << 20;

/// The maximum number of connections of the process that linger at the same time, if the process
/// may have twice as many file descriptors.
const MAX_COUNT: usize = 1 << 16;

/// The permits to linger, for half of the file descriptors, so that peers that never close cannot
/// use up all. Without a permit, closed connections do not linger.
static PERMITS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(descriptors::share(2, MAX_COUNT))));

/// Wraps the two halves of a connection so that it lingers after a proper close, on
/// the executor of this task.
///
/// A connection that was closed and then dropped is read in the background until the
/// peer closes it, for up to 10 seconds and 64 MiB. Otherwise the socket would be reset,
/// and the peer would lose data that it has not read yet.
///
/// As many connections of the process linger at the same time as half of the
/// [file descriptors](crate::descriptor_limit) that it may have when the first one lingers, and
/// at most 65,536. One that is dropped beyond that is closed at once, so its peer may lose data:
/// a program that closes many comms at once [raises the limit](crate::raise_descriptor_limit)
/// before its first comm.
///
/// # Panics
///
/// Outside of an executor.
pub fn lingering<R, W>(
    reader: R,
    writer: W,
) -> (
    impl AsyncRead + Send + Sync + Unpin + 'static,
    impl AsyncWrite + Send + Sync + Unpin + 'static,
)
where
    R: AsyncRead + Send + Sync + Unpin + 'static,
    W: AsyncWrite + Send + Sync + Unpin + 'static,
{
    lingering_with(Arc::clone(&PERMITS), reader, writer)
}

/// Returns a permit to keep a dropped connection open in the background, one of those that
/// [`lingering`] uses, or `None` if none is left. Dropping the permit returns it.
pub fn linger_permit() -> Option<impl Send + Sync + 'static> {
    Arc::clone(&PERMITS).try_acquire_owned().ok()
}

fn lingering_with<R, W>(permits: Arc<Semaphore>, reader: R, writer: W) -> (Reader<R>, Writer<R, W>)
where
    R: AsyncRead + Send + Sync + Unpin + 'static,
    W: AsyncWrite + Send + Sync + Unpin + 'static,
{
    let shared = Arc::new(Shared {
        permits,
        left: Mutex::new(None),
        is_closed: AtomicBool::new(false),
        spawner: Spawner::current(),
    });
    let reader = Reader {
        half: Some(reader),
        is_over: false,
        shared: Arc::clone(&shared),
    };
    let writer = Writer {
        half: writer,
        shared,
    };
    (reader, writer)
}

/// State shared by both halves, which starts the lingering when it is dropped.
struct Shared<R: AsyncRead + Send + Unpin + 'static> {
    permits: Arc<Semaphore>,
    /// The reading half, if it was dropped before the peer closed.
    left: Mutex<Option<R>>,
    /// Whether the writing half was shut down.
    is_closed: AtomicBool,
    /// The executor to linger on, since halves may be dropped outside of it.
    spawner: Spawner,
}

impl<R: AsyncRead + Send + Unpin + 'static> Drop for Shared<R> {
    fn drop(&mut self) {
        let left = match self.left.get_mut() {
            Ok(left) => left.take(),
            Err(poisoned) => poisoned.into_inner().take(),
        };
        if !*self.is_closed.get_mut() {
            return;
        }
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        if let (Some(half), Ok(permit)) = (left, permit) {
            self.spawner.spawn(async move {
                let _permit = permit;
                let mut half = half.take(MAX_LEN);
                let mut nowhere = tokio::io::sink();
                // The outcome does not matter: the connection is closed either way.
                let _ = runtime::timeout(MAX_TIME, tokio::io::copy(&mut half, &mut nowhere)).await;
            });
        }
    }
}

struct Reader<R: AsyncRead + Send + Unpin + 'static> {
    /// `Some` until this is dropped.
    half: Option<R>,
    /// Whether the peer has ended the stream.
    is_over: bool,
    shared: Arc<Shared<R>>,
}

impl<R: AsyncRead + Send + Unpin + 'static> AsyncRead for Reader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(half) = &mut this.half else {
            return Poll::Ready(Ok(()));
        };
        let free = into.remaining();
        let outcome = Pin::new(half).poll_read(context, into);
        match &outcome {
            Poll::Ready(Ok(())) => this.is_over |= free != 0 && into.remaining() == free,
            Poll::Ready(Err(_)) => this.is_over = true,
            Poll::Pending => {}
        }
        outcome
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Drop for Reader<R> {
    fn drop(&mut self) {
        if !self.is_over
            && let Ok(mut left) = self.shared.left.lock()
        {
            *left = self.half.take();
        }
    }
}

struct Writer<R: AsyncRead + Send + Unpin + 'static, W> {
    half: W,
    shared: Arc<Shared<R>>,
}

impl<R, W> AsyncWrite for Writer<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Unpin,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.half).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.half).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.half.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.half).poll_shutdown(context);
        if matches!(outcome, Poll::Ready(Ok(()))) {
            self.shared.is_closed.store(true, Ordering::Relaxed);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::io::{DuplexStream, ReadHalf, WriteHalf, duplex, split};
    use tokio::time::{Instant, timeout};

    use super::*;

    type Halves = (
        Reader<ReadHalf<DuplexStream>>,
        Writer<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>,
    );

    fn pair(permits: &Arc<Semaphore>) -> (Halves, DuplexStream) {
        let (near, far) = duplex(64 << 10);
        let (reader, writer) = split(near);
        (lingering_with(Arc::clone(permits), reader, writer), far)
    }

    /// Returns the time for which the far end can send without a reader.
    async fn sends_for(far: &mut DuplexStream, pause: Duration) -> Duration {
        let started = Instant::now();
        while timeout(MAX_TIME * 10, far.write_all(&[7; 60 << 10]))
            .await
            .is_ok_and(|sent| sent.is_ok())
        {
            tokio::time::sleep(pause).await;
        }
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn lingering_ends() {
        let permits = Arc::new(Semaphore::new(1));
        // After the time limit.
        let ((reader, mut writer), mut far) = pair(&permits);
        writer.shutdown().await.unwrap();
        drop((writer, reader));
        let time = sends_for(&mut far, Duration::from_secs(1)).await;
        assert!(
            (MAX_TIME..=MAX_TIME + Duration::from_secs(2)).contains(&time),
            "{time:?}"
        );
        // After the size limit.
        let ((reader, mut writer), mut far) = pair(&permits);
        writer.shutdown().await.unwrap();
        drop((reader, writer));
        assert!(sends_for(&mut far, Duration::ZERO).await < MAX_TIME);
        // When the peer closes.
        let ((reader, mut writer), mut far) = pair(&permits);
        writer.shutdown().await.unwrap();
        drop((reader, writer));
        far.shutdown().await.unwrap();
        // Lingering has ended when its permit is back.
        drop(permits.acquire().await);
        assert!(far.write_all(b"x").await.is_err());
        // At once if the connection was not closed.
        let ((reader, writer), mut far) = pair(&permits);
        drop((reader, writer));
        assert!(far.write_all(b"x").await.is_err());
        assert_eq!(permits.available_permits(), 1);
        // At once if too many connections linger already.
        let ((reader, mut writer), mut far) = pair(&permits);
        writer.shutdown().await.unwrap();
        let permit = permits.acquire().await;
        drop((reader, writer));
        assert!(far.write_all(b"x").await.is_err());
        drop(permit);
    }

    #[tokio::test(start_paused = true)]
    async fn halves_dropped_outside_the_runtime_linger() {
        let permits = Arc::new(Semaphore::new(1));
        let ((reader, mut writer), mut far) = pair(&permits);
        writer.shutdown().await.unwrap();
        let thread = std::thread::spawn(move || drop((reader, writer)));
        thread.join().unwrap();
        let time = sends_for(&mut far, Duration::from_secs(1)).await;
        assert!(time >= MAX_TIME, "{time:?}");
    }
}
