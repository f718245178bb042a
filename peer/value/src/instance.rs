//! Instances of Python classes in pickles.

use std::sync::{Arc, OnceLock};

use daskwire_pickle::tree::{self, Node, Registry};

use super::object::{CLASSES, Class, Kind, Object, Origin};
use super::pickled::{TreeReader, describe};
use super::{Items, Value, ValueError};

fn unknown(node: Node<'_, '_>) -> ValueError {
    ValueError::Unknown {
        what: describe(node),
    }
}

fn classes() -> &'static Registry<Kind> {
    static CLASSES_BY_NAME: OnceLock<Registry<Kind>> = OnceLock::new();
    CLASSES_BY_NAME.get_or_init(|| {
        let mut registry = Registry::new();
        registry.allow_all(CLASSES);
        registry
    })
}

impl TreeReader<'_> {
    /// Reads an instance of one of the known classes, or one that is made of
    /// arguments alone, such as a named tuple.
    pub(super) fn instance(&self, node: Node<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        if let Some((kind, object)) = classes().object(node) {
            if object.keywords.is_some() || matches!(object.origin, tree::Origin::Name) {
                return Err(unknown(node));
            }
            let (Some(module), Some(name)) =
                (object.global.module.to_str(), object.global.name.to_str())
            else {
                return Err(unknown(node));
            };
            // Map the internal names of some releases of Python to the public ones.
            let module = module.strip_suffix("._local").unwrap_or(&module);
            let name = name.strip_suffix("._unpickle").unwrap_or(&name);
            let (module, name) = match (kind, name) {
                (Kind::Timestamp, _) => ("pandas", "Timestamp"),
                (Kind::Timedelta, _) => ("pandas", "Timedelta"),
                _ => (module, name),
            };
            let arguments = self.arguments(kind, &object, depth)?;
            let object = Object::of_parts(module, name, arguments);
            return Ok(Value::Object(object));
        }
        match node.value() {
            tree::Value::Call {
                callable,
                arguments,
            } => match is_zone_info(callable)
                .then(|| arguments.items().next())
                .flatten()
            {
                Some(key) => {
                    let key = self.value(key, depth)?;
                    Ok(Object::of_parts("zoneinfo", "ZoneInfo", [key].into()).into())
                }
                None => self.called(node, callable, arguments, depth),
            },
            tree::Value::New {
                class,
                arguments,
                keywords: None,
            } if node.operations().next().is_none() => {
                let class = self.class(class).ok_or_else(|| unknown(node))??;
                let tree::Value::Tuple(arguments) = arguments.value() else {
                    return Err(unknown(node));
                };
                let arguments: Items = arguments
                    .map(|argument| self.part(argument, depth))
                    .collect::<Result<_, _>>()?;
                // Without arguments, the content of the object is in a state that is
                // not understood.
                if arguments.is_empty() || class.origin == Origin::Attributes {
                    return Err(unknown(node));
                }
                Ok(Value::Object(Object::of_class(class, arguments)))
            }
            tree::Value::New {
                class,
                arguments,
                keywords: None,
            } if self.has_all_classes && arguments.items().next().is_none() => {
                self.with_attributes(node, class, depth)
            }
            _ => Err(unknown(node)),
        }
    }

    /// Reads an instance that is pickled as a call of its class. A name in lower
    /// case is that of a function, whose result is not known.
    fn called(
        &self,
        node: Node<'_, '_>,
        callable: Node<'_, '_>,
        arguments: Node<'_, '_>,
        depth: usize,
    ) -> Result<Value, ValueError> {
        let global = callable.as_global().filter(|_| self.has_all_classes);
        let global = global.ok_or_else(|| unknown(node))?;
        let (Some(module), Some(name)) = (global.module.to_str(), global.name.to_str()) else {
            return Err(unknown(node));
        };
        let short_name = name.rsplit_once('.').map_or(&*name, |(_, name)| name);
        let is_class = short_name.starts_with(char::is_uppercase);
        if !is_class || node.operations().next().is_some() {
            return Err(unknown(node));
        }
        let arguments = self.all_of(node, arguments.items(), depth)?;
        Ok(Object::of_parts(&module, &name, arguments).into())
    }

    /// The parts of an object of any class. If they are too large, the object is
    /// unknown, so that it stays unopened.
    fn all_of<'t, 'p>(
        &self,
        node: Node<'_, '_>,
        parts: impl Iterator<Item = Node<'t, 'p>>,
        depth: usize,
    ) -> Result<Items, ValueError>
    where
        'p: 't,
    {
        let parts: Result<Items, _> = parts.map(|part| self.value(part, depth)).collect();
        parts.map_err(|error| match error {
            ValueError::TooLarge => unknown(node),
            other => other,
        })
    }

    /// Reads an instance whose attributes are set after its creation, such as one of
    /// a data class.
    fn with_attributes(
        &self,
        node: Node<'_, '_>,
        class_node: Node<'_, '_>,
        depth: usize,
    ) -> Result<Value, ValueError> {
        let mut operations = node.operations();
        let state = match (operations.next(), operations.next()) {
            (Some(tree::Operation::State(state)), None) => state.node(),
            _ => return Err(unknown(node)),
        };
        let tree::Value::Dict(attributes) = state.value() else {
            return Err(unknown(node));
        };
        let mut class = self.class(class_node).ok_or_else(|| unknown(node))??;
        // The definition of a class that was sent shows whether it is a data class.
        if class.origin == Origin::Local && class.fields.is_empty() {
            return Err(unknown(node));
        }
        let names = || attributes.map(|(name, _)| name.as_str());
        let has_names = class.fields.iter().map(|name| Some(&**name)).eq(names());
        if !has_names || class.origin == Origin::New {
            let fields: Option<Vec<String>> = names().map(|name| name.map(str::to_owned)).collect();
            let made = Class {
                module: class.module.clone(),
                name: class.name.clone(),
                fields: fields.ok_or_else(|| unknown(node))?,
                origin: match class.origin {
                    Origin::Local => Origin::Local,
                    _ => Origin::Attributes,
                },
            };
            let len = made.fields.iter().map(String::len).sum();
            self.budget.spend_copy(len)?;
            class = Arc::new(made);
            // Cached, because the next instance probably has the same attributes.
            let index = class_node.index();
            self.classes.borrow_mut().insert(index, Arc::clone(&class));
        }
        if class.fields.is_empty() {
            return Err(unknown(node));
        }
        let arguments = self.all_of(node, attributes.map(|(_, value)| value), depth)?;
        Ok(Object::of_class(class, arguments).into())
    }

    /// The arguments of an instance of a known class, in the form of
    /// [`Object`]'s documentation.
    fn arguments(
        &self,
        kind: Kind,
        object: &tree::Object<'_, '_>,
        depth: usize,
    ) -> Result<Items, ValueError> {
        let node = object.node;
        if kind == Kind::DefaultDict {
            return self.default_dict(object, depth);
        }
        let mut arguments: Vec<Value> = object
            .arguments
            .map(|argument| self.value(argument, depth))
            .collect::<Result<_, _>>()?;
        if kind == Kind::OrderedDict && arguments.is_empty() {
            return Ok([self.entries(object, depth)?].into());
        }
        let mut operations = node.operations();
        let state = match (operations.next(), operations.next()) {
            (None, _) => None,
            (Some(tree::Operation::State(state)), None) => Some(state.node()),
            _ => return Err(unknown(node)),
        };
        let replaced = match (kind, arguments.as_slice()) {
            (Kind::Uuid, []) => {
                let number = state.and_then(|state| state.get("int"));
                let number = self.value(number.ok_or_else(|| unknown(node))?, depth)?;
                let number = u128::try_from(number).map_err(|_| unknown(node))?;
                let digits = format!("{number:032x}");
                let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
                let parts = parts.map(|range| digits.get(range).unwrap_or_default());
                Some(vec![Value::from(parts.join("-"))])
            }
            _ if state.is_some() => return Err(unknown(node)),
            (Kind::Date, [Value::Bytes(data)]) => date(data).map(|date| date.to_vec()),
            (Kind::Time, [Value::Bytes(data), ..]) => clock(data).map(|(clock, fold)| {
                let zone = arguments.get(1).cloned();
                with_zone(clock.to_vec(), zone, fold)
            }),
            (Kind::DateTime, [Value::Bytes(data), ..]) => date_time(data).map(|(parts, fold)| {
                let zone = arguments.get(1).cloned();
                with_zone(parts, zone, fold)
            }),
            (Kind::Fraction, [Value::Str(string)]) => {
                let (numerator, denominator) = string.split_once('/').unwrap_or((string, "1"));
                let part = |part: &str| Some(Value::Int(part.parse().ok()?));
                part(numerator)
                    .zip(part(denominator))
                    .map(|(numerator, denominator)| vec![numerator, denominator])
            }
            (Kind::Path, parts) => {
                let is_windows = name_of(object).is_some_and(|name| name.contains("Windows"));
                path(parts, is_windows)
            }
            _ => {
                let is_complete = is_complete(kind, &arguments);
                is_complete.then(|| core::mem::take(&mut arguments))
            }
        };
        Ok(replaced.ok_or_else(|| unknown(node))?.into())
    }

    fn default_dict(
        &self,
        object: &tree::Object<'_, '_>,
        depth: usize,
    ) -> Result<Items, ValueError> {
        let node = object.node;
        let mut arguments = object.arguments;
        let factory = match arguments.next() {
            None => Value::None,
            Some(factory) if factory.is_none() => Value::None,
            Some(factory) => {
                let global = factory.as_global().ok_or_else(|| unknown(node))?;
                let (module, name) = (global.module.to_str(), global.name.to_str());
                match (module.as_deref(), name) {
                    (Some("builtins" | "__builtin__"), Some(name)) => Value::from(&*name),
                    _ => return Err(unknown(factory)),
                }
            }
        };
        let entries = match (arguments.next(), arguments.next()) {
            (None, _) => self.entries(object, depth)?,
            (Some(entries), None) => self.value(entries, depth)?,
            _ => return Err(unknown(node)),
        };
        Ok([factory, entries].into())
    }

    /// The entries that are set in an object after its creation.
    fn entries(&self, object: &tree::Object<'_, '_>, depth: usize) -> Result<Value, ValueError> {
        let depth = depth.checked_sub(1).ok_or(ValueError::TooLarge)?;
        let mut all = Vec::new();
        for operation in object.operations() {
            let tree::Operation::Set(entries) = operation else {
                return Err(unknown(object.node));
            };
            for (key, value) in entries {
                all.push((self.value(key, depth)?, self.part(value, depth)?));
            }
        }
        Ok(Value::Dict(all.into()))
    }

    /// The class of an instance: one with a name, or one whose definition is in
    /// the pickle. `None` if it is neither.
    fn class(&self, node: Node<'_, '_>) -> Option<Result<Arc<Class>, ValueError>> {
        if let Some(class) = self.classes.borrow().get(&node.index()) {
            return Some(Ok(Arc::clone(class)));
        }
        let class = match node.as_global() {
            Some(_) if node.operations().next().is_some() => return None,
            Some(global) => Class {
                module: global.module.to_str()?.into_owned(),
                name: global.name.to_str()?.into_owned(),
                fields: Vec::new(),
                origin: Origin::New,
            },
            None => match self.local_class(node)? {
                Ok(class) => class,
                Err(error) => return Some(Err(error)),
            },
        };
        let class = Arc::new(class);
        let made = Arc::clone(&class);
        self.classes.borrow_mut().insert(node.index(), made);
        Some(Ok(class))
    }

    /// A class as cloudpickle writes it:
    /// `_make_skeleton_class(TYPE, NAME, BASES, {"__module__": MODULE}, ...)`.
    fn local_class(&self, node: Node<'_, '_>) -> Option<Result<Class, ValueError>> {
        let [_, name, _, attributes, _, _] =
            called(node, "_make_skeleton_class")?.items().exactly()?;
        let module = attributes.get("__module__")?.as_str()?;
        let mut class = Class {
            module: module.to_owned(),
            name: name.as_str()?.to_owned(),
            fields: Vec::new(),
            origin: Origin::Local,
        };
        // The search below visits all values, once for each class.
        let tree = node.tree();
        if let Err(error) = self.budget.spend(tree.value_count()) {
            return Some(Err(error));
        }
        // `_class_setstate(CLASS, (ATTRIBUTES, SLOTS))`, whose result is dropped.
        let fields = tree.nodes().find_map(|call| {
            let arguments = called(call, "_class_setstate")?;
            let [class, state] = arguments.items().exactly()?;
            let state = class.is_same(node).then(|| state.items().next())??;
            let of_data_class = || state.get("__dataclass_fields__");
            state.get("_fields").or_else(of_data_class)
        });
        // The fields of a data class are a dictionary.
        let fields = fields.into_iter().flat_map(|fields| {
            let keys = fields.entries().map(|(key, _)| key);
            fields.items().chain(keys)
        });
        class.fields = fields
            .filter_map(|field| field.as_str().map(str::to_owned))
            .collect();
        Some(Ok(class))
    }
}

