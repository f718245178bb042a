//! The batched messages between the worker and the scheduler.

use daskwire::msgpack::{Reader, Writer};

use super::{Finished, Phase, Plugin, TIMEOUT, Worker};
use crate::link::{Outgoing, Piece, field, items, str_field};
use crate::store::{EntryId, Part, State, Store};
use crate::value::{Failure, NO_ROOM};

/// The maximum length of a message to the scheduler about a task, in bytes: a
/// key and two strings.
pub(super) const REPORT_LEN: usize = 1024;

/// The failure of a task that is longer than the buffer for it.
const TOO_LONG: Failure = Failure {
    class: "MemoryError",
    message: "the task is longer than the buffer for messages of this worker (MESSAGE of worker::Memory)",
};

/// The failure of a task in a frame that is not read.
const TOO_MANY: Failure = Failure {
    class: "MemoryError",
    message: "the batch has more tasks and arrays than this worker reads (worker::MAX_BATCH)",
};

/// The failure of a task without a pickle.
const NO_PICKLE: Failure = Failure::type_error("this worker does not understand the task");

/// The cause of a message, for the scheduler's records.
const STIMULUS: &str = "native-worker";

/// The cause that tells the scheduler's plugin that a task cannot run here.
const UNSUPPORTED: &str = "task-unsupported-native-worker";

/// The effect of a message on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    /// There is no room now, but there will be after a task has run, or after earlier
    /// messages have been sent.
    Later,
    /// The worker leaves the cluster.
    Close,
}

impl<const KEYS: usize, const DATA: usize, const PEERS: usize> Worker<'_, KEYS, DATA, PEERS> {
    /// Handles the batches of the scheduler, piece by piece: the messages, then the frames
    /// with the pickles of their tasks and the buffers of these pickles. Each piece waits
    /// until its answer can be sent.
    pub(super) fn handle_stream(&mut self) {
        while self.stream.has_room(REPORT_LEN) {
            let (store, receiving) = (&mut *self.store, &mut self.receiving);
            let answered = &mut self.answered;
            let (outgoing, contact) = (&mut self.stream.outgoing, self.config.contact);
            let known = self.stream.incoming.known_count();
            let (len, effect) = match self.stream.incoming.piece() {
                Piece::Incomplete => return,
                Piece::Value(message) => {
                    let known = Ok(known);
                    let effect = handle_one(message, known, store, outgoing, contact, answered);
                    (None, effect)
                }
                Piece::Start(message) => {
                    let too_long = Err(TOO_LONG);
                    let effect = handle_one(message, too_long, store, outgoing, contact, answered);
                    (None, effect)
                }
                Piece::Frame(index, bytes) => {
                    let effect = handle_frame(index, Ok(bytes), store, receiving, outgoing);
                    (Some(bytes.len()), effect)
                }
                Piece::Part(index, bytes) => {
                    let failure = if index < known { TOO_LONG } else { TOO_MANY };
                    let effect = handle_frame(index, Err(failure), store, receiving, outgoing);
                    (Some(bytes.len()), effect)
                }
                Piece::End => {
                    // Later frames are not meant for a task whose pickle is missing.
                    if let Some(id) = store.first(State::Announced) {
                        self.report_failure(id, NO_PICKLE);
                        continue;
                    }
                    *receiving = None;
                    self.stream.incoming.discard_message();
                    continue;
                }
                Piece::Invalid => return self.stream.fail(),
            };
            match effect {
                Effect::None => {
                    match len {
                        Some(len) => self.stream.incoming.take(len),
                        None => self.stream.incoming.take_value(),
                    }
                    self.answered = 0;
                }
                Effect::Later => return,
                Effect::Close => return self.leave(),
            }
        }
    }

    /// Notifies the scheduler that the worker leaves.
    pub(super) fn leave(&mut self) {
        send(
            &mut self.stream.outgoing,
            3,
            "worker-status-change",
            |writer| {
                writer.str("status").str("closing");
            },
        );
        self.stream.outgoing.send(|writer| {
            writer.array(1).map(1).str("op").str("close-stream");
        });
        self.stream.close();
        let deadline = self.now.saturating_add(TIMEOUT);
        self.phase = Phase::Leaving { deadline };
    }

    /// Reports the task that has run.
    pub(super) fn report(&mut self) {
        let Some(finished) = self.finished.take() else {
            return;
        };
        let Finished { id, start, .. } = finished;
        let times = (self.time(start), self.time(self.now));
        let outgoing = &mut self.stream.outgoing;
        match finished.outcome {
            Ok(()) => report_finished(self.store, id, times, outgoing),
            Err(failure) if finished.is_called => self.report_failure(id, failure),
            Err(failure) => self.report_unsupported(id, failure),
        }
    }

    /// Reports that a task has failed, and forgets it.
    pub(super) fn report_failure(&mut self, id: EntryId, failure: Failure) {
        let key = self.store.part(id, Part::Key);
        let run_id = self.store.get(id).run_id;
        let message = failure.message_with(&self.store.refused);
        let outgoing = &mut self.stream.outgoing;
        report_erred_with(key, run_id, failure, message.as_str(), outgoing);
        release(self.store, id);
    }

    /// Gives back a task that this worker does not understand, if the scheduler's plugin
    /// is there to choose another worker, or to fail a task without one.
    pub(super) fn report_unsupported(&mut self, id: EntryId, failure: Failure) {
        if self.plugin != Plugin::Installed || failure.class == NO_ROOM.class {
            return self.report_failure(id, failure);
        }
        let key = self.store.part(id, Part::Key);
        let message = failure.message_with(&self.store.refused);
        self.stream.outgoing.send(|writer| {
            writer.array(1).map(4).str("op").str("reschedule");
            writer.str("stimulus_id").str(UNSUPPORTED);
            writer.str("key").encoded(key);
            writer.str("reason").str(message.as_str());
        });
        release(self.store, id);
    }

    /// Reports to the scheduler that a value is stored here.
    pub(super) fn report_added(&mut self, id: EntryId) {
        let key = self.store.part(id, Part::Key);
        send(&mut self.stream.outgoing, 3, "add-keys", |writer| {
            writer.str("keys").array(1).encoded(key);
        });
    }

    /// Asks the scheduler for the workers that have a value.
    pub(super) fn report_missing(&mut self, id: EntryId) {
        let key = self.store.part(id, Part::Key);
        send(
            &mut self.stream.outgoing,
            3,
            "request-refresh-who-has",
            |writer| {
                writer.str("keys").array(1).encoded(key);
            },
        );
    }
}

