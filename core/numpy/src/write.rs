//! Writing of values as payloads.

use super::dtype::TimeBase;
use super::{
    Array, ByteOrder, Class, DType, DimensionsError, Kind, NumpyError, NumpyErrorKind, Order,
    PayloadWriteError,
};
use daskwire::invariant::OrDefaultIfBug;
use daskwire::message::{HeaderEntries, Layout, MessageBuilder, PayloadKind, SHARD_LEN, shards};
use daskwire::msgpack;
use daskwire_pickle::{Mutability, PickleBuffer, Placement, Protocol, Writer};

/// Options for writing values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// The protocol for the pickles of classes: that of the
    /// [handshake](daskwire::handshake). Default: 5.
    pub protocol: Protocol,
    /// The maximum length of frames before splitting, in bytes. An array is
    /// split between whole elements. Default: [`SHARD_LEN`].
    pub shard_len: usize,
}

impl WriteOptions {
    /// Sets [`protocol`](Self::protocol).
    #[must_use]
    pub const fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Sets [`shard_len`](Self::shard_len).
    #[must_use]
    pub const fn with_shard_len(mut self, shard_len: usize) -> Self {
        self.shard_len = shard_len;
        self
    }
}

impl Default for WriteOptions {
    /// Protocol 5, and frames of at most [`SHARD_LEN`] bytes.
    fn default() -> Self {
        Self {
            protocol: Protocol::V5,
            shard_len: SHARD_LEN,
        }
    }
}

