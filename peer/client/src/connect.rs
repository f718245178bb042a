//! Ways to find a scheduler, and the state of the connection to it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use daskwire_comm::runtime;
use tokio::sync::{oneshot, watch};

use super::{Client, ClientOptions, ConnectError, Disconnected};

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
    /// [`Reconnect`](super::Reconnect).
    Reconnecting,
    /// The client was closed, or has lost its connection permanently.
    Closed {
        /// The reason.
        reason: String,
    },
}

/// A receiver for changes of the state of the connection, see
/// [`Client::watch_connection`].
#[derive(Clone, Debug)]
pub struct ConnectionWatch {
    states: watch::Receiver<Connection>,
    /// Whether the program knows that the client is closed.
    is_closed: bool,
}

impl ConnectionWatch {
    /// The current state.
    pub fn current(&self) -> Connection {
        self.states.borrow().clone()
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
        ConnectionWatch { states, is_closed }
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
