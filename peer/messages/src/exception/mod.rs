//! Exceptions of peers, and exceptions in pickles, as Python's `str()` shows them.

mod class;
mod remote;
mod text;
mod write;

use core::cell::Cell;
use core::fmt::{self, Write as _};

use bytes::Bytes;
use daskwire_numpy::known::{self, Known, KnownValue, convert};
use daskwire_pickle::tree::{self, Node, Registry, Tree, Value as Content};

use crate::value::{self, TreeReader};
use class::{Class, Kind, is_builtin_type, kind, kind_of};
use text::{Limited, SHORTENED, code_points, write_quoted, write_string};

pub use remote::RemoteError;
pub use remote::exception;
pub use remote::{killed_worker, no_valid_worker, no_worker};

/// Maximum number of causes that are read, and of groups within groups.
const CAUSES: usize = 16;

/// Maximum number of members of groups that are read.
const MEMBERS: usize = 64;

/// Maximum number of notes of an exception that are read.
const NOTES: usize = 64;

/// Reads exceptions of one pickle. No code of their classes is executed: messages are
/// those of the builtin class that a class extends, as far as the pickle shows it.
struct ExceptionReader<'b> {
    values: TreeReader<'b>,
    /// Bytes of strings that may still be written: in proportion to the pickle, because
    /// its shared parts are written at each occurrence.
    left: Cell<usize>,
    /// Members of groups that may still be read.
    members: Cell<usize>,
    /// Whether a part was shown in another form than that of Python.
    is_approximate: Cell<bool>,
}

/// The parts of an exception in a pickle.
struct Raised<'t, 'p> {
    class: Node<'t, 'p>,
    arguments: Vec<Node<'t, 'p>>,
    /// The attributes that `tblib` sets, including `args` and those of an `OSError`.
    attributes: Option<Node<'t, 'p>>,
    /// The attributes that the class or a program sets.
    dictionary: Option<Node<'t, 'p>>,
    notes: Option<Node<'t, 'p>>,
    cause: Option<Node<'t, 'p>>,
    traceback: Option<Node<'t, 'p>>,
}

/// The maximum nesting of arguments that are shown.
const DEPTH: usize = value::MAX_DEPTH;

impl<'b> ExceptionReader<'b> {
    fn new(pickle: &'b Bytes, buffers: &'b [Bytes]) -> Self {
        let len = pickle.len().saturating_mul(4).saturating_add(1 << 16);
        let mut values = TreeReader::new(pickle, buffers);
        values.has_all_classes = true;
        Self {
            values,
            left: Cell::new(len),
            members: Cell::new(MEMBERS),
            is_approximate: Cell::new(false),
        }
    }

    /// Whether a part of a message was shown in another form than that of Python.
    const fn is_approximate(&self) -> bool {
        self.is_approximate.get()
    }

    /// Reads an exception with at most `causes` causes.
    fn exception(&self, node: Node<'_, '_>, causes: usize) -> RemoteError {
        let Some(raised) = Raised::of(node) else {
            self.is_approximate.set(true);
            return RemoteError::new("Exception", &self.written(|to| write!(to, "{node}")));
        };
        let class = self.class(raised.class, DEPTH);
        let is_group = class.kind == Kind::Group;
        let causes_of_cause = causes.checked_sub(1);
        let read = |node| Some(Box::new(self.exception(node, causes_of_cause?)));
        let mut exceptions = Vec::new();
        if is_group && let (Some(left), Some(members)) = (causes_of_cause, raised.arguments.get(1))
        {
            for member in members.items() {
                let Some(rest) = self.members.get().checked_sub(1) else {
                    break;
                };
                self.members.set(rest);
                exceptions.push(self.exception(member, left));
            }
        }
        let notes = raised.notes.into_iter().flat_map(Node::items);
        let notes = notes.map(|note| self.written(|to| self.write_str(to, note, DEPTH)));
        RemoteError {
            message: self.written(|to| self.write_message(to, &raised, class.kind, DEPTH)),
            traceback: raised
                .traceback
                .map(|node| self.traceback(node))
                .unwrap_or_default(),
            notes: notes.take(NOTES).collect(),
            exceptions: exceptions.into(),
            cause: raised.cause.and_then(read),
            class: class.shown(),
            serialized: None,
        }
    }

