//! Element types, and their Rust equivalents.

use core::fmt;
use daskwire::invariant::OrDefaultIfBug;

/// The type of an array's elements: numpy's `dtype` as a kind, a byte order and
/// a length.
///
/// For records it has only the length, see [`RecordType`](super::RecordType)
/// for their fields. Types defined by programs have no `DType`.
///
/// ```
/// use daskwire_numpy::{ByteOrder, DType, DTypeError, Kind};
///
/// let dtype = DType::parse("<f8")?;
/// assert_eq!(dtype, DType::F64);
/// assert_eq!((dtype.kind(), dtype.item_len()), (Kind::Float, 8));
/// assert_eq!(DType::parse(">U5")?.item_len(), 20);
/// assert_eq!(DType::F64.with_order(ByteOrder::Big).type_string().as_str(), ">f8");
/// # Ok::<(), DTypeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DType {
    kind: Kind,
    order: ByteOrder,
    item_len: usize,
}

/// The kind of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// `b`: a boolean, one byte of 0 or 1.
    Bool,
    /// `i`: an integer in two's complement.
    Int,
    /// `u`: an unsigned integer.
    UInt,
    /// `f`: an IEEE 754 float of 2, 4 or 8 bytes; one of 12 or 16 bytes is the
    /// sender's C `long double`.
    Float,
    /// `c`: two floats, the real part first.
    Complex,
    /// `m`: a time difference as an `i64` in this unit. The smallest `i64` is
    /// `NaT`.
    Timedelta(TimeUnit),
    /// `M`: a time as an `i64` in this unit since 1970. The smallest `i64` is
    /// `NaT`.
    Datetime(TimeUnit),
    /// `S`: bytes, padded with zeros at the end.
    Bytes,
    /// `U`: a string in UTF-32, 4 bytes per character, padded with zeros at the
    /// end.
    Str,
    /// `V`: opaque bytes.
    Void,
    /// `V` with fields, which a [`RecordType`](super::RecordType) has.
    Record,
    /// `O`: references to Python objects. These are never sent; the objects are
    /// pickled instead.
    Object,
}

/// The byte order of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// `<`: little-endian.
    Little,
    /// `>`: big-endian.
    Big,
    /// `|`: no byte order, as for elements of one byte.
    NotApplicable,
}

impl ByteOrder {
    /// The order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    const fn byte(self) -> u8 {
        match self {
            Self::Little => b'<',
            Self::Big => b'>',
            Self::NotApplicable => b'|',
        }
    }
}

/// The unit of a time: a multiple of a base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeUnit {
    /// The multiple, 1 or more. Always 1 for [`TimeBase::Generic`].
    pub count: u32,
    /// The base unit.
    pub base: TimeBase,
}

impl TimeUnit {
    /// Creates a unit of one `base`.
    pub const fn one(base: TimeBase) -> Self {
        Self { count: 1, base }
    }
}

/// A base unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeBase {
    /// No unit.
    Generic,
    /// `Y`.
    Year,
    /// `M`.
    Month,
    /// `W`.
    Week,
    /// `D`.
    Day,
    /// `h`.
    Hour,
    /// `m`.
    Minute,
    /// `s`.
    Second,
    /// `ms`.
    Millisecond,
    /// `us`.
    Microsecond,
    /// `ns`.
    Nanosecond,
    /// `ps`.
    Picosecond,
    /// `fs`.
    Femtosecond,
    /// `as`.
    Attosecond,
}

impl TimeBase {
    /// numpy's name, empty for [`Generic`](Self::Generic).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "",
            Self::Year => "Y",
            Self::Month => "M",
            Self::Week => "W",
            Self::Day => "D",
            Self::Hour => "h",
            Self::Minute => "m",
            Self::Second => "s",
            Self::Millisecond => "ms",
            Self::Microsecond => "us",
            Self::Nanosecond => "ns",
            Self::Picosecond => "ps",
            Self::Femtosecond => "fs",
            Self::Attosecond => "as",
        }
    }

    pub(crate) const fn from_name(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"Y" => Self::Year,
            b"M" => Self::Month,
            b"W" => Self::Week,
            b"D" => Self::Day,
            b"h" => Self::Hour,
            b"m" => Self::Minute,
            b"s" => Self::Second,
            b"ms" => Self::Millisecond,
            b"us" => Self::Microsecond,
            b"ns" => Self::Nanosecond,
            b"ps" => Self::Picosecond,
            b"fs" => Self::Femtosecond,
            b"as" => Self::Attosecond,
            _ => return None,
        })
    }
}

