//! Known names and their conversion, in sets that a caller can allow.
//!
//! ```
//! use daskwire_numpy::known;
//! use daskwire_pickle::tree::{Registry, Tree};
//!
//! // pickle.dumps(complex(1.5, -2.0), 4)
//! let pickle = b"\x80\x04\x8c\x08builtins\x8c\x07complex\x93\
//!     G?\xf8\0\0\0\0\0\0G\xc0\0\0\0\0\0\0\0\x86R.";
//! let tree = Tree::new(pickle)?;
//! let mut registry = Registry::new();
//! assert!(known::convert(&registry, tree.root()).is_err());
//!
//! registry.allow_all(known::BUILTINS);
//! let known::KnownValue::Complex { real, imaginary } = known::convert(&registry, tree.root())? else {
//!     return Err("no complex number".into());
//! };
//! assert_eq!((real, imaginary), (1.5, -2.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;

use daskwire_pickle::tree::{
    Global, Items, Node, Object, Operation, Origin, Registry, Tree, Value,
};

use crate::ElementType;

mod error;
mod numpy;

pub use error::{ConvertError, ConvertErrorKind};
pub use numpy::{MaskedArray, MaskedData, NdArray, ObjectArray, Scalar};
pub(crate) use numpy::{TreeFields, TreeRecord};

/// The meaning of a known name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Known {
    /// `complex`.
    Complex,
    /// `set`.
    Set,
    /// `frozenset`.
    FrozenSet,
    /// `bytearray`.
    ByteArray,
    /// `bytes`.
    Bytes,
    /// `_codecs.encode`, which protocols 0 to 2 use for `bytes`.
    Encode,
    /// `numpy.dtype`.
    DType,
    /// The class `numpy.ndarray`, and equivalent classes: `recarray`, `memmap`.
    NdArray,
    /// The class `numpy.matrix`.
    Matrix,
    /// numpy's class `MaskedArray`.
    MaskedArray,
    /// `_reconstruct` of numpy: an array with its data in a state.
    Reconstruct,
    /// `_frombuffer` of numpy: an array with its data in a buffer.
    FromBuffer,
    /// `scalar` of numpy.
    Scalar,
    /// `_mareconstruct` of numpy: a masked array with its data in a state.
    MaskedReconstruct,
    /// `MaskedConstant` of numpy, the class of `numpy.ma.masked`.
    MaskedConstant,
    /// A class of exceptions.
    Exception,
    /// `unpickle_exception` of `tblib`, as Dask sends exceptions.
    UnpickleException,
    /// `unpickle_exception_with_attrs` of `tblib`, as Dask sends exceptions.
    UnpickleExceptionWithAttributes,
    /// `unpickle_traceback` of `tblib`.
    Traceback,
}

/// Names with their meanings.
pub type Names = &'static [(&'static str, &'static str, Known)];

/// Built-in types, under the names of Python 3 and of Python 2, which protocols
/// 0 to 2 use.
pub const BUILTINS: Names = &[
    ("builtins", "complex", Known::Complex),
    ("builtins", "set", Known::Set),
    ("builtins", "frozenset", Known::FrozenSet),
    ("builtins", "bytearray", Known::ByteArray),
    ("builtins", "bytes", Known::Bytes),
    ("__builtin__", "complex", Known::Complex),
    ("__builtin__", "set", Known::Set),
    ("__builtin__", "frozenset", Known::FrozenSet),
    ("__builtin__", "bytearray", Known::ByteArray),
    ("__builtin__", "bytes", Known::Bytes),
    ("_codecs", "encode", Known::Encode),
];

/// Arrays, masked arrays, scalars and types of numpy 1 and 2.
pub const NUMPY: Names = &[
    ("numpy", "ndarray", Known::NdArray),
    ("numpy", "memmap", Known::NdArray),
    ("numpy", "recarray", Known::NdArray),
    ("numpy.rec", "recarray", Known::NdArray),
    ("numpy", "matrix", Known::Matrix),
    ("numpy.matrixlib.defmatrix", "matrix", Known::Matrix),
    ("numpy.ma", "MaskedArray", Known::MaskedArray),
    ("numpy.ma.core", "MaskedArray", Known::MaskedArray),
    ("numpy.ma.core", "MaskedConstant", Known::MaskedConstant),
    ("numpy.ma.core", "_mareconstruct", Known::MaskedReconstruct),
    ("numpy", "dtype", Known::DType),
    ("numpy.core.multiarray", "_reconstruct", Known::Reconstruct),
    ("numpy._core.multiarray", "_reconstruct", Known::Reconstruct),
    ("numpy.core.multiarray", "scalar", Known::Scalar),
    ("numpy._core.multiarray", "scalar", Known::Scalar),
    ("numpy.core.numeric", "_frombuffer", Known::FromBuffer),
    ("numpy._core.numeric", "_frombuffer", Known::FromBuffer),
    // The forms of empty and other `bytes` in protocols 0 to 2.
    ("__builtin__", "bytes", Known::Bytes),
    ("_codecs", "encode", Known::Encode),
];

