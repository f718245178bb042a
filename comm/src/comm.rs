//! A comm and its handshake.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use wire::Limits;
use wire::frame::Prefix;
use wire::handshake::{self, Handshake};
use wire::message::Layout;
use wire::msgpack::Writer;

use crate::transport::{ConnectError, Traffic};
use crate::{
    Address, BufferPool, Closed, CommError, CommReader, CommWriter, Frames, Phase, runtime,
};

/// How comms are made, over any transport. What only one transport knows, such
/// as certificates, is in the options of that transport.
///
/// Compression is not negotiated: the handshake names no codec, so neither side
/// compresses, which is Dask's default since 2023.5.0. Payloads that were
/// compressed before are passed on and can be read as they are.
///
/// ```
/// use core::time::Duration;
/// use daskwire_comm::CommOptions;
/// let options = CommOptions {
///     handshake_timeout: Duration::from_secs(5),
///     ..CommOptions::default()
/// };
/// ```
#[derive(Clone, Debug)]
pub struct CommOptions {
    /// How long making a connection may take, names and all. The handshake
    /// is not part of it. Default: 30 seconds.
    pub connect_timeout: Duration,
    /// Whether to try again within that time while nobody listens, as Dask
    /// does. Without it the first refusal is the answer.
    pub connect_retry: bool,
    /// How long the handshake may take, with that of TLS where there is one.
    /// Peers in Python can be busy for seconds before they look at a new
    /// connection; a short time here makes them look dead when they are only
    /// slow.
    pub handshake_timeout: Duration,
    /// How many connections to a listener may be without a
    /// finished handshake. With one more, or when the process has no descriptors
    /// left, the oldest of them ends ([`Closed::Displaced`]).
    pub max_handshakes: usize,
    /// What is accepted from a peer after the handshake.
    pub limits: Limits,
    /// Which form of the wire to use.
    pub wire: WireFormat,
    /// Where large frames get their memory, instead of from the system each
    /// time.
    pub pool: Option<BufferPool>,
}

impl Default for CommOptions {
    /// 30 seconds for each of connection and handshake, retries, [`Limits::HOST`],
    /// [`WireFormat::Auto`], no pool, 4,096 handshakes.
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(30),
            connect_retry: true,
            handshake_timeout: Duration::from_secs(30),
            max_handshakes: 4_096,
            limits: Limits::HOST,
            wire: WireFormat::Auto,
            pool: None,
        }
    }
}

/// Which form of the wire to use: releases differ in how they frame and lay
/// out messages, and nothing announces it (PROTOCOL FRAME-13).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireFormat {
    /// Speak the newest form, which 2021.3.1 and later understand, and send the
    /// handshake without waiting for the peer's.
    #[default]
    Auto,
    /// Speak this form, and refuse peers that frame their messages otherwise.
    Speak {
        /// How messages are framed.
        prefix: Prefix,
        /// How the handshake is laid out.
        layout: Layout,
    },
    /// Wait for the handshake of the peer and answer in kind. If nothing comes
    /// for a second, speak the newest form.
    ///
    /// This is for connectors: the listeners of every release from 2.23.0 on
    /// send first. The connectors of releases up to 2023.7.1 do not (PROTOCOL
    /// HANDSHAKE-1), so a listener with this setting keeps them waiting for that
    /// second, and never learns in time what those before 2021.3.1 understand.
    Answer,
}

/// What the two sides of a comm agreed on, and what was seen of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// The pickle protocol to write.
    pub pickle_protocol: u8,
    /// The version of Python that the peer names, if it does.
    pub peer_python: Option<[u64; 3]>,
    /// How messages are framed, in both directions.
    pub prefix: Prefix,
    /// How the peer lays out its messages.
    pub layout: Layout,
}

/// The half of any stream that bytes arrive on.
pub type ReadHalf = Box<dyn AsyncRead + Send + Sync + Unpin>;

/// The half of any stream that bytes leave by.
pub type WriteHalf = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// A connection before the handshake of Dask: bytes in both directions.
///
/// Transports make them ([`Transport`](crate::Transport)). For what passes bytes
/// on, and for what does the handshake in its own way; comms come from
/// [`Transports::connect`](crate::Transports::connect) and
/// [`Incoming::handshake`](crate::Incoming::handshake).
pub struct RawConnection {
    /// The half that bytes arrive on.
    pub reader: ReadHalf,
    /// The half that bytes leave by.
    pub writer: WriteHalf,
    /// The address of this end.
    pub local: Address,
    /// The address of the other end.
    pub peer: Address,
    /// How it is encrypted, if it is.
    pub encryption: Option<Arc<Encryption>>,
    pub(crate) set_traffic: Option<Box<SetTraffic>>,
    pub(crate) explain: Option<Box<Explain>>,
}

