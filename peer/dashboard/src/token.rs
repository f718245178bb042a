//! The token that requests need.

use core::fmt;
use core::str::FromStr;

use subtle::ConstantTimeEq as _;

/// A secret that requests carry as `Authorization: Bearer TOKEN`.
#[derive(Clone)]
pub struct Token(Box<str>);

/// Minimum number of characters, so that a token is not found by trying.
const MIN_LEN: usize = 16;

/// Maximum number of characters.
const MAX_LEN: usize = 512;

impl FromStr for Token {
    type Err = &'static str;

    fn from_str(input: &str) -> Result<Self, Self::Err> {
        let token = input.trim();
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a token consists of visible characters of ASCII, without spaces");
        }
        match token.len() {
            MIN_LEN..=MAX_LEN => Ok(Self(token.into())),
            0..MIN_LEN => {
                Err("a token has at least 16 characters, such as those of `openssl rand -hex 32`")
            }
            _ => Err("a token has at most 512 characters"),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Whether the value of the header `Authorization` has the token. Takes as long with any value of the
    /// same length.
    pub(crate) fn is_in(&self, header: Option<&str>) -> bool {
        let given = header.and_then(|header| header.split_once(' '));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer")
                && bool::from(self.0.as_bytes().ct_eq(given.trim().as_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_accepted() {
        let token: Token = " 0123456789abcdef\n".parse().expect("a token");
        for header in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef"] {
            assert!(token.is_in(Some(header)), "{header}");
        }
        for header in [
            "0123456789abcdef",
            "Basic 0123456789abcdef",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
        ] {
            assert!(!token.is_in(Some(header)), "{header}");
        }
        assert!(!token.is_in(None));
        assert_eq!(format!("{token:?}"), "Token(..)");
        for wrong in ["", "short", "0123456789 abcdef", "0123456789abcdé"] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
        assert!("x".repeat(513).parse::<Token>().is_err());
    }
}
