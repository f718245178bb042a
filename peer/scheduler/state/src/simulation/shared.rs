//! Random requests about shared objects, with futures of random tasks.

use daskwire_extensions::{Change, is_holder};

use super::*;

const QUEUE: &str = "q";

/// Requests, their replies, and what is left to confirm.
#[derive(Default)]
pub(super) struct Shared {
    last_id: u64,
    /// The requests that are not known to have ended.
    open: Vec<(RequestId, Request)>,
    pub(super) replies: BTreeMap<RequestId, Result<Value, RequestRefusal>>,
    confirmations: Vec<FromClient>,
}

/// A client that reads shared objects, and wants what it gets until it leaves.
const READER: ClientId = ClientId(1_000);

impl Simulation {
    pub(super) fn open_shared(&mut self) {
        self.handle(SchedulerInput::ClientJoined {
            id: READER,
            name: "reader".to_owned(),
            versions: Value::None,
            returning: None,
        });
        self.request(SemaphoreRegister {
            name: Key::from("s"),
            max_leases: 2,
            lease_timeout: Some(1.0),
            ..SemaphoreRegister::default()
        });
        self.request(QueueCreate {
            name: Key::from(QUEUE),
            maxsize: Some(3),
            ..QueueCreate::default()
        });
    }

    pub(super) fn request(&mut self, request: impl Into<Request>) {
        self.shared.last_id += 1;
        let id = RequestId(self.shared.last_id);
        let request = request.into();
        self.shared.open.push((id, request.clone()));
        let request = Box::new(request);
        self.handle(SchedulerInput::Requested { id, request });
    }

    /// The id of the last request.
    pub(super) fn last_request(&self) -> RequestId {
        RequestId(self.shared.last_id)
    }

    /// Forgets a request whose reply was read.
    pub(super) fn close_request(&mut self, id: RequestId) {
        self.shared.open.retain(|(open, _)| *open != id);
    }

    /// Ends a random request: it is answered, or its client has gone.
    fn end_request(&mut self, is_dropped: bool) {
        let index = self.number(self.shared.open.len());
        let Some((id, request)) = self.shared.open.get(index).cloned() else {
            return;
        };
        let reply = self.shared.replies.remove(&id);
        if is_dropped {
            self.shared.open.swap_remove(index);
            return self.handle(SchedulerInput::RequestDropped(id));
        }
        let Some(reply) = reply else {
            return;
        };
        self.shared.open.swap_remove(index);
        self.handle(SchedulerInput::Replied(id));
        let Ok(record) = reply else {
            return;
        };
        if record.get("type").and_then(Value::as_str) != Some("Future") {
            return;
        }
        let key = record.get("value").and_then(Value::as_str);
        let key = Key::from(key.expect("a string"));
        let confirmation: FromClient = match request {
            Request::VariableGet(request) => VariableReceived {
                name: request.name,
                key,
                token: record
                    .get("token")
                    .and_then(Value::as_str)
                    .expect("a string")
                    .to_owned(),
                ..VariableReceived::default()
            }
            .into(),
            Request::QueueGet(request) => QueueReceived {
                name: request.name,
                key,
                ..QueueReceived::default()
            }
            .into(),
            other => panic!("{other:?}"),
        };
        self.shared.confirmations.push(confirmation);
    }

