//! `unix://`.

use std::io;

use daskwire_comm::{
    Address, BoxFuture, CommError, ConnectError, ConnectOptions, Listen, PendingConnection,
    RawConnection, Transport, lingering, runtime,
};
use tokio::net::{UnixListener, UnixStream};

/// The transport of comms over Unix sockets (`unix://` and a path), which Dask does not
/// support. It needs tokio as the executor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unix;

impl Transport for Unix {
    fn schemes(&self) -> &[&'static str] {
        &["unix"]
    }

    fn connect<'a>(
        &'a self,
        address: &'a Address,
        _: &'a ConnectOptions,
    ) -> BoxFuture<'a, Result<PendingConnection, ConnectError>> {
        Box::pin(async {
            if runtime::sockets().is_some() {
                return Err(ConnectError::Fatal(CommError::Io(needs_tokio())));
            }
            let stream = UnixStream::connect(address.location()).await?;
            Ok(open(stream, address).into())
        })
    }

    fn bind<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<Box<dyn Listen>, CommError>> {
        Box::pin(async {
            let bound = match runtime::sockets() {
                Some(_) => Err(needs_tokio()),
                None => bind_unix(address.location()).await,
            };
            let socket = bound.map_err(|error| CommError::Bind {
                address: address.clone(),
                error,
            })?;
            let path = UnixPath::new(address);
            let listener: Box<dyn Listen> = Box::new(Listener { socket, path });
            Ok(listener)
        })
    }
}

struct Listener {
    socket: UnixListener,
    path: UnixPath,
}

impl Listen for Listener {
    fn accept(&self) -> BoxFuture<'_, Result<PendingConnection, CommError>> {
        Box::pin(async {
            let (stream, _) = self.socket.accept().await.map_err(CommError::Io)?;
            Ok(open(stream, &self.path.address).into())
        })
    }

    fn local_address(&self) -> io::Result<Address> {
        Ok(self.path.address.clone())
    }
}

fn open(stream: UnixStream, address: &Address) -> RawConnection {
    let (reader, writer) = stream.into_split();
    let (reader, writer) = lingering(reader, writer);
    RawConnection::new(reader, writer, (address.clone(), address.clone()))
}

fn needs_tokio() -> io::Error {
    let reason = "unix:// needs tokio as the executor; use tcp:// or inproc://";
    io::Error::new(io::ErrorKind::Unsupported, reason)
}

/// The file of a listening Unix socket. Dropping this value removes the file.
#[derive(Debug)]
struct UnixPath {
    address: Address,
    /// Device and inode of the file, to detect that another one has replaced it.
    file: Option<(u64, u64)>,
}

impl UnixPath {
    fn new(address: &Address) -> Self {
        Self {
            file: Self::file(address),
            address: address.clone(),
        }
    }

    fn file(address: &Address) -> Option<(u64, u64)> {
        use std::os::unix::fs::MetadataExt as _;
        let file = std::fs::symlink_metadata(address.location()).ok()?;
        Some((file.dev(), file.ino()))
    }
}

impl Drop for UnixPath {
    fn drop(&mut self) {
        if self.file.is_some() && self.file == Self::file(&self.address) {
            // An error means that the file was already removed.
            let _ = std::fs::remove_file(self.address.location());
        }
    }
}

/// Binds a Unix socket, replacing the socket file of a process that has ended.
async fn bind_unix(path: &str) -> io::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt as _;
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            let answer = UnixStream::connect(path).await;
            let is_left =
                answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !is_socket || !is_left {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        outcome => outcome,
    }
}
