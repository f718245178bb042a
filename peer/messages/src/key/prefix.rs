//! Prefixes of keys, as `dask.utils.key_split` computes them.
//!
//! Schedulers and workers keep statistics for each prefix for as long as they
//! run, so each prefix that Dask would not compute leaks memory there.

use std::borrow::Cow;

/// The prefix of keys that are not strings, and of those without a name.
pub(super) const OTHER: &str = "Other";

/// The prefix of a key that is a string, or that begins with one.
pub(super) fn split(key: &str) -> Cow<'_, str> {
    // A scheduler does this for each task, and searching for bytes takes less time than for characters.
    let mut words = key.as_bytes().split(|byte| *byte == b'-');
    let first_len = words.next().map_or(0, <[u8]>::len);
    let first = key.get(..first_len).unwrap_or(key);
    let name = match first.chars().next() {
        None => return OTHER.into(),
        Some(letter) if is_letter(letter) => first,
        Some(_) => {
            let name = first.split(',').next().expect("a split has a part");
            name.trim_matches(['_', '\'', '(', ')', '"'])
        }
    };
    let rest: usize = words
        .take_while(|word| is_word(word))
        .map(|word| word.len().saturating_add(1))
        .sum();
    let prefix = if name.len() == first.len() || rest == 0 {
        Cow::Borrowed(match rest {
            0 => name,
            rest => key.get(..first.len().saturating_add(rest)).unwrap_or(key),
        })
    } else {
        let rest = key.get(first.len()..).and_then(|key| key.get(..rest));
        Cow::Owned([name, rest.unwrap_or_default()].concat())
    };
    let is_hash = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if prefix.len() == 32 && prefix.bytes().all(is_hash) {
        return "data".into();
    }
    match prefix.chars().next() {
        None => OTHER.into(),
        // `<module.Class object at 0x7f0000000000>`
        Some('<') => {
            let string = prefix.trim_matches(['<', '>']);
            let name = string.split(is_space).find(|word| !word.is_empty());
            let name = name.map(|name| name.rsplit('.').next().unwrap_or(name));
            name.map_or(OTHER.into(), |name| name.to_owned().into())
        }
        Some(_) => prefix,
    }
}

/// Whether a word after a dash belongs to the prefix. Words of eight letters that
/// start with a hexadecimal digit count as hexadecimal numbers.
fn is_word(word: &[u8]) -> bool {
    let may_be_hash = matches!(word, [b'a'..=b'f', ..]);
    if word.is_ascii() {
        return !word.is_empty()
            && word.iter().all(u8::is_ascii_alphabetic)
            && !(may_be_hash && word.len() == 8);
    }
    // Dashes are not parts of other characters.
    core::str::from_utf8(word).is_ok_and(|word| {
        word.chars().all(is_letter) && !(may_be_hash && word.chars().count() == 8)
    })
}

/// `str.isalpha`, which is narrower than Unicode's alphabetic property.
fn is_letter(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    let code = u32::from(c);
    let after = NOT_LETTERS.partition_point(|(first, _)| *first <= code);
    let range = after
        .checked_sub(1)
        .and_then(|index| NOT_LETTERS.get(index));
    c.is_alphabetic() && range.is_none_or(|(_, last)| *last < code)
}