macro_rules! exceptions {
    ($($name:literal),* $(,)?) => {
        /// Built-in exceptions, under the names of Python 3 and of Python 2,
        /// and the functions for exceptions with tracebacks in Dask.
        pub const EXCEPTIONS: Names = &[
            $(("builtins", $name, Known::Exception),)*
            $(("exceptions", $name, Known::Exception),)*
            ("tblib.pickling_support", "unpickle_exception", Known::UnpickleException),
            (
                "tblib.pickling_support",
                "unpickle_exception_with_attrs",
                Known::UnpickleExceptionWithAttributes,
            ),
            ("tblib.pickling_support", "unpickle_traceback", Known::Traceback),
        ];
    };
}

exceptions! {
    "ArithmeticError", "AssertionError", "AttributeError", "BaseException", "BufferError",
    "ConnectionError", "ConnectionAbortedError", "ConnectionRefusedError", "ConnectionResetError",
    "BrokenPipeError", "EOFError", "Exception", "FileExistsError", "FileNotFoundError",
    "FloatingPointError", "GeneratorExit", "ImportError", "IndexError", "InterruptedError",
    "IsADirectoryError", "KeyError", "KeyboardInterrupt", "LookupError", "MemoryError",
    "ModuleNotFoundError", "NameError", "NotADirectoryError", "NotImplementedError", "OSError",
    "OverflowError", "PermissionError", "ProcessLookupError", "RecursionError", "ReferenceError",
    "RuntimeError", "StopAsyncIteration", "StopIteration", "SyntaxError", "SystemError",
    "SystemExit", "TimeoutError", "TypeError", "UnboundLocalError", "UnicodeError", "ValueError",
    "ZeroDivisionError",
}

/// A converted value.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum KnownValue<'t, 'p> {
    /// A complex number.
    Complex {
        /// The real part.
        real: f64,
        /// The imaginary part.
        imaginary: f64,
    },
    /// A set, as of protocols 0 to 3.
    Set(Items<'t, 'p>),
    /// A frozen set, as of protocols 0 to 3.
    FrozenSet(Items<'t, 'p>),
    /// A `bytearray`, as of protocols 0 to 4.
    ByteArray(Cow<'p, [u8]>),
    /// A `bytes` object, as of protocols 0 to 2.
    Bytes(Cow<'p, [u8]>),
    /// The type of the elements of an array.
    DType {
        /// The type.
        element_type: ElementType<'t>,
        /// The shape of elements that are arrays, as in fields of records;
        /// empty for other elements.
        shape: Vec<usize>,
    },
    /// A numpy array.
    Array(NdArray<'t, 'p>),
    /// A numpy array of objects.
    ObjectArray(ObjectArray<'t, 'p>),
    /// A numpy masked array.
    MaskedArray(MaskedArray<'t, 'p>),
    /// `numpy.ma.masked`, the value of a masked element.
    Masked,
    /// A numpy scalar.
    Scalar(Scalar<'t, 'p>),
    /// An exception.
    Exception(Exception<'t, 'p>),
    /// A traceback.
    Traceback(Traceback<'t, 'p>),
}

/// An exception.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Exception<'t, 'p> {
    /// Its class.
    pub class: Global<'p>,
    /// The arguments, as inert values.
    pub arguments: Items<'t, 'p>,
    /// The traceback, if any.
    pub traceback: Option<Traceback<'t, 'p>>,
    /// The exception that it was raised from, if any, as an inert value.
    pub cause: Option<Node<'t, 'p>>,
    /// The exception that was handled when it was raised, if any, as an inert
    /// value.
    pub context: Option<Node<'t, 'p>>,
    /// Whether to hide `context`, as with `raise ... from None`.
    pub suppress_context: bool,
}

