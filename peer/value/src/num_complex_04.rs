//! Conversions from and to complex numbers of num-complex 0.4.

use num_complex_04::Complex;

use super::convert::{float, narrow, options};
use super::into_value::into_value;
use super::{Value, WrongType};

/// Converts to a `complex`.
///
/// ```
/// use daskwire_value::Value;
/// use num_complex_04::Complex;
/// let number = Complex::new(1.0, -2.0);
/// let value = Value::from(number);
/// assert_eq!(value.to_string(), "(1-2j)");
/// assert_eq!(Complex::<f64>::try_from(value)?, number);
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
impl From<Complex<f64>> for Value {
    fn from(number: Complex<f64>) -> Self {
        Self::Complex(number.re, number.im)
    }
}

/// Converts to a `complex`.
impl From<Complex<f32>> for Value {
    fn from(number: Complex<f32>) -> Self {
        Self::Complex(number.re.into(), number.im.into())
    }
}

/// Converts a `complex`, `float` or `int`.
impl TryFrom<Value> for Complex<f64> {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        match value {
            Value::Complex(real, imaginary) => Ok(Self::new(real, imaginary)),
            Value::Float(real) => Ok(Self::new(real, 0.0)),
            Value::Int(real) => Ok(Self::new(float(real), 0.0)),
            other => Err(WrongType::new("a complex number", &other)),
        }
    }
}

/// Converts a `complex`, `float` or `int` to the nearest number of `f32`.
impl TryFrom<Value> for Complex<f32> {
    type Error = WrongType;

    fn try_from(value: Value) -> Result<Self, WrongType> {
        let number = Complex::<f64>::try_from(value)?;
        Ok(Self::new(narrow(number.re), narrow(number.im)))
    }
}

options! { {} Complex<f32>, Complex<f64>; }
into_value! { {} Complex<f32>, Complex<f64>; }