/// The error of parsing an element type: the offset of the fault and the input that
/// was expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DTypeError {
    /// Offset in the string, the list of fields or the pickle, in bytes.
    pub at: usize,
    /// The expected input.
    pub expected: &'static str,
}

impl fmt::Display for DTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at byte {} of the type: expected {}",
            self.at, self.expected
        )
    }
}

impl core::error::Error for DTypeError {}

impl DType {
    /// `|b1`: a byte of 0 or 1.
    pub const BOOL: Self = Self::little(Kind::Bool, 1);
    /// `|i1`.
    pub const I8: Self = Self::little(Kind::Int, 1);
    /// `<i2`.
    pub const I16: Self = Self::little(Kind::Int, 2);
    /// `<i4`.
    pub const I32: Self = Self::little(Kind::Int, 4);
    /// `<i8`.
    pub const I64: Self = Self::little(Kind::Int, 8);
    /// `|u1`.
    pub const U8: Self = Self::little(Kind::UInt, 1);
    /// `<u2`.
    pub const U16: Self = Self::little(Kind::UInt, 2);
    /// `<u4`.
    pub const U32: Self = Self::little(Kind::UInt, 4);
    /// `<u8`.
    pub const U64: Self = Self::little(Kind::UInt, 8);
    /// `<f2`.
    pub const F16: Self = Self::little(Kind::Float, 2);
    /// `<f4`.
    pub const F32: Self = Self::little(Kind::Float, 4);
    /// `<f8`.
    pub const F64: Self = Self::little(Kind::Float, 8);
    /// `<c8`: two `f32`.
    pub const COMPLEX_F32: Self = Self::little(Kind::Complex, 8);
    /// `<c16`: two `f64`.
    pub const COMPLEX_F64: Self = Self::little(Kind::Complex, 16);

    /// `|O`: references to objects.
    pub const OBJECT: Self = Self {
        kind: Kind::Object,
        order: ByteOrder::NotApplicable,
        item_len: 8,
    };

    /// The maximum length of a type string: `|V` and a `usize`.
    const MAX_TYPE_STRING_LEN: usize = 24;

    const fn little(kind: Kind, item_len: usize) -> Self {
        Self {
            kind,
            order: if item_len == 1 {
                ByteOrder::NotApplicable
            } else {
                ByteOrder::Little
            },
            item_len,
        }
    }

    /// `S`: byte strings of `len` bytes.
    pub const fn bytes(len: usize) -> Self {
        Self {
            kind: Kind::Bytes,
            order: ByteOrder::NotApplicable,
            item_len: len,
        }
    }

    /// `V`: `len` opaque bytes.
    pub const fn void(len: usize) -> Self {
        Self {
            kind: Kind::Void,
            order: ByteOrder::NotApplicable,
            item_len: len,
        }
    }

    /// `V` with fields: records of `len` bytes.
    pub(crate) const fn record(len: usize) -> Self {
        Self {
            kind: Kind::Record,
            order: ByteOrder::NotApplicable,
            item_len: len,
        }
    }

    /// `<U`: strings of `count` characters; `None` if the length overflows.
    pub const fn string(count: usize) -> Option<Self> {
        match count.checked_mul(4) {
            Some(item_len) => Some(Self {
                kind: Kind::Str,
                order: ByteOrder::Little,
                item_len,
            }),
            None => None,
        }
    }

    /// `<M8`: times in this unit since 1970.
    pub const fn datetime(unit: TimeUnit) -> Self {
        Self::little(Kind::Datetime(unit), 8)
    }

    /// `<m8`: time differences in this unit.
    pub const fn timedelta(unit: TimeUnit) -> Self {
        Self::little(Kind::Timedelta(unit), 8)
    }

    /// Returns the type with another byte order, if it has one.
    #[must_use]
    pub const fn with_order(self, order: ByteOrder) -> Self {
        match (self.order, order) {
            (ByteOrder::NotApplicable, _) | (_, ByteOrder::NotApplicable) => self,
            _ => Self { order, ..self },
        }
    }

    /// Parses a type string of `numpy.dtype.str` (PROTOCOL TYPED-2).
    ///
    /// # Errors
    ///
    /// [`DTypeError`] if the string is invalid or not a plain type.
    pub fn parse(string: &str) -> Result<Self, DTypeError> {
        Self::from_bytes(string.as_bytes())
    }

