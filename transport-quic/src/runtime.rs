//! The executor of an endpoint, as quinn uses it.

use std::io;
use std::sync::Arc;

use daskwire_comm::runtime::{Spawner, sockets};

/// Returns the current executor, and an adapter to it for quinn.
pub(crate) fn current() -> io::Result<(Spawner, Arc<dyn quinn::Runtime>)> {
    let spawner = Spawner::try_current()?;
    let runtime = match sockets() {
        None => Arc::new(quinn::TokioRuntime),
        Some(_) => other_than_tokio(&spawner)?,
    };
    Ok((spawner, runtime))
}

#[cfg(feature = "runtime-smol")]
#[expect(clippy::unnecessary_wraps, reason = "as without the feature")]
fn other_than_tokio(spawner: &Spawner) -> io::Result<Arc<dyn quinn::Runtime>> {
    Ok(Arc::new(AsyncIo(spawner.clone())))
}

#[cfg(not(feature = "runtime-smol"))]
fn other_than_tokio(_: &Spawner) -> io::Result<Arc<dyn quinn::Runtime>> {
    let reason = "quic:// needs tokio as the executor, or the feature runtime-smol";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// Any executor, with the timers and sockets of async-io, which has its own thread.
#[cfg(feature = "runtime-smol")]
#[derive(Debug)]
struct AsyncIo(Spawner);

#[cfg(feature = "runtime-smol")]
impl quinn::Runtime for AsyncIo {
    fn new_timer(
        &self,
        deadline: std::time::Instant,
    ) -> core::pin::Pin<Box<dyn quinn::AsyncTimer>> {
        quinn::SmolRuntime.new_timer(deadline)
    }

    fn spawn(&self, task: core::pin::Pin<Box<dyn Future<Output = ()> + Send>>) {
        // Dropping the handle does not end the task.
        drop(self.0.spawn(task));
    }

    fn wrap_udp_socket(
        &self,
        socket: std::net::UdpSocket,
    ) -> io::Result<Arc<dyn quinn::AsyncUdpSocket>> {
        quinn::SmolRuntime.wrap_udp_socket(socket)
    }
}
