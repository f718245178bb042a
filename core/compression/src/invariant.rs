//! Access to values that an invariant guarantees, for the crates of this workspace.

/// Extracts the value of an `Option` or `Result` that an invariant guarantees, without
/// a panic in release builds.
///
/// For code whose panics the linker must not find. Debug builds, and so tests and fuzzers,
/// panic where the invariant is broken; release builds continue with the default, such as
/// an empty slice.
pub trait OrDefaultIfBug<T: Default> {
    /// Returns the value.
    fn or_default_if_bug(self) -> T;
}

impl<T: Default> OrDefaultIfBug<T> for Option<T> {
    #[inline]
    #[track_caller]
    fn or_default_if_bug(self) -> T {
        debug_assert!(self.is_some(), "an invariant is broken");
        self.unwrap_or_default()
    }
}

impl<T: Default, E> OrDefaultIfBug<T> for Result<T, E> {
    #[inline]
    #[track_caller]
    fn or_default_if_bug(self) -> T {
        self.ok().or_default_if_bug()
    }
}
