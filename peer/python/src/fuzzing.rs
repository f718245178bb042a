//! Access to the messages of Python processes for fuzz targets.

use core::iter;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use daskwire_messages::protocol::FromPython;

use super::link::{self, Link};
use super::memory::{self, SharedMemory};

/// Reads messages as from the socket of a Python process, up to the first error.
///
/// The process writes `pieces` in order. The number before a piece is that of the `files`,
/// from the first one, whose descriptors it sends with the piece.
///
/// # Panics
///
/// If the system provides no sockets or files, or the pieces exceed the buffer of a socket.
pub fn read_from_python(files: &[&[u8]], pieces: &[(usize, &[u8])]) -> Vec<FromPython> {
    static MEMORY: OnceLock<Arc<SharedMemory>> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| Arc::new(SharedMemory::default()));
    let files = files.iter().map(|contents| {
        let contents = Bytes::copy_from_slice(contents);
        memory::copy(iter::once((&contents, true)))
            .expect("memory")
            .0
    });
    let files: Vec<OwnedFd> = files.collect();
    let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
    let (process, socket) = UnixStream::pair().expect("a socket");
    process.set_nonblocking(true).expect("a socket");
    for (count, piece) in pieces {
        let files = files.get(..*count).unwrap_or(&files);
        link::write(&process, piece, files).expect("it fits");
    }
    drop(process);
    let mut link = Link::new(socket, Arc::clone(memory));
    iter::from_fn(|| link.receive().ok()).collect()
}
