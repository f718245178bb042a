//! Conversion of any type that implements `serde::Serialize` into values.

use core::time::Duration;

use serde::ser::{
    self, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{SerdeError, Value, as_value};

impl Value {
    /// Converts from any type that implements `serde::Serialize`.
    ///
    /// Structs and maps become dictionaries, sequences become lists, tuples and tuple
    /// structs become tuples, and byte strings become `bytes`. Enums are represented as
    /// in `serde_json`: a variant without content becomes a string, and other variants
    /// become dictionaries with one entry. A [`Duration`] becomes a
    /// `datetime.timedelta`, and parts that are a [`Value`] or an [`Array`](super::Array)
    /// stay what they are. Fields of other types keep theirs with [`as_value`].
    ///
    /// ```
    /// use daskwire_value::Value;
    /// # use serde::Serialize;
    /// #[derive(Serialize)]
    /// struct Options {
    ///     depth: u32,
    ///     names: Vec<&'static str>,
    /// }
    /// let options = Options { depth: 2, names: vec!["a", "b"] };
    /// let value = Value::from_serialize(&options)?;
    /// assert_eq!(value.to_string(), "{'depth': 2, 'names': ['a', 'b']}");
    /// # Ok::<(), daskwire_value::SerdeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the type's implementation of `Serialize`, for example for a poisoned
    /// mutex.
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, SerdeError> {
        value.serialize(Ser)
    }
}

super::arguments::one_argument! { {T} super::Serde<T> }

impl<T: Serialize> super::IntoValue for super::Serde<T> {
    fn into_value(self) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
        Ok(Value::from_serialize(&self.0)?)
    }
}

/// A serializer that makes a value.
struct Ser;

/// The items of a sequence that is not complete.
struct Parts {
    items: Vec<Value>,
    is_tuple: bool,
    /// The name of an enum's variant, if this is its content.
    variant: Option<&'static str>,
}

/// The entries of a map that is not complete.
struct Entries {
    entries: Vec<(Value, Value)>,
    key: Option<Value>,
    variant: Option<&'static str>,
    /// Whether the struct has the name that serde gives the duration of std.
    may_be_duration: bool,
}

/// The content of a variant with its name.
fn tagged(variant: Option<&'static str>, content: Value) -> Value {
    match variant {
        Some(variant) => Value::dict([(variant, content)]),
        None => content,
    }
}

impl Parts {
    fn new(len: Option<usize>, is_tuple: bool, variant: Option<&'static str>) -> Self {
        Self {
            // The length is a hint, which may be wrong.
            items: Vec::with_capacity(len.unwrap_or_default().min(1 << 10)),
            is_tuple,
            variant,
        }
    }

    fn push<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), SerdeError> {
        self.items.push(item.serialize(Ser)?);
        Ok(())
    }

    fn finish(self) -> Value {
        let items = self.items.into();
        let value = if self.is_tuple {
            Value::Tuple(items)
        } else {
            Value::List(items)
        };
        tagged(self.variant, value)
    }
}

impl Entries {
    const fn new(variant: Option<&'static str>) -> Self {
        Self {
            entries: Vec::new(),
            key: None,
            variant,
            may_be_duration: false,
        }
    }

    fn field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), SerdeError> {
        self.entries
            .push((Value::from(name), value.serialize(Ser)?));
        Ok(())
    }

    fn finish(self) -> Value {
        if self.may_be_duration
            && let [
                (Value::Str(secs), Value::Int(count)),
                (Value::Str(nanos), Value::Int(rest)),
            ] = &self.entries[..]
            && (&**secs, &**nanos) == ("secs", "nanos")
            && let (Ok(count @ 0..=MAX_SECONDS), Ok(rest @ 0..1_000_000_000)) =
                (u64::try_from(*count), u32::try_from(*rest))
            && rest % 1000 == 0
        {
            return Value::from(Duration::new(count, rest));
        }
        tagged(self.variant, Value::Dict(self.entries.into()))
    }
}

/// The last second of the longest `datetime.timedelta`, which has a whole number of microseconds. Other
/// durations stay what they are without this conversion.
const MAX_SECONDS: u64 = 1_000_000_000 * 86_400 - 1;

macro_rules! plain {
    ($($method:ident: $type:ty;)*) => {$(
        fn $method(self, value: $type) -> Result<Value, SerdeError> {
            Ok(Value::from(value))
        }
    )*};
}

impl Serializer for Ser {
    type Ok = Value;
    type Error = SerdeError;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = Entries;

    plain! {
        serialize_bool: bool;
        serialize_i8: i8;
        serialize_i16: i16;
        serialize_i32: i32;
        serialize_i64: i64;
        serialize_i128: i128;
        serialize_u8: u8;
        serialize_u16: u16;
        serialize_u32: u32;
        serialize_u64: u64;
        serialize_u128: u128;
        serialize_f32: f32;
        serialize_f64: f64;
        serialize_char: char;
        serialize_str: &str;
    }

    fn serialize_bytes(self, data: &[u8]) -> Result<Value, SerdeError> {
        Ok(Value::bytes(data.to_vec()))
    }

    fn serialize_none(self) -> Result<Value, SerdeError> {
        Ok(Value::None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, SerdeError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, SerdeError> {
        Ok(Value::None)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, SerdeError> {
        Ok(Value::None)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Value, SerdeError> {
        Ok(Value::from(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<Value, SerdeError> {
        match name {
            as_value::NAME => as_value::take_from(|| value.serialize(self)),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Value, SerdeError> {
        Ok(tagged(Some(variant), value.serialize(Self)?))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Parts, SerdeError> {
        Ok(Parts::new(len, false, None))
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts, SerdeError> {
        Ok(Parts::new(Some(len), true, None))
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Parts, SerdeError> {
        Ok(Parts::new(Some(len), true, None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Parts, SerdeError> {
        Ok(Parts::new(Some(len), true, Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, SerdeError> {
        Ok(Entries::new(None))
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Entries, SerdeError> {
        let mut entries = Entries::new(None);
        entries.may_be_duration = name == "Duration";
        Ok(entries)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Entries, SerdeError> {
        Ok(Entries::new(Some(variant)))
    }
}

macro_rules! parts {
    ($($trait:ident: $method:ident;)*) => {$(
        impl $trait for Parts {
            type Ok = Value;
            type Error = SerdeError;

            fn $method<T: Serialize + ?Sized>(&mut self, item: &T) -> Result<(), SerdeError> {
                self.push(item)
            }

            fn end(self) -> Result<Value, SerdeError> {
                Ok(self.finish())
            }
        }
    )*};
}

parts! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
}

macro_rules! entries {
    ($($trait:ident)*) => {$(
        impl $trait for Entries {
            type Ok = Value;
            type Error = SerdeError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), SerdeError> {
                self.field(name, value)
            }

            fn end(self) -> Result<Value, SerdeError> {
                Ok(self.finish())
            }
        }
    )*};
}

entries! { SerializeStruct SerializeStructVariant }

impl SerializeMap for Entries {
    type Ok = Value;
    type Error = SerdeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), SerdeError> {
        // A sequence as a key has to be a tuple.
        self.key = Some(key.serialize(Ser)?.hashable());
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), SerdeError> {
        let Some(key) = self.key.take() else {
            return Err(ser::Error::custom("a value without a key"));
        };
        self.entries.push((key, value.serialize(Ser)?));
        Ok(())
    }

    fn end(self) -> Result<Value, SerdeError> {
        Ok(self.finish())
    }
}
