//! Data at rest: the one place that owns the results and pieces of data that a
//! worker holds.
//!
//! Everything else sees a map of keys. Inside, a datum is serialized,
//! deserialized, or both:
//!
//! * what arrives over the network stays as it was sent, and goes out again as
//!   it was sent: nobody looks at a byte of it;
//! * it is deserialized when the first task needs its value, once, however many
//!   tasks start at that moment: the others wait for the same value;
//! * the result of a task stays a value until somebody asks for its bytes.
//!
//! A datum that a task or a transfer is using lives on until they are done,
//! even if it is removed from the store in the meantime.

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::Key;
use crate::value::{Serialized, Value, ValueError};

/// What a store has done with its data so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounters {
    /// Values that were made of bytes.
    pub deserialized: Tally,
    /// Bytes that were made of values.
    pub serialized: Tally,
    /// Bytes that deserializing had to copy, because they were compressed or
    /// came in pieces.
    pub copied_len: u64,
}

/// How often something was done, to how much, and in what time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// Bytes, as they are serialized.
    pub len: u64,
    /// Time spent.
    pub time: Duration,
}

#[derive(Debug, Default)]
struct Meter {
    count: AtomicU64,
    len: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Meter {
    fn add(&self, len: u64, since: Instant) {
        let time = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.len.fetch_add(len, Ordering::Relaxed);
        self.nanoseconds.fetch_add(time, Ordering::Relaxed);
    }

    fn read(&self) -> Tally {
        Tally {
            count: self.count.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
        }
    }
}

#[derive(Debug, Default)]
struct Meters {
    deserialized: Meter,
    serialized: Meter,
    copied_len: AtomicU64,
}

/// The data that a worker holds.
#[derive(Debug, Default)]
pub(crate) struct Store {
    held: Mutex<Held>,
    meters: Arc<Meters>,
}

#[derive(Debug, Default)]
struct Held {
    data: HashMap<Key, Datum>,
    nbytes: u64,
}

/// One piece of data. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Datum(Arc<Forms>);

/// The forms that a datum has; at least one is there. A third, a file, has its
/// place here: what asks for the other two would read it.
#[derive(Debug)]
struct Forms {
    serialized: OnceLock<Result<Serialized, ValueError>>,
    value: OnceLock<Result<Value, ValueError>>,
    /// Bytes that it counts for: exact if it came serialized.
    nbytes: u64,
    meters: Arc<Meters>,
}

/// The value of a datum.
#[derive(Clone, Debug)]
pub(crate) struct Opened(Datum);

impl Deref for Opened {
    type Target = Value;

    fn deref(&self) -> &Value {
        match self.0.0.value.get() {
            Some(Ok(value)) => value,
            // Only what could be opened becomes this.
            _ => &Value::None,
        }
    }
}

impl Store {
    /// A datum of what was received, which is not opened. It is in no store yet.
    pub(crate) fn received(&self, serialized: Serialized) -> Datum {
        self.datum(
            serialized.len(),
            OnceLock::from(Ok(serialized)),
            OnceLock::new(),
        )
    }

    /// A datum of what a task made. It is in no store yet.
    pub(crate) fn made(&self, value: Value) -> Datum {
        match value {
            Value::Serialized(serialized) => self.received(serialized),
            value => self.datum(value.nbytes(), OnceLock::new(), OnceLock::from(Ok(value))),
        }
    }

    fn datum(
        &self,
        nbytes: u64,
        serialized: OnceLock<Result<Serialized, ValueError>>,
        value: OnceLock<Result<Value, ValueError>>,
    ) -> Datum {
        Datum(Arc::new(Forms {
            serialized,
            value,
            nbytes,
            meters: Arc::clone(&self.meters),
        }))
    }

