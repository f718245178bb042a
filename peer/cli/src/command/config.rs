//! Dask's configuration: YAML files and `DASK_*` variables, as `dask.config` reads
//! them.
//!
//! Sources, each overriding those before it: the files in `/etc/dask` (or
//! `DASK_ROOT_CONFIG`), in `etc/dask` of the active Python environment
//! (`CONDA_PREFIX`, `VIRTUAL_ENV`), in `~/.config/dask` and in `DASK_CONFIG`;
//! `DASK_INTERNAL_INHERIT_CONFIG`; variables such as
//! `DASK_DISTRIBUTED__WORKER__MEMORY__TARGET`.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use daskwire_comm::Codec;
use saphyr::{Scalar, Yaml, YamlLoader};
use saphyr_parser::{Parser, ScanError};
use serde_json::{Map, Value};

use crate::command::failure::{Failure, Result};
use crate::command::files::read_text;

/// Settings by their names, such as `distributed.worker.memory.target`.
#[derive(Debug, Default)]
pub(crate) struct Config(Map<String, Value>);

impl Config {
    /// Reads the configuration of this process.
    ///
    /// # Errors
    ///
    /// A message if a file is not YAML, not a mapping, or very long. Files that cannot be read are
    /// skipped, as in Dask.
    pub(crate) fn load() -> Result<Self> {
        let variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::of(&variables)
    }

    /// The configuration with these settings.
    #[cfg(test)]
    pub(crate) fn of_json(settings: Value) -> Self {
        match settings {
            Value::Object(settings) => Self(settings),
            _ => Self::default(),
        }
    }

