//! Requests to the scheduler and to other workers, and requests to this worker.

use core::fmt::Write;
use core::time::Duration;

use daskwire::msgpack::{Reader, Writer};

use super::reply::DataReply;
use super::stream::{REPORT_LEN, release};
use super::{Config, FetchStep, Fetching, PEER_IDLE, Peer, Phase, Plugin, TIMEOUT, Worker};
use crate::fixed_string::FixedString;
use crate::link::{Piece, Received, field, items, str_field};
use crate::store::{EntryId, Part, State, Store};
use crate::value::{Failure, Value};

/// The maximum length of a reply other than that to `get_data`, in bytes.
const REPLY_LEN: usize = 950;

impl<const KEYS: usize, const DATA: usize, const PEERS: usize> Worker<'_, KEYS, DATA, PEERS> {
    /// Asks the scheduler for its versions. The worker registers with the same
    /// versions, so that clients do not warn about irrelevant differences.
    pub(super) fn ask_versions(&mut self, deadline: Duration, is_requested: bool) {
        if self.requests.has_message() {
            let refused = self.requests.incoming.message(|versions| {
                let release = release_in(versions.reader())?;
                (!is_supported(release)).then(|| {
                    let mut refused = FixedString::new();
                    // A longer one is none of Dask.
                    let _ = refused.write_str(release);
                    refused
                })
            });
            self.refused = refused.flatten().unwrap_or(FixedString::new());
            if !self.refused.is_empty() {
                self.requests.incoming.discard_message();
                let until = self.now.saturating_add(PAUSE_REFUSED);
                self.phase = Phase::Pause { until };
            } else if let Plugin::Wanted { .. } = self.plugin {
                self.requests.incoming.discard_message();
                let sent = None;
                self.phase = Phase::Installing { deadline, sent };
            } else {
                let is_requested = false;
                self.phase = Phase::Registering {
                    deadline,
                    is_requested,
                };
            }
        } else if self.requests.is_open() && !is_requested {
            self.requests.outgoing.send(|writer| {
                writer.map(2).str("op").str("versions");
                writer.str("reply").bool(true);
            });
            let is_requested = true;
            self.phase = Phase::Versions {
                deadline,
                is_requested,
            };
        }
    }

    /// Registers with the scheduler.
    pub(super) fn register(&mut self, deadline: Duration, is_requested: bool) {
        if self.stream.is_open() && !is_requested {
            let (config, now) = (self.config, self.now);
            let mut id = FixedString::<80>::new();
            // Unique for each registration if its time is.
            let _ = write!(id, "{}-{:x}", config.name, now.as_nanos());
            let used = self.store.used();
            let outgoing = &mut self.stream.outgoing;
            let sent = self.requests.incoming.message(|versions| {
                let versions = versions.reader().skip().unwrap_or(b"\x80");
                outgoing.send(|writer| {
                    write_registration::<DATA>(writer, config, id.as_str(), used, versions);
                })
            });
            if sent != Some(true) {
                return self.restart();
            }
            self.requests.incoming.discard_message();
            let is_requested = true;
            self.phase = Phase::Registering {
                deadline,
                is_requested,
            };
        } else if let Piece::Value(reply) | Piece::Start(reply) = self.stream.incoming.piece() {
            // It has the plugins of workers after the fields that are read.
            let reply = Reader::new(reply);
            let is_ok = str_field(reply, "status") == Some("OK");
            let (time, interval) = (float(reply, "time"), float(reply, "heartbeat-interval"));
            if !is_ok {
                return self.restart();
            }
            self.stream.incoming.take_value();
            if let Some(time) = time {
                self.time_offset = time - self.now.as_secs_f64();
            }
            self.heartbeat.answer_due = None;
            self.set_interval(interval);
            self.phase = Phase::Running;
        }
    }

    fn set_interval(&mut self, seconds: Option<f64>) {
        if let Some(seconds) = seconds {
            let (min, max) = (Duration::from_millis(100), Duration::from_secs(60));
            self.heartbeat.interval = duration(seconds).clamp(min, max);
        }
        self.heartbeat.next = self.now.saturating_add(self.heartbeat.interval);
    }

    /// Sends heartbeats, without which the scheduler removes the worker.
    pub(super) fn handle_heartbeat(&mut self) {
        if self.requests.has_message() {
            let reply = self.requests.incoming.message(|message| {
                let reply = message.reader();
                let is_known = str_field(reply, "status") != Some("missing");
                is_known.then(|| float(reply, "heartbeat-interval"))
            });
            self.requests.incoming.discard_message();
            match (reply.flatten(), self.heartbeat.answer_due.take()) {
                (Some(interval), Some(_)) => self.set_interval(interval),
                // A reply without a request.
                (Some(_), None) => {}
                (None, _) => return self.restart(),
            }
        }
        match self.heartbeat.answer_due {
            Some(due) if self.now >= due => self.restart(),
            None if self.now >= self.heartbeat.next && self.requests.is_open() => {
                let time = self.time(self.now);
                let (contact, used) = (self.config.contact, self.store.used());
                self.requests.outgoing.send(|writer| {
                    writer.map(6).str("op").str("heartbeat_worker");
                    writer.str("reply").bool(true);
                    writer.str("address").str(contact);
                    writer.str("now").f64(time);
                    writer.str("executing").map(0);
                    writer.str("metrics");
                    write_metrics(writer, used, time);
                });
                self.heartbeat.answer_due = Some(self.now.saturating_add(TIMEOUT));
            }
            _ => {}
        }
    }

    /// Serves the requests of peers.
    pub(super) fn handle_peers(&mut self) {
        for peer in &mut self.peers {
            if peer.link.take_progress() {
                peer.active = self.now;
            }
            let is_busy = peer.reply.is_some() || !peer.link.is_idle();
            if is_busy && self.now > peer.active.saturating_add(TIMEOUT) {
                peer.link.fail();
                continue;
            }
            if let Some(reply) = &mut peer.reply {
                if !reply.send(self.store, &mut peer.link.outgoing) {
                    continue;
                }
                reply.release(self.store);
                peer.reply = None;
            }
            if !peer.link.has_message() || !peer.link.has_room(REPLY_LEN) {
                continue;
            }
            serve(peer, self.store, self.config);
        }
        self.free_peer();
    }

    /// Closes the connection that has been idle, or has sent nothing, for
    /// longest, if all are in use: Dask keeps connections for later requests.
    fn free_peer(&mut self) {
        let is_in_use = |peer: &Peer<'_, KEYS>| peer.link.is_open() || peer.link.is_in_handshake();
        if !self.peers.iter().all(is_in_use) {
            return;
        }
        let idle = self.peers.iter_mut().filter(|peer| {
            peer.link.is_in_handshake() || (peer.reply.is_none() && peer.link.is_idle())
        });
        let oldest = idle.min_by_key(|peer| peer.active);
        if let Some(peer) = oldest
            && self.now > peer.active.saturating_add(PEER_IDLE)
        {
            match peer.link.is_open() {
                // The end of its last reply may still be under way.
                true => peer.link.close(),
                false => peer.link.fail(),
            }
        }
    }

    /// Fetches values that tasks need from other workers, one after the other.
    pub(super) fn handle_fetch(&mut self) {
        let Some(mut fetching) = self.fetching else {
            return self.choose_fetch();
        };
        let id = self.store.resolve(fetching.value);
        let id = id.filter(|id| self.store.get(*id).state == State::Wanted);
        let Some(id) = id else {
            // The value is no longer needed.
            self.fetch.fail();
            self.fetching = None;
            return;
        };
        if self.fetch.take_progress() {
            fetching.deadline = self.now.saturating_add(TIMEOUT);
            self.fetching = Some(fetching);
        }
        if let FetchStep::Failed(failure) = fetching.step {
            self.fail_dependents(id, failure);
        } else if self.fetch.is_open() && fetching.step == FetchStep::Connecting {
            let key = self.store.part(id, Part::Key);
            let contact = self.config.contact;
            let sent = self.fetch.outgoing.send(|writer| {
                writer.map(4).str("op").str("get_data");
                writer.str("reply").bool(true);
                writer.str("keys").array(1).encoded(key);
                writer.str("who").str(contact);
            });
            if !sent {
                self.fetch.fail();
            }
            fetching.step = FetchStep::Requested;
            self.fetching = Some(fetching);
        } else if self.fetch.has_message() && self.stream.has_room(REPORT_LEN) {
            let store = &mut *self.store;
            let found = self.fetch.incoming.message(|message| {
                let mut data = field(message.reader(), "data")?;
                // Only one key was requested.
                (data.map().ok()? == 1).then_some(())?;
                let key = data.skip().ok()?;
                (key == store.part(id, Part::Key)).then_some(())?;
                let Some(payload) = message.payload(data) else {
                    return Some(Err(UNREADABLE));
                };
                let stored = store.make_value(id, |_, out| Value::store_payload(&payload, out));
                Some(stored)
            });
            self.fetch.incoming.discard_message();
            self.fetch.outgoing.send(|writer| {
                writer.str("OK");
            });
            self.fetch.close();
            match found.unwrap_or(Some(Err(UNREADABLE))) {
                Some(Ok(())) => {
                    self.report_added(id);
                    self.fetching = None;
                }
                Some(Err(failure)) => self.fail_fetch(failure),
                // The holder does not have it, or is busy.
                None => {}
            }
        } else if self.now >= fetching.deadline {
            self.fetch.fail();
            self.fetch_failed(false);
        }
    }

    fn choose_fetch(&mut self) {
        if !self.fetch.is_closed() {
            return;
        }
        let has_holder = |id: &_| !self.store.part(*id, Part::Holder).is_empty();
        let mut wanted = self
            .store
            .ids()
            .filter(|id| self.store.get(*id).state == State::Wanted);
        if let Some(id) = wanted.find(has_holder) {
            self.fetching = Some(Fetching {
                value: self.store.handle(id),
                step: FetchStep::Connecting,
                deadline: self.now.saturating_add(TIMEOUT),
            });
        } else if self.now >= self.next_holder_request {
            self.next_holder_request = self.now.saturating_add(Duration::from_secs(1));
            // Ask for as many as there is room for, and continue after them the
            // next time.
            let from = self.next_holder_index;
            for id in self.store.ids().cycle().skip(from).take(KEYS) {
                if !self.stream.has_room(REPORT_LEN) {
                    break;
                }
                if self.store.get(id).state == State::Wanted {
                    self.report_missing(id);
                }
                self.next_holder_index = self
                    .next_holder_index
                    .wrapping_add(1)
                    .checked_rem(KEYS)
                    .unwrap_or(0);
            }
        }
    }

    /// Handles that the connection to a holder was closed. The scheduler is
    /// asked for another holder, unless the reply `is_unreadable`.
    pub(super) fn fetch_failed(&mut self, is_unreadable: bool) {
        let Some(fetching) = self.fetching else {
            return;
        };
        match fetching.step {
            FetchStep::Failed(_) => {}
            // The reply of any other holder would be unreadable, too.
            FetchStep::Requested if is_unreadable => self.fail_fetch(UNREADABLE),
            FetchStep::Requested | FetchStep::Connecting => {
                if let Some(id) = self.store.resolve(fetching.value) {
                    self.store.clear_part(id, Part::Holder);
                }
                self.fetching = None;
                self.next_holder_request = self.now.saturating_add(Duration::from_secs(1));
            }
        }
    }

    /// Fails the value that is being fetched.
    fn fail_fetch(&mut self, failure: Failure) {
        if let Some(fetching) = &mut self.fetching {
            fetching.step = FetchStep::Failed(failure);
        }
    }

    /// Fails the tasks that need an unavailable value, as long as there is room
    /// for the reports.
    fn fail_dependents(&mut self, input: EntryId, failure: Failure) {
        for id in self.store.ids() {
            if self.store.needs(id, input) && self.stream.has_room(REPORT_LEN) {
                self.report_unsupported(id, failure);
            }
        }
        if !self.store.is_needed(input) {
            self.store.remove(input);
            self.fetching = None;
        }
    }
}

