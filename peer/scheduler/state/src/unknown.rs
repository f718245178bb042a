//! Ops that are not served, each of which is reported once per peer.

use std::collections::BTreeSet;

/// The unknown ops of a peer that were reported.
#[derive(Debug, Default)]
pub struct UnknownOps(BTreeSet<String>);

/// Maximum number of ops that are reported of a peer.
const MAX_COUNT: usize = 16;

/// Maximum length of the part of an op that is stored, in characters.
const MAX_LEN: usize = 64;

impl UnknownOps {
    /// Whether an op is to be reported: it was not yet, and neither were many others.
    pub fn is_new(&mut self, op: &str) -> bool {
        self.0.len() < MAX_COUNT && self.0.insert(op.chars().take(MAX_LEN).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_is_new_once_and_at_most_16_are() {
        let mut ops = UnknownOps::default();
        assert!(ops.is_new("queue_size") && !ops.is_new("queue_size"));
        let long = "é".repeat(100);
        assert!(ops.is_new(&long) && !ops.is_new(&long));
        let new = (0..100).filter(|number| ops.is_new(&number.to_string()));
        assert_eq!(new.count(), 14);
    }
}
