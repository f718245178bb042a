//! The state machine of a client, driven by its user and the messages of a
//! scheduler.

use core::time::Duration;
use std::collections::HashMap;

use crate::message::Message as _;
use daskwire_client::state::{Action, ClientInput, Hold, Kept, Reconnect, State, Status};
use daskwire_messages::protocol::{
    CancelledKeys, FromClient, GraphsAccepted, KeyInMemory, Keys, LostData, Restart,
    TaskErredForClient, TaskRetried, ToClient, UpdateGraph,
};
use daskwire_messages::{Key, Value};

use super::{BUDGET, sent};
use crate::input::Choices;

/// Checks that for any messages of the scheduler and any use the client's state is
/// consistent after each event, that each change of a status is reported, that
/// nothing is sent without a connection, and that nothing is left when all handles
/// are released.
///
/// The input: whether to reconnect, then steps.
pub(crate) fn client_machine(input: &[u8]) {
    let mut choices = Choices(input);
    BUDGET.check(input.len(), || {
        let reconnect = match choices.below(4) {
            0 => Reconnect::Never,
            seconds => Reconnect::Within(Duration::from_secs(seconds as u64)),
        };
        let mut client = Client {
            state: State::new("client", reconnect),
            now: Duration::ZERO,
            handles: Vec::new(),
            reported: HashMap::new(),
            wake_at: Duration::MAX,
            attempt: None,
            answered: 0,
        };
        client.connect(&mut choices);
        while !choices.is_empty() {
            client.step(&mut choices);
        }
        client.clear();
    });
}

struct Client {
    state: State,
    now: Duration,
    /// One entry for each handle.
    handles: Vec<Hold>,
    /// The statuses of holds, as actions have reported them.
    reported: HashMap<Hold, Status>,
    wake_at: Duration,
    /// The time at which to connect.
    attempt: Option<Duration>,
    answered: u64,
}

impl Client {
    fn handle(&mut self, event: ClientInput) {
        let was_connected =
            self.state.is_connected() || matches!(event, ClientInput::Connected { .. });
        let actions = self.state.handle(self.now, event);
        for action in actions {
            match action {
                Action::Send(message) => {
                    assert!(was_connected, "{message:?} is sent without a connection");
                    sent::<FromClient>(&vec![message]);
                }
                Action::Status { hold, status } => {
                    self.reported.insert(hold, status);
                }
                Action::Answered { mark } => {
                    assert!(mark >= self.answered, "marks are answered in order");
                    self.answered = mark;
                }
                Action::Wake { at } => self.wake_at = at,
                Action::Connect { at, until } => {
                    assert!(at <= until);
                    self.attempt = Some(at);
                }
                _ => {}
            }
        }
        self.state.check();
        for hold in &self.handles {
            let status = self.state.status(hold).expect("it has handles");
            let reported = self.reported.get(hold);
            assert_eq!(
                Some(&status),
                reported.or(Some(&Status::Pending)),
                "{hold:?}"
            );
        }
    }

    /// Connects the client to a scheduler that may keep its keys, and may know it.
    fn connect(&mut self, choices: &mut Choices<'_>) {
        let event = Self::connected(choices);
        self.handle(event);
    }

    fn connected(choices: &mut Choices<'_>) -> ClientInput {
        let kept = Kept {
            graphs_accepted: None,
            lost: None,
        };
        ClientInput::Connected {
            release: None,
            kept: match choices.below(8) {
                0..=3 => None,
                4 => Some(kept),
                count => Some(Kept {
                    graphs_accepted: Some(count as u64 - 5),
                    ..kept
                }),
            },
        }
    }

    /// Handles an event that adds a handle for each of the keys, if the client is
    /// connected.
    fn add_handles(&mut self, event: ClientInput, keys: &[Key]) {
        let is_connected = self.state.is_connected();
        self.handle(event);
        if is_connected {
            let hold = |key| self.state.hold(key).expect("it is held now");
            let holds: Vec<Hold> = keys.iter().map(hold).collect();
            self.handles.extend(holds);
        }
    }

    fn release(&mut self, index: usize) {
        let hold = self.handles.swap_remove(index);
        self.handle(ClientInput::Release(hold.clone()));
        let is_held = self.handles.contains(&hold);
        assert_eq!(self.state.status(&hold).is_some(), is_held);
    }

