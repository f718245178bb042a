//! Finds the scheduler for commands that are called without its address.

use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use clap::Command;

use crate::command::config::Config;
use crate::command::failure::{Failure, Result};
use crate::command::files::{address_of, scheduler_document};

/// The id of the positional argument of commands that need a scheduler.
const ARGUMENT: &str = "scheduler";

/// The option with the file that a scheduler writes.
const FILE_OPTION: &str = "--scheduler-file";

/// Adds the address of the scheduler to a command line that needs it and does not have it: that
/// of `--scheduler-file`, or else `scheduler-address` of Dask's configuration.
///
/// The address is the first argument that is no option, if it contains `://` or ends with a port, as
/// `localhost:8786` does.
///
/// # Errors
///
/// If the file cannot be read or has no address, or if the configuration cannot be read.
pub(crate) fn complete(command: &Command, mut arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some((subcommand, place)) = subcommand(command, &arguments) else {
        return Ok(arguments);
    };
    let is_needed = subcommand
        .get_positionals()
        .any(|argument| argument.get_id() == ARGUMENT && argument.is_required_set());
    if !is_needed {
        return Ok(arguments);
    }
    let given = &arguments[place + 1..];
    if ["-h", "--help"]
        .iter()
        .any(|help| given.contains(&OsString::from(help)))
    {
        return Ok(arguments);
    }
    let file = option_value(given, FILE_OPTION);
    let first = first_positional(subcommand, given);
    let has_address = first.is_some_and(|first| is_address(&first.to_string_lossy()));
    let address = match (file, has_address) {
        (Some(_), true) => {
            return Err(Failure::usage(format_args!(
                "the scheduler is given by its address and by {FILE_OPTION}"
            )));
        }
        (Some(file), false) => Some(address_in(Path::new(&file))?),
        (None, true) => None,
        (None, false) => Config::load()?.string("scheduler-address"),
    };
    if let Some(address) = address {
        arguments.insert(place + 1, address.into());
    }
    Ok(arguments)
}

fn is_address(text: &str) -> bool {
    let port = text.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    text.contains("://") || matches!(port, Some(Ok(_)))
}

/// The subcommand of a command line, and its index.
fn subcommand<'c>(command: &'c Command, arguments: &[OsString]) -> Option<(&'c Command, usize)> {
    let mut named = arguments.iter().enumerate().skip(1);
    let (place, name) = named.find(|(_, argument)| !argument.to_string_lossy().starts_with('-'))?;
    Some((command.find_subcommand(name)?, place))
}

/// The first argument that is neither an option nor the value of one.
fn first_positional<'a>(command: &Command, arguments: &'a [OsString]) -> Option<&'a OsString> {
    let mut left = arguments.iter();
    while let Some(argument) = left.next() {
        let text = argument.to_string_lossy();
        if text == "--" {
            return left.next();
        }
        if !text.starts_with('-') || text == "-" {
            return Some(argument);
        }
        let mut options = command.get_opts();
        let option = options.find(|option| {
            let long = option.get_long().map(|long| format!("--{long}"));
            let short = option.get_short().map(|short| format!("-{short}"));
            [long, short].contains(&Some(text.to_string()))
        });
        if option.is_some_and(|option| option.get_action().takes_values()) {
            left.next();
        }
    }
    None
}

/// The value of an option, as `--option VALUE` or `--option=VALUE`.
fn option_value(arguments: &[OsString], option: &str) -> Option<OsString> {
    let mut arguments = arguments.iter().take_while(|argument| *argument != "--");
    while let Some(argument) = arguments.next() {
        if argument == option {
            return arguments.next().cloned();
        }
        let text = argument.to_string_lossy();
        if let Some(value) = text
            .strip_prefix(option)
            .and_then(|rest| rest.strip_prefix('='))
        {
            return Some(value.into());
        }
    }
    None
}

/// The address in a file that a scheduler has written.
fn address_in(path: &Path) -> Result<String> {
    /// A FIFO or a file system of other machines may not answer.
    const TIMEOUT: Duration = Duration::from_secs(30);
    let name = path.display();
    let (sender, receiver) = mpsc::channel();
    let owned = path.to_owned();
    std::thread::spawn(move || sender.send(scheduler_document(&owned)));
    let read = receiver.recv_timeout(TIMEOUT);
    let read = read.map_err(|_| format!("{name}: it was not read within {TIMEOUT:?}"))?;
    let document = read.map_err(|error| format!("{name}: {error}"))?;
    Ok(address_of(&document, path)?.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::command::Cli;

    fn first(line: &str) -> Option<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let command = Cli::command();
        let (subcommand, place) = subcommand(&command, &arguments).expect("a subcommand");
        let first = first_positional(subcommand, &arguments[place + 1..]);
        first.map(|first| first.to_string_lossy().into_owned())
    }

    #[test]
    fn addresses_have_a_scheme_or_a_port() {
        for address in ["tcp://a", "tcp://a:1", "localhost:8786", "[::1]:8786"] {
            assert!(is_address(address), "{address}");
        }
        for other in [
            "operator.add",
            "x",
            "native:f",
            "a:b",
            "words.txt",
            "99999:99999",
        ] {
            assert!(!is_address(other), "{other}");
        }
    }

    #[test]
    fn values_of_options_are_no_positional_arguments() {
        for (line, expected) in [
            ("daskwire ps", None),
            ("daskwire -v ps tcp://a:1", Some("tcp://a:1")),
            ("daskwire gather --raw x", Some("x")),
            ("daskwire gather --output x.npy y", Some("y")),
            ("daskwire gather -o x.npy y", Some("y")),
            ("daskwire gather --output=x.npy y", Some("y")),
            (
                "daskwire submit --workers tcp://a:1 operator.neg 1",
                Some("operator.neg"),
            ),
            ("daskwire gather -- --key", Some("--key")),
            ("daskwire scatter - --key x", Some("-")),
        ] {
            assert_eq!(first(line).as_deref(), expected, "{line}");
        }
    }
}