/// Sends a message with an operation, a cause, and `count` fields in all. Returns
/// false if there is no room for it.
fn send(
    outgoing: &mut Outgoing<'_>,
    count: u32,
    op: &str,
    write: impl FnOnce(&mut Writer<'_>),
) -> bool {
    outgoing.send(|writer| {
        writer.array(1).map(count).str("op").str(op);
        writer.str("stimulus_id").str(STIMULUS);
        write(writer);
    })
}

fn report_finished<const KEYS: usize, const DATA: usize>(
    store: &Store<KEYS, DATA>,
    id: EntryId,
    (start, stop): (f64, f64),
    outgoing: &mut Outgoing<'_>,
) {
    let Some(value) = store.value(id) else {
        return;
    };
    let mut class = [0; 48];
    let class = value.pickle_type(&mut class);
    send(outgoing, 11, "task-finished", |writer| {
        writer.str("status").str("OK");
        writer.str("key").encoded(store.part(id, Part::Key));
        writer.str("run_id").i64(store.get(id).run_id);
        writer.str("nbytes").u64(value.nbytes() as u64);
        writer.str("type").bin(class);
        writer.str("typename").str(value.type_name());
        writer.str("metadata").map(0);
        writer.str("thread").u64(1);
        writer.str("startstops").array(1).map(3);
        writer.str("action").str("compute");
        writer.str("start").f64(start);
        writer.str("stop").f64(stop);
    });
}

/// Reports that a task has failed. Returns false if there is no room for the report now.
fn report_erred(key: &[u8], run_id: i64, failure: Failure, outgoing: &mut Outgoing<'_>) -> bool {
    report_erred_with(key, run_id, failure, failure.message(), outgoing)
}

/// Like [`report_erred`], with a message of the exception.
fn report_erred_with(
    key: &[u8],
    run_id: i64,
    failure: Failure,
    message: &str,
    outgoing: &mut Outgoing<'_>,
) -> bool {
    // A key that does not even fit in an empty buffer cannot be named.
    let is_empty = outgoing.is_empty();
    let mut exception = [0; 320];
    let exception = failure.pickle_with(message, &mut exception);
    send(outgoing, 11, "task-erred", |writer| {
        writer.str("status").str("error");
        writer.str("key").encoded(key);
        writer.str("run_id").i64(run_id);
        writer.str("exception").bin(exception);
        writer.str("traceback").nil();
        writer.str("exception_text").str(message);
        writer.str("traceback_text").str("");
        writer.str("thread").u64(1);
        writer.str("startstops").array(0);
    }) || is_empty
}

/// Handles a message of a batch, or the start of one that is too long: then its tasks
/// fail, and of other keys only those in the start are handled. `known` is the number of
/// frames that are read. `answered` is the number of keys of the message that were
/// handled in earlier calls.
fn handle_one<const KEYS: usize, const DATA: usize>(
    message: &[u8],
    known: Result<usize, Failure>,
    store: &mut Store<KEYS, DATA>,
    outgoing: &mut Outgoing<'_>,
    contact: &str,
    answered: &mut usize,
) -> Effect {
    let reader = Reader::new(message);
    match str_field(reader, "op") {
        Some("compute-task") => return compute_task(reader, known, store, outgoing, contact),
        Some("free-keys") => {
            for key in keys(reader) {
                if let Some(id) = store.find(key) {
                    release(store, id);
                }
            }
        }
        Some("remove-replicas") => {
            for key in keys(reader).skip(*answered) {
                match store.find(key) {
                    // A task here needs the value: it is kept, which is reported to the
                    // scheduler.
                    Some(id) if store.is_needed(id) => {
                        let is_sent = send(outgoing, 3, "add-keys", |writer| {
                            writer.str("keys").array(1).encoded(key);
                        });
                        if !is_sent {
                            return Effect::Later;
                        }
                    }
                    Some(id) => store.remove(id),
                    None => {}
                }
                *answered = answered.saturating_add(1);
            }
        }
        Some("acquire-replicas" | "refresh-who-has") => {
            let is_new = str_field(reader, "op") == Some("acquire-replicas");
            who_has(reader, |key, holders| {
                let id = match store.find(key) {
                    None if is_new => store.add(key, State::Wanted).ok(),
                    found => found,
                };
                if let Some(id) = id {
                    set_holder(store, id, holders, contact);
                    if let Some(entry) = store.get_mut(id) {
                        entry.is_replica |= is_new;
                    }
                }
            });
        }
        Some("steal-request") => {
            let key = field(reader, "key").and_then(|mut key| key.skip().ok());
            let key = key.unwrap_or_default();
            let id = store.find(key);
            let state = id.map(|id| store.get(id).state);
            send(outgoing, 4, "steal-response", |writer| {
                writer.str("key").encoded(key).str("state");
                match state {
                    Some(State::Announced | State::Waiting) => writer.str("waiting"),
                    Some(State::Ready) => writer.str("ready"),
                    Some(State::Memory) => writer.str("memory"),
                    _ => writer.nil(),
                };
            });
            if let (Some(id), Some(State::Announced | State::Waiting | State::Ready)) = (id, state)
            {
                release(store, id);
            }
        }
        Some("worker-status-change") => {
            let status = str_field(reader, "status").unwrap_or("running");
            send(outgoing, 3, "worker-status-change", |writer| {
                writer.str("status").str(status);
            });
        }
        Some("close" | "close-stream") => return Effect::Close,
        // Messages of later releases are ignored.
        _ => {}
    }
    Effect::None
}

fn keys(message: Reader<'_>) -> impl Iterator<Item = &[u8]> {
    field(message, "keys").into_iter().flat_map(items)
}

/// Calls a function with each key and the array of its holders.
fn who_has<'a>(message: Reader<'a>, mut each: impl FnMut(&'a [u8], Reader<'a>)) {
    let Some(mut reader) = field(message, "who_has") else {
        return;
    };
    for _ in 0..reader.map().unwrap_or_default() {
        let Ok(key) = reader.skip() else { return };
        each(key, reader);
        if reader.skip().is_err() {
            return;
        }
    }
}

