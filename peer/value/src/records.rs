//! The records of numpy's structured arrays.

use std::sync::Arc;

use bytes::Bytes;
use daskwire_numpy::{Array as View, ElementType, Order, RecordType};

use super::object::{Class, Origin};
use super::{Array, Budget, Object, Value, ValueError};

/// The records of an array, lists if it has several dimensions. Each is like a named tuple of its
/// fields.
pub(super) fn records(
    view: &View<'_>,
    record: &RecordType<'_>,
    budget: &Budget,
) -> Result<Vec<Value>, ValueError> {
    if view.check_repetition().is_err() {
        return Err(ValueError::TooLarge);
    }
    let [outer, inner @ ..] = view.shape() else {
        return Err(unknown());
    };
    let all = flat(view, record, budget)?;
    Ok(nested(all, *outer, inner))
}

/// The records in row-major order. Records nest in at most 16 levels.
fn flat(
    view: &View<'_>,
    record: &RecordType<'_>,
    budget: &Budget,
) -> Result<Vec<Value>, ValueError> {
    let count = view.items().len();
    budget.spend(count)?;
    let mut names = Vec::new();
    let mut columns = Vec::new();
    for field in record.fields() {
        let field = field.map_err(|_| unknown())?;
        // Fields may overlap, so there may be more values than bytes.
        let part = view.field(&field)?;
        budget.spend(part.items().len().saturating_add(1))?;
        let values = match field.element_type() {
            ElementType::Record(inner) => flat(&part, &inner, budget)?,
            ElementType::Plain(dtype) => {
                let len = part.items().len().saturating_mul(dtype.item_len());
                budget.spend_copy(len)?;
                let data: Vec<u8> = part.items().flatten().copied().collect();
                Array::from_bytes(dtype, part.shape(), Order::C, Bytes::from(data))?
                    .element_values()?
            }
            _ => return Err(unknown()),
        };
        // Padding has no name.
        if !field.name().is_empty() {
            names.push(field.name().to_owned());
            columns.push(nested(values, count, field.shape()).into_iter());
        }
    }
    let class = Arc::new(Class {
        module: "numpy".to_owned(),
        name: "record".to_owned(),
        fields: names,
        origin: Origin::Local,
    });
    let row = |_| {
        let fields = columns.iter_mut().map(|column| column.next());
        let fields = fields.map(Option::unwrap_or_default).collect();
        Value::Object(Object::of_class(Arc::clone(&class), fields))
    };
    Ok((0..count).map(row).collect())
}

/// `count` values, each of them a list of lists of this shape.
fn nested(mut values: Vec<Value>, count: usize, shape: &[usize]) -> Vec<Value> {
    for (axis, len) in shape.iter().enumerate().rev() {
        let lists: usize = shape.iter().take(axis).product::<usize>() * count;
        let mut left = values.into_iter();
        let list = |_| Value::List(left.by_ref().take(*len).collect());
        values = (0..lists).map(list).collect();
    }
    values
}

fn unknown() -> ValueError {
    ValueError::Unknown {
        what: "an array of records".to_owned(),
    }
}
