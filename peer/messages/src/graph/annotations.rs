//! The annotations of a graph's layers.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use daskwire_pickle::tree::{self, Node};

use super::GraphError;
use super::read::DEPTH;
use super::spec::{key_of, state_of};
use crate::Key;
use crate::value::{Budget, TreeReader, Value, ValueError};

/// The values of an annotation by task.
type Table<'t, 'p> = Rc<HashMap<Key, Node<'t, 'p>>>;

/// The annotations of a layer.
pub(super) struct Layer<'t, 'p> {
    /// Those that all tasks share, a dictionary.
    shared: Arc<Value>,
    /// Those that differ by task, by their names. `delayed` writes them once it has
    /// merged the layers of its arguments.
    by_task: Vec<(Value, Table<'t, 'p>)>,
}

/// Reads annotations of layers.
pub(super) struct Layers<'r, 't, 'p> {
    values: &'r TreeReader<'r>,
    budget: &'r Budget,
    /// Tables that were read, which layers share, by the index of their node.
    tables: HashMap<usize, Table<'t, 'p>>,
}

impl<'r, 't, 'p> Layers<'r, 't, 'p> {
    pub(super) fn new(values: &'r TreeReader<'r>, budget: &'r Budget) -> Self {
        Self {
            values,
            budget,
            tables: HashMap::new(),
        }
    }

    /// Reads the annotations of a layer, a dictionary.
    // ROLES SCHEDULER-6
    pub(super) fn layer(&mut self, node: Node<'t, 'p>) -> Result<Layer<'t, 'p>, GraphError> {
        let mut shared = Vec::new();
        let mut by_task = Vec::new();
        for (name, node) in node.entries() {
            self.budget.spend(1)?;
            let name = self.value(name)?;
            match table_of(node, self.budget)? {
                Some(table) => by_task.push((name, self.table(table)?)),
                None => shared.push((name, self.value(node)?)),
            }
        }
        Ok(Layer {
            shared: Arc::new(Value::dict(shared)),
            by_task,
        })
    }

    /// The annotations of a task of a layer.
    pub(super) fn of_task(
        &self,
        layer: &Layer<'t, 'p>,
        key: &Key,
    ) -> Result<Arc<Value>, GraphError> {
        let own = layer.by_task.iter();
        let mut own = own.filter_map(|(name, table)| Some((name, *table.get(key)?)));
        let Some(first) = own.next() else {
            return Ok(Arc::clone(&layer.shared));
        };
        let mut all = match &*layer.shared {
            Value::Dict(entries) => entries.to_vec(),
            _ => Vec::new(),
        };
        for (name, node) in core::iter::once(first).chain(own) {
            all.push((name.clone(), self.value(node)?));
        }
        self.budget.spend(all.len())?;
        Ok(Arc::new(Value::dict(all)))
    }

    fn table(&mut self, node: Node<'t, 'p>) -> Result<Table<'t, 'p>, GraphError> {
        if let Some(known) = self.tables.get(&node.index()) {
            return Ok(Rc::clone(known));
        }
        let mut table = HashMap::new();
        for (key, value) in node.entries() {
            table.insert(key_of(key, self.budget)?, value);
        }
        let table = Rc::new(table);
        self.tables.insert(node.index(), Rc::clone(&table));
        Ok(table)
    }

    fn value(&self, node: Node<'_, '_>) -> Result<Value, GraphError> {
        match self.values.value(node, DEPTH) {
            Err(ValueError::Unknown { what }) => Err(GraphError::Annotation { what }),
            read => Ok(read?),
        }
    }
}

/// The dictionary in `functools.partial(_get_partial, dct=DICTIONARY, default=..)`, Dask's
/// function of a key for an annotation that differs by task.
fn table_of<'t, 'p>(
    node: Node<'t, 'p>,
    budget: &Budget,
) -> Result<Option<Node<'t, 'p>>, GraphError> {
    let tree::Value::Call { callable, .. } = node.value() else {
        return Ok(None);
    };
    let is_partial = |name: tree::Global<'_>| name.is("functools", "partial");
    if !callable.as_global().is_some_and(is_partial) {
        return Ok(None);
    }
    let Some([function, _, keywords, _]) =
        state_of(node, budget)?.and_then(|state| state.items().exactly())
    else {
        return Ok(None);
    };
    let is_lookup = |name: tree::Global<'_>| name.is("dask.delayed", "_get_partial");
    if !function.as_global().is_some_and(is_lookup) {
        return Ok(None);
    }
    let table = keywords.get("dct");
    Ok(table.filter(|node| matches!(node.value(), tree::Value::Dict(_))))
}
