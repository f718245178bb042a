//! Checks that the public errors of all packages have a kind, and what the page about errors says
//! of some.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use daskwire_comm::tls::TlsSettings;
use daskwire_comm::{Address, CommError};
use daskwire_peer::graph::GraphError;
use daskwire_peer::value::{ValueError, WrongType};
use daskwire_peer::{ErrorKind, Release, RemoteError, Value};

/// The Rust files of a folder, without tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder that can be listed") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// The name that follows `start` in a line.
fn name_after<'a>(line: &'a str, start: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(start)?;
    let is_end = |c: char| !(c.is_alphanumeric() || c == '_' || c == '$');
    rest.split(is_end).next().filter(|name| !name.is_empty())
}

/// The errors in a file that are public, and those of them without a kind. An error with a public
/// field `kind`, which says where a fault is in bytes, has no method of that name.
fn errors(source: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let source = source.split("#[cfg(test)]\nmod ").next().expect("a part");
    let lines: Vec<_> = source.lines().collect();
    let is_error = |line: &&&str| line.trim_start().starts_with("impl");
    let mut public = BTreeSet::new();
    for line in lines.iter().filter(is_error) {
        // Not `de::Error` of serde, and not with a module of another name.
        let paths = [
            " Error for ",
            " error::Error for ",
            " core::error::Error for ",
            " std::error::Error for ",
        ];
        let Some(name) = paths.into_iter().find_map(|start| name_after(line, start)) else {
            continue;
        };
        let definition = lines.iter().position(|line| {
            ["pub struct ", "pub enum "]
                .into_iter()
                .any(|start| name_after(line, start) == Some(name))
        });
        let Some(definition) = definition else {
            continue;
        };
        // A struct without named fields ends on its line, as does an empty one.
        let has_fields = lines[definition].ends_with('{');
        let fields = lines[definition..].iter().take_while(|line| **line != "}");
        if !has_fields
            || !fields
                .into_iter()
                .any(|line| line.starts_with("    pub kind:"))
        {
            public.insert(name);
        }
    }
    let has_kind = |name: &&str| {
        let entry = format!("{name}: |");
        lines
            .iter()
            .any(|line| line.trim_start().starts_with(&entry))
    };
    let without = public.iter().copied().filter(|name| !has_kind(name));
    let without = without.collect();
    (public, without)
}

#[test]
fn all_public_errors_have_a_kind() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = fs::read_to_string(workspace.join("Cargo.toml")).expect("the workspace");
    let members = manifest.lines().find(|line| line.starts_with("members"));
    let members = members.expect("its members").split('"').skip(1).step_by(2);
    // The codec's errors say by `is_caller_fault` who is at fault, and convert to `daskwire::Error`.
    let is_codec = |member: &str| member == "core" || member.starts_with("core/");
    let mut count = 0;
    for member in members.filter(|member| !is_codec(member)) {
        let mut files = Vec::new();
        let folder = workspace.join(member).join("src");
        if !folder.is_dir() || member.starts_with("fuzz") || member.contains("examples") {
            continue;
        }
        sources(&folder, &mut files);
        for file in files {
            let source = fs::read_to_string(&file).expect("UTF-8");
            let (public, without) = errors(&source);
            count += public.len();
            assert!(
                without.is_empty(),
                "{}: {without:?} have no kind: add them to `kinds!`",
                file.display()
            );
        }
    }
    // At least those of comms, values, messages, clients and schedulers.
    assert!(count > 30, "only {count} errors were found");
}

#[test]
fn errors_without_a_kind_are_found() {
    let source = "pub struct A;\nimpl core::error::Error for A {}\npub enum B {\n}\n\
                  impl std::error::Error for B {}\nkinds! {\n    B: |_| ErrorKind::Invalid;\n}\n\
                  struct C;\nimpl core::error::Error for C {}\n\
                  pub struct D {\n    pub kind: u8,\n}\nimpl core::error::Error for D {}\n\
                  pub struct E(u8);\npub struct F {\n    pub kind: u8,\n}\nimpl Error for E {}\n\
                  impl<T> error::Error for G<T> {}\npub struct G<T>(T);\n\
                  impl de::Error for E {}\n";
    let (public, without) = errors(source);
    assert_eq!(public, BTreeSet::from(["A", "B", "E", "G"]));
    assert_eq!(without, BTreeSet::from(["A", "E", "G"]));
}

#[test]
fn errors_of_addresses_and_comms_have_the_documented_kinds() {
    let error = "tcp://".parse::<Address>().expect_err("no host");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let address: Address = "tcp://127.0.0.1:1".parse().expect("an address");
    let connect = |kind: io::ErrorKind| CommError::Connect {
        address: address.clone(),
        error: kind.into(),
    };
    for (error, kind, is_retryable) in [
        (
            io::ErrorKind::ConnectionRefused,
            ErrorKind::Connection,
            true,
        ),
        // What a proxy in front of a WebSocket answers with status 403.
        (io::ErrorKind::PermissionDenied, ErrorKind::Refused, false),
        (io::ErrorKind::TimedOut, ErrorKind::Timeout, true),
        (io::ErrorKind::InvalidData, ErrorKind::Protocol, false),
    ] {
        let error = connect(error);
        assert_eq!((error.kind(), error.is_retryable()), (kind, is_retryable));
        // An error in another one has the same kind there.
        let error = daskwire_peer::Error::from(error);
        assert_eq!((error.kind(), error.is_retryable()), (kind, is_retryable));
    }
    let error = CommError::Address {
        address,
        error: "tcp://".parse::<Address>().expect_err("no host"),
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // EMFILE
    let error = CommError::Io(io::Error::from_raw_os_error(24));
    assert_eq!(error.kind(), ErrorKind::System, "{error}");
    let error = CommError::PeerSpeaksHttp;
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (ErrorKind::Protocol, false)
    );
}

#[test]
fn errors_of_certificates_have_the_documented_kinds() {
    let missing = TlsSettings::new(
        Path::new("/nonexistent/ca.pem"),
        Path::new("/nonexistent/a.pem"),
    );
    let error = missing.build().expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::System, "{error}");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let error = TlsSettings::new(&*manifest, &*manifest).build();
    let error = error.expect_err("no certificate is in it");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn errors_of_values_have_the_documented_kinds() {
    let error = u8::try_from(Value::from("text")).expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Value);
    let error: WrongType = error;
    assert_eq!(daskwire_peer::Error::from(error).kind(), ErrorKind::Value);
    let error = Value::from("text")
        .deserialize::<u8>()
        .expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert_eq!(ValueError::Type(error).kind(), ErrorKind::Value);
    let what = || "pandas.DataFrame".to_owned();
    for (error, kind) in [
        (ValueError::Unknown { what: what() }, ErrorKind::Value),
        (ValueError::Unsupported { what: what() }, ErrorKind::Invalid),
    ] {
        assert_eq!(error.kind(), kind);
        assert_eq!(GraphError::from(error.clone()).kind(), kind);
        assert_eq!(daskwire_peer::Error::from(error).kind(), kind);
    }
    let error = GraphError::Unknown { what: what() };
    assert_eq!(
        (error.kind(), error.is_retryable()),
        (ErrorKind::Value, false)
    );
    let error = RemoteError::new("KeyError", "x");
    assert_eq!(error.kind(), ErrorKind::Exception);
    let error = "2026".parse::<Release>().expect_err("one number");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
