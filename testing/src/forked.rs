//! Python processes forked from one that has imported Dask; see `fork_server.py`.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, PipeReader, PipeWriter};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::{DIRECTORY_VARIABLES, LIBRARIES, has_libraries, isolate, scripts, target};

/// The fork servers of this program. They end with the program.
static SERVERS: Mutex<Vec<(Image, OwnedFd)>> = Mutex::new(Vec::new());

/// The interpreter of a fork server, and the modules that it has imported.
#[derive(Clone, Debug, PartialEq)]
struct Image {
    interpreter: PathBuf,
    modules: &'static [&'static str],
}

/// A forked process.
#[derive(Debug)]
pub(crate) struct Forked {
    image: Image,
    pid: Pid,
    process: OwnedFd,
    /// Whether the process succeeded, if it was waited for.
    success: Option<bool>,
}

/// Starts `interpreter ARGUMENTS` in `directory`, with these ends of its standard streams.
pub(crate) fn fork(
    interpreter: &Path,
    arguments: &[&str],
    directory: &Path,
    (stdin, stdout, stderr): (PipeReader, PipeWriter, PipeWriter),
) -> io::Result<Forked> {
    let environment = DIRECTORY_VARIABLES.map(|name| (name, directory));
    let request = json!({
        "arguments": arguments,
        "directory": directory,
        "environment": BTreeMap::from(environment),
    });
    // Scripts are clients and other peers that use data frames. A module of Dask is started
    // without them, since pandas has effects on tasks: it creates a decimal context. Tests of
    // libraries have no such tasks, and all processes of their clusters import the libraries.
    let modules: &[&str] = match arguments {
        _ if has_libraries(interpreter) => LIBRARIES,
        ["-m", ..] => &["distributed"],
        _ => &["distributed", "pandas"],
    };
    let image = Image {
        interpreter: interpreter.to_owned(),
        modules,
    };
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let reply = ask(&image, &request, &streams)?;
    let id = reply["id"].as_i64().and_then(|id| i32::try_from(id).ok());
    let pid = id
        .and_then(Pid::from_raw)
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok(Forked {
        image,
        pid,
        process: pidfd_open(pid, PidfdFlags::empty())?,
        success: None,
    })
}

impl Forked {
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.process, Signal::KILL)?)
    }

    /// Waits until the process has ended. Returns whether it succeeded.
    pub(crate) fn wait(&mut self) -> io::Result<bool> {
        if let Some(success) = self.success {
            return Ok(success);
        }
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        retry_on_intr(|| poll(&mut ended, None))?;
        let reply = ask(&self.image, &json!({"wait": self.id()}), &[])?;
        let success = reply["status"] == 0;
        self.success = Some(success);
        Ok(success)
    }
}

/// Sends a request to the server with an image, which is started if necessary.
fn ask(image: &Image, request: &Value, descriptors: &[BorrowedFd<'_>]) -> io::Result<Value> {
    // Valid after a panic: it changes by one call.
    let mut servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_started = |(of, _): &(Image, OwnedFd)| of == image;
    let index = match servers.iter().position(is_started) {
        Some(index) => index,
        None => {
            servers.push((image.clone(), start(image)?));
            servers.len() - 1
        }
    };
    let reply = exchange(&servers[index].1, request, descriptors);
    if reply.is_err() {
        servers.remove(index);
    }
    reply
}

fn exchange(
    server: &OwnedFd,
    request: &Value,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<Value> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let document = request.to_string();
    let document = [IoSlice::new(document.as_bytes())];
    sendmsg(server, &document, &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut reply = [0; 256];
    let (len, _) = retry_on_intr(|| recv(server, &mut reply, RecvFlags::empty()))?;
    if len == 0 {
        return Err(io::Error::other("the fork server has ended"));
    }
    Ok(serde_json::from_slice(&reply[..len])?)
}

fn start(image: &Image) -> io::Result<OwnedFd> {
    let (server, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut command = Command::new(&image.interpreter);
    isolate(&mut command, &target().join("tmp/fork-server"))
        .arg(scripts().join("fork_server.py"))
        .args(image.modules)
        .stdin(Stdio::from(other))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(server)
}