    /// The frames of a traceback; empty if it has another form than that of `tblib`.
    fn traceback(&self, node: Node<'_, '_>) -> String {
        let Ok(KnownValue::Traceback(frames)) = convert(tracebacks(), node) else {
            return String::new();
        };
        self.written(|to| {
            for frame in frames {
                writeln!(to, "  {frame}")?;
            }
            Ok(())
        })
    }

    /// Writes a string until the limit is reached, then [`SHORTENED`].
    fn written(&self, write: impl FnOnce(&mut Limited<'_>) -> fmt::Result) -> String {
        let mut to = Limited {
            string: String::new(),
            left: &self.left,
        };
        if write(&mut to).is_err() {
            to.string.push_str(SHORTENED);
        }
        to.string
    }

    /// The class that a node names or defines.
    fn class(&self, node: Node<'_, '_>, depth: usize) -> Class {
        let string = |string: tree::Str<'_>| self.written(|to| write_string(to, string));
        let local = match node.value() {
            Content::Call {
                callable,
                arguments,
            } => Some((callable, arguments)),
            _ => None,
        };
        match (node.as_global(), local) {
            (Some(global), _) => Class {
                kind: kind(&global),
                module: string(global.module),
                name: string(global.name),
            },
            (None, Some((callable, arguments))) if is_named(callable, "_make_skeleton_class") => {
                let parts: Vec<Node<'_, '_>> = arguments.items().take(4).collect();
                let part = |index: usize| parts.get(index).copied();
                let text = |node: Option<Node<'_, '_>>| {
                    let text = node.map(|node| self.written(|to| self.write_str(to, node, 0)));
                    text.unwrap_or_default()
                };
                Class {
                    name: text(part(1)),
                    module: text(part(3).and_then(|keywords| keywords.get("__module__"))),
                    kind: match part(2).zip(depth.checked_sub(1)) {
                        Some((bases, depth)) if !self.has_own_message(node) => {
                            let mut kinds = bases.items().map(|base| self.class(base, depth).kind);
                            let found = kinds.find(|kind| *kind != Kind::Other);
                            found.unwrap_or(Kind::Other)
                        }
                        _ => Kind::Other,
                    },
                }
            }
            // `partial(CLASS)`, which `__reduce__` of a class with keyword arguments returns.
            (None, Some((callable, arguments)))
                if is_named(callable, "partial")
                    && depth > 0
                    && arguments.items().next().is_some() =>
            {
                let wrapped = arguments.items().next().unwrap_or(callable);
                self.class(wrapped, depth - 1)
            }
            (None, Some((callable, arguments))) if imported(callable, arguments).is_some() => {
                let (module, name) = imported(callable, arguments).unwrap_or_default();
                let part = |part: &str| self.written(|to| to.write_str(part));
                Class {
                    kind: kind_of(module, name),
                    module: part(module),
                    name: part(name),
                }
            }
            _ => Class {
                module: String::new(),
                name: self.written(|to| to.write_str(&value::describe(node))),
                kind: Kind::Other,
            },
        }
    }

    /// Whether a class that is defined in the pickle has a method `__str__`, which cannot be
    /// called.
    fn has_own_message(&self, class: Node<'_, '_>) -> bool {
        let tree = class.tree();
        // The search visits all values, once for each class. Without a budget, the message is
        // not that of any base.
        if self.values.budget.spend(tree.value_count()).is_err() {
            return true;
        }
        // `_class_setstate(CLASS, (ATTRIBUTES, SLOTS))`, whose result is dropped.
        tree.nodes().any(|node| match node.value() {
            Content::Call {
                callable,
                arguments,
            } if is_named(callable, "_class_setstate") => {
                let mut arguments = arguments.items();
                let (defined, state) = (arguments.next(), arguments.next());
                let attributes = state.and_then(|state| state.items().next());
                defined.is_some_and(|defined| defined.is_same(class))
                    && attributes.is_some_and(|attributes| attributes.get("__str__").is_some())
            }
            _ => false,
        })
    }

    fn write_message(
        &self,
        to: &mut Limited<'_>,
        raised: &Raised<'_, '_>,
        kind: Kind,
        depth: usize,
    ) -> fmt::Result {
        let is_os = raised.attribute("errno").is_some() || raised.attribute("strerror").is_some();
        let arguments = &raised.arguments[..];
        match (kind, arguments) {
            (Kind::KilledWorker, [task, worker, allowed_failures]) => {
                let count = allowed_failures.as_u64().unwrap_or_default();
                let address = state(*worker).and_then(|state| state.get("address"));
                let address = address.and_then(Node::as_str).unwrap_or("unknown");
                to.write_str("Attempted to run task ")?;
                self.write_repr(to, *task, depth)?;
                write!(
                    to,
                    " on {} different workers, but all those workers died while running it. The \
                     last worker that attempt to run the task was {address}. Inspecting worker \
                     logs is often a good next step to diagnose what went wrong. For more \
                     information see https://distributed.dask.org/en/stable/killed.html.",
                    count.saturating_add(1)
                )
            }
            (Kind::Json, [message, document, offset]) => {
                self.write_str(to, *message, depth)?;
                let document = document.as_str().unwrap_or_default();
                let offset = usize::try_from(offset.as_u64().unwrap_or_default());
                let offset = offset.unwrap_or(usize::MAX);
                let end = document.char_indices().nth(offset);
                let before = document.get(..end.map_or(document.len(), |(end, _)| end));
                let before = before.unwrap_or_default();
                let line = before.matches('\n').count().saturating_add(1);
                let column = before.chars().rev().take_while(|it| *it != '\n').count();
                let column = column.saturating_add(1);
                write!(to, ": line {line} column {column} (char {offset})")
            }
            (Kind::CalledProcess, _) if raised.status().is_some_and(|status| status > 0) => {
                to.write_str("Command '")?;
                if let Some(command) = raised.dictionary.and_then(|it| it.get("cmd")) {
                    self.write_str(to, command, depth)?;
                }
                let status = raised.status().unwrap_or_default();
                write!(to, "' returned non-zero exit status {status}.")
            }
            (Kind::Ssl, [_, reason, ..]) if matches!(reason.value(), Content::Str(_)) => {
                self.write_str(to, *reason, depth)
            }
            (Kind::Ssl, _) => self.write_arguments(to, arguments, depth),
            (Kind::Os | Kind::BlockingIo, _) => self.write_os_error(to, raised, kind, depth),
            _ if is_os => self.write_os_error(to, raised, Kind::Os, depth),
            (Kind::Key, [key]) => self.write_repr(to, *key, depth),
            (Kind::Syntax, _) => self.write_syntax_error(to, arguments, depth),
            (Kind::UnicodeEncode | Kind::UnicodeDecode, [encoding, object, start, end, reason]) => {
                let what = [
                    Some(*encoding),
                    Some(*object),
                    Some(*start),
                    Some(*end),
                    Some(*reason),
                ];
                self.write_unicode_error(to, kind, what, depth)
            }
            (Kind::UnicodeTranslate, [object, start, end, reason]) => {
                let what = [None, Some(*object), Some(*start), Some(*end), Some(*reason)];
                self.write_unicode_error(to, kind, what, depth)
            }
            (Kind::Group, [message, members]) => {
                self.write_str(to, *message, depth)?;
                let count = members.items().count();
                let plural = if count == 1 { "" } else { "s" };
                write!(to, " ({count} sub-exception{plural})")
            }
            _ => self.write_arguments(to, arguments, depth),
        }
    }

    /// Writes the message of `BaseException`.
    fn write_arguments(
        &self,
        to: &mut Limited<'_>,
        arguments: &[Node<'_, '_>],
        depth: usize,
    ) -> fmt::Result {
        match arguments {
            [] => Ok(()),
            [one] => self.write_str(to, *one, depth),
            many => self.write_items(to, ["(", ")"], many.iter().copied(), depth),
        }
    }

    fn write_os_error(
        &self,
        to: &mut Limited<'_>,
        raised: &Raised<'_, '_>,
        kind: Kind,
        depth: usize,
    ) -> fmt::Result {
        let attribute = |name| raised.attribute(name);
        let [mut errno, mut reason, mut file, mut second] =
            ["errno", "strerror", "filename", "filename2"].map(attribute);
        let arguments = &raised.arguments;
        let is_unset = errno.is_none() && reason.is_none() && file.is_none();
        if is_unset && (2..=5).contains(&arguments.len()) {
            let argument = |index: usize| arguments.get(index).copied();
            (errno, reason) = (argument(0), argument(1));
            // The third argument of this class may be a number of characters.
            let is_count = |node: &Node<'_, '_>| {
                kind == Kind::BlockingIo && matches!(node.value(), Content::Int(_))
            };
            file = argument(2).filter(|node| !node.is_none() && !is_count(node));
            second = argument(4).filter(|node| !node.is_none());
        }
        if file.is_none() && (errno.is_none() || reason.is_none()) {
            return self.write_arguments(to, arguments, depth);
        }
        let mut part = |start: &str, part: Option<Node<'_, '_>>| {
            to.write_str(start)?;
            match part {
                Some(part) => self.write_str(to, part, depth),
                None => to.write_str("None"),
            }
        };
        part("[Errno ", errno)?;
        part("] ", reason)?;
        let files = file.into_iter().chain(file.and(second));
        for (file, separator) in files.zip([": ", " -> "]) {
            to.write_str(separator)?;
            self.write_repr(to, file, depth)?;
        }
        Ok(())
    }

    fn write_syntax_error(
        &self,
        to: &mut Limited<'_>,
        arguments: &[Node<'_, '_>],
        depth: usize,
    ) -> fmt::Result {
        let Some(message) = arguments.first() else {
            return to.write_str("None");
        };
        self.write_str(to, *message, depth)?;
        let mut details = match arguments {
            [_, details] => details.items(),
            _ => return Ok(()),
        };
        let (file, line) = (details.next(), details.next());
        let file = file.and_then(Node::as_str);
        let file = file.map(|file| file.rsplit_once('/').map_or(file, |(_, name)| name));
        match (file, line.and_then(Node::as_i64)) {
            (Some(file), Some(line)) => write!(to, " ({file}, line {line})"),
            (Some(file), None) => write!(to, " ({file})"),
            (None, Some(line)) => write!(to, " (line {line})"),
            (None, None) => Ok(()),
        }
    }

    /// Writes the message of an encoding error: encoding, object, start, end and reason.
    fn write_unicode_error(
        &self,
        to: &mut Limited<'_>,
        kind: Kind,
        [encoding, object, start, end, reason]: [Option<Node<'_, '_>>; 5],
        depth: usize,
    ) -> fmt::Result {
        let number = |node: Option<Node<'_, '_>>| {
            let number = node.and_then(Node::as_u64).unwrap_or_default();
            usize::try_from(number).unwrap_or(usize::MAX)
        };
        let (start, end) = (number(start), number(end));
        if let Some(encoding) = encoding {
            to.write_str("'")?;
            self.write_str(to, encoding, depth)?;
            to.write_str("' codec ")?;
        }
        let (verb, one, many) = match kind {
            Kind::UnicodeDecode => ("can't decode", "byte", "bytes"),
            Kind::UnicodeEncode => ("can't encode", "character", "characters"),
            _ => ("can't translate", "character", "characters"),
        };
        let string = object.map(|node| match node.value() {
            Content::Str(string) => string.to_bytes(),
            _ => node.as_bytes().unwrap_or_default().into(),
        });
        let string = string.unwrap_or_default();
        let single = match kind {
            _ if end != start.saturating_add(1) => None,
            Kind::UnicodeDecode => string.get(start).map(|byte| format!("0x{byte:02x}")),
            _ => code_points(&string).nth(start).map(|code| match code {
                0..=0xff => format!("'\\x{code:02x}'"),
                0x100..=0xffff => format!("'\\u{code:04x}'"),
                _ => format!("'\\U{code:08x}'"),
            }),
        };
        match single {
            Some(single) => write!(to, "{verb} {one} {single} in position {start}: ")?,
            None => {
                let last = end.saturating_sub(1);
                write!(to, "{verb} {many} in position {start}-{last}: ")?;
            }
        }
        match reason {
            Some(reason) => self.write_str(to, reason, depth),
            None => Ok(()),
        }
    }

    /// Writes a part of an exception as `str()` formats it.
    fn write_str(&self, to: &mut Limited<'_>, node: Node<'_, '_>, depth: usize) -> fmt::Result {
        if let Content::Str(string) = node.value() {
            return write_string(to, string);
        }
        if let (Some(raised), Some(depth)) = (Raised::of_argument(node), depth.checked_sub(1)) {
            let kind = self.class(raised.class, depth).kind;
            return self.write_message(to, &raised, kind, depth);
        }
        self.write_part(to, node, depth, true)
    }

    /// Writes a part of an exception as `repr()` formats it.
    fn write_repr(&self, to: &mut Limited<'_>, node: Node<'_, '_>, depth: usize) -> fmt::Result {
        self.write_part(to, node, depth, false)
    }

    fn write_part(
        &self,
        to: &mut Limited<'_>,
        node: Node<'_, '_>,
        depth: usize,
        is_str: bool,
    ) -> fmt::Result {
        let Some(depth) = depth.checked_sub(1) else {
            return to.write_str("...");
        };
        match node.value() {
            Content::Str(string) => return write_quoted(to, &string.to_bytes()),
            Content::Tuple(items) => return self.write_items(to, ["(", ")"], items, depth),
            Content::List(items) => return self.write_items(to, ["[", "]"], items, depth),
            Content::Dict(entries) => {
                to.write_str("{")?;
                for (index, (key, value)) in entries.enumerate() {
                    to.write_str(if index == 0 { "" } else { ", " })?;
                    self.write_repr(to, key, depth)?;
                    to.write_str(": ")?;
                    self.write_repr(to, value, depth)?;
                }
                return to.write_str("}");
            }
            Content::Global(global) => {
                let class = self.class(node, 0);
                let is_class =
                    class.name.starts_with(char::is_uppercase) || is_builtin_type(&global);
                return match is_class {
                    true => write!(to, "<class '{}'>", class.qualified()),
                    false => {
                        self.is_approximate.set(true);
                        write!(to, "<function {}>", class.qualified())
                    }
                };
            }
            _ => {}
        }
        if let Some(raised) = Raised::of_argument(node) {
            let class = self.class(raised.class, depth);
            let name = class.name.rsplit_once('.');
            to.write_str(name.map_or(&*class.name, |(_, name)| name))?;
            let mut arguments = &raised.arguments[..];
            // The name of a file is no argument of the exception.
            let has_file = arguments.get(2).is_some_and(|file| !file.is_none());
            if class.kind == Kind::Os && has_file && arguments.len() <= 5 {
                arguments = arguments.get(..2).unwrap_or_default();
            }
            return match arguments {
                [one] => {
                    to.write_str("(")?;
                    self.write_repr(to, *one, depth)?;
                    to.write_str(")")
                }
                many => self.write_items(to, ["(", ")"], many.iter().copied(), depth),
            };
        }
        match self.values.value(node, depth.saturating_add(1)) {
            Ok(value) if is_str => to.write_str(&value.to_python_str()),
            Ok(value) => write!(to, "{value}"),
            Err(_) => {
                self.is_approximate.set(true);
                write!(to, "<{} object>", value::describe(node))
            }
        }
    }

    fn write_items<'t, 'p: 't>(
        &self,
        to: &mut Limited<'_>,
        [open, close]: [&str; 2],
        items: impl Iterator<Item = Node<'t, 'p>>,
        depth: usize,
    ) -> fmt::Result {
        to.write_str(open)?;
        let mut count = 0_usize;
        for item in items {
            to.write_str(if count == 0 { "" } else { ", " })?;
            self.write_repr(to, item, depth)?;
            count = count.saturating_add(1);
        }
        to.write_str(if count == 1 && open == "(" { "," } else { "" })?;
        to.write_str(close)
    }
}