    pub(super) fn from_bytes(string: &[u8]) -> Result<Self, DTypeError> {
        let error = |at, expected| DTypeError { at, expected };
        let order = match string.first() {
            Some(b'<') => ByteOrder::Little,
            Some(b'>') => ByteOrder::Big,
            Some(b'|') => ByteOrder::NotApplicable,
            _ => return Err(error(0, "a byte order, one of < > |")),
        };
        let letter = string.get(1).copied().unwrap_or_default();
        let unit = TimeUnit::one(TimeBase::Generic);
        let (kind, lens) = plain_kind(letter, unit).ok_or(error(
            1,
            "a kind of plain elements, one of b i u f c m M S U V",
        ))?;
        let digits = string.get(2..).unwrap_or_default();
        let (number, rest) = number(digits).ok_or(error(2, "a length"))?;
        let rest_at = string.len().saturating_sub(rest.len());
        if !lens.is_empty() && !lens.contains(&number) {
            return Err(error(2, "a length that this kind of elements has"));
        }
        let item_len = match kind {
            Kind::Str => number.checked_mul(4),
            _ => Some(number),
        };
        let item_len = item_len.ok_or(error(2, "a length"))?;
        let kind = match kind {
            Kind::Timedelta(_) => Kind::Timedelta(time_unit(rest, rest_at)?),
            Kind::Datetime(_) => Kind::Datetime(time_unit(rest, rest_at)?),
            _ if !rest.is_empty() => return Err(error(rest_at, "the end of the string")),
            kind => kind,
        };
        let order = order_of(kind, item_len, order).ok_or(error(0, "a byte order, < or >"))?;
        Ok(Self {
            kind,
            order,
            item_len,
        })
    }

