//! The connections of one member of a cluster, and their faults.

use core::fmt;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::{Context, Poll, Waker, ready};
use core::time::Duration;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use daskwire::msgpack::{Malformed, Reader, Token};
use daskwire_comm::{
    Address, BoxFuture, CommError, CommOptions, ConnectError, ConnectOptions, Listen,
    PendingConnection, RawConnection, ReadHalf, Transport, Transports, WriteHalf, runtime,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::ClientOptions;
use crate::{ObservedMessage, Observer};

/// The connections of one member of a cluster, which a test can break, stop and slow down.
///
/// [`LocalCluster::link`](super::LocalCluster::link) returns that of a worker. A client gets one
/// with [`client_options`](Self::client_options), and any other role in Rust with
/// [`transports`](Self::transports) and [`observer`](Self::observer). All comms of the member are
/// on its link: those that it makes, and those that others make to it. Clones are of the same link.
///
/// Comms are streams of bytes, in order and without gaps. So a single message cannot get lost: if
/// one does not arrive, the comm has broken in its place, and later messages on this comm do not
/// arrive either. [`lose`](Self::lose) makes that happen to a certain message.
///
/// ```
/// use std::time::Duration;
///
/// use daskwire_peer::Client;
/// use daskwire_peer::client::{Connection, Reconnect};
/// use daskwire_peer::cluster::{Link, LocalCluster};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cluster = LocalCluster::start().await?;
/// let link = Link::new();
/// let options = link
///     .client_options(cluster.client_options())
///     .with_reconnect(Reconnect::Within(Duration::from_secs(60)));
/// let client = Client::connect_with(&cluster.address().to_string(), options).await?;
/// let mut connection = client.watch_connection();
/// link.disconnect();
/// assert_eq!(connection.changed().await, Some(Connection::Reconnecting));
/// link.reconnect();
/// assert_eq!(connection.changed().await, Some(Connection::Connected));
/// # client.close().await?;
/// # cluster.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Link(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_paused: AtomicBool,
    /// The delay of what is sent, in nanoseconds.
    delay: AtomicU64,
    /// Whether a message is to be lost, so that most messages need no lock.
    loses: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_down: bool,
    connections: Vec<Weak<Connection>>,
    /// The ops of messages that are to be lost.
    lost: Vec<String>,
}

/// Both halves of a connection, shared with the link, which can end them.
struct Connection {
    reader: Mutex<Half<ReadHalf>>,
    writer: Mutex<Half<WriteHalf>>,
}

struct Half<S> {
    /// `None` once the link has broken the connection.
    stream: Option<S>,
    /// The task that waits for this half.
    waker: Option<Waker>,
    /// The pause before a message is written.
    delay: Option<BoxFuture<'static, ()>>,
    /// Whether a part of a message was written, which is delayed no more.
    is_writing: bool,
}

impl<S> Half<S> {
    const fn new(stream: Option<S>) -> Self {
        Self {
            stream,
            waker: None,
            delay: None,
            is_writing: false,
        }
    }

    fn wait<T>(&mut self, context: &Context<'_>) -> Poll<T> {
        self.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Locks a half or the state of a link. Both are valid after a panic: each change of them is one
/// assignment, or a call of a collection.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "the link of a local cluster was cut",
    )
}

impl Link {
    /// Returns a link without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns transports whose connections are on this link, for the member that the link is of.
    #[must_use]
    pub fn transports(&self, transports: &Transports) -> Transports {
        Transports::new().with(LinkTransport {
            schemes: transports.schemes().collect(),
            transports: transports.clone(),
            link: self.clone(),
        })
    }

    /// Returns an observer through which the link sees messages, for [`lose`](Self::lose). It
    /// reports them to `next`.
    #[must_use]
    pub fn observer(&self, next: Option<Arc<dyn Observer>>) -> Arc<dyn Observer> {
        let link = self.clone();
        Arc::new(LinkObserver { link, next })
    }

    /// Returns the options of a client whose connections are on this link.
    #[must_use]
    pub fn client_options(&self, mut options: ClientOptions) -> ClientOptions {
        let transports = self.transports(&options.transports);
        let observer = self.observer(options.observer.take());
        options.with_transports(transports).with_observer(observer)
    }

    /// Breaks all comms of the member; new ones can be made at once. The other ends see the end of
    /// a stream, as if the process had been killed. Data that was written before may still arrive.
    pub fn cut(&self) {
        let connections = core::mem::take(&mut lock(&self.0.state).connections);
        for connection in connections.iter().filter_map(Weak::upgrade) {
            connection.end();
        }
    }

    /// Breaks all comms of the member, and refuses new ones until [`reconnect`](Self::reconnect).
    pub fn disconnect(&self) {
        lock(&self.0.state).is_down = true;
        self.cut();
    }

    /// Ends what [`disconnect`](Self::disconnect) has begun.
    pub fn reconnect(&self) {
        lock(&self.0.state).is_down = false;
    }