impl<'t, 'p> Raised<'t, 'p> {
    /// Reads `CLASS(ARGUMENTS...)`, or one of the forms of `tblib`:
    /// `unpickle_exception(CLASS, ARGUMENTS, CAUSE, TRACEBACK, CONTEXT, IS_SUPPRESSED, NOTES)`
    /// and `unpickle_exception_with_attrs`, with attributes in the place of the arguments.
    fn of(node: Node<'t, 'p>) -> Option<Self> {
        let (callable, arguments) = match node.value() {
            Content::Call {
                callable,
                arguments,
            } => (callable, arguments),
            Content::New {
                class, arguments, ..
            } => (class, arguments),
            _ => return None,
        };
        let state = state(node);
        let of_state = |state: Option<Node<'t, 'p>>| state.and_then(|it| it.get("__notes__"));
        let called = callable.as_global();
        let is_tblib = |name| called.is_some_and(|it| it.is("tblib.pickling_support", name));
        let has_attributes = is_tblib("unpickle_exception_with_attrs");
        if !has_attributes && !is_tblib("unpickle_exception") {
            return Some(Self {
                class: callable,
                arguments: arguments.items().collect(),
                attributes: None,
                dictionary: state,
                notes: of_state(state),
                cause: state
                    .and_then(|state| state.get("__cause__"))
                    .filter(|cause| !cause.is_none()),
                traceback: None,
            });
        }
        let parts: Vec<Node<'t, 'p>> = arguments.items().take(8).collect();
        let part = |index: usize| parts.get(index).copied().filter(|node| !node.is_none());
        let attributes = part(1).filter(|_| has_attributes);
        let arguments = match attributes {
            Some(attributes) => attributes.get("args").or(part(7)),
            None => part(1),
        };
        let is_suppressed = part(5).and_then(Node::as_bool) == Some(true);
        let dictionary = attributes.and_then(|attributes| attributes.get("__dict__"));
        let dictionary = dictionary.or(state);
        Some(Self {
            class: part(0)?,
            arguments: arguments.into_iter().flat_map(Node::items).collect(),
            attributes,
            dictionary,
            notes: part(6).or(of_state(dictionary)),
            cause: part(2).or(part(4).filter(|_| !is_suppressed)),
            traceback: part(3),
        })
    }

