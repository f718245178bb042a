//! The battery, for each transport of this package.

use daskwire_comm::conformance::{battery, peers_that_die_are_noticed};

use daskwire_tcp::TcpOptions;

mod support;
use support::Scheme;

/// All that there is for a transport of this package.
async fn check(address: &str, options: TcpOptions) {
    let scheme = Scheme::with_options(address, options).await;
    battery(&scheme).await;
    peers_that_die_are_noticed(&scheme, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tcp_over_ipv4() {
    check("tcp://127.0.0.1:0", TcpOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tcp_over_ipv6() {
    check("tcp://[::1]:0", TcpOptions::default()).await;
}

#[cfg(feature = "ring")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls() {
    check("tls://127.0.0.1:0", support::with_tls()).await;
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unix_sockets() {
    let path = std::env::temp_dir().join(format!("daskwire-{}.sock", std::process::id()));
    check(&format!("unix://{}", path.display()), TcpOptions::default()).await;
    assert!(!path.exists(), "the socket is left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn within_the_process() {
    check("inproc://conformance", TcpOptions::default()).await;
}

/// Comms over links that hold few bytes, such as those of serial lines.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn links_with_small_buffers() {
    use daskwire_comm::conformance::Transport;
    use daskwire_comm::{CommReader, CommWriter};
    use tokio::io::DuplexStream;
    use wire::Limits;
    use wire::frame::Prefix;

    struct Fifo;

    impl Transport for Fifo {
        type Reader = CommReader<DuplexStream>;
        type Writer = CommWriter<DuplexStream>;

        async fn pair(&self) -> [(Self::Reader, Self::Writer); 2] {
            let (near_writer, far_reader) = tokio::io::duplex(256);
            let (far_writer, near_reader) = tokio::io::duplex(256);
            [(near_reader, near_writer), (far_reader, far_writer)].map(|(reader, writer)| {
                let reader = CommReader::new(reader, Prefix::U64, Limits::HOST);
                (reader, CommWriter::new(writer, Prefix::U64))
            })
        }
    }

    battery(&Fifo).await;
}

/// The blocking adapter of the core, over a pair of sockets.
#[cfg(unix)]
mod embedded_io {
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use daskwire_comm::conformance::{Transport, battery};
    use daskwire_embedded::embedded_io_07::{CommError, MessageReader, MessageWriter};
    use embedded_io::{ErrorType, Read, Write};
    use wire::Limits;
    use wire::frame::{FrameBuffers, Prefix, Prelude};
    use wire::transport::{CommReader, CommWriter};

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

    /// embedded-io has no word for ending a stream, so this is said here.
    struct Writer(MessageWriter<Pipe, Vec<u8>>);

    impl CommWriter for Writer {
        type Error = CommError<std::io::Error>;

        async fn write_message(&mut self, frames: &[&[u8]]) -> Result<(), Self::Error> {
            self.0.write_message(frames)
        }

        async fn close(&mut self) -> Result<(), Self::Error> {
            self.0.close()?;
            match self.0.get_ref().0.shutdown(Shutdown::Write) {
                // The peer was faster.
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

    impl Transport for Pipes {
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

        fn is_cancellable(&self) -> bool {
            false
        }

        fn lingers(&self) -> bool {
            false
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn embedded_io_over_a_pipe() {
        battery(&Pipes).await;
    }
}
