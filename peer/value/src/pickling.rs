//! The settings for writing pickles for the readers of a cluster.

use daskwire_numpy::NumpyModules;
use daskwire_pickle::{Framing, Protocol, WriterOptions};

/// The settings for writing pickles that all readers of a cluster understand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pickling {
    /// The names of numpy's modules in pickles.
    // ROLES CLIENT-10
    pub numpy: NumpyModules,
    /// The protocol of pickles.
    // ROLES CLIENT-13
    pub protocol: Protocol,
}

impl Pickling {
    /// The settings for the newest releases of Python and numpy.
    pub const NEWEST: Self = Self {
        numpy: NumpyModules::Underscore,
        protocol: Protocol::V5,
    };

    /// Pickles that all releases of Python read from 3.4 on.
    pub const PORTABLE: WriterOptions = WriterOptions::new()
        .with_protocol(Protocol::V4)
        .with_framing(Framing::Frames);

    /// The options of a pickle.
    pub const fn options(self) -> WriterOptions {
        Self::PORTABLE.with_protocol(self.protocol)
    }
}
