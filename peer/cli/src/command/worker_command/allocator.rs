//! Settings of glibc's allocator.

use super::settings::Settings;

/// The variable from which glibc's allocator reads its settings.
pub(super) const TUNABLES: &str = "GLIBC_TUNABLES";

/// The value that [`allocator_settings`] adds to [`TUNABLES`].
pub(super) const OWN_TUNABLES: &str = "glibc.malloc.mmap_threshold=262144:glibc.malloc.hugetlb=1";

/// Settings for glibc's allocator, which reads them from the environment when a process
/// starts. Large buffers are returned to the system when freed, so that the memory limit
/// is effective, and are allocated in huge pages, which offsets the cost of allocating
/// them more often.
pub(super) fn allocator_settings(settings: &Settings) -> Option<(String, String)> {
    const OWN: &str = "glibc.malloc.mmap_threshold";
    let mut tunables = std::env::var(TUNABLES).unwrap_or_default();
    let has_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
    if !has_glibc || settings.memory_limit.is_none() || tunables.contains(OWN) {
        return None;
    }
    if !tunables.is_empty() {
        tunables.push(':');
    }
    tunables.push_str(OWN_TUNABLES);
    Some((TUNABLES.to_owned(), tunables))
}

/// Restarts this process with [`allocator_settings`] in its environment.
pub(super) fn tune_allocator(settings: &Settings) {
    #[cfg(unix)]
    if let Some((name, tunables)) = allocator_settings(settings)
        && let Ok(own) = std::env::current_exe()
    {
        use std::os::unix::process::CommandExt as _;
        let mut command = std::process::Command::new(own);
        let mut arguments = std::env::args_os();
        if let Some(name) = arguments.next() {
            // Python finds its virtual environment by the name.
            command.arg0(name);
        }
        // `exec` returns only if it fails; this process then continues unchanged.
        let _ = command.args(arguments).env(name, tunables).exec();
    }
    #[cfg(not(unix))]
    let _ = settings;
}
