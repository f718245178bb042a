//! Comms and their handshake.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use daskwire::Limits;
use daskwire::comm::{Agreement, HANDSHAKE_LEN, HandshakeRole, Handshaking};
use daskwire::compression::Codec;
use daskwire::frame::Prefix;
use daskwire::handshake::Handshake;
use daskwire::message::Layout;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::event::CommEvent;
use crate::transport::{ConnectError, Traffic};
use crate::{Address, BufferPool, CommError, CommReader, CommWriter, Frames, Phase, runtime};

/// The options of comms over any transport. Options of one transport, such as
/// certificates, are set on that transport.
///
/// ```
/// use core::time::Duration;
/// use daskwire_comm::CommOptions;
/// let options = CommOptions::default().with_handshake_timeout(Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CommOptions {
    /// The time to make a connection, including name lookup and excluding the
    /// handshake. Default: 30 seconds.
    pub connect_timeout: Duration,
    /// Whether to retry refused connections within that time, as Dask does.
    /// Default: `true`.
    pub connect_retry: bool,
    /// The time for the handshake, including that of TLS. Default: 30 seconds.
    ///
    /// A listener then ends the connection. A connector that retries makes another one,
    /// until [`answer_timeout`](Self::answer_timeout) has passed.
    pub handshake_timeout: Duration,
    /// The time for which a connector waits for the handshake of a peer that accepts
    /// connections, from its first attempt on. Default: 5 minutes.
    ///
    /// Python peers may be busy for a while before they handle a new connection, so a
    /// short timeout fails on peers that are only slow. A connector that gets no
    /// connection ends after [`connect_timeout`](Self::connect_timeout).
    pub answer_timeout: Duration,
    /// The number of unfinished handshakes that a listener allows. Beyond that, or
    /// when the process has no file descriptors left, the oldest handshake is ended
    /// ([`Closed::Displaced`](crate::Closed::Displaced)). Default: a quarter of
    /// [`descriptor_limit`](crate::descriptor_limit), and at most 4,096.
    pub max_handshakes: usize,
    /// The limits for messages after the handshake. Default: [`Limits::HOST`].
    pub limits: Limits,
    /// The wire format to use. Default: [`WireFormat::Auto`].
    pub wire: WireFormat,
    /// The codec to name in the handshake; `None` for no compression. Default: `None`, as in
    /// Dask since 2023.5.0.
    ///
    /// If the peer names the same one, it is the
    /// [`compression`](daskwire::handshake::Negotiated::compression) of
    /// [`Comm::agreement`], and both sides may compress what they send. Comms do not
    /// compress: what builds the messages does. No codec is named if both ends of
    /// the connection are on the same host (`Comm.handshake_info` of Dask).
    pub compression: Option<Codec>,
    /// A pool for the memory of large frames. Default: `None`, so that each frame's
    /// memory is allocated by the system.
    pub pool: Option<BufferPool>,
}

impl CommOptions {
    with_fields! {
        with_connect_timeout(connect_timeout: Duration);
        with_connect_retry(connect_retry: bool);
        with_handshake_timeout(handshake_timeout: Duration);
        with_answer_timeout(answer_timeout: Duration);
        with_max_handshakes(max_handshakes: usize);
        with_limits(limits: Limits);
        with_wire(wire: WireFormat);
        with_compression(compression: impl Into<Option<Codec>>);
        with_pool(pool: impl Into<Option<BufferPool>>);
    }
}

impl Default for CommOptions {
    /// The defaults that each field names.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            connect_retry: true,
            handshake_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(5 * 60),
            max_handshakes: crate::descriptors::share(4, 4_096),
            limits: Limits::HOST,
            wire: WireFormat::Auto,
            compression: None,
            pool: None,
        }
    }
}

impl CommOptions {
    /// The same options with no timeout longer than `timeout`: a connector ends within this
    /// time, with the error of its last attempt.
    ///
    /// ```
    /// use core::time::Duration;
    /// use daskwire_comm::CommOptions;
    /// let options = CommOptions::default().within(Duration::from_secs(2));
    /// assert_eq!(options.connect_timeout, Duration::from_secs(2));
    /// ```
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.connect_timeout = self.connect_timeout.min(timeout);
        self.handshake_timeout = self.handshake_timeout.min(timeout);
        self.answer_timeout = self.answer_timeout.min(timeout);
        self
    }
}