    fn of(variables: &BTreeMap<String, String>) -> Result<Self> {
        let mut config = Self::default();
        for path in places(variables) {
            for file in files(&path) {
                let text = match read_text(&file) {
                    Ok(text) => text,
                    Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                        return Err(Failure::usage(format_args!("{}: {error}", file.display())));
                    }
                    Err(_) => continue,
                };
                config.add_yaml(&text, &file)?;
            }
        }
        if let Some(inherited) = variables.get("DASK_INTERNAL_INHERIT_CONFIG") {
            let inherited = deserialize(inherited).ok_or_else(|| {
                Failure::usage("DASK_INTERNAL_INHERIT_CONFIG is not Base64 of a JSON object")
            })?;
            merge(&mut config.0, inherited);
        }
        for (name, value) in variables {
            if let Some(name) = name.strip_prefix("DASK_") {
                let name = name.to_lowercase().replace("__", ".");
                config.set(&name, interpret(value));
            }
        }
        Ok(config)
    }

    fn add_yaml(&mut self, text: &str, file: &Path) -> Result<()> {
        let malformed = |reason: &str| Failure::usage(format_args!("{}: {reason}", file.display()));
        let documents = yaml(text).map_err(|error| malformed(&error.to_string()))?;
        match documents.first().map(json) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Object(settings)) => {
                merge(&mut self.0, settings);
                Ok(())
            }
            Some(_) => Err(malformed("expected a mapping from names to settings")),
        }
    }

    fn set(&mut self, name: &str, value: Value) {
        let value = name.rsplit('.').fold(value, |value, name| {
            Value::Object(Map::from_iter([(name.to_owned(), value)]))
        });
        if let Value::Object(settings) = value {
            merge(&mut self.0, settings);
        }
    }

    /// The value of a setting, if it is set to something other than nil.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        let mut parts = name.split('.');
        let first = self.0.get(canonical(&self.0, parts.next()?))?;
        let value = parts.try_fold(first, |value, part| {
            let settings = value.as_object()?;
            settings.get(canonical(settings, part))
        });
        value.filter(|value| !value.is_null())
    }

    /// The value of a setting as a string; numbers and booleans are formatted.
    pub(crate) fn string(&self, name: &str) -> Option<String> {
        match self.get(name)? {
            Value::String(value) => Some(value.clone()),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
            _ => None,
        }
    }

    /// The parsed value of a setting, if it is set.
    ///
    /// # Errors
    ///
    /// A usage error with the name and the value if it cannot be parsed.
    pub(crate) fn parse<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        let value = self.string(name);
        let value = value.map(|value| {
            let error = |error| Failure::usage(format_args!("{name}: {value}: {error}"));
            parse(&value).map_err(error)
        });
        value.transpose()
    }

    /// Whether comms without encryption are refused. As in Dask, any value that is not a boolean
    /// counts as true.
    pub(crate) fn requires_encryption(&self) -> bool {
        const NAME: &str = "distributed.comm.require-encryption";
        self.bool(NAME).unwrap_or(self.string(NAME).is_some())
    }

    /// The codec to name in handshakes; `None` for no compression.
    ///
    /// # Errors
    ///
    /// A usage error if no codec has this name.
    pub(crate) fn compression(&self) -> Result<Option<Codec>> {
        let codec = self.parse("distributed.comm.compression", |name| match name {
            "false" => Ok(None),
            // The first choice of a Dask that has all packages.
            "auto" => Ok(Some(Codec::Lz4)),
            name => match Codec::from_name(name.as_bytes()) {
                Some(codec) => Ok(Some(codec)),
                None => Err("expected false, auto, lz4, snappy, zlib or zstd".to_owned()),
            },
        });
        codec.map(Option::flatten)
    }

    /// Whether a setting is nil, which [`get`](Self::get) does not return.
    pub(crate) fn is_nil(&self, name: &str) -> bool {
        let Some((parent, own)) = name.rsplit_once('.') else {
            return false;
        };
        let parent = self.get(parent).and_then(Value::as_object);
        let value = parent.and_then(|parent| parent.get(canonical(parent, own)));
        value.is_some_and(Value::is_null)
    }

    /// The names and values of all settings below a name that are set, with `-` for `_`.
    pub(crate) fn below(&self, name: &str) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        let mut left: Vec<(String, &Value)> = self
            .get(name)
            .map(|value| (name.to_owned(), value))
            .into_iter()
            .collect();
        while let Some((name, value)) = left.pop() {
            match value {
                Value::Object(settings) => left.extend(settings.iter().map(|(own, value)| {
                    let own = own.replace('_', "-");
                    (format!("{name}.{own}"), value)
                })),
                value => found.push((name, value.clone())),
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// The value of a boolean setting.
    pub(crate) fn bool(&self, name: &str) -> Option<bool> {
        // Dask reads YAML 1.1, which has more spellings of booleans than YAML 1.2.
        match self.string(name)?.to_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Some(true),
            "false" | "no" | "off" | "0" => Some(false),
            _ => None,
        }
    }
}

/// Folders and files that contain settings, in the order in which they are read.
fn places(variables: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let root = variables.get("DASK_ROOT_CONFIG").map(String::as_str);
    let mut places = vec![PathBuf::from(root.unwrap_or("/etc/dask"))];
    for environment in ["CONDA_PREFIX", "VIRTUAL_ENV"] {
        if let Some(prefix) = variables.get(environment) {
            places.push(Path::new(prefix).join("etc/dask"));
        }
    }
    if let Some(home) = std::env::home_dir() {
        places.push(home.join(".config/dask"));
    }
    if let Some(own) = variables.get("DASK_CONFIG") {
        places.push(own.into());
    }
    // A path that appears twice is read at its last position.
    let mut unique: Vec<PathBuf> = Vec::new();
    for place in places {
        unique.retain(|other| *other != place);
        unique.push(place);
    }
    unique
}

/// The files to read for a path: itself, or the files of a folder sorted by name.
fn files(place: &Path) -> Vec<PathBuf> {
    if !place.is_dir() {
        return vec![place.to_owned()];
    }
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let is_config = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        extension == "yaml" || extension == "yml" || extension == "json"
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(is_config)
        .collect();
    files.sort();
    files
}

