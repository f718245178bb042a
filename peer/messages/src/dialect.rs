//! Differences between the protocols of the releases of Dask.
//!
//! The roles read the release of a scheduler from its reply to `versions`, and write
//! their messages in the [`Dialect`] of that release. `CHANGES` is the table, with
//! a row for each release that changed something.

use daskwire::frame::ReadHint;
use daskwire_numpy::NumpyModules;
use daskwire_pickle::Protocol;

use crate::pickling::Pickling;
use crate::protocol::{FromWorker, Unknown};
use crate::release::is_of_rust;
use crate::{Key, Release, Value};

/// The form in which a client submits tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphForm {
    /// `tasks` and `dependencies`: each task by itself, as a tuple.
    Tasks,
    /// `graph_header` and `graph_frames`: the pickle of a `HighLevelGraph` of tasks
    /// in this form.
    Layers(TaskForm),
    /// `expr_ser`: the pickle of an expression.
    Expression,
}

/// The form of the tasks of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskForm {
    /// A tuple of a function and arguments, where a result is a `WrappedKey`.
    WrappedKeys,
    /// A tuple of a function and arguments, where a result is a `TaskRef`.
    References,
    /// Objects of `dask._task_spec`.
    Nodes,
}

/// The way in which a client cancels tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// Releases the tasks.
    Release,
    /// Sends `cancel-keys` without a reason.
    Keys,
    /// Sends `cancel-keys` with a reason.
    WithReason,
}

/// The metric of the data that a worker spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillMetric {
    /// `spilled_nbytes`: the size in memory.
    Number,
    /// `spilled_nbytes`: the sizes in memory and on disk.
    Nbytes,
    /// `spilled_bytes`: the sizes in memory and on disk.
    Bytes,
}

/// The properties of the protocol of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The form in which a client submits tasks.
    pub graph_form: GraphForm,
    /// Whether `update-graph` has `span_metadata`.
    pub has_span_metadata: bool,
    /// The way in which a client cancels tasks.
    pub cancellation: Cancellation,
    /// Whether keys may be other than strings.
    pub(crate) has_tuple_keys: bool,
    /// Whether a worker reports data that a client sends it, unless the message
    /// disables the report.
    pub reports_updates: bool,
    /// Whether `identity` takes a number of workers.
    pub limits_identity: bool,
    /// Whether `register-worker` has `server_id`.
    pub has_server_id: bool,
    /// The metric of the data that a worker spilled.
    pub spill_metric: SpillMetric,
    /// Whether the heartbeats of workers have `extensions`.
    pub has_heartbeat_extensions: bool,
    /// Whether all messages of workers have `stimulus_id`, except `reschedule`.
    pub has_worker_stimulus: bool,
    /// Whether `reschedule` has `stimulus_id`.
    pub(crate) has_reschedule_stimulus: bool,
    /// Whether a worker asks for holders by `request-refresh-who-has`; before, by the
    /// request `who_has`.
    pub refreshes_holders: bool,
    /// Whether the headers of payloads have the keys of their class in `sub-header`.
    pub nests_headers: bool,
    /// Whether `ncores_running` lists the workers that take data; before, `ncores` does.
    pub has_running_workers: bool,
    /// Whether the scheduler answers `report-key` for keys that it does not know.
    pub answers_unknown_keys: bool,
    /// What a process is asked to read at once of a message.
    pub read_hint: ReadHint,
    /// The settings for writing pickles.
    pub pickling: Pickling,
}

/// The first release with a change, and the change.
type Change = (Release, fn(&mut Dialect));