/// The failure of tasks whose input cannot be received.
const UNREADABLE: Failure = Failure {
    class: "MemoryError",
    message: "an input is too long for this worker (DATA of worker::Memory), or it cannot be read",
};

/// Handles one request.
fn serve<const KEYS: usize, const DATA: usize>(
    peer: &mut Peer<'_, KEYS>,
    store: &mut Store<KEYS, DATA>,
    config: Config<'_>,
) {
    let outgoing = &mut peer.link.outgoing;
    let reply = &mut peer.reply;
    let mut is_too_long = false;
    let close = peer.link.incoming.message(|message| {
        let request = message.reader();
        let wants_reply = field(request, "reply").is_none_or(|mut reply| reply.bool() != Ok(false));
        let mut answer = |write: &dyn Fn(&mut Writer<'_>)| {
            if wants_reply {
                is_too_long = !outgoing.send(|writer| write(writer));
            }
        };
        let keys = || field(request, "keys").into_iter().flat_map(items);
        match str_field(request, "op") {
            // The acknowledgement of a reply to `get_data` is not a map.
            None => {}
            Some("get_data") => *reply = Some(DataReply::new(keys(), store)),
            Some("update_data") => match update_data(message, request, store) {
                Ok(()) => answer(&|writer| write_lengths(writer, request, store)),
                Err(failure) => answer(&|writer| {
                    let message = failure.message_with(&store.refused);
                    write_failure(writer, failure, message.as_str());
                }),
            },
            Some("free_keys") => {
                for key in keys() {
                    if let Some(id) = store.find(key) {
                        release(store, id);
                    }
                }
                answer(&|writer| {
                    writer.map(1).str("status").str("OK");
                });
            }
            Some("identity") => answer(&|writer| {
                writer.map(4).str("type").str("Worker");
                writer.str("id").str(config.name);
                writer.str("scheduler").str(config.scheduler);
                writer.str("nthreads").u64(1);
            }),
            Some("close") => return true,
            Some(_) => answer(&|writer| {
                let failure = Failure {
                    class: "NotImplementedError",
                    message: "this worker does not support the operation",
                };
                write_failure(writer, failure, failure.message());
            }),
        }
        false
    });
    peer.link.incoming.discard_message();
    match close {
        _ if is_too_long => peer.link.fail(),
        Some(false) => {}
        Some(true) => peer.link.close(),
        // The message is complete, so that the comm can go on.
        None => {
            let outgoing = &mut peer.link.outgoing;
            let failure = UNKNOWN_MESSAGE;
            outgoing.send(|writer| write_failure(writer, failure, failure.message()));
        }
    }
}