/// The characters at which `str.split` splits.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// Characters for which [`char::is_alphabetic`] is true and `str.isalpha` is
/// false: marks, numbers and symbols. None of these ranges contains a letter.
#[rustfmt::skip]
const NOT_LETTERS: [(u32, u32); 171] = [
    (0x0345, 0x036f), (0x05b0, 0x05c7), (0x0610, 0x061a), (0x064b, 0x065f), (0x0670, 0x0670),
    (0x06d6, 0x06e4), (0x06e7, 0x06ed), (0x0711, 0x0711), (0x0730, 0x073f), (0x07a6, 0x07b0),
    (0x0816, 0x0817), (0x081b, 0x0823), (0x0825, 0x0827), (0x0829, 0x082c), (0x08d4, 0x0903),
    (0x093a, 0x093b), (0x093e, 0x094f), (0x0955, 0x0957), (0x0962, 0x0963), (0x0981, 0x0983),
    (0x09be, 0x09cc), (0x09d7, 0x09d7), (0x09e2, 0x09e3), (0x0a01, 0x0a03), (0x0a3e, 0x0a51),
    (0x0a70, 0x0a71), (0x0a75, 0x0a83), (0x0abe, 0x0acc), (0x0ae2, 0x0ae3), (0x0afa, 0x0b03),
    (0x0b3e, 0x0b57), (0x0b62, 0x0b63), (0x0b82, 0x0b82), (0x0bbe, 0x0bcc), (0x0bd7, 0x0c04),
    (0x0c3e, 0x0c56), (0x0c62, 0x0c63), (0x0c81, 0x0c83), (0x0cbe, 0x0cd6), (0x0ce2, 0x0ce3),
    (0x0cf3, 0x0d03), (0x0d3e, 0x0d4c), (0x0d57, 0x0d57), (0x0d62, 0x0d63), (0x0d81, 0x0d83),
    (0x0dcf, 0x0df3), (0x0e31, 0x0e31), (0x0e34, 0x0e3a), (0x0e4d, 0x0e4d), (0x0eb1, 0x0eb1),
    (0x0eb4, 0x0ebc), (0x0ecd, 0x0ecd), (0x0f71, 0x0f83), (0x0f8d, 0x0fbc), (0x102b, 0x103e),
    (0x1056, 0x1059), (0x105e, 0x1060), (0x1062, 0x1064), (0x1067, 0x106d), (0x1071, 0x1074),
    (0x1082, 0x108d), (0x108f, 0x109d), (0x16ee, 0x16f0), (0x1712, 0x1713), (0x1732, 0x1733),
    (0x1752, 0x1753), (0x1772, 0x1773), (0x17b6, 0x17c8), (0x1885, 0x1886), (0x18a9, 0x18a9),
    (0x1920, 0x1938), (0x1a17, 0x1a1b), (0x1a55, 0x1a74), (0x1abf, 0x1b04), (0x1b35, 0x1b43),
    (0x1b80, 0x1b82), (0x1ba1, 0x1bad), (0x1be7, 0x1bf1), (0x1c24, 0x1c36), (0x1dd3, 0x1df4),
    (0x2160, 0x2182), (0x2185, 0x24e9), (0x2de0, 0x2dff), (0x3007, 0x3029), (0x3038, 0x303a),
    (0xa674, 0xa67b), (0xa69e, 0xa69f), (0xa6e6, 0xa6ef), (0xa802, 0xa802), (0xa80b, 0xa80b),
    (0xa823, 0xa827), (0xa880, 0xa881), (0xa8b4, 0xa8c5), (0xa8ff, 0xa8ff), (0xa926, 0xa92a),
    (0xa947, 0xa952), (0xa980, 0xa983), (0xa9b4, 0xa9bf), (0xa9e5, 0xa9e5), (0xaa29, 0xaa36),
    (0xaa43, 0xaa43), (0xaa4c, 0xaa4d), (0xaa7b, 0xaa7d), (0xaab0, 0xaab0), (0xaab2, 0xaab4),
    (0xaab7, 0xaab8), (0xaabe, 0xaabe), (0xaaeb, 0xaaef), (0xaaf5, 0xaaf5), (0xabe3, 0xabea),
    (0xfb1e, 0xfb1e), (0x10140, 0x10174), (0x10341, 0x10341), (0x1034a, 0x1034a),
    (0x10376, 0x1037a), (0x103d1, 0x103d5), (0x10a01, 0x10a0f), (0x10d24, 0x10d27),
    (0x10eab, 0x10eac), (0x11000, 0x11002), (0x11038, 0x11045), (0x11073, 0x11074),
    (0x11080, 0x11082), (0x110b0, 0x110c2), (0x11100, 0x11102), (0x11127, 0x11132),
    (0x11145, 0x11146), (0x11180, 0x11182), (0x111b3, 0x111bf), (0x111ce, 0x111cf),
    (0x1122c, 0x1123e), (0x11241, 0x11241), (0x112df, 0x11303), (0x1133e, 0x1134c),
    (0x11357, 0x11357), (0x11362, 0x11363), (0x11435, 0x11445), (0x114b0, 0x114c1),
    (0x115af, 0x115be), (0x115dc, 0x115dd), (0x11630, 0x11640), (0x116ab, 0x116b5),
    (0x1171d, 0x1172a), (0x1182c, 0x11838), (0x11930, 0x1193c), (0x11940, 0x11940),
    (0x11942, 0x11942), (0x119d1, 0x119df), (0x119e4, 0x119e4), (0x11a01, 0x11a0a),
    (0x11a35, 0x11a39), (0x11a3b, 0x11a3e), (0x11a51, 0x11a5b), (0x11a8a, 0x11a97),
    (0x11c2f, 0x11c3e), (0x11c92, 0x11cb6), (0x11d31, 0x11d43), (0x11d47, 0x11d47),
    (0x11d8a, 0x11d96), (0x11ef3, 0x11f01), (0x11f03, 0x11f03), (0x11f34, 0x11f40),
    (0x12400, 0x1246e), (0x16f4f, 0x16f4f), (0x16f51, 0x16f92), (0x16ff0, 0x16ff1),
    (0x1bc9e, 0x1bc9e), (0x1e000, 0x1e02a), (0x1e08f, 0x1e08f), (0x1e947, 0x1e947),
    (0x1f130, 0x1f189),
];