/// The spelling of a name in `settings`, where `-` and `_` are equivalent.
fn canonical<'a>(settings: &'a Map<String, Value>, name: &'a str) -> &'a str {
    if settings.contains_key(name) {
        return name;
    }
    let is_same = |other: &&String| {
        other.len() == name.len()
            && other
                .chars()
                .zip(name.chars())
                .all(|(a, b)| a == b || "-_".contains(a) && "-_".contains(b))
    };
    settings.keys().find(is_same).map_or(name, String::as_str)
}

/// Merges `from` into `to`, replacing existing settings.
fn merge(to: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, value) in from {
        let name = canonical(to, &name).to_owned();
        match value {
            Value::Object(inner) => {
                let entry = to.entry(name).or_insert(Value::Null);
                if !entry.is_object() {
                    *entry = Value::Object(Map::new());
                }
                if let Value::Object(entry) = entry {
                    merge(entry, inner);
                }
            }
            value => {
                to.insert(name, value);
            }
        }
    }
}

/// Decodes the settings that Dask passes to processes it starts.
fn deserialize(inherited: &str) -> Option<Map<String, Value>> {
    let padding = base64::engine::DecodePaddingMode::Indifferent;
    let options = GeneralPurposeConfig::new().with_decode_padding_mode(padding);
    let engine = GeneralPurpose::new(&base64::alphabet::URL_SAFE, options);
    let document = String::from_utf8(engine.decode(inherited.trim()).ok()?).ok()?;
    serde_json::from_str(&without_infinities(&document)).ok()
}

/// Replaces the numbers that Python writes into JSON, which does not have them, by strings.
fn without_infinities(document: &str) -> String {
    const NUMBERS: [(&str, &str); 3] = [
        ("Infinity", "\"inf\""),
        ("-Infinity", "\"-inf\""),
        ("NaN", "\"nan\""),
    ];
    let mut replaced = String::with_capacity(document.len());
    let mut rest = document;
    let mut is_string = false;
    let mut is_escaped = false;
    while let Some(character) = rest.chars().next() {
        let number = NUMBERS.iter().find(|(number, _)| rest.starts_with(number));
        if let (Some((number, string)), false) = (number, is_string) {
            replaced.push_str(string);
            rest = &rest[number.len()..];
            continue;
        }
        is_string ^= character == '"' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        replaced.push(character);
        rest = &rest[character.len_utf8()..];
    }
    replaced
}

/// Parses YAML. Of repeated keys, the last counts, as in Dask.
fn yaml(text: &str) -> Result<Vec<Yaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.allow_duplicate_keys(true);
    Parser::new_from_str(text).load(&mut loader, true)?;
    match loader.error() {
        Some(error) => Err(error.clone()),
        None => Ok(loader.into_documents()),
    }
}

/// A float, or the string of one that JSON does not have.
fn float(value: f64) -> Value {
    match value.is_finite() {
        true => value.into(),
        false => value.to_string().to_lowercase().into(),
    }
}

/// Parses the value of a variable: a Python literal, or else a plain string.
fn interpret(text: &str) -> Value {
    let trimmed = text.trim();
    match trimmed.to_lowercase().as_str() {
        "none" | "null" => return Value::Null,
        "true" => return Value::Bool(true),
        "false" => return Value::Bool(false),
        _ => {}
    }
    if let Ok(number) = trimmed.parse::<i64>() {
        return number.into();
    }
    if let Ok(number) = trimmed.parse::<f64>() {
        return float(number);
    }
    // Lists, dictionaries and quoted strings have the same syntax in YAML and in Python.
    if trimmed.starts_with(['[', '{', '"', '\''])
        && let Ok(documents) = yaml(trimmed)
        && let Some(document) = documents.first()
    {
        return json(document);
    }
    Value::from(text)
}

