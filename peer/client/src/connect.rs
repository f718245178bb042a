//! Ways to find a scheduler, and the state of the connection to it.

use core::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use daskwire_comm::{BoxFuture, Opener, runtime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};

use super::{Client, ClientOptions, ConnectError, Disconnected, Returned};

/// Environment variables that Dask reads too.
const ADDRESS: &str = "DASK_SCHEDULER_ADDRESS";
const FILE: &str = "DASK_SCHEDULER_FILE";

/// The state of the connection to the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connection {
    /// The client is connected.
    Connected,
    /// The connection broke, and the client reconnects, see
    /// [`Reconnect`](super::Reconnect), or does not know yet which of its keys it has found.
    Reconnecting,
    /// The client was closed, or has lost its connection permanently.
    Closed {
        /// The reason.
        reason: String,
    },
}

/// A function that a client calls each time that it has reconnected, before it sends anything else.
///
/// The scheduler may have been restarted: it then knows none of the modules and plugins that were
/// uploaded, and no variables, queues, events and locks; locks that the program holds may be held by
/// others, too. The function brings back what the program needs:
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use daskwire_peer::Client;
/// use daskwire_peer::client::{ClientOptions, OnReconnect};
///
/// async fn prepare(client: Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     client.set_metadata(["state"], "ready").await?;
///     Ok(())
/// }
///
/// let options = ClientOptions::default().with_on_reconnect(OnReconnect::new(prepare));
/// let client = Client::connect_with("tcp://10.0.0.7:8786", options).await?;
/// // Once, for the scheduler as it is.
/// prepare(client.clone()).await?;
/// # Ok(())
/// # }
/// ```
///
/// While it runs, requests work, and the client is [`Reconnecting`](Connection::Reconnecting) still:
/// submissions and whatever else would hold results fail, or wait if they wait for a connection. A
/// function that waits for one of these waits for itself. If it returns an error, or takes longer
/// than [`ClientOptions::timeout`] or the time that is left to reconnect, the connection is given
/// up, and the client tries again as after any failed attempt.
///
/// The client that the function gets does not keep the connection: if the program drops its last
/// clone meanwhile, the client ends, and the function with it.
#[derive(Clone)]
pub struct OnReconnect(Arc<Hook>);

type Hook = dyn Fn(Client) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

impl OnReconnect {
    /// Creates it from an async function of the client. Its error is a part of the reason for which
    /// the client ends, if no further attempt to reconnect succeeds.
    pub fn new<F, R, E>(function: F) -> Self
    where
        F: Fn(Client) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        Self(Arc::new(move |client| {
            let running = function(client);
            Box::pin(async { running.await.map_err(|error| error.to_string()) })
        }))
    }

    pub(super) async fn run(&self, client: Client) -> Result<(), String> {
        (self.0)(client).await
    }
}

impl fmt::Debug for OnReconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnReconnect(..)")
    }
}

/// A receiver for changes of the state of the connection, see
/// [`Client::watch_connection`].
#[derive(Clone, Debug)]
pub struct ConnectionWatch {
    states: watch::Receiver<Connection>,
    returned: watch::Receiver<Option<Returned>>,
    /// Whether the program knows that the client is closed.
    is_closed: bool,
}

impl ConnectionWatch {
    /// The current state.
    pub fn current(&self) -> Connection {
        self.states.borrow().clone()
    }

    /// What the client has found when it reconnected for the last time, as
    /// [`Client::last_return`].
    pub fn last_return(&self) -> Option<Returned> {
        self.returned.borrow().clone()
    }

    /// Waits until the state changes, and returns the new state; `None` after
    /// [`Connection::Closed`]. States that last only a short time may be skipped. Cancel
    /// safe.
    pub async fn changed(&mut self) -> Option<Connection> {
        if self.is_closed {
            return None;
        }
        self.states.changed().await.ok()?;
        let state = self.states.borrow_and_update().clone();
        self.is_closed = matches!(state, Connection::Closed { .. });
        Some(state)
    }
}