    fn hold(&self, choices: &mut Choices<'_>) -> Option<Hold> {
        let index = choices.below(self.handles.len());
        self.handles.get(index).cloned()
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let event = match choices.below(32) {
            0..=4 => {
                let keys = choices.keys();
                let message = UpdateGraph {
                    keys: Keys(keys.clone()),
                    ..UpdateGraph::default()
                };
                let event = ClientInput::Submit {
                    keys: keys.clone(),
                    message: Box::new(message.into()),
                };
                return self.add_handles(event, &keys);
            }
            5 => {
                let key = choices.key();
                return self.add_handles(ClientInput::Desire(key.clone()), &[key]);
            }
            6 => {
                let keys = choices.keys();
                let first = self.handles.len();
                self.add_handles(ClientInput::Store(keys.clone()), &keys);
                let holds = self.handles[first..].to_vec();
                match choices.below(3) {
                    0 => return,
                    _ => ClientInput::Stored(holds),
                }
            }
            7 => {
                if let Some(hold) = self.hold(choices) {
                    self.handle(ClientInput::Clone(hold.clone()));
                    self.handles.push(hold);
                }
                return;
            }
            8..=10 => {
                let index = choices.below(self.handles.len());
                if index < self.handles.len() {
                    self.release(index);
                }
                return;
            }
            11 => ClientInput::Cancel {
                holds: (0..choices.below(3))
                    .filter_map(|_| self.hold(choices))
                    .collect(),
                force: choices.byte() & 1 == 1,
            },
            12 => ClientInput::Refresh(choices.keys()),
            13 => ClientInput::Settle,
            14 => match choices.below(2) {
                0 => ClientInput::DesireAs {
                    client: "other".to_owned(),
                    keys: choices.keys(),
                },
                _ => ClientInput::ReleaseAs {
                    client: "other".to_owned(),
                    keys: choices.keys(),
                },
            },
            15 | 16 => {
                self.now += Duration::from_millis(choices.u16().into());
                match self.attempt.take_if(|at| *at <= self.now) {
                    Some(_) if choices.below(3) == 0 => connect_failed(),
                    Some(_) => Self::connected(choices),
                    None if self.now >= self.wake_at => ClientInput::Tick,
                    None => return,
                }
            }
            17 => match choices.below(16) {
                0 => ClientInput::Close,
                1 => ClientInput::End {
                    reason: "dropped".to_owned(),
                },
                2 => ClientInput::Tick,
                3 => connect_failed(),
                4 => Self::connected(choices),
                5..=8 => ClientInput::Disconnected {
                    reason: "lost".to_owned(),
                },
                _ => return,
            },
            kind => {
                for message in messages(kind, choices) {
                    self.handle(ClientInput::FromScheduler(message));
                }
                return;
            }
        };
        self.handle(event);
    }

    /// Releases all handles, with and without a connection.
    fn clear(mut self) {
        while !self.handles.is_empty() {
            self.release(0);
        }
        self.handle(ClientInput::Close);
        self.handle(ClientInput::End {
            reason: "the end".to_owned(),
        });
        assert!(!self.state.is_connected());
        self.state.check();
        assert_eq!(self.state.hold_count(), 0, "holds are left");
    }
}

/// Messages of a scheduler.
fn messages(kind: usize, choices: &mut Choices<'_>) -> Vec<ToClient> {
    let message = match kind {
        18..=20 => ToClient::from(KeyInMemory {
            key: choices.key(),
            ..KeyInMemory::default()
        }),
        21 | 22 => ToClient::from(LostData {
            key: choices.key(),
            ..LostData::default()
        }),
        23 | 24 => ToClient::from(CancelledKeys {
            keys: Keys(choices.keys()),
            ..CancelledKeys::default()
        }),
        25 | 26 => ToClient::from(TaskErredForClient {
            key: choices.key(),
            exception: Value::from("an exception"),
            ..TaskErredForClient::default()
        }),
        27 => ToClient::from(TaskRetried {
            key: choices.key(),
            ..TaskRetried::default()
        }),
        28 if choices.below(4) == 0 => ToClient::from(Restart::default()),
        29 => ToClient::from(GraphsAccepted {
            count: choices.below(8) as u64,
            ..GraphsAccepted::default()
        }),
        _ => return ToClient::decode_batch(&choices.raw()).unwrap_or_default(),
    };
    sent(&vec![message])
}

fn connect_failed() -> ClientInput {
    ClientInput::ConnectFailed {
        reason: "refused".to_owned(),
        is_permanent: false,
    }
}
