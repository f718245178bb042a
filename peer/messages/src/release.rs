//! Releases of Dask, and the range of supported ones.

use core::fmt;
use core::str::FromStr;

use crate::Value;

/// A release of `distributed`, such as 2026.8.0. Anything after the three
/// numbers, as in the development version `2026.8.1+5.gdeadbee`, is ignored.
///
/// ```
/// use daskwire_messages::release::{FIRST_SUPPORTED, Release};
/// let release: Release = "2021.12.0".parse()?;
/// assert!(release < FIRST_SUPPORTED);
/// # Ok::<(), daskwire_messages::release::ParseReleaseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// The year; 1 or 2 before 2021.
    pub major: u16,
    /// The month; a counter before 2021.
    pub minor: u16,
    /// A counter of the month's releases.
    pub micro: u16,
}

/// The first release whose scheduler supports a worker of this crate.
pub const FIRST_SUPPORTED: Release = Release::new(2022, 1, 0);

/// The first release whose scheduler supports a client of this crate.
///
/// Before 2022.1.0, a client transfers data and submits tasks; other operations
/// fail. Clients cannot connect to 2021.3.0,
/// whose wire format no other release has.
pub const FIRST_WITH_CLIENTS: Release = Release::new(2, 30, 1);

/// The newest release that clients, workers and schedulers were tested with.
///
/// Later releases are not refused: they work if they do not change the protocol.
/// Workers and clients warn about them once they are connected, with an
/// [`UntestedRelease`].
pub const LAST_TESTED: Release = Release::new(2026, 8, 0);

/// A warning that a scheduler runs a release that is newer than [`LAST_TESTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UntestedRelease {
    /// The scheduler's release.
    pub found: Release,
}

impl UntestedRelease {
    /// The warning about a scheduler with this release, if it is newer than the tested
    /// ones.
    pub fn of(found: Option<Release>) -> Option<Self> {
        let found = found.filter(|found| *found > LAST_TESTED)?;
        Some(Self { found })
    }
}

impl fmt::Display for UntestedRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the scheduler runs distributed {}, but this program was tested only with releases up \
             to {}",
            self.found, LAST_TESTED
        )
    }
}

/// The error of parsing a [`Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseReleaseError(String);

impl fmt::Display for ParseReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a release of Dask: expected three numbers separated by dots, such as \
             2026.8.0",
            self.0
        )
    }
}

impl core::error::Error for ParseReleaseError {}

/// The error that a scheduler's release is too old for a client or worker of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnsupportedRelease {
    /// The scheduler's release.
    pub found: Release,
    /// The first supported release.
    pub first: Release,
    /// The client or worker, such as `a client in Rust`.
    pub what: &'static str,
}

impl fmt::Display for UnsupportedRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, first, what } = self;
        write!(
            f,
            "the scheduler runs distributed {found}, which {what} does not support: upgrade the \
             cluster to {first} or later"
        )
    }
}

impl core::error::Error for UnsupportedRelease {}

/// The error that the release of a client or worker is too old for a scheduler of this
/// crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedPeer {
    /// The peer's release.
    pub found: Release,
    /// The first release that the scheduler supports.
    pub first: Release,
    /// `client` or `worker`.
    pub role: &'static str,
}

impl fmt::Display for UnsupportedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, first, role } = self;
        write!(
            f,
            "this scheduler does not serve a {role} with distributed {found}: upgrade it to {first} \
             or later"
        )
    }
}

impl core::error::Error for UnsupportedPeer {}

daskwire::kinds! {
    ParseReleaseError: |_| ErrorKind::Invalid;
    UnsupportedRelease: |_| ErrorKind::Unsupported;
    UnsupportedPeer: |_| ErrorKind::Unsupported;
}

/// The name of this implementation among the packages of `versions`.
pub const PACKAGE: &str = "daskwire";

/// Whether a reply to `versions` is that of a peer in Rust.
pub fn is_of_rust(versions: &Value) -> bool {
    rust_version(versions).is_some()
}

