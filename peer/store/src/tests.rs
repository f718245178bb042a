use std::fs;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use daskwire_testing::Random;

use super::*;
use crate::file::{self, ReadError};

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
                let datum = store.get(&"x".into()).expect("exists");
                let opened = datum.open(&Steps::default()).expect("a list");
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
fn forwards_received_data_without_copying() {
    let store = Store::default();
    let sent = Serialized::of(&list()).expect("plain");
    let datum = store.received(sent.clone());
    assert_eq!(datum.nbytes(), sent.len());
    store.insert(&"x".into(), datum);
    let again = store.get(&"x".into()).expect("exists");
    let again = again.serialize(&Steps::default()).expect("serialized");
    for (frame, was) in again.frames().iter().zip(sent.frames()) {
        assert_eq!(frame.as_ptr(), was.as_ptr(), "the same memory");
    }
    assert_eq!(store.counters(), StoreCounters::default());
    // Sending a datum that was opened still needs no serialization.
    store
        .get(&"x".into())
        .expect("it")
        .open(&Steps::default())
        .expect("a list");
    store
        .get(&"x".into())
        .expect("it")
        .serialize(&Steps::default())
        .expect("it");
    let counters = store.counters();
    assert_eq!(
        (counters.deserialized.count, counters.serialized.count),
        (1, 0)
    );
    assert_eq!(counters.copied_len, 0);
}

#[test]
fn serializes_results_once_on_request() {
    let store = Store::default();
    let datum = store.made(list());
    assert_eq!(*datum.open(&Steps::default()).expect("a list"), list());
    assert_eq!(store.counters(), StoreCounters::default());
    let first = datum.serialize(&Steps::default()).expect("plain");
    let second = datum.serialize(&Steps::default()).expect("plain");
    assert_eq!(first.frames()[0].as_ptr(), second.frames()[0].as_ptr());
    let counters = store.counters();
    assert_eq!(
        (counters.deserialized.count, counters.serialized.count),
        (0, 1)
    );
    assert_eq!(counters.serialized.len, first.len());
}

#[test]
fn keeps_python_objects_unopened() {
    // pickle.dumps(collections.deque())
    let pickle = b"\x80\x04\x8c\x0bcollections\x8c\x05deque\x93)R.";
    let sent = Serialized::of_written_pickle(Bytes::from_static(pickle));
    let store = Store::default();
    let datum = store.received(sent.clone());
    assert_eq!(
        *datum.open(&Steps::default()).expect("unopened"),
        Value::Serialized(sent)
    );
}

#[test]
fn damaged_data_fails_to_open_but_can_be_forwarded() {
    let sent = Serialized::of_written_pickle(Bytes::from_static(b"\x80\x04]"));
    let store = Store::default();
    let datum = store.received(sent.clone());
    assert!(matches!(
        datum.open(&Steps::default()),
        Err(DatumError::Value(
            daskwire_messages::value::ValueError::Pickle(_)
        ))
    ));
    assert_eq!(datum.serialize(&Steps::default()), Ok(sent));
}

#[test]
fn sizes_follow_insertions_and_removals() {
    let store = Store::default();
    let sent = Serialized::of(&Value::bytes(vec![0; 1000])).expect("bytes");
    store.insert(&"x".into(), store.received(sent.clone()));
    store.insert(&"x".into(), store.received(sent));
    assert_eq!((store.nbytes(), store.keys().len()), (1000, 1));
    let kept = store.remove(&"x".into()).expect("was stored");
    assert_eq!((store.nbytes(), store.keys().len()), (0, 0));
    assert_eq!(kept.nbytes(), 1000);
    assert!(store.remove(&"x".into()).is_none());
}

// Spilling

/// A store that spills to `parent` above `target` bytes. Its thread is not started:
/// tests call `evict`.
struct Spilling {
    store: Store,
    parent: PathBuf,
}

impl Spilling {
    fn new(name: &str, target: u64) -> Self {
        let parent = scratch(name);
        let directory = SpillDirectory::new(&parent, "test").expect("writable directory");
        Self {
            store: Store::spilling(
                directory,
                target,
                target.saturating_add(1000),
                Pickling::default(),
            ),
            parent,
        }
    }

    /// Moves data above the target to disk.
    fn evict(&self) -> u64 {
        let (freed, error) = self.store.common.evict();
        assert!(error.is_none(), "{error:?}");
        freed
    }

