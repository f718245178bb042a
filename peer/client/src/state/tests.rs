//! The state machine without comms.

use daskwire_messages::Value;
use daskwire_messages::protocol::{
    AdjustHeartbeatInterval, CancelledKeys, Close, KeyInMemory, LostData, Restart,
    TaskErredForClient, ToClient, UpdateGraph,
};

mod random;

use super::*;

/// A connected client, and the messages that it has sent.
struct Machine {
    state: State,
    now: Duration,
    sent: Vec<FromClient>,
    others: Vec<Action>,
}

impl Machine {
    fn new(reconnect: Reconnect) -> Self {
        let mut this = Self {
            state: State::new("client", reconnect),
            now: Duration::ZERO,
            sent: Vec::new(),
            others: Vec::new(),
        };
        this.handle(ClientInput::Connected {
            release: None,
            kept: None,
        });
        this.others.clear();
        this
    }

    fn handle(&mut self, event: ClientInput) {
        for action in self.state.handle(self.now, event) {
            match action {
                Action::Send(message) => self.sent.push(message),
                other => self.others.push(other),
            }
        }
        self.state.check();
    }

    fn receive(&mut self, message: impl Into<ToClient>) {
        self.handle(ClientInput::FromScheduler(message.into()));
    }

    fn submit(&mut self, key: &str) -> Hold {
        let keys = vec![Key::from(key)];
        let message = UpdateGraph {
            keys: Keys(keys.clone()),
            ..UpdateGraph::default()
        };
        let message = Box::new(message.into());
        self.handle(ClientInput::Submit { keys, message });
        self.state.hold(&Key::from(key)).expect("connected")
    }

    fn status(&self, hold: &Hold) -> &'static str {
        self.state
            .status(hold)
            .map_or("none", |status| status.name())
    }

    /// The messages sent since the last call: ops and keys.
    fn sent(&mut self) -> Vec<String> {
        let show = |message: FromClient| {
            let keys = match &message {
                FromClient::UpdateGraph(message) => &message.keys[..],
                FromClient::ClientDesiresKeys(message) => &message.keys,
                FromClient::ClientReleasesKeys(message) => &message.keys,
                FromClient::CancelKeys(message) => &message.keys,
                FromClient::ReportKey(message) => core::slice::from_ref(&message.key),
                _ => &[],
            };
            let keys = keys.iter().map(|key| format!(" {key}"));
            message.op().to_owned() + &keys.collect::<String>()
        };
        self.sent.drain(..).map(show).collect()
    }
}

fn in_memory(key: &str) -> KeyInMemory {
    KeyInMemory {
        key: Key::from(key),
        ..KeyInMemory::default()
    }
}

fn erred(key: &str) -> TaskErredForClient {
    TaskErredForClient {
        key: Key::from(key),
        exception: Value::from("no"),
        ..TaskErredForClient::default()
    }
}

/// The answer of a scheduler for an unknown key.
fn unknown(key: &str) -> CancelledKeys {
    CancelledKeys {
        keys: Keys(vec![Key::from(key)]),
        ..CancelledKeys::default()
    }
}

#[test]
fn a_cancelled_key_is_pending_when_it_is_submitted_again() {
    let mut client = Machine::new(Reconnect::Never);
    let old = client.submit("x");
    client.receive(in_memory("x"));
    assert_eq!(client.status(&old), "finished");
    let holds = vec![old.clone()];
    client.handle(ClientInput::Cancel {
        holds,
        force: false,
    });
    let new = client.submit("x");
    assert_ne!(old, new);
    assert_eq!(client.status(&old), "cancelled");
    assert_eq!(client.status(&new), "pending");
    assert_eq!(
        client.sent(),
        [
            "update-graph x",
            "cancel-keys x",
            "client-releases-keys x",
            "report-key client-mark-1",
            "update-graph x",
        ]
    );
    client.receive(unknown("x"));
    client.receive(in_memory("x"));
    assert_eq!(client.status(&new), "pending");
    client.receive(unknown("client-mark-1"));
    assert_eq!(client.status(&new), "pending");
    client.receive(in_memory("x"));
    assert_eq!(client.status(&new), "finished");
    assert_eq!(client.status(&old), "cancelled");
    // A cancelled key is neither released nor cancelled again, which a scheduler
    // would not survive.
    let holds = vec![old.clone()];
    client.handle(ClientInput::Cancel { holds, force: true });
    client.handle(ClientInput::Release(old.clone()));
    assert_eq!(client.status(&old), "none");
    assert_eq!(client.sent(), [""; 0]);
    client.handle(ClientInput::Release(new));
    assert_eq!(client.sent(), ["client-releases-keys x"]);
}

