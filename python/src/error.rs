//! Conversion of errors to Python exceptions.

use std::io;

use daskwire_comm::{CommError, is_permanent};
use pyo3::exceptions::{PyException, PyOSError, PyRuntimeError, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(
    daskwire._native,
    ConnectionClosed,
    PyException,
    "The connection has ended, or could not be made."
);

create_exception!(
    daskwire._native,
    ConnectionRefused,
    PyException,
    "The connection could not be made, and no other attempt would succeed."
);

/// Converts an error of a comm to the exception that Python code expects.
pub(crate) fn to_python(error: CommError) -> PyErr {
    match error {
        // Dask's own transports raise `ValueError` for an address that they cannot use.
        CommError::Address { .. } | CommError::Scheme { .. } => {
            PyValueError::new_err(error.to_string())
        }
        CommError::NoTls { address } => PyRuntimeError::new_err(format!(
            "{address} needs certificates, and the Security of this side has none"
        )),
        CommError::Bind { error, .. } => bind_error(&error),
        CommError::Tls(_) | CommError::PeerSpeaksTls | CommError::PeerSpeaksHttp => {
            ConnectionRefused::new_err(error.to_string())
        }
        // Such as a TLS handshake over QUIC that was refused, or an unsupported version of QUIC.
        CommError::Connect { ref error, .. } if is_permanent(error) => {
            ConnectionRefused::new_err(error.to_string())
        }
        error => ConnectionClosed::new_err(error.to_string()),
    }
}

/// Makes an `OSError` with the system's error number, by which Python chooses the subclass.
fn bind_error(error: &io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => PyOSError::new_err(error.to_string()),
    }
}