    /// The paths of the spill files.
    fn files(&self) -> Vec<PathBuf> {
        let directory = self
            .store
            .common
            .directory
            .as_ref()
            .expect("spilling store");
        let Ok(entries) = fs::read_dir(directory.path()) else {
            return Vec::new();
        };
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(|path| !path.ends_with("lock")).collect()
    }

    fn bytes(&self, key: &str, len: usize) -> Datum {
        let sent = Serialized::of(&Value::bytes(vec![7; len])).expect("bytes");
        let datum = self.store.received(sent);
        self.store.insert(&key.into(), datum.clone());
        datum
    }

    /// Returns those of `keys` that are on disk.
    fn on_disk(&self, keys: &[&str]) -> String {
        let is_there = |key: &&&str| {
            let datum = self.store.lock().data.get(&Key::from(**key)).cloned();
            datum.is_some_and(|datum| datum.is_on_disk())
        };
        keys.iter().filter(is_there).copied().collect()
    }
}

impl Drop for Spilling {
    fn drop(&mut self) {
        self.store.close();
        let _ = fs::remove_dir_all(&self.parent);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A payload of random frames, which cannot be opened.
fn any_payload(random: &mut Random) -> Serialized {
    let bodies = [Serialized::default(), Serialized::pickled(b"N.")];
    let body = &bodies[random.below(2)].message()[0];
    let mut message = vec![body.clone()];
    for _ in 0..=random.below(8) {
        let len = match random.below(4) {
            0 => 0,
            1 => random.below(9),
            2 => random.below(5000),
            _ => 32_000 + random.below(100_000),
        };
        let frame: Vec<u8> = (0..len).map(|_| random.below(256) as u8).collect();
        message.push(frame.into());
    }
    Serialized::of_message(message).expect("a payload")
}

#[test]
fn spilling_preserves_every_byte() {
    let spilling = Spilling::new("same", 0);
    let mut random = Random(0x5eed);
    let mut sent = vec![
        Serialized::of(&list()).expect("plain"),
        Serialized::of(&Value::bytes(vec![1; 100_000])).expect("bytes"),
        Serialized::of_written_pickle(Bytes::from_static(b"\x80\x04]")),
    ];
    sent.extend((0..60).map(|_| any_payload(&mut random)));
    for (index, sent) in sent.iter().enumerate() {
        let key = Key::from(i64::try_from(index).expect("few"));
        spilling
            .store
            .insert(&key, spilling.store.received(sent.clone()));
    }
    spilling.evict();
    for (index, sent) in sent.iter().enumerate() {
        let key = Key::from(i64::try_from(index).expect("few"));
        let datum = spilling.store.get(&key).expect("stored");
        assert_eq!(datum.is_on_disk(), !sent.is_empty(), "{index}");
        assert_eq!(datum.nbytes(), sent.len());
        let back = datum.serialize(&Steps::default()).expect("readable file");
        assert_eq!(back.message(), sent.message(), "{index}");
        assert_eq!(back.kind(), sent.kind(), "{index}");
        // Sending does not load the data into memory.
        assert_eq!(datum.is_on_disk(), !sent.is_empty(), "{index}");
    }
    let counters = spilling.store.counters();
    assert_eq!(counters.deserialized.count, 0);
    assert_eq!(counters.serialized.count, 0);
    assert_eq!(counters.copied_len, 0);
    assert!(counters.spilled.count > 40);
    assert_eq!(counters.spilled.len, counters.unspilled.len);
    let holdings = spilling.store.holdings();
    assert_eq!(holdings.memory_len, 0);
    assert_eq!(holdings.spilled_len, spilling.store.nbytes());
    assert_eq!(holdings.disk_len, counters.spilled.len);
}

#[test]
fn a_spill_file_is_a_message_and_its_checksum() {
    let spilling = Spilling::new("layout", 0);
    let sent = Serialized::of(&Value::bytes(vec![7; 3])).expect("bytes");
    spilling
        .store
        .insert(&"x".into(), spilling.store.received(sent.clone()));
    spilling.evict();
    let file = fs::read(&spilling.files()[0]).expect("exists");
    let mut message = Vec::new();
    message.extend((sent.message().len() as u64).to_le_bytes());
    for frame in sent.message() {
        message.extend((frame.len() as u64).to_le_bytes());
    }
    for frame in sent.message() {
        message.extend_from_slice(frame);
    }
    let sum = twox_hash::XxHash3_64::oneshot(&message);
    message.extend(sum.to_le_bytes());
    assert_eq!(file, message);
}

#[test]
fn spills_least_recently_used_first() {
    let spilling = Spilling::new("order", 2500);
    for key in ["a", "b", "c"] {
        spilling.bytes(key, 1000);
    }
    let use_it = |key: &str| {
        let datum = spilling.store.get(&key.into()).expect("stored");
        datum.open(&Steps::default()).expect("bytes");
    };
    use_it("a");
    assert_eq!(spilling.evict(), 1000);
    assert_eq!(spilling.on_disk(&["a", "b", "c"]), "b");
    // Data that is used returns to memory, and the least recently used leaves it.
    use_it("b");
    assert_eq!(spilling.evict(), 1000);
    assert_eq!(spilling.on_disk(&["a", "b", "c"]), "c");
    // The file exists already, and is not written again.
    use_it("c");
    use_it("a");
    spilling.evict();
    assert_eq!(spilling.on_disk(&["a", "b", "c"]), "b");
    let counters = spilling.store.counters();
    assert_eq!((counters.spilled.count, counters.dropped.count), (2, 1));
}

#[test]
fn data_in_use_stays_in_memory() {
    let spilling = Spilling::new("in-use", 100);
    let datum = spilling.bytes("x", 5000);
    let in_use = [datum.in_use(), datum.in_use()];
    assert_eq!(spilling.evict(), 0);
    let [one, other] = in_use;
    drop(one);
    assert_eq!(spilling.evict(), 0);
    drop(other);
    assert_eq!(spilling.evict(), 5000);
    assert_eq!(spilling.store.counters().unspilled.count, 0);
}

#[test]
fn data_needed_soon_stays_in_memory() {
    let spilling = Spilling::new("needed", 100);
    let datum = spilling.bytes("x", 5000);
    spilling.bytes("y", 300);
    let is_needed = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_needed);
    let needed = move || match asked.load(Ordering::Relaxed) {
        true => vec![datum.clone()],
        false => Vec::new(),
    };
    let _ = spilling.store.common.needed.set(Box::new(needed));
    assert_eq!(spilling.evict(), 300);
    assert_eq!(spilling.on_disk(&["x", "y"]), "y");
    is_needed.store(false, Ordering::Relaxed);
    assert_eq!(spilling.evict(), 5000);
    assert_eq!(spilling.on_disk(&["x", "y"]), "xy");
}

#[test]
fn spilled_results_are_serialized_once() {
    let spilling = Spilling::new("result", 0);
    let datum = spilling.store.made(list());
    spilling.store.insert(&"x".into(), datum.clone());
    assert_eq!(spilling.evict(), datum.nbytes());
    let steps = Steps::default();
    let sent = datum.serialize(&steps).expect("readable file");
    assert_eq!(
        sent.message(),
        Serialized::of(&list()).expect("plain").message()
    );
    assert_eq!(*datum.open(&steps).expect("a list"), list());
    assert_eq!(*datum.open(&steps).expect("a list"), list());
    let steps: Vec<Step> = steps.take().into_iter().map(|done| done.step).collect();
    assert_eq!(steps, [Step::DiskRead, Step::DiskRead, Step::Deserialize]);
    let counters = spilling.store.counters();
    assert_eq!(counters.serialized.count, 1);
    assert_eq!(counters.deserialized.count, 1);
}

#[test]
fn a_thousand_tasks_at_once_read_and_deserialize_a_datum_once() {
    const THREADS: usize = 1000;
    let spilling = Spilling::new("thousand", 0);
    let sent = Serialized::of(&list()).expect("plain");
    let datum = spilling.store.received(sent);
    spilling.store.insert(&"x".into(), datum.clone());
    spilling.evict();
    assert!(datum.is_on_disk());
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let task = thread::Builder::new().stack_size(256 << 10);
            let run = || {
                barrier.wait();
                let _in_use = datum.in_use();
                let opened = datum.open(&Steps::default()).expect("a list");
                assert!(matches!(*opened, Value::List(_)));
            };
            task.spawn_scoped(scope, run).expect("a thread");
        }
    });
    let counters = spilling.store.counters();
    assert_eq!(counters.unspilled.count, 1);
    assert_eq!(counters.deserialized.count, 1);
}