    /// Takes a datum in. If the key has one already, that one stays: two that
    /// have the same key are the same.
    pub(crate) fn insert(&self, key: &Key, datum: Datum) {
        let mut held = self.lock();
        if !held.data.contains_key(key) {
            held.nbytes = held.nbytes.saturating_add(datum.nbytes());
            held.data.insert(key.clone(), datum);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Datum> {
        self.lock().data.get(key).cloned()
    }

    /// The datum is returned so that the caller can drop it where that may take
    /// time.
    pub(crate) fn remove(&self, key: &Key) -> Option<Datum> {
        let mut held = self.lock();
        let datum = held.data.remove(key)?;
        held.nbytes = held.nbytes.saturating_sub(datum.nbytes());
        Some(datum)
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.lock().data.keys().cloned().collect()
    }

    /// How many bytes all data counts for.
    pub(crate) fn nbytes(&self) -> u64 {
        self.lock().nbytes
    }

    pub(crate) fn counters(&self) -> StoreCounters {
        StoreCounters {
            deserialized: self.meters.deserialized.read(),
            serialized: self.meters.serialized.read(),
            copied_len: self.meters.copied_len.load(Ordering::Relaxed),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Whoever panicked did not leave it half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Datum {
    /// Bytes that it counts for.
    pub(crate) fn nbytes(&self) -> u64 {
        self.0.nbytes
    }

    /// Its value, made now if nobody has needed it before. What is known to
    /// Python only is its own value, unopened.
    ///
    /// Blocks while another thread makes the same value.
    pub(crate) fn open(&self) -> Result<Opened, ValueError> {
        let Forms {
            serialized, meters, ..
        } = &*self.0;
        let value = self.0.value.get_or_init(|| match serialized.get() {
            Some(Ok(serialized)) => {
                let start = Instant::now();
                let mut copied_len = 0;
                let value = match serialized.open_counting(&mut copied_len) {
                    Err(ValueError::Unknown { .. }) => Ok(Value::Serialized(serialized.clone())),
                    value => value,
                };
                meters.deserialized.add(serialized.len(), start);
                meters.copied_len.fetch_add(copied_len, Ordering::Relaxed);
                value
            }
            Some(Err(error)) => Err(error.clone()),
            None => Ok(Value::None),
        });
        match value {
            Ok(_) => Ok(Opened(self.clone())),
            Err(error) => Err(error.clone()),
        }
    }

    /// Its bytes, made now if nobody has asked for them before.
    ///
    /// Blocks while another thread makes the same.
    pub(crate) fn serialize(&self) -> Result<Serialized, ValueError> {
        let Forms { value, meters, .. } = &*self.0;
        let serialized = self.0.serialized.get_or_init(|| match value.get() {
            Some(Ok(value)) => {
                let start = Instant::now();
                let serialized = Serialized::of(value)?;
                meters.serialized.add(serialized.len(), start);
                Ok(serialized)
            }
            Some(Err(error)) => Err(error.clone()),
            None => Ok(Serialized::default()),
        });
        serialized.clone()
    }

    /// Its value, if it is there without any work.
    pub(crate) fn value(&self) -> Option<&Value> {
        self.0.value.get()?.as_ref().ok()
    }

    /// Its bytes, if they are there without any work.
    pub(crate) fn serialized(&self) -> Option<&Serialized> {
        self.0.serialized.get()?.as_ref().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use bytes::Bytes;

    use super::*;

    fn list() -> Value {
        Value::list((0..1000).map(|n| Value::list([n, n + 1])))
    }

    #[test]
    fn a_thousand_tasks_at_once_deserialize_a_datum_once() {
        const THREADS: usize = 1000;
        let store = Store::default();
        let sent = Serialized::of(&list()).expect("plain");
        let datum = store.received(sent.clone());
        store.insert(&"x".into(), datum);
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let task = thread::Builder::new().stack_size(256 << 10);
                let run = || {
                    barrier.wait();
                    let datum = store.get(&"x".into()).expect("it is there");
                    let opened = datum.open().expect("a list");
                    assert!(matches!(*opened, Value::List(_)));
                };
                task.spawn_scoped(scope, run).expect("a thread");
            }
        });
        let counters = store.counters();
        assert_eq!(counters.deserialized.count, 1);
        assert_eq!(counters.deserialized.len, sent.len());
        assert_eq!(counters.serialized.count, 0);
    }

    #[test]
    fn what_arrived_is_sent_on_as_it_was_without_being_touched() {
        let store = Store::default();
        let sent = Serialized::of(&list()).expect("plain");
        let datum = store.received(sent.clone());
        assert_eq!(datum.nbytes(), sent.len());
        store.insert(&"x".into(), datum);
        let again = store.get(&"x".into()).expect("it is there");
        let again = again.serialize().expect("it is serialized");
        for (frame, was) in again.frames().iter().zip(sent.frames()) {
            assert_eq!(frame.as_ptr(), was.as_ptr(), "the same memory");
        }
        assert_eq!(store.counters(), StoreCounters::default());
        // Opening it does not make sending it any work.
        store.get(&"x".into()).expect("it").open().expect("a list");
        store.get(&"x".into()).expect("it").serialize().expect("it");
        let counters = store.counters();
        assert_eq!(
            (counters.deserialized.count, counters.serialized.count),
            (1, 0)
        );
        assert_eq!(counters.copied_len, 0);
    }

    #[test]
    fn results_are_serialized_when_somebody_asks_and_once() {
        let store = Store::default();
        let datum = store.made(list());
        assert_eq!(*datum.open().expect("a list"), list());
        assert_eq!(store.counters(), StoreCounters::default());
        let first = datum.serialize().expect("plain");
        let second = datum.serialize().expect("plain");
        assert_eq!(first.frames()[0].as_ptr(), second.frames()[0].as_ptr());
        let counters = store.counters();
        assert_eq!(
            (counters.deserialized.count, counters.serialized.count),
            (0, 1)
        );
        assert_eq!(counters.serialized.len, first.len());
    }

    #[test]
    fn what_only_python_knows_stays_what_it_is() {
        // pickle.dumps(collections.OrderedDict())
        let pickle = b"\x80\x04\x8c\x0bcollections\x8c\x0bOrderedDict\x93)R.";
        let sent = Serialized::of_written_pickle(&Bytes::from_static(pickle));
        let store = Store::default();
        let datum = store.received(sent.clone());
        assert_eq!(*datum.open().expect("unopened"), Value::Serialized(sent));
    }

    #[test]
    fn damaged_data_is_an_error_for_whoever_needs_it_and_can_be_passed_on() {
        let sent = Serialized::of_written_pickle(&Bytes::from_static(b"\x80\x04]"));
        let store = Store::default();
        let datum = store.received(sent.clone());
        assert!(matches!(datum.open(), Err(ValueError::Pickle(_))));
        assert_eq!(datum.serialize(), Ok(sent));
    }

    #[test]
    fn sizes_follow_what_is_there() {
        let store = Store::default();
        let sent = Serialized::of(&Value::from(vec![0_u8; 1000])).expect("bytes");
        store.insert(&"x".into(), store.received(sent.clone()));
        store.insert(&"x".into(), store.received(sent));
        assert_eq!((store.nbytes(), store.keys().len()), (1000, 1));
        let kept = store.remove(&"x".into()).expect("it was there");
        assert_eq!((store.nbytes(), store.keys().len()), (0, 0));
        assert_eq!(kept.nbytes(), 1000);
        assert!(store.remove(&"x".into()).is_none());
    }
}
