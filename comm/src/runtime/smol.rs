//! [smol](https://docs.rs/smol): its global executor, and the timers and sockets of
//! async-io.

use core::net::SocketAddr;
use std::io;

use smol::{Async, Timer, net};
use tokio_util::compat::FuturesAsyncReadCompatExt as _;

use super::{AcceptTcp, Instant, Runtime, Stream};
use crate::BoxFuture;

/// The global executor of smol, whose number of threads the variable `SMOL_THREADS`
/// sets. Default: one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Smol;

impl Runtime for Smol {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        smol::spawn(task).detach();
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            #[cfg(feature = "runtime-tokio")]
            let deadline = deadline.into_std();
            Timer::at(deadline).await;
        })
    }

    fn spawn_blocking(&self, function: Box<dyn FnOnce() + Send>) {
        smol::unblock(function).detach();
    }

    fn connect_tcp(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'static, io::Result<std::net::TcpStream>> {
        Box::pin(async move {
            Async::<std::net::TcpStream>::connect(address)
                .await?
                .into_inner()
        })
    }

    fn tcp_stream(&self, socket: std::net::TcpStream) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(net::TcpStream::try_from(socket)?.compat()))
    }

    fn tcp_listener(&self, socket: std::net::TcpListener) -> io::Result<Box<dyn AcceptTcp>> {
        Ok(Box::new(Listener(Async::new(socket)?)))
    }
}

struct Listener(Async<std::net::TcpListener>);

impl AcceptTcp for Listener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(std::net::TcpStream, SocketAddr)>> {
        Box::pin(async {
            let (stream, peer) = self.0.accept().await?;
            Ok((stream.into_inner()?, peer))
        })
    }
}
