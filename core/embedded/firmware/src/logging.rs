//! Logs values of all types that have a defmt format, to a logger that counts bytes.

use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering};

use daskwire_embedded::embedded_io_07::{CommError, StreamError};
use daskwire_embedded::value::Failure;
use daskwire_embedded::{client, worker};
use embedded_io::ErrorKind;

static LOGGED_LEN: AtomicUsize = AtomicUsize::new(0);

#[defmt::global_logger]
struct Counter;

// SAFETY: its only state is an atomic variable, so concurrent calls do not interfere.
unsafe impl defmt::Logger for Counter {
    fn acquire() {}

    unsafe fn flush() {}

    unsafe fn release() {}

    unsafe fn write(bytes: &[u8]) {
        LOGGED_LEN.fetch_add(bytes.len(), Ordering::Relaxed);
    }
}

/// Logs an error of each type and the states of the roles, opaque to the compiler, so
/// that the formats of all variants are linked. Returns the bytes logged.
pub fn log_everything(
    failure: Failure,
    worker_status: worker::Status,
    client_status: client::Status,
) -> usize {
    let error = daskwire::Error::from(daskwire::BufferTooSmall {
        needed: 2,
        available: 1,
    });
    let comm_error: CommError<ErrorKind> = CommError::Io(ErrorKind::TimedOut);
    let stream_error: StreamError<ErrorKind, ErrorKind> = StreamError::Read(ErrorKind::TimedOut);
    defmt::error!("{} {}", black_box(error), black_box(failure));
    defmt::warn!("{} {}", black_box(comm_error), black_box(stream_error));
    defmt::info!("{} {}", black_box(worker_status), black_box(client_status));
    LOGGED_LEN.load(Ordering::Relaxed)
}
