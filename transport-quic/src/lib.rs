//! daskwire-quic