#[test]
fn detects_every_damage_to_a_spill_file() {
    let spilling = Spilling::new("damage", 0);
    let sent = Serialized::of(&Value::from("a string")).expect("plain");
    let path = spilling.parent.join("file");
    let file = file::write(&path, &sent).expect("writable directory");
    assert_eq!(file::read(&file, None).expect("intact file"), sent);
    let whole = fs::read(&path).expect("exists");
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            fs::write(&path, &damaged).expect("writable directory");
            let read = file::read(&file, None);
            assert!(
                matches!(read, Err(ReadError::Damaged(_))),
                "byte {at}: {read:?}"
            );
        }
    }
    fs::write(&path, &whole[1..]).expect("writable directory");
    assert!(matches!(
        file::read(&file, None),
        Err(ReadError::Damaged(_))
    ));
    fs::remove_file(&path).expect("exists");
    assert!(matches!(file::read(&file, None), Err(ReadError::Io(_))));
}

#[test]
fn lost_data_is_reported_once_and_fails_to_open() {
    let spilling = Spilling::new("lost", 0);
    let notices = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&notices);
    let notify = move |message: &str| log.lock().expect("unpoisoned").push(message.to_owned());
    let _ = spilling.store.common.notify.set(Box::new(notify));
    let datum = spilling.bytes("x", 1000);
    spilling.evict();
    let path = spilling.files().pop().expect("a file");
    let mut file = fs::read(&path).expect("exists");
    let at = file.len() / 2;
    file[at] ^= 1;
    fs::write(&path, file).expect("writable directory");
    assert!(!datum.is_lost());
    for _ in 0..2 {
        let steps = Steps::default();
        assert!(matches!(datum.open(&steps), Err(DatumError::Lost)));
        assert_eq!(datum.serialize(&steps), Err(DatumError::Lost));
    }
    assert!(datum.is_lost());
    assert_eq!(spilling.store.counters().lost_count, 1);
    let notices = notices.lock().expect("unpoisoned");
    assert_eq!(notices.len(), 1);
    let file = path.display().to_string();
    assert!(notices[0].contains(&file), "{notices:?}");
    assert!(notices[0].ends_with("its checksum differs"), "{notices:?}");
}