/// The arguments of a call of this function of cloudpickle.
fn called<'t, 'p>(node: Node<'t, 'p>, name: &str) -> Option<Node<'t, 'p>> {
    match node.value() {
        tree::Value::Call {
            callable,
            arguments,
        } if callable
            .as_global()
            .is_some_and(|global| global.is("cloudpickle.cloudpickle", name)) =>
        {
            Some(arguments)
        }
        _ => None,
    }
}

/// Whether the instance is one of a class of containers, such as a named tuple.
pub(super) fn is_container(node: Node<'_, '_>) -> bool {
    if let Some((kind, _)) = classes().object(node) {
        return matches!(kind, Kind::Counter | Kind::OrderedDict | Kind::DefaultDict);
    }
    match node.value() {
        tree::Value::New {
            arguments,
            keywords: None,
            ..
        } => node.operations().next().is_none() && arguments.items().next().is_some(),
        _ => false,
    }
}

/// Whether this is `getattr(zoneinfo.ZoneInfo, "_unpickle")`.
fn is_zone_info(callable: Node<'_, '_>) -> bool {
    let Some((callable, arguments)) = callable.as_call() else {
        return false;
    };
    let is = |node: Node<'_, '_>, module: &str, name: &str| {
        node.as_global()
            .is_some_and(|global| global.is(module, name))
    };
    match arguments.exactly() {
        Some([class, name]) => {
            is(callable, "builtins", "getattr")
                && is(class, "zoneinfo", "ZoneInfo")
                && name.as_str() == Some("_unpickle")
        }
        None => false,
    }
}

