//! Rust functions that tasks call by name.

use core::fmt;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Arc;

use daskwire_messages::brief_debug;
use daskwire_messages::value::Outcome;
use daskwire_messages::{RemoteError, Value};
use daskwire_store::Opened;

type Call = dyn Fn(Arguments) -> Result<Value, RemoteError> + Send + Sync;

/// The functions of a worker, by name.
///
/// A task calls a function as `native:NAME`, in Python
/// `operator.methodcaller("native:NAME")`. A function that is registered under the name of
/// a Python function, such as `operator.add`, also runs tasks that call that function.
///
/// ```
/// use daskwire_peer::worker::Functions;
/// use daskwire_peer::Value;
///
/// let functions = Functions::new()
///     .function("hypot", |x: f64, y: f64| x.hypot(y))
///     .with("count", |arguments| Ok(Value::from(arguments.len())));
/// assert_eq!(functions.names().collect::<Vec<_>>(), ["count", "hypot"]);
/// ```
#[derive(Clone, Default)]
pub struct Functions {
    registered: HashMap<String, Registered>,
}

#[derive(Clone)]
struct Registered {
    call: Arc<Call>,
    is_quick: bool,
}

impl Functions {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns Rust implementations of Python functions, with the same results, for workers
    /// without an interpreter: arithmetic and comparisons of `operator`, builtins such as
    /// `len` and `sum`, `math.sqrt` and `time.sleep`. Unsupported arguments, such as integers
    /// of more than 128 bits, raise a `NotImplementedError`.
    pub fn builtins() -> Self {
        super::builtins::register(Self::new())
    }

    /// Adds a function that takes unconverted arguments. It replaces a function
    /// of the same name.
    #[must_use]
    pub fn with(
        mut self,
        name: &str,
        function: impl Fn(Arguments) -> Result<Value, RemoteError> + Send + Sync + 'static,
    ) -> Self {
        let registered = Registered {
            call: Arc::new(function),
            is_quick: false,
        };
        self.registered.insert(name.to_owned(), registered);
        self
    }

    /// Adds a function with converted arguments: a closure of up to six arguments that
    /// [`Value`] converts into. It returns a type with [`IntoValue`](daskwire_messages::value::IntoValue),
    /// for which a conversion by `From` is not enough, or a [`Result`] of it with any error.
    /// It replaces a function of the same name.
    ///
    /// An error is raised in Python as a `RuntimeError` with its message, and
    /// its sources as the causes; conversion errors as `TypeError` or
    /// `ValueError`, I/O errors as `OSError`, and a [`RemoteError`] as the exception that it
    /// describes.
    ///
    /// ```
    /// # use daskwire_peer::{worker::Functions, Array, RemoteError};
    /// let functions = Functions::new()
    ///     .function("add", |a: f64, b: f64| a + b)
    ///     .function("mean", |array: Array| -> Result<f64, RemoteError> {
    ///         let all = array.to_vec::<f64>()?;
    ///         Ok(all.iter().sum::<f64>() / all.len() as f64)
    ///     })
    ///     .function("parse", |text: String| text.parse::<i64>());
    /// ```
    #[must_use]
    pub fn function<M>(self, name: &str, function: impl Function<M>) -> Self {
        self.with(name, move |arguments| function.call(arguments))
    }

    /// Declares that a function takes only microseconds if all its arguments are single
    /// numbers. Such calls run on the thread that receives the task, which saves two
    /// context switches.
    #[must_use]
    pub fn quick(mut self, name: &str) -> Self {
        if let Some(registered) = self.registered.get_mut(name) {
            registered.is_quick = true;
        }
        self
    }

    /// Adds a pause before each call of all functions, for tests with a slow worker. The pause takes
    /// the thread of the task.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use daskwire_peer::{worker::Functions, Value};
    /// let slow = Functions::builtins().delayed(Duration::from_millis(20));
    /// let started = std::time::Instant::now();
    /// let sum = slow.call("operator.neg", [Value::from(1)].into_iter().collect());
    /// assert_eq!(sum, Some(Ok(Value::from(-1))));
    /// assert!(started.elapsed() >= Duration::from_millis(20));
    /// ```
    #[must_use]
    pub fn delayed(mut self, delay: Duration) -> Self {
        for registered in self.registered.values_mut() {
            let call = Arc::clone(&registered.call);
            *registered = Registered {
                call: Arc::new(move |arguments| {
                    std::thread::sleep(delay);
                    call(arguments)
                }),
                is_quick: false,
            };
        }
        self
    }