    /// The type of `numpy.dtype(name, False, True)` with this byte order,
    /// length and unit in its state (PROTOCOL TYPED-7), without fields. The
    /// error is the expected input.
    #[cfg(feature = "alloc")]
    pub(crate) fn from_state(
        name: &str,
        order: &str,
        item_len: Option<usize>,
        unit: Option<TimeUnit>,
    ) -> Result<Self, &'static str> {
        const NAME: &str = "the name of a plain type, such as f8";
        let order = match order {
            "<" => ByteOrder::Little,
            ">" => ByteOrder::Big,
            "|" => ByteOrder::NotApplicable,
            _ => return Err("a byte order, one of < > |"),
        };
        let (&letter, digits) = name.as_bytes().split_first().ok_or(NAME)?;
        let Some((number, [])) = number(digits) else {
            return Err(NAME);
        };
        if letter == b'O' {
            return Ok(Self {
                item_len: number,
                ..Self::OBJECT
            });
        }
        let is_time = matches!(letter, b'm' | b'M');
        let generic = TimeUnit::one(TimeBase::Generic);
        let (kind, lens) = plain_kind(letter, unit.unwrap_or(generic)).ok_or(NAME)?;
        if is_time != unit.is_some() {
            return Err("a unit of time, for a time and nothing else");
        }
        let item_len = match (kind, item_len) {
            (Kind::Str | Kind::Bytes | Kind::Void, Some(len)) => len,
            (Kind::Str, None) => number.checked_mul(4).ok_or(NAME)?,
            _ if !lens.is_empty() && !lens.contains(&number) => return Err(NAME),
            _ => number,
        };
        if kind == Kind::Str && !item_len.is_multiple_of(4) {
            return Err("the length of whole characters");
        }
        Ok(Self {
            kind,
            order: order_of(kind, item_len, order).ok_or("a byte order, < or >")?,
            item_len,
        })
    }

    /// The type for a `format` of Python's `struct`, such as the `d` of a
    /// `memoryview`. `item_len` is the length of an element, which for some
    /// formats depends on the sender's machine. `None` for formats that are not
    /// a single element, or of another length.
    pub fn from_format(format: &str, item_len: usize) -> Option<Self> {
        let (order, letter) = match *format.as_bytes() {
            [letter] | [b'@' | b'=' | b'<', letter] => (ByteOrder::Little, letter),
            [b'>' | b'!', letter] => (ByteOrder::Big, letter),
            _ => return None,
        };
        let (kind, lens): (Kind, &[usize]) = match letter {
            b'?' => (Kind::Bool, &[1]),
            b'b' => (Kind::Int, &[1]),
            b'B' => (Kind::UInt, &[1]),
            b'c' => (Kind::Bytes, &[1]),
            b'h' => (Kind::Int, &[2]),
            b'H' => (Kind::UInt, &[2]),
            b'i' => (Kind::Int, &[4]),
            b'I' => (Kind::UInt, &[4]),
            b'l' | b'n' => (Kind::Int, &[4, 8]),
            b'L' | b'N' => (Kind::UInt, &[4, 8]),
            b'q' => (Kind::Int, &[8]),
            b'Q' => (Kind::UInt, &[8]),
            b'e' => (Kind::Float, &[2]),
            b'f' => (Kind::Float, &[4]),
            b'd' => (Kind::Float, &[8]),
            _ => return None,
        };
        lens.contains(&item_len)
            .then(|| Self::little(kind, item_len).with_order(order))
    }

    /// The kind of an element.
    pub const fn kind(self) -> Kind {
        self.kind
    }

    /// The byte order of an element.
    pub const fn order(self) -> ByteOrder {
        self.order
    }

    /// Length of an element, in bytes.
    pub const fn item_len(self) -> usize {
        self.item_len
    }

    /// Whether elements have the byte order of this machine.
    pub fn is_native(self) -> bool {
        self.order == ByteOrder::NotApplicable || self.order == ByteOrder::NATIVE
    }

    /// The type string as in `numpy.dtype.str`, which [`parse`](Self::parse)
    /// reads. For records it is `V` and their length; that of references cannot
    /// be parsed.
    pub fn type_string(self) -> DTypeString {
        let mut string = DTypeString {
            bytes: [0; Self::MAX_TYPE_STRING_LEN],
            len: 0,
        };
        string.push(self.order.byte());
        self.push_name(&mut string);
        if let Kind::Timedelta(unit) | Kind::Datetime(unit) = self.kind
            && unit.base != TimeBase::Generic
        {
            string.push(b'[');
            if unit.count != 1 {
                string.push_number(unit.count as usize);
            }
            unit.base.name().bytes().for_each(|byte| string.push(byte));
            string.push(b']');
        }
        string
    }

    /// The type string without byte order and unit, such as `f8`.
    pub(super) fn to_name(self) -> DTypeString {
        let mut string = DTypeString {
            bytes: [0; Self::MAX_TYPE_STRING_LEN],
            len: 0,
        };
        self.push_name(&mut string);
        string
    }

    fn push_name(self, string: &mut DTypeString) {
        let (letter, number) = match self.kind {
            Kind::Bool => (b'b', self.item_len),
            Kind::Int => (b'i', self.item_len),
            Kind::UInt => (b'u', self.item_len),
            Kind::Float => (b'f', self.item_len),
            Kind::Complex => (b'c', self.item_len),
            Kind::Timedelta(_) => (b'm', self.item_len),
            Kind::Datetime(_) => (b'M', self.item_len),
            Kind::Bytes => (b'S', self.item_len),
            Kind::Str => (b'U', self.item_len >> 2),
            Kind::Void | Kind::Record => (b'V', self.item_len),
            Kind::Object => (b'O', 0),
        };
        string.push(letter);
        if number > 0 || letter != b'O' {
            string.push_number(number);
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_string().as_str())
    }
}

/// The kind for a letter, and its valid lengths; empty if any length is valid.
fn plain_kind(letter: u8, unit: TimeUnit) -> Option<(Kind, &'static [usize])> {
    Some(match letter {
        b'b' => (Kind::Bool, &[1]),
        b'i' => (Kind::Int, &[1, 2, 4, 8]),
        b'u' => (Kind::UInt, &[1, 2, 4, 8]),
        b'f' => (Kind::Float, &[2, 4, 8, 12, 16]),
        b'c' => (Kind::Complex, &[8, 16, 24, 32]),
        b'm' => (Kind::Timedelta(unit), &[8]),
        b'M' => (Kind::Datetime(unit), &[8]),
        b'S' => (Kind::Bytes, &[]),
        b'U' => (Kind::Str, &[]),
        b'V' => (Kind::Void, &[]),
        _ => return None,
    })
}

/// The byte order of elements with declared order `order`; `None` if they
/// require one and it is missing.
fn order_of(kind: Kind, item_len: usize, order: ByteOrder) -> Option<ByteOrder> {
    match kind {
        Kind::Bytes | Kind::Void | Kind::Record | Kind::Object => Some(ByteOrder::NotApplicable),
        Kind::Bool | Kind::Int | Kind::UInt if item_len == 1 => Some(ByteOrder::NotApplicable),
        _ if matches!(order, ByteOrder::NotApplicable) => None,
        _ => Some(order),
    }
}