/// Reports about an earlier use of a key do not apply to the next.
#[test]
fn a_released_key_is_pending_when_it_is_submitted_again() {
    let mut client = Machine::new(Reconnect::Never);
    let first = client.submit("x");
    client.receive(erred("x"));
    assert_eq!(client.status(&first), "error");
    let second = client.submit("x");
    assert_eq!(first, second);
    client.handle(ClientInput::Release(first));
    client.receive(erred("x"));
    assert_eq!(client.status(&second), "error");
    client.handle(ClientInput::Release(second.clone()));
    assert_eq!(client.status(&second), "none");
    let third = client.submit("x");
    assert_eq!(
        client.sent(),
        [
            "update-graph x",
            "update-graph x",
            "report-key x",
            "client-releases-keys x",
            "report-key client-mark-1",
            "update-graph x",
        ]
    );
    // The report about the second submission
    client.receive(erred("x"));
    client.receive(unknown("client-mark-1"));
    assert_eq!(client.status(&third), "pending");
    client.receive(in_memory("x"));
    assert_eq!(client.status(&third), "finished");
}

/// The key of an ended hold does not identify the next hold of the key.
#[test]
fn the_key_of_an_ended_hold_can_be_submitted_again() {
    let mut client = Machine::new(Reconnect::Never);
    let submit_again = |client: &mut Machine, old: &Hold| {
        client.handle(ClientInput::Submit {
            keys: vec![old.key().clone()],
            message: Box::new(UpdateGraph::default().into()),
        });
        client.state.hold(old.key()).expect("connected")
    };
    let released = client.submit("x");
    client.handle(ClientInput::Release(released.clone()));
    let cancelled = submit_again(&mut client, &released);
    client.handle(ClientInput::Cancel {
        holds: vec![cancelled.clone()],
        force: false,
    });
    let new = submit_again(&mut client, &cancelled);
    let statuses = |client: &Machine| [&released, &cancelled, &new].map(|hold| client.status(hold));
    assert_eq!(statuses(&client), ["none", "cancelled", "pending"]);
    client.sent();
    // A handle that is no longer counted
    client.handle(ClientInput::Release(released.clone()));
    client.handle(ClientInput::Release(cancelled.clone()));
    assert_eq!(statuses(&client), ["none", "none", "pending"]);
    assert_eq!(client.sent(), [""; 0]);
    // Those of another state machine
    let mut other = Machine::new(Reconnect::Never);
    let own = other.submit("x");
    other.sent();
    for event in [
        ClientInput::Clone(new.clone()),
        ClientInput::Release(new.clone()),
        ClientInput::Stored(vec![new.clone()]),
        ClientInput::Cancel {
            holds: vec![new.clone()],
            force: true,
        },
    ] {
        other.handle(event);
    }
    assert_eq!(other.sent(), [""; 0]);
    assert_eq!(
        [&own, &new].map(|hold| other.status(hold)),
        ["pending", "none"]
    );
}

/// A count of handles that can no longer be exact does not release the key too early.
#[test]
fn a_key_with_too_many_handles_stays_held() {
    let mut client = Machine::new(Reconnect::Never);
    let hold = client.submit("x");
    let held = client.state.keys.get_mut(&hold.key).expect("it is held");
    held.handle_count = HandleCount(u32::MAX - 1);
    client.submit("x");
    client.submit("x");
    client.sent();
    for _ in 0..3 {
        client.handle(ClientInput::Release(hold.clone()));
    }
    assert_eq!(client.sent(), [""; 0]);
    assert_eq!(client.status(&hold), "pending");
}

/// An answered mark answers those before it, but not the later ones.
#[test]
fn each_hold_waits_for_the_last_mark_before_it() {
    let mut client = Machine::new(Reconnect::Within(Duration::MAX));
    let mut use_again = |key: &str| {
        let hold = client.submit(key);
        client.handle(ClientInput::Release(hold));
        client.submit(key)
    };
    let [first, second, third] = ["a", "b", "c"].map(&mut use_again);
    let mut statuses_after = |mark: &str| {
        client.receive(unknown(mark));
        for key in ["a", "b", "c"] {
            client.receive(in_memory(key));
        }
        [&first, &second, &third].map(|hold| client.status(hold))
    };
    let (none, two) = (["pending"; 3], ["finished", "finished", "pending"]);
    assert_eq!(statuses_after("not-a-mark"), none);
    assert_eq!(statuses_after("client-mark-2"), two);
    assert_eq!(statuses_after("client-mark-1"), two);
    assert_eq!(statuses_after("client-mark-3"), ["finished"; 3]);
    // Holds of a new connection do not wait for marks of the earlier one.
    client.handle(ClientInput::Release(third));
    let fourth = client.submit("c");
    client.receive(in_memory("c"));
    assert_eq!(client.status(&fourth), "pending");
    let reason = "the cable was cut".to_owned();
    client.handle(ClientInput::Disconnected { reason });
    client.handle(ClientInput::Connected {
        release: None,
        kept: None,
    });
    let fifth = client.submit("c");
    client.receive(in_memory("c"));
    assert_eq!(client.status(&fifth), "finished");
}

