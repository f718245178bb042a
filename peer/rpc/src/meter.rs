//! Byte counters of comms, for progress bars.

use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll};
use std::io::{self, IoSlice};
use std::sync::Arc;

use daskwire_comm::RawConnection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Counters of the bytes transferred over a client's comms.
#[derive(Debug, Default)]
pub struct Meter {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    /// The number of bytes sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The number of bytes received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Wraps a connection so that its traffic is counted.
    #[doc(hidden)]
    pub fn attach(self: &Arc<Self>, mut connection: RawConnection) -> RawConnection {
        let meter = || Arc::clone(self);
        connection.reader = Box::new(Metered(connection.reader, meter()));
        connection.writer = Box::new(Metered(connection.writer, meter()));
        connection
    }
}

struct Metered<T>(T, Arc<Meter>);

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(inner, meter) = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(inner).poll_read(context, buffer);
        let count = buffer.filled().len().saturating_sub(before);
        meter.received.fetch_add(count as u64, Ordering::Relaxed);
        polled
    }
}

impl<T: AsyncWrite + Unpin> Metered<T> {
    fn count(meter: &Meter, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &polled {
            meter.sent.fetch_add(*count as u64, Ordering::Relaxed);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Self(inner, meter) = self.get_mut();
        Self::count(meter, Pin::new(inner).poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self(inner, meter) = self.get_mut();
        Self::count(meter, Pin::new(inner).poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}
