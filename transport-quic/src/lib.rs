//! Comms over QUIC: reserved for the mapping of Dask's messages to QUIC
//! streams. There is nothing in this crate yet; `daskwire-tcp` has comms over
//! TCP and over any other stream of bytes.
#![forbid(unsafe_code)]
