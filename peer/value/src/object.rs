//! Instances of Python classes, as data.

use core::fmt;
use std::sync::Arc;

use super::{Items, Value};
use crate::brief::bounded;

/// An instance of a Python class: the class by name, and the arguments that
/// make it.
///
/// Instances of these classes are read as objects with these arguments:
///
/// | class | arguments |
/// | --- | --- |
/// | `collections.OrderedDict`, `Counter` | a dictionary |
/// | `collections.defaultdict` | the name of the factory, such as `list`, or `None`; a dictionary |
/// | `datetime.date` | year, month, day |
/// | `datetime.time` | hour, minute, second, microsecond; optionally the time zone and the fold |
/// | `datetime.datetime` | those of the date and of the time |
/// | `datetime.timedelta` | days, seconds, microseconds |
/// | `datetime.timezone` | a `timedelta`, optionally a name |
/// | `zoneinfo.ZoneInfo` | its name |
/// | `decimal.Decimal`, `uuid.UUID`, the paths of `pathlib` | a string |
/// | `fractions.Fraction` | numerator, denominator |
/// | `builtins.range`, `builtins.slice` | start, stop, step |
/// | `numpy.datetime64`, `numpy.timedelta64` | a number or `NaT`, the unit |
/// | `pandas.Timestamp` | units since 1970 in UTC, `None`, the time zone or `None`, the unit as a number: 7 is a second, 8 to 10 are milli-, micro- and nanoseconds |
/// | `pandas.Timedelta` | a number of units, the unit as above |
/// | a named tuple, or a subclass of `str`, `float`, `int` | those of its `__new__` |
/// | a data class, or another one whose state is its attributes | the attributes, whose names are [`fields`](Self::fields) |
/// | an enumeration | the value of the member |
/// | another class that pickles its instances as a call of itself | those of the call |
///
/// An object is written as a call of its class with these arguments (or, if it has
/// attributes, as Python writes it), so that a program can pass an object of any class
/// to a task, if the arguments are values:
///
/// ```
/// use daskwire_value::Value;
/// use daskwire_value::Object;
/// let price = Object::new("decimal", "Decimal", ["9.50"]);
/// assert_eq!(price.class(), "decimal.Decimal");
/// assert_eq!(Value::from(price.clone()).to_string(), "Decimal('9.50')");
/// assert_eq!(String::try_from(Value::from(price))?, "9.50");
/// let series = Object::new("pandas", "Series", [Value::from(vec![1, 2])]);
/// assert_eq!(series.arguments().len(), 1);
/// # Ok::<(), daskwire_value::WrongType>(())
/// ```
#[derive(Clone)]
pub struct Object {
    class: Arc<Class>,
    pub(super) arguments: Items,
}

/// A class by name.
#[derive(Debug, PartialEq)]
pub(super) struct Class {
    pub(super) module: String,
    pub(super) name: String,
    /// The names of a named tuple's items, if they are known.
    pub(super) fields: Vec<String>,
    pub(super) origin: Origin,
}

/// The call that creates an object from its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A call of the class.
    Called,
    /// A call of `__new__` of the class.
    New,
    /// A call of `__new__` of the class without arguments; the arguments are then set
    /// as attributes.
    Attributes,
    /// A call of `__new__` of a class that was sent with the object, and which others
    /// cannot import.
    Local,
    /// No call: the object has no counterpart in Rust, and was not read.
    #[cfg(feature = "serde")]
    Unread,
}

/// The classes whose arguments are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    OrderedDict,
    DefaultDict,
    Date,
    Time,
    DateTime,
    TimeDelta,
    TimeZone,
    ZoneInfo,
    Decimal,
    Uuid,
    Fraction,
    Path,
    Range,
    Slice,
    DateTime64,
    TimeDelta64,
    /// The reader of the Arrow streaming format; its argument is bytes.
    IpcStream,
    /// The table of such a reader.
    TableReader,
    /// The data frame of a table.
    TableToPandas,
    Timestamp,
    Timedelta,
    /// A named tuple, a subclass of `str`, or any other class.
    Other,
}