#[test]
fn keys_that_are_used_once_take_few_marks() {
    let mut client = Machine::new(Reconnect::Never);
    let mut marks_of = |count: usize, round: usize| {
        let mut marks = 0;
        for number in 0..count {
            let hold = client.submit(&format!("x-{round}-{number}"));
            client.handle(ClientInput::Release(hold));
            for sent in client.sent() {
                if let Some(mark) = sent.strip_prefix("report-key ") {
                    client.receive(unknown(mark));
                    marks += 1;
                }
            }
        }
        marks
    };
    let (few, many) = (marks_of(MAX_RELEASED * 2, 1), marks_of(MAX_RELEASED * 4, 2));
    assert!((1..=2).contains(&few), "{few} marks");
    assert!(
        many <= 2 * few + 2,
        "{many} marks for twice as many keys as {few}"
    );
}

#[test]
fn restart_cancels_forgotten_tasks() {
    let mut client = Machine::new(Reconnect::Never);
    let old = client.submit("old");
    client.receive(in_memory("old"));
    // Submitted after the restart, before it is reported to the client
    let new = client.submit("new");
    client.sent();
    client.receive(Restart::default());
    assert_eq!(
        client.sent(),
        [
            "report-key new",
            "report-key old",
            "report-key client-mark-1"
        ]
    );
    client.receive(unknown("old"));
    client.receive(unknown("client-mark-1"));
    client.receive(in_memory("new"));
    assert_eq!(client.status(&new), "finished");
    let Some(Status::Cancelled { reason }) = client.state.status(&old) else {
        panic!("{old:?}")
    };
    assert_eq!(reason, "the cluster was restarted");
    let again = client.submit("old");
    assert_eq!(client.status(&again), "pending");
    assert_eq!(
        client.sent(),
        [
            "client-releases-keys old",
            "report-key client-mark-2",
            "update-graph old"
        ]
    );
    client.receive(unknown("client-mark-2"));
    client.receive(in_memory("old"));
    assert_eq!(client.status(&again), "finished");
}

/// The scheduler cancels a key for another client, and then reads that this one submitted it.
#[test]
fn a_first_submission_that_crosses_a_cancellation_is_released() {
    let mut client = Machine::new(Reconnect::Never);
    let hold = client.submit("x");
    client.receive(unknown("x"));
    assert_eq!(client.status(&hold), "cancelled");
    assert_eq!(client.sent(), ["update-graph x", "client-releases-keys x"]);
    client.handle(ClientInput::Release(hold));
    assert_eq!(client.sent(), [""; 0]);
}

/// The scheduler cancels a key, and then reads that it was submitted again.
#[test]
fn a_submission_that_crosses_a_cancellation_is_released() {
    let mut client = Machine::new(Reconnect::Never);
    let hold = client.submit("x");
    assert_eq!(client.submit("x"), hold);
    client.receive(unknown("x"));
    assert_eq!(client.status(&hold), "cancelled");
    let next = client.submit("x");
    assert_eq!(
        client.sent(),
        [
            "update-graph x",
            "update-graph x",
            "client-releases-keys x",
            "report-key client-mark-1",
            "update-graph x",
        ]
    );
    client.receive(erred("x"));
    client.receive(unknown("client-mark-1"));
    assert_eq!(client.status(&next), "pending");
}

