//! The committed corpora: the archive `corpus.tar.gz`, and the folders of `seeds/`
//! for inputs that were found after it was made.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::FuzzTarget;

/// The folder with `corpus.tar.gz` and `seeds/`, of all fuzz crates.
const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The contents of the archive by path.
static ARCHIVE: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let archive = fs::read(Path::new(FOLDER).join("corpus.tar.gz"));
    untar(&gunzip(&archive.expect("the archive of the corpora")))
});

/// Runs a target on its corpus.
///
/// # Panics
///
/// If a property does not hold for one of the inputs, or there are fewer than ten.
pub fn replay(targets: &[FuzzTarget], name: &str) {
    let inputs = inputs(name);
    for (path, input) in &inputs {
        println!("{path}");
        FuzzTarget::run(targets, name, input);
    }
    let count = inputs.len();
    assert!(
        count >= 10,
        "{name} has {count} inputs; there should be ten"
    );
}

/// Checks that the fuzz crate in `folder` has a file and a program in its manifest for
/// each of its targets, and no others.
///
/// # Panics
///
/// If they are not.
pub fn check_targets(folder: &str, targets: &[FuzzTarget]) {
    let folder = Path::new(folder);
    let mut files: Vec<String> = fs::read_dir(folder.join("fuzz_targets"))
        .expect("the folder of targets")
        .map(|entry| entry.expect("an entry").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    files.sort();
    let mut names: Vec<&str> = targets.iter().map(|target| target.name).collect();
    names.sort_unstable();
    assert_eq!(files, names);

    // `cargo fuzz build` builds the programs in the manifest and silently skips
    // those whose features are off.
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("the manifest");
    let mut programs: Vec<&str> = manifest
        .split("[[bin]]\nname = \"")
        .skip(1)
        .filter_map(|entry| entry.split('"').next())
        .collect();
    programs.sort_unstable();
    assert_eq!(programs, names);
    assert!(!manifest.contains("required-features"));
}

/// The inputs of a target, each with its path.
///
/// # Panics
///
/// If the archive or the seeds cannot be read.
pub fn inputs(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = format!("corpus/{name}/");
    let archived = ARCHIVE.iter().filter(|(path, _)| path.contains(&folder));
    let mut inputs: Vec<_> = archived
        .map(|(path, input)| (path.clone(), input.clone()))
        .collect();
    let seeds = fs::read_dir(Path::new(FOLDER).join("seeds").join(name));
    for seed in seeds.into_iter().flatten() {
        let path = seed.expect("a readable folder").path();
        let input = fs::read(&path).expect("a readable seed");
        inputs.push((path.display().to_string(), input));
    }
    inputs
}

/// Decompresses what `gzip --no-name` has written.
fn gunzip(file: &[u8]) -> Vec<u8> {
    let (header, rest) = file.split_at(10);
    assert_eq!(header[..4], *b"\x1f\x8b\x08\x00", "a plain header of gzip");
    let (data, trailer) = rest.split_at(rest.len() - 8);
    let data = miniz_oxide::inflate::decompress_to_vec(data).expect("a whole archive");
    let len = u32::try_from(data.len()).expect("a small archive");
    assert_eq!(len.to_le_bytes(), trailer[4..]);
    data
}

/// The files of a tar archive by path.
fn untar(mut archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    const BLOCK_LEN: usize = 512;
    const NAME: core::ops::Range<usize> = 0..100;
    const LEN: core::ops::Range<usize> = 124..135;
    const KIND: usize = 156;
    let field_string = |field: &[u8]| {
        let end = field.iter().position(|&byte| byte == 0);
        let field = &field[..end.unwrap_or(field.len())];
        String::from_utf8(field.to_vec()).expect("a field of ASCII")
    };
    let mut files = BTreeMap::new();
    // A block of zeros ends the archive.
    while archive[0] != 0 {
        let (header, rest) = archive.split_at(BLOCK_LEN);
        let len = usize::from_str_radix(&field_string(&header[LEN]), 8).expect("an octal number");
        if header[KIND] == b'0' {
            files.insert(field_string(&header[NAME]), rest[..len].to_vec());
        }
        archive = &rest[len.next_multiple_of(BLOCK_LEN)..];
    }
    files
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::{env, fs, process};

    use super::{ARCHIVE, FOLDER, gunzip, untar};

    #[test]
    fn packing_keeps_the_archive_and_the_seeds() {
        let folder = env::temp_dir().join(format!("daskwire-fuzz-pack-{}", process::id()));
        for path in [
            "fuzz_targets/lz4.rs",
            "peer/fuzz_targets/graph.rs",
            "seeds/graph/seed",
        ] {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, b"").expect("a file");
        }
        for name in ["corpus.sh", "corpus.tar.gz"] {
            fs::copy(Path::new(FOLDER).join(name), folder.join(name)).expect("a copy");
        }
        let mut pack = Command::new(folder.join("corpus.sh"));
        // Nothing was found, so that cargo-fuzz is not run.
        let packed = pack.arg("pack").env("CARGO_FUZZ", "false").output();
        let packed = packed.expect("bash");
        assert!(packed.status.success(), "{packed:?}");
        assert!(folder.join("seeds/graph/seed").exists());
        let archive = fs::read(folder.join("corpus.tar.gz")).expect("the archive");
        assert!(untar(&gunzip(&archive)) == *ARCHIVE, "the archive differs");
        fs::remove_dir_all(&folder).expect("the folder can be removed");
    }
}