/// The number at the start of `string`, and the rest.
fn number(string: &[u8]) -> Option<(usize, &[u8])> {
    let end = string
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(string.len());
    let (digits, rest) = string.split_at_checked(end)?;
    if digits.is_empty() {
        return None;
    }
    let number = digits.iter().try_fold(0_usize, |number, digit| {
        let digit = usize::from(digit.wrapping_sub(b'0'));
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some((number, rest))
}

/// Parses an optional unit such as `[25s]`.
fn time_unit(string: &[u8], at: usize) -> Result<TimeUnit, DTypeError> {
    const EXPECTED: &str = "a unit of time such as [ns] or [25s], or the end of the string";
    let error = DTypeError {
        at,
        expected: EXPECTED,
    };
    if string.is_empty() {
        return Ok(TimeUnit::one(TimeBase::Generic));
    }
    let inner = string
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"));
    let inner = inner.ok_or(error)?;
    let (count, name) = number(inner).unwrap_or((1, inner));
    let count = u32::try_from(count).map_err(|_| error)?;
    match TimeBase::from_name(name) {
        Some(base) if count != 0 => Ok(TimeUnit { count, base }),
        _ => Err(error),
    }
}

/// A type string, see [`DType::type_string`].
#[derive(Clone, Copy)]
pub struct DTypeString {
    bytes: [u8; DType::MAX_TYPE_STRING_LEN],
    len: usize,
}

impl DTypeString {
    /// The type string.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).or_default_if_bug();
        // All of it is ASCII.
        core::str::from_utf8(bytes).or_default_if_bug()
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len = self.len.saturating_add(1);
        }
    }

    fn push_number(&mut self, mut number: usize) {
        // From the last digit; a usize has at most 20.
        let mut digits = [0; 20];
        let mut first = digits.len();
        for (index, place) in digits.iter_mut().enumerate().rev() {
            // Less than 10, so the conversion is lossless.
            let digit = u8::try_from(number % 10).or_default_if_bug();
            *place = b'0'.wrapping_add(digit);
            first = index;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        for digit in digits.iter().skip(first) {
            self.push(*digit);
        }
    }
}

impl fmt::Debug for DTypeString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

mod sealed {
    use super::{ByteOrder, DType};

    /// Conversion of elements from and to bytes.
    #[expect(unnameable_types, reason = "other crates must not implement it")]
    pub trait Sealed: Copy {
        /// The type of the element, in little-endian byte order.
        const DTYPE: DType;
        /// The fallback for an element whose bytes are missing, which cannot occur.
        const ZERO: Self;
        /// Reads an element; `None` if there are too few bytes.
        fn read(bytes: &[u8], order: ByteOrder) -> Option<Self>;
        /// Writes an element.
        fn write(self, place: &mut [u8], order: ByteOrder);
    }
}

pub(super) use sealed::Sealed;

/// A Rust type for elements of arrays: `bool`, the integers and floats of fixed
/// size, `[f32; 2]` and `[f64; 2]` for complex numbers, and
/// [`Datetime64`](super::Datetime64) and [`Timedelta64`](super::Timedelta64) for times,
/// which may also be read as `i64`; by features `f16` of the crate half, and `Complex` of
/// num-complex 0.4.
pub trait Element: Sealed + 'static {
    /// The type of native elements in memory: itself, or the `i64` of a time.
    #[cfg(all(feature = "alloc", feature = "bytemuck"))]
    type Native: Element + bytemuck::NoUninit + Send;

    /// Converts to native elements, normally without copying, whose bytes
    /// [`as_bytes`](super::as_bytes) returns.
    #[cfg(all(feature = "alloc", feature = "bytemuck"))]
    fn into_native(elements: alloc::vec::Vec<Self>) -> alloc::vec::Vec<Self::Native>;

    /// The type in this byte order.
    fn dtype(order: ByteOrder) -> DType {
        Self::DTYPE.with_order(order)
    }

    /// Whether elements of `dtype` can be read as this type.
    fn is_of(dtype: DType) -> bool {
        let own = Self::DTYPE;
        let is_time = matches!(dtype.kind, Kind::Datetime(_) | Kind::Timedelta(_));
        let kind = if is_time { Kind::Int } else { dtype.kind };
        (own.kind, own.item_len) == (kind, dtype.item_len)
    }
}