#[cfg(unix)]
#[test]
fn data_is_not_lost_while_its_file_cannot_be_opened() {
    let spilling = Spilling::new("busy", 0);
    let datum = spilling.bytes("x", 1000);
    spilling.evict();
    let path = spilling.files().pop().expect("a file");
    let aside = spilling.parent.join("aside");
    fs::rename(&path, &aside).expect("exists");
    // A link to itself cannot be opened, for another reason than that it does not exist.
    std::os::unix::fs::symlink(&path, &path).expect("writable directory");
    let reading = thread::spawn(move || datum.serialize(&Steps::default()).is_ok());
    thread::sleep(Duration::from_millis(200));
    fs::rename(&aside, &path).expect("exists");
    assert!(reading.join().expect("no panic"));
    assert_eq!(spilling.store.counters().lost_count, 0);
}

#[test]
fn files_of_data_in_memory_count_towards_the_limit_of_the_disk() {
    let spilling = Spilling::new("limited", 0);
    spilling.store.limit_disk(2500);
    let (a, _) = (spilling.bytes("a", 1000), spilling.bytes("b", 1000));
    spilling.evict();
    assert_eq!(spilling.on_disk(&["a", "b"]), "ab");
    // Its file is kept.
    a.open(&Steps::default()).expect("bytes");
    let c = spilling.bytes("c", 1000);
    c.open(&Steps::default()).expect("bytes");
    a.open(&Steps::default()).expect("bytes");
    let (freed, error) = spilling.store.common.evict();
    assert!(error.is_some_and(|error| error.to_string().contains("(max-spill)")));
    assert!(freed >= 1000, "`a` needs no new file");
    assert_eq!(spilling.on_disk(&["a", "b", "c"]), "ab");
    spilling.store.remove(&"b".into());
    spilling.evict();
    assert_eq!(spilling.on_disk(&["a", "c"]), "ac");
}

#[test]
fn value_in_memory_survives_damage_of_its_file() {
    let spilling = Spilling::new("survives", 0);
    let datum = spilling.store.made(list());
    spilling.store.insert(&"x".into(), datum.clone());
    spilling.evict();
    let steps = Steps::default();
    let opened = datum.open(&steps).expect("a list");
    // The serialized form that was read along is dropped when memory is short.
    datum.forget_bytes();
    fs::remove_file(spilling.files().pop().expect("a file")).expect("exists");
    let sent = datum.serialize(&steps).expect("made again");
    assert_eq!(sent.open().expect("a list"), *opened);
    assert!(!datum.is_lost());
    assert_eq!(spilling.store.counters().lost_count, 0);
    // It can be spilled once more.
    assert!(spilling.evict() > 0);
    assert_eq!(*datum.open(&steps).expect("a list"), list());
}

