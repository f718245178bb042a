//! Exceptions of real workers: their messages are those of Python.

use core::time::Duration;

use crate::support::client::client_at;
use daskwire_peer::client::TaskError;
use daskwire_peer::{Client, RemoteError, Value};

/// Timeout of a single step; the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Formats an exception as Python 3.13's `traceback.format_exception_only(error,
/// show_group=True)` does. With `args`, a class's own `__str__` is not called.
const SHOWN: &str = r#"
def shown(error, text=str):
    cls = type(error)
    name = cls.__qualname__.rsplit(".", 1)[-1] if "<locals>" in cls.__qualname__ else cls.__qualname__
    if cls.__module__ not in ("__main__", "builtins"):
        name = cls.__module__ + "." + name
    message = text(error)
    lines = (f"{name}: {message}" if message else name).split("\n")
    for note in getattr(error, "__notes__", ()):
        lines += str(note).split("\n")
    for member in getattr(error, "exceptions", ()):
        lines += ["   " + line for line in shown(member).split("\n")]
    return "\n".join(lines)
"#;

/// Code that raises an exception whose message is that of its builtin class.
const RAISED: &[&str] = &[
    // The message of an exception is that of its arguments.
    "raise ValueError",
    "raise ValueError('')",
    "raise ValueError('it is', 7, None, {'a': (1, [2.5])}, b'x')",
    "raise ValueError('quoted \"it\" isn\\'t', 'é\\n\\u200b')",
    "raise ValueError(404)",
    "raise ValueError(404, 'Not Found')",
    "raise RuntimeError(404, 'Not Found', 'x')",
    "raise ArithmeticError((1,))",
    "raise TypeError([], (), {}, set(), frozenset())",
    "raise TypeError(int, ValueError)",
    "raise LookupError(b'bytes')",
    "raise AttributeError('no x', name='x', obj=None)",
    "raise NameError('no y', name='y')",
    "raise ImportError('no z', name='z', path='/z.py')",
    "import no_such_module",
    "raise StopIteration(3)",
    "raise RuntimeError(ValueError('inner'))",
    "raise RuntimeError(KeyError('inner'), OSError(2, 'gone', 'f'))",
    "raise RuntimeError(FileNotFoundError(2, 'gone', 'f'))",
    "import datetime; raise ValueError(datetime.date(2026, 8, 1))",
    "import datetime; raise ValueError(datetime.datetime(2026, 8, 1, 12, 30))",
    "import decimal; raise ValueError(decimal.Decimal('1.50'))",
    "import decimal; raise ValueError(decimal.Decimal('1.50'), 1)",
    "import pathlib; raise ValueError(pathlib.PurePosixPath('/a/b'))",
    "raise ValueError('x\\udce9')",
    "raise ValueError('x\\udce9', 1)",
    "raise UserWarning('careful')",
    // Numbers and reasons of the system.
    "raise OSError",
    "raise OSError('only a reason')",
    "raise OSError(404, 'Not Found')",
    "raise OSError('a', 'b')",
    "raise OSError(1, 'two', None)",
    "raise OSError(1, 2, 3, 4, 5, 6)",
    "raise FileNotFoundError(2, 'No such file or directory', \"it's.txt\")",
    "raise FileNotFoundError(2, 'No such file or directory', 'caf\\udce9')",
    "raise OSError(18, 'Invalid cross-device link', 'a', None, 'b')",
    "raise PermissionError(13, 'Permission denied', b'bytes')",
    "raise BlockingIOError(11, 'again', 5)",
    "raise TimeoutError('slow')",
    "raise ConnectionResetError(104, 'Connection reset by peer')",
    "import socket; raise socket.gaierror(-2, 'Name or service not known')",
    "import ssl; raise ssl.SSLError(1, '[SSL] failed')",
    "import shutil; raise shutil.SameFileError('same')",
    "open('/no/such/file')",
    "import os; os.rename('/no/such/file', '/nor/this')",
    // Classes with messages of their own.
    "raise KeyError",
    "raise KeyError('a')",
    "raise KeyError('a', 'b')",
    "raise KeyError((1, 'x'))",
    "raise KeyError('')",
    "{}[('x', 0)]",
    "b'a\\xff'.decode('utf-8')",
    "b'\\xd8\\x00'.decode('utf-16-be')",
    "'aé'.encode('ascii')",
    "'aéé'.encode('ascii')",
    "'a😀'.encode('latin-1')",
    "'\\udce9'.encode('utf-8')",
    "raise UnicodeTranslateError('abc', 1, 2, 'why')",
    "raise UnicodeTranslateError('abc', 1, 3, 'why')",
    "raise SyntaxError",
    "raise SyntaxError('plain')",
    "raise SyntaxError('m', ('/dir/f.py', 3, 1, 'x'))",
    "raise SyntaxError('m', (None, 3, 1, 'x'))",
    "raise IndentationError('m', ('f.py', None, None, None))",
    "compile('1 +', '/dir/code.py', 'exec')",
    "import json; json.loads('{\"a\": é\\n 1')",
    "import json; json.loads('{\"a\": 1,\\n\\n \"b\" 1')",
    "import subprocess; raise subprocess.CalledProcessError(3, ['ls', '-l'])",
    "import subprocess; raise subprocess.CalledProcessError(3, 'ls -l')",
    "import zipfile; raise zipfile.BadZipFile('bad')",
    "import struct; struct.unpack('i', b'')",
    // Notes and groups.
    "e = ValueError('x'); e.add_note('a note'); e.add_note('two\\nlines'); raise e",
    "e = KeyError('x'); e.add_note('of a key'); raise e",
    "raise ExceptionGroup('some', [ValueError(1), KeyError('x')])",
    "raise ExceptionGroup('one', [FileNotFoundError(2, 'gone', 'f')])",
    "e = ExceptionGroup('deep', [ExceptionGroup('inner', [OSError('a\\nb')]), ValueError()]); \
     e.exceptions[0].add_note('inner note'); e.add_note('outer'); raise e",
    "raise BaseExceptionGroup('base', [ValueError(1)])",
    // Classes that are sent with the exception.
    "class Own(Exception): pass\nraise Own(404, 'Not Found')",
    "class OwnError(Exception):\n def __init__(self, code): super().__init__(f'code {code}')\n\
     raise OwnError(7)",
    "class OwnOSError(OSError): pass\nraise OwnOSError(404, 'Not Found', 'f')",
    "class OwnKeyError(KeyError): pass\nraise OwnKeyError('x')",
    "class A(KeyError): pass\nclass B(A, ValueError): pass\nraise B('x')",
    "class OwnGroup(ExceptionGroup): pass\nraise OwnGroup('own', [ValueError(1)])",
    "class Attributes(ValueError):\n def __init__(self, *, a):\n  super().__init__(a); self.a = a\n\
     raise Attributes(a=5)",
];