    pub(super) fn share(&mut self) {
        let name = Key::from(["v", "w"][self.number(2)]);
        let key = Key::from(self.key());
        let count = self.number(2);
        let holder = Key::from(["h", "i", "j"][self.number(3)]);
        match self.number(20) {
            0 | 1 => self.request(VariableSet {
                name,
                key: Some(key),
                timeout: Some(Value::from(1)),
                ..VariableSet::default()
            }),
            2 => self.request(VariableGet {
                name,
                timeout: Some(1.0),
                ..VariableGet::default()
            }),
            3 => self.request(QueuePut {
                name: Key::from(QUEUE),
                key: Some(key),
                timeout: Some(1.0),
                ..QueuePut::default()
            }),
            4 => self.request(QueueGet {
                name: Key::from(QUEUE),
                timeout: Some(1.0),
                ..QueueGet::default()
            }),
            5 => self.request(PublishPut {
                name: Some(name),
                keys: vec![key, Key::from("t-01")],
                override_existing: Some(true),
                ..PublishPut::default()
            }),
            6 => self.request(PublishDelete {
                name: Some(name),
                ..PublishDelete::default()
            }),
            7 => {
                let message = VariableDelete {
                    name,
                    ..VariableDelete::default()
                };
                self.handle(SchedulerInput::FromClient(READER, message.into()));
            }
            8 => {
                if let Some(message) = self.shared.confirmations.pop() {
                    self.handle(SchedulerInput::FromClient(READER, message));
                }
            }
            9 => self.end_request(true),
            10 => self.request(EventSet {
                name,
                ..EventSet::default()
            }),
            11 => self.request(EventClear {
                name,
                ..EventClear::default()
            }),
            12 => self.request(SemaphoreAcquire {
                name: Key::from("s"),
                lease_id: holder,
                timeout: Some(1.0),
                ..SemaphoreAcquire::default()
            }),
            13 => self.request(SemaphoreRelease {
                name: Key::from("s"),
                lease_id: holder,
                ..SemaphoreRelease::default()
            }),
            14 => self.request(MultiLockAcquire {
                id: holder,
                locks: vec![name, Key::from("x")],
                num_locks: Some(count as i64 + 1),
                timeout: Some(1.0),
                ..MultiLockAcquire::default()
            }),
            15 => self.request(MultiLockRelease {
                id: holder,
                ..MultiLockRelease::default()
            }),
            16 => self.request(QueuePut {
                name: Key::from(QUEUE),
                data: Some(Value::from(self.shared.last_id)),
                timeout: Some(1.0),
                ..QueuePut::default()
            }),
            _ => self.end_request(false),
        }
    }

    /// Ends all requests, and deletes all objects.
    pub(super) fn close_shared(&mut self) {
        while !self.shared.open.is_empty() {
            self.end_request(true);
        }
        self.request(SemaphoreClose {
            name: Key::from("s"),
            ..SemaphoreClose::default()
        });
        for id in ["h", "i", "j"].map(Key::from) {
            self.request(MultiLockRelease {
                id,
                ..MultiLockRelease::default()
            });
        }
        for name in ["v", "w"].map(Key::from) {
            self.request(EventClear {
                name: name.clone(),
                ..EventClear::default()
            });
            self.request(PublishDelete {
                name: Some(name.clone()),
                ..PublishDelete::default()
            });
            let message = VariableDelete {
                name,
                ..VariableDelete::default()
            };
            self.handle(SchedulerInput::FromClient(READER, message.into()));
        }
        let message = QueueRelease {
            name: Key::from(QUEUE),
            ..QueueRelease::default()
        };
        self.handle(SchedulerInput::FromClient(READER, message.into()));
        for message in core::mem::take(&mut self.shared.confirmations) {
            self.handle(SchedulerInput::FromClient(READER, message));
        }
        self.handle(SchedulerInput::ClientLeft(READER));
        if self.is_plain {
            // What was handed over before a kill is not confirmed.
            self.now += Duration::from_secs(301);
            self.handle(SchedulerInput::Tick);
        }
    }

    /// What is shared, and the results that are held for it.
    pub(super) fn shared_objects(&self) -> (Vec<Change>, BTreeSet<(String, Key)>) {
        let mut held = BTreeSet::new();
        for (_, task) in self.state.tasks.iter() {
            let clients = task.wanted_by.iter();
            let clients = clients.filter_map(|id| self.state.clients.get(id));
            for client in clients.filter(|client| is_holder(&client.name)) {
                held.insert((client.name.to_string(), task.key.clone()));
            }
        }
        (self.state.extensions.objects(), held)
    }

    /// Ends all requests with their comms. The client that has sent them returns.
    pub(super) fn return_reader(&mut self) {
        self.shared.open.clear();
        self.shared.replies.clear();
        self.handle(SchedulerInput::ClientJoined {
            id: READER,
            name: "reader".to_owned(),
            versions: Value::None,
            returning: Some(true),
        });
    }
}