#[test]
fn a_broken_connection_ends_holds_and_is_made_again() {
    let second = Duration::from_secs(1);
    let mut client = Machine::new(Reconnect::Within(10 * second));
    let [failed, done, waiting] = ["failed", "done", "waiting"].map(|key| client.submit(key));
    client.receive(erred("failed"));
    client.receive(in_memory("done"));
    client.handle(ClientInput::Release(waiting.clone()));
    client.submit("waiting");
    assert_eq!(client.state.unsettled(), Some(1));
    client.now = 100 * second;
    client.others.clear();
    let reason = || "the cable was cut".to_owned();
    client.handle(ClientInput::Disconnected { reason: reason() });
    assert_eq!(client.status(&failed), "error");
    assert_eq!(client.status(&done), "lost");
    assert_eq!(client.state.unsettled(), None);
    let until = 110 * second;
    assert!(
        matches!(
            &client.others[..],
            [
                Action::Disconnect { .. },
                Action::Status { .. },
                Action::Status { .. },
                Action::Answered { mark: 1 },
                Action::Connect { at, until: last },
            ] if *at == client.now && *last == until
        ),
        "{:?}",
        client.others
    );
    // Nothing is sent meanwhile.
    client.sent();
    client.handle(ClientInput::Desire(Key::from("x")));
    client.handle(ClientInput::Settle);
    client.handle(ClientInput::Release(done));
    client.now += 5 * second;
    client.handle(ClientInput::Tick);
    assert_eq!(client.sent(), [""; 0]);
    assert_eq!(client.state.hold(&Key::from("x")), None);
    client.handle(ClientInput::Connected {
        release: None,
        kept: None,
    });
    let again = client.submit("failed");
    assert_eq!(client.status(&again), "pending");
    assert_eq!(client.status(&failed), "error");
    client.receive(in_memory("failed"));
    assert_eq!(client.status(&again), "finished");
    // Keys held by the earlier scheduler are not released from this one.
    client.sent();
    client.handle(ClientInput::Release(failed));
    assert_eq!(client.sent(), [""; 0]);
    client.handle(ClientInput::Release(again));
    assert_eq!(client.sent(), ["client-releases-keys failed"]);
}

#[test]
fn attempts_to_connect_become_rarer_and_end() {
    let mut client = Machine::new(Reconnect::Within(Duration::from_secs(5)));
    let hold = client.submit("x");
    client.receive(Close {
        reason: Some("maintenance".to_owned()),
        ..Close::default()
    });
    assert_eq!(client.status(&hold), "lost");
    let mut pauses = Vec::new();
    while let Some(Action::Connect { at, .. }) = client.others.pop() {
        pauses.push((at - client.now).as_millis());
        client.now = at;
        client.handle(connect_failed(false));
    }
    assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 1850]);
    let lost = client.state.disconnected().expect("no connection");
    assert_eq!(
        lost.reason,
        "the scheduler closed: maintenance, and reconnecting failed: refused"
    );
    // Further events have no effect.
    client.handle(ClientInput::Connected {
        release: None,
        kept: None,
    });
    assert!(!client.state.is_connected());
    // A permanent failure ends the client at once.
    let mut client = Machine::new(Reconnect::Within(Duration::MAX));
    let reason = "the cable was cut".to_owned();
    client.handle(ClientInput::Disconnected { reason });
    client.handle(connect_failed(true));
    assert!(client.state.has_ended());
}

fn connect_failed(is_permanent: bool) -> ClientInput {
    ClientInput::ConnectFailed {
        reason: "refused".to_owned(),
        is_permanent,
    }
}

#[test]
fn closing_notifies_the_scheduler_once_and_ends_all_holds() {
    let mut client = Machine::new(Reconnect::Within(Duration::MAX));
    let hold = client.submit("x");
    client.sent();
    client.handle(ClientInput::Close);
    client.handle(ClientInput::Close);
    assert_eq!(client.sent(), ["close-client", "close-stream"]);
    let reason = "the client was closed".to_owned();
    assert_eq!(
        client.state.status(&hold),
        Some(Status::Disconnected { reason })
    );
    let reason = "end of the stream".to_owned();
    client.others.clear();
    client.handle(ClientInput::Disconnected { reason });
    client.receive(in_memory("x"));
    client.handle(ClientInput::Release(hold));
    assert!(client.sent.is_empty() && client.others.is_empty());
}

