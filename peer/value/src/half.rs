//! Conversions from and to floats of 16 bits of the crate half.

use half::f16;

use super::convert::options;
use super::into_value::into_value;
use super::{Value, WrongType};

/// Converts to a `float`.
///
/// ```
/// use daskwire_value::Value;
/// use half::f16;
/// let number = f16::from_f32(1.5);
/// let value = Value::from(number);
/// assert_eq!(value, Value::Float(1.5));
/// assert_eq!(f16::try_from(value)?, number);
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
impl From<f16> for Value {
    fn from(number: f16) -> Self {
        Self::Float(number.into())
    }
}

/// Converts a `float` or an `int` to the nearest `f16`.
impl TryFrom<Value> for f16 {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let number = f64::try_from(value).map(Self::from_f64);
        number.map_err(|error| WrongType {
            wanted: "f16".into(),
            ..error
        })
    }
}

options! { {} f16; }
into_value! { {} f16; }