    /// Adds a check of each argument of all functions.
    pub(super) fn checked(mut self, check: fn(&Value) -> Result<(), RemoteError>) -> Self {
        for registered in self.registered.values_mut() {
            let call = Arc::clone(&registered.call);
            registered.call = Arc::new(move |arguments| {
                arguments.iter().try_for_each(check)?;
                arguments
                    .keywords()
                    .try_for_each(|(_, value)| check(value))?;
                call(arguments)
            });
        }
        self
    }

    /// The names of all functions, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<&str> = self.registered.keys().map(String::as_str).collect();
        names.sort_unstable();
        names.into_iter()
    }

    #[cfg(target_os = "linux")]
    pub(super) fn contains(&self, name: &str) -> bool {
        self.registered.contains_key(name)
    }

    pub(super) fn is_quick(&self, name: &str) -> bool {
        self.registered
            .get(name)
            .is_some_and(|registered| registered.is_quick)
    }

    /// Calls a function. Returns `None` if there is no function of that name.
    ///
    /// ```
    /// # use daskwire_peer::{worker::Functions, Value};
    /// let functions = Functions::builtins();
    /// let arguments = [Value::from("a"), Value::from("b")].into_iter().collect();
    /// let result = functions.call("operator.add", arguments);
    /// assert_eq!(result, Some(Ok(Value::from("ab"))));
    /// ```
    pub fn call(&self, name: &str, arguments: Arguments) -> Option<Result<Value, RemoteError>> {
        let registered = self.registered.get(name)?;
        let arguments = Arguments {
            function: name.to_owned(),
            ..arguments
        };
        let result = catch_unwind(AssertUnwindSafe(|| (registered.call)(arguments)));
        Some(result.unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().copied();
            let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            let message = message.unwrap_or("(no message)");
            Err(RemoteError::new(
                "RuntimeError",
                &format!("the function {name} panicked: {message}"),
            ))
        }))
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// The arguments of a call.
#[derive(Clone, Default)]
pub struct Arguments {
    function: String,
    positional: Vec<Arg>,
    keywords: Vec<(String, Arg)>,
}

brief_debug!(struct Arguments { function, positional, keywords, });

/// An argument: a value that only this task uses, or one shared with other tasks.
#[derive(Clone, Debug)]
pub(super) enum Arg {
    Owned(Value),
    Shared(Opened),
}

impl Arg {
    pub(super) fn value(&self) -> &Value {
        match self {
            Self::Owned(value) => value,
            Self::Shared(opened) => opened,
        }
    }

    pub(super) fn into_value(self) -> Value {
        match self {
            Self::Owned(value) => value,
            Self::Shared(opened) => Value::clone(&opened),
        }
    }
}

/// Positional arguments.
impl FromIterator<Value> for Arguments {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        Self::new(values.into_iter().map(Arg::Owned).collect(), Vec::new())
    }
}

impl Arguments {
    pub(super) const fn new(positional: Vec<Arg>, keywords: Vec<(String, Arg)>) -> Self {
        Self {
            function: String::new(),
            positional,
            keywords,
        }
    }

    /// The number of positional arguments.
    pub fn len(&self) -> usize {
        self.positional.len()
    }

    /// Whether there are no positional arguments.
    pub fn is_empty(&self) -> bool {
        self.positional.is_empty()
    }

    /// The positional argument at an index.
    pub fn get(&self, index: usize) -> Option<&Value> {
        self.positional.get(index).map(Arg::value)
    }