/// The version of the peer in Rust that replied to `versions`; `None` if it is in Python.
pub fn rust_version(versions: &Value) -> Option<&str> {
    versions.get("packages")?.get(PACKAGE)?.as_str()
}

impl Release {
    /// Returns the release with these numbers.
    pub const fn new(major: u16, minor: u16, micro: u16) -> Self {
        Self {
            major,
            minor,
            micro,
        }
    }

    /// Returns an error for releases before `first`.
    ///
    /// # Errors
    ///
    /// If the release is older.
    pub fn check(
        found: Option<Self>,
        first: Self,
        what: &'static str,
    ) -> Result<(), UnsupportedRelease> {
        match found {
            Some(found) if found < first => Err(UnsupportedRelease { found, first, what }),
            _ => Ok(()),
        }
    }
}

impl FromStr for Release {
    type Err = ParseReleaseError;

    fn from_str(release: &str) -> Result<Self, ParseReleaseError> {
        // `2025.3.0`, `2021.03.1+2.g0a1b2c3`, `2026.9.0.dev1`, `2026.9.0rc1`
        let mut numbers = release.splitn(3, '.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit());
            part[..end.unwrap_or(part.len())].parse::<u16>().ok()
        });
        let mut number = || numbers.next().flatten();
        match (number(), number(), number()) {
            (Some(major), Some(minor), Some(micro)) => Ok(Self::new(major, minor, micro)),
            _ => Err(ParseReleaseError(release.to_owned())),
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    #[test]
    fn releases_are_read_and_compared_by_their_numbers() {
        let read = |release: &str| {
            release
                .parse::<Release>()
                .map(|release| release.to_string())
        };
        for (input, release) in [
            ("2026.8.0", "2026.8.0"),
            ("2.30.1", "2.30.1"),
            ("2021.03.1+2.g0a1b2c3.dirty", "2021.3.1"),
            ("2026.9.0.dev1", "2026.9.0"),
            ("2026.9.1rc1", "2026.9.1"),
        ] {
            assert_eq!(read(input).as_deref(), Ok(release));
        }
        for release in [
            "",
            "2026",
            "2026.8",
            "x.8.0",
            "2026..0",
            "70000.1.1",
            "-1.0.0",
        ] {
            let error = read(release).expect_err("not a release").to_string();
            assert!(
                error.starts_with(&format!("{release:?} is not a release")),
                "{error}"
            );
        }
        assert!(Release::new(2021, 12, 10) < FIRST_SUPPORTED);
        assert!(Release::new(2025, 10, 0) > FIRST_SUPPORTED);
    }

    #[test]
    fn releases_after_the_last_one_tested_are_warned_about() {
        let warning = |release: &str| UntestedRelease::of(release.parse().ok());
        assert_eq!(warning(&LAST_TESTED.to_string()), None);
        assert_eq!(UntestedRelease::of(None), None);
        assert!(warning("2026.8.1").is_some_and(|warning| {
            warning
                .to_string()
                .contains("distributed 2026.8.1, but this program was tested only with")
        }));
    }

    #[test]
    fn the_release_of_a_scheduler_is_among_its_versions() {
        let versions = |packages: Value| Value::dict([("packages", packages)]);
        let found = |packages| Release::of_versions(&versions(packages));
        let modern = Value::dict([("dask", "2026.8.1"), ("distributed", "2026.8.0")]);
        assert_eq!(found(modern), Some(Release::new(2026, 8, 0)));
        let old = [("dask", "1.24.0"), ("distributed", "1.24.1")]
            .map(|(name, version)| Value::list([name, version]));
        let old = Value::dict([
            ("required", Value::list(old)),
            ("optional", Value::list([0; 0])),
        ]);
        assert_eq!(found(old), Some(Release::new(1, 24, 1)));
        // Schedulers of this crate have no release.
        assert_eq!(found(Value::Dict([].into())), None);
        assert_eq!(found(Value::dict([("distributed", Value::None)])), None);
        assert_eq!(Release::of_versions(&Value::None), None);
    }
}
