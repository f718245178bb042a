//! Metrics in the text format of Prometheus.

use std::fmt::Write as _;

/// Metrics in the text format of Prometheus.
#[derive(Debug)]
pub struct Metrics {
    /// The start of each name, with the role.
    prefix: String,
    text: String,
}

impl Metrics {
    /// The media type of the text.
    pub const MEDIA_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// Returns no metrics yet, of a role such as `worker`.
    pub fn new(namespace: &str, role: &str) -> Self {
        let prefix = match namespace {
            "" => format!("{role}_"),
            namespace => format!("{namespace}_{role}_"),
        };
        let text = String::new();
        Self { prefix, text }
    }

    /// Returns no metrics yet, whose names have no common start.
    pub(crate) fn without_prefix() -> Self {
        let (prefix, text) = Default::default();
        Self { prefix, text }
    }

    /// The metrics as text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Adds a metric of a kind such as `gauge`, with a value for each of some sets of labels, which have
    /// a name and a value each.
    pub fn add<'l, L>(
        &mut self,
        kind: &str,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) where
        L: IntoIterator<Item = (&'l str, &'l str)>,
    {
        let name = format!("{}{name}", self.prefix);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in values {
            let labels = labels.into_iter().map(|(label, value)| {
                let value = value.replace('\\', r"\\").replace('"', "\\\"");
                let value = value.replace('\n', r"\n");
                format!("{label}=\"{value}\"")
            });
            let labels: Vec<String> = labels.collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(self.text, "{name}{labels} {value:?}");
        }
    }

    /// Adds a gauge without a label.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.add("gauge", name, help, [(None, value)]);
    }

    /// Adds a counter without a label.
    pub fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.add("counter", name, help, [(None, value)]);
    }
}
