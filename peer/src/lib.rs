//! daskwire-peer
