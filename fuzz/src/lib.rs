//! Properties for any input, one function per fuzz target.
//!
//! The targets in `fuzz_targets/` call these functions with inputs of
//! libFuzzer, and `cargo test -p daskwire-fuzz` calls them with every committed
//! seed. A function panics if a property does not hold or the input uses more
//! memory or steps than its budget (see `budget.rs`).

pub mod budget;
mod codecs;
mod comm;
pub mod corpus;
mod documents;
mod embedded;
mod messages;
pub mod meter;
mod opcodes;
mod pickles;
mod roles;
mod streams;
mod target;
mod values;

use daskwire::Limits;
use daskwire::message::ReadOptions;

use budget::{Budget, Linear};
use codecs::{lz4, snappy, zlib, zstd};
use comm::comm;
use documents::{msgpack, rmp};
use embedded::embedded;
use messages::{handshake, message_classic, message_modern, payload_header, round_trip};
use opcodes::pickle;
use pickles::{pickle_tree, pickle_writer};
use roles::{client_role, worker_role};
use streams::prelude;
// The corpora have the name of the target.
use values::numpy as typed;

pub use target::FuzzTarget;

targets! {
    prelude: CORE,
    msgpack: CORE,
    // Its output is not proportional to the length of the input.
    pickle_writer: None,
    message_modern: DECOMPRESSING,
    message_classic: DECOMPRESSING,
    payload_header: DECOMPRESSING,
    lz4: DECOMPRESSING,
    snappy: DECOMPRESSING,
    zlib: DECOMPRESSING,
    zstd: DECOMPRESSING,
    handshake: CORE,
    comm: CORE,
    embedded: CORE,
    worker_role: ROLES,
    client_role: ROLES,
    round_trip: DECOMPRESSING,
    rmp: CORE,
    pickle: CORE,
    pickle_tree: CORE,
    typed: DECOMPRESSING,
}

/// The budget for the decoders of core, including the checks of these
/// functions.
pub const CORE: Option<Budget> = Some(Budget {
    memory_len: Linear {
        base: 8 << 20,
        per_byte: 1 << 10,
    },
    allocated_len: Linear {
        base: 32 << 20,
        per_byte: 16 << 10,
    },
    steps: Linear {
        base: 1 << 20,
        per_byte: 1 << 10,
    },
});

/// The budget of roles, which scan all their entries at each step.
const ROLES: Option<Budget> = Some(Budget {
    memory_len: Linear {
        base: 8 << 20,
        per_byte: 1 << 10,
    },
    allocated_len: Linear {
        base: 32 << 20,
        per_byte: 16 << 10,
    },
    steps: Linear {
        base: 1 << 22,
        per_byte: 1 << 16,
    },
});

/// The budget with decompression: a zstd frame of about 20 bytes may decompress
/// to `decompressed_len` of [`LIMITS`], and is read more than once.
const DECOMPRESSING: Option<Budget> = Some(Budget {
    memory_len: Linear {
        base: 64 << 20,
        per_byte: 1 << 10,
    },
    allocated_len: Linear {
        base: 256 << 20,
        per_byte: 1 << 20,
    },
    steps: Linear {
        base: 64 << 20,
        per_byte: 1 << 20,
    },
});

/// Small limits, so that an input of some kilobytes costs some kilobytes.
const LIMITS: Limits = Limits::HOST
    .with_frame_count(1 << 10)
    .with_frame_len(1 << 20)
    .with_message_len(1 << 22)
    .with_document_len(1 << 20)
    .with_depth(128)
    .with_items(1 << 16)
    .with_decompressed_len(1 << 20)
    .with_decompressed_message_len(1 << 22);

/// Small limits for pickles.
const PICKLE_LIMITS: daskwire_pickle::Limits = daskwire_pickle::Limits::HOST
    .with_opcode_count(1 << 16)
    .with_value_count(1 << 16)
    .with_stack_count(1 << 16)
    .with_memo_count(1 << 16);

fn read_options() -> ReadOptions {
    ReadOptions::new(LIMITS)
        .with_sets_and_enums(true)
        .with_lengths_optional(false)
}