/// Names of classes with their meaning, under the names of all versions of
/// Python.
pub(super) const CLASSES: &[(&str, &str, Kind)] = &[
    ("collections", "Counter", Kind::Counter),
    ("collections", "OrderedDict", Kind::OrderedDict),
    ("collections", "defaultdict", Kind::DefaultDict),
    ("datetime", "date", Kind::Date),
    ("datetime", "time", Kind::Time),
    ("datetime", "datetime", Kind::DateTime),
    ("datetime", "timedelta", Kind::TimeDelta),
    ("datetime", "timezone", Kind::TimeZone),
    ("zoneinfo", "ZoneInfo", Kind::ZoneInfo),
    ("zoneinfo", "ZoneInfo._unpickle", Kind::ZoneInfo),
    ("decimal", "Decimal", Kind::Decimal),
    ("uuid", "UUID", Kind::Uuid),
    ("fractions", "Fraction", Kind::Fraction),
    ("pathlib", "PosixPath", Kind::Path),
    ("pathlib", "PurePosixPath", Kind::Path),
    ("pathlib", "WindowsPath", Kind::Path),
    ("pathlib", "PureWindowsPath", Kind::Path),
    ("pathlib._local", "PosixPath", Kind::Path),
    ("pathlib._local", "PurePosixPath", Kind::Path),
    ("pathlib._local", "WindowsPath", Kind::Path),
    ("pathlib._local", "PureWindowsPath", Kind::Path),
    ("builtins", "range", Kind::Range),
    ("builtins", "slice", Kind::Slice),
    ("numpy", "datetime64", Kind::DateTime64),
    ("numpy", "timedelta64", Kind::TimeDelta64),
    ("pandas", "Timestamp", Kind::Timestamp),
    (
        "pandas._libs.tslibs.timestamps",
        "_unpickle_timestamp",
        Kind::Timestamp,
    ),
    ("pandas", "Timedelta", Kind::Timedelta),
    (
        "pandas._libs.tslibs.timedeltas",
        "_timedelta_unpickle",
        Kind::Timedelta,
    ),
    ("pyarrow.ipc", "open_stream", Kind::IpcStream),
    (
        "pyarrow.lib",
        "RecordBatchReader.read_all",
        Kind::TableReader,
    ),
    ("pyarrow.lib", "Table.to_pandas", Kind::TableToPandas),
];