#[test]
fn data_stays_in_memory_while_the_disk_fails_and_goes_when_it_works_again() {
    let spilling = Spilling::new("failing", 500);
    let notices = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&notices);
    let notify = move |message: &str| log.lock().expect("unpoisoned").push(message.to_owned());
    let directory = spilling
        .store
        .common
        .directory
        .as_ref()
        .expect("spilling store");
    let aside = spilling.parent.join("aside");
    fs::rename(directory.path(), &aside).expect("exists");
    spilling
        .store
        .start(Vec::new, notify, |_, _| (), || ())
        .expect("a thread");
    let data = ["a", "b", "c"].map(|key| spilling.bytes(key, 1000));
    until("a second attempt", || {
        spilling.store.counters().spill_failure_count > 1
    });
    assert_eq!(spilling.store.holdings().memory_len, 3000);
    for datum in &data {
        assert!(datum.open(&Steps::default()).is_ok());
        assert!(datum.serialize(&Steps::default()).is_ok());
    }
    fs::rename(&aside, directory.path()).expect("exists");
    until("spilling", || spilling.store.holdings().memory_len == 0);
    until("saying so", || {
        notices.lock().expect("unpoisoned").len() == 2
    });
    let notices = notices.lock().expect("unpoisoned");
    assert!(
        notices[0].starts_with("cannot write to disk"),
        "{notices:?}"
    );
    assert_eq!(notices[1], "can write to disk again");
}

#[test]
fn removes_files_with_their_data_and_on_close() {
    let spilling = Spilling::new("files", 0);
    spilling
        .store
        .start(Vec::new, |_| (), |_, _| (), || ())
        .expect("a thread");
    for key in ["a", "b"] {
        spilling.bytes(key, 1000);
    }
    until("spilling", || spilling.on_disk(&["a", "b"]) == "ab");
    assert_eq!(spilling.files().len(), 2);
    drop(spilling.store.remove(&"a".into()));
    until("removing", || spilling.files().len() == 1);
    assert_eq!(spilling.store.holdings().spilled_len, 1000);
    spilling.store.close();
    let left = fs::read_dir(&spilling.parent).expect("exists").count();
    assert_eq!(left, 0);
}

#[test]
fn removing_data_during_a_write_leaves_no_file() {
    const ROUNDS: usize = 2000;
    let spilling = Spilling::new("removal", 0);
    spilling
        .store
        .start(Vec::new, |_| (), |_, _| (), || ())
        .expect("a thread");
    thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let spilling = &spilling;
            scope.spawn(move || {
                let key = Key::from(name);
                for round in 0..ROUNDS {
                    let datum = spilling.bytes(name, 1 + round % 3000);
                    match round % 4 {
                        0 => thread::yield_now(),
                        1 => assert!(datum.open(&Steps::default()).is_ok()),
                        2 => assert!(datum.serialize(&Steps::default()).is_ok()),
                        _ => {}
                    }
                    let removed = spilling.store.remove(&key).expect("was stored");
                    // Holders of the datum can still use it.
                    assert!(removed.serialize(&Steps::default()).is_ok());
                }
            });
        }
    });
    // The last write may not have begun, or not have closed its file.
    until("removing", || {
        spilling.files().is_empty() && spilling.store.holdings() == Holdings::default()
    });
    assert_eq!(spilling.store.nbytes(), 0);
    assert!(spilling.store.common.lock().order.is_empty());
    assert_eq!(spilling.store.counters().lost_count, 0);
}

#[test]
fn frees_memory_for_the_process() {
    let spilling = Spilling::new("excess", u64::MAX);
    spilling
        .store
        .start(Vec::new, |_| (), |_, _| (), || ())
        .expect("a thread");
    for key in ["a", "b", "c"] {
        spilling.bytes(key, 1000);
    }
    spilling.store.set_other_memory(0, 1500);
    until("spilling", || spilling.on_disk(&["a", "b", "c"]) == "ab");
    assert_eq!(spilling.store.common.lock().excess, 0);
}