/// Implements [`Element`] for a type of native elements.
macro_rules! native {
    ($type:ty) => {
        impl Element for $type {
            #[cfg(all(feature = "alloc", feature = "bytemuck"))]
            type Native = Self;

            #[cfg(all(feature = "alloc", feature = "bytemuck"))]
            fn into_native(elements: alloc::vec::Vec<Self>) -> alloc::vec::Vec<Self> {
                elements
            }
        }
    };
}

macro_rules! elements {
    ($($type:ty, $dtype:ident;)*) => {$(
        impl Sealed for $type {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = 0 as Self;

            #[inline]
            fn read(bytes: &[u8], order: ByteOrder) -> Option<Self> {
                let bytes = *bytes.first_chunk()?;
                Some(match order {
                    ByteOrder::Big => Self::from_be_bytes(bytes),
                    _ => Self::from_le_bytes(bytes),
                })
            }

            #[inline]
            fn write(self, place: &mut [u8], order: ByteOrder) {
                let bytes = match order {
                    ByteOrder::Big => self.to_be_bytes(),
                    _ => self.to_le_bytes(),
                };
                if let Some(place) = place.first_chunk_mut() {
                    *place = bytes;
                }
            }
        }

        native!($type);
    )*};
}

elements! {
    i8, I8; i16, I16; i32, I32; i64, I64;
    u8, U8; u16, U16; u32, U32; u64, U64;
    f32, F32; f64, F64;
}

impl Sealed for bool {
    const DTYPE: DType = DType::BOOL;
    const ZERO: Self = false;

    #[inline]
    fn read(bytes: &[u8], _: ByteOrder) -> Option<Self> {
        bytes.first().map(|byte| *byte != 0)
    }

    #[inline]
    fn write(self, place: &mut [u8], order: ByteOrder) {
        u8::from(self).write(place, order);
    }
}

native!(bool);

macro_rules! complex {
    ($($part:ty, $dtype:ident;)*) => {$(
        impl Sealed for [$part; 2] {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = [0.0; 2];

            #[inline]
            fn read(bytes: &[u8], order: ByteOrder) -> Option<Self> {
                let (real, imaginary) = bytes.split_at_checked(size_of::<$part>())?;
                Some([Sealed::read(real, order)?, Sealed::read(imaginary, order)?])
            }

            #[inline]
            fn write(self, place: &mut [u8], order: ByteOrder) {
                if let Some((first, second)) = place.split_at_mut_checked(size_of::<$part>()) {
                    let [real, imaginary] = self;
                    real.write(first, order);
                    imaginary.write(second, order);
                }
            }
        }

        native!([$part; 2]);
    )*};
}

complex! {
    f32, COMPLEX_F32; f64, COMPLEX_F64;
}

#[cfg(feature = "half")]
impl Sealed for half::f16 {
    const DTYPE: DType = DType::F16;
    const ZERO: Self = Self::ZERO;

    #[inline]
    fn read(bytes: &[u8], order: ByteOrder) -> Option<Self> {
        Sealed::read(bytes, order).map(Self::from_bits)
    }

    #[inline]
    fn write(self, place: &mut [u8], order: ByteOrder) {
        self.to_bits().write(place, order);
    }
}

#[cfg(feature = "half")]
native!(half::f16);

#[cfg(feature = "num-complex-04")]
macro_rules! num_complex {
    ($($part:ty, $dtype:ident;)*) => {$(
        impl Sealed for num_complex_04::Complex<$part> {
            const DTYPE: DType = DType::$dtype;
            const ZERO: Self = Self::ZERO;

            #[inline]
            fn read(bytes: &[u8], order: ByteOrder) -> Option<Self> {
                let [real, imaginary] = Sealed::read(bytes, order)?;
                Some(Self::new(real, imaginary))
            }

            #[inline]
            fn write(self, place: &mut [u8], order: ByteOrder) {
                [self.re, self.im].write(place, order);
            }
        }

        native!(num_complex_04::Complex<$part>);
    )*};
}

#[cfg(feature = "num-complex-04")]
num_complex! {
    f32, COMPLEX_F32; f64, COMPLEX_F64;
}

#[cfg(feature = "alloc")]
impl TimeUnit {
    /// A unit by numpy's name and a number that is 1 or more.
    pub(crate) fn from_parts(name: &[u8], count: i64) -> Option<Self> {
        let count = u32::try_from(count).ok().filter(|count| *count != 0)?;
        let base = match name {
            b"generic" => TimeBase::Generic,
            name => TimeBase::from_name(name)?,
        };
        Some(Self { count, base })
    }
}