/// Code that raises an exception of a class with a `__str__`, or with a `__reduce__` that
/// returns other arguments: the arguments in the pickle are shown.
const WITH_ARGUMENTS: &[(&str, &str)] = &[
    (
        "class Silent(Exception):\n def __str__(self): return 'own'\nraise Silent(1, 'x')",
        "Silent: (1, 'x')",
    ),
    (
        "class Silent(KeyError):\n def __str__(self): return 'own'\nraise Silent('x')",
        "Silent: x",
    ),
    (
        "class Coded(Exception):\n def __init__(self, code, detail):\n  \
         super().__init__(f'{code}: {detail}'); self.parts = code, detail\n \
         def __reduce__(self): return Coded, self.parts\nraise Coded(7, 'x')",
        "Coded: (7, 'x')",
    ),
    (
        "from functools import partial\nclass Named(Exception):\n def __init__(self, *, name):\n  \
         super().__init__(name); self.name = name\n def __reduce__(self): return \
         partial(Named, name=self.name), ()\nraise Named(name='x')",
        "Named",
    ),
];

async fn string(client: &Client, code: &str) -> String {
    let future = client.submit("builtins.eval", [code]).expect("submitted");
    let result = future.result_within(TIMEOUT).await;
    String::try_from(result.expect("a string")).expect("a string")
}

/// The exception that a task raises.
async fn raised(client: &Client, code: &str) -> RemoteError {
    let globals = Value::dict([("__name__", "__main__")]);
    let call = client
        .call("builtins.exec")
        .argument(code)
        .argument(globals);
    let future = call.submit().expect("submitted");
    match future.result_within(TIMEOUT).await {
        Err(TaskError::Failed { error, .. }) => (*error).clone(),
        other => panic!("{code}: {other:?}"),
    }
}

async fn agree(client: &Client) {
    for code in RAISED {
        let mut whole = format!("{SHOWN}\ntry:\n");
        for line in code.split('\n') {
            whole.push_str(&format!("    {line}\n"));
        }
        whole.push_str("except BaseException as error: expected = shown(error)\n");
        let whole = Value::from(whole.as_str());
        let evaluated = format!(
            "(lambda names: (exec({whole}, names), names['expected'])[1])({{'__name__': '__main__'}})"
        );
        // Surrogates cannot be sent in a result.
        let expected = string(
            client,
            &format!("({evaluated}).encode('utf-8', 'backslashreplace').decode()"),
        )
        .await;
        let error = raised(client, code).await;
        let mut own = RemoteError {
            cause: None,
            ..error
        }
        .to_string();
        // The end of the last line is not shown.
        own.truncate(own.trim_end_matches('\n').len());
        assert_eq!(own, expected, "{code}");
    }
    for (code, expected) in WITH_ARGUMENTS {
        assert_eq!(raised(client, code).await.to_string(), *expected, "{code}");
    }
}

async fn parts(client: &Client) {
    let error = raised(
        client,
        "e = ExceptionGroup('some', [ValueError(1), KeyError('x')]); e.add_note('n'); raise e",
    );
    let error = error.await;
    assert_eq!(error.class, "ExceptionGroup");
    assert_eq!(error.message, "some (2 sub-exceptions)");
    assert_eq!(*error.notes, ["n"]);
    let members: Vec<_> = error.exceptions.iter().map(ToString::to_string).collect();
    assert_eq!(members, ["ValueError: 1", "KeyError: 'x'"]);
    let error = raised(
        client,
        "try: 1 / 0\nexcept ZeroDivisionError as e: raise FileNotFoundError(2, 'gone', 'f') from e",
    );
    assert_eq!(
        error.await.to_string(),
        "FileNotFoundError: [Errno 2] gone: 'f'\ncaused by ZeroDivisionError: division by zero"
    );
}

#[tokio::test]
async fn messages_are_those_of_python() {
    let scheduler = daskwire_testing::scheduler_with_workers(1);
    let client = client_at(scheduler.address()).await;
    agree(&client).await;
    parts(&client).await;
    client.close().await.expect("it closes");
}