#[test]
fn large_frames_are_read_into_memory_of_the_pool() {
    let spilling = Spilling::new("pool", 0);
    let pool = BufferPool::new(64 << 20);
    spilling.store.read_into(pool.clone());
    let sent = spilling.bytes("x", 3 << 20);
    spilling.evict();
    let read = sent.serialize(&Steps::default()).expect("readable file");
    assert_eq!(read.frames().concat(), vec![7; 3 << 20]);
    assert_eq!((sent.is_on_disk(), pool.kept_len()), (true, 0));
    drop(read);
    assert_eq!(pool.kept_len(), 3 << 20);
}

#[cfg(target_os = "linux")]
#[test]
fn data_that_is_read_for_a_process_stays_in_memory() {
    let spilling = Spilling::new("process", 0);
    let datum = spilling.bytes("x", 1000);
    for _ in 0..2 {
        spilling.evict();
        assert!(datum.is_on_disk());
        let shared = datum.shared(&Steps::default(), |_| None);
        assert_eq!(shared.expect("readable file").len(), datum.nbytes());
        assert!(!datum.is_on_disk());
    }
    let counters = spilling.store.counters();
    assert_eq!((counters.spilled.count, counters.unspilled.count), (1, 2));
    assert_eq!(spilling.store.holdings().memory_len, datum.nbytes());
}

#[test]
fn memory_of_the_process_counts_at_once() {
    // Data is moved if it takes more than 9000 bytes with other memory, but 1000 may stay.
    let spilling = Spilling::new("other", 8000);
    let started = spilling.store.start(Vec::new, |_| (), |_, _| (), || ());
    started.expect("a thread");
    for key in ["a", "b", "c"] {
        spilling.bytes(key, 1000);
    }
    spilling.store.set_other_memory(6000, 0);
    spilling.bytes("d", 1000);
    until("spilling", || {
        spilling.on_disk(&["a", "b", "c", "d"]) == "a"
    });
    spilling.store.set_other_memory(7000, 0);
    until("spilling", || {
        spilling.on_disk(&["a", "b", "c", "d"]) == "ab"
    });
    spilling.store.set_other_memory(u64::MAX, 0);
    until("spilling", || {
        spilling.on_disk(&["a", "b", "c", "d"]) == "abc"
    });
    assert!(!spilling.store.is_full());
    assert_eq!(spilling.store.holdings().memory_len, 1000);
}

#[test]
fn the_same_datum_under_two_keys_takes_memory_once() {
    let spilling = Spilling::new("alias", 0);
    let datum = spilling.bytes("x", 1000);
    spilling.store.insert(&"y".into(), datum);
    assert_eq!(spilling.store.holdings().memory_len, 1000);
    drop(spilling.store.remove(&"x".into()));
    assert_eq!(spilling.evict(), 1000);
    assert_eq!(spilling.on_disk(&["y"]), "y");
}

#[test]
fn full_store_reports_free_space_or_that_nothing_can_be_spilled() {
    // Full at 1100 bytes
    let spilling = Spilling::new("full", 100);
    let relieved = Arc::new(AtomicU64::new(0));
    let times = Arc::clone(&relieved);
    let count = || relieved.load(Ordering::Relaxed);
    spilling.bytes("a", 1000);
    assert!(!spilling.store.is_full());
    let datum = spilling.bytes("b", 1000);
    let in_use = datum.in_use();
    assert!(spilling.store.is_full());
    let relieved = move || {
        times.fetch_add(1, Ordering::Relaxed);
    };
    let started = spilling.store.start(Vec::new, |_| (), |_, _| (), relieved);
    started.expect("a thread");
    until("spilling", || count() == 1);
    assert_eq!(spilling.on_disk(&["a", "b"]), "a");
    // Data in use is not counted as an obstacle.
    let other = spilling.bytes("c", 1000);
    let other_in_use = other.in_use();
    if spilling.store.is_full() {
        until("giving up", || count() == 2);
    }
    until("not being full", || !spilling.store.is_full());
    drop((in_use, other_in_use));
    until("spilling", || spilling.on_disk(&["a", "b", "c"]) == "abc");
    assert!(!spilling.store.is_full());
}

#[test]
fn a_panic_while_the_map_is_locked_sets_the_flag() {
    let store = Store::default();
    daskwire_rpc::panic_flag::poison(&store.held);
    assert!(!store.panic_flag().is_set());
    store.keys();
    assert!(store.panic_flag().is_set());
}
