//! Access to values that an invariant guarantees, for the crates of this workspace.

/// Extracts the value of an `Option` or `Result` that an invariant guarantees, without
/// a panic in release builds.
///
/// Debug builds, and so tests and fuzzers, panic where the invariant is broken;
/// release builds continue with the default, such as an empty slice.
pub trait Ensured<T: Default> {
    /// Returns the value.
    fn ensured(self) -> T;
}

impl<T: Default> Ensured<T> for Option<T> {
    #[inline]
    #[track_caller]
    fn ensured(self) -> T {
        debug_assert!(self.is_some(), "an invariant is broken");
        self.unwrap_or_default()
    }
}

impl<T: Default, E> Ensured<T> for Result<T, E> {
    #[inline]
    #[track_caller]
    fn ensured(self) -> T {
        self.ok().ensured()
    }
}