/// Iterator over the stack frames of an exception, the outermost first.
#[derive(Clone, Copy, Debug)]
pub struct Traceback<'t, 'p> {
    next: Option<Node<'t, 'p>>,
    /// The maximum number of operations and entries to visit, for tracebacks
    /// that contain themselves.
    budget: usize,
}

/// One frame of a traceback.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracebackFrame<'p> {
    /// The file with the code.
    pub file: Cow<'p, str>,
    /// The line in it, from 1.
    pub line: i64,
    /// The name of the function.
    pub function: Cow<'p, str>,
}

impl fmt::Display for TracebackFrame<'_> {
    /// Formats as the first line that Python prints for the frame, escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = daskwire_pickle::tree::Escaped(self.file.as_bytes());
        let function = daskwire_pickle::tree::Escaped(self.function.as_bytes());
        write!(f, "File \"{file}\", line {}, in {function}", self.line)
    }
}

type ConvertResult<T> = Result<T, ConvertError>;

fn invalid<T>(node: Node<'_, '_>, what: &'static str) -> ConvertResult<T> {
    fail(node, ConvertErrorKind::Invalid { what })
}

fn unsupported<T>(node: Node<'_, '_>, what: &'static str) -> ConvertResult<T> {
    fail(node, ConvertErrorKind::Unsupported { what })
}

fn expected<T>(node: Node<'_, '_>, what: &'static str) -> ConvertResult<T> {
    fail(node, ConvertErrorKind::Expected { what })
}

fn fail<T>(node: Node<'_, '_>, kind: ConvertErrorKind) -> ConvertResult<T> {
    Err(ConvertError {
        offset: node.offset(),
        kind,
    })
}

/// The element type that the tree of a pickled `numpy.dtype` describes, such as
/// that of [`ElementType::Pickled`].
///
/// # Errors
///
/// As [`convert`], and [`ConvertErrorKind::Expected`] if it is the type of
/// elements that are arrays, or no type.
pub fn element_type<'t>(tree: &'t Tree<'_>) -> Result<ElementType<'t>, ConvertError> {
    let mut registry = Registry::new();
    registry.allow_all(NUMPY);
    match convert(&registry, tree.root())? {
        KnownValue::DType {
            element_type,
            shape,
        } if shape.is_empty() => Ok(element_type),
        _ => expected(tree.root(), "a numpy.dtype"),
    }
}

/// Converts an object, if all names in it are allowed.
///
/// # Errors
///
/// * [`ConvertErrorKind::NotAllowed`] if it is not an object with an allowed
///   and known name;
/// * [`ConvertErrorKind::Expected`], [`ConvertErrorKind::Unsupported`] or
///   [`ConvertErrorKind::Invalid`] if its parts are not in the form that Python
///   writes.
pub fn convert<'t, 'p>(
    registry: &Registry<Known>,
    node: Node<'t, 'p>,
) -> Result<KnownValue<'t, 'p>, ConvertError> {
    let Some((known, object)) = registry.object(node) else {
        return fail(node, ConvertErrorKind::NotAllowed);
    };
    let is_class = matches!(object.origin, Origin::Name);
    if is_class || object.keywords.is_some() {
        return unsupported(node, "a name, or a call with keyword arguments,");
    }
    let context = Context { registry, node };
    let mut arguments = object.arguments;
    let count = arguments.count_left();
    let mut next = || arguments.next().unwrap_or(node);
    let converted = match (known, count) {
        (Known::Complex, 2) => {
            let mut part = || next().as_f64();
            let (Some(real), Some(imaginary)) = (part(), part()) else {
                return expected(node, "two floats");
            };
            KnownValue::Complex { real, imaginary }
        }
        (Known::Set, 0) => KnownValue::Set(node.items()),
        (Known::FrozenSet, 0) => KnownValue::FrozenSet(node.items()),
        (Known::Set, 1) => KnownValue::Set(list(next())?),
        (Known::FrozenSet, 1) => KnownValue::FrozenSet(list(next())?),
        (Known::ByteArray, 0) => KnownValue::ByteArray(Cow::Borrowed(&[])),
        (Known::ByteArray, 1) => KnownValue::ByteArray(context.data(next())?),
        // Protocols 0 to 2 have a string and the name of its encoding.
        (Known::ByteArray, 2) => KnownValue::ByteArray(encoded(node, next(), next())?),
        (Known::Bytes, 0) => KnownValue::Bytes(Cow::Borrowed(&[])),
        (Known::Encode, 2) => KnownValue::Bytes(encoded(node, next(), next())?),
        (Known::DType, 3) => {
            let (element_type, dimensions) = context.any_dtype(&object)?;
            let shape = dimensions.shape().to_vec();
            return Ok(KnownValue::DType {
                element_type,
                shape,
            });
        }
        (Known::Reconstruct, 3) => {
            return Ok(match context.reconstructed(&object)? {
                MaskedData::Array(array) => KnownValue::Array(array),
                MaskedData::Objects(objects) => KnownValue::ObjectArray(objects),
            });
        }
        (Known::MaskedReconstruct, 4) => {
            return context.masked(&object).map(KnownValue::MaskedArray);
        }
        (Known::MaskedConstant, 0) => KnownValue::Masked,
        (Known::FromBuffer, 4 | 5) => KnownValue::Array(context.frombuffer(&object)?),
        (Known::Scalar, 2) => KnownValue::Scalar(context.scalar(next(), next())?),
        (Known::Exception, _) => {
            return Ok(KnownValue::Exception(Exception {
                class: object.global,
                arguments: object.arguments,
                traceback: None,
                cause: None,
                context: None,
                suppress_context: false,
            }));
        }
        (Known::UnpickleException | Known::UnpickleExceptionWithAttributes, 2..) => {
            return context.exception(known, &object).map(KnownValue::Exception);
        }
        (Known::Traceback, 3) => KnownValue::Traceback(context.traceback(node)),
        _ => return expected(node, "another number of arguments"),
    };
    // Other operations are unknown.
    if object.operations().next().is_some() {
        return unsupported(node, "a state, or items added to it,");
    }
    Ok(converted)
}

