//! The native half of the Python package `daskwire`: connections over the transports of
//! this project, for the event loops of asyncio, and the command `daskwire`.
//!
//! I/O runs on threads that never wait for the GIL. Finished operations are added to a list
//! of a `Notifier`, whose socket wakes the event loop once for all of them; the loop then
//! takes the results. Messages are lists of frames. The handshake of Dask is not part of this
//! module: `daskwire/comm.py` leaves it to `distributed`.

mod command;
mod connection;
mod error;
mod frame;
mod listener;
mod notify;
mod runtime;
mod transports;

use pyo3::prelude::*;

/// The module `daskwire._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::connection::{Closing, Connecting, Connection, close_all};
    #[pymodule_export]
    use super::error::{ConnectionClosed, ConnectionRefused};
    #[pymodule_export]
    use super::frame::Frame;
    #[pymodule_export]
    use super::listener::{Binding, Listener};
    #[pymodule_export]
    use super::notify::Notifier;
    #[pymodule_export]
    use super::runtime::forget;
    #[pymodule_export]
    use super::transports::Transports;
}