/// Records the worker that has a wanted value.
fn set_holder<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    id: EntryId,
    holders: Reader<'_>,
    contact: &str,
) {
    let holder = items(holders).find_map(|holder| {
        let holder = Reader::new(holder).str().ok()?.to_str();
        (holder != contact).then_some(holder)
    });
    if store.get(id).state == State::Wanted {
        // Without room the holder remains unknown, and is asked for later.
        let _ = store.set(id, Part::Holder, &[holder.unwrap_or_default().as_bytes()]);
    }
}

/// Removes a key. If a task still needs its value, it is fetched again.
pub(super) fn release<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    id: EntryId,
) {
    if !store.is_needed(id) {
        return store.remove(id);
    }
    // Without room for another entry, the value stays until the task has run.
    let _ = store.set_wanted(id);
}

fn compute_task<const KEYS: usize, const DATA: usize>(
    task: Reader<'_>,
    known: Result<usize, Failure>,
    store: &mut Store<KEYS, DATA>,
    outgoing: &mut Outgoing<'_>,
    contact: &str,
) -> Effect {
    let key = field(task, "key").and_then(|mut key| key.skip().ok());
    let run_id = field(task, "run_id").and_then(|mut id| id.i64().ok());
    let (Some(key), Some(run_id)) = (key, run_id) else {
        return Effect::None;
    };
    let added = known.and_then(|known| add_task(task, known, (key, run_id), store, contact));
    let failure = match added {
        Ok(None) => return Effect::None,
        // The result is already stored: report it again.
        Ok(Some(id)) => {
            report_finished(store, id, (0.0, 0.0), outgoing);
            return Effect::None;
        }
        Err(failure) => failure,
    };
    if let Some(id) = store.find(key) {
        release(store, id);
    }
    // Tasks that can run have priority: they may free the entries of their inputs. Nothing
    // else is waited for, since the messages that free results come after this one.
    let is_full = failure == NO_ROOM || failure == Store::<KEYS, DATA>::FULL;
    if (is_full && store.will_have_room()) || !report_erred(key, run_id, failure, outgoing) {
        return Effect::Later;
    }
    Effect::None
}

