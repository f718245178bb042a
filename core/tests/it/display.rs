//! Tests of the characters shown from a peer's strings.

use daskwire::display::{Printable, is_printable};

/// Control characters, and characters that reorder others, break lines or are
/// invisible.
const DANGEROUS: &[core::ops::RangeInclusive<char>] = &[
    '\0'..='\u{1f}',
    '\u{7f}'..='\u{9f}',
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
    '\u{f0000}'..=char::MAX,
];

#[test]
fn dangerous_characters_are_not_printable() {
    for character in DANGEROUS.iter().cloned().flatten() {
        assert!(!is_printable(character), "{character:?}");
        let shown = Printable(&character.to_string()).to_string();
        assert!(
            shown.bytes().all(|byte| byte.is_ascii_graphic()),
            "{shown:?}"
        );
    }
}

#[test]
fn characters_of_all_languages_are_printable() {
    let all =
        "ASCII \"quoted\" \\ 'it' naïve nai\u{308}ve हिन्दी العربية עברית 日本語 ☃ 🦀 ❤\u{fe0f}";
    assert_eq!(Printable(all).to_string(), all);
}
