//! Payloads for receivers that read only some of Dask's families of serializers, such as
//! clients without pickle.

use bytes::Bytes;
use daskwire::message::{PayloadHeader, PayloadKind, Serializer};
use daskwire::msgpack::{Reader, Writer};

use super::serialized::logical_frames;
use super::{MAX_DEPTH, Serialized, Value, ValueError};
use crate::pickling::Pickling;
use crate::scratch;

impl Serialized {
    /// The payload in a form that a receiver of these families reads, such as `dask` and
    /// `msgpack`; itself if the receiver reads it.
    ///
    /// # Errors
    ///
    /// If the value, or a part of it, has no such form.
    pub fn for_families(
        &self,
        families: &[String],
        pickling: Pickling,
    ) -> Result<Self, ValueError> {
        if self.is_of(families) {
            return Ok(self.clone());
        }
        let families = Families {
            names: families,
            pickling,
        };
        let mut frames = Vec::new();
        let header = families.write(&self.open()?, MAX_DEPTH, &mut frames)?;
        let header = with_entry(&header, |writer| {
            writer.str("num-sub-frames").u64(frames.len() as u64);
        });
        Ok(Self::of_parts(header.into(), frames))
    }

    /// The payload by which a receiver learns that a value could not be serialized.
    pub fn not_sent(reason: &str) -> Self {
        let header = entries(2, |writer| {
            writer.str("serializer").str("error");
            writer.str("num-sub-frames").u64(1);
        });
        Self::of_parts(
            header.into(),
            vec![Bytes::copy_from_slice(reason.as_bytes())],
        )
    }

    /// Whether all parts of the payload are of these families.
    fn is_of(&self, families: &[String]) -> bool {
        let has = |name: &str| families.iter().any(|family| family == name);
        if self.kind() == PayloadKind::Pickled {
            return has("pickle");
        }
        let is_of = self.with_payload(|payload| {
            let mut left = vec![*payload.header()];
            while let Some(header) = left.pop() {
                if header.is_collection().unwrap_or_default() {
                    let Ok(Some(elements)) = header.sub_headers() else {
                        return false;
                    };
                    for element in elements {
                        match element {
                            Ok(element) => left.push(element),
                            Err(_) => return false,
                        }
                    }
                    continue;
                }
                if !is_family_of(&header, has) {
                    return false;
                }
            }
            true
        });
        is_of.unwrap_or_default()
    }
}

fn is_family_of(header: &PayloadHeader<'_>, has: impl Fn(&str) -> bool) -> bool {
    match header.serializer() {
        Ok(Serializer::Dask) => has("dask"),
        Ok(Serializer::Pickle) => has("pickle"),
        Ok(Serializer::Msgpack) => has("msgpack"),
        Ok(Serializer::Other(name)) => has(name),
        // Every receiver reads that there is no value.
        Ok(Serializer::Error) => true,
        _ => false,
    }
}

/// The families that a receiver reads, in the order of its preference.
struct Families<'f> {
    names: &'f [String],
    pickling: Pickling,
}