/// The changes since [`Dialect::OLDEST`], by the first release that has them.
// Not every release was examined: a change may be older than the release given here,
// which is the first examined one with the change.
const CHANGES: [Change; 21] = [
    // ROLES CLIENT-12
    (Release::new(2021, 2, 0), |it| {
        it.answers_unknown_keys = false;
    }),
    (Release::new(2021, 5, 0), |it| {
        it.answers_unknown_keys = true
    }),
    // PROTOCOL HEADER-4
    (Release::new(2021, 11, 0), |it| it.nests_headers = true),
    // ROLES CLIENT-11
    (Release::new(2022, 1, 0), |it| it.has_running_workers = true),
    // ROLES WORKER-6
    (Release::new(2022, 2, 1), |it| {
        it.spill_metric = SpillMetric::Nbytes;
    }),
    // ROLES WORKER-1
    (Release::new(2022, 4, 0), |it| {
        it.has_heartbeat_extensions = true;
    }),
    (Release::new(2022, 5, 0), |it| it.has_worker_stimulus = true),
    (Release::new(2022, 6, 0), |it| it.refreshes_holders = true),
    (Release::new(2022, 6, 1), |it| it.has_server_id = true),
    (Release::new(2022, 7, 0), |it| {
        it.has_reschedule_stimulus = true;
    }),
    // ROLES WORKER-6
    (Release::new(2022, 10, 0), |it| {
        it.spill_metric = SpillMetric::Bytes;
    }),
    // ROLES CLIENT-7
    (Release::new(2023, 2, 1), |it| it.reports_updates = false),
    // ROLES CLIENT-6
    (Release::new(2023, 3, 1), |it| {
        it.cancellation = Cancellation::Keys;
    }),
    // ROLES CLIENT-3
    (Release::new(2023, 4, 0), |it| {
        it.graph_form = GraphForm::Layers(TaskForm::WrappedKeys);
    }),
    // ROLES CLIENT-5
    (Release::new(2023, 9, 0), |it| it.has_tuple_keys = true),
    // PROTOCOL FRAME-9
    (Release::new(2023, 11, 0), |it| {
        it.read_hint = ReadHint::Apart
    }),
    (Release::new(2024, 5, 2), |it| it.has_span_metadata = true),
    (Release::new(2024, 11, 0), |it| {
        it.graph_form = GraphForm::Layers(TaskForm::References);
    }),
    (Release::new(2024, 12, 0), |it| {
        it.graph_form = GraphForm::Layers(TaskForm::Nodes);
    }),
    (Release::new(2025, 3, 0), |it| {
        it.cancellation = Cancellation::WithReason;
    }),
    // ROLES CLIENT-2
    (Release::new(2025, 4, 0), |it| {
        it.graph_form = GraphForm::Expression;
        it.limits_identity = true;
    }),
];

impl Dialect {
    /// The dialect of 2.30.1.
    const OLDEST: Self = Self {
        graph_form: GraphForm::Tasks,
        has_span_metadata: false,
        cancellation: Cancellation::Release,
        has_tuple_keys: false,
        reports_updates: true,
        limits_identity: false,
        has_server_id: false,
        spill_metric: SpillMetric::Number,
        has_heartbeat_extensions: false,
        has_worker_stimulus: false,
        has_reschedule_stimulus: false,
        refreshes_holders: false,
        nests_headers: false,
        has_running_workers: false,
        answers_unknown_keys: true,
        read_hint: ReadHint::Whole,
        pickling: Pickling::NEWEST,
    };

    /// The dialect of the newest release.
    pub const NEWEST: Self = Self {
        graph_form: GraphForm::Expression,
        has_span_metadata: true,
        cancellation: Cancellation::WithReason,
        has_tuple_keys: true,
        reports_updates: false,
        limits_identity: true,
        has_server_id: true,
        spill_metric: SpillMetric::Bytes,
        has_heartbeat_extensions: true,
        has_worker_stimulus: true,
        has_reschedule_stimulus: true,
        refreshes_holders: true,
        nests_headers: true,
        has_running_workers: true,
        answers_unknown_keys: true,
        read_hint: ReadHint::Apart,
        pickling: Pickling::NEWEST,
    };

    /// The dialect of a scheduler from its reply to `versions`.
    pub fn of_versions(versions: &Value) -> Self {
        Self {
            pickling: pickling_of(versions),
            ..Self::of(Release::of_versions(versions))
        }
    }

    /// The dialect of a release; the newest for a scheduler that does not run Dask.
    pub fn of(release: Option<Release>) -> Self {
        const LAST: Release = CHANGES[CHANGES.len() - 1].0;
        let Some(release) = release.filter(|release| *release < LAST) else {
            return Self::NEWEST;
        };
        let mut dialect = Self::OLDEST;
        for (first, change) in CHANGES {
            if release >= first {
                change(&mut dialect);
            }
        }
        dialect
    }

    /// The key in the form of the release: if its keys can only be strings, other
    /// keys are formatted as in Python.
    pub fn key(&self, key: &Key) -> Key {
        if self.has_tuple_keys || key.as_str().is_some() {
            key.clone()
        } else {
            Key::from(key.to_string())
        }
    }
}

impl Dialect {
    /// The message without the fields that the release does not accept.
    // ROLES WORKER-1
    pub fn worker_message(&self, message: FromWorker) -> FromWorker {
        let has_stimulus = match message {
            FromWorker::Reschedule(_) => self.has_reschedule_stimulus,
            _ => self.has_worker_stimulus,
        };
        if has_stimulus {
            return message;
        }
        let field = match &message {
            FromWorker::Reschedule(message) => ("key", message.key.to_value()),
            FromWorker::ReleaseWorkerData(message) => ("key", message.key.to_value()),
            FromWorker::WorkerStatusChange(message) => {
                ("status", Value::from(message.status.to_string()))
            }
            _ => return message,
        };
        FromWorker::Unknown(Unknown {
            op: message.op().to_owned(),
            extra: vec![(Value::from(field.0), field.1)],
        })
    }
}

