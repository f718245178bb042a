//! The limit of file descriptors of the process.

/// The maximum to which the limit is raised. Some systems allow a thousand times as many, and
/// programs that close every possible descriptor then take minutes.
#[cfg(unix)]
const MAX_COUNT: u64 = 1 << 20;

/// The number of file descriptors, such as sockets and open files, that this process may have
/// at once; `usize::MAX` if there is no such limit.
///
/// Half of it is the limit for closed connections whose peers still read, see
/// [`lingering`](crate::lingering), and a quarter of it for
/// [`CommOptions::max_handshakes`](crate::CommOptions::max_handshakes), as far as these do not
/// have a lower limit.
pub fn descriptor_limit() -> usize {
    #[cfg(unix)]
    if let Ok((limit, _)) = rlimit::Resource::NOFILE.get() {
        return usize::try_from(limit).unwrap_or(usize::MAX);
    }
    usize::MAX
}

/// Raises the limit of file descriptors of this process as far as the system allows without
/// privileges, to 1,048,576 at most, and returns the limit in force.
///
/// Systems start programs with a limit of 1,024 or even 256, since programs that call `select`
/// cannot use more. Call this at the start of a program that serves many peers and does not call
/// `select`, before its first comm. Processes that the program starts have the raised limit too.
/// The command `daskwire` calls it.
pub fn raise_descriptor_limit() -> usize {
    // If the system refuses, the limit stays as it was.
    #[cfg(unix)]
    let _ = rlimit::increase_nofile_limit(MAX_COUNT);
    descriptor_limit()
}

/// The part of the limit of descriptors that is given by `divisor`, and at most `max`.
pub(crate) fn share(divisor: usize, max: usize) -> usize {
    (descriptor_limit() / divisor).clamp(1, max)
}
