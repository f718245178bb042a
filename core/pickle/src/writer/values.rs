//! The methods that write values.

use super::{Kind, Protocol, WriteError, Writer, WriterLevel};
use crate::{Mutability, Opcode, PickleBuffer, Placement};
use daskwire_compression::invariant::OrDefaultIfBug;
use daskwire_compression::measure::append;

impl Writer<'_, '_> {
    /// Writes `None`.
    #[inline]
    pub fn none(&mut self) -> &mut Self {
        self.value();
        self.opcode(Opcode::None)
    }

    /// Writes `True` or `False`.
    #[inline]
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.value();
        self.opcode(if value {
            Opcode::NewTrue
        } else {
            Opcode::NewFalse
        })
    }

    /// Writes an integer with the opcode that CPython uses: `BININT1`,
    /// `BININT2`, `BININT`, or `LONG1` above 4 bytes.
    #[inline]
    pub fn i64(&mut self, value: i64) -> &mut Self {
        let Ok(value) = i32::try_from(value) else {
            return self.long(&value.to_le_bytes());
        };
        self.value();
        let [a, b, c, d] = value.to_le_bytes();
        match [b, c, d] {
            [0, 0, 0] => self.put([Opcode::BinInt1.byte(), a]),
            [_, 0, 0] => self.put([Opcode::BinInt2.byte(), a, b]),
            _ => self.put([Opcode::BinInt.byte(), a, b, c, d]),
        }
    }

    /// Writes a non-negative integer.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        match i64::try_from(value) {
            Ok(value) => self.i64(value),
            Err(_) => self.long(&i128::from(value).to_le_bytes()),
        }
    }

    /// Writes an integer.
    #[inline]
    pub fn i128(&mut self, value: i128) -> &mut Self {
        match i64::try_from(value) {
            Ok(value) => self.i64(value),
            Err(_) => self.long(&value.to_le_bytes()),
        }
    }

    /// Writes an integer of any size in little-endian two's complement. An
    /// empty slice is 0.
    pub fn int_bytes(&mut self, twos_complement: &[u8]) -> &mut Self {
        let bytes = shortest(twos_complement);
        match sign_extended(bytes) {
            Some(value) => self.i64(value),
            None => self.long(bytes),
        }
    }

    /// Writes an integer of any size, given as its sign and its little-endian
    /// magnitude. An empty slice is 0.
    ///
    /// ```
    /// # use daskwire_pickle::{Framing, WriteError, Writer, WriterOptions};
    /// # let options = WriterOptions::new().with_framing(Framing::None);
    /// # let mut buffer = [0; 32];
    /// # let mut writer = Writer::with_options(&mut buffer, &mut [], options);
    /// writer.int_magnitude(true, &0x80_u128.pow(8).to_le_bytes()); // -2^56
    /// assert_eq!(writer.finish()?, b"\x80\x05\x8a\x08\0\0\0\0\0\0\0\xff.");
    /// # Ok::<(), WriteError>(())
    /// ```
    pub fn int_magnitude(&mut self, negative: bool, magnitude: &[u8]) -> &mut Self {
        let mut magnitude = magnitude;
        while let [rest @ .., 0] = magnitude {
            magnitude = rest;
        }
        let Some((&top, below)) = magnitude.split_last() else {
            return self.i64(0);
        };
        let mut small = [0; 16];
        if let Some(place) = small.get_mut(..magnitude.len())
            && magnitude.len() < 16
        {
            daskwire_compression::copy(place, magnitude);
            let value = i128::from_le_bytes(small);
            return self.i128(if negative {
                value.wrapping_neg()
            } else {
                value
            });
        }
        // Whether the last byte has a bit left for the sign.
        let fits = top < 0x80 || (negative && top == 0x80 && below.iter().all(|byte| *byte == 0));
        let len = magnitude.len().saturating_add(usize::from(!fits));
        if !self.long_head(len) {
            return self;
        }
        let at = self.len;
        self.len = at.saturating_add(len);
        let Some(place) = self.out.get_mut(at..self.len) else {
            return self;
        };
        // Two's complement is the complement plus one.
        let mut carry = negative;
        let magnitude = magnitude.iter().copied().chain([0]);
        for (to, byte) in place.iter_mut().zip(magnitude) {
            let byte = if negative { !byte } else { byte };
            (*to, carry) = byte.overflowing_add(u8::from(carry));
        }
        self
    }

    /// Writes a float.
    #[inline]
    pub fn f64(&mut self, value: f64) -> &mut Self {
        self.value();
        let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
        self.put([Opcode::BinFloat.byte(), a, b, c, d, e, f, g, h])
    }

    /// Writes a string.
    #[inline]
    pub fn str(&mut self, string: &str) -> &mut Self {
        self.value();
        self.string(string.as_bytes());
        self
    }

    /// Writes a string from UTF-8 bytes that may contain encoded surrogates.
    /// CPython writes strings with surrogates in this way (`surrogatepass`),
    /// for example file names that are not UTF-8.
    ///
    /// Other bytes give [`WriteError::NotUtf8`].
    pub fn str_bytes(&mut self, string: &[u8]) -> &mut Self {
        if let Err(valid_len) = crate::PyStr::new(string) {
            self.fail(WriteError::NotUtf8 {
                at: self.len,
                valid_len,
            });
        }
        self.value();
        self.string(string);
        self
    }

    /// Writes a string that may contain surrogates.
    #[inline]
    pub fn py_str(&mut self, string: crate::PyStr<'_>) -> &mut Self {
        self.value();
        self.string(string.as_bytes());
        self
    }

    /// Writes a `bytes` object.
    #[inline]
    pub fn bytes(&mut self, data: &[u8]) -> &mut Self {
        self.value();
        self.bytes_data(data);
        self
    }

    /// Writes a `bytearray`. In protocol 4, which has no opcode for it, writes
    /// a call of `bytearray` with a `bytes` object, as in CPython.
    pub fn bytearray(&mut self, data: &[u8]) -> &mut Self {
        self.value();
        match self.options.protocol {
            Protocol::V5 => {
                self.counted8(Opcode::ByteArray8, data);
            }
            Protocol::V4 => {
                self.global_opcodes("builtins", "bytearray");
                if data.is_empty() {
                    self.opcode(Opcode::EmptyTuple);
                } else {
                    self.bytes_data(data);
                    self.opcode(Opcode::Tuple1);
                }
                self.opcode(Opcode::Reduce);
            }
        }
        self
    }

    /// Writes a buffer in band or out of band. `decide` corresponds to
    /// CPython's `buffer_callback`: a caller that returns
    /// [`Placement::OutOfBand`] transfers the bytes separately.
    ///
    /// In band a read-only buffer is `bytes` and a writable one a `bytearray`.
    /// In protocol 4 any buffer gives [`WriteError::NeedsProtocol5`], and
    /// `decide` is not called. A writer that measures also calls `decide`, so
    /// measuring and then writing calls it twice.
    ///
    /// ```
    /// use daskwire_pickle::{Mutability, PickleBuffer, Placement, WriteError, Writer, WriterLevel};
    ///
    /// let pixels = [7; 1000];
    /// let mut out_of_band = [None; 4];
    /// let mut free = out_of_band.iter_mut();
    ///
    /// let (mut buffer, mut levels) = ([0; 64], [WriterLevel::EMPTY; 2]);
    /// let mut writer = Writer::new(&mut buffer, &mut levels);
    /// writer.reduce().global("builtins", "bytearray").tuple(1);
    /// let view = PickleBuffer::new(&pixels, Mutability::Writable);
    /// writer.buffer(view, |view| match free.next() {
    ///     Some(slot) => {
    ///         *slot = Some(view);
    ///         Placement::OutOfBand
    ///     }
    ///     None => Placement::InBand,
    /// });
    /// assert!(writer.finish()?.len() < 64);
    /// assert_eq!(out_of_band[0].map(|view| view.as_bytes().as_ptr()), Some(pixels.as_ptr()));
    /// # Ok::<(), WriteError>(())
    /// ```
    pub fn buffer<'d>(
        &mut self,
        buffer: PickleBuffer<'d>,
        decide: impl FnOnce(PickleBuffer<'d>) -> Placement,
    ) -> &mut Self {
        if self.options.protocol < Protocol::V5 {
            self.fail(WriteError::NeedsProtocol5 { at: self.len });
            return self;
        }
        match (decide(buffer), buffer.mutability()) {
            (Placement::InBand, Mutability::ReadOnly) => self.bytes(buffer.as_bytes()),
            (Placement::InBand, Mutability::Writable) => self.bytearray(buffer.as_bytes()),
            (Placement::OutOfBand, mutability) => {
                self.value();
                self.opcode(Opcode::NextBuffer);
                if mutability == Mutability::ReadOnly {
                    self.opcode(Opcode::ReadOnlyBuffer);
                }
                self
            }
        }
    }

    /// Writes a global: a name in a module. The name may be dotted
    /// (`Expr._reconstruct`).
    pub fn global(&mut self, module: &str, name: &str) -> &mut Self {
        self.value();
        self.global_opcodes(module, name);
        self
    }

    /// Begins a global; takes 2 values: the module and the name. Unlike
    /// [`global`](Self::global) this allows either to be memoized or taken from
    /// the memo.
    #[inline]
    pub fn stack_global(&mut self) -> &mut Self {
        self.value();
        self.open_fixed(Opcode::StackGlobal, 2)
    }

    /// Begins a tuple of `count` values.
    #[inline]
    pub fn tuple(&mut self, count: usize) -> &mut Self {
        self.value();
        match count {
            0 => self.open_fixed(Opcode::EmptyTuple, 0),
            1 => self.open_fixed(Opcode::Tuple1, 1),
            2 => self.open_fixed(Opcode::Tuple2, 2),
            3 => self.open_fixed(Opcode::Tuple3, 3),
            _ => {
                self.opcode(Opcode::Mark);
                self.open_fixed(Opcode::Tuple, count)
            }
        }
    }

    /// Begins a frozen set of `count` values, which should be distinct.
    #[inline]
    pub fn frozenset(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::Mark);
        self.open_fixed(Opcode::FrozenSet, count)
    }

    /// Begins a list of `count` values.
    #[inline]
    pub fn list(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::EmptyList);
        self.open(WriterLevel::new(Kind::List, 0, count))
    }

    /// Begins a dictionary of `count` entries; takes twice as many values, each
    /// key before its value. Keys should be distinct.
    #[inline]
    pub fn dict(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::EmptyDict);
        self.open(WriterLevel::new(Kind::Dict, 0, count.saturating_mul(2)))
    }

    /// Begins a set of `count` values, which should be distinct.
    #[inline]
    pub fn set(&mut self, count: usize) -> &mut Self {
        self.value();
        self.opcode(Opcode::EmptySet);
        self.open(WriterLevel::new(Kind::Set, 0, count))
    }

    /// Begins a call; takes 2 values: the callable, and a tuple of arguments.
    #[inline]
    pub fn reduce(&mut self) -> &mut Self {
        self.value();
        self.open_fixed(Opcode::Reduce, 2)
    }

    /// Begins an instance; takes 2 values: the class, and a tuple of arguments
    /// for its `__new__`.
    #[inline]
    pub fn newobj(&mut self) -> &mut Self {
        self.value();
        self.open_fixed(Opcode::NewObj, 2)
    }

    /// Begins an instance; takes 3 values: the class, and a tuple and a
    /// dictionary of arguments for its `__new__`.
    #[inline]
    pub fn newobj_ex(&mut self) -> &mut Self {
        self.value();
        self.open_fixed(Opcode::NewObjEx, 3)
    }

    /// Begins an object with a state; takes 2 values: the object, and the state
    /// for its `__setstate__` or `__dict__`.
    #[inline]
    pub fn build(&mut self) -> &mut Self {
        self.value();
        self.open_fixed(Opcode::Build, 2)
    }

    /// Begins an object with `count` items, such as a `deque`; takes
    /// `count + 1` values: the object, which has a method `append`, then its
    /// items.
    #[inline]
    pub fn extend(&mut self, count: usize) -> &mut Self {
        self.value();
        self.can_memoize = false;
        self.open(WriterLevel::new(Kind::Extend, 1, count))
    }

    /// Begins an object with `count` entries, such as a `defaultdict`; takes
    /// `2 * count + 1` values: the object, then each key before its value.
    #[inline]
    pub fn update(&mut self, count: usize) -> &mut Self {
        self.value();
        self.can_memoize = false;
        self.open(WriterLevel::new(Kind::Update, 1, count.saturating_mul(2)))
    }

    /// Writes an integer that does not fit in an `i32`.
    #[inline(never)]
    pub(super) fn long(&mut self, twos_complement: &[u8]) -> &mut Self {
        let bytes = shortest(twos_complement);
        if self.long_head(bytes.len()) {
            self.len = append(self.out, self.len, bytes);
        }
        self
    }

    /// Writes the head of an integer; its bytes must follow at once.
    pub(super) fn long_head(&mut self, len: usize) -> bool {
        let Ok(signed) = i32::try_from(len) else {
            self.fail(WriteError::TooLong { at: self.len, len });
            return false;
        };
        self.value();
        let [a, b, c, d] = signed.to_le_bytes();
        match [b, c, d] {
            [0, 0, 0] => self.head([Opcode::Long1.byte(), a], len),
            _ => self.head([Opcode::Long4.byte(), a, b, c, d], len),
        }
        true
    }

    #[inline]
    pub(super) fn string(&mut self, string: &[u8]) {
        if let Ok(len) = u8::try_from(string.len()) {
            self.short(Opcode::ShortBinUnicode, len, string);
        } else if let Ok(len) = u32::try_from(string.len()) {
            self.counted4(Opcode::BinUnicode, len, string);
        } else {
            self.counted8(Opcode::BinUnicode8, string);
        }
    }

    #[inline]
    pub(super) fn bytes_data(&mut self, data: &[u8]) {
        if let Ok(len) = u8::try_from(data.len()) {
            self.short(Opcode::ShortBinBytes, len, data);
        } else if let Ok(len) = u32::try_from(data.len()) {
            self.counted4(Opcode::BinBytes, len, data);
        } else {
            self.counted8(Opcode::BinBytes8, data);
        }
    }

    pub(super) fn global_opcodes(&mut self, module: &str, name: &str) {
        self.string(module.as_bytes());
        self.string(name.as_bytes());
        self.opcode(Opcode::StackGlobal);
    }
}

/// Removes the redundant sign bytes at the end.
fn shortest(twos_complement: &[u8]) -> &[u8] {
    let mut bytes = twos_complement;
    while let [rest @ .., before, last] = bytes
        && matches!((*before < 0x80, *last), (true, 0) | (false, 0xff))
    {
        bytes = bytes.get(..rest.len().wrapping_add(1)).or_default_if_bug();
    }
    bytes
}

/// The value of at most 8 bytes.
fn sign_extended(twos_complement: &[u8]) -> Option<i64> {
    let negative = twos_complement.last().is_some_and(|last| *last >= 0x80);
    let mut value = [if negative { 0xff } else { 0 }; 8];
    daskwire_compression::copy(value.get_mut(..twos_complement.len())?, twos_complement);
    Some(i64::from_le_bytes(value))
}