impl Client {
    /// Connects to the scheduler that a scheduler file names, as written by `dask
    /// scheduler --scheduler-file`.
    ///
    /// # Errors
    ///
    /// * [`ConnectError::File`] if the file cannot be read within
    ///   [`connect_timeout`](daskwire_comm::CommOptions::connect_timeout), has 1 MiB or more, or
    ///   has no string `address`;
    /// * as [`connect`](Self::connect).
    pub async fn connect_to_file(
        path: impl AsRef<Path>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let path = path.as_ref();
        let fault = |reason: String| ConnectError::File {
            path: path.display().to_string(),
            reason,
        };
        let owned = path.to_owned();
        let (sender, reading) = oneshot::channel();
        // A FIFO or a network file system may not answer. The runtime would wait for a thread of its
        // own when it ends.
        let reader = std::thread::Builder::new().name("daskwire-file".to_owned());
        let reader = reader.spawn(move || sender.send(read_scheduler_file(&owned)));
        reader.map_err(|error| fault(error.to_string()))?;
        let timeout = options.comm.connect_timeout;
        let late = || fault(format!("it was not read within {timeout:?}"));
        let read = runtime::timeout(timeout, reading)
            .await
            .map_err(|_| late())?;
        let read = read.unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let document = read.map_err(|error| fault(error.to_string()))?;
        let address = string_of(&document, "address");
        let address = address
            .ok_or_else(|| fault("expected a JSON object with the string `address`".to_owned()))?;
        Self::connect_with(&address, options).await
    }

    /// Connects over streams that a function of the program opens, for example through a proxy or a
    /// tunnel, or in a QUIC connection that the program has.
    ///
    /// Each call opens one more connection to the same scheduler, as a reading and a writing half,
    /// see [`Opener`]: one for the client, one for each request that runs at the same time, and more
    /// if the client reconnects. With [`Route::Direct`](super::Route::Direct), the workers are reached at
    /// their own addresses, by [`ClientOptions::transports`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use daskwire_peer::Client;
    /// use daskwire_peer::client::ClientOptions;
    /// use tokio::net::TcpStream;
    ///
    /// // A port that `ssh -L 9000:scheduler:8786 gateway` forwards.
    /// let open = || async { Ok(TcpStream::connect("127.0.0.1:9000").await?.into_split()) };
    /// let client = Client::over(open, ClientOptions::default()).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// With a `quinn::Connection` to a `quic://` scheduler or relay, `open` is
    /// `move || { let quinn = quinn.clone(); async move { let (send, receive) =
    /// quinn.open_bi().await?; Ok((receive, send)) } }`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the streams that were opened.
    ///
    /// # Errors
    ///
    /// As [`connect_with`](Self::connect_with).
    pub async fn over<F, O, R, W>(open: F, mut options: ClientOptions) -> Result<Self, ConnectError>
    where
        F: Fn() -> O + Send + Sync + 'static,
        O: Future<Output = io::Result<(R, W)>> + Send + 'static,
        R: AsyncRead + Send + Sync + Unpin + 'static,
        W: AsyncWrite + Send + Sync + Unpin + 'static,
    {
        options.transports = options.transports.with(Opener::new("stream", open));
        Self::connect_with("stream://scheduler", options).await
    }

