//! Operations that not every scheduler supports.

use daskwire_messages::Release;
use daskwire_rpc::RequestError;

/// An operation that a client does not support with all releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    /// The name of the operation, for errors.
    pub(super) what: &'static str,
    /// The first release with which the client supports the operation.
    pub(super) since: Release,
}

impl Operation {
    pub(super) const CALLS: Self = Self::of("functions outside of tasks", 2022, 1, 0);
    pub(super) const CHANGES: Self = Self::of("changes of the cluster", 2022, 1, 0);
    pub(super) const BROADCASTS: Self = Self::of("requests to workers", 2022, 1, 0);
    pub(super) const DATASETS: Self = Self::of("datasets", 2022, 1, 0);
    pub(super) const EVENTS: Self = Self::of("events to wait for", 2022, 1, 0);
    pub(super) const QUEUES: Self = Self::of("queues", 2022, 1, 0);
    pub(super) const TOPICS: Self = Self::of("topics", 2022, 1, 0);
    pub(super) const VARIABLES: Self = Self::of("variables", 2022, 1, 0);
    pub(super) const PUBLISHING: Self = Self::of("events of clients", 2022, 6, 1);
    pub(super) const STORIES: Self = Self::of("stories", 2022, 6, 1);
    pub(super) const PLUGINS: Self = Self::of("plugins and files", 2024, 1, 0);
    // Semaphores have their own timeouts from here on, and locks are semaphores.
    pub(super) const LOCKS: Self = Self::of("locks", 2024, 8, 0);
    pub(super) const RESTARTS: Self = Self::of("restarts", 2024, 8, 0);
    pub(super) const SEMAPHORES: Self = Self::of("semaphores", 2024, 8, 0);

    const fn of(what: &'static str, major: u16, minor: u16, micro: u16) -> Self {
        Self {
            what,
            since: Release::new(major, minor, micro),
        }
    }

    /// Returns an error if the operation is not supported by a scheduler of this
    /// release; `None` if the scheduler does not run Dask, which then supports what the newest
    /// release does, or replies with an error.
    pub(super) fn check(self, release: Option<Release>) -> Result<(), RequestError> {
        if let Some(release) = release.filter(|release| *release < self.since) {
            return Err(RequestError::Unsupported {
                what: self.what,
                release,
                since: self.since,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_refused_before_their_releases() {
        let refused = |operation: Operation, release: Option<&str>| {
            let release = release.map(|release| release.parse().expect("a release"));
            operation.check(release).is_err()
        };
        for (operation, before, first) in [
            (Operation::DATASETS, "2021.10.0", "2022.1.0"),
            (Operation::STORIES, "2022.6.0", "2022.6.1"),
            (Operation::PLUGINS, "2023.12.1", "2024.1.0"),
            (Operation::LOCKS, "2024.7.1", "2024.8.0"),
            (Operation::RESTARTS, "2024.7.1", "2024.8.0"),
        ] {
            assert!(refused(operation, Some(before)), "{operation:?}");
            assert!(!refused(operation, Some(first)), "{operation:?}");
            assert!(!refused(operation, None));
        }
    }
}
