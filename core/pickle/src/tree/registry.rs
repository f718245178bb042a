//! The mapping from allowed names to the caller's data.

use alloc::collections::BTreeMap;
use alloc::string::String;

use super::{Global, Items, Node, Operations, Value};

/// A set of allowed names: exact pairs of a module and a name, each with a
/// meaning defined by the caller. Default: empty.
///
/// A meaning is a value of the caller, such as a variant of an enum; the caller
/// decides what to do with an [`Object`] of that name.
///
/// ```
/// use daskwire_pickle::tree::{Registry, Tree};
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Mine {
///     Fraction,
/// }
/// let mut registry = Registry::new();
/// registry.allow("fractions", "Fraction", Mine::Fraction);
///
/// // pickle.dumps(Fraction(3, 4), 4), and the same of another class.
/// let tree = Tree::new(b"\x80\x04\x8c\x09fractions\x8c\x08Fraction\x93K\x03K\x04\x86R.")?;
/// let (meaning, object) = registry.object(tree.root()).ok_or("not allowed")?;
/// assert_eq!(meaning, Mine::Fraction);
/// let [above, below] = object.arguments.exactly().ok_or("other arguments")?;
/// assert_eq!((above.as_i64(), below.as_i64()), (Some(3), Some(4)));
///
/// let other = Tree::new(b"\x80\x04\x8c\x09fractions\x8c\x08fraction\x93K\x03K\x04\x86R.")?;
/// assert!(registry.object(other.root()).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Registry<T> {
    modules: BTreeMap<String, BTreeMap<String, T>>,
    /// The length of the longest module or name.
    max_len: usize,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The way in which an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The object is the global itself.
    Name,
    /// The object is the result of a call (REDUCE, INST or OBJ).
    Call,
    /// The object is the result of `__new__` of a class.
    New,
}

/// An object with an allowed name.
#[derive(Clone, Copy, Debug)]
pub struct Object<'t, 'p> {
    /// The name.
    pub global: Global<'p>,
    /// The way in which the object was created.
    pub origin: Origin,
    /// The arguments; empty for a global.
    pub arguments: Items<'t, 'p>,
    /// The keyword arguments: a dictionary or an object.
    pub keywords: Option<Node<'t, 'p>>,
    /// The value itself.
    pub node: Node<'t, 'p>,
}

impl<'t, 'p> Object<'t, 'p> {
    /// The operations on the object after its creation.
    pub fn operations(&self) -> Operations<'t, 'p> {
        self.node.operations()
    }
}

impl<T> Registry<T> {
    /// Creates an empty registry.
    pub const fn new() -> Self {
        Self {
            modules: BTreeMap::new(),
            max_len: 0,
        }
    }

    /// Allows a name in a module, and replaces its former meaning.
    pub fn allow(&mut self, module: &str, name: &str, meaning: T) -> &mut Self {
        self.max_len = self.max_len.max(module.len()).max(name.len());
        self.modules
            .entry(module.into())
            .or_default()
            .insert(name.into(), meaning);
        self
    }

    /// Allows a set of names.
    pub fn allow_all<M: Copy + Into<T>>(&mut self, names: &[(&str, &str, M)]) -> &mut Self {
        for (module, name, meaning) in names {
            self.allow(module, name, (*meaning).into());
        }
        self
    }

    /// The meaning of a name, if it is allowed.
    pub fn meaning(&self, global: Global<'_>) -> Option<&T> {
        // A string that is too long is not read, since many globals may share it. With
        // escapes and quotes, a byte takes up to 10.
        let limit = self.max_len.saturating_mul(10).saturating_add(2);
        if global.module.encoded_len() > limit || global.name.encoded_len() > limit {
            return None;
        }
        let names = self.modules.get(&*global.module.to_str()?)?;
        names.get(&*global.name.to_str()?)
    }

    /// The parts of an object, if its name is allowed and its arguments are a
    /// tuple.
    pub fn object<'t, 'p>(&self, node: Node<'t, 'p>) -> Option<(T, Object<'t, 'p>)>
    where
        T: Copy,
    {
        let (global, origin, arguments, keywords) = match node.value() {
            Value::Global(global) => (global, Origin::Name, None, None),
            Value::Call {
                callable,
                arguments,
            } => (
                callable.as_plain_name()?,
                Origin::Call,
                Some(arguments),
                None,
            ),
            Value::New {
                class,
                arguments,
                keywords,
            } => (
                class.as_plain_name()?,
                Origin::New,
                Some(arguments),
                keywords,
            ),
            Value::Instance { class, arguments } => (class, Origin::Call, Some(arguments), None),
            Value::InstanceOf { class, arguments } => {
                (class.as_plain_name()?, Origin::Call, Some(arguments), None)
            }
            _ => return None,
        };
        let arguments = match arguments.map(Node::value) {
            None => node.block(0),
            Some(Value::Tuple(items)) => items,
            Some(_) => return None,
        };
        let object = Object {
            global,
            origin,
            arguments,
            keywords,
            node,
        };
        Some((*self.meaning(global)?, object))
    }
}

impl<'p> Node<'_, 'p> {
    /// A global without operations on it.
    fn as_plain_name(self) -> Option<Global<'p>> {
        match self.operations().next() {
            None => self.as_global(),
            Some(_) => None,
        }
    }
}