impl Families<'_> {
    /// Appends the frames of a value, and returns its header.
    fn write(
        &self,
        value: &Value,
        depth: usize,
        frames: &mut Vec<Bytes>,
    ) -> Result<Vec<u8>, ValueError> {
        for family in self.names {
            let is_plain = match (family.as_str(), value) {
                (_, Value::Serialized(_)) => false,
                ("dask", Value::Bytes(_) | Value::ByteArray(_) | Value::Array(_)) => true,
                ("pickle", _) => true,
                _ => false,
            };
            if is_plain {
                let payload = Serialized::with_pickling(value, self.pickling)?;
                let is_wanted = match family.as_str() {
                    "pickle" => true,
                    _ => payload.is_of(core::slice::from_ref(family)),
                };
                if is_wanted {
                    return embed(&payload, frames);
                }
            }
            if family == "msgpack"
                && let Some(document) = document(value)
            {
                frames.push(document.into());
                return Ok(entries(1, |writer| {
                    writer.str("serializer").str("msgpack");
                }));
            }
        }
        let depth = depth.checked_sub(1).ok_or(ValueError::TooLarge)?;
        match value {
            Value::Serialized(part) if part.is_of(self.names) => embed(part, frames),
            Value::Serialized(part) => self.write(&part.open()?, depth, frames),
            Value::List(items) => self.collection("list", &[], items, depth, frames),
            Value::Tuple(items) => self.collection("tuple", &[], items, depth, frames),
            Value::Set(items) => self.collection("set", &[], items, depth, frames),
            Value::Dict(pairs) => {
                let (keys, values): (Vec<Value>, Vec<Value>) = pairs.iter().cloned().unzip();
                let keys = keys.iter().map(document).collect::<Option<Vec<_>>>();
                let keys = keys.ok_or_else(|| self.no_form(value))?;
                self.collection("dict", &keys, &values, depth, frames)
            }
            _ => Err(self.no_form(value)),
        }
    }

    /// Writes a collection whose elements have their own headers. `keys` are those of a
    /// dictionary.
    // PROTOCOL HEADER-11
    fn collection(
        &self,
        class: &str,
        keys: &[Vec<u8>],
        items: &[Value],
        depth: usize,
        frames: &mut Vec<Bytes>,
    ) -> Result<Vec<u8>, ValueError> {
        let mut headers = Vec::with_capacity(items.len());
        let mut lengths = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let start = frames.len();
            let header = self.write(item, depth, frames)?;
            headers.push(match keys.get(index) {
                Some(key) => with_entry(&header, |writer| {
                    writer.str("key").encoded(key);
                }),
                None => header,
            });
            lengths.push(frames.len().saturating_sub(start) as u64);
        }
        let count = u32::try_from(items.len()).map_err(|_| ValueError::TooLarge)?;
        Ok(entries(4, |writer| {
            writer.str("sub-headers").array(count);
            for header in &headers {
                writer.encoded(header);
            }
            writer.str("is-collection").bool(true);
            writer.str("frame-lengths").array(count);
            for length in &lengths {
                writer.u64(*length);
            }
            writer.str("type-serialized").str(class);
        }))
    }

    fn no_form(&self, value: &Value) -> ValueError {
        let what = match value {
            Value::Object(object) => format!("an instance of {}", object.class()),
            Value::FrozenSet(_) => "a frozenset".to_owned(),
            Value::Dict(_) => "a dict with such keys".to_owned(),
            _ => "such a value".to_owned(),
        };
        ValueError::Unsupported {
            what: format!("{what} by the serializers {}", self.names.join(", ")),
        }
    }
}

/// Appends the frames of a payload, without compression or splitting. Returns its header.
fn embed(payload: &Serialized, frames: &mut Vec<Bytes>) -> Result<Vec<u8>, ValueError> {
    let logical = payload.with_payload(|payload| logical_frames(payload, &mut 0))??;
    frames.extend(logical);
    let mut reader = Reader::new(payload.header());
    let mut kept: Vec<(&[u8], &[u8])> = Vec::new();
    for _ in 0..reader.map().expect("a header") {
        let (key, value) = (
            reader.skip().expect("a key"),
            reader.skip().expect("a value"),
        );
        let is_of_frames = match Reader::new(key).raw_str() {
            Ok(name) => FRAME_ENTRIES.iter().any(|entry| name == *entry),
            Err(_) => false,
        };
        if !is_of_frames {
            kept.push((key, value));
        }
    }
    Ok(entries(kept.len(), |writer| {
        for (key, value) in &kept {
            writer.encoded(key).encoded(value);
        }
    }))
}

/// The entries of a header about the frames as they were sent.
pub(super) const FRAME_ENTRIES: [&str; 4] = [
    "num-sub-frames",
    "split-num-sub-frames",
    "split-offsets",
    "compression",
];

/// Writes a map of `count` entries.
fn entries(count: usize, write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut out = Vec::new();
    scratch::msgpack(&mut out, |writer| {
        writer.map(u32::try_from(count).expect("few entries"));
        write(writer);
    });
    out
}

