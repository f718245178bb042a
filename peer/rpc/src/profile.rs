//! Profiles of Python's stacks.

use daskwire_messages::Value;

/// Returns a profile without samples, like `distributed.profile.create()`.
pub fn empty() -> Value {
    let description = Value::dict([
        ("filename", Value::from("")),
        ("name", Value::from("")),
        ("line_number", Value::from(0)),
        ("line", Value::from("")),
    ]);
    Value::dict([
        ("count", Value::from(0)),
        ("children", Value::Dict([].into())),
        ("identifier", Value::from("root")),
        ("description", description),
    ])
}
