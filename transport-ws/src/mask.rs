//! Masks of the frames that clients send (RFC 6455, section 5.3).

use core::hash::BuildHasher as _;
use std::hash::RandomState;

/// The masks of a connection. They must be unpredictable for what chooses the payload, so that
/// no payload looks like HTTP to a proxy on the way: a keyed hash of a counter, with a key of
/// the system's random numbers.
#[derive(Debug, Default)]
pub(crate) struct Masks {
    key: RandomState,
    count: u64,
}

impl Masks {
    pub(crate) fn next(&mut self) -> [u8; 4] {
        self.count = self.count.wrapping_add(1);
        let [a, b, c, d, ..] = self.key.hash_one(self.count).to_le_bytes();
        [a, b, c, d]
    }
}

/// Masks or unmasks bytes that begin at this position of a payload.
pub(crate) fn apply(bytes: &mut [u8], mask: [u8; 4], position: u64) {
    let turn = (position % 4) as usize;
    let at = |index: usize| mask[(turn + index) % 4];
    let word = u64::from_ne_bytes(core::array::from_fn(at));
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for bytes in words {
        *bytes = (u64::from_ne_bytes(*bytes) ^ word).to_ne_bytes();
    }
    for (index, byte) in rest.iter_mut().enumerate() {
        *byte ^= at(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_has_its_byte_of_the_mask() {
        let mask = [1, 2, 4, 8];
        let payload: Vec<u8> = (0..40).collect();
        let masked: Vec<u8> = (0..40).map(|at| at as u8 ^ mask[at % 4]).collect();
        for start in 0..40 {
            for end in start..=40 {
                let mut bytes = payload[start..end].to_vec();
                apply(&mut bytes, mask, start as u64);
                assert_eq!(bytes, masked[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn masks_differ() {
        let (mut one, mut two) = (Masks::default(), Masks::default());
        let mut seen: Vec<_> = (0..100).flat_map(|_| [one.next(), two.next()]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 190, "{seen:?}");
    }
}