impl Release {
    /// The release of a scheduler from its reply to `versions`; `None` if it does
    /// not run Dask.
    pub fn of_versions(versions: &Value) -> Option<Self> {
        let packages = versions.get("packages")?;
        // Its other packages are those of its workers.
        if is_of_rust(versions) {
            return None;
        }
        let version = match packages.get("distributed") {
            Some(version) => version.as_str(),
            // Lists of names and versions, before 2.0.
            None => match packages.get("required") {
                Some(Value::List(entries)) => entries.iter().find_map(|entry| match entry {
                    Value::List(pair) | Value::Tuple(pair) => match &pair[..] {
                        [name, version] if name.as_str() == Some("distributed") => version.as_str(),
                        _ => None,
                    },
                    _ => None,
                }),
                _ => None,
            },
        };
        version?.parse().ok()
    }
}

/// The pickling for a scheduler, from its reply to `versions`.
fn pickling_of(versions: &Value) -> Pickling {
    let numpy = versions.get("packages");
    let numpy = numpy.and_then(|packages| packages.get("numpy")?.as_str());
    let python = versions.get("host");
    let python = python.and_then(|host| host.get("python")?.as_str()?.parse::<Release>().ok());
    Pickling {
        numpy: match numpy {
            Some(version) if version.starts_with("1.") => NumpyModules::Core,
            _ => NumpyModules::Underscore,
        },
        protocol: match python {
            Some(python) if python < FIRST_WITH_PROTOCOL_5 => Protocol::V4,
            _ => Protocol::V5,
        },
    }
}

/// The first Python that reads pickles of protocol 5. A version of Python is read as
/// that of Dask: three numbers, and anything after them.
const FIRST_WITH_PROTOCOL_5: Release = Release::new(3, 8, 0);

#[cfg(test)]
mod tests {
    use super::*;

    // ROLES WORKER-1
    #[test]
    fn old_schedulers_get_no_fields_that_they_refuse() {
        use crate::protocol::{ReleaseWorkerData, Reschedule};
        let says = |release: &str, message: FromWorker| {
            let dialect = Dialect::of(release.parse().ok());
            !matches!(dialect.worker_message(message), FromWorker::Unknown(_))
        };
        let data = || ReleaseWorkerData::default().into();
        assert!(!says("2022.4.2", data()) && says("2022.5.0", data()));
        let task = || Reschedule::default().into();
        assert!(!says("2022.6.1", task()) && says("2022.7.0", task()));
        let of = |release: &str| Dialect::of(release.parse().ok());
        assert!(!of("2022.3.0").has_heartbeat_extensions);
        assert!(of("2022.4.0").has_heartbeat_extensions && !of("2022.4.0").has_worker_stimulus);
        assert!(of("2022.6.0").refreshes_holders && !of("2022.6.0").has_server_id);
    }

    #[test]
    fn all_changes_make_the_newest_dialect() {
        let mut dialect = Dialect::OLDEST;
        for (_, change) in CHANGES {
            change(&mut dialect);
        }
        assert_eq!(dialect, Dialect::NEWEST);
        assert!(CHANGES.is_sorted_by_key(|(first, _)| *first));
        let (last, _) = CHANGES[CHANGES.len() - 1];
        assert_eq!(Dialect::of(Some(last)), Dialect::NEWEST);
        assert_eq!(Dialect::of(None), Dialect::NEWEST);
    }

    #[test]
    fn a_change_holds_from_its_first_release_on() {
        let of = |release: &str| Dialect::of(release.parse().ok());
        assert_eq!(of("2.30.1"), Dialect::OLDEST);
        for (before, first) in [("2023.3.2.1", "2023.4.0"), ("2025.3.1", "2025.4.0")] {
            assert_ne!(of(before).graph_form, of(first).graph_form);
        }
        let key = Key::list([Key::from("x"), Key::from(1)]);
        assert_eq!(of("2023.8.1").key(&key), Key::from("('x', 1)"));
        assert_eq!(of("2023.9.0").key(&key), key);
    }

    // ROLES CLIENT-10, CLIENT-13
    #[test]
    fn pickles_suit_python_and_numpy_of_the_cluster() {
        let of = |python: &str, numpy: &str| {
            let packages = Value::dict([("distributed", "2022.2.0"), ("numpy", numpy)]);
            let versions = Value::dict([
                ("host", Value::dict([("python", python)])),
                ("packages", packages),
            ]);
            pickling_of(&versions)
        };
        let old = of("3.7.16.final.0", "1.21.6");
        assert_eq!(
            (old.protocol, old.numpy),
            (Protocol::V4, NumpyModules::Core)
        );
        assert_eq!(of("3.8.0.final.0", "1.21.6").protocol, Protocol::V5);
        assert_eq!(of("3.13.0.final.0", "2.1.0"), Pickling::default());
        // Schedulers that do not run Python have no version.
        let none = pickling_of(&Value::dict([("packages", Value::None)]));
        assert_eq!(none, Pickling::default());
    }
}
