//! zerompk's derive: the fastest writer found, with unsafe code and a heap.

use std::collections::BTreeMap;

use zerompk::ToMessagePack;

use super::model;

type Map<'a, V> = BTreeMap<&'a str, V>;

#[derive(ToMessagePack)]
#[msgpack(map)]
pub(crate) struct Pickled {
    #[msgpack(key = "__Pickled__")]
    pub index: u64,
}

#[derive(ToMessagePack)]
#[msgpack(map)]
pub(crate) struct ComputeTask<'a> {
    pub op: &'a str,
    pub key: &'a str,
    pub run_id: u64,
    pub priority: [u64; 3],
    pub stimulus_id: &'a str,
    pub who_has: Map<'a, [&'a str; 1]>,
    pub nbytes: Map<'a, u64>,
    pub run_spec: Pickled,
    pub resource_restrictions: Option<Map<'a, f64>>,
    pub actor: bool,
    pub annotations: Map<'a, u64>,
    pub span_id: Option<&'a str>,
}

#[derive(ToMessagePack)]
#[msgpack(map)]
pub(crate) struct StartStop<'a> {
    pub action: &'a str,
    pub start: f64,
    pub stop: f64,
}

#[derive(ToMessagePack)]
#[msgpack(map)]
pub(crate) struct TaskFinished<'a> {
    pub key: &'a str,
    pub run_id: u64,
    pub nbytes: u64,
    #[msgpack(key = "type", as_bytes = true)]
    pub pickled_type: &'a [u8],
    pub(crate) typename: &'a str,
    pub metadata: Map<'a, u64>,
    pub thread: u64,
    pub startstops: [StartStop<'a>; 1],
    pub op: &'a str,
    pub stimulus_id: &'a str,
    pub status: &'a str,
}

fn map<'a, V: Clone, const N: usize>(pairs: &model::Pairs<&'a str, V, N>) -> Map<'a, V> {
    pairs.as_slice().iter().cloned().collect()
}

impl<'a> From<&model::ComputeTask<&'a str>> for ComputeTask<'a> {
    fn from(message: &model::ComputeTask<&'a str>) -> Self {
        Self {
            op: message.op,
            key: message.key,
            run_id: message.run_id,
            priority: message.priority,
            stimulus_id: message.stimulus_id,
            who_has: map(&message.who_has),
            nbytes: map(&message.nbytes),
            run_spec: Pickled {
                index: message.run_spec.index,
            },
            resource_restrictions: message.resource_restrictions.as_ref().map(map),
            actor: message.actor,
            annotations: map(&message.annotations),
            span_id: message.span_id,
        }
    }
}

impl<'a> From<&model::TaskFinished<'a, &'a str>> for TaskFinished<'a> {
    fn from(message: &model::TaskFinished<'a, &'a str>) -> Self {
        Self {
            key: message.key,
            run_id: message.run_id,
            nbytes: message.nbytes,
            pickled_type: message.pickled_type.0,
            typename: message.typename,
            metadata: map(&message.metadata),
            thread: message.thread,
            startstops: message.startstops.map(|span| StartStop {
                action: span.action,
                start: span.start,
                stop: span.stop,
            }),
            op: message.op,
            stimulus_id: message.stimulus_id,
            status: message.status,
        }
    }
}
