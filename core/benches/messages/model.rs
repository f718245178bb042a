//! The five messages as structs that borrow from the message and never allocate.
//!
//! `T` is the string type of each reader (bytes, validated bytes, `&str`).

use core::fmt;
use core::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_derive::{Deserialize, Serialize};

/// A map whose keys are data: up to `N` pairs, in the order of the message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pairs<K, V, const N: usize> {
    len: usize,
    pairs: [(K, V); N],
}

impl<K: Default, V: Default, const N: usize> Default for Pairs<K, V, N> {
    fn default() -> Self {
        Self {
            len: 0,
            pairs: core::array::from_fn(|_| Default::default()),
        }
    }
}

impl<K, V, const N: usize> Pairs<K, V, N> {
    #[inline]
    pub(crate) fn push(&mut self, key: K, value: V) -> Result<(), Unexpected> {
        let place = self.pairs.get_mut(self.len).ok_or(Unexpected)?;
        *place = (key, value);
        self.len += 1;
        Ok(())
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[(K, V)] {
        &self.pairs[..self.len]
    }
}

/// An unexpected key, or more values than fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unexpected;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bin<'a>(pub &'a [u8]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pickled {
    #[serde(rename = "__Pickled__")]
    pub index: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct ComputeTask<T> {
    pub op: T,
    pub key: T,
    pub run_id: u64,
    pub priority: [u64; 3],
    pub stimulus_id: T,
    pub who_has: Pairs<T, [T; 1], 2>,
    pub nbytes: Pairs<T, u64, 2>,
    pub run_spec: Pickled,
    pub resource_restrictions: Option<Pairs<T, f64, 1>>,
    pub actor: bool,
    pub annotations: Pairs<T, u64, 1>,
    pub span_id: Option<T>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartStop<T> {
    pub action: T,
    pub start: f64,
    pub stop: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>, 'de: 'a"))]
pub(crate) struct TaskFinished<'a, T> {
    pub key: T,
    pub run_id: u64,
    pub nbytes: u64,
    #[serde(rename = "type", borrow)]
    pub pickled_type: Bin<'a>,
    pub(crate) typename: T,
    pub metadata: Pairs<T, u64, 1>,
    pub thread: u64,
    pub startstops: [StartStop<T>; 1],
    pub op: T,
    pub stimulus_id: T,
    pub status: T,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct Bandwidth<T> {
    pub total: u64,
    pub workers: Pairs<T, u64, 1>,
    pub(crate) types: Pairs<T, u64, 1>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spilled {
    pub memory: u64,
    pub disk: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    pub incoming_bytes: u64,
    pub incoming_count: u64,
    pub incoming_count_total: u64,
    pub outgoing_bytes: u64,
    pub outgoing_count: u64,
    pub outgoing_count_total: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    pub read_bps: f64,
    pub write_bps: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct Metrics<T> {
    pub task_counts: Pairs<T, u64, 1>,
    pub bandwidth: Bandwidth<T>,
    pub digests_total_since_heartbeat: Pairs<T, f64, 2>,
    pub managed_bytes: u64,
    pub spilled_bytes: Spilled,
    pub transfer: Transfer,
    pub event_loop_interval: f64,
    pub cpu: f64,
    pub memory: u64,
    pub time: f64,
    pub host_net_io: Rates,
    pub host_disk_io: Rates,
    pub num_fds: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct Extensions<T> {
    pub spans: Pairs<T, u64, 1>,
    pub shuffle: Pairs<T, u64, 1>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct Heartbeat<T> {
    pub op: T,
    pub address: T,
    pub now: f64,
    pub metrics: Metrics<T>,
    pub executing: Pairs<T, f64, 1>,
    pub extensions: Extensions<T>,
    pub reply: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Host<T> {
    pub python: T,
    #[serde(rename = "python-bits")]
    pub python_bits: u64,
    #[serde(rename = "OS")]
    pub os: T,
    #[serde(rename = "OS-release")]
    pub os_release: T,
    pub machine: T,
    pub processor: T,
    pub byteorder: T,
    #[serde(rename = "LC_ALL")]
    pub lc_all: T,
    #[serde(rename = "LANG")]
    pub lang: T,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct Versions<T> {
    pub host: Host<T>,
    pub packages: Pairs<T, T, 10>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(bound(deserialize = "T: Default + Deserialize<'de>"))]
pub(crate) struct RegisterWorker<T> {
    pub op: T,
    pub reply: bool,
    pub address: T,
    pub status: T,
    pub nthreads: u64,
    pub name: T,
    pub now: f64,
    pub resources: Pairs<T, f64, 1>,
    pub memory_limit: u64,
    pub local_directory: T,
    pub services: Pairs<T, u64, 1>,
    pub nanny: Option<T>,
    pub pid: u64,
    pub versions: Versions<T>,
    pub metrics: Metrics<T>,
    pub extra: Pairs<T, u64, 1>,
    pub stimulus_id: T,
    pub server_id: T,
}

/// A reader that only needs the destination of a message.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct OnlyOp<'a> {
    pub op: &'a str,
}

/// An array of messages, each processed after it has been read.
pub(crate) struct Batch<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Batch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = Batch<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Batch<T>, A::Error> {
                while let Some(message) = seq.next_element::<T>()? {
                    core::hint::black_box(&message);
                }
                Ok(Batch(PhantomData))
            }
        }
        deserializer.deserialize_seq(Each(PhantomData))
    }
}

impl<'de, K, V, const N: usize> Deserialize<'de> for Pairs<K, V, N>
where
    K: Default + Deserialize<'de>,
    V: Default + Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each<K, V, const N: usize>(PhantomData<(K, V)>);
        impl<'de, K, V, const N: usize> Visitor<'de> for Each<K, V, N>
        where
            K: Default + Deserialize<'de>,
            V: Default + Deserialize<'de>,
        {
            type Value = Pairs<K, V, N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Pairs::default();
                while let Some((key, value)) = map.next_entry()? {
                    pairs
                        .push(key, value)
                        .map_err(|_| serde::de::Error::custom("no room"))?;
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Each(PhantomData))
    }
}

impl<K: Serialize, V: Serialize, const N: usize> Serialize for Pairs<K, V, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len))?;
        for (key, value) in self.as_slice() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bin<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowed;
        impl<'de> Visitor<'de> for Borrowed {
            type Value = &'de [u8];

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a bin")
            }

            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<&'de [u8], E> {
                Ok(bytes)
            }
        }
        deserializer.deserialize_bytes(Borrowed).map(Bin)
    }
}

impl Serialize for Bin<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}