/// The answer to a message that cannot be read.
const UNKNOWN_MESSAGE: Failure = Failure::value_error("this worker cannot read the message");

/// The oldest release of a scheduler whose tasks this worker reads.
const OLDEST: (u32, u32) = (2025, 3);

/// The pause before the release of a scheduler that is refused is asked for again.
const PAUSE_REFUSED: Duration = Duration::from_secs(60);

/// The release of `distributed` in a reply to `versions`.
fn release_in(versions: Reader<'_>) -> Option<&str> {
    str_field(field(versions, "packages")?, "distributed")
}

/// Whether this worker reads the tasks of a release. One that is not a number, such as that
/// of a development version, is not refused.
fn is_supported(release: &str) -> bool {
    // The methods of `str` that split and parse may panic as far as the linker can tell.
    let mut bytes = release.bytes();
    let mut number = || {
        let mut number = None;
        for byte in bytes.by_ref().take_while(|byte| *byte != b'.') {
            let digit = u32::from(byte.wrapping_sub(b'0'));
            let before = number.unwrap_or(0_u32);
            number = Some(before.checked_mul(10)?.checked_add(digit)?);
            if digit > 9 {
                return None;
            }
        }
        number
    };
    match (number(), number()) {
        (Some(year), Some(month)) => (year, month) >= OLDEST,
        _ => true,
    }
}

