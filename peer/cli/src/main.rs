//! The `daskwire` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    daskwire_cli::main(std::env::args_os()).into()
}
