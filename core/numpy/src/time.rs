//! Times as elements of arrays.

use core::fmt;
use core::marker::PhantomData;

use super::dtype::Sealed;
use super::{ByteOrder, DType, Element, TimeBase, TimeUnit};

/// A unit of [`Datetime64`] and [`Timedelta64`]: one of the types in [`unit`](mod@unit).
pub trait Unit: sealed::Named + Copy + fmt::Debug + Ord + core::hash::Hash + 'static {
    /// The unit as a value.
    const BASE: TimeBase;
}

mod sealed {
    /// Only the units of numpy are units.
    #[expect(unnameable_types, reason = "other crates must not implement it")]
    pub trait Named: Send + Sync {}
}

macro_rules! units {
    ($($name:ident $string:literal)*) => {
        /// The units of time, as types for [`Datetime64`](super::Datetime64) and
        /// [`Timedelta64`](super::Timedelta64).
        pub mod unit {
            $(
                #[doc = concat!("`", $string, "`.")]
                #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
                pub enum $name {}
            )*
        }

        $(
            impl sealed::Named for unit::$name {}

            impl Unit for unit::$name {
                const BASE: TimeBase = TimeBase::$name;
            }
        )*
    };
}

units! {
    Year "Y"
    Month "M"
    Week "W"
    Day "D"
    Hour "h"
    Minute "m"
    Second "s"
    Millisecond "ms"
    Microsecond "us"
    Nanosecond "ns"
    Picosecond "ps"
    Femtosecond "fs"
    Attosecond "as"
}

macro_rules! times {
    ($($(#[$doc:meta])* $name:ident $string:literal $dtype:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// Compared by its number, so that `NaT` is equal to itself and less than all
        /// others.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name<U> {
            number: i64,
            unit: PhantomData<U>,
        }

        impl<U> $name<U> {
            /// `NaT`, numpy's mark of a missing value.
            pub const NAT: Self = Self {
                number: i64::MIN,
                unit: PhantomData,
            };

            /// Makes an element of a number of units; the smallest `i64` is `NaT`.
            pub const fn new(number: i64) -> Self {
                Self {
                    number,
                    unit: PhantomData,
                }
            }

            /// The number of units; `None` for `NaT`.
            pub const fn number(self) -> Option<i64> {
                match self.number {
                    i64::MIN => None,
                    number => Some(number),
                }
            }
        }

        impl<U: Unit> fmt::Debug for $name<U> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.number() {
                    Some(number) => write!(f, "{}({number} {})", $string, U::BASE.name()),
                    None => write!(f, "{}(NaT)", $string),
                }
            }
        }

        impl<U: Unit> Sealed for $name<U> {
            const DTYPE: DType = DType::$dtype(TimeUnit::one(U::BASE));
            const ZERO: Self = Self::new(0);

            #[inline]
            fn read(bytes: &[u8], order: ByteOrder) -> Option<Self> {
                Sealed::read(bytes, order).map(Self::new)
            }

            #[inline]
            fn write(self, place: &mut [u8], order: ByteOrder) {
                self.number.write(place, order);
            }
        }

        impl<U: Unit> Element for $name<U> {
            fn is_of(dtype: DType) -> bool {
                Self::DTYPE.kind() == dtype.kind()
            }

            #[cfg(all(feature = "alloc", feature = "bytemuck"))]
            type Native = i64;

            #[cfg(all(feature = "alloc", feature = "bytemuck"))]
            fn into_native(elements: alloc::vec::Vec<Self>) -> alloc::vec::Vec<i64> {
                // The standard library reuses the vector's memory.
                elements.into_iter().map(|time| time.number).collect()
            }
        }
    )*};
}

times! {
    /// An element of an array of numpy's `datetime64`: a number of units since 1970, or
    /// `NaT`.
    ///
    /// ```
    /// use daskwire_numpy::unit::Nanosecond;
    /// use daskwire_numpy::{Array, Datetime64, DType, Order};
    ///
    /// let bytes = [1_577_836_800_000_000_000, i64::MIN].map(i64::to_le_bytes);
    /// let dtype = DType::parse("<M8[ns]")?;
    /// let array = Array::new(dtype, &[2], Order::C, bytes.as_flattened())?;
    /// let year_2020 = Datetime64::<Nanosecond>::new(1_577_836_800_000_000_000);
    /// assert!(array.elements::<Datetime64<Nanosecond>>()?.eq([year_2020, Datetime64::NAT]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Datetime64 "Datetime64" datetime;
    /// An element of an array of numpy's `timedelta64`: a number of units, or `NaT`.
    ///
    /// ```
    /// use daskwire_numpy::unit::Second;
    /// use daskwire_numpy::{ByteOrder, Element, Timedelta64};
    ///
    /// let minute = Timedelta64::<Second>::new(60);
    /// assert_eq!(minute.number(), Some(60));
    /// assert_eq!(Timedelta64::<Second>::dtype(ByteOrder::Little).to_string(), "<m8[s]");
    /// ```
    Timedelta64 "Timedelta64" timedelta;
}