/// Stores values that a client has sent.
fn update_data<const KEYS: usize, const DATA: usize>(
    message: &Received<'_>,
    request: Reader<'_>,
    store: &mut Store<KEYS, DATA>,
) -> Result<(), Failure> {
    let refused = Failure::value_error("the data is not a map of payloads");
    let mut data = field(request, "data").ok_or(refused)?;
    for _ in 0..data.map().map_err(|_| refused)? {
        let key = data.skip().map_err(|_| refused)?;
        let payload = message.payload(data).ok_or(refused)?;
        data.skip().map_err(|_| refused)?;
        let found = store.find(key);
        let id = match found {
            Some(id) => store.replace_pinned(id)?,
            None => store.add(key, State::Wanted)?,
        };
        let stored = store.make_value(id, |_, out| Value::store_payload(&payload, out));
        if let Err(failure) = stored {
            // An earlier entry stays: tasks may need its value, or fetch it
            // from others.
            if found.is_none() {
                store.remove(id);
            }
            return Err(failure);
        }
    }
    Ok(())
}

/// Writes the reply to `update_data`: the length of each value.
fn write_lengths<const KEYS: usize, const DATA: usize>(
    writer: &mut Writer<'_>,
    request: Reader<'_>,
    store: &Store<KEYS, DATA>,
) {
    writer.map(2).str("status").str("OK").str("nbytes");
    let Some(mut data) = field(request, "data") else {
        writer.map(0);
        return;
    };
    let count = data.map().unwrap_or_default();
    writer.map(count);
    for _ in 0..count {
        let key = data.skip().unwrap_or_default();
        let _ = data.skip();
        let value = store.find(key).and_then(|id| store.value(id));
        let len = value.map_or(0, |value| value.nbytes());
        writer.encoded(key).u64(len as u64);
    }
}