/// The wire format to use. Releases of Dask frame and lay out messages differently,
/// and do not announce how (PROTOCOL FRAME-13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireFormat {
    /// Use the newest format, which releases from 2021.3.1 on understand, and send
    /// the handshake without waiting for the peer's.
    #[default]
    Auto,
    /// Use this format, and refuse peers that frame their messages otherwise.
    Fixed {
        /// The framing of messages.
        prefix: Prefix,
        /// The layout of the handshake.
        layout: Layout,
    },
    /// Wait for the handshake of the peer and use its format. If no handshake
    /// arrives within a second, use the newest format.
    ///
    /// This is for connectors: the listeners of every release from 2.23.0 on
    /// send first. The connectors of releases up to 2023.7.1 do not (PROTOCOL
    /// HANDSHAKE-1), so a listener with this setting makes them wait for that second,
    /// and cannot detect the format of those before 2021.3.1.
    Detect,
}

/// The boxed reading half of a stream.
pub type ReadHalf = Box<dyn AsyncRead + Send + Sync + Unpin>;

/// The boxed writing half of a stream.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// A connection before the handshake of Dask: bytes in both directions.
///
/// Transports make these ([`Transport`](crate::Transport)). They are for programs
/// that forward bytes or do the handshake themselves; comms come from
/// [`Transports::connect`](crate::Transports::connect) and
/// [`Incoming::handshake`](crate::Incoming::handshake).
pub struct RawConnection {
    /// The reading half.
    pub reader: ReadHalf,
    /// The writing half.
    pub writer: WriteHalf,
    /// The local address.
    pub local: Address,
    /// The address of the peer.
    pub peer: Address,
    /// The encryption of the connection; `None` if it is not encrypted.
    pub encryption: Option<Arc<Encryption>>,
    pub(crate) set_traffic: Option<Box<SetTraffic>>,
    pub(crate) explain: Option<Box<Explain>>,
    set_limits: Option<Box<SetLimits>>,
}

/// Callback that gives the limits of a comm to its transport.
type SetLimits = dyn FnOnce(&Limits) + Send + Sync;

/// Callback that sets the traffic class of a comm in its transport.
pub(crate) type SetTraffic = dyn Fn(Traffic) + Send + Sync;

/// Callback by which a transport explains the failure of a handshake.
pub(crate) type Explain = dyn FnOnce(CommError) -> ConnectError + Send + Sync;

/// The encryption of a connection, and the certificates of the peer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encryption {
    /// The TLS version, such as `TLSv1_3`.
    pub version: &'static str,
    /// The TLS name of the cipher suite, such as `TLS13_AES_256_GCM_SHA384`, if the
    /// transport provides it.
    pub cipher: Option<&'static str>,
    /// The certificate chain of the peer in DER, its own certificate first; empty if
    /// none was requested. It has been verified according to the settings.
    pub peer_certificates: Vec<Bytes>,
}

impl Encryption {
    /// Creates the description of an encrypted connection, for transports.
    pub fn new(
        version: &'static str,
        cipher: Option<&'static str>,
        peer_certificates: Vec<Bytes>,
    ) -> Self {
        Self {
            version,
            cipher,
            peer_certificates,
        }
    }
}

/// Prints the number of certificates, not their contents.
impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption")
            .field("version", &self.version)
            .field("cipher", &self.cipher)
            .field("peer_certificates", &self.peer_certificates.len())
            .finish()
    }
}