#[test]
fn heartbeats_follow_the_interval_of_the_scheduler() {
    let mut client = Machine::new(Reconnect::Never);
    let mut wake_after = |interval: Option<f64>| {
        if let Some(interval) = interval {
            client.receive(AdjustHeartbeatInterval {
                interval,
                ..AdjustHeartbeatInterval::default()
            });
        }
        // The interval is that of the next heartbeat.
        client.now = client.state.next_heartbeat;
        client.handle(ClientInput::Tick);
        client.handle(ClientInput::Tick);
        assert_eq!(client.sent(), ["heartbeat-client"]);
        match client.others.pop() {
            Some(Action::Wake { at }) => at - client.now,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(wake_after(None), HEARTBEAT);
    assert_eq!(wake_after(Some(0.5)), Duration::from_millis(500));
    assert_eq!(wake_after(Some(0.0)), MIN_HEARTBEAT);
    assert_eq!(wake_after(Some(1e18)), MAX_HEARTBEAT);
    assert_eq!(wake_after(Some(f64::NAN)), MAX_HEARTBEAT);
}

#[test]
fn answers_to_marks_that_were_not_sent_are_ignored() {
    let mut client = Machine::new(Reconnect::Never);
    let old = client.submit("x");
    client.handle(ClientInput::Release(old));
    for mark in ["2", "18446744073709551615", "-1", "", "x"] {
        client.receive(unknown(&format!("client-mark-{mark}")));
    }
    let new = client.submit("x");
    client.receive(in_memory("x"));
    assert_eq!(client.status(&new), "pending");
    client.receive(unknown("client-mark-1"));
    client.receive(in_memory("x"));
    assert_eq!(client.status(&new), "finished");
}

#[test]
fn stored_and_refreshed_keys() {
    let mut client = Machine::new(Reconnect::Never);
    client.handle(ClientInput::Store(vec![Key::from("x")]));
    let hold = client.state.hold(&Key::from("x")).expect("connected");
    assert_eq!(client.status(&hold), "pending");
    client.handle(ClientInput::Stored(vec![hold.clone()]));
    assert_eq!(client.status(&hold), "finished");
    assert_eq!(client.sent(), [""; 0]);
    client.handle(ClientInput::Refresh(vec![
        Key::from("x"),
        Key::from("other"),
    ]));
    assert_eq!(client.status(&hold), "pending");
    assert_eq!(client.sent(), ["report-key x"]);
    client.receive(in_memory("x"));
    client.receive(LostData {
        key: Key::from("x"),
        ..LostData::default()
    });
    assert_eq!(client.status(&hold), "pending");
    // A hold that was cancelled meanwhile is not stored.
    let holds = vec![hold.clone()];
    client.handle(ClientInput::Cancel {
        holds,
        force: false,
    });
    client.sent();
    client.handle(ClientInput::Stored(vec![hold.clone()]));
    assert_eq!(client.status(&hold), "cancelled");
    assert_eq!(client.sent(), ["client-releases-keys x"]);
}

/// A scheduler forgets scattered data when the last worker that has it leaves.
#[test]
fn forgotten_data_is_lost() {
    let mut client = Machine::new(Reconnect::Never);
    let mut hold = |key: &str| {
        client.handle(ClientInput::Store(vec![Key::from(key)]));
        let hold = client.state.hold(&Key::from(key)).expect("connected");
        client.handle(ClientInput::Stored(vec![hold.clone()]));
        hold
    };
    let [reported, asked, cancelled, restarted] = ["a", "b", "c", "d"].map(&mut hold);
    client.receive(CancelledKeys {
        reason: Some("already forgotten".to_owned()),
        ..unknown("a")
    });
    client.handle(ClientInput::Refresh(vec![Key::from("b"), Key::from("c")]));
    client.receive(unknown("b"));
    client.receive(CancelledKeys {
        reason: Some("by a person".to_owned()),
        ..unknown("c")
    });
    client.receive(Restart::default());
    client.receive(unknown("d"));
    assert_eq!(
        [&reported, &asked, &cancelled, &restarted].map(|hold| client.status(hold)),
        ["lost", "lost", "cancelled", "cancelled"]
    );
    assert_eq!(
        client.sent(),
        [
            "client-releases-keys a",
            "report-key b",
            "report-key c",
            "client-releases-keys b",
            "client-releases-keys c",
            "report-key d",
            "report-key client-mark-1",
            "client-releases-keys d",
        ]
    );
}

/// A graph that the scheduler cannot read leaves an error, but no task.
#[test]
fn a_failed_key_that_is_submitted_again_is_pending() {
    let mut client = Machine::new(Reconnect::Never);
    let first = client.submit("x");
    client.receive(erred("x"));
    let second = client.submit("x");
    assert_eq!(first, second);
    assert_eq!(client.status(&second), "pending");
    assert_eq!(
        client.sent(),
        ["update-graph x", "update-graph x", "report-key x"]
    );
    client.receive(in_memory("x"));
    assert_eq!(client.status(&second), "finished");
    // If it fails again, it keeps the error, although the scheduler has no task.
    let failed = client.submit("y");
    client.receive(erred("y"));
    client.submit("y");
    client.receive(erred("y"));
    client.receive(unknown("y"));
    assert_eq!(client.status(&failed), "error");
}