impl Object {
    /// Makes an instance of the class `name` in `module`.
    pub fn new(
        module: &str,
        name: &str,
        arguments: impl IntoIterator<Item = impl Into<Value>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into);
        Self::of_parts(module, name, arguments.collect())
    }

    pub(super) fn of_parts(module: &str, name: &str, arguments: Items) -> Self {
        let class = Class {
            module: module.to_owned(),
            name: name.to_owned(),
            fields: Vec::new(),
            origin: Origin::Called,
        };
        Self::of_class(Arc::new(class), arguments)
    }

    pub(super) const fn of_class(class: Arc<Class>, arguments: Items) -> Self {
        Self { class, arguments }
    }

    /// Stands for an object that was not read, in a value of
    /// [`Serialized::open_marking_unknown`](super::Serialized::open_marking_unknown).
    #[cfg(feature = "serde")]
    pub(super) fn unread(what: String) -> Self {
        let class = Class {
            module: "builtins".to_owned(),
            name: what,
            fields: Vec::new(),
            origin: Origin::Unread,
        };
        Self::of_class(Arc::new(class), Items::default())
    }

    pub(super) fn origin(&self) -> Origin {
        self.class.origin
    }

    /// The module of the class.
    pub fn module(&self) -> &str {
        &self.class.module
    }

    /// The name of the class in its module, dotted for nested classes.
    pub fn name(&self) -> &str {
        &self.class.name
    }

    /// The name of the class with its module, if that is not `builtins`.
    pub fn class(&self) -> String {
        match self.module() {
            "builtins" => self.name().to_owned(),
            module => format!("{module}.{}", self.name()),
        }
    }

    /// Whether other processes can import the class.
    pub(super) fn is_importable(&self) -> bool {
        let is_class = match self.origin() {
            Origin::Called | Origin::New | Origin::Attributes => true,
            Origin::Local => false,
            #[cfg(feature = "serde")]
            Origin::Unread => false,
        };
        is_class && self.module() != "__main__"
    }

    /// The arguments that make the object.
    pub fn arguments(&self) -> &[Value] {
        &self.arguments
    }

    /// The names of the attributes that the arguments set, such as the fields of a data
    /// class, or the names of a named tuple's items. Empty if they are not known: the
    /// names of a named tuple are sent only if its class is defined in the program that
    /// made the tuple.
    pub fn fields(&self) -> &[String] {
        &self.class.fields
    }

    /// The attribute with this name, or the item of a named tuple whose names are
    /// known.
    pub fn get(&self, field: &str) -> Option<&Value> {
        let index = self.fields().iter().position(|name| name == field)?;
        self.arguments.get(index)
    }

    /// The name of the class without its module and outer classes.
    pub(super) fn short_name(&self) -> &str {
        let name = self.name();
        name.rsplit_once('.').map_or(name, |(_, name)| name)
    }

    pub(super) fn kind(&self) -> Kind {
        let found = CLASSES
            .iter()
            .find(|(module, name, _)| *module == self.module() && *name == self.name());
        found.map_or(Kind::Other, |(_, _, kind)| *kind)
    }

    pub(super) fn is_same_class(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.class, &other.class) || self.class == other.class
    }

    /// The address of the shared arguments and that of the class, if the
    /// arguments have other owners.
    pub(super) fn shared_address(&self) -> Option<(usize, usize)> {
        Some((
            self.arguments.shared_address()?,
            Arc::as_ptr(&self.class).addr(),
        ))
    }

    /// The value of the built-in type that the object extends: the dictionary of
    /// a `Counter`, the string of a path or a decimal number.
    pub(super) fn base(&self) -> Option<&Value> {
        match (self.kind(), self.arguments()) {
            (
                Kind::Counter | Kind::OrderedDict | Kind::Decimal | Kind::Uuid | Kind::Path,
                [base],
            )
            | (Kind::DefaultDict, [_, base]) => Some(base),
            (
                Kind::Other,
                [
                    base @ (Value::Str(_)
                    | Value::Bytes(_)
                    | Value::Float(_)
                    | Value::Int(_)
                    | Value::LargeInt(_)),
                ],
            ) if self.fields().is_empty() => Some(base),
            _ => None,
        }
    }

    /// Whether the object may be a named tuple.
    pub(super) fn is_tuple(&self) -> bool {
        let is_called = matches!(self.origin(), Origin::Called | Origin::Attributes);
        self.kind() == Kind::Other && !is_called
    }

    /// The arguments as integers, if all are and there are `N`; further
    /// arguments are ignored.
    pub(super) fn integers<const N: usize>(&self) -> Option<[i64; N]> {
        let mut all = [0; N];
        for (place, argument) in all.iter_mut().zip(self.arguments.get(..N)?) {
            let Value::Int(number) = argument else {
                return None;
            };
            *place = i64::try_from(*number).ok()?;
        }
        Some(all)
    }

    /// The offset of a `datetime.timezone` in seconds.
    pub(super) fn zone_offset(&self) -> Option<i64> {
        match (self.kind(), self.arguments()) {
            (Kind::TimeZone, [Value::Object(delta), ..]) if delta.kind() == Kind::TimeDelta => {
                let [days, seconds, _] = delta.integers()?;
                days.checked_mul(86_400)?.checked_add(seconds)
            }
            _ => None,
        }
    }

    /// Nanoseconds since 1970 in UTC of a `numpy.datetime64` or `pandas.Timestamp`,
    /// or those of a difference; `None` if it is `NaT` or in months.
    pub(super) fn nanoseconds(&self) -> Option<i128> {
        if let (Kind::Timestamp, [Value::Int(number), Value::None, _, Value::Int(unit)])
        | (Kind::Timedelta, [Value::Int(number), Value::Int(unit)]) =
            (self.kind(), self.arguments())
        {
            let len = match unit {
                7 => 1_000_000_000,
                8 => 1_000_000,
                9 => 1_000,
                10 => 1,
                _ => return None,
            };
            return number.checked_mul(len);
        }
        let [Value::Int(number), Value::Str(unit)] = self.arguments() else {
            return None;
        };
        let digits = unit.bytes().take_while(u8::is_ascii_digit).count();
        let (count, base) = unit.split_at_checked(digits)?;
        let count: i128 = if count.is_empty() {
            1
        } else {
            count.parse().ok()?
        };
        let length = match base {
            "W" => 604_800_000_000_000,
            "D" => 86_400_000_000_000,
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        number.checked_mul(count)?.checked_mul(length)
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.is_same_class(other) && self.arguments == other.arguments
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class();
        bounded(f, |f| {
            f.write_str(&class)?;
            fmt::Debug::fmt(&self.arguments, f)
        })
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

impl TryFrom<Value> for Object {
    type Error = super::WrongType;

    fn try_from(value: Value) -> Result<Self, super::WrongType> {
        match value {
            Value::Object(object) => Ok(object),
            other => Err(super::WrongType::new("an object", &other)),
        }
    }
}

/// Converts to a `datetime.timedelta`, rounded down to microseconds.
impl From<core::time::Duration> for Value {
    fn from(duration: core::time::Duration) -> Self {
        let seconds = duration.as_secs();
        let parts = [
            seconds / 86_400,
            seconds % 86_400,
            u64::from(duration.subsec_micros()),
        ];
        Object::new("datetime", "timedelta", parts).into()
    }
}

/// Converts a `datetime.timedelta` or a `numpy.timedelta64` that is not negative.
impl TryFrom<Value> for core::time::Duration {
    type Error = super::WrongType;

    fn try_from(value: Value) -> Result<Self, super::WrongType> {
        let nanoseconds = match &value {
            Value::Object(object) => object.duration(),
            _ => None,
        };
        let parts = nanoseconds.and_then(|count| {
            let seconds = u64::try_from(count.div_euclid(1_000_000_000)).ok()?;
            let rest = u32::try_from(count.rem_euclid(1_000_000_000)).ok()?;
            Some(Self::new(seconds, rest))
        });
        parts.ok_or_else(|| super::WrongType::new("a timedelta that is not negative", &value))
    }
}

impl Object {
    /// The state of a `datetime.time` whose fold is 1.
    pub(super) fn folded_time(&self) -> Option<Vec<u8>> {
        let mut state = clock_state(self.integers()?)?;
        *state.first_mut()? |= 0x80;
        Some(state.to_vec())
    }

    /// The state of a `datetime.datetime` whose fold is 1.
    pub(super) fn folded_date_time(&self) -> Option<Vec<u8>> {
        let [year, month, day, clock @ ..] = self.integers::<7>()?;
        let mut state = u16::try_from(year).ok()?.to_be_bytes().to_vec();
        state.push(u8::try_from(month).ok()? | 0x80);
        state.push(u8::try_from(day).ok()?);
        state.extend(clock_state(clock)?);
        Some(state)
    }

    /// A `numpy.datetime64` as numpy formats it: up to its unit.
    pub(super) fn numpy_text(&self) -> Option<String> {
        let [Value::Int(number), Value::Str(unit)] = self.arguments() else {
            return None;
        };
        let len = match &**unit {
            "Y" | "M" => {
                let months = if **unit == *"M" {
                    *number
                } else {
                    number.checked_mul(12)?
                };
                let (year, month) = (months.div_euclid(12) + 1970, months.rem_euclid(12) + 1);
                return Some(match &**unit {
                    "Y" => format!("{year:04}"),
                    _ => format!("{year:04}-{month:02}"),
                });
            }
            "W" | "D" => 10,
            "h" => 13,
            "m" => 16,
            "s" => 19,
            "ms" => 23,
            "us" => 26,
            "ns" => 29,
            _ => return None,
        };
        let mut text = date_time_text(self.nanoseconds()?);
        if len > 19 {
            if text.len() == 19 {
                text.push('.');
            }
            while text.len() < len {
                text.push('0');
            }
        }
        // `None` for years that do not have four digits.
        (text.find('-') == Some(4)).then(|| text.get(..len).map(str::to_owned))?
    }

    /// A `datetime.datetime`, with an offset from UTC in seconds.
    #[cfg(any(feature = "chrono-04", feature = "jiff-02"))]
    pub(super) fn date_time(date: [i64; 3], clock: [i64; 4], offset: Option<i64>) -> Self {
        let mut parts: Vec<Value> = date.into_iter().chain(clock).map(Into::into).collect();
        if let Some(seconds) = offset {
            let delta = Self::time_delta(i128::from(seconds) * 1_000_000);
            parts.push(Self::new("datetime", "timezone", [delta]).into());
        }
        Self::new("datetime", "datetime", parts)
    }

    /// A `datetime.timedelta`.
    #[cfg(any(feature = "chrono-04", feature = "jiff-02"))]
    pub(super) fn time_delta(microseconds: i128) -> Self {
        const DAY: i128 = 86_400_000_000;
        let (days, rest) = (microseconds.div_euclid(DAY), microseconds.rem_euclid(DAY));
        let parts = [days, rest / 1_000_000, rest % 1_000_000];
        Self::new("datetime", "timedelta", parts)
    }

    /// The length of a time difference in nanoseconds.
    pub(super) fn duration(&self) -> Option<i128> {
        match self.kind() {
            Kind::TimeDelta => {
                let [days, seconds, microseconds] = self.integers()?;
                let seconds = i128::from(days) * 86_400 + i128::from(seconds);
                Some((seconds * 1_000_000 + i128::from(microseconds)) * 1_000)
            }
            Kind::TimeDelta64 | Kind::Timedelta => self.nanoseconds(),
            _ => None,
        }
    }
}

/// Hour, minute, second and microsecond as Python pickles them.
fn clock_state([hour, minute, second, microsecond]: [i64; 4]) -> Option<[u8; 6]> {
    let [high, a, b, c] = u32::try_from(microsecond).ok()?.to_be_bytes();
    let small = |part: i64| u8::try_from(part).ok();
    (high == 0).then_some([small(hour)?, small(minute)?, small(second)?, a, b, c])
}

/// A date and time in ISO 8601, of nanoseconds since 1970.
pub(super) fn date_time_text(nanoseconds: i128) -> String {
    const DAY: i128 = 86_400_000_000_000;
    let (year, month, day) = civil(nanoseconds.div_euclid(DAY));
    let rest = nanoseconds.rem_euclid(DAY);
    let (seconds, fraction) = (rest / 1_000_000_000, rest % 1_000_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    match fraction {
        0 => {}
        _ if fraction % 1_000_000 == 0 => text.push_str(&format!(".{:03}", fraction / 1_000_000)),
        _ if fraction % 1_000 == 0 => text.push_str(&format!(".{:06}", fraction / 1_000)),
        _ => text.push_str(&format!(".{fraction:09}")),
    }
    text
}

/// The Gregorian date of a number of days since 1970.
pub(super) fn civil(days: i128) -> (i128, i128, i128) {
    // Years that begin in March end with the leap day; 400 of them have as many
    // days each time. Day 0 is 0000-03-01.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (year + era * 400 + carry, month, day)
}

/// Implements `TryFrom<Value>` for types that are read from an [`Object`].
#[cfg(any(feature = "chrono-04", feature = "jiff-02"))]
macro_rules! from_object {
    ($($(#[$attribute:meta])* $type:ty: $wanted:literal, $read:expr;)*) => {$(
        $(#[$attribute])*
        impl TryFrom<Value> for $type {
            type Error = WrongType;

            fn try_from(value: Value) -> Result<Self, WrongType> {
                let read: fn(&Object) -> Option<Self> = $read;
                let found = match &value {
                    Value::Object(object) => read(object),
                    _ => None,
                };
                found.ok_or_else(|| WrongType::new($wanted, &value))
            }
        }
    )*};
}
#[cfg(any(feature = "chrono-04", feature = "jiff-02"))]
pub(super) use from_object;