impl RawConnection {
    /// Creates a connection over these streams, between the addresses `local` and `peer`.
    ///
    /// Dropping or shutting down `writer` must end the stream of bytes that the
    /// peer reads, independently of `reader`. If closing can discard data that the peer
    /// has not read yet, as with sockets, the transport wraps both in
    /// [`lingering`](crate::lingering).
    pub fn new(
        reader: impl AsyncRead + Send + Sync + Unpin + 'static,
        writer: impl AsyncWrite + Send + Sync + Unpin + 'static,
        (local, peer): (Address, Address),
    ) -> Self {
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            local,
            peer,
            encryption: None,
            set_traffic: None,
            explain: None,
            set_limits: None,
        }
    }

    /// Sets the encryption of the connection. Default: none.
    #[must_use]
    pub fn with_encryption(mut self, encryption: Arc<Encryption>) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// Sets the function to call when the traffic class of the comm is set, for
    /// transports that can prioritize comms. Default: none.
    #[must_use]
    pub fn with_traffic(mut self, set: impl Fn(Traffic) + Send + Sync + 'static) -> Self {
        self.set_traffic = Some(Box::new(set));
        self
    }

    /// Sets the function to call if the handshake of Dask fails, for transports that
    /// know the reason, or whether another attempt may succeed. Default: the error is
    /// returned unchanged.
    #[must_use]
    pub fn with_explanation(
        mut self,
        explain: impl FnOnce(CommError) -> ConnectError + Send + Sync + 'static,
    ) -> Self {
        self.explain = Some(Box::new(explain));
        self
    }

    /// Sets the function to call after the handshake of Dask with the limits for messages, for
    /// transports that have to keep a part of a message before a comm can check it. Default:
    /// none.
    #[must_use]
    pub fn with_limits(mut self, set: impl FnOnce(&Limits) + Send + Sync + 'static) -> Self {
        self.set_limits = Some(Box::new(set));
        self
    }

    /// The reason of an error of this connection, as far as its transport knows it, for
    /// transports that do a handshake on connections of another transport.
    pub fn explain(self, error: CommError) -> CommError {
        match self.explain {
            Some(explain) => explain(error).into_comm_error(),
            None => error,
        }
    }

    /// Sets the traffic class of the connection.
    pub(crate) fn set_traffic(&self, traffic: Traffic) {
        if let Some(set) = &self.set_traffic {
            set(traffic);
        }
    }

    /// Does the handshake of Dask.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// As [`Comm::establish`].
    pub async fn handshake(self, options: &CommOptions) -> Result<Comm, CommError> {
        let outcome = self.try_handshake(options).await;
        outcome.map_err(ConnectError::into_comm_error)
    }

    pub(crate) async fn try_handshake(self, options: &CommOptions) -> Result<Comm, ConnectError> {
        let ends = (self.local, self.peer);
        let streams = (self.reader, self.writer);
        match Comm::establish_over(streams, ends, self.encryption, options).await {
            Ok(mut comm) => {
                comm.writer.set_traffic_hook(self.set_traffic);
                if let Some(set) = self.set_limits {
                    set(&options.limits);
                }
                Ok(comm)
            }
            Err(error) => Err(match self.explain {
                Some(explain) => explain(error),
                None => ConnectError::Fatal(error),
            }),
        }
    }
}

impl fmt::Debug for RawConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("local", &format_args!("{}", self.local))
            .field("peer", &format_args!("{}", self.peer))
            .field("encryption", &self.encryption)
            .finish_non_exhaustive()
    }
}

