//! The settings for writing pickles for the readers of a cluster.

use daskwire_numpy::NumpyModules;
use daskwire_pickle::{Framing, Protocol, WriterOptions};

/// The settings for writing pickles that all readers of a cluster understand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pickling {
    /// The names of numpy's modules in pickles.
    // ROLES CLIENT-10
    pub numpy: NumpyModules,
    // ROLES CLIENT-13
    pub(crate) protocol: Protocol,
}

impl Pickling {
    pub const NEWEST: Self = Self {
        numpy: NumpyModules::Underscore,
        protocol: Protocol::V5,
    };

    /// Pickles that all releases of Python read from 3.4 on.
    pub const PORTABLE: WriterOptions = WriterOptions {
        protocol: Protocol::V4,
        framing: Framing::Frames,
    };

    /// The options of a pickle.
    pub(crate) const fn options(self) -> WriterOptions {
        WriterOptions {
            protocol: self.protocol,
            ..Self::PORTABLE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    // ROLES CLIENT-10, CLIENT-13
    #[test]
    fn pickles_suit_python_and_numpy_of_the_cluster() {
        let of = |python: &str, numpy: &str| {
            let packages = Value::dict([("distributed", "2022.2.0"), ("numpy", numpy)]);
            let versions = Value::dict([
                ("host", Value::dict([("python", python)])),
                ("packages", packages),
            ]);
            Pickling::of_versions(&versions)
        };
        let old = of("3.7.16.final.0", "1.21.6");
        assert_eq!(
            (old.protocol, old.numpy),
            (Protocol::V4, NumpyModules::Core)
        );
        assert_eq!(of("3.8.0.final.0", "1.21.6").protocol, Protocol::V5);
        assert_eq!(of("3.13.0.final.0", "2.1.0"), Pickling::default());
        // Schedulers that do not run Python have no version.
        let none = Pickling::of_versions(&Value::dict([("packages", Value::None)]));
        assert_eq!(none, Pickling::default());
    }
}
