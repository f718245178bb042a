//! Gives the linker the script of defmt, which sets its strings aside.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_DEFMT").is_some() {
        println!("cargo::rustc-link-arg-bin=roles=-Tdefmt.x");
    }
}