/// A connection that carries messages, after the handshake.
///
/// The streams are boxed by default, so that comms over TCP, TLS, QUIC and all other
/// transports have the same type.
pub struct Comm<R = ReadHalf, W = WriteHalf> {
    reader: CommReader<R>,
    writer: CommWriter<W>,
    agreement: Agreement<'static>,
    local: Address,
    peer: Address,
    encryption: Option<Arc<Encryption>>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Comm<R, W> {
    /// Does the handshake over any two streams.
    ///
    /// `local` and `peer` are the addresses of the two ends. Comms over a transport
    /// come from [`Transports::connect`](crate::Transports::connect) instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the streams.
    ///
    /// # Errors
    ///
    /// * [`CommError::Timeout`] after [`CommOptions::handshake_timeout`];
    /// * [`CommError::Handshake`], [`CommError::Frame`] or
    ///   [`CommError::Prefix`] if the peer's handshake is invalid or not supported;
    /// * [`CommError::PeerSpeaksTls`] or [`CommError::PeerSpeaksHttp`] if the peer uses
    ///   another protocol;
    /// * [`CommError::OutOfMemory`];
    /// * [`CommError::Closed`], [`CommError::Io`] if the connection ends.
    pub async fn establish(
        reader: R,
        writer: W,
        ends: (Address, Address),
        options: &CommOptions,
    ) -> Result<Self, CommError> {
        Self::establish_over((reader, writer), ends, None, options).await
    }

    async fn establish_over(
        (reader, writer): (R, W),
        (local, peer): (Address, Address),
        encryption: Option<Arc<Encryption>>,
        options: &CommOptions,
    ) -> Result<Self, CommError> {
        let timeout = options.handshake_timeout;
        // Boxed, because it is large and would enlarge the futures of callers.
        let compression = options.compression.filter(|_| !is_same_host(&local, &peer));
        let ours = Handshake::new(compression.map(Codec::name));
        let handshake = Box::pin(do_handshake(reader, writer, ours, options));
        match runtime::timeout(timeout, handshake).await {
            Ok(outcome) => {
                let (mut reader, mut writer, agreement) = outcome?;
                reader.log.start_reader(&peer);
                writer.log.start_writer(&peer);
                CommEvent::Established {
                    agreement: &agreement,
                    encryption: encryption.as_deref(),
                }
                .emit(&peer);
                Ok(Self {
                    reader,
                    writer,
                    agreement,
                    local,
                    peer,
                    encryption,
                })
            }
            Err(_) => Err(CommError::Timeout {
                phase: Phase::Handshake,
                timeout,
            }),
        }
    }

    /// Reads the next message; see [`CommReader::read_message`].
    ///
    /// # Errors
    ///
    /// Those of [`CommReader::read_message`].
    pub async fn read_message(&mut self) -> Result<Option<Frames>, CommError> {
        self.reader.read_message().await
    }

    /// Writes a message; see [`CommWriter::write_message`].
    ///
    /// # Errors
    ///
    /// Those of [`CommWriter::write_message`].
    pub async fn write_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.writer.write_message(frames).await
    }

    /// Buffers a message; see [`CommWriter::feed_message`].
    ///
    /// # Errors
    ///
    /// Those of [`CommWriter::feed_message`].
    pub async fn feed_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.writer.feed_message(frames).await
    }

    /// Sends buffered messages; see [`CommWriter::flush`].
    ///
    /// # Errors
    ///
    /// Those of [`CommWriter::flush`].
    pub async fn flush(&mut self) -> Result<(), CommError> {
        self.writer.flush().await
    }

    /// Sets the traffic class; see [`CommWriter::set_traffic`].
    pub fn set_traffic(&self, traffic: Traffic) {
        self.writer.set_traffic(traffic);
    }

    /// Closes the writing half; see [`CommWriter::close`].
    ///
    /// # Errors
    ///
    /// Those of [`CommWriter::close`].
    pub async fn close(&mut self) -> Result<(), CommError> {
        self.writer.close().await
    }
}

impl<R, W> Comm<R, W> {
    /// Splits the comm into its halves, to read and write at the same time.
    pub fn split(self) -> (CommReader<R>, CommWriter<W>) {
        (self.reader, self.writer)
    }

    /// The result of the handshake.
    pub const fn agreement(&self) -> &Agreement<'static> {
        &self.agreement
    }

    /// The local address.
    pub const fn local_address(&self) -> &Address {
        &self.local
    }

    /// The address of the peer.
    pub const fn peer_address(&self) -> &Address {
        &self.peer
    }

    /// The encryption of the connection, and the certificates of the peer. `None` if
    /// the connection is not encrypted, and for comms made by
    /// [`establish`](Comm::establish).
    pub fn encryption(&self) -> Option<&Encryption> {
        self.encryption.as_deref()
    }

    /// Ends the comm at once, as dropping it does: messages that were written last may
    /// not arrive, and no more are received. If the comm was closed before, its messages
    /// are still delivered. Over TLS, the connection to a peer that does not read may stay
    /// open in the background for up to 10 seconds.
    ///
    /// To end a pending read or write, drop its future; to end a split comm, drop its
    /// halves.
    pub fn abort(self) {
        drop(self);
    }
}

impl<R, W> fmt::Debug for Comm<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comm")
            .field("local", &format_args!("{}", self.local))
            .field("peer", &format_args!("{}", self.peer))
            .field("agreement", &self.agreement)
            .field("encryption", &self.encryption)
            .finish_non_exhaustive()
    }
}

/// The time for which [`WireFormat::Detect`] waits for the peer's handshake.
const DETECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a connection does not leave its host, where compression costs more than it saves.
// PROTOCOL HANDSHAKE-4
fn is_same_host(local: &Address, peer: &Address) -> bool {
    match (local.host_and_port(), peer.host_and_port()) {
        (Some((local, _)), Some((peer, _))) => local == peer,
        _ => ["inproc", "unix"].contains(&peer.scheme()),
    }
}