    /// The positional arguments.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Value> {
        self.positional.iter().map(Arg::value)
    }

    /// Adds a keyword argument.
    #[must_use]
    pub fn with_keyword(mut self, name: &str, value: Value) -> Self {
        self.keywords.push((name.to_owned(), Arg::Owned(value)));
        self
    }

    /// The keyword argument with this name.
    pub fn keyword(&self, name: &str) -> Option<&Value> {
        let found = self.keywords.iter().find(|(keyword, _)| keyword == name);
        found.map(|(_, given)| given.value())
    }

    /// The keyword arguments.
    pub fn keywords(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.keywords
            .iter()
            .map(|(name, given)| (name.as_str(), given.value()))
    }

    /// Converts a positional argument to another type.
    ///
    /// # Errors
    ///
    /// A Python `TypeError` if the argument is missing or of another type.
    pub fn to<T>(&self, index: usize) -> Result<T, RemoteError>
    where
        T: TryFrom<Value, Error: fmt::Display>,
    {
        let Some(value) = self.get(index) else {
            return Err(self.wrong(&format!("missing argument {}", index.saturating_add(1))));
        };
        T::try_from(value.clone())
            .map_err(|error| self.wrong(&format!("argument {}: {error}", index.saturating_add(1))))
    }

    /// Checks the number of positional arguments, and that there are no keyword
    /// arguments.
    ///
    /// # Errors
    ///
    /// A Python `TypeError` if the check fails.
    pub fn exactly(&self, count: usize) -> Result<(), RemoteError> {
        self.between(count, count)
    }

    pub(super) fn between(&self, min: usize, max: usize) -> Result<(), RemoteError> {
        if let Some((name, _)) = self.keywords.first() {
            return Err(self.wrong(&format!("got an unexpected keyword argument '{name}'")));
        }
        let found = self.len();
        if (min..=max).contains(&found) {
            return Ok(());
        }
        let wanted = if min == max {
            format!("takes {min}")
        } else {
            format!("takes from {min} to {max}")
        };
        let plural = if max == 1 { "" } else { "s" };
        let were = if found == 1 { "was" } else { "were" };
        Err(self.wrong(&format!(
            "{wanted} positional argument{plural} but {found} {were} given"
        )))
    }

    /// Assigns the arguments to the parameters of a Python function; `None` means
    /// the parameter's default. A parameter without a name is positional only.
    ///
    /// # Errors
    ///
    /// A Python `TypeError` if there are more than `positional` positional
    /// arguments, if one of the first `required` parameters is missing, if an
    /// argument is given twice, or if a keyword is not the name of a parameter.
    pub(super) fn bind<const N: usize>(
        &self,
        names: [&str; N],
        required: usize,
        positional: usize,
    ) -> Result<[Option<&Value>; N], RemoteError> {
        let found = self.len();
        if found > positional {
            let plural = if positional == 1 { "" } else { "s" };
            return Err(self.wrong(&format!(
                "takes at most {positional} positional argument{plural} ({found} given)"
            )));
        }
        let mut bound = [None; N];
        for (parameter, value) in bound.iter_mut().zip(self.iter()) {
            *parameter = Some(value);
        }
        for (keyword, value) in self.keywords() {
            let index = names.iter().position(|name| *name == keyword);
            let parameter = index.filter(|_| !keyword.is_empty());
            let Some(parameter) = parameter.and_then(|index| bound.get_mut(index)) else {
                return Err(self.wrong(&format!("got an unexpected keyword argument '{keyword}'")));
            };
            if parameter.replace(value).is_some() {
                return Err(self.wrong(&format!("got multiple values for argument '{keyword}'")));
            }
        }
        let missing = bound.iter().take(required).position(Option::is_none);
        if let Some(index) = missing {
            let number = index.saturating_add(1);
            return Err(self.wrong(&format!("missing required argument {number}")));
        }
        Ok(bound)
    }

    /// Returns a `TypeError` that names the function.
    pub(super) fn wrong(&self, what: &str) -> RemoteError {
        RemoteError::new("TypeError", &format!("{}() {what}", self.function))
    }
}

/// A closure that [`Functions::function`] takes, with up to six arguments. `M`
/// only distinguishes the implementations.
pub trait Function<M>: Send + Sync + 'static {
    /// Converts the arguments and calls the closure.
    ///
    /// # Errors
    ///
    /// A `TypeError` if the arguments do not convert, or the closure's error.
    fn call(&self, arguments: Arguments) -> Result<Value, RemoteError>;
}

macro_rules! functions {
    ($(($($type:ident $index:tt),*))*) => {$(
        impl<F, R, $($type,)*> Function<fn($($type,)*) -> R> for F
        where
            F: Fn($($type,)*) -> R + Send + Sync + 'static,
            R: Outcome,
            $($type: TryFrom<Value, Error: fmt::Display>,)*
        {
            fn call(&self, arguments: Arguments) -> Result<Value, RemoteError> {
                const COUNT: usize = <[&str]>::len(&[$(stringify!($type)),*]);
                arguments.exactly(COUNT)?;
                self($(arguments.to::<$type>($index)?,)*).into_result().map_err(RemoteError::of_error)
            }
        }
    )*};
}

