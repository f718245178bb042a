//! Conversions from and to decimal numbers of the crate rust_decimal.

use rust_decimal::Decimal;

use super::convert::options;
use super::into_value::into_value;
use super::object::{Kind, Object};
use super::{Value, WrongType};

/// Converts to a `decimal.Decimal`.
///
/// ```
/// use daskwire_value::Value;
/// use rust_decimal::Decimal;
/// let price = Decimal::new(950, 2);
/// assert_eq!(Value::from(price).to_string(), "Decimal('9.50')");
/// assert_eq!(Decimal::try_from(Value::from(price))?, price);
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
impl From<Decimal> for Value {
    fn from(number: Decimal) -> Self {
        Object::new("decimal", "Decimal", [number.to_string()]).into()
    }
}

/// Converts a `decimal.Decimal` or an integer that fits exactly.
impl TryFrom<Value> for Decimal {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let number = match &value {
            Value::Object(object) if object.kind() == Kind::Decimal => {
                let string = object.base().and_then(Value::as_str).unwrap_or_default();
                // Python writes large and small numbers with an exponent.
                Self::from_str_exact(string)
                    .or_else(|_| {
                        // Rounds digits that do not fit.
                        let digits = string.split_once('E').map_or(string, |(digits, _)| digits);
                        Self::from_str_exact(digits)?;
                        Self::from_scientific(string)
                    })
                    .ok()
            }
            Value::Int(number) => Self::try_from_i128_with_scale(*number, 0).ok(),
            _ => None,
        };
        number.ok_or_else(|| WrongType::new("a decimal number of at most 28 digits", &value))
    }
}

options! { {} Decimal; }
into_value! { {} Decimal; }
