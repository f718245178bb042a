//! Arrays as numpy's `repr` shows them.

use core::fmt::Write as _;

use daskwire_numpy::{ByteOrder, DType, Kind, Order};

use super::{Array, Value};

/// The array as numpy 2.4 shows it with its default settings. `None` for elements
/// that are not shown here, such as records and long doubles, and for arrays of so
/// many dimensions that even their corners have more than 4,096 elements.
pub(super) fn text(array: &Array) -> Option<String> {
    let name = match array.is_matrix() {
        true => "matrix(",
        false => "array(",
    };
    let (shape, count) = (array.shape(), array.len());
    let is_summarized = count > THRESHOLD;
    let mut text = name.to_owned();
    if count == 0 {
        text.push_str("[]");
    } else {
        let axes = shape.iter().map(|len| match *len {
            len if is_summarized && len > 2 * EDGE_LEN => (2 * EDGE_LEN, Some(len)),
            len => (len, None),
        });
        let axes: Vec<(usize, Option<usize>)> = axes.collect();
        let values = shown_values(array, &axes)?;
        let mut layout = Layout {
            axes: &axes,
            words: words(array.dtype(), shape.is_empty(), &values)?.into_iter(),
        };
        // The last line has room for the parenthesis.
        text.push_str(&layout.nested(name.len() + 1, LINE_WIDTH - 1));
    }

    let mut extras = Vec::new();
    if is_summarized || (count == 0 && shape != [0]) {
        let shape: Value = Value::tuple(shape.iter().copied());
        extras.push(format!("shape={shape}"));
    }
    let dtype = array.dtype();
    if count == 0 || !is_implied(dtype) {
        extras.push(format!("dtype={}", dtype_name(dtype)?));
    }
    if extras.is_empty() {
        text.push(')');
        return Some(text);
    }
    text.push(',');
    let extras = extras.join(", ");
    let last_line = text.rsplit('\n').next().unwrap_or_default();
    let line_len = last_line.chars().count() + extras.len() + 2;
    if line_len > LINE_WIDTH {
        write!(text, "\n{:1$}", "", name.len()).ok()?;
    } else {
        text.push(' ');
    }
    write!(text, "{extras})").ok()?;
    Some(text)
}

/// The elements that are shown, in row-major order.
fn shown_values(array: &Array, axes: &[(usize, Option<usize>)]) -> Option<Vec<Value>> {
    let shown = axes.iter().try_fold(1_usize, |count, (len, _)| {
        let count = count.checked_mul(*len)?;
        (count <= MAX_SHOWN).then_some(count)
    })?;
    let view = array.view().ok()?;
    let mut data = Vec::with_capacity(shown * array.dtype().item_len());
    let mut place = vec![0; axes.len()];
    for number in 0..shown {
        let mut rest = number;
        for (index, (shown, len)) in place.iter_mut().zip(axes).rev() {
            *index = rest % shown;
            rest /= shown;
            // Skip the items in the middle of a summarized axis.
            if let Some(len) = len
                && *index >= EDGE_LEN
            {
                *index += len - shown;
            }
        }
        data.extend_from_slice(view.item(&place)?);
    }
    let shown = Array::from_bytes(array.dtype(), &[shown], Order::C, data.into()).ok()?;
    shown.element_values().ok()
}

/// Whether numpy infers this dtype from the numbers.
fn is_implied(dtype: DType) -> bool {
    let is_default = matches!(
        (dtype.kind(), dtype.item_len()),
        (Kind::Bool, _) | (Kind::Int | Kind::Float, 8) | (Kind::Complex, 16)
    );
    is_default && dtype == dtype.with_order(ByteOrder::NATIVE)
}

/// The dtype as an argument of `numpy.array`.
fn dtype_name(dtype: DType) -> Option<String> {
    let bits = dtype.item_len() * 8;
    if dtype != dtype.with_order(ByteOrder::NATIVE) {
        return Some(format!("'{dtype}'"));
    }
    Some(match dtype.kind() {
        Kind::Bool => "bool".to_owned(),
        Kind::Int => format!("int{bits}"),
        Kind::UInt => format!("uint{bits}"),
        Kind::Float => format!("float{bits}"),
        Kind::Complex => format!("complex{bits}"),
        Kind::Str | Kind::Bytes => format!("'{dtype}'"),
        Kind::Datetime(_) | Kind::Timedelta(_) => {
            let shown = dtype.to_string();
            let name = match dtype.kind() {
                Kind::Datetime(_) => "datetime64",
                _ => "timedelta64",
            };
            match shown.find('[').and_then(|at| shown.get(at..)) {
                Some(unit) => format!("'{name}{unit}'"),
                None => name.to_owned(),
            }
        }
        _ => return None,
    })
}

