//! Rust functions that tasks call by name.

use core::fmt;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Arc;

use daskwire_comm::BoxFuture;
use daskwire_messages::value::Outcome;
use daskwire_messages::{RemoteError, Value};

use super::arguments::{Arguments, FromArguments};
use super::signature::Signature;

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
    is_async: bool,
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
    /// of the same name. With a [`Signature`], the positional arguments are those of its
    /// parameters, in their order, and the keyword arguments all others.
    #[must_use]
    pub fn with(
        mut self,
        signature: impl Into<Signature>,
        function: impl Fn(Arguments) -> Result<Value, RemoteError> + Send + Sync + 'static,
    ) -> Self {
        let Signature { name, parameters } = signature.into();
        let call: Arc<Call> = if parameters.is_empty() {
            Arc::new(function)
        } else {
            let parameters = parameters.into();
            Arc::new(move |arguments: Arguments| function(arguments.assign(&parameters)?))
        };
        let registered = Registered {
            call,
            is_quick: false,
            is_async: false,
        };
        self.registered.insert(name, registered);
        self
    }

    /// Adds a function with converted arguments: a closure of up to eight arguments that
    /// [`Value`] converts into, or others of [`FromArguments`], such as a
    /// [`Context`](super::Context). It returns a type with
    /// [`IntoValue`](daskwire_messages::value::IntoValue), for which a conversion by `From` is not
    /// enough, or a [`Result`] of it with any error. It replaces a function of the same name.
    ///
    /// With a [`Signature`] in place of a name, it also takes keyword arguments, and has
    /// defaults.
    ///
    /// An error is raised in Python as a `RuntimeError` with its message, and
    /// its sources as the causes; conversion errors as `TypeError` or
    /// `ValueError`, I/O errors as `OSError`, and a [`RemoteError`] as the exception that it
    /// describes.
    ///
    /// ```
    /// # use daskwire_peer::worker::{Context, Functions, Signature};
    /// # use daskwire_peer::{Array, RemoteError};
    /// let functions = Functions::new()
    ///     .function("add", |a: f64, b: f64| a + b)
    ///     .function("mean", |array: Array| -> Result<f64, RemoteError> {
    ///         let all = array.to_vec::<f64>()?;
    ///         Ok(all.iter().sum::<f64>() / all.len() as f64)
    ///     })
    ///     .function("parse", |text: String| text.parse::<i64>())
    ///     // f(text, prefix="- ")
    ///     .function(
    ///         Signature::new("item").required("text").optional("prefix", "- "),
    ///         |text: String, prefix: String| prefix + &text,
    ///     )
    ///     .function("where", |context: Context| context.worker().to_owned());
    /// ```
    ///
    /// # Panics
    ///
    /// If the signature has parameters, but not as many as the function.
    #[must_use]
    #[track_caller]
    pub fn function<M>(self, signature: impl Into<Signature>, function: impl Function<M>) -> Self {
        let signature = signature.into();
        check_count(&signature, count_of(&function));
        self.with(signature, move |arguments| function.call(arguments))
    }

    /// Adds an async function, with arguments and results as those of
    /// [`function`](Self::function). It runs as a task of the worker's executor, while the thread of
    /// the task waits: as many of them run at once as the worker has threads. If the task is
    /// cancelled, the future is dropped, see [`Cancellation`](super::Cancellation).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use daskwire_peer::worker::{Functions, Signature};
    /// async fn later(value: f64, seconds: f64) -> f64 {
    ///     tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    ///     value
    /// }
    ///
    /// let signature = Signature::new("later").required("value").optional("seconds", 0.1);
    /// let functions = Functions::new()
    ///     .async_function(signature, later)
    ///     .async_function("none", || async move { None::<i64> });
    /// ```
    ///
    /// # Panics
    ///
    /// If the signature has parameters, but not as many as the function.
    #[must_use]
    #[track_caller]
    pub fn async_function<M>(
        self,
        signature: impl Into<Signature>,
        function: impl AsyncFunction<M>,
    ) -> Self {
        let signature = signature.into();
        check_count(&signature, async_count_of(&function));
        let name = signature.name.clone();
        let mut functions = self.with(signature, move |arguments| {
            let context = arguments.context();
            context.run(function.call(arguments)?)
        });
        if let Some(registered) = functions.registered.get_mut(&name) {
            registered.is_async = true;
        }
        functions
    }

    /// Declares that a function takes only microseconds if all its arguments are single
    /// numbers. Such calls run on the thread that receives the task, which saves two
    /// context switches. It has no effect on an async function: the thread may be the one that its
    /// future needs.
    #[must_use]
    pub fn quick(mut self, name: &str) -> Self {
        if let Some(registered) = self.registered.get_mut(name) {
            registered.is_quick = !registered.is_async;
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
                is_async: registered.is_async,
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

    /// Calls a function, on this thread. Returns `None` if there is no function of that name.
    ///
    /// An async function runs in a tokio runtime of its own, on another thread, while this thread
    /// waits: it must not wait for tasks of a runtime that this thread drives.
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
        let mut arguments = arguments;
        name.clone_into(&mut arguments.function);
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

#[track_caller]
fn check_count(signature: &Signature, count: usize) {
    let Signature { name, parameters } = signature;
    assert!(
        parameters.is_empty() || parameters.len() == count,
        "the signature of {name} names {} parameters, but the function has {count}",
        parameters.len()
    );
}

const fn count_of<M, F: Function<M>>(_: &F) -> usize {
    F::PARAMETER_COUNT
}

const fn async_count_of<M, F: AsyncFunction<M>>(_: &F) -> usize {
    F::PARAMETER_COUNT
}

/// A closure that [`Functions::function`] takes, with up to eight arguments. `M`
/// only distinguishes the implementations.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a function of a worker",
    note = "it is a closure or a function of up to eight arguments, `Send`, `Sync` and `'static`; write the \
            types of a closure's arguments",
    note = "its arguments have `FromArguments`, as types that `Value` converts into do: numbers, `String`, \
            `Vec<f64>`, `Array`, `Option` of these, `Serde<T>`, `Context`, `Keywords<T>`",
    note = "it returns a type with `IntoValue`, or a `Result` of it whose error converts into \
            `Box<dyn Error + Send + Sync>`"
)]
pub trait Function<M>: Send + Sync + 'static {
    /// The number of positional parameters.
    const PARAMETER_COUNT: usize;

    /// Converts the arguments and calls the closure.
    ///
    /// # Errors
    ///
    /// A `TypeError` if the arguments do not convert, or the closure's error.
    fn call(&self, arguments: Arguments) -> Result<Value, RemoteError>;
}

