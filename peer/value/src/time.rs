//! Conversions from and to times of numpy.

use daskwire_numpy::{Datetime64, Timedelta64, Unit};

use super::convert::options;
use super::into_value::into_value;
use super::object::{Kind, Object};
use super::{Value, WrongType};

macro_rules! times {
    ($($type:ident $name:literal $kind:ident;)*) => {$(
        #[doc = concat!("Converts to a `numpy.", $name, "`.")]
        impl<U: Unit> From<$type<U>> for Value {
            fn from(time: $type<U>) -> Self {
                let number = time.number().map_or_else(|| Self::from("NaT"), Self::from);
                Object::new("numpy", $name, [number, Self::from(U::BASE.name())]).into()
            }
        }

        #[doc = concat!("Converts a `numpy.", $name, "` of the same unit.")]
        impl<U: Unit> TryFrom<Value> for $type<U> {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                let unit = U::BASE.name();
                let found = match &value {
                    Value::Object(object) if object.kind() == Kind::$kind => object.arguments(),
                    _ => &[],
                };
                match found {
                    [Value::Int(number), Value::Str(found)] if **found == *unit => {
                        i64::try_from(*number).ok().map(Self::new)
                    }
                    [Value::Str(missing), Value::Str(found)]
                        if **missing == *"NaT" && **found == *unit =>
                    {
                        Some(Self::NAT)
                    }
                    _ => None,
                }
                .ok_or_else(|| WrongType {
                    found: match found {
                        [number, Value::Str(found)] => {
                            format!(concat!("numpy.", $name, "({}, {:?})"), number, &**found)
                        }
                        _ => WrongType::new("", &value).found.into_owned(),
                    }
                    .into(),
                    ..WrongType::new(format!(concat!("numpy.", $name, "[{}]"), unit), &value)
                })
            }
        }

        options! { {U: Unit} $type<U>; }
        into_value! { {U: Unit} $type<U>; }
    )*};
}

times! {
    Datetime64 "datetime64" DateTime64;
    Timedelta64 "timedelta64" TimeDelta64;
}
