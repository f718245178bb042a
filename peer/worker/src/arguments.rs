//! The arguments of calls.

use core::fmt;
use std::sync::Arc;

use daskwire_messages::brief::bounded;
use daskwire_messages::{RemoteError, Value};
use daskwire_store::Opened;

use super::context::{Context, Execution};
use super::signature::Parameter;

/// The arguments of a call.
#[derive(Clone, Default)]
pub struct Arguments {
    pub(super) function: String,
    positional: Vec<Arg>,
    keywords: Vec<(String, Arg)>,
    /// The parameters of a function that has names for them.
    parameters: Option<Arc<[Parameter]>>,
    /// The task that calls the function.
    execution: Option<Arc<Execution>>,
}

impl fmt::Debug for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bounded(f, |f| {
            f.debug_struct("Arguments")
                .field("function", &self.function)
                .field("positional", &self.positional)
                .field("keywords", &self.keywords)
                .finish_non_exhaustive()
        })
    }
}

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
            parameters: None,
            execution: None,
        }
    }

    /// Sets the task that calls the function.
    pub(super) fn of(mut self, execution: &Arc<Execution>) -> Self {
        self.execution = Some(Arc::clone(execution));
        self
    }

    /// The task that calls the function.
    pub fn context(&self) -> Context {
        let execution = self.execution.as_ref();
        execution.map_or_else(Context::default, |execution| execution.context())
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

    /// Converts a positional argument to another type. If the function has a [`Signature`], these
    /// are the arguments of its parameters, in their order, however they were given.
    ///
    /// # Errors
    ///
    /// A Python `TypeError` if the argument is missing or of another type.
    ///
    /// [`Signature`]: super::Signature
    pub fn to<T>(&self, index: usize) -> Result<T, RemoteError>
    where
        T: TryFrom<Value, Error: fmt::Display>,
    {
        let Some(value) = self.get(index) else {
            return Err(self.wrong(&format!("missing {}", self.describe(index))));
        };
        T::try_from(value.clone())
            .map_err(|error| self.wrong(&format!("{}: {error}", self.describe(index))))
    }

    /// Names an argument in an error.
    fn describe(&self, index: usize) -> String {
        let parameters = self.parameters.as_deref().unwrap_or_default();
        match parameters.get(index) {
            Some(parameter) => format!("argument '{}'", parameter.name),
            None => format!("argument {}", index.saturating_add(1)),
        }
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

    /// Checks the number of positional arguments, and that there are no keyword arguments unless
    /// the function takes them.
    pub(super) fn check(&self, count: usize, takes_keywords: bool) -> Result<(), RemoteError> {
        match takes_keywords {
            true if self.len() == count => Ok(()),
            true => Err(self.count_error(count, count)),
            false => self.exactly(count),
        }
    }

    pub(super) fn between(&self, min: usize, max: usize) -> Result<(), RemoteError> {
        if let Some((name, _)) = self.keywords.first() {
            return Err(self.wrong(&format!("got an unexpected keyword argument '{name}'")));
        }
        if (min..=max).contains(&self.len()) {
            return Ok(());
        }
        Err(self.count_error(min, max))
    }

    fn count_error(&self, min: usize, max: usize) -> RemoteError {
        let found = self.len();
        let wanted = if min == max {
            format!("takes {min}")
        } else {
            format!("takes from {min} to {max}")
        };
        let plural = if max == 1 { "" } else { "s" };
        let were = if found == 1 { "was" } else { "were" };
        self.wrong(&format!(
            "{wanted} positional argument{plural} but {found} {were} given"
        ))
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

    /// Assigns the arguments to named parameters, and adds their defaults. Further keyword
    /// arguments are left as they are.
    ///
    /// # Errors
    ///
    /// A Python `TypeError` if there are too many positional arguments, if the argument of a
    /// required parameter is missing, or if one is given twice.
    pub(super) fn assign(mut self, parameters: &Arc<[Parameter]>) -> Result<Self, RemoteError> {
        let by_position = parameters.iter().take_while(|it| !it.is_keyword_only);
        let required = by_position.clone().filter(|it| it.default.is_none());
        let (min, max) = (required.count(), by_position.count());
        if self.positional.len() > max {
            return Err(self.count_error(min, max));
        }
        self.parameters = Some(Arc::clone(parameters));
        let mut given = core::mem::take(&mut self.positional).into_iter();
        let mut missing = Vec::new();
        for parameter in parameters.iter() {
            let positional = given.next();
            let keyword = self
                .keywords
                .iter()
                .position(|(name, _)| **name == *parameter.name);
            let keyword = keyword.map(|index| self.keywords.remove(index).1);
            let name = &parameter.name;
            let argument = match (positional, keyword) {
                (Some(_), Some(_)) => {
                    return Err(self.wrong(&format!("got multiple values for argument '{name}'")));
                }
                (Some(argument), None) | (None, Some(argument)) => argument,
                (None, None) => match &parameter.default {
                    Some(Ok(default)) => Arg::Owned(default.clone()),
                    Some(Err(error)) => {
                        return Err(self.wrong(&format!("argument '{name}': {error}")));
                    }
                    None => {
                        missing.push(format!("'{name}'"));
                        continue;
                    }
                },
            };
            self.positional.push(argument);
        }
        if missing.is_empty() {
            return Ok(self);
        }
        let plural = if missing.len() == 1 { "" } else { "s" };
        Err(self.wrong(&format!(
            "missing {} required argument{plural}: {}",
            missing.len(),
            missing.join(", ")
        )))
    }

    /// The keyword arguments that no parameter has taken, as a dictionary.
    fn rest(&self) -> Value {
        let keywords = self.keywords().map(|(name, value)| (name, value.clone()));
        Value::dict(keywords)
    }

    /// Returns a `TypeError` that names the function.
    pub(super) fn wrong(&self, what: &str) -> RemoteError {
        RemoteError::new("TypeError", &format!("{}() {what}", self.function))
    }
}

/// An argument of a function for [`Functions::function`](super::Functions::function): a type that
/// [`Value`] converts into, which takes the next argument of the call; [`Context`], which takes
/// none; or [`Keywords`] with all that no parameter has a name for.
///
/// Implement it for what functions compute from the whole call:
///
/// ```
/// use daskwire_peer::RemoteError;
/// use daskwire_peer::worker::{Arguments, FromArguments, Functions};
///
/// /// A seed that differs between the tasks of a computation.
/// struct Seed(u64);
///
/// impl FromArguments for Seed {
///     const PARAMETER_COUNT: usize = 0;
///
///     fn from_arguments(arguments: &Arguments, _: usize) -> Result<Self, RemoteError> {
///         let key = arguments.context().key().to_string();
///         Ok(Seed(key.bytes().fold(7, |seed, byte| seed.wrapping_mul(31) ^ u64::from(byte))))
///     }
/// }
///
/// let functions = Functions::new().function("first", |seed: Seed, n: u64| seed.0.wrapping_add(n));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a worker's function",
    note = "arguments are types that `Value` converts into, such as numbers, `String`, `Vec<f64>`, \
            `Array` or `Option` of these, with features those of other crates and `Serde<T>`; \
            `Context`; and `Keywords<T>`",
    note = "implement `TryFrom<Value>` for a type of your own, with an error that is `Display`"
)]
pub trait FromArguments: Sized {
    /// The number of positional parameters that it takes.
    const PARAMETER_COUNT: usize;