/// Extension of [`MessageBuilder`] for writing values as payloads.
///
/// Each method writes the payload as the next value of the body, like
/// [`MessageBuilder::payload`].
pub trait ValueBuilder<'a> {
    /// Writes a `bytes` object (PROTOCOL HEADER-5).
    ///
    /// # Errors
    ///
    /// As [`MessageBuilder::payload`].
    fn bytes_payload(
        &mut self,
        data: &'a [u8],
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError>;

    /// Writes a `bytearray`.
    ///
    /// # Errors
    ///
    /// As [`MessageBuilder::payload`].
    fn bytearray_payload(
        &mut self,
        data: &'a [u8],
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError>;

    /// Writes a `memoryview`, with the format of Python's `struct` for the
    /// elements (PROTOCOL TYPED-6).
    ///
    /// # Errors
    ///
    /// * [`PayloadWriteError::Value`] if the elements are not in C order, or of
    ///   a type that no `memoryview` can have. It has native byte order, so
    ///   only elements in the byte order of this machine are accepted. Also if
    ///   there are several dimensions and no elements, which Dask refuses;
    /// * as [`MessageBuilder::payload`].
    fn memoryview_payload<const MAX: usize>(
        &mut self,
        view: &Array<'a, MAX>,
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError>;

    /// Writes an array, which Python receives as an ordinary numpy array
    /// (PROTOCOL HEADER-6, HEADER-7 and TYPED-4).
    ///
    /// Its bytes are sent without copying, in C or Fortran order; repeated
    /// elements are sent once.
    ///
    /// # Errors
    ///
    /// * [`PayloadWriteError::Value`] if the elements are not contiguous (use
    ///   [`Array::copy_into`]), or if they are records, whose fields are
    ///   unknown, or references;
    /// * as [`MessageBuilder::payload`].
    fn array_payload<const MAX: usize>(
        &mut self,
        array: &Array<'a, MAX>,
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError>;

    /// Writes a pickled value as a payload of the family pickle, with
    /// out-of-band `buffers` (PROTOCOL HEADER-8).
    ///
    /// # Errors
    ///
    /// As [`MessageBuilder::payload`].
    fn pickle_payload(
        &mut self,
        pickle: &'a [u8],
        buffers: &[PickleBuffer<'a>],
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError>;

    /// Writes a pickled value as a `__Pickled__`: every Python process that
    /// receives it unpickles it, the scheduler included. Only the pickle marks
    /// read-only buffers.
    ///
    /// # Errors
    ///
    /// As [`MessageBuilder::payload`];
    /// [`BuildError::NotConvertible`](daskwire::message::BuildError::NotConvertible)
    /// in the classic layout, which does not support it.
    fn pickled_payload(
        &mut self,
        pickle: &'a [u8],
        buffers: &[PickleBuffer<'a>],
    ) -> Result<&mut Self, PayloadWriteError>;
}

impl<'a> ValueBuilder<'a> for MessageBuilder<'_, 'a> {
    fn bytes_payload(
        &mut self,
        data: &'a [u8],
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError> {
        class_payload(
            self,
            Class::BYTES,
            "bytes",
            0,
            &|_| {},
            None,
            (data, 1),
            options,
        )
    }

    fn bytearray_payload(
        &mut self,
        data: &'a [u8],
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError> {
        let class = Class::BYTEARRAY;
        class_payload(
            self,
            class,
            "bytearray",
            0,
            &|_| {},
            None,
            (data, 1),
            options,
        )
    }

    fn memoryview_payload<const MAX: usize>(
        &mut self,
        view: &Array<'a, MAX>,
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError> {
        let dtype = view.dtype();
        let format = format(dtype).ok_or(value(NumpyErrorKind::NotPlain))?;
        if !view.dimensions().is_contiguous(Order::C, dtype.item_len()) {
            return Err(value(DimensionsError::NotContiguous.into()));
        }
        if view.shape().len() > 1 && view.shape().contains(&0) {
            return Err(value(DimensionsError::NoElements.into()));
        }
        let write = |writer: &mut msgpack::Writer<'_>| {
            writer.str("format").str(format);
            write_numbers(writer, "shape", view.shape());
        };
        let data = (view.bytes(), dtype.item_len());
        class_payload(
            self,
            Class::MEMORYVIEW,
            "memoryview",
            2,
            &write,
            None,
            data,
            options,
        )
    }

    fn array_payload<const MAX: usize>(
        &mut self,
        array: &Array<'a, MAX>,
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError> {
        let item_len = array.dtype().item_len();
        if matches!(array.dtype().kind(), Kind::Record | Kind::Object) {
            return Err(value(NumpyErrorKind::NotPlain));
        }
        let stored = array.dimensions().stored();
        if stored.order(item_len).is_none() {
            return Err(value(DimensionsError::NotContiguous.into()));
        }
        let is_broadcast = array.strides().contains(&0);
        let writeable = array.writeable().unwrap_or(true);
        let (class, name) = if array.is_matrix() {
            (Class::MATRIX, "numpy.matrix")
        } else {
            (Class::NDARRAY, "numpy.ndarray")
        };
        let is_modern = self.layout() == Layout::Modern;
        let count = 3_u32
            .saturating_add(u32::from(is_modern))
            .saturating_add(u32::from(is_broadcast))
            .saturating_add(u32::from(array.is_matrix()));
        let write = |writer: &mut msgpack::Writer<'_>| {
            writer.str("dtype").array(2).u64(0);
            writer.str(array.dtype().type_string().as_str());
            write_numbers(writer, "shape", stored.shape());
            write_numbers(writer, "strides", stored.strides());
            if is_modern {
                writer.str("writeable").array(1).bool(writeable);
            }
            if is_broadcast {
                write_numbers(writer, "broadcast_to", array.shape());
            }
            if array.is_matrix() {
                writer.str("matrix").bool(true);
            }
        };
        let data = (array.bytes(), item_len);
        class_payload(
            self,
            class,
            name,
            count,
            &write,
            Some(writeable),
            data,
            options,
        )
    }

    fn pickle_payload(
        &mut self,
        pickle: &'a [u8],
        buffers: &[PickleBuffer<'a>],
        options: &WriteOptions,
    ) -> Result<&mut Self, PayloadWriteError> {
        let is_modern = self.layout() == Layout::Modern;
        let flags = buffers.len().saturating_add(usize::from(!is_modern));
        let write = |writer: &mut msgpack::Writer<'_>| {
            writer.str("serializer").str("pickle");
            writer.str("writeable");
            writer.array(u32::try_from(flags).unwrap_or(u32::MAX));
            if !is_modern {
                // The flag of the pickle itself, which is `bytes`, as Dask
                // writes it.
                writer.bool(false);
            }
            for buffer in buffers {
                writer.bool(buffer.mutability() == Mutability::Writable);
            }
        };
        let shard_len = options.shard_len;
        let frames = core::iter::once(pickle).chain(buffers.iter().map(PickleBuffer::as_bytes));
        let pieces = frames.enumerate().flat_map(move |(index, frame)| {
            shards(frame, shard_len, 1).map(move |shard| (index, shard))
        });
        let entries = HeaderEntries {
            count: 2,
            has_writeable: true,
            write: &write,
        };
        let count = buffers.len().saturating_add(1);
        Ok(self.payload_from_pieces(PayloadKind::Serialized, entries, count, pieces)?)
    }

    fn pickled_payload(
        &mut self,
        pickle: &'a [u8],
        buffers: &[PickleBuffer<'a>],
    ) -> Result<&mut Self, PayloadWriteError> {
        let write = |writer: &mut msgpack::Writer<'_>| {
            writer.str("pickled-obj").bin(pickle);
        };
        let pieces = buffers.iter().map(PickleBuffer::as_bytes).enumerate();
        let entries = HeaderEntries {
            count: 1,
            has_writeable: false,
            write: &write,
        };
        Ok(self.payload_from_pieces(PayloadKind::Pickled, entries, buffers.len(), pieces)?)
    }
}

/// Writes a payload of the dask family with one logical frame and this element
/// length. `write` writes the `count` entries of the class, which include
/// `writeable` in the modern layout.
#[expect(clippy::too_many_arguments, reason = "each is a part of the header")]
fn class_payload<'b, 's, 'a>(
    builder: &'b mut MessageBuilder<'s, 'a>,
    class: Class<'_>,
    name: &str,
    count: u32,
    write: &dyn Fn(&mut msgpack::Writer<'_>),
    writeable: Option<bool>,
    (data, item_len): (&'a [u8], usize),
    options: &WriteOptions,
) -> Result<&'b mut MessageBuilder<'s, 'a>, PayloadWriteError> {
    let is_modern = builder.layout() == Layout::Modern;
    let write_all = |writer: &mut msgpack::Writer<'_>| {
        // PROTOCOL HEADER-4
        if is_modern {
            writer.str("sub-header").map(count);
        }
        write(writer);
        writer.str("type").str(name).str("type-serialized");
        write_class(writer, class, options.protocol);
        writer.str("serializer").str("dask");
        if !is_modern {
            writer.str("writeable").array(1);
            match writeable {
                Some(flag) => writer.bool(flag),
                None => writer.nil(),
            };
        }
    };
    let class_count = if is_modern { 0 } else { count };
    let entries = HeaderEntries {
        count: class_count.saturating_add(4),
        has_writeable: true,
        write: &write_all,
    };
    let shard_len = options.shard_len;
    let pieces = shards(data, shard_len, item_len).map(|shard| (0, shard));
    Ok(builder.payload_from_pieces(PayloadKind::Serialized, entries, 1, pieces)?)
}

const fn value(kind: NumpyErrorKind) -> PayloadWriteError {
    PayloadWriteError::Value(kind)
}

fn write_numbers(writer: &mut msgpack::Writer<'_>, key: &str, numbers: &[usize]) {
    // The number of dimensions always fits.
    let count = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
    writer.str(key).array(count);
    for number in numbers {
        writer.u64(*number as u64);
    }
}

/// Writes the pickle of a class with the same bytes as CPython, including
/// memoization (PROTOCOL TYPED-1).
fn write_class(writer: &mut msgpack::Writer<'_>, class: Class<'_>, protocol: Protocol) {
    let mut pickle = [0_u8; 64];
    let mut len = 0_usize;
    let mut put = |bytes: &[u8]| {
        let rest = pickle.get_mut(len..).or_default_if_bug();
        if let Some(place) = rest.get_mut(..bytes.len()) {
            crate::copy(place, bytes);
        }
        len = len.saturating_add(bytes.len());
    };
    // The names are constants of `Class` and shorter than 256 bytes.
    let short = |len: usize| u8::try_from(len).or_default_if_bug();
    let names_len = class.module.len().saturating_add(class.name.len());
    let frame_len = short(names_len.saturating_add(9));
    put(&[
        0x80,
        protocol.number(),
        0x95,
        frame_len,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    ]);
    for string in [class.module, class.name] {
        put(&[0x8c, short(string.len())]);
        put(string.as_bytes());
        put(b"\x94");
    }
    put(b"\x93\x94.");
    writer.bin(pickle.get(..len).or_default_if_bug());
}

/// The format of a `memoryview` of such elements; only formats with the same
/// length on every machine.
fn format(dtype: DType) -> Option<&'static str> {
    if !dtype.is_native() {
        return None;
    }
    Some(match (dtype.kind(), dtype.item_len()) {
        (Kind::Bool, 1) => "?",
        (Kind::Int, 1) => "b",
        (Kind::UInt, 1) => "B",
        (Kind::Bytes, 1) => "c",
        (Kind::Int, 2) => "h",
        (Kind::UInt, 2) => "H",
        (Kind::Int, 4) => "i",
        (Kind::UInt, 4) => "I",
        (Kind::Int, 8) => "q",
        (Kind::UInt, 8) => "Q",
        (Kind::Float, 4) => "f",
        (Kind::Float, 8) => "d",
        _ => return None,
    })
}

/// The module path that numpy's pickles refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NumpyModules {
    /// `numpy._core`, of numpy 2.
    #[default]
    Underscore,
    /// `numpy.core`, up to numpy 1.26; numpy 2 accepts it with a warning.
    Core,
}

/// Writes an array to a pickle as numpy does in protocol 5: a call of
/// `_frombuffer` with a buffer, the type, the shape and the order
/// (PROTOCOL TYPED-7). Uses six levels of the writer.
///
/// `decide` chooses between in-band and out-of-band data, see
/// [`Writer::buffer`].
///
/// ```
/// use daskwire_pickle::{Placement, Writer, WriterLevel};
/// use daskwire_numpy::{Array, DType, NumpyModules, Order, pickle_array};
///
/// let bytes = [0; 48];
/// let array = Array::new(DType::F64, &[2, 3], Order::C, &bytes)?;
/// let mut out_of_band = None;
/// let (mut out, mut levels) = ([0; 128], [WriterLevel::EMPTY; 6]);
/// let mut writer = Writer::new(&mut out, &mut levels);
/// pickle_array(&mut writer, &array, NumpyModules::default(), |buffer| {
///     out_of_band = Some(buffer);
///     Placement::OutOfBand
/// })?;
/// assert_eq!(writer.finish()?.len(), 105);
/// assert_eq!(out_of_band.map(|buffer| buffer.as_bytes().as_ptr()), Some(bytes.as_ptr()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// * [`NumpyErrorKind::Dimensions`] if the elements are not contiguous, as in a
///   broadcast array;
/// * [`NumpyErrorKind::NotPlain`] if they are records or references.
///
/// In both cases nothing was written.
pub fn pickle_array<'d, const MAX: usize>(
    writer: &mut Writer<'_, '_>,
    array: &Array<'d, MAX>,
    modules: NumpyModules,
    decide: impl FnOnce(PickleBuffer<'d>) -> Placement,
) -> Result<(), NumpyError> {
    if matches!(array.dtype().kind(), Kind::Record | Kind::Object) {
        return Err(NumpyError::of_value(NumpyErrorKind::NotPlain));
    }
    let order = match array.order() {
        Some(_) if array.is_broadcast() => None,
        order => order,
    };
    let order = match order {
        Some(Order::C) => "C",
        Some(Order::Fortran) => "F",
        None => return Err(NumpyError::of_value(DimensionsError::NotContiguous.into())),
    };
    let module = match modules {
        NumpyModules::Underscore => "numpy._core.numeric",
        NumpyModules::Core => "numpy.core.numeric",
    };
    let mutability = match array.writeable() {
        Some(false) => Mutability::ReadOnly,
        _ => Mutability::Writable,
    };
    writer.reduce().global(module, "_frombuffer").tuple(4);
    let buffer = PickleBuffer::new(array.bytes(), mutability);
    // As a buffer in band in protocol 5; protocol 4 has no buffers.
    match (decide(buffer), mutability) {
        (Placement::OutOfBand, _) => writer.buffer(buffer, |_| Placement::OutOfBand),
        (Placement::InBand, Mutability::ReadOnly) => writer.bytes(array.bytes()),
        (Placement::InBand, Mutability::Writable) => writer.bytearray(array.bytes()),
    };
    pickle_dtype(writer, array.dtype());
    writer.tuple(array.shape().len());
    for count in array.shape() {
        writer.u64(*count as u64);
    }
    writer.str(order);
    Ok(())
}

/// Writes a `numpy.dtype` as numpy pickles it.
fn pickle_dtype(writer: &mut Writer<'_, '_>, dtype: DType) {
    writer.build().reduce().global("numpy", "dtype").tuple(3);
    writer.str(dtype.to_name().as_str()).bool(false).bool(true);
    let unit = match dtype.kind() {
        Kind::Datetime(unit) | Kind::Timedelta(unit) => Some(unit),
        _ => None,
    };
    writer.tuple(if unit.is_some() { 9 } else { 8 });
    writer.u64(if unit.is_some() { 4 } else { 3 });
    writer.str(match dtype.order() {
        ByteOrder::Little => "<",
        ByteOrder::Big => ">",
        ByteOrder::NotApplicable => "|",
    });
    writer.none().none().none();
    // Length, alignment and flags, which only these kinds need besides the
    // name.
    match dtype.kind() {
        Kind::Str => writer.u64(dtype.item_len() as u64).u64(4).u64(8),
        Kind::Bytes | Kind::Void => writer.u64(dtype.item_len() as u64).u64(1).u64(0),
        _ => writer.i64(-1).i64(-1).u64(0),
    };
    if let Some(unit) = unit {
        let name = match unit.base {
            TimeBase::Generic => "generic",
            base => base.name(),
        };
        writer.tuple(2).none().tuple(4).bytes(name.as_bytes());
        writer.u64(u64::from(unit.count)).u64(1).u64(1);
    }
}
