//! Events that are published in topics.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use daskwire_messages::Value;
use daskwire_messages::protocol::{
    Event as EventMessage, Events, LogEventRequest, SubscribeTopic, UnsubscribeTopic,
};
use daskwire_messages::value::IntoValue;
use daskwire_rpc::RequestError;
use daskwire_rpc::panic_flag::PanicFlag;
use futures_util::Stream;
use tokio::sync::mpsc;

use super::operation::Operation;
use super::request::{converted, value_of};
use super::shared::Shared;
use super::{Client, Disconnected};

/// Maximum number of events that wait for a program to read them.
const MAX_WAITING: usize = 4096;

/// An event of a topic.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopicEvent {
    /// The scheduler's time, in seconds since 1970.
    pub time: f64,
    /// The event.
    pub message: Value,
}

impl TopicEvent {
    fn from_value(value: Value) -> Result<Self, RequestError> {
        let parts: Vec<Value> = converted("events", value)?;
        let mut parts = parts.into_iter();
        let time = converted("events", parts.next().unwrap_or_default())?;
        let message = parts.next().unwrap_or_default();
        Ok(Self { time, message })
    }
}

/// A subscription to a topic: a stream of its events, see [`Client::subscribe_topic`].
/// The stream ends when the client ends; dropping it cancels the subscription.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    topic: String,
    events: mpsc::Receiver<TopicEvent>,
    missed_count: Arc<AtomicU64>,
}

impl Subscription {
    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The next event; `None` after the end of the client. Cancel safe.
    pub async fn next(&mut self) -> Option<TopicEvent> {
        self.events.recv().await
    }

    /// Number of events that were dropped, because more than 4,096 were waiting for
    /// the program to read them.
    pub fn missed_count(&self) -> u64 {
        self.missed_count.load(Ordering::Relaxed)
    }
}

impl Stream for Subscription {
    type Item = TopicEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<TopicEvent>> {
        self.events.poll_recv(context)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.events.close();
        let shared = &self.shared;
        // Without a connection, the scheduler has no subscription of the next id to end.
        let _ = shared.change_and_tell(|id| {
            let has_left = shared.topics.leave(&self.topic);
            has_left.then(|| unsubscription(self.topic.clone(), id))
        });
    }
}

/// The subscriptions of a client.
#[derive(Debug)]
pub(super) struct Topics {
    subscribers: Mutex<HashMap<String, Vec<Subscriber>>>,
    panic_flag: PanicFlag,
}

#[derive(Debug)]
struct Subscriber {
    events: mpsc::Sender<TopicEvent>,
    missed_count: Arc<AtomicU64>,
}

impl Topics {
    /// Returns an empty set of subscriptions. A poisoned lock sets `panic_flag`.
    pub(super) fn new(panic_flag: PanicFlag) -> Self {
        Self {
            subscribers: Mutex::default(),
            panic_flag,
        }
    }