/// Whether these are the arguments that the class is documented to have.
fn is_complete(kind: Kind, arguments: &[Value]) -> bool {
    let integers = |range: core::ops::Range<usize>| {
        let found = arguments.get(range);
        found.is_some_and(|found| found.iter().all(|part| matches!(part, Value::Int(_))))
    };
    match kind {
        Kind::Counter | Kind::OrderedDict => matches!(arguments, [Value::Dict(_)]),
        Kind::Date => arguments.len() == 3 && integers(0..3),
        Kind::Time => (4..=5).contains(&arguments.len()) && integers(0..4),
        Kind::DateTime => (7..=8).contains(&arguments.len()) && integers(0..7),
        Kind::TimeDelta => arguments.len() == 3 && integers(0..3),
        Kind::TimeZone => matches!(
            arguments,
            [Value::Object(_)] | [Value::Object(_), Value::Str(_)]
        ),
        Kind::Decimal | Kind::Uuid => matches!(arguments, [Value::Str(_)]),
        Kind::ZoneInfo => matches!(arguments.first(), Some(Value::Str(_))),
        Kind::Fraction => arguments.len() == 2 && integers(0..2),
        Kind::Range | Kind::Slice => arguments.len() == 3,
        Kind::DateTime64 | Kind::TimeDelta64 => {
            matches!(arguments, [Value::Int(_) | Value::Str(_), Value::Str(_)])
        }
        Kind::Timestamp => matches!(
            arguments,
            [
                Value::Int(_),
                Value::None,
                Value::None | Value::Object(_),
                Value::Int(_)
            ]
        ),
        Kind::Timedelta => matches!(arguments, [Value::Int(_), Value::Int(_)]),
        Kind::IpcStream => matches!(arguments, [Value::Bytes(_)]),
        Kind::TableReader | Kind::TableToPandas => matches!(arguments, [Value::Object(_)]),
        Kind::DefaultDict | Kind::Path | Kind::Other => false,
    }
}