/// The tree to convert and the allowed names.
#[derive(Clone, Copy)]
struct Context<'r, 't, 'p> {
    registry: &'r Registry<Known>,
    node: Node<'t, 'p>,
}

/// The items of a list or a tuple.
fn list<'t, 'p>(node: Node<'t, 'p>) -> ConvertResult<Items<'t, 'p>> {
    match node.value() {
        Value::List(items) | Value::Tuple(items) => Ok(items),
        _ => expected(node, "a list"),
    }
}

/// Encodes a string in Latin-1.
fn encoded<'p>(
    node: Node<'_, '_>,
    string: Node<'_, 'p>,
    encoding: Node<'_, 'p>,
) -> ConvertResult<Cow<'p, [u8]>> {
    let (Value::Str(string), Value::Str(encoding)) = (string.value(), encoding.value()) else {
        return expected(node, "a string and an encoding");
    };
    if encoding != *"latin1" && encoding != *"latin-1" {
        return unsupported(node, "an encoding other than latin1");
    }
    match string.to_bytes() {
        Cow::Borrowed(bytes) if bytes.is_ascii() => Ok(Cow::Borrowed(bytes)),
        bytes => {
            let Ok(string) = core::str::from_utf8(&bytes) else {
                return invalid(node, "the string has surrogates");
            };
            let bytes = string.chars().map(|character| u8::try_from(character).ok());
            match bytes.collect::<Option<Vec<u8>>>() {
                Some(bytes) => Ok(Cow::Owned(bytes)),
                None => invalid(node, "the string is not in Latin-1"),
            }
        }
    }
}

