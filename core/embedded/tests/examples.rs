//! The examples, with a scheduler of Python that has two workers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
#![allow(clippy::std_instead_of_alloc, reason = "a test has std")]
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    reason = "parts of the examples"
)]

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use embedded_io_async_07::{ErrorKind, ErrorType, Read, Write};

#[path = "../examples/identity_blocking.rs"]
mod blocking;
#[path = "../examples/identity_embassy.rs"]
mod embassy;
#[path = "../examples/identity_smol.rs"]
mod on_smol;

/// A socket that blocks when it is polled.
struct Socket(TcpStream);

impl ErrorType for Socket {
    type Error = ErrorKind;
}

impl Read for Socket {
    async fn read(&mut self, space: &mut [u8]) -> Result<usize, ErrorKind> {
        self.0.read(space).map_err(|_| ErrorKind::Other)
    }
}

impl Write for Socket {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.0.write(bytes).map_err(|_| ErrorKind::Other)
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

#[test]
fn clients_ask_a_scheduler_for_its_workers() {
    let scheduler = daskwire_testing::scheduler_with_workers(2);
    let address = scheduler.socket_address();
    assert_eq!(blocking::worker_count(address).unwrap(), 2);
    assert_eq!(smol::block_on(on_smol::worker_count(address)).unwrap(), 2);

    let mut socket = Socket(TcpStream::connect(address).unwrap());
    let (mut incoming, mut outgoing) = ([0; 4096], [0; 256]);
    let asked = pin!(embassy::worker_count(
        &mut socket,
        &mut incoming,
        &mut outgoing
    ));
    let outcome = asked.poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(outcome, Poll::Ready(Ok(Some(2))));
    assert_eq!(scheduler.warnings(), Vec::<String>::new());

    // Less memory than the answer takes, which the error says.
    let mut socket = Socket(TcpStream::connect(address).unwrap());
    let (mut incoming, mut outgoing) = ([0; 256], [0; 256]);
    let asked = pin!(embassy::worker_count(
        &mut socket,
        &mut incoming,
        &mut outgoing
    ));
    let Poll::Ready(Err(error)) = asked.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("256 bytes were enough");
    };
    assert!(
        error.is_caller_fault() && error.needed().is_some_and(|len| len > 1000),
        "{error}"
    );
}