/// Tells a transport what a comm is for from now on.
pub(crate) type SetTraffic = dyn Fn(Traffic) + Send + Sync;

/// Finds what a transport knows of the failure of a handshake.
pub(crate) type Explain = dyn FnOnce(CommError) -> ConnectError + Send + Sync;

/// How a connection is encrypted, and what the peer has shown.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encryption {
    /// The version of TLS, such as `TLSv1_3`.
    pub version: &'static str,
    /// The cipher suite by its name in TLS, such as `TLS13_AES_256_GCM_SHA384`,
    /// if the transport tells.
    pub cipher: Option<&'static str>,
    /// The certificates of the peer in DER, its own first; none if it was not
    /// asked. They have been verified as the settings say.
    pub peer_certificates: Vec<Bytes>,
}

impl Encryption {
    /// For transports, which know.
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

/// How many certificates there are, not what is in them.
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
    /// A connection over these streams, between the ends `local` and `peer`.
    ///
    /// Dropping or shutting down `writer` must end the stream of bytes that the
    /// peer reads, whatever becomes of `reader`. A transport for which a close
    /// takes back what the peer has not read yet, as sockets do, wraps both in
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
        }
    }

    /// How it is encrypted.
    #[must_use]
    pub fn with_encryption(mut self, encryption: Arc<Encryption>) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// What to call when it becomes known what the comm is for, for transports
    /// on which some comms can go before others. Default: nothing.
    #[must_use]
    pub fn with_traffic(mut self, set: impl Fn(Traffic) + Send + Sync + 'static) -> Self {
        self.set_traffic = Some(Box::new(set));
        self
    }

    /// What to call if the handshake of Dask fails, for transports that know
    /// more of the reason, or that another attempt may go better. Default:
    /// the error is as it is.
    #[must_use]
    pub fn with_explanation(
        mut self,
        explain: impl FnOnce(CommError) -> ConnectError + Send + Sync + 'static,
    ) -> Self {
        self.explain = Some(Box::new(explain));
        self
    }

    /// Says what the connection is for.
    pub(crate) fn set_traffic(&self, traffic: Traffic) {
        if let Some(set) = &self.set_traffic {
            set(traffic);
        }
    }

    /// Does the handshake.
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
        match Comm::establish(self.reader, self.writer, ends, options).await {
            Ok(mut comm) => {
                comm.encryption = self.encryption;
                comm.writer.set_traffic_hook(self.set_traffic);
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

/// A connection with messages on it, after the handshake.
///
/// Unless said otherwise the streams are boxed, so that comms over TCP, TLS,
/// QUIC and all others have one type, and what is written for one takes all.
pub struct Comm<R = ReadHalf, W = WriteHalf> {
    reader: CommReader<R>,
    writer: CommWriter<W>,
    agreement: Agreement,
    local: Address,
    peer: Address,
    encryption: Option<Arc<Encryption>>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Comm<R, W> {
    /// Does the handshake over a connection that stands.
    ///
    /// Transports do this; here it is for any stream. `local` and `peer` are the two ends;
    /// the same host at both means no compression.
    ///
    /// # Errors
    ///
    /// * [`CommError::Timeout`] after [`CommOptions::handshake_timeout`];
    /// * [`CommError::Handshake`], [`CommError::Frame`] or
    ///   [`CommError::Prefix`] if the peer sends no handshake that we
    ///   understand;
    /// * [`CommError::Closed`], [`CommError::Io`] if the connection ends.
    pub async fn establish(
        reader: R,
        writer: W,
        (local, peer): (Address, Address),
        options: &CommOptions,
    ) -> Result<Self, CommError> {
        let after = options.handshake_timeout;
        let handshake = shake_hands(reader, writer, options);
        match runtime::timeout(after, handshake).await {
            Ok(outcome) => {
                let (reader, writer, agreement) = outcome?;
                Ok(Self {
                    reader,
                    writer,
                    agreement,
                    local,
                    peer,
                    encryption: None,
                })
            }
            Err(_) => Err(CommError::Timeout {
                phase: Phase::Handshake,
                after,
            }),
        }
    }

    /// [`CommReader::read_message`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn read_message(&mut self) -> Result<Option<Frames>, CommError> {
        self.reader.read_message().await
    }

    /// [`CommWriter::write_message`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.writer.write_message(frames).await
    }

    /// [`CommWriter::feed_message`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn feed_message<T: AsRef<[u8]>>(&mut self, frames: &[T]) -> Result<(), CommError> {
        self.writer.feed_message(frames).await
    }

    /// [`CommWriter::flush`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn flush(&mut self) -> Result<(), CommError> {
        self.writer.flush().await
    }

    /// [`CommWriter::set_traffic`].
    pub fn set_traffic(&self, traffic: Traffic) {
        self.writer.set_traffic(traffic);
    }

    /// [`CommWriter::close`].
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn close(&mut self) -> Result<(), CommError> {
        self.writer.close().await
    }
}

