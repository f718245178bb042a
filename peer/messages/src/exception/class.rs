//! Classes of exceptions.

use daskwire_pickle::tree;

/// The class of an exception.
pub(super) struct Class {
    pub(super) module: String,
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// The builtin class that determines the message of an exception.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Other,
    Os,
    BlockingIo,
    Ssl,
    Key,
    Syntax,
    UnicodeEncode,
    UnicodeDecode,
    UnicodeTranslate,
    Group,
    Json,
    CalledProcess,
    KilledWorker,
}

impl Class {
    /// The name in tracebacks, which omit two modules.
    pub(super) fn shown(&self) -> String {
        match &*self.module {
            "__main__" => self.name.clone(),
            _ => self.qualified(),
        }
    }

    pub(super) fn qualified(&self) -> String {
        match &*self.module {
            "" | "builtins" | "__builtin__" | "exceptions" => self.name.clone(),
            module => format!("{module}.{}", self.name),
        }
    }
}

/// Classes of exceptions by the class that determines their message. The aliases of Python 2
/// and of other modules are included.
const KINDS: &[(&str, &[&str], Kind)] = &[
    (
        "builtins",
        &[
            "OSError",
            "IOError",
            "EnvironmentError",
            "WindowsError",
            "BrokenPipeError",
            "ChildProcessError",
            "ConnectionAbortedError",
            "ConnectionError",
            "ConnectionRefusedError",
            "ConnectionResetError",
            "FileExistsError",
            "FileNotFoundError",
            "InterruptedError",
            "IsADirectoryError",
            "NotADirectoryError",
            "PermissionError",
            "ProcessLookupError",
            "TimeoutError",
        ],
        Kind::Os,
    ),
    ("builtins", &["BlockingIOError"], Kind::BlockingIo),
    ("builtins", &["KeyError"], Kind::Key),
    (
        "builtins",
        &["SyntaxError", "IndentationError", "TabError"],
        Kind::Syntax,
    ),
    ("builtins", &["UnicodeEncodeError"], Kind::UnicodeEncode),
    ("builtins", &["UnicodeDecodeError"], Kind::UnicodeDecode),
    (
        "builtins",
        &["UnicodeTranslateError"],
        Kind::UnicodeTranslate,
    ),
    (
        "builtins",
        &["ExceptionGroup", "BaseExceptionGroup"],
        Kind::Group,
    ),
    (
        "exceptiongroup",
        &["ExceptionGroup", "BaseExceptionGroup"],
        Kind::Group,
    ),
    (
        "socket",
        &["error", "gaierror", "herror", "timeout"],
        Kind::Os,
    ),
    ("select", &["error"], Kind::Os),
    (
        "shutil",
        &[
            "Error",
            "ExecError",
            "ReadError",
            "SameFileError",
            "SpecialFileError",
        ],
        Kind::Os,
    ),
    (
        "ssl",
        &[
            "SSLError",
            "SSLCertVerificationError",
            "SSLEOFError",
            "SSLSyscallError",
            "SSLWantReadError",
            "SSLWantWriteError",
            "SSLZeroReturnError",
        ],
        Kind::Ssl,
    ),
    ("json.decoder", &["JSONDecodeError"], Kind::Json),
    ("subprocess", &["CalledProcessError"], Kind::CalledProcess),
    (
        "distributed.scheduler",
        &["KilledWorker"],
        Kind::KilledWorker,
    ),
];

pub(super) fn kind(class: &tree::Global<'_>) -> Kind {
    match (class.module.to_str(), class.name.to_str()) {
        (Some(module), Some(name)) => kind_of(&module, &name),
        _ => Kind::Other,
    }
}

pub(super) fn kind_of(module: &str, name: &str) -> Kind {
    let module = match module {
        "exceptions" => "builtins",
        module => module,
    };
    let mut kinds = KINDS.iter();
    let found = kinds.find(|(of, names, _)| *of == module && names.contains(&name));
    found.map_or(Kind::Other, |(_, _, kind)| *kind)
}

/// Whether a name in lower case is that of a builtin type.
pub(super) fn is_builtin_type(global: &tree::Global<'_>) -> bool {
    let types = [
        "bool",
        "bytearray",
        "bytes",
        "complex",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "object",
        "range",
        "set",
        "slice",
        "str",
        "tuple",
        "type",
    ];
    global.module == *"builtins" && types.iter().any(|name| global.name == **name)
}
