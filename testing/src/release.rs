//! Releases of `distributed` other than those of [`Environment`], each installed in
//! an environment of its own.

use std::ffi::OsString;
use std::path::PathBuf;
use std::{env, fs};

use crate::{Environment, fnv1a, make_environment, named_pythons, python, python_minor, target};

/// An entry of a list of releases: a line with the release, the minor versions of Python 3
/// to use it with, preferred ones first, and optionally `default` and `mixed`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ListedRelease {
    /// The release, such as `2022.1.0`.
    pub release: String,
    /// The minor versions of Python 3.
    pub minors: Vec<u32>,
    /// Whether tests use the release if no releases are named.
    pub is_default: bool,
    /// Whether tests also use the release with its second version of Python.
    pub is_mixed: bool,
}

/// Parses a list of releases; lines that begin with `#` are comments.
///
/// # Panics
///
/// If a line is malformed.
pub fn listed_releases(list: &str) -> Vec<ListedRelease> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let entries = lines.filter(|line| !line.trim().is_empty()).map(|line| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let mut has = |mark: &str| {
            let count = words.len();
            words.retain(|word| *word != mark);
            words.len() < count
        };
        let (is_default, is_mixed) = (has("default"), has("mixed"));
        let minors = words.iter().skip(1).map(|minor| minor.parse());
        let minors: Result<Vec<u32>, _> = minors.collect();
        match (words.first(), minors) {
            (Some(release), Ok(minors)) if minors.len() > usize::from(is_mixed) => ListedRelease {
                release: (*release).to_owned(),
                minors,
                is_default,
                is_mixed,
            },
            _ => panic!("{line:?} is not a release and versions of Python"),
        }
    });
    entries.collect()
}

impl ListedRelease {
    /// The interpreter of an environment with this release and the packages of
    /// `requirements`, and its minor version. The environment is created if it is missing.
    ///
    /// It is based on an interpreter named in DASKWIRE_PYTHONS, or else `python3.8` and so on.
    ///
    /// # Errors
    ///
    /// If there is no suitable Python, or the packages cannot be installed.
    pub fn environment(&self, requirements: &str) -> Result<(PathBuf, u32), String> {
        let release = &self.release;
        if release == Environment::Current.release() {
            let interpreter = python(Environment::Current);
            let minor = python_minor(interpreter.as_os_str());
            return Ok((interpreter, minor.unwrap_or_default()));
        }
        self.environment_for(&self.minors, requirements)
    }

    /// The interpreter of an environment with the second version of Python, if the
    /// release is marked `mixed`.
    ///
    /// # Errors
    ///
    /// As [`environment`](Self::environment).
    pub fn other_environment(&self, requirements: &str) -> Result<Option<PathBuf>, String> {
        if !self.is_mixed {
            return Ok(None);
        }
        let other = self.environment_for(&self.minors[1..2], requirements);
        other.map(|(interpreter, _)| Some(interpreter))
    }

    fn environment_for(
        &self,
        minors: &[u32],
        requirements: &str,
    ) -> Result<(PathBuf, u32), String> {
        let release = &self.release;
        let (base, minor) = self.base_python(minors)?;
        // The only release of `dask` with another number than that of `distributed`.
        let dask = if release == "2.30.1" {
            "2.30.0"
        } else {
            release
        };
        let packages =
            format!("--only-binary :all:\ndistributed=={release}\ndask=={dask}\n{requirements}");
        let hash = fnv1a(packages.as_bytes());
        let folder = target().join("python");
        let directory = folder.join(format!("{release}-3.{minor}-{hash:016x}"));
        let file = folder.join(format!("{release}-3.{minor}-{hash:016x}.txt"));
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&file, packages))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        make_environment(&base, &directory, &file).map(|interpreter| (interpreter, minor))
    }

    fn base_python(&self, minors: &[u32]) -> Result<(OsString, u32), String> {
        let names = env::var("DASKWIRE_PYTHONS").unwrap_or_default();
        let named = match &*names {
            "" => Vec::new(),
            names => named_pythons(names)?,
        };
        let found = minors.iter().find_map(|minor| {
            let named = named.iter().find(|(_, other)| other == minor);
            let path = named.map_or_else(|| format!("python3.{minor}"), |(name, _)| (*name).into());
            let path = OsString::from(path);
            (python_minor(&path) == Some(*minor)).then_some((path, *minor))
        });
        found.ok_or_else(|| {
            let minors: Vec<String> = minors.iter().map(|m| format!("3.{m}")).collect();
            format!(
                "distributed {} is tried with Python {}, and there is none: install it, \
                 or name its path in DASKWIRE_PYTHONS",
                self.release,
                minors.join(" or ")
            )
        })
    }
}
