//! Conversions from and to UUIDs of the crate uuid.

use uuid::Uuid;

use super::convert::options;
use super::into_value::into_value;
use super::object::{Kind, Object};
use super::{Value, WrongType};

/// Converts to a `uuid.UUID`.
///
/// ```
/// use daskwire_value::Value;
/// use uuid::Uuid;
/// let id = Uuid::from_u128(5);
/// let value = Value::from(id);
/// assert_eq!(value.to_string(), "UUID('00000000-0000-0000-0000-000000000005')");
/// assert_eq!(Uuid::try_from(value)?, id);
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Object::new("uuid", "UUID", [id.to_string()]).into()
    }
}

/// Converts a `uuid.UUID`.
impl TryFrom<Value> for Uuid {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let id = match &value {
            Value::Object(object) if object.kind() == Kind::Uuid => object.base(),
            _ => None,
        };
        let id = id.and_then(Value::as_str).map(str::parse);
        match id {
            Some(Ok(id)) => Ok(id),
            _ => Err(WrongType::new("a uuid.UUID", &value)),
        }
    }
}

options! { {} Uuid; }
into_value! { {} Uuid; }
