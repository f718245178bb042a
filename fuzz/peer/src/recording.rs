//! The records of what a scheduler has handled.

use daskwire_fuzz::budget::{Budget, Linear};
use daskwire_scheduler::state::rewrite_recording;

/// Payloads that are not in a recording may take as much.
const MAX_PAYLOAD_LEN: usize = 1 << 20;

/// Values, and each event once more as it is written again.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 16 << 20,
        per_byte: 4 << 10,
    },
    allocated_len: Linear {
        base: 32 << 20,
        per_byte: 16 << 10,
    },
    steps: Linear {
        base: 1 << 24,
        per_byte: 1 << 14,
    },
};

/// Checks that any records are refused, or are read as events that are the same once they are
/// written and read again.
///
/// The input: records.
pub(crate) fn recording(input: &[u8]) {
    BUDGET.check(input.len(), || {
        let Ok(written) = rewrite_recording(input, MAX_PAYLOAD_LEN) else {
            return;
        };
        let again = rewrite_recording(&written, MAX_PAYLOAD_LEN).expect("it was written");
        assert_eq!(written, again);
    });
}
