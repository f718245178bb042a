//! The conformance checks over comms within the process, small pipes and blocking
//! sockets, and its message for a link that fails a check.

use daskwire::Limits;
use daskwire::frame::Prefix;
use daskwire_comm::conformance::{Pairs, Settings, check_comms, check_transport};
use daskwire_comm::{CommReader, CommWriter, Inproc};
use tokio::io::DuplexStream;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn within_the_process() {
    let address = "inproc://conformance".parse().expect("an address");
    let mut settings = Settings::default();
    settings.comm_count = 2000;
    check_transport(Inproc, &address, settings).await;
}

/// Pipes with buffers of `len` bytes.
struct Pipes {
    len: usize,
    settings: Settings,
}

impl Pairs for Pipes {
    type Reader = CommReader<DuplexStream>;
    type Writer = CommWriter<DuplexStream>;

    async fn pair(&self) -> [(Self::Reader, Self::Writer); 2] {
        // One pipe for each direction, so that each half ends by itself.
        let (near_writer, far_reader) = tokio::io::duplex(self.len);
        let (far_writer, near_reader) = tokio::io::duplex(self.len);
        [(near_reader, near_writer), (far_reader, far_writer)].map(|(reader, writer)| {
            let reader = CommReader::new(reader, Prefix::U64, Limits::HOST);
            (reader, CommWriter::new(writer, Prefix::U64))
        })
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

#[tokio::test]
async fn links_with_small_buffers() {
    let settings = Settings::small();
    check_comms(&Pipes { len: 256, settings }).await;
}

/// A link that buffers more than its settings allow.
#[tokio::test]
async fn a_failure_names_its_check() {
    let settings = Settings::small();
    let len = 4 * settings.buffered_len;
    let failing = tokio::spawn(async move { check_comms(&Pipes { len, settings }).await });
    let panic = failing.await.expect_err("it fails").into_panic();
    let message = panic.downcast_ref::<String>().expect("a string");
    let expected = "a_writer_waits_for_its_reader: 33 messages of 4096 bytes were sent";
    assert!(message.starts_with(expected), "{message}");
}

/// The blocking adapter of daskwire-embedded, over a pair of sockets.
#[cfg(unix)]
mod embedded_io {
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use daskwire::Limits;
    use daskwire::frame::{FrameBuffers, Prefix, Prelude};
    use daskwire::transport::{CommReader, CommWriter};
    use daskwire_comm::conformance::{Pairs, Settings, check_comms};
    use daskwire_embedded::embedded_io_07::{CommError, MessageReader, MessageWriter};
    use embedded_io::{ErrorType, Read, Write};

    struct Pipe(UnixStream);

    impl ErrorType for Pipe {
        type Error = std::io::Error;
    }

    impl Read for Pipe {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Pipe {
        fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
            self.0.write(from)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            self.0.flush()
        }
    }

    struct Pipes;

    /// A writer that shuts the socket down, since embedded-io cannot end a stream.
    struct Writer(MessageWriter<Pipe, Vec<u8>>);

    impl CommWriter for Writer {
        type Error = CommError<std::io::Error>;

        async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), Self::Error> {
            self.0.write_message(frames)
        }

        async fn close(&mut self) -> Result<(), Self::Error> {
            self.0.close()?;
            match self.0.get_ref().0.shutdown(Shutdown::Write) {
                // The peer has already closed the socket.
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(()),
                outcome => outcome.map_err(CommError::Io),
            }
        }
    }

    struct Reader(MessageReader<Pipe, Vec<u8>>);

    impl CommReader for Reader {
        type Error = CommError<std::io::Error>;

        async fn read_message<B: FrameBuffers + Send>(
            &mut self,
            frames: &mut B,
        ) -> Result<Option<usize>, Self::Error> {
            self.0.read_message(frames)
        }

        fn prelude(&self) -> Option<Prelude<'_>> {
            self.0.prelude()
        }
    }

    impl Pairs for Pipes {
        type Reader = Reader;
        type Writer = Writer;

        async fn pair(&self) -> [(Reader, Writer); 2] {
            let (near, far) = UnixStream::pair().expect("two sockets");
            [near, far].map(|end| {
                let other = end.try_clone().expect("the same socket");
                let reader = MessageReader::new(Pipe(end), Prefix::U64, Vec::new(), Limits::HOST);
                let writer = MessageWriter::new(Pipe(other), Prefix::U64, vec![0; 32 << 10]);
                (Reader(reader), Writer(writer))
            })
        }

        fn settings(&self) -> Settings {
            let mut settings = Settings::default();
            settings.is_cancellable = false;
            settings.lingers = false;
            settings
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn embedded_io_over_a_pipe() {
        check_comms(&Pipes).await;
    }
}
