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
    /// Whether the operation needs a scheduler that runs Dask: others do not answer
    /// it.
    pub(super) needs_dask: bool,
}

impl Operation {
    pub(super) const CALLS: Self = Self::of_all("functions outside of tasks", 2022, 1, 0);
    pub(super) const CHANGES: Self = Self::of_all("changes of the cluster", 2022, 1, 0);
    pub(super) const BROADCASTS: Self = Self::of_all("requests to workers", 2022, 1, 0);
    pub(super) const DATASETS: Self = Self::of_dask("datasets", 2022, 1, 0);
    pub(super) const EVENTS: Self = Self::of_dask("events to wait for", 2022, 1, 0);
    pub(super) const QUEUES: Self = Self::of_dask("queues", 2022, 1, 0);
    pub(super) const TOPICS: Self = Self::of_all("topics", 2022, 1, 0);
    pub(super) const VARIABLES: Self = Self::of_dask("variables", 2022, 1, 0);
    pub(super) const PUBLISHING: Self = Self::of_all("events of clients", 2022, 6, 1);
    pub(super) const STORIES: Self = Self::of_all("stories", 2022, 6, 1);
    pub(super) const PLUGINS: Self = Self::of_all("plugins and files", 2024, 1, 0);
    // Semaphores have their own timeouts from here on, and locks are semaphores.
    pub(super) const LOCKS: Self = Self::of_dask("locks", 2024, 8, 0);
    pub(super) const RESTARTS: Self = Self::of_all("restarts", 2024, 8, 0);
    pub(super) const SEMAPHORES: Self = Self::of_dask("semaphores", 2024, 8, 0);

    /// An operation of all schedulers, whether they run Dask or not.
    const fn of_all(what: &'static str, major: u16, minor: u16, micro: u16) -> Self {
        Self {
            what,
            since: Release::new(major, minor, micro),
            needs_dask: false,
        }
    }

    /// An operation of schedulers that run Dask.
    const fn of_dask(what: &'static str, major: u16, minor: u16, micro: u16) -> Self {
        Self {
            needs_dask: true,
            ..Self::of_all(what, major, minor, micro)
        }
    }

    /// Returns an error if the operation is not supported by a scheduler of this
    /// release; `None` if the scheduler does not run Dask.
    pub(super) fn check(self, release: Option<Release>) -> Result<(), RequestError> {
        let is_refused = match release {
            Some(found) => found < self.since,
            None => self.needs_dask,
        };
        if is_refused {
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
            assert_eq!(refused(operation, None), operation.needs_dask);
        }
    }
}
