//! `unix://`.

use core::sync::atomic::{AtomicU64, Ordering};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

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
    /// The file, to detect that another one has replaced it.
    file: Option<FileId>,
}

impl UnixPath {
    fn new(address: &Address) -> Self {
        Self {
            file: file_id(address.location()).ok(),
            address: address.clone(),
        }
    }
}

impl Drop for UnixPath {
    fn drop(&mut self) {
        let path = self.address.location();
        if self.file.is_some() && self.file == file_id(path).ok() {
            // An error means that the file was already removed.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The device and inode of a file, and its modification time in seconds and nanoseconds,
/// since a new file may have the inode of one that was removed.
type FileId = (u64, u64, i64, i64);

fn file_id(path: &str) -> io::Result<FileId> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino(), file.mtime(), file.mtime_nsec()))
}

/// Binds a Unix socket, replacing the socket file of a process that has ended.
async fn bind_unix(path: &str) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // Fails if another process replaces the file at the same time.
            let (Ok(stale), Ok(file)) = (file_id(path), std::fs::symlink_metadata(path)) else {
                return Err(error);
            };
            let is_socket = file.file_type().is_socket();
            let answer = UnixStream::connect(path).await;
            let is_stale =
                answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !is_socket || !is_stale || !remove_unless_replaced(path, stale).unwrap_or(false) {
                return Err(error);
            }
            UnixListener::bind(path)
        }
        outcome => outcome,
    }
}

/// Removes the file `stale`, or returns `false` if another process has replaced it.
fn remove_unless_replaced(path: &str, stale: FileId) -> io::Result<bool> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Renamed first, since the file may be replaced between its check and its removal.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = format!("{path}.{}.{number}", std::process::id());
    std::fs::rename(path, &aside)?;
    let is_stale = file_id(&aside).is_ok_and(|file| file == stale);
    if !is_stale
        && let Err(error) = std::fs::hard_link(&aside, path)
        // Otherwise a third process has bound the path meanwhile.
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        // The file system, or the owner of the socket, does not allow links.
        std::fs::rename(&aside, path)?;
        return Ok(false);
    }
    std::fs::remove_file(&aside)?;
    Ok(is_stale)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_socket_of_another_process_is_kept() {
        let path = std::env::temp_dir().join(format!("daskwire-race-{}", std::process::id()));
        let path = path.to_str().expect("UTF-8");
        drop(UnixListener::bind(path).expect("no such file"));
        let stale = file_id(path).expect("bound");
        // Another process replaces the file first.
        assert!(remove_unless_replaced(path, stale).expect("removed"));
        // Some systems record the time of a change with a resolution of milliseconds.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let other = UnixListener::bind(path).expect("removed");
        assert!(!remove_unless_replaced(path, stale).expect("kept"));
        UnixStream::connect(path).expect("it still listens");
        drop(other);
        std::fs::remove_file(path).expect("kept");
    }
}