fn date(data: &[u8]) -> Option<[Value; 3]> {
    let [high, low, month, day] = *data else {
        return None;
    };
    let year = u16::from_be_bytes([high, low]);
    Some([Value::from(year), Value::from(month), Value::from(day)])
}

/// Hour, minute, second and microsecond; and the fold, the high bit of the hour.
fn clock(data: &[u8]) -> Option<([Value; 4], bool)> {
    let [hour, minute, second, a, b, c] = *data else {
        return None;
    };
    let microsecond = u32::from_be_bytes([0, a, b, c]);
    let clock = [
        Value::from(hour & 0x7f),
        Value::from(minute),
        Value::from(second),
        Value::from(microsecond),
    ];
    Some((clock, hour & 0x80 != 0))
}

/// The parts of a date and time; and the fold, the high bit of the month.
fn date_time(data: &[u8]) -> Option<(Vec<Value>, bool)> {
    let ([high, low, month, day], rest) = data.split_first_chunk()?;
    let mut parts = date(&[*high, *low, month & 0x7f, *day])?.to_vec();
    let (clock, _) = clock(rest)?;
    parts.extend(clock);
    Some((parts, month & 0x80 != 0))
}

fn with_zone(mut parts: Vec<Value>, zone: Option<Value>, fold: bool) -> Vec<Value> {
    match (zone, fold) {
        (zone, true) => parts.extend([zone.unwrap_or_default(), Value::from(1)]),
        (Some(zone), false) => parts.push(zone),
        (None, false) => {}
    }
    parts
}

fn name_of(object: &tree::Object<'_, '_>) -> Option<String> {
    Some(object.global.name.to_str()?.into_owned())
}

/// The parts of a path as one string, with slashes on Windows too.
fn path(parts: &[Value], is_windows: bool) -> Option<Vec<Value>> {
    let mut joined = String::new();
    for part in parts {
        if !joined.is_empty() && !joined.ends_with('/') {
            joined.push('/');
        }
        match part.as_str()? {
            part if is_windows => joined.push_str(&part.replace('\\', "/")),
            part => joined.push_str(part),
        }
    }
    if joined.is_empty() {
        joined.push('.');
    }
    Some(vec![Value::from(joined)])
}
