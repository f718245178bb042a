//! Reading and writing of payloads as values, without Python: `bytes`,
//! `bytearray`, `memoryview`, numpy arrays, and pickles with their out-of-band
//! buffers.
//!
//! * [`PayloadValue`] reads a payload of a message; [`Description`] describes
//!   its value, [`Array`] is an array over its frame.
//! * The elements of arrays have a plain [`DType`] or are records: a
//!   [`RecordType`] has their fields, and [`Array::field`] returns a field of
//!   all records.
//! * [`MaskedArray`] pairs an array with a mask.
//! * [`PickledPayload`] pairs a pickle with its buffers.
//! * [`ValueBuilder`] extends
//!   [`MessageBuilder`](daskwire::message::MessageBuilder) with a method for
//!   each kind of value, such as
//!   [`array_payload`](ValueBuilder::array_payload).
//!
//! Data in one frame is not copied. No Python code is run or imported: classes are
//! compared by name.
//!
//! ```
//! use daskwire::message::{BuilderBuffers, Layout, Message, MessageBuilder, ReadOptions, Scratch};
//! use daskwire_numpy::{Array, DType, Order, PayloadValue, ValueBuilder, WriteOptions};
//!
//! let bytes: Vec<u8> = [1.0_f64, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let array = Array::new(DType::F64, &[2, 2], Order::Fortran, &bytes)?;
//!
//! let (mut body, mut headers, mut slots) = ([0; 64], [0; 256], [&[][..]; 3]);
//! let mut builder = MessageBuilder::new(Layout::Modern, BuilderBuffers {
//!     body: &mut body, headers: &mut headers, slots: &mut slots,
//! });
//! builder.body().map(1).str("data");
//! builder.array_payload(&array, &WriteOptions::default())?;
//! let frames = builder.finish()?;
//!
//! let mut scratch = Scratch::<4, 1>::new();
//! let message = Message::open(frames, Layout::Modern, &ReadOptions::default(), &mut scratch)?;
//! let payload = message.payload(0)?;
//! let again = PayloadValue::read(&payload)?.array()?;
//! assert_eq!(again, array);
//! assert!(again.elements::<f64>()?.eq([1.0, 3.0, 2.0, 4.0]));
//! assert_eq!(again.bytes().as_ptr(), bytes.as_ptr()); // never copied
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `alloc` (the module `known`: arrays, scalars and exceptions in pickles), `bytemuck`
//! (the elements of an array as a slice), `ndarray-017` (views of ndarray 0.17, with a
//! heap), `half` and `num-complex-04` (elements of these crates).
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc
)]

#[cfg(feature = "alloc")]
extern crate alloc;

mod array;
mod class;
mod description;
mod dimensions;
mod dtype;
mod error;
#[cfg(feature = "alloc")]
pub mod known;
mod masked;
#[cfg(feature = "bytemuck")]
mod native_slice;
#[cfg(feature = "ndarray-017")]
mod ndarray_017;
mod payload;
mod pickled;
mod record;
mod time;
mod write;

pub use array::{Array, elements, encode_into};
pub use class::Class;
pub use description::{ArrayHeader, Description, MemoryViewHeader};
pub use dimensions::{Dimensions, DimensionsError, MAX_DIMENSIONS, Order};
pub use dtype::{ByteOrder, DType, DTypeError, DTypeString, Element, Kind, TimeBase, TimeUnit};
pub use error::{NumpyError, NumpyErrorKind, PayloadWriteError};
pub use masked::{FillValue, MaskedArray, MaskedHeader};
#[cfg(feature = "bytemuck")]
pub use native_slice::as_bytes;
pub use payload::PayloadValue;
pub use pickled::{BorrowedPickle, PickledPayload};
pub use record::{ElementType, Field, Fields, RecordType};
#[cfg(feature = "alloc")]
pub(crate) use record::{MAX_DEPTH, OUTSIDE, TOO_DEEP, TOO_LARGE};
pub use time::{Datetime64, Timedelta64, Unit, unit};
pub use write::{NumpyModules, ValueBuilder, WriteOptions, pickle_array};

use daskwire::copy;

/// The example in the README, tested as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
