//! Passes defmt's script to the linker, which places its strings in a section
//! of their own.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_DEFMT").is_some() {
        println!("cargo::rustc-link-arg-bin=roles=-Tdefmt.x");
    }
}
