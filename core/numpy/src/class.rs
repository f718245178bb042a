//! The Python class of a payload.

use super::{NumpyError, NumpyErrorKind};
use daskwire::message::PayloadHeader;
use daskwire_pickle::{Argument, Opcode, PickleError, Reader};

/// A Python class by name. It is only compared and displayed, never looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Class<'a> {
    /// The module.
    pub module: &'a str,
    /// The name in the module, dotted for a nested class.
    pub name: &'a str,
}

impl<'a> Class<'a> {
    /// `bytes`.
    pub const BYTES: Self = Self::builtin("bytes");
    /// `bytearray`.
    pub const BYTEARRAY: Self = Self::builtin("bytearray");
    /// `memoryview`.
    pub const MEMORYVIEW: Self = Self::builtin("memoryview");
    /// `numpy.ndarray`.
    pub const NDARRAY: Self = Self {
        module: "numpy",
        name: "ndarray",
    };
    /// `numpy.matrix`.
    pub const MATRIX: Self = Self {
        module: "numpy",
        name: "matrix",
    };

    const fn builtin(name: &'a str) -> Self {
        Self {
            module: "builtins",
            name,
        }
    }

    /// Whether Dask sends objects of this class as arrays (PROTOCOL HEADER-6).
    pub(crate) fn is_array(self) -> bool {
        let Class { module, name } = self;
        match name {
            "ndarray" | "memmap" | "recarray" | "matrix" if module == "numpy" => true,
            "recarray" => matches!(module, "numpy.rec" | "numpy.core.records"),
            "matrix" => module == "numpy.matrixlib.defmatrix",
            "memmap" => matches!(module, "numpy.core.memmap" | "numpy._core.memmap"),
            _ => false,
        }
    }

    /// The class that selects the decoder of a payload of the dask family
    /// (PROTOCOL TYPED-1): `type-serialized`, or `type` if it is missing
    /// (before 1.23.0).
    ///
    /// # Errors
    ///
    /// * [`NumpyErrorKind::Pickle`] and [`NumpyErrorKind::NotAClass`] if
    ///   `type-serialized` is not the pickle of a class;
    /// * [`NumpyErrorKind::Message`] if both are missing or of the wrong kind.
    pub fn of(header: &PayloadHeader<'a>) -> Result<Self, NumpyError> {
        if let Some(pickle) = header.type_serialized()? {
            let (frame, at) = header.entry_location("type-serialized");
            return Self::read(pickle).map_err(|kind| NumpyError { frame, at, kind });
        }
        let full = header.type_name()?.ok_or(header.missing_entry("type"))?;
        let dot = full.bytes().rposition(|byte| byte == b'.');
        let parts = dot.and_then(|dot| Some((full.get(..dot)?, full.get(dot.checked_add(1)?..)?)));
        let (module, name) = parts.unwrap_or(("builtins", full));
        Ok(Self { module, name })
    }

    /// Parses the pickle of a class by name, in all forms that Python writes.
    /// Nothing is imported.
    ///
    /// ```
    /// use daskwire_numpy::Class;
    ///
    /// let class = Class::read(b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93.")?;
    /// assert_eq!(class, Class::NDARRAY);
    /// // os.system("…") would call something.
    /// assert!(Class::read(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.").is_err());
    /// # Ok::<(), daskwire_numpy::NumpyErrorKind>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NumpyErrorKind::Pickle`] and [`NumpyErrorKind::NotAClass`].
    pub fn read(pickle: &'a [u8]) -> Result<Self, NumpyErrorKind> {
        // Python 2 and protocols up to 3 use text opcodes for classes.
        let mut reader = Reader::new(pickle).text_opcodes(true);
        let mut strings: [Option<&'a str>; 2] = [None; 2];
        let mut string_count = 0_usize;
        let mut is_first_kept = false;
        let mut class = None;
        loop {
            let offset = reader.position();
            let error = NumpyErrorKind::NotAClass { offset };
            let Some(token) = reader.next_token()? else {
                break;
            };
            match (token.opcode, token.argument) {
                (Opcode::Proto | Opcode::Frame, _) => {}
                (Opcode::Memoize | Opcode::BinPut | Opcode::LongBinPut | Opcode::Put, _) => {
                    is_first_kept |= string_count == 1;
                }
                (_, Argument::Str(string)) => {
                    let Some(place) = strings.get_mut(string_count) else {
                        return Err(error);
                    };
                    *place = Some(string.to_str().map_err(|_| error)?);
                    string_count = string_count.saturating_add(1);
                }
                // array.array: both names are the same string object.
                (Opcode::BinGet, Argument::Index(0)) if is_first_kept && string_count == 1 => {
                    strings = [strings[0]; 2];
                    string_count = 2;
                }
                (Opcode::StackGlobal, _) if class.is_none() => {
                    let [Some(module), Some(name)] = strings else {
                        return Err(error);
                    };
                    class = Some(Self { module, name });
                }
                (Opcode::Global, Argument::Global { module, name })
                    if class.is_none() && string_count == 0 =>
                {
                    // Names of Python 2, which Python 3 maps to new ones.
                    let module = match module {
                        "__builtin__" => "builtins",
                        module => module,
                    };
                    class = Some(Self { module, name });
                    string_count = 2;
                }
                (Opcode::Stop, _) if class.is_some() => {}
                _ => return Err(error),
            }
        }
        let offset = reader.position();
        match class {
            Some(class) if reader.trailing().is_empty() => Ok(class),
            _ => Err(NumpyErrorKind::NotAClass { offset }),
        }
    }
}

impl From<PickleError> for NumpyError {
    fn from(error: PickleError) -> Self {
        Self::of_value(error.into())
    }
}
