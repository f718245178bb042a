//! Comms within this process: Dask's `inproc://`.
//!
//! Bytes go through a buffer in memory and are framed as over a network.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    Address, BoxFuture, CommError, ConnectError, ConnectOptions, Listen, Listeners,
    PendingConnection, RawConnection, Transport,
};

/// The buffer size of each direction in bytes, similar to that of a socket.
const PIPE_LEN: usize = 256 << 10;

static LISTENERS: LazyLock<Listeners> = LazyLock::new(Listeners::new);

/// The number in the address of the next connecting end.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The transport of `inproc://`: memory of this process. A location is any string
/// that no other listener of the process uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inproc;

impl Transport for Inproc {
    fn schemes(&self) -> &[&'static str] {
        &["inproc"]
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        _: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let location = format!("{}/{number}", std::process::id());
            let local = Address::with_location("inproc", &location);
            let local = local.map_err(|error| CommError::Address {
                address: address.clone(),
                error,
            })?;
            // One pipe for each direction, so that each half ends by itself.
            let (our_writer, their_reader) = tokio::io::duplex(PIPE_LEN);
            let (their_writer, our_reader) = tokio::io::duplex(PIPE_LEN);
            let ends = (address.clone(), local.clone());
            let theirs = RawConnection::new(their_reader, their_writer, ends);
            LISTENERS.offer(address, theirs).await?;
            let ends = (local, address.clone());
            Ok(RawConnection::new(our_reader, our_writer, ends).into())
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async { LISTENERS.bind(address) })
    }
}