impl<R, W> Comm<R, W> {
    /// The two halves, to read and write at the same time.
    pub fn split(self) -> (CommReader<R>, CommWriter<W>) {
        (self.reader, self.writer)
    }

    /// What was agreed on.
    pub const fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// The address of this end.
    pub const fn local_address(&self) -> &Address {
        &self.local
    }

    /// The address of the other end.
    pub const fn peer_address(&self) -> &Address {
        &self.peer
    }

    /// How it is encrypted, and what the peer has shown; `None` where nothing is
    /// encrypted, and for a comm of [`establish`](Comm::establish).
    pub fn encryption(&self) -> Option<&Encryption> {
        self.encryption.as_deref()
    }

    /// Ends the comm at once, as dropping it does: what was written last may not
    /// arrive, and what the peer says is not received any more. One that was
    /// closed before is over already, and lingers as it would have.
    ///
    /// A read or write that waits is ended by dropping its future; a half that
    /// is somewhere else, by dropping that half.
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

/// How long [`WireFormat::Answer`] waits for the peer to speak first.
const SILENCE: Duration = Duration::from_secs(1);

async fn shake_hands<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    reader: R,
    writer: W,
    options: &CommOptions,
) -> Result<(CommReader<R>, CommWriter<W>, Agreement), CommError> {
    let ours = Handshake::new(None);
    let (prefix, layout) = match options.wire {
        WireFormat::Speak { prefix, layout } => (prefix, layout),
        WireFormat::Auto | WireFormat::Answer => (Prefix::U64, Layout::Modern),
    };
    // PROTOCOL HANDSHAKE-6
    let mut reader = CommReader::new(reader, prefix, Limits::HANDSHAKE);
    let mut writer = CommWriter::new(writer, prefix);

    // PROTOCOL HANDSHAKE-1
    let is_peer_first = options.wire == WireFormat::Answer
        && match runtime::timeout(SILENCE, reader.first_bytes()).await {
            Ok(first) => first.map(|_| true)?,
            Err(_) => false,
        };
    let (found, document) = if is_peer_first {
        let (found, document) = receive(&mut reader, prefix, true).await?;
        writer.set_prefix(found);
        let (_, layout) = Handshake::from_frames(&document, &Limits::HANDSHAKE)?;
        send(&mut writer, &ours, layout).await?;
        (found, document)
    } else {
        // At the same time: neither may wait for the other, however little the
        // connection takes at once.
        let sending = send(&mut writer, &ours, layout);
        let receiving = receive(&mut reader, prefix, false);
        let ((), received) = tokio::try_join!(sending, receiving)?;
        received
    };
    let (theirs, layout) = Handshake::from_frames(&document, &Limits::HANDSHAKE)?;

    let agreed = ours.negotiate(&theirs);
    let agreement = Agreement {
        pickle_protocol: agreed.pickle_protocol,
        peer_python: theirs.python,
        prefix: found,
        layout,
    };
    reader.restart(found, options.limits);
    reader.set_pool(options.pool.clone());
    Ok((reader, writer, agreement))
}

/// Reads the peer's handshake, and detects how it is framed: as `expected`, or in
/// any form. What is neither form is for the decoder to refuse.
async fn receive<R: AsyncRead + Unpin>(
    reader: &mut CommReader<R>,
    expected: Prefix,
    any_form: bool,
) -> Result<(Prefix, Frames), CommError> {
    let first = reader.first_bytes().await?;
    let found = handshake::detect_prefix(&first).unwrap_or(expected);
    if found != expected && !any_form {
        return Err(CommError::Prefix { peer: found });
    }
    reader.restart(found, Limits::HANDSHAKE);
    match reader.read_message().await? {
        Some(frames) => Ok((found, frames)),
        None => Err(Closed::BeforeHandshake.into()),
    }
}

async fn send<W: AsyncWrite + Unpin>(
    writer: &mut CommWriter<W>,
    handshake: &Handshake<'_>,
    layout: Layout,
) -> Result<(), CommError> {
    // Measured by the same code that writes.
    let mut measure = Writer::new(&mut []);
    handshake.encode(&mut measure);
    let mut document = vec![0; measure.len()];
    handshake.encode(&mut Writer::new(&mut document));
    match layout {
        Layout::Modern => writer.write_message(&[&document[..]]).await,
        Layout::Classic => writer.write_message(&[b"", &document[..]]).await,
    }
}