    /// Whether it takes keyword arguments that are not those of named parameters. A function
    /// without any such argument refuses them.
    const TAKES_KEYWORDS: bool = false;

    /// Takes what it needs of a call. `index` is that of its first positional parameter.
    ///
    /// # Errors
    ///
    /// An exception that the task raises, such as a `TypeError`.
    fn from_arguments(arguments: &Arguments, index: usize) -> Result<Self, RemoteError>;
}

#[diagnostic::do_not_recommend]
impl<T: TryFrom<Value, Error: fmt::Display>> FromArguments for T {
    const PARAMETER_COUNT: usize = 1;

    fn from_arguments(arguments: &Arguments, index: usize) -> Result<Self, RemoteError> {
        arguments.to(index)
    }
}

impl FromArguments for Context {
    const PARAMETER_COUNT: usize = 0;

    fn from_arguments(arguments: &Arguments, _: usize) -> Result<Self, RemoteError> {
        Ok(arguments.context())
    }
}

/// The keyword arguments that no parameter has a name for, as `**kwargs` in Python: a map, or, with
/// the feature `serde`, a struct with names and defaults, `Keywords<Serde<Options>>`.
///
/// ```
/// use std::collections::BTreeMap;
/// use daskwire_peer::worker::{Arguments, Functions, Keywords};
///
/// let functions = Functions::new().function("describe", |Keywords(rest): Keywords<BTreeMap<String, i64>>| {
///     rest.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
/// });
/// let arguments = Arguments::default().with_keyword("width", 2.into());
/// let result = functions.call("describe", arguments).expect("registered");
/// assert_eq!(Vec::<String>::try_from(result?)?, ["width=2"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keywords<T>(pub T);

impl<T: TryFrom<Value, Error: fmt::Display>> FromArguments for Keywords<T> {
    const PARAMETER_COUNT: usize = 0;
    const TAKES_KEYWORDS: bool = true;

    fn from_arguments(arguments: &Arguments, _: usize) -> Result<Self, RemoteError> {
        match T::try_from(arguments.rest()) {
            Ok(keywords) => Ok(Self(keywords)),
            Err(error) => Err(arguments.wrong(&format!("keyword arguments: {error}"))),
        }
    }
}
