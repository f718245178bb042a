//! daskwire-fuzz
