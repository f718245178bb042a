//! Requests that the state replies to, at once or later.

use daskwire_extensions::{Answer, Effect, Record, RequestId, SemaphoreOverview, task_of};
use daskwire_messages::Value;
use daskwire_messages::protocol::{FromClient, Request};

use super::model::TaskStage;
use super::shuffles::is_about_run;
use super::{Action, ClientId, State};

impl State {
    /// Handles a request.
    pub(super) fn request(&mut self, id: RequestId, request: Request) {
        if is_about_run(&request) {
            return self.shuffle_request(id, request);
        }
        self.extensions.advance(self.now);
        let unknown = task_of(&request);
        let unknown = unknown.filter(|key| !self.by_key.contains_key(key));
        match unknown.cloned() {
            Some(key) => self.extensions.await_task(id, key, request),
            None => self.extensions.request(id, request),
        }
    }

    /// Handles that the reply to a request was sent, or that its client has gone.
    pub(super) fn request_ended(&mut self, id: RequestId, is_replied: bool) {
        if self.shuffles.drop_request(id) {
            return;
        }
        self.extensions.advance(self.now);
        match is_replied {
            true => self.extensions.replied(id),
            false => self.extensions.dropped(id),
        }
    }

    /// Handles a message about shared objects on the stream of a client.
    pub(super) fn shared_message(&mut self, id: ClientId, message: FromClient) {
        let received = match &message {
            FromClient::VariableReceived(message) => Some(message.key.clone()),
            FromClient::QueueReceived(message) => Some(message.key.clone()),
            _ => None,
        };
        if let Some(key) = received {
            self.desire_part(id, self.confirmation_of(id), vec![key]);
        }
        self.extensions.advance(self.now);
        self.extensions.message(message);
    }

    /// Executes the effects of requests, and with `resume` continues those whose tasks have become
    /// known. Called at the end of each event.
    pub(super) fn settle_requests(&mut self, resume: bool) {
        if resume {
            self.extensions.resume(|key| self.by_key.contains_key(key));
        }
        let effects = self.extensions.effects();
        let mut has_changed = false;
        for effect in effects {
            match effect {
                Effect::Reply(id, reply) => {
                    let reply = reply.map(|answer| self.answer(answer));
                    self.actions.push(Action::Reply(id, reply));
                }
                Effect::Changed(change) => self.journal_change(&change),
                Effect::Hold { holder, key } => {
                    let holder = self.holder(&holder);
                    self.desire_part(holder, self.confirmation_of(holder), vec![key]);
                    has_changed = true;
                }
                Effect::Release { holder, key } => {
                    let holder = self.by_name.get(holder.as_str()).copied();
                    if let (Some(holder), Some(task)) = (holder, self.by_key.get(&key)) {
                        self.release(holder, *task);
                        has_changed = true;
                    }
                }
            }
        }
        if has_changed {
            self.settle();
        }
    }

    /// At most `max` semaphores, with locks, in the order of their names.
    pub fn semaphores(&self, max: usize) -> Vec<SemaphoreOverview> {
        self.extensions.semaphores(max)
    }

    /// The number of requests that wait for their replies.
    pub fn waiting_request_count(&self) -> usize {
        self.extensions.waiting_count()
    }

    fn answer(&self, answer: Answer) -> Value {
        match answer {
            Answer::Value(value) => value,
            Answer::Record(record) => self.record_value(&record, None),
            Answer::Records(records) => {
                let records = records.iter();
                Value::list(records.map(|record| self.record_value(record, None)))
            }
            Answer::Read(record, token) => self.record_value(&record, Some(token)),
        }
    }

    /// A shared value as Dask's clients read it, with the state of the task for a future.
    fn record_value(&self, record: &Record, token: Option<u64>) -> Value {
        let key = match record {
            Record::Data(data) => {
                return Value::dict([("type", Value::from("msgpack")), ("value", data.clone())]);
            }
            Record::Future(key) => key,
        };
        let task = self.by_key.get(key).map(|id| &self.tasks[*id]);
        let state = task.map_or("lost", |task| task.stage.name());
        let mut fields = vec![
            ("type", Value::from("Future")),
            ("value", key.to_value()),
            ("state", Value::from(state)),
        ];
        if let Some(token) = token {
            fields.push(("token", Value::from(token.to_string())));
        }
        if let Some(TaskStage::Erred(failure)) = task.map(|task| &task.stage) {
            let traceback = failure.traceback.clone().unwrap_or_default();
            fields.push(("exception", failure.exception.clone()));
            fields.push(("traceback", traceback));
        }
        Value::dict(fields)
    }
}