functions! {
    ()
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, G 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daskwire_messages::Array;

    fn call(functions: &Functions, name: &str, values: &[Value]) -> Result<Value, String> {
        let given = values.iter().cloned().map(Arg::Owned).collect();
        let arguments = Arguments::new(given, Vec::new());
        let result = functions
            .call(name, arguments)
            .expect("function is registered");
        result.map_err(|error| error.to_string())
    }

    fn functions() -> Functions {
        Functions::new()
            .function("add", |a: f64, b: f64| a + b)
            .function("nothing", || ())
            .function("half", |n: i64| -> Result<i64, RemoteError> {
                if n % 2 == 0 {
                    Ok(n / 2)
                } else {
                    Err(RemoteError::new("ValueError", "odd number"))
                }
            })
            .function("double", |array: Array| -> Result<Array, RemoteError> {
                let all: Vec<f64> = array.to_vec::<f64>()?.iter().map(|n| n * 2.0).collect();
                Ok(Array::from_vec(array.shape(), all)?)
            })
            .function("same", |value: Value| value)
            .function("oops", |_: Value| -> Value { panic!("no {}", "way") })
    }

    #[test]
    fn converts_arguments_of_closures() {
        let functions = functions();
        let number = |n: f64| Value::from(n);
        assert_eq!(
            call(&functions, "add", &[1.into(), number(2.5)]),
            Ok(number(3.5))
        );
        assert_eq!(call(&functions, "nothing", &[]), Ok(Value::None));
        assert_eq!(call(&functions, "half", &[4.into()]), Ok(2.into()));
        assert_eq!(call(&functions, "same", &["x".into()]), Ok("x".into()));
        let array = Array::from_slice(&[2], &[1.0, 2.0]).expect("two");
        let double = Array::from_slice(&[2], &[2.0, 4.0]).expect("two");
        assert_eq!(
            call(&functions, "double", &[array.into()]),
            Ok(double.into())
        );
    }

    #[test]
    fn functions_take_and_return_common_types() {
        let functions = Functions::new()
            .function("swap", |(a, b): (i64, String)| (b, a))
            .function("first", |all: Option<Vec<f32>>| {
                all.and_then(|all| all.first().copied())
            })
            .function("count", |text: String| {
                let mut counts = std::collections::BTreeMap::new();
                for character in text.chars() {
                    *counts.entry(character).or_insert(0) += 1;
                }
                counts
            });
        let pair = Value::tuple([Value::from(1), Value::from("a")]);
        let swapped = Value::tuple([Value::from("a"), Value::from(1)]);
        assert_eq!(call(&functions, "swap", &[pair]), Ok(swapped));
        let numbers = Value::from(vec![0.5, 1.5]);
        assert_eq!(call(&functions, "first", &[numbers]), Ok(0.5.into()));
        assert_eq!(call(&functions, "first", &[Value::None]), Ok(Value::None));
        let counts = Value::dict([("a", 2), ("b", 1)]);
        assert_eq!(call(&functions, "count", &["aba".into()]), Ok(counts));
    }

    #[test]
    fn functions_return_any_error() {
        #[derive(Debug)]
        struct Outer(std::io::Error);

        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("no settings")
            }
        }

        impl core::error::Error for Outer {
            fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
                Some(&self.0)
            }
        }

        let functions = Functions::new()
            .function("parse", |text: String| text.parse::<i64>())
            .function("text", || Err::<(), _>("it went wrong"))
            .function(
                "boxed",
                || -> Result<i32, Box<dyn core::error::Error + Send + Sync>> {
                    Ok("x".parse::<i32>()?)
                },
            )
            .function("remote", || {
                Err::<(), _>(RemoteError::new("KeyError", "'x'"))
            })
            .function("type", || i64::try_from(Value::from("x")))
            .function("outer", || {
                Err::<(), _>(Outer(std::io::Error::other("no disk")))
            });
        let invalid = "RuntimeError: invalid digit found in string";
        for (name, arguments, expected) in [
            ("parse", vec![Value::from("x")], invalid),
            ("text", vec![], "RuntimeError: it went wrong"),
            ("boxed", vec![], invalid),
            ("remote", vec![], "KeyError: 'x'"),
            ("type", vec![], "TypeError: expected i64, found str"),
            (
                "outer",
                vec![],
                "RuntimeError: no settings\ncaused by OSError: no disk",
            ),
        ] {
            assert_eq!(call(&functions, name, &arguments), Err(expected.to_owned()));
        }
        assert_eq!(call(&functions, "parse", &["5".into()]), Ok(5.into()));
    }

    #[test]
    fn errors_name_the_function() {
        let functions = functions();
        for (name, values, expected) in [
            (
                "add",
                vec![Value::from(1)],
                "TypeError: add() takes 2 positional arguments but 1 was given",
            ),
            (
                "add",
                vec![Value::from(1), Value::from("x")],
                "TypeError: add() argument 2: expected f64, found str",
            ),
            ("half", vec![Value::from(3)], "ValueError: odd number"),
            (
                "oops",
                vec![Value::None],
                "RuntimeError: the function oops panicked: no way",
            ),
        ] {
            assert_eq!(call(&functions, name, &values), Err(expected.to_owned()));
        }
        let keyword = vec![("base".to_owned(), Arg::Owned(2.into()))];
        let arguments = Arguments::new(vec![Arg::Owned(2.into())], keyword);
        let error = functions.call("half", arguments).expect("registered");
        assert_eq!(
            error.expect_err("no keywords").message,
            "half() got an unexpected keyword argument 'base'"
        );
        assert!(functions.call("other", Arguments::default()).is_none());
    }
}