/// Adds an entry to a map.
fn with_entry(map: &[u8], write: impl Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut reader = Reader::new(map);
    let count = reader.map().expect("a header");
    let mut all = Vec::new();
    for _ in 0..count {
        all.push((
            reader.skip().expect("a key"),
            reader.skip().expect("a value"),
        ));
    }
    entries(all.len().saturating_add(1), |writer| {
        for (key, value) in &all {
            writer.encoded(key).encoded(value);
        }
        write(writer);
    })
}

/// The MessagePack document of a value that is read as the same value again.
fn document(value: &Value) -> Option<Vec<u8>> {
    let number = match value {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    let is_document = match value {
        Value::None | Value::Bool(_) | Value::Float(_) | Value::Str(_) | Value::Bytes(_) => true,
        Value::Int(number) => i64::try_from(*number).is_ok() || u64::try_from(*number).is_ok(),
        _ => false,
    };
    is_document.then(|| {
        let mut out = Vec::new();
        scratch::msgpack(&mut out, |writer| {
            match value {
                Value::Bool(value) => writer.bool(*value),
                Value::Float(value) => writer.f64(*value),
                Value::Str(string) => writer.str(string),
                Value::Bytes(data) => writer.bin(data),
                _ => match number.map(|number| (i64::try_from(number), u64::try_from(number))) {
                    Some((_, Ok(number))) => writer.u64(number),
                    Some((Ok(number), _)) => writer.i64(number),
                    _ => writer.nil(),
                },
            };
        });
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Array;

    fn families(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn written(value: &Value, names: &[&str]) -> Result<Serialized, ValueError> {
        let payload = Serialized::of(value).expect("a payload");
        payload.for_families(&families(names), Pickling::default())
    }

    #[test]
    fn values_have_forms_without_pickle() {
        let array = Value::from(Array::from_slice(&[2], &[1.5, 2.5]).expect("an array"));
        let scalars = [
            Value::None,
            Value::from(true),
            Value::from(-7),
            Value::from(u64::MAX),
            Value::from(2.5),
            Value::from("text"),
            Value::bytes(&b"data"[..]),
            Value::ByteArray(Bytes::from_static(b"more")),
            array.clone(),
        ];
        let list = Value::list(scalars.clone());
        let inner = Value::tuple([list.clone(), Value::Set([Value::from(1)].into())]);
        let dict = Value::dict([(Value::from("a"), inner), (Value::from(1), array)]);
        let part = Serialized::of(&list).expect("a payload");
        let parts = Value::List([Value::Serialized(part)].into());
        for value in scalars.iter().chain([&list, &dict, &Value::list([0; 0])]) {
            let payload = written(value, &["dask", "msgpack"]).expect("it has a form");
            assert!(payload.is_of(&families(&["dask", "msgpack"])), "{value:?}");
            assert_eq!(payload.open().as_ref(), Ok(value));
            // A form that can be read is not changed.
            let again = payload.for_families(&families(&["msgpack", "dask"]), Pickling::default());
            assert_eq!(again, Ok(payload));
        }
        let payload = written(&parts, &["dask", "msgpack"]).expect("it has a form");
        assert_eq!(payload.open(), Ok(Value::list([list.clone()])));
        // Without the family of arrays and bytes
        let payload = written(&list, &["pickle"]).expect("it has a form");
        assert!(payload.is_of(&families(&["pickle"])));
        assert_eq!(payload.open(), Ok(list));
    }

    #[test]
    fn a_value_without_a_form_is_an_error() {
        let deep = (0..60).fold(Value::None, |value, _| Value::list([value]));
        assert!(written(&deep, &["msgpack"]).is_ok());
        let price = Value::from(crate::Object::new("decimal", "Decimal", ["9.50"]));
        for value in [price.clone(), Value::list([price]), Value::from(i128::MAX)] {
            let error = written(&value, &["dask", "msgpack"]).expect_err("no form");
            assert!(error.to_string().contains("dask, msgpack"), "{error}");
        }
    }

    #[test]
    fn a_receiver_learns_why_there_is_no_value() {
        let payload = Serialized::not_sent("it is a socket");
        let reason = "it is a socket".to_owned();
        assert_eq!(payload.open(), Err(ValueError::NotSent { reason }));
        assert!(payload.is_of(&[]));
    }
}