/// A closure that [`Functions::async_function`] takes, with up to eight arguments. `M` only
/// distinguishes the implementations.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an async function of a worker",
    note = "it is an `async fn` or a closure with an `async move` block, of up to eight arguments; both and the \
            future are `Send` and `'static`; write the types of a closure's arguments",
    note = "its arguments have `FromArguments`, as types that `Value` converts into do: numbers, `String`, \
            `Vec<f64>`, `Array`, `Option` of these, `Serde<T>`, `Context`, `Keywords<T>`",
    note = "the output of its future has `IntoValue`, or is a `Result` of it whose error converts into \
            `Box<dyn Error + Send + Sync>`"
)]
pub trait AsyncFunction<M>: Send + Sync + 'static {
    /// The number of positional parameters.
    const PARAMETER_COUNT: usize;

    /// Converts the arguments and calls the closure.
    ///
    /// # Errors
    ///
    /// A `TypeError` if the arguments do not convert. That of the closure is the output of the
    /// future.
    fn call(
        &self,
        arguments: Arguments,
    ) -> Result<BoxFuture<'static, Result<Value, RemoteError>>, RemoteError>;
}

macro_rules! functions {
    ($(($($type:ident)*))*) => {$(
        impl<F, R, $($type,)*> Function<fn($($type,)*) -> R> for F
        where
            F: Fn($($type,)*) -> R + Send + Sync + 'static,
            R: Outcome,
            $($type: FromArguments,)*
        {
            const PARAMETER_COUNT: usize = 0 $(+ $type::PARAMETER_COUNT)*;

            fn call(&self, arguments: Arguments) -> Result<Value, RemoteError> {
                functions!(@extract arguments $($type)*);
                self($($type,)*).into_result().map_err(RemoteError::of_error)
            }
        }

        impl<F, R, $($type,)*> AsyncFunction<fn($($type,)*) -> R> for F
        where
            F: Fn($($type,)*) -> R + Send + Sync + 'static,
            R: Future<Output: Outcome> + Send + 'static,
            $($type: FromArguments,)*
        {
            const PARAMETER_COUNT: usize = 0 $(+ $type::PARAMETER_COUNT)*;

            fn call(
                &self,
                arguments: Arguments,
            ) -> Result<BoxFuture<'static, Result<Value, RemoteError>>, RemoteError> {
                functions!(@extract arguments $($type)*);
                let future = self($($type,)*);
                Ok(Box::pin(async move {
                    future.await.into_result().map_err(RemoteError::of_error)
                }))
            }
        }
    )*};
    (@extract $arguments:ident $($type:ident)*) => {
        let count = 0 $(+ $type::PARAMETER_COUNT)*;
        let takes_keywords = false $(|| $type::TAKES_KEYWORDS)*;
        $arguments.check(count, takes_keywords)?;
        let mut _index = 0;
        $(
            #[expect(non_snake_case, reason = "named like the types")]
            let $type = $type::from_arguments(&$arguments, _index)?;
            _index += $type::PARAMETER_COUNT;
        )*
    };
}

