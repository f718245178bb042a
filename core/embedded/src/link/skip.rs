//! Skips values of a body that are longer than any buffer.

/// What is left of a value that is skipped as it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    /// The number of values that begin after `data_len` bytes.
    value_count: u64,
    /// The rest of the string, bytes or number that has begun, in bytes.
    data_len: u64,
}

impl Skip {
    /// A whole value.
    pub(super) const fn value() -> Self {
        Self {
            value_count: 1,
            data_len: 0,
        }
    }

    /// Whether all of it has been skipped.
    pub(super) const fn is_done(&self) -> bool {
        self.value_count == 0 && self.data_len == 0
    }

    /// Skips as much as has arrived, and returns its length. The head of a value that
    /// has not arrived as a whole, of up to 6 bytes, is left.
    pub(super) fn advance(&mut self, input: &[u8]) -> usize {
        let mut rest = input;
        loop {
            let data_len = usize::try_from(self.data_len).unwrap_or(usize::MAX);
            let len = data_len.min(rest.len());
            rest = rest.get(len..).unwrap_or_default();
            self.data_len = self.data_len.saturating_sub(len as u64);
            if self.data_len != 0 || self.value_count == 0 {
                break;
            }
            let Some(head) = head(rest) else { break };
            rest = rest.get(head.len..).unwrap_or_default();
            self.data_len = head.data_len;
            // A value that a peer really sends has fewer than 2^64.
            let others = self.value_count.saturating_sub(1);
            self.value_count = others.saturating_add(head.value_count);
        }
        input.len().saturating_sub(rest.len())
    }
}

/// The head of a value.
pub(super) struct Head {
    /// Its length, in bytes.
    pub(super) len: usize,
    /// The length of the data after it, in bytes.
    pub(super) data_len: u64,
    /// The number of values in it.
    pub(super) value_count: u64,
    pub(super) is_array: bool,
}

/// Reads the head of a value; `None` if it has not arrived as a whole, or is not valid.
/// Unlike a `Reader`, it does not require what the head announces.
pub(super) fn head(bytes: &[u8]) -> Option<Head> {
    let (&marker, rest) = bytes.split_first()?;
    // The length or the number after the marker, by the number of its bytes.
    let number = |width: usize| {
        let digits = rest.get(..width)?.iter();
        Some(digits.fold(0, |number, digit| number << 8 | u64::from(*digit)))
    };
    // A power of two, by the distance from the first marker of its kind.
    let power = |first: u8| 1_u8 << (marker.wrapping_sub(first) & 7);
    let (width, data_len, value_count) = match marker {
        0x80..=0x8f => (0, 0, u64::from(marker & 0x0f) << 1),
        0x90..=0x9f => (0, 0, u64::from(marker & 0x0f)),
        0xa0..=0xbf => (0, u64::from(marker & 0x1f), 0),
        // PROTOCOL MSGPACK-10
        0xc1 => return None,
        0xc4..=0xc6 => (power(0xc4), number(power(0xc4).into())?, 0),
        // The type of an extension takes another byte.
        0xc7..=0xc9 => (power(0xc7), number(power(0xc7).into())?.wrapping_add(1), 0),
        0xca..=0xcb => (0, u64::from(power(0xc8)), 0),
        0xcc..=0xcf => (0, u64::from(power(0xcc)), 0),
        0xd0..=0xd3 => (0, u64::from(power(0xd0)), 0),
        0xd4..=0xd8 => (0, u64::from(power(0xd4)).wrapping_add(1), 0),
        0xd9..=0xdb => (power(0xd9), number(power(0xd9).into())?, 0),
        0xdc..=0xdd => (power(0xdb), 0, number(power(0xdb).into())?),
        0xde..=0xdf => (power(0xdd), 0, number(power(0xdd).into())? << 1),
        _ => (0, 0, 0),
    };
    Some(Head {
        len: usize::from(width).saturating_add(1),
        data_len,
        value_count,
        is_array: matches!(marker, 0x90..=0x9f | 0xdc | 0xdd),
    })
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    extern crate alloc;

    use super::*;
    use daskwire::msgpack::Reader;

    /// A value of each kind, some nested.
    const VALUES: &[&[u8]] = &[
        b"\x05",
        b"\xe0",
        b"\xc0",
        b"\xc2",
        b"\xc3",
        b"\xc4\x03abc",
        b"\xc5\0\x03abc",
        b"\xc6\0\0\0\x03abc",
        b"\xc7\x03\x05abc",
        b"\xc8\0\x03\x05abc",
        b"\xc9\0\0\0\x03\x05abc",
        b"\xca1234",
        b"\xcb12345678",
        b"\xcc1",
        b"\xcd12",
        b"\xce1234",
        b"\xcf12345678",
        b"\xd01",
        b"\xd112",
        b"\xd21234",
        b"\xd312345678",
        b"\xd4\x051",
        b"\xd5\x0512",
        b"\xd6\x051234",
        b"\xd7\x0512345678",
        b"\xd8\x051234567812345678",
        b"\xa3abc",
        b"\xd9\x03abc",
        b"\xda\0\x03abc",
        b"\xdb\0\0\0\x03abc",
        b"\x90",
        b"\x93\x01\xa1a\x91\xc0",
        b"\xdc\0\x02\x01\x92\xc0\xc0",
        b"\xdd\0\0\0\x02\x01\xa1a",
        b"\x80",
        b"\x82\x01\xa1a\xa1b\x80",
        b"\xde\0\x01\xa1a\x91\x01",
        b"\xdf\0\0\0\x01\xa1a\xcd12",
    ];

    #[test]
    fn values_of_all_kinds_are_skipped_at_every_split() {
        for value in VALUES {
            let read = Reader::new(value).skip();
            assert_eq!(read, Ok(*value), "the value is one");
            let input = [value, &b"\x91\x01"[..]].concat();
            for window_len in 9..=input.len().max(9) {
                let mut skip = Skip::value();
                let (mut at, mut end) = (0, 0);
                while !skip.is_done() {
                    assert!(end < input.len() || at < end, "{value:x?}");
                    end = (end + 1).min(at + window_len).min(input.len());
                    at += skip.advance(&input[at..end]);
                }
                assert_eq!(at, value.len(), "{value:x?}");
            }
        }
    }
}