/// Adds a task, and entries for its inputs from other workers. Returns its entry if it
/// has run before.
fn add_task<const KEYS: usize, const DATA: usize>(
    task: Reader<'_>,
    known: usize,
    (key, run_id): (&[u8], i64),
    store: &mut Store<KEYS, DATA>,
    contact: &str,
) -> Result<Option<EntryId>, Failure> {
    let frame = field(task, "run_spec").and_then(|spec| field(spec, "__Pickled__"));
    let frame = frame
        .and_then(|mut frame| frame.u64().ok())
        .ok_or(NO_PICKLE)?;
    let id = match store.find(key) {
        Some(id) => id,
        None => store.add(key, State::Announced)?,
    };
    let entry = store.get_mut(id).ok_or(NO_PICKLE)?;
    entry.run_id = run_id;
    match entry.state {
        State::Memory => return Ok(Some(id)),
        State::Waiting | State::Ready => return Ok(None),
        _ if frame >= known as u64 => return Err(TOO_MANY),
        _ => {}
    }
    entry.state = State::Announced;
    entry.spec_frame = frame;
    store.clear_inputs(id);
    let mut added = Ok(());
    who_has(task, |input, holders| {
        if added.is_ok() {
            added = add_input(store, id, input, holders, contact);
        }
    });
    added.map(|()| None)
}

fn add_input<const KEYS: usize, const DATA: usize>(
    store: &mut Store<KEYS, DATA>,
    id: EntryId,
    input: &[u8],
    holders: Reader<'_>,
    contact: &str,
) -> Result<(), Failure> {
    let input = match store.find(input) {
        Some(input) => input,
        None => store.add(input, State::Wanted)?,
    };
    if let Err(failure) = store.add_input(id, input) {
        store.remove_unneeded(input);
        return Err(failure);
    }
    set_holder(store, input, holders, contact);
    Ok(())
}

/// Handles a frame after the body: the pickle of a task, or one of its buffers.
/// `bytes` is an error for part of one that is too long.
fn handle_frame<const KEYS: usize, const DATA: usize>(
    index: usize,
    bytes: Result<&[u8], Failure>,
    store: &mut Store<KEYS, DATA>,
    receiving: &mut Option<(EntryId, u64)>,
    outgoing: &mut Outgoing<'_>,
) -> Effect {
    let (id, part, left) = match *receiving {
        Some((id, left)) => (id, bytes, left.saturating_sub(1)),
        None => {
            let is_meant = |id: &_| {
                let entry = store.get(*id);
                entry.state == State::Announced && entry.spec_frame == index as u64
            };
            let Some(id) = store.ids().find(is_meant) else {
                return Effect::None;
            };
            // PROTOCOL MODERN-4
            let header = Reader::new(bytes.unwrap_or_default());
            let count = field(header, "num-sub-frames").and_then(|mut count| count.u64().ok());
            let pickle = field(header, "pickled-obj").and_then(|mut pickle| pickle.bin().ok());
            let pickle = bytes.and_then(|_| pickle.ok_or(NO_PICKLE));
            (id, pickle, count.unwrap_or_default())
        }
    };
    if store.get(id).state != State::Announced {
        // The task was dropped in the meantime, by this worker or the scheduler.
        *receiving = (left != 0).then_some((id, left));
        return Effect::None;
    }
    // Tasks that can run have priority: their results need room, too.
    let len = part.map_or(0, <[u8]>::len);
    if len.saturating_add(DATA / 4) > store.room() && store.will_have_room() {
        return Effect::Later;
    }
    let stored = part.and_then(|part| {
        let len = u32::try_from(part.len()).map_err(|_| NO_ROOM)?;
        store.append(id, Part::Spec, &[&len.to_le_bytes(), part])
    });
    match stored {
        Ok(()) if left != 0 => *receiving = Some((id, left)),
        Ok(()) => {
            *receiving = None;
            if let Some(entry) = store.get_mut(id) {
                entry.state = State::Waiting;
            }
        }
        Err(failure) => {
            let run_id = store.get(id).run_id;
            if !report_erred(store.part(id, Part::Key), run_id, failure, outgoing) {
                return Effect::Later;
            }
            release(store, id);
            *receiving = None;
        }
    }
    Effect::None
}