/// The elements as strings, padded to one width.
fn words(dtype: DType, is_scalar: bool, values: &[Value]) -> Option<Vec<String>> {
    Some(match (dtype.kind(), dtype.item_len()) {
        (Kind::Bool, _) if is_scalar => values.iter().map(Value::to_string).collect(),
        (Kind::Bool, _) => values
            .iter()
            .map(|value| format!("{:>5}", value.to_string()))
            .collect(),
        (Kind::Int | Kind::UInt, _) => aligned(values.iter().map(Value::to_string)),
        (Kind::Str | Kind::Bytes, _) => values.iter().map(Value::to_string).collect(),
        (Kind::Float, len) => {
            let numbers = values.iter().map(|value| match value {
                Value::Float(number) => Some(*number),
                _ => None,
            });
            let numbers: Vec<f64> = numbers.collect::<Option<_>>()?;
            let format = FloatFormat::new(&numbers, Width::of(len)?, false);
            numbers.iter().map(|number| format.word(*number)).collect()
        }
        (Kind::Complex, len) => {
            let numbers = values.iter().map(|value| match value {
                Value::Complex(real, imaginary) => Some((*real, *imaginary)),
                _ => None,
            });
            let numbers = numbers.collect::<Option<Vec<_>>>()?;
            let (reals, imaginaries): (Vec<f64>, Vec<f64>) = numbers.into_iter().unzip();
            let width = Width::of(len / 2)?;
            let real_format = FloatFormat::new(&reals, width, false);
            let imaginary_format = FloatFormat::new(&imaginaries, width, true);
            let numbers = reals.iter().zip(&imaginaries);
            let words = numbers.map(|(real, imaginary)| {
                let imaginary = imaginary_format.word(*imaginary);
                let digits = imaginary.trim_end();
                let spaces = imaginary.len() - digits.len();
                format!("{}{digits}j{:spaces$}", real_format.word(*real), "")
            });
            words.collect()
        }
        (Kind::Datetime(_) | Kind::Timedelta(_), _) => {
            let words = values.iter().map(|value| {
                let Value::Object(object) = value else {
                    return None;
                };
                match (object.arguments().first()?, dtype.kind()) {
                    (Value::Str(_), _) => Some("'NaT'".to_owned()),
                    (_, Kind::Datetime(_)) => Some(format!("'{}'", object.numpy_text()?)),
                    (number, _) => Some(number.to_string()),
                }
            });
            aligned(words.collect::<Option<Vec<_>>>()?)
        }
        _ => return None,
    })
}

fn aligned(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let words: Vec<String> = words.into_iter().collect();
    let width = words.iter().map(String::len).max().unwrap_or_default();
    let padded = words.into_iter().map(|word| format!("{word:>width$}"));
    padded.collect()
}

/// Writes nested rows of words.
struct Layout<'a> {
    /// For each axis: the number of items shown, and the length of the axis if it
    /// is summarized.
    axes: &'a [(usize, Option<usize>)],
    words: std::vec::IntoIter<String>,
}

impl Layout<'_> {
    /// An array of the remaining axes, whose lines after the first one begin with
    /// `indent` spaces.
    fn nested(&mut self, indent: usize, width: usize) -> String {
        let Some(((shown, hidden), inner)) = self.axes.split_first() else {
            return self.words.next().unwrap_or_default();
        };
        let (shown, is_cut) = (*shown, hidden.is_some());
        let mut rows = Lines::new(indent);
        if inner.is_empty() {
            // Each line has room for a comma or a bracket.
            let width = width.saturating_sub(1);
            for index in 0..shown {
                if is_cut && index == EDGE_LEN {
                    rows.add("...", width);
                    rows.line.push_str(", ");
                }
                let word = self.words.next().unwrap_or_default();
                rows.add(&word, width);
                if index + 1 < shown {
                    rows.line.push_str(", ");
                }
            }
        } else {
            let separator = format!(",{}", "\n".repeat(inner.len()));
            let axes = core::mem::replace(&mut self.axes, inner);
            for index in 0..shown {
                if index > 0 {
                    rows.line.push_str(&separator);
                    write!(rows.line, "{:indent$}", "").unwrap_or_default();
                }
                if is_cut && index == EDGE_LEN {
                    rows.line.push_str("...");
                    rows.line.push_str(&separator);
                    write!(rows.line, "{:indent$}", "").unwrap_or_default();
                }
                let row = self.nested(indent + 1, width.saturating_sub(1));
                rows.line.push_str(&row);
            }
            self.axes = axes;
        }
        rows.done.push_str(&rows.line);
        format!("[{}]", rows.done.get(indent..).unwrap_or_default())
    }
}