    #[cfg(test)]
    pub(super) fn poison(&self) {
        daskwire_rpc::panic_flag::poison(&self.subscribers);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<Subscriber>>> {
        self.panic_flag.check(self.subscribers.lock())
    }

    /// The topics with subscribers.
    pub(super) fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Adds a subscriber.
    fn join(&self, topic: &str, subscriber: Subscriber) {
        let mut topics = self.lock();
        topics.entry(topic.to_owned()).or_default().push(subscriber);
    }

    /// Hands an event to the subscribers of its topic.
    pub(super) fn publish(&self, message: EventMessage) {
        let topics = self.lock();
        let Some(subscribers) = topics.get(&message.topic) else {
            return;
        };
        let Ok(event) = TopicEvent::from_value(message.event) else {
            return;
        };
        for subscriber in subscribers {
            if subscriber.events.try_send(event.clone()).is_err() {
                subscriber.missed_count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Ends all subscriptions.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// Removes the closed subscribers of a topic. Returns whether it has no others.
    fn leave(&self, topic: &str) -> bool {
        let mut topics = self.lock();
        let Some(subscribers) = topics.get_mut(topic) else {
            return false;
        };
        subscribers.retain(|subscriber| !subscriber.events.is_closed());
        let is_empty = subscribers.is_empty();
        if is_empty {
            topics.remove(topic);
        }
        is_empty
    }
}

/// The message that subscribes a client.
pub(super) fn subscription(topic: String, client: &str) -> SubscribeTopic {
    SubscribeTopic {
        topic,
        client: client.to_owned(),
        ..SubscribeTopic::default()
    }
}

/// The message that ends a subscription of a client.
pub(super) fn unsubscription(topic: String, client: &str) -> UnsubscribeTopic {
    UnsubscribeTopic {
        topic,
        client: client.to_owned(),
        ..UnsubscribeTopic::default()
    }
}

impl Client {
    /// Publishes an event in a topic. The message must be plain data: numbers, strings,
    /// bytes, lists and dictionaries of them.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Unsupported`] before 2022.6.1;
    /// * [`RequestError::Value`] if the message does not convert;
    /// * other errors if the scheduler does not answer.
    pub async fn log_event(
        &self,
        topic: impl Into<String>,
        message: impl IntoValue,
    ) -> Result<(), RequestError> {
        self.shared.needs(Operation::PUBLISHING)?;
        let request = LogEventRequest {
            topic: Value::from(topic.into()),
            msg: value_of(message)?,
            reply: Some(true),
            ..LogEventRequest::default()
        };
        let _: Value = self
            .shared
            .call("the scheduler to publish an event", request)
            .await?;
        Ok(())
    }

    /// Asks for the recent events of a topic, oldest first. `get_events` in Dask. The
    /// scheduler and its workers publish too, for example in the topics `all` and
    /// `worker-connected`.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn events(&self, topic: impl Into<String>) -> Result<Vec<TopicEvent>, RequestError> {
        let request = Events {
            topic: Some(topic.into()),
            reply: Some(true),
            ..Events::default()
        };
        let events: Vec<Value> = self.shared.call("events", request).await?;
        events.into_iter().map(TopicEvent::from_value).collect()
    }

    /// Asks for the recent events of all topics.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the scheduler does not answer.
    pub async fn all_events(&self) -> Result<Vec<(String, Vec<TopicEvent>)>, RequestError> {
        let request = Events {
            reply: Some(true),
            ..Events::default()
        };
        let topics: Vec<(String, Vec<Value>)> = self.shared.call("events", request).await?;
        let topics = topics.into_iter().map(|(topic, events)| {
            let events = events.into_iter().map(TopicEvent::from_value);
            Ok((topic, events.collect::<Result<_, RequestError>>()?))
        });
        topics.collect()
    }

    /// Subscribes to a topic. All events that are published after this returns are in
    /// the stream; those published while the connection is broken are not.
    ///
    /// ```no_run
    /// # async fn example(client: &daskwire_peer::Client) -> Result<(), daskwire_peer::RequestError> {
    /// let mut events = client.subscribe_topic("progress").await?;
    /// while let Some(event) = events.next().await {
    ///     println!("{}", event.message);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// * [`RequestError::Unsupported`] before 2022.1.0;
    /// * [`RequestError::Disconnected`] if the client is not connected.
    pub async fn subscribe_topic(
        &self,
        topic: impl Into<String>,
    ) -> Result<Subscription, RequestError> {
        self.shared.needs(Operation::TOPICS)?;
        let subscription = self.join_topic(topic.into())?;
        self.shared.settle::<RequestError>().await?;
        Ok(subscription)
    }

    /// Adds a subscription, and sends the message for it.
    pub(super) fn join_topic(&self, topic: String) -> Result<Subscription, Disconnected> {
        let shared = &self.shared;
        let (sender, events) = mpsc::channel(MAX_WAITING);
        let subscription = Subscription {
            shared: Arc::clone(shared),
            topic,
            events,
            missed_count: Arc::default(),
        };
        shared.change_and_tell(|id| {
            let topic = &subscription.topic;
            shared.topics.join(
                topic,
                Subscriber {
                    events: sender,
                    missed_count: Arc::clone(&subscription.missed_count),
                },
            );
            Some(self::subscription(topic.clone(), id))
        })?;
        Ok(subscription)
    }
}
