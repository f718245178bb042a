//! Settings of the allocator of the C library.

/// Has all threads allocate from one heap, and large blocks from the system, before there are
/// other threads.
///
/// With glibc, each thread else has a heap of its own, which grows by a page at a time and keeps
/// what other threads free. A scheduler has its messages read by one thread, handled by another and
/// written by a third, and keeps small objects between large buffers, so that it takes a quarter less
/// memory this way. What the user has set precedes.
pub(crate) fn use_one_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// The length that glibc begins with, and increases unless it is set, in bytes.
        const LARGE: libc::c_int = 128 << 10;
        let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
        let is_set = |variable: &str, tunable: &str| {
            std::env::var_os(variable).is_some() || tunables.contains(tunable)
        };
        if !is_set("MALLOC_ARENA_MAX", "glibc.malloc.arena_max=")
            && !is_set("MALLOC_ARENA_TEST", "glibc.malloc.arena_test=")
        {
            set(libc::M_ARENA_MAX, 1);
        }
        if !is_set("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold=") {
            set(libc::M_MMAP_THRESHOLD, LARGE);
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "no crate has mallopt")]
fn set(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: the parameters are numbers, and glibc locks its state. An unknown parameter or value
    // has no effect.
    unsafe { libc::mallopt(parameter, value) };
}