/// Lines of words.
struct Lines {
    indent: usize,
    done: String,
    line: String,
}

impl Lines {
    fn new(indent: usize) -> Self {
        Self {
            indent,
            done: String::new(),
            line: " ".repeat(indent),
        }
    }

    /// Adds a word to the line, or to the next one if it has no room.
    fn add(&mut self, word: &str, width: usize) {
        let len = self.line.chars().count();
        if len + word.chars().count() > width && len > self.indent {
            self.done.push_str(self.line.trim_end());
            self.done.push('\n');
            self.line = " ".repeat(self.indent);
        }
        self.line.push_str(word);
    }
}

/// The precision of floats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Half,
    Single,
    Double,
}

impl Width {
    const fn of(len: usize) -> Option<Self> {
        match len {
            2 => Some(Self::Half),
            4 => Some(Self::Single),
            8 => Some(Self::Double),
            _ => None,
        }
    }

    /// The smallest number that is shown with an exponent.
    const fn max_positional(self) -> f64 {
        match self {
            Self::Half => 1e3,
            Self::Single => 1e6,
            Self::Double => 1e8,
        }
    }

    /// The number rounded to this type, where numpy computes with it.
    fn rounded(self, number: f64) -> f64 {
        match self {
            Self::Double => number,
            _ => narrow(number).into(),
        }
    }

