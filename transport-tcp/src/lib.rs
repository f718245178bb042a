//! daskwire-tcp