impl<'t, 'p> Context<'_, 't, 'p> {
    /// The object created by a call of one of these names.
    fn object_of(self, node: Node<'t, 'p>, wanted: Known) -> ConvertResult<Object<'t, 'p>> {
        match self.registry.object(node) {
            Some((known, object)) if known == wanted => Ok(object),
            _ => fail(node, ConvertErrorKind::NotAllowed),
        }
    }

    /// Bytes in any encoding.
    fn data(self, node: Node<'t, 'p>) -> ConvertResult<Cow<'p, [u8]>> {
        if let Some(bytes) = node.as_bytes() {
            return Ok(Cow::Borrowed(bytes));
        }
        match self.registry.object(node) {
            Some((Known::Encode, object)) if object.operations().next().is_none() => {
                match object.arguments.exactly() {
                    Some([string, encoding]) => encoded(node, string, encoding),
                    None => expected(node, "a string and an encoding"),
                }
            }
            // Empty `bytes` in protocols 0 to 2.
            Some((Known::Bytes, object)) if object.arguments.count_left() == 0 => {
                Ok(Cow::Borrowed(&[]))
            }
            Some((Known::ByteArray, object)) => {
                let argument = object.arguments.exactly();
                match argument.and_then(|[bytes]| bytes.as_bytes()) {
                    Some(bytes) => Ok(Cow::Borrowed(bytes)),
                    None => expected(node, "bytes"),
                }
            }
            _ => expected(node, "bytes"),
        }
    }

    /// `unpickle_exception(CLASS, ARGUMENTS, CAUSE, TRACEBACK, CONTEXT, ...)`,
    /// or with attributes, including `args`, instead of the arguments.
    fn exception(self, known: Known, object: &Object<'t, 'p>) -> ConvertResult<Exception<'t, 'p>> {
        let mut parts = object.arguments;
        let mut next = || parts.next().filter(|node| !node.is_none());
        let (class, arguments) = (next().unwrap_or(self.node), next());
        let (cause, traceback, context) = (next(), next(), next());
        let suppress_context = next().and_then(Node::as_bool).unwrap_or_default();
        let class_object = self.object_of(class, Known::Exception)?;
        if !matches!(class_object.origin, Origin::Name) {
            return expected(class, "a class of exceptions");
        }
        let arguments = match (known, arguments) {
            (Known::UnpickleExceptionWithAttributes, Some(attributes)) => attributes.get("args"),
            (_, arguments) => arguments,
        };
        let arguments = match arguments.map(Node::value) {
            Some(Value::Tuple(items) | Value::List(items)) => items,
            _ => return expected(self.node, "the arguments of an exception"),
        };
        let traceback = match traceback {
            Some(node) => {
                self.object_of(node, Known::Traceback)?;
                Some(self.traceback(node))
            }
            None => None,
        };
        Ok(Exception {
            class: class_object.global,
            arguments,
            traceback,
            cause,
            context,
            suppress_context,
        })
    }

    fn traceback(self, node: Node<'t, 'p>) -> Traceback<'t, 'p> {
        Traceback {
            next: Some(node),
            // A frame of `tblib` takes twice its number of values.
            budget: node.tree().value_count().saturating_mul(16),
        }
    }
}

impl<'t, 'p> Traceback<'t, 'p> {
    /// The attribute with a name in the states of an object.
    fn attribute(&mut self, object: Node<'t, 'p>, name: &str) -> Option<Node<'t, 'p>> {
        let mut found = None;
        for operation in object.operations() {
            self.budget = self.budget.checked_sub(1)?;
            let Operation::State(state) = operation else {
                continue;
            };
            for (key, value) in state.node().entries() {
                self.budget = self.budget.checked_sub(1)?;
                if matches!(key.value(), Value::Str(key) if key == *name) {
                    found = Some(value);
                }
            }
        }
        found
    }
}

impl<'p> Iterator for Traceback<'_, 'p> {
    type Item = TracebackFrame<'p>;

    /// Ends at a frame that is not in the form of `tblib`.
    fn next(&mut self) -> Option<Self::Item> {
        let node = self.next.take()?;
        self.budget = self.budget.checked_sub(1)?;
        // The first frame is in the arguments of a call, later ones are objects
        // of `tblib.Traceback`.
        let (frame, line, next) = match (self.attribute(node, "tb_frame"), node.value()) {
            (Some(frame), _) => {
                let line = self.attribute(node, "tb_lineno")?;
                (frame, line, self.attribute(node, "tb_next"))
            }
            (None, Value::Call { arguments, .. }) => {
                let [frame, line, next] = arguments.items().exactly()?;
                (frame, line, Some(next))
            }
            _ => return None,
        };
        self.next = next;
        let code = self.attribute(frame, "f_code")?;
        let mut string = |name| match self.attribute(code, name)?.value() {
            Value::Str(string) => {
                // Frames may share a long string.
                let cost = string.to_bytes().len() / 64;
                self.budget = self.budget.checked_sub(cost)?;
                string.to_str()
            }
            _ => None,
        };
        Some(TracebackFrame {
            file: string("co_filename")?,
            line: line.as_i64()?,
            function: string("co_name")?,
        })
    }
}

/// The string of `_codecs.encode(STRING, "latin1")`.
fn encoded_ascii<'p>(node: Node<'_, 'p>) -> Option<&'p str> {
    let Value::Call {
        callable,
        arguments,
    } = node.value()
    else {
        return None;
    };
    let is_encode = callable.as_global()?.is("_codecs", "encode");
    let [string, _] = arguments.items().exactly()?;
    numpy::keyword(string).filter(|string| is_encode && string.is_ascii())
}