fn json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Boolean(value)) => Value::from(*value),
        Yaml::Value(Scalar::Integer(value)) => Value::from(*value),
        Yaml::Value(Scalar::FloatingPoint(value)) => float(value.into_inner()),
        Yaml::Value(Scalar::String(value)) => Value::from(&**value),
        Yaml::Representation(value, ..) => Value::from(&**value),
        Yaml::Sequence(items) => items.iter().map(json).collect(),
        Yaml::Mapping(entries) => {
            let entries = entries.iter().filter_map(|(name, value)| {
                let name = match json(name) {
                    Value::String(name) => name,
                    Value::Null | Value::Array(_) | Value::Object(_) => return None,
                    name => name.to_string(),
                };
                Some((name, json(value)))
            });
            let (merged, own): (Vec<_>, Vec<_>) = entries.partition(|(name, _)| name == "<<");
            let mut all = Map::new();
            // YAML 1.1: the entries of other mappings, of which the first has precedence.
            for (_, merged) in merged {
                let mappings = match merged {
                    Value::Array(mappings) => mappings,
                    mapping => vec![mapping],
                };
                for mapping in mappings.into_iter().rev() {
                    if let Value::Object(mapping) = mapping {
                        all.extend(mapping);
                    }
                }
            }
            all.extend(own);
            Value::Object(all)
        }
        Yaml::Tagged(_, value) => json(value),
        Yaml::Value(Scalar::Null) | Yaml::Alias(_) | Yaml::BadValue => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        let variables = variables.iter();
        variables
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_codec_is_one_that_dask_has() {
        let of = |setting| {
            let name = "DASK_DISTRIBUTED__COMM__COMPRESSION";
            let config = Config::of(&variables(&[(name, setting)])).expect("it is read");
            config.compression()
        };
        for (setting, codec) in [
            ("False", None),
            ("None", None),
            ("auto", Some(Codec::Lz4)),
            ("lz4", Some(Codec::Lz4)),
            ("snappy", Some(Codec::Snappy)),
            ("zlib", Some(Codec::Zlib)),
            ("zstd", Some(Codec::Zstd)),
        ] {
            assert_eq!(of(setting).ok(), Some(codec), "{setting}");
        }
        assert_eq!(Config::default().compression().ok(), Some(None));
        for setting in ["True", "LZ4", "blosc", "1"] {
            let error = of(setting).expect_err("no codec").to_string();
            assert!(error.contains("distributed.comm.compression"), "{error}");
        }
    }

    #[test]
    fn files_and_variables_override_each_other_as_in_dask() {
        let folder = std::env::temp_dir().join(format!("daskwire-config-{}", std::process::id()));
        let (root, own) = (folder.join("root"), folder.join("own"));
        for folder in [&root, &own] {
            fs::create_dir_all(folder).expect("a folder");
        }
        let write = |path: &Path, text: &str| fs::write(path, text).expect("it is written");
        write(
            &root.join("a.yaml"),
            "distributed:\n  worker:\n    memory:\n      target: 0.5\n      spill: 0.55\n      \
             max_spill: 10 GB\n  comm:\n    timeouts: {connect: 5s}\n",
        );
        write(
            &own.join("b.yml"),
            "# Nothing but a comment above.\ndistributed:\n  worker:\n    memory:\n      \
             spill: False\n      max-spill: 1 GB\n    lifetime: {restart: yes}\n",
        );
        write(&own.join("c.txt"), "not: [yaml");
        write(
            &own.join("d.json"),
            r#"{"scheduler-address": "tcp://10.0.0.1:8786"}"#,
        );
        let of = |extra: &[(&str, &str)]| {
            let places = [
                ("DASK_ROOT_CONFIG", root.to_str().expect("UTF-8")),
                ("DASK_CONFIG", own.to_str().expect("UTF-8")),
            ];
            Config::of(&variables(&[&places[..], extra].concat()))
        };
        let inherited =
            "eyJkaXN0cmlidXRlZCI6IHsid29ya2VyIjogeyJtZW1vcnkiOiB7InBhdXNlIjogMC45fX19fQ==";
        let config = of(&[
            ("DASK_DISTRIBUTED__WORKER__MEMORY__TARGET", "0.4"),
            ("DASK_DISTRIBUTED__WORKER__RESOURCES", "{'GPU': 2}"),
            ("DASK_INTERNAL_INHERIT_CONFIG", inherited),
            ("DASK_TEMPORARY_DIRECTORY", "/scratch/1: not YAML"),
        ])
        .expect("it is read");
        let string = |name: &str| config.string(&format!("distributed.worker.{name}"));
        assert_eq!(string("memory.target").as_deref(), Some("0.4"));
        assert_eq!(string("memory.spill").as_deref(), Some("false"));
        assert_eq!(string("memory.pause").as_deref(), Some("0.9"));
        assert_eq!(string("memory.max-spill").as_deref(), Some("1 GB"));
        assert_eq!(string("memory.max_spill").as_deref(), Some("1 GB"));
        assert_eq!(string("memory.terminate"), None);
        assert_eq!(
            config.bool("distributed.worker.lifetime.restart"),
            Some(true)
        );
        assert_eq!(
            config.get("distributed.worker.resources"),
            Some(&serde_json::json!({"GPU": 2}))
        );
        assert_eq!(
            config.string("temporary-directory").as_deref(),
            Some("/scratch/1: not YAML")
        );
        assert_eq!(
            config.string("scheduler-address").as_deref(),
            Some("tcp://10.0.0.1:8786")
        );
        assert_eq!(
            config
                .string("distributed.comm.timeouts.connect")
                .as_deref(),
            Some("5s")
        );
        let config = of(&[("DASK_SCHEDULER_ADDRESS", "tcp://10.0.0.2:8786")]);
        assert_eq!(
            config
                .expect("it is read")
                .string("scheduler_address")
                .as_deref(),
            Some("tcp://10.0.0.2:8786")
        );
        write(&own.join("e.yaml"), "a: [1");
        let error = of(&[]).expect_err("malformed").to_string();
        assert!(error.contains("e.yaml: "), "{error}");
        write(&own.join("e.yaml"), "- 1");
        let error = of(&[]).expect_err("a list").to_string();
        assert!(
            error.ends_with("e.yaml: expected a mapping from names to settings"),
            "{error}"
        );
        fs::remove_dir_all(&folder).expect("it is removed");
    }

    #[test]
    fn settings_are_read_as_python_writes_them() {
        let config = |text: &str| {
            let mut config = Config::default();
            config.add_yaml(text, Path::new("x.yaml")).map(|()| config)
        };
        // PyYAML takes the last of repeated keys, and knows merge keys.
        let read = config(
            "scheduler-address: a\ndistributed: &x\n  worker: {lifetime: 1}\n\
             distributed:\n  <<: [{worker: 2, nanny: 3}, {nanny: 4, comm: .inf}]\n  worker: 5\n\
             scheduler-address: b\n",
        );
        let read = read.expect("it is read");
        assert_eq!(read.string("scheduler-address").as_deref(), Some("b"));
        let expected = serde_json::json!({"worker": 5, "nanny": 3, "comm": "inf"});
        assert_eq!(read.get("distributed"), Some(&expected));
        assert!(config("a: [1").is_err());
        // From `json.dumps`
        let document = r#"{"a": Infinity, "b": [-Infinity, NaN], "Infinity": "a \"NaN\", \\"}"#;
        let engine = base64::engine::general_purpose::URL_SAFE;
        let read = deserialize(&engine.encode(document)).expect("it is read");
        let expected = serde_json::json!({
            "a": "inf",
            "b": ["-inf", "nan"],
            "Infinity": "a \"NaN\", \\",
        });
        assert_eq!(Value::Object(read), expected);
    }

    #[test]
    fn variables_are_literals_of_python() {
        for (text, value) in [
            ("0.6", serde_json::json!(0.6)),
            ("10", serde_json::json!(10)),
            ("False", serde_json::json!(false)),
            ("None", Value::Null),
            ("10 GB", serde_json::json!("10 GB")),
            ("inf", serde_json::json!("inf")),
            ("'10'", serde_json::json!("10")),
            (
                "tcp://10.0.0.1:8786",
                serde_json::json!("tcp://10.0.0.1:8786"),
            ),
            ("['a', \"b\"]", serde_json::json!(["a", "b"])),
        ] {
            assert_eq!(interpret(text), value, "{text}");
        }
    }
}
