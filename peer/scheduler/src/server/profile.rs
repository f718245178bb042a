//! Profiles of workers, which are merged to one.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use daskwire_messages::Value;
use daskwire_rpc::profile;

/// A frame of a profile: a place in a program, and the frames that it calls.
#[derive(Debug)]
struct Frame {
    identifier: Value,
    description: Value,
    count: i128,
    children: BTreeMap<String, Self>,
}

/// Maximum depth of a profile. Deeper frames are left out; Python's stacks have less than 1,000.
const MAX_DEPTH: usize = 500;

/// Merges profiles. Values that are no profiles are left out.
pub(super) fn merge(profiles: &[Value]) -> Value {
    let mut merged: Option<Frame> = None;
    for profile in profiles {
        if let Some(frame) = merged.as_mut() {
            frame.add(profile, MAX_DEPTH);
        } else if let Some(mut frame) = Frame::without_children(profile) {
            frame.count = 0;
            frame.add(profile, MAX_DEPTH);
            merged = Some(frame);
        }
    }
    merged.map_or_else(profile::empty, Frame::into_value)
}

impl Frame {
    fn without_children(value: &Value) -> Option<Self> {
        let Value::Int(count) = value.get("count")? else {
            return None;
        };
        Some(Self {
            identifier: value.get("identifier")?.clone(),
            description: value.get("description")?.clone(),
            count: *count,
            children: BTreeMap::new(),
        })
    }

    /// Adds the samples of a profile, and those of its children. Recursion is bounded by `depth`.
    fn add(&mut self, value: &Value, depth: usize) {
        if let Some(Value::Int(count)) = value.get("count") {
            self.count = self.count.saturating_add(*count);
        }
        let (Some(Value::Dict(children)), Some(depth)) =
            (value.get("children"), depth.checked_sub(1))
        else {
            return;
        };
        for (name, child) in children.iter() {
            let Some(name) = name.as_str() else { continue };
            let frame = match self.children.entry(name.to_owned()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let Some(mut frame) = Self::without_children(child) else {
                        continue;
                    };
                    frame.count = 0;
                    entry.insert(frame)
                }
            };
            frame.add(child, depth);
        }
    }

    fn into_value(self) -> Value {
        let children = self.children.into_iter();
        let children = children.map(|(name, child)| (name, child.into_value()));
        Value::dict([
            ("count", Value::Int(self.count)),
            ("children", Value::dict(children)),
            ("identifier", self.identifier),
            ("description", self.description),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, count: i64, children: &[Value]) -> Value {
        let child = |child: &Value| {
            let name = child.get("identifier").cloned().unwrap_or_default();
            (name, child.clone())
        };
        Value::dict([
            ("count", Value::from(count)),
            ("children", Value::dict(children.iter().map(child))),
            ("identifier", Value::from(name)),
            ("description", Value::dict([("name", name)])),
        ])
    }

    #[test]
    fn samples_of_the_same_frames_are_added() {
        let one = frame("root", 3, &[frame("a", 2, &[frame("b", 1, &[])])]);
        let two = frame("root", 5, &[frame("a", 4, &[]), frame("c", 1, &[])]);
        let both = [frame("a", 6, &[frame("b", 1, &[])]), frame("c", 1, &[])];
        let merged = merge(&[one, Value::from("not a profile"), two]);
        assert_eq!(merged, frame("root", 8, &both));
        assert_eq!(merge(&[]), profile::empty());
    }

    #[test]
    fn deep_profiles_are_cut() {
        let mut deep = frame("x", 1, &[]);
        for _ in 0..2 * MAX_DEPTH {
            deep = frame("x", 1, &[deep]);
        }
        let mut left = merge(&[deep]);
        let mut depth = 0;
        while let Some(child) = left.get("children").and_then(|all| all.get("x")) {
            left = child.clone();
            depth += 1;
        }
        assert_eq!(depth, MAX_DEPTH);
    }
}