async fn do_handshake<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: R,
    writer: W,
    ours: Handshake<'static>,
    options: &CommOptions,
) -> Result<(CommReader<R>, CommWriter<W>, Agreement<'static>), CommError> {
    let (prefix, layout) = match options.wire {
        WireFormat::Fixed { prefix, layout } => (prefix, layout),
        WireFormat::Auto | WireFormat::Detect => (Prefix::U64, Layout::Modern),
    };
    let mut reader = CommReader::new(reader, prefix, Limits::HANDSHAKE);
    let mut writer = CommWriter::new(writer, prefix);
    reader.set_pool(options.pool.clone());

    // PROTOCOL HANDSHAKE-1
    let is_peer_first = options.wire == WireFormat::Detect
        && match runtime::timeout(DETECT_TIMEOUT, reader.check_first_bytes()).await {
            Ok(arrived) => arrived.map(|()| true)?,
            Err(_) => false,
        };
    let role = match is_peer_first {
        true => HandshakeRole::WaitForPeer,
        false => HandshakeRole::SendFirst(layout),
    };
    let (receiver, sender) = (&mut reader.receiver, &mut writer.sender);
    let shaking = Handshaking::new(ours, role);
    shaking.begin(receiver, sender, Limits::HANDSHAKE)?;
    let mut bytes = [0; HANDSHAKE_LEN];
    let len = shaking.greeting(prefix, &mut bytes)?;
    // Concurrently: the handshake may be larger than the buffers of the
    // connection, so waiting for the send first could deadlock.
    let sending = writer.send_handshake(&bytes[..len]);
    let ((), theirs) = tokio::try_join!(sending, reader.read_handshake())?;
    let (agreement, len) = shaking.agree(reader.receiver.prefix(), &theirs, &mut bytes)?;
    writer.send_handshake(&bytes[..len]).await?;
    shaking.finish(&mut reader.receiver, &mut writer.sender, options.limits);
    Ok((reader, writer, agreement))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codec that two ends at these addresses agree on.
    async fn agreed(hosts: [&str; 2], codecs: [Option<Codec>; 2]) -> [Option<&'static str>; 2] {
        let [near, far] = hosts.map(|host| host.parse::<Address>().expect("an address"));
        let [ours, theirs] =
            codecs.map(|compression| CommOptions::default().with_compression(compression));
        let (left, right) = tokio::io::duplex(1 << 10);
        let (reader, writer) = tokio::io::split(left);
        let local = Comm::establish(reader, writer, (near.clone(), far.clone()), &ours);
        let (reader, writer) = tokio::io::split(right);
        let remote = Comm::establish(reader, writer, (far, near), &theirs);
        let (local, remote) = tokio::try_join!(local, remote).expect("a handshake");
        [local, remote].map(|comm| comm.agreement().negotiated.compression)
    }

    // PROTOCOL HANDSHAKE-3, HANDSHAKE-4
    #[tokio::test]
    async fn a_codec_is_agreed_on_between_hosts_if_both_sides_name_it() {
        let apart = ["tcp://10.0.0.1:1", "tcp://10.0.0.2:1"];
        let (lz4, zstd) = (Some(Codec::Lz4), Some(Codec::Zstd));
        let cases = [
            (apart, [lz4, lz4], Some("lz4")),
            (apart, [zstd, zstd], Some("zstd")),
            (
                ["serial:///dev/a", "serial:///dev/b"],
                [lz4, lz4],
                Some("lz4"),
            ),
            (apart, [lz4, zstd], None),
            (apart, [lz4, None], None),
            (apart, [None, lz4], None),
            (apart, [None, None], None),
            (["tcp://10.0.0.1:1", "tcp://10.0.0.1:2"], [lz4, lz4], None),
            (["inproc://a/1", "inproc://b/2"], [lz4, lz4], None),
            (["unix:///a", "unix:///a"], [lz4, lz4], None),
        ];
        for (hosts, codecs, expected) in cases {
            assert_eq!(
                agreed(hosts, codecs).await,
                [expected; 2],
                "{hosts:?} {codecs:?}"
            );
        }
    }
}
