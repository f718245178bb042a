//! Replay of the committed seeds.

use std::path::Path;

use crate::{SURFACES, run};

/// Runs a surface on its seeds.
pub(crate) fn replay(name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(name);
    let seeds = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("no seeds for {name} in {}: {error}", folder.display()));
    let mut count = 0;
    for seed in seeds {
        let path = seed.expect("a readable folder").path();
        let bytes = std::fs::read(&path).expect("a readable seed");
        println!("{}", path.display());
        run(name, &bytes);
        count += 1;
    }
    assert!(
        count >= 10,
        "{name} has {count} seeds; there should be ten at least"
    );
}

#[test]
fn every_target_has_a_surface() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz_targets");
    let mut targets: Vec<String> = std::fs::read_dir(root)
        .expect("the folder of targets")
        .map(|entry| entry.expect("an entry").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    let mut surfaces: Vec<&str> = SURFACES.iter().map(|surface| surface.name).collect();
    surfaces.sort_unstable();
    assert_eq!(targets, surfaces);

    // `cargo fuzz build` builds the programs in the manifest and silently skips
    // those whose features are off.
    let manifest = include_str!("../Cargo.toml");
    let mut programs: Vec<&str> = manifest
        .split("[[bin]]\nname = \"")
        .skip(1)
        .filter_map(|entry| entry.split('"').next())
        .collect();
    programs.sort_unstable();
    assert_eq!(programs, surfaces);
    assert!(!manifest.contains("required-features"));
}
