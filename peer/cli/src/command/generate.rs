//! `daskwire completions` and `daskwire man`.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::command::failure::Result;
use crate::command::terminal;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory for the pages, which exists
    directory: PathBuf,
}

/// Prints a shell completion script.
pub(crate) fn completions(arguments: &Completions, command: &mut Command) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, command, "daskwire", &mut script);
    let script = String::from_utf8_lossy(&script);
    Ok(terminal::print(script.trim_end())?)
}

/// Writes a manual page for the program and for each command.
pub(crate) fn man(arguments: &Man, command: Command) -> Result {
    let written = clap_mangen::generate_to(command, &arguments.directory);
    let name = arguments.directory.display();
    Ok(written.map_err(|error| format!("{name}: {error}"))?)
}
