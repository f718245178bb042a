//! Arguments that several commands share, and the files that they name.

use std::io::Read as _;
use std::path::Path;

use clap::ValueEnum;
use daskwire::frame::Prefix;
use daskwire::message::Layout;

use crate::command::failure::Result;

/// The prefix of a message's frames.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PrefixChoice {
    /// No prefix: distributed up to 2021.2.0
    None,
    /// A length of 8 bytes: distributed 2021.3.0 and later
    U64,
    /// Detected from the input
    Auto,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LayoutChoice {
    /// Header, body, payload header: distributed 1.14.0 to 2021.3.0
    Classic,
    /// Body with placeholders: distributed 2021.3.1 and later
    Modern,
    /// Detected for each message
    Auto,
}

impl PrefixChoice {
    pub(crate) const fn get(self) -> Option<Prefix> {
        match self {
            Self::None => Some(Prefix::None),
            Self::U64 => Some(Prefix::U64),
            Self::Auto => None,
        }
    }
}

impl LayoutChoice {
    pub(crate) const fn get(self) -> Option<Layout> {
        match self {
            Self::Classic => Some(Layout::Classic),
            Self::Modern => Some(Layout::Modern),
            Self::Auto => None,
        }
    }
}

/// Whether `-` is given as a file, which is standard input or output.
pub(crate) fn is_standard_stream(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The name of the input file in messages.
pub(crate) fn name(file: &Path) -> String {
    if is_standard_stream(file) {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    }
}

pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    let bytes = if is_standard_stream(file) {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    Ok(bytes.map_err(|error| format!("{}: {error}", name(file)))?)
}