    /// The fewest digits that are read back as `number`, with an exponent.
    fn shortest(self, number: f64) -> String {
        match self {
            Self::Double => format!("{number:e}"),
            Self::Single => format!("{:e}", narrow(number)),
            Self::Half => {
                // The distance to the next smaller and larger number.
                let magnitude = number.abs();
                let is_power = magnitude.to_bits() << 12 == 0;
                let ulp = 2_f64.powi(magnitude.max(MIN_HALF).log2().floor() as i32 - 10);
                let below = if is_power && magnitude > MIN_HALF {
                    ulp / 2.0
                } else {
                    ulp
                };
                let digits = (0..8).map(|precision| format!("{number:.precision$e}"));
                let mut digits = digits.filter(|digits| {
                    let found = digits.parse::<f64>().unwrap_or_default().abs();
                    let (min, max) = (magnitude - below / 2.0, magnitude + ulp / 2.0);
                    // A number in the middle between two is read as the even one.
                    let is_even = magnitude / ulp % 2.0 == 0.0;
                    (min < found && found < max) || (is_even && (found == min || found == max))
                });
                digits.next().unwrap_or_else(|| format!("{number:e}"))
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the nearest f32")]
const fn narrow(number: f64) -> f32 {
    number as f32
}

/// The smallest float of 16 bits without leading zeros.
const MIN_HALF: f64 = 6.103_515_625e-5;

/// The format of the floats of an array.
struct FloatFormat {
    width: Width,
    /// Digits after the point, and digits of the exponent, if there is one.
    exponential: Option<(usize, usize)>,
    /// Whether numbers that are not negative have a sign.
    has_plus: bool,
    left_len: usize,
    right_len: usize,
}

impl FloatFormat {
    fn new(numbers: &[f64], width: Width, has_plus: bool) -> Self {
        let mut format = Self {
            width,
            exponential: None,
            has_plus,
            left_len: 0,
            right_len: 0,
        };
        let finite = || numbers.iter().copied().filter(|number| number.is_finite());
        let magnitudes = finite().map(f64::abs).filter(|number| *number != 0.0);
        let bounds = magnitudes.fold(None, |bounds: Option<(f64, f64)>, number| {
            let (min, max) = bounds.unwrap_or((number, number));
            Some((min.min(number), max.max(number)))
        });
        let is_exponential = bounds.is_some_and(|(min, max)| {
            max >= width.max_positional()
                || min < width.rounded(0.0001)
                || width.rounded(max / min) > 1000.0
        });
        if is_exponential {
            let (mut precision, mut exponent_len) = (0, 2);
            for number in finite() {
                let (int, fraction, exponent) = format.scientific(number);
                format.left_len = format.left_len.max(int.len());
                precision = precision.max(fraction.len());
                exponent_len = exponent_len.max(exponent.unsigned_abs().to_string().len());
            }
            format.exponential = Some((precision, exponent_len));
            format.right_len = exponent_len + 2 + precision;
        } else {
            for number in finite() {
                let (int, fraction) = format.positional(number);
                format.left_len = format.left_len.max(int.len());
                format.right_len = format.right_len.max(fraction.len());
            }
        }
        if finite().count() < numbers.len() {
            let has_sign = has_plus || numbers.contains(&f64::NEG_INFINITY);
            let len = 3 + usize::from(has_sign);
            let left_len = len.saturating_sub(format.right_len + 1);
            format.left_len = format.left_len.max(left_len);
        }
        format
    }

    fn sign(&self, number: f64) -> &'static str {
        match (number.is_sign_negative(), self.has_plus) {
            (true, _) => "-",
            (false, true) => "+",
            (false, false) => "",
        }
    }

    /// The digits before the point, those after it, and the exponent.
    fn scientific(&self, number: f64) -> (String, String, i32) {
        let mut digits = self.width.shortest(number.abs());
        let (mantissa, _) = digits.split_once('e').unwrap_or((&digits, "0"));
        if mantissa.len() > PRECISION + 2 {
            digits = format!("{:.PRECISION$e}", number.abs());
        }
        let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
        let (int, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        (
            format!("{}{int}", self.sign(number)),
            fraction.trim_end_matches('0').to_owned(),
            exponent.parse().unwrap_or_default(),
        )
    }

    /// The digits before the point and those after it.
    fn positional(&self, number: f64) -> (String, String) {
        let shortest = self.width.shortest(number.abs());
        // The shortest digits of a narrower float, parsed as an `f64`, stay the
        // same.
        let shortest = shortest.parse().unwrap_or(number.abs());
        let mut digits = format!("{shortest}");
        let fraction_len = digits
            .split_once('.')
            .map_or(0, |(_, fraction)| fraction.len());
        if fraction_len > PRECISION {
            digits = format!("{:.PRECISION$}", number.abs());
        }
        let (int, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        (
            format!("{}{int}", self.sign(number)),
            fraction.trim_end_matches('0').to_owned(),
        )
    }

    fn word(&self, number: f64) -> String {
        let (left_len, right_len) = (self.left_len, self.right_len);
        if !number.is_finite() {
            let word = match (number.is_nan(), self.has_plus) {
                (true, true) => "+nan".to_owned(),
                (true, false) => "nan".to_owned(),
                (false, _) => format!("{}inf", self.sign(number)),
            };
            return format!("{word:>0$}", left_len + right_len + 1);
        }
        match self.exponential {
            None => {
                let (int, fraction) = self.positional(number);
                format!("{int:>left_len$}.{fraction:<right_len$}")
            }
            Some((precision, exponent_len)) => {
                // Digits beyond the shortest representation are those of the
                // number itself.
                let digits = format!("{:.precision$e}", number.abs());
                let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
                let (int, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
                let int = format!("{}{int}", self.sign(number));
                let (sign, exponent) = match exponent.strip_prefix('-') {
                    Some(exponent) => ('-', exponent),
                    None => ('+', exponent),
                };
                format!("{int:>left_len$}.{fraction}e{sign}{exponent:0>exponent_len$}")
            }
        }
    }
}

/// Number of elements above which an array is summarized.
const THRESHOLD: usize = 1000;

/// The number of items at each end of an axis that a summary has.
const EDGE_LEN: usize = 3;

/// The number of characters in a line.
const LINE_WIDTH: usize = 75;

/// Maximum number of digits after the point.
const PRECISION: usize = 8;

/// Maximum number of elements shown.
const MAX_SHOWN: usize = 1 << 12;
