//! Names and defaults of the parameters of functions.

use std::sync::Arc;

use daskwire_messages::Value;
use daskwire_messages::value::{IntoValue, ValueError};

/// The name of a function, and those of its parameters with their defaults, as in a `def` of
/// Python. A name alone, such as `"scale"`, is a signature without them: such a function takes
/// positional arguments only.
///
/// ```
/// use daskwire_peer::worker::{Functions, Signature};
///
/// // def scale(x, by=2.0, *, plus=0.0)
/// let scale = Signature::new("scale")
///     .required("x")
///     .optional("by", 2.0)
///     .keyword_only("plus", 0.0);
/// let functions = Functions::new().function(scale, |x: f64, by: f64, plus: f64| x * by + plus);
/// let arguments = [3.into()].into_iter().collect();
/// assert_eq!(functions.call("scale", arguments), Some(Ok(6.0.into())));
/// ```
#[derive(Clone, Debug)]
pub struct Signature {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
}

/// A parameter of a function.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: Arc<str>,
    /// `None` if the parameter is required. The error of a conversion is that of each call without
    /// the argument.
    pub(super) default: Option<Result<Value, ValueError>>,
    pub(super) is_keyword_only: bool,
}

impl Signature {
    /// Creates a signature without names of parameters.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            parameters: Vec::new(),
        }
    }

    /// Adds a parameter without a default. Its argument is positional or a keyword argument.
    #[must_use]
    pub fn required(self, name: &str) -> Self {
        self.parameter(name, None, false)
    }

    /// Adds a parameter that has this value if no argument is given. If the value does not convert,
    /// calls without the argument fail.
    #[must_use]
    pub fn optional(self, name: &str, default: impl IntoValue) -> Self {
        self.parameter(name, Some(value_of(default)), false)
    }

    /// Adds a parameter with a default, as [`optional`](Self::optional) does, which takes a keyword
    /// argument only.
    #[must_use]
    pub fn keyword_only(self, name: &str, default: impl IntoValue) -> Self {
        self.parameter(name, Some(value_of(default)), true)
    }

    fn parameter(
        mut self,
        name: &str,
        default: Option<Result<Value, ValueError>>,
        is_keyword_only: bool,
    ) -> Self {
        self.parameters.push(Parameter {
            name: name.into(),
            default,
            is_keyword_only,
        });
        self
    }
}

fn value_of(value: impl IntoValue) -> Result<Value, ValueError> {
    let value = value.into_value();
    value.map_err(|error| ValueError::of_conversion(&*error))
}

/// A name without parameters.
impl From<&str> for Signature {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// A name without parameters.
impl From<&String> for Signature {
    fn from(name: &String) -> Self {
        Self::new(name)
    }
}

/// A name without parameters.
impl From<String> for Signature {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}