fn write_failure(writer: &mut Writer<'_>, failure: Failure, message: &str) {
    let mut exception = [0; 320];
    writer.map(6).str("status").str("uncaught-error");
    writer.str("text").str(message);
    let exception = failure.pickle_with(message, &mut exception);
    writer.str("exception").bin(exception);
    writer.str("traceback").nil();
    writer.str("exception_text").str(message);
    writer.str("traceback_text").str("");
}

fn write_registration<const DATA: usize>(
    writer: &mut Writer<'_>,
    config: Config<'_>,
    id: &str,
    used: usize,
    versions: &[u8],
) {
    writer.map(18).str("op").str("register-worker");
    writer.str("reply").bool(false);
    writer.str("address").str(config.contact);
    writer.str("status").str("running");
    writer.str("server_id").str(id);
    writer.str("nthreads").u64(1);
    writer.str("name").str(config.name);
    writer.str("now").f64(0.0);
    writer.str("resources").map(0);
    writer.str("memory_limit").u64(DATA as u64);
    writer.str("metrics");
    write_metrics(writer, used, 0.0);
    writer.str("pid").u64(0);
    writer.str("services").map(0);
    writer.str("local_directory").str("");
    writer.str("versions").encoded(versions);
    writer.str("nanny").nil();
    // What the scheduler's plugin reads.
    writer.str("extra").map(1).str("daskwire");
    writer.array(2).str("native").str("embedded");
    writer.str("stimulus_id").str("worker-connect");
}

/// Writes the metrics that the scheduler and its clients require.
fn write_metrics(writer: &mut Writer<'_>, used: usize, time: f64) {
    writer.map(11);
    writer.str("bandwidth").map(3).str("total").u64(100_000);
    writer.str("workers").map(0).str("types").map(0);
    writer.str("digests_total_since_heartbeat").map(0);
    writer.str("memory").u64(used as u64);
    writer.str("managed_bytes").u64(used as u64);
    writer.str("spilled_bytes").map(2);
    writer.str("memory").u64(0).str("disk").u64(0);
    writer.str("task_counts").map(0);
    writer.str("event_loop_interval").f64(0.0);
    writer.str("cpu").f64(0.0);
    writer.str("time").f64(time);
    for name in ["host_net_io", "host_disk_io"] {
        writer.str(name).map(2);
        writer.str("read_bps").f64(0.0).str("write_bps").f64(0.0);
    }
}

/// Converts a time in seconds, to the millisecond. The conversions of
/// `Duration` can panic.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // it saturates
fn duration(seconds: f64) -> Duration {
    Duration::from_millis((seconds * 1000.0) as u64)
}

/// The number at a key of a map.
fn float(map: Reader<'_>, key: &str) -> Option<f64> {
    let mut value = field(map, key)?;
    let mut as_integer = value;
    #[allow(clippy::cast_precision_loss)] // a time in seconds
    value
        .f64()
        .ok()
        .or_else(|| as_integer.i64().ok().map(|integer| integer as f64))
}