    /// Connects to the scheduler that Dask's environment variables name:
    /// `DASK_SCHEDULER_ADDRESS`, or else `DASK_SCHEDULER_FILE`.
    ///
    /// # Errors
    ///
    /// * [`ConnectError::NotNamed`] if neither is set;
    /// * as [`connect`](Self::connect) and [`connect_to_file`](Self::connect_to_file).
    pub async fn from_env(options: ClientOptions) -> Result<Self, ConnectError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(address) = variable(ADDRESS) {
            return Self::connect_with(&address, options).await;
        }
        match variable(FILE) {
            Some(path) => Self::connect_to_file(path, options).await,
            None => Err(ConnectError::NotNamed),
        }
    }

    /// The current state of the connection.
    pub fn connection(&self) -> Connection {
        self.shared.lock().connection()
    }

    /// Returns a receiver for changes of the state of the connection.
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) {
    /// let mut connection = client.watch_connection();
    /// while let Some(state) = connection.changed().await {
    ///     println!("{state:?}");
    /// }
    /// # }
    /// ```
    pub fn watch_connection(&self) -> ConnectionWatch {
        let mut states = self.shared.connection.subscribe();
        let is_closed = matches!(*states.borrow_and_update(), Connection::Closed { .. });
        ConnectionWatch {
            states,
            returned: self.shared.returned.subscribe(),
            is_closed,
        }
    }

    /// What the client has found when it reconnected for the last time; `None` if it has not. It is
    /// known once the client is [`Connected`](Connection::Connected) again.
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::Error> {
    /// client.connected().await?;
    /// if let Some(returned) = client.last_return().filter(|returned| returned.lost > 0) {
    ///     eprintln!("{returned}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn last_return(&self) -> Option<Returned> {
        self.shared.returned.borrow().clone()
    }

    /// Waits while the client reconnects, see [`Reconnect`](super::Reconnect). Cancel
    /// safe.
    ///
    /// # Errors
    ///
    /// [`Disconnected`] if the client was closed, or has lost its connection
    /// permanently.
    pub async fn connected(&self) -> Result<(), Disconnected> {
        let mut watch = self.shared.connection.subscribe();
        loop {
            match watch.borrow_and_update().clone() {
                Connection::Connected => return Ok(()),
                Connection::Closed { .. } => return Err(self.shared.disconnected()),
                Connection::Reconnecting => {}
            }
            // The sender lives as long as the client.
            let _ = watch.changed().await;
        }
    }
}

/// The string field `wanted` of a JSON object.
fn string_of(document: &str, wanted: &str) -> Option<String> {
    let mut characters = document.chars();
    let (mut depth, mut is_key, mut last) = (0_usize, true, None);
    while let Some(character) = characters.next() {
        match character {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.checked_sub(1)?,
            ':' => is_key = false,
            ',' => is_key = true,
            '"' => {
                let string = rest_of_string(&mut characters)?;
                match (depth, is_key) {
                    (1, true) => last = Some(string),
                    (1, false) if last.as_deref() == Some(wanted) => return Some(string),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    None
}

/// Reads a scheduler's file, which has less than 1 MiB.
fn read_scheduler_file(path: &Path) -> io::Result<String> {
    let mut document = String::new();
    let mut file = File::open(path)?.take(1 << 20);
    file.read_to_string(&mut document)?;
    match file.limit() {
        0 => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it has 1 MiB or more",
        )),
        _ => Ok(document),
    }
}

/// Reads a JSON string after its first quote.
fn rest_of_string(characters: &mut core::str::Chars<'_>) -> Option<String> {
    let mut string = String::new();
    loop {
        match characters.next()? {
            '"' => return Some(string),
            '\\' => string.push(match characters.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let digits: String = characters.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16).ok()?;
                    // No address has a character of two such escapes.
                    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
                }
                other => other,
            }),
            other => string.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::string_of;

    #[test]
    fn finds_strings_of_the_outermost_object() {
        let document = r#"{"type": "Scheduler", "workers": {"address": "no", "x": ["address"]},
            "services": {"dashboard": 8787}, "address": "tcp:\/\/\u0031.2.3.4:8786"}"#;
        assert_eq!(
            string_of(document, "address").as_deref(),
            Some("tcp://1.2.3.4:8786")
        );
        assert_eq!(string_of(document, "type").as_deref(), Some("Scheduler"));
        assert_eq!(string_of(document, "x"), None);
        assert_eq!(string_of(document, "services"), None);
        for broken in [
            "",
            "{",
            "}",
            r#"{"address"#,
            r#"{"address": 3}"#,
            r#"{"address": "\u12"#,
        ] {
            assert_eq!(string_of(broken, "address"), None, "{broken}");
        }
    }
}