    /// Stops what the member sends and receives until [`resume`](Self::resume). Its comms stay
    /// open, as those of a process that hangs, or over a network that drops all packets.
    pub fn pause(&self) {
        self.0.is_paused.store(true, Ordering::SeqCst);
    }

    /// Ends what [`pause`](Self::pause) has begun. All that was stopped arrives, in order.
    pub fn resume(&self) {
        self.0.is_paused.store(false, Ordering::SeqCst);
        let connections = lock(&self.0.state).connections.clone();
        for connection in connections.iter().filter_map(Weak::upgrade) {
            connection.wake();
        }
    }

    /// Delays each message that the member sends, and each group of messages that it sends at once,
    /// by this time. A comm sends the next one after that. Default: zero.
    pub fn delay(&self, delay: Duration) {
        let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.0.delay.store(delay, Ordering::Relaxed);
    }

    /// Breaks a comm in place of the next message with this `op` that the member sends on it, such
    /// as `task-finished` of a worker: neither this message nor those that are sent with it
    /// arrive. Other comms of the member stay open. Each call is for one message.
    ///
    /// Replies have no `op`, and are not lost.
    pub fn lose(&self, op: &str) {
        lock(&self.0.state).lost.push(op.to_owned());
        self.0.loses.store(true, Ordering::SeqCst);
    }

    /// The number of the member's comms that are open.
    pub fn comm_count(&self) -> usize {
        let state = lock(&self.0.state);
        state
            .connections
            .iter()
            .filter(|connection| connection.strong_count() > 0)
            .count()
    }

    /// Whether this message is one that is to be lost; it is then no more.
    fn takes(&self, message: &ObservedMessage<'_>) -> bool {
        if !message.is_leaving || !self.0.loses.load(Ordering::SeqCst) {
            return false;
        }
        let Some(body) = message.frames.first() else {
            return false;
        };
        let mut state = lock(&self.0.state);
        let lost = &mut state.lost;
        // Messages are encoded by this process, so they are well-formed.
        let index = lost.iter().position(|op| has_op(body, op).unwrap_or(false));
        if let Some(index) = index {
            lost.remove(index);
        }
        self.0.loses.store(!lost.is_empty(), Ordering::SeqCst);
        index.is_some()
    }

    /// Puts a connection on the link.
    fn add(&self, mut raw: RawConnection) -> RawConnection {
        let is_vectored = raw.writer.is_write_vectored();
        let (reader, writer) = (raw.reader, raw.writer);
        let mut state = lock(&self.0.state);
        let is_up = !state.is_down;
        let connection = Arc::new(Connection {
            reader: Mutex::new(Half::new(is_up.then_some(reader))),
            writer: Mutex::new(Half::new(is_up.then_some(writer))),
        });
        state.connections.retain(|other| other.strong_count() > 0);
        state.connections.push(Arc::downgrade(&connection));
        drop(state);
        raw.reader = Box::new(LinkReader {
            link: self.clone(),
            connection: Arc::clone(&connection),
        });
        raw.writer = Box::new(LinkWriter {
            link: self.clone(),
            connection,
            is_vectored,
        });
        raw
    }

    fn add_pending(&self, pending: PendingConnection) -> PendingConnection {
        let link = self.clone();
        PendingConnection::new(pending.peer_address().clone(), async move {
            // The caller has a timeout of its own.
            let options = CommOptions::default().with_handshake_timeout(Duration::MAX);
            Ok(link.add(pending.open(&options).await?))
        })
    }

    fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("comm_count", &self.comm_count())
            .field("is_down", &lock(&self.0.state).is_down)
            .field("is_paused", &self.is_paused())
            .finish_non_exhaustive()
    }
}