functions! {
    ()
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E G)
    (A B C D E G H)
    (A B C D E G H I)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arg;
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

    fn scale() -> Functions {
        let signature = Signature::new("scale")
            .required("x")
            .optional("by", 2.0)
            .keyword_only("plus", 0);
        Functions::new().function(signature, |x: f64, by: f64, plus: i64| x * by + plus as f64)
    }

    #[test]
    fn arguments_are_positional_or_keyword_arguments() {
        let functions = scale();
        for (positional, keywords, expected) in [
            (&[1][..], &[][..], Ok(2.0)),
            (&[1, 3], &[], Ok(3.0)),
            (&[1], &[("by", 3)], Ok(3.0)),
            (&[], &[("by", 3), ("x", 2)], Ok(6.0)),
            (&[1], &[("plus", 5)], Ok(7.0)),
            (
                &[1],
                &[("x", 2)],
                Err("scale() got multiple values for argument 'x'"),
            ),
            (
                &[],
                &[("by", 2)],
                Err("scale() missing 1 required argument: 'x'"),
            ),
            (
                &[1, 2, 3],
                &[],
                Err("scale() takes from 1 to 2 positional arguments but 3 were given"),
            ),
            (
                &[1],
                &[("bye", 2)],
                Err("scale() got an unexpected keyword argument 'bye'"),
            ),
        ] {
            let arguments: Arguments = positional.iter().copied().map(Value::from).collect();
            let arguments = keywords.iter().fold(arguments, |arguments, (name, value)| {
                arguments.with_keyword(name, Value::from(*value))
            });
            let result = functions.call("scale", arguments).expect("registered");
            let result = result.map_err(|error| error.message);
            assert_eq!(result, expected.map(Value::from).map_err(str::to_owned));
        }
        let arguments = Arguments::default().with_keyword("x", "one".into());
        let error = functions.call("scale", arguments).expect("registered");
        let error = error.expect_err("no number").message;
        assert_eq!(error, "scale() argument 'x': expected f64, found str");
    }

    #[test]
    fn a_default_that_does_not_convert_fails_calls_without_the_argument() {
        struct Unconvertible;

        impl daskwire_messages::value::IntoValue for Unconvertible {
            fn into_value(self) -> Result<Value, Box<dyn core::error::Error + Send + Sync>> {
                Err("it has no form".into())
            }
        }

        let signature = Signature::new("f").optional("x", Unconvertible);
        let functions = Functions::new().function(signature, |x: i64| x);
        let given = [Value::from(1)].into_iter().collect();
        assert_eq!(functions.call("f", given), Some(Ok(1.into())));
        let error = functions.call("f", Arguments::default());
        let error = error.expect("registered").expect_err("no default");
        assert_eq!(
            error.message,
            "f() argument 'x': the value cannot be converted: it has no form"
        );
    }

    #[test]
    fn keywords_take_what_no_parameter_has_a_name_for() {
        use crate::Keywords;
        use std::collections::BTreeMap;

        let signature = Signature::new("f").required("x");
        let functions = Functions::new().function(
            signature,
            |x: i64, Keywords(rest): Keywords<BTreeMap<String, i64>>| x + rest["y"] * 10,
        );
        let arguments = [Value::from(1)].into_iter().collect::<Arguments>();
        let call = |value: Value| functions.call("f", arguments.clone().with_keyword("y", value));
        assert_eq!(call(2.into()), Some(Ok(21.into())));
        let error = call("a".into())
            .expect("registered")
            .expect_err("no number");
        assert_eq!(
            error.message,
            "f() keyword arguments: expected i64, found str at ['y']"
        );
    }

    #[test]
    #[should_panic(expected = "the signature of f names 1 parameters, but the function has 2")]
    fn a_signature_names_all_parameters() {
        let _ =
            Functions::new().function(Signature::new("f").required("x"), |x: i64, y: i64| x + y);
    }

    #[test]
    fn async_functions_run_to_their_end_without_a_worker() {
        let functions = Functions::new()
            .async_function(
                "add",
                |context: crate::Context, a: i64, b: i64| async move {
                    assert_eq!(context.worker(), "");
                    a + b
                },
            )
            .async_function("fail", || async move { "x".parse::<i64>() })
            .async_function("sleep", |n: i64| async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                n
            })
            .async_function("panic", || async move {
                if true {
                    panic!("as asked for");
                }
            });
        assert_eq!(call(&functions, "add", &[1.into(), 2.into()]), Ok(3.into()));
        let invalid = "RuntimeError: invalid digit found in string";
        assert_eq!(call(&functions, "fail", &[]), Err(invalid.to_owned()));
        let panic = "RuntimeError: the function panic panicked: as asked for";
        assert_eq!(call(&functions, "panic", &[]), Err(panic.to_owned()));
        assert_eq!(call(&functions, "sleep", &[1.into()]), Ok(1.into()));
        // A runtime whose only thread waits for the function.
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let result = runtime.block_on(async { call(&functions, "sleep", &[2.into()]) });
            sender.send(result)
        });
        let result = receiver.recv_timeout(Duration::from_secs(20));
        assert_eq!(result.expect("a result in time"), Ok(2.into()));
    }
}