    /// Reads an argument of an exception, if it is an exception itself, by its name.
    fn of_argument(node: Node<'t, 'p>) -> Option<Self> {
        let Content::Call {
            callable,
            arguments,
        } = node.value()
        else {
            return None;
        };
        let called = callable.as_global()?;
        let class = match called.module == *"tblib.pickling_support" {
            true => arguments.items().next()?.as_global()?,
            false => called,
        };
        let name = class.name.to_str()?;
        let endings = [
            "Error",
            "Exception",
            "ExceptionGroup",
            "Warning",
            "Interrupt",
        ];
        let is_exception = endings.iter().any(|ending| name.ends_with(ending));
        is_exception.then(|| Self::of(node)).flatten()
    }

    /// The exit status in a `CalledProcessError`.
    fn status(&self) -> Option<i64> {
        self.dictionary?.get("returncode")?.as_i64()
    }

    fn attribute(&self, name: &str) -> Option<Node<'t, 'p>> {
        self.attributes?.get(name).filter(|node| !node.is_none())
    }
}

/// The module and the name of a class that is imported if it exists, as
/// [`RemoteError::to_exception`] writes it:
/// `next(filter(..., [excepts(Exception, locate)(PATH), ...]))`.
fn imported<'p>(callable: Node<'_, 'p>, arguments: Node<'_, 'p>) -> Option<(&'p str, &'p str)> {
    let filter = arguments
        .items()
        .next()
        .filter(|_| is_named(callable, "next"))?;
    let (callable, arguments) = filter.as_call()?;
    let [_, classes] = arguments
        .exactly()
        .filter(|_| is_named(callable, "filter"))?;
    let (callable, arguments) = classes.items().next()?.as_call()?;
    let [path] = arguments.exactly()?;
    let (excepts, arguments) = callable.as_call()?;
    let [_, locate] = arguments.exactly()?;
    let is_located = is_named(excepts, "excepts") && is_named(locate, "locate");
    path.as_str()?.rsplit_once('.').filter(|_| is_located)
}

/// The state that is set after the creation of an object.
fn state<'t, 'p>(node: Node<'t, 'p>) -> Option<Node<'t, 'p>> {
    node.operations().find_map(|operation| match operation {
        tree::Operation::State(state) => Some(state.node()),
        _ => None,
    })
}

/// Whether a callable has this name in any module: those of cloudpickle differ between
/// releases.
fn is_named(callable: Node<'_, '_>, name: &str) -> bool {
    callable
        .as_global()
        .is_some_and(|global| global.name == *name)
}

fn tracebacks() -> &'static Registry<Known> {
    static NAMES: std::sync::OnceLock<Registry<Known>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| {
        let mut registry = Registry::new();
        registry.allow_all(known::EXCEPTIONS);
        registry
    })
}

/// Reads an exception that is pickled for itself.
fn of_pickle(pickle: &Bytes, buffers: &[Bytes]) -> (RemoteError, bool) {
    let Ok(tree) = Tree::with_buffers(pickle, buffers) else {
        let message = format!("b'{}'", pickle.escape_ascii());
        return (RemoteError::new("Exception", &message), true);
    };
    let reader = ExceptionReader::new(pickle, buffers);
    let error = reader.exception(tree.root(), CAUSES);
    (error, reader.is_approximate())
}