/// Whether a message, or one of a batch, has this `op`.
fn has_op(body: &[u8], op: &str) -> Result<bool, Malformed> {
    let mut reader = Reader::new(body);
    let count = match reader.peek()? {
        Token::Array(_) => reader.array()?,
        Token::Map(_) => 1,
        _ => 0,
    };
    for _ in 0..count {
        // A reader of its own for each message, because a search ends within it.
        let mut message = Reader::new(reader.skip()?);
        if matches!(message.peek()?, Token::Map(_))
            && message.find("op")?
            && message.str().is_ok_and(|found| found == op)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Connection {
    fn end(&self) {
        end(&self.reader);
        end(&self.writer);
    }

    fn wake(&self) {
        let wakers = [
            lock(&self.reader).waker.take(),
            lock(&self.writer).waker.take(),
        ];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Drops a stream, and wakes the task that waits for it.
fn end<S>(half: &Mutex<Half<S>>) {
    let (stream, waker) = {
        let mut half = lock(half);
        (half.stream.take(), half.waker.take())
    };
    drop(stream);
    waker.into_iter().for_each(Waker::wake);
}

struct LinkObserver {
    link: Link,
    next: Option<Arc<dyn Observer>>,
}

impl Observer for LinkObserver {
    fn message(&self, message: &ObservedMessage<'_>) {
        if let Some(next) = &self.next {
            next.message(message);
        }
    }

    fn is_lost(&self, message: &ObservedMessage<'_>) -> bool {
        let next = self.next.as_ref();
        self.link.takes(message) || next.is_some_and(|next| next.is_lost(message))
    }
}

/// Other transports, whose connections are on a link.
struct LinkTransport {
    schemes: Vec<&'static str>,
    transports: Transports,
    link: Link,
}

impl Transport for LinkTransport {
    fn schemes(&self) -> &[&'static str] {
        &self.schemes
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        options: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async move {
            if lock(&self.link.0.state).is_down {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
            }
            let transport = self.transports.for_scheme(address.scheme())?;
            let pending = transport.connect(address, options).await?;
            Ok(self.link.add_pending(pending))
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async move {
            let transport = self.transports.for_scheme(address.scheme())?;
            let listener: Box<dyn Listen> = Box::new(LinkListener {
                listener: transport.bind(address).await?,
                link: self.link.clone(),
            });
            Ok(listener)
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.transports.close())
    }

    fn with_own_connections(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(Self {
            schemes: self.schemes.clone(),
            transports: self.transports.with_own_connections(),
            link: self.link.clone(),
        }))
    }
}

struct LinkListener {
    listener: Box<dyn Listen>,
    link: Link,
}

impl Listen for LinkListener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async move { Ok(self.link.add_pending(self.listener.accept().await?)) })
    }

    fn local_address(&self) -> io::Result<Address> {
        self.listener.local_address()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.listener.close()
    }
}

struct LinkReader {
    link: Link,
    connection: Arc<Connection>,
}

impl AsyncRead for LinkReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let half = &mut *lock(&self.connection.reader);
        let Some(stream) = &mut half.stream else {
            return Poll::Ready(Err(broken()));
        };
        if !self.link.is_paused()
            && let Poll::Ready(outcome) = Pin::new(stream).poll_read(context, into)
        {
            return Poll::Ready(outcome);
        }
        half.wait(context)
    }
}

/// Each half ends by itself.
impl Drop for LinkReader {
    fn drop(&mut self) {
        end(&self.connection.reader);
    }
}

struct LinkWriter {
    link: Link,
    connection: Arc<Connection>,
    is_vectored: bool,
}

impl Drop for LinkWriter {
    fn drop(&mut self) {
        end(&self.connection.writer);
    }
}

impl LinkWriter {
    /// Polls the stream, unless the link is paused or has broken it.
    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut WriteHalf>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let half = &mut *lock(&self.connection.writer);
        let Some(stream) = &mut half.stream else {
            return Poll::Ready(Err(broken()));
        };
        if !self.link.is_paused()
            && let Poll::Ready(outcome) = poll(Pin::new(stream), context)
        {
            return Poll::Ready(outcome);
        }
        half.wait(context)
    }

    /// Waits before the first part of a message is written.
    fn poll_delay(&self, context: &mut Context<'_>) -> Poll<()> {
        let half = &mut *lock(&self.connection.writer);
        if half.is_writing || half.stream.is_none() {
            return Poll::Ready(());
        }
        let delay = self.link.0.delay.load(Ordering::Relaxed);
        if delay > 0 || half.delay.is_some() {
            let sleep =
                || Box::pin(runtime::sleep(Duration::from_nanos(delay))) as BoxFuture<'_, _>;
            let sleeping = half.delay.get_or_insert_with(sleep);
            if sleeping.as_mut().poll(context).is_pending() {
                return half.wait(context);
            }
            half.delay = None;
        }
        half.is_writing = true;
        Poll::Ready(())
    }
}

impl AsyncWrite for LinkWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_delay(context));
        self.poll(context, |stream, context| stream.poll_write(context, from))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_delay(context));
        self.poll(context, |stream, context| {
            stream.poll_write_vectored(context, from)
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.is_vectored
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = ready!(self.poll(context, |stream, context| stream.poll_flush(context)));
        lock(&self.connection.writer).is_writing = false;
        Poll::Ready(outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_are_found_in_messages_and_batches() {
        let one = b"\x82\xa1a\x01\xa2op\xa4ping";
        let batch = b"\x93\x80\x81\xa1a\x92\x01\x02\x82\xa1a\x01\xa2op\xa4ping";
        for body in [&one[..], batch] {
            assert_eq!(has_op(body, "ping"), Ok(true));
            assert_eq!(has_op(body, "pin"), Ok(false));
        }
        // A reply, and a document that ends early.
        assert_eq!(has_op(b"\xa4ping", "ping"), Ok(false));
        assert!(has_op(&batch[..5], "ping").is_err());
    }
}
