//! The arguments of calls, which `daskwire-messages` makes of values.

/// The arguments of a call as a list of `A`: those of a tuple, an array, a slice or a vector, or
/// the only one, of any type that converts to a value.
///
/// It is part of this crate because types of other crates convert with its features. A program uses
/// `daskwire_messages::graph::Arguments`.
#[doc(hidden)]
pub trait IntoArguments<A> {
    /// Converts to a list.
    fn into_list(self) -> Vec<A>;
}

impl<A, T: Into<A>> IntoArguments<A> for Vec<T> {
    fn into_list(self) -> Vec<A> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<A, T: Into<A>, const N: usize> IntoArguments<A> for [T; N] {
    fn into_list(self) -> Vec<A> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<'a, A, T> IntoArguments<A> for &'a [T]
where
    &'a T: Into<A>,
{
    fn into_list(self) -> Vec<A> {
        self.iter().map(Into::into).collect()
    }
}

impl<'a, A, T> IntoArguments<A> for &'a Vec<T>
where
    &'a T: Into<A>,
{
    fn into_list(self) -> Vec<A> {
        self.iter().map(Into::into).collect()
    }
}

impl<A> IntoArguments<A> for () {
    fn into_list(self) -> Vec<A> {
        Vec::new()
    }
}

/// Implements [`IntoArguments`] for a type of which a value is one argument.
macro_rules! one_argument {
    ({$($parameter:tt)*} $type:ty) => {
        impl<A, $($parameter)*> $crate::IntoArguments<A> for $type
        where
            Self: Into<A>,
        {
            fn into_list(self) -> Vec<A> {
                vec![self.into()]
            }
        }
    };
}

pub(super) use one_argument;

macro_rules! tuples {
    ($($($name:ident)+;)*) => {$(
        impl<Z, $($name: Into<Z>),+> IntoArguments<Z> for ($($name,)+) {
            fn into_list(self) -> Vec<Z> {
                #[expect(non_snake_case, reason = "named like the types")]
                let ($($name,)+) = self;
                vec![$($name.into()),+]
            }
        }
    )*};
}

tuples! {
    A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H;
    A B C D E F G H I; A B C D E F G H I J; A B C D E F G H I J K; A B C D E F G H I J K L;
}
