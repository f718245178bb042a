//! A client for programs without async: it has a runtime of its own, on one thread.
//!
//! ```no_run
//! # fn example() -> Result<(), daskwire_peer::Error> {
//! use daskwire_peer::client::blocking::Client;
//!
//! let client = Client::connect("tcp://10.0.0.7:8786")?;
//! let squares = client.map("native:square", 0..10_i64)?;
//! for (index, square) in client.results(squares) {
//!     println!("{index}: {}", square?);
//! }
//! let workers = client.block_on(client.workers())?;
//! println!("{} workers", workers.len());
//! client.close()?;
//! # Ok(())
//! # }
//! ```

use core::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use daskwire_messages::Value;
use daskwire_rpc::RequestError;
use daskwire_value::IntoValue;
use tokio::runtime::{Builder, Runtime};

use super::{ClientOptions, ConnectError, Results, ScatterError, TaskError, TaskFuture};

/// A client whose methods block.
///
/// Dereferences to [`Client`](super::Client): methods that are not async, such as
/// `submit`, `call` and `map`, are called directly, and async methods through
/// [`block_on`](Self::block_on). Must not be used in async code: blocking there panics,
/// as in tokio. Clones are the same client, as those of the other one.
#[derive(Clone, Debug)]
pub struct Client {
    client: super::Client,
    /// The runtime of the client. Declared after `client`, because fields are dropped in
    /// the order of their declaration.
    runtime: Arc<Runtime>,
}

impl Deref for Client {
    type Target = super::Client;

    fn deref(&self) -> &super::Client {
        &self.client
    }
}

fn runtime() -> Result<Arc<Runtime>, ConnectError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("daskwire-client")
        .enable_all()
        .build();
    runtime
        .map(Arc::new)
        .map_err(|error| ConnectError::Runtime(Arc::new(error)))
}

impl Client {
    /// Connects to a scheduler, as [`Client::connect`](super::Client::connect).
    ///
    /// # Errors
    ///
    /// As [`Client::connect`](super::Client::connect), and [`ConnectError::Runtime`] if
    /// no thread can be started.
    pub fn connect(address: &str) -> Result<Self, ConnectError> {
        Self::connect_with(address, ClientOptions::default())
    }

    /// Connects with options.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_with(address: &str, options: ClientOptions) -> Result<Self, ConnectError> {
        let runtime = runtime()?;
        let client = runtime.block_on(super::Client::connect_with(address, options))?;
        Ok(Self { client, runtime })
    }

    /// Connects to the scheduler that a scheduler file names, as
    /// [`Client::connect_to_file`](super::Client::connect_to_file).
    ///
    /// # Errors
    ///
    /// As [`Client::connect_to_file`](super::Client::connect_to_file), and as
    /// [`connect`](Self::connect).
    pub fn connect_to_file(
        path: impl AsRef<Path>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let runtime = runtime()?;
        let client = runtime.block_on(super::Client::connect_to_file(path, options))?;
        Ok(Self { client, runtime })
    }

    /// Connects to the scheduler that the environment names, as
    /// [`Client::from_env`](super::Client::from_env).
    ///
    /// # Errors
    ///
    /// As [`Client::from_env`](super::Client::from_env), and as [`connect`](Self::connect).
    pub fn from_env(options: ClientOptions) -> Result<Self, ConnectError> {
        let runtime = runtime()?;
        let client = runtime.block_on(super::Client::from_env(options))?;
        Ok(Self { client, runtime })
    }

    /// Waits for anything that can be awaited: a method of the client, or a future for
    /// its result.
    pub fn block_on<F: IntoFuture>(&self, future: F) -> F::Output {
        self.runtime.block_on(future.into_future())
    }

    /// Waits for a result and fetches it, as [`TaskFuture::result`].
    ///
    /// # Errors
    ///
    /// As [`TaskFuture::result`].
    pub fn result(&self, future: &TaskFuture) -> Result<Value, TaskError> {
        self.block_on(future)
    }

    /// Waits for results and fetches them, as [`Client::gather`](super::Client::gather).
    ///
    /// # Errors
    ///
    /// As [`Client::gather`](super::Client::gather).
    pub fn gather(&self, futures: &[TaskFuture]) -> Result<Vec<Value>, TaskError> {
        self.block_on(self.client.gather(futures))
    }

    /// Stores data on the cluster, as [`Client::scatter`](super::Client::scatter).
    ///
    /// # Errors
    ///
    /// As [`Client::scatter`](super::Client::scatter).
    pub fn scatter(
        &self,
        data: impl IntoIterator<Item = impl IntoValue>,
    ) -> Result<Vec<TaskFuture>, ScatterError> {
        self.block_on(self.client.scatter(data))
    }

    /// Waits until all futures are done, as [`Client::wait`](super::Client::wait).
    pub fn wait<'f>(&self, futures: impl IntoIterator<Item = &'f TaskFuture>) {
        self.block_on(self.client.wait(futures));
    }

    /// Yields results in the order in which they are done, with the indexes of their
    /// futures.
    pub fn results(&self, futures: impl IntoIterator<Item = TaskFuture>) -> BlockingResults {
        BlockingResults {
            results: self.client.as_completed(futures).results(),
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// Closes the client, as [`Client::close`](super::Client::close).
    ///
    /// # Errors
    ///
    /// As [`Client::close`](super::Client::close).
    pub fn close(&self) -> Result<(), RequestError> {
        self.runtime.block_on(self.client.close())
    }
}

/// An iterator over results, see [`Client::results`].
#[derive(Debug)]
pub struct BlockingResults {
    results: Results,
    runtime: Arc<Runtime>,
}

impl BlockingResults {
    /// Adds a future, and returns its index.
    pub fn add(&mut self, future: TaskFuture) -> usize {
        self.results.add(future)
    }
}

impl Iterator for BlockingResults {
    type Item = (usize, Result<Value, TaskError>);

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.block_on(self.results.next())
    }
}
