//! Exceptions and tracebacks that Dask pickles.

use std::path::Path;

use daskwire_numpy::known::{self, ConvertErrorKind, Exception, Known, KnownValue, Traceback};
use daskwire_pickle::tree::{Node, Registry, Tree};
use daskwire_pickle::{Limits, PickleError, Reader};

/// The pickles of one value in a file, one for each protocol.
fn pickles(file: &str, name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/pickles");
    let text = std::fs::read_to_string(path.join(file)).expect("a file of pickles");
    let pickles: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON lines"))
        .filter(|json| json["name"] == name)
        .map(|json| unhex(json["pickle"].as_str().expect("hex")))
        .collect();
    assert_eq!(pickles.len(), 6, "{name}");
    pickles
}

fn build(pickle: &[u8]) -> Result<Tree<'_>, PickleError> {
    let reader = Reader::new(pickle).text_opcodes(true);
    Tree::build::<&[u8]>(reader, &[], &Limits::HOST)
}

fn unhex(hex: &str) -> Vec<u8> {
    let (pairs, _) = hex.as_bytes().as_chunks::<2>();
    pairs
        .iter()
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hex")
        })
        .collect()
}

fn exceptions() -> Registry<Known> {
    let mut registry = Registry::new();
    registry.allow_all(known::EXCEPTIONS);
    registry
}

fn exception<'t, 'p>(node: Node<'t, 'p>) -> Exception<'t, 'p> {
    match known::convert(&exceptions(), node) {
        Ok(KnownValue::Exception(exception)) => exception,
        other => panic!("{other:?}: {node}"),
    }
}

/// Its class and arguments.
fn said(exception: &Exception<'_, '_>) -> (String, Vec<String>) {
    let name = exception.class.name.to_str().expect("text").into_owned();
    let arguments = exception.arguments.map(|node| node.to_string());
    (name, arguments.collect())
}

/// The only class in Python 2, which uses protocols 0 to 2.
fn class_of_files(protocol: usize) -> &'static str {
    match protocol {
        0..=2 => "OSError",
        _ => "FileNotFoundError",
    }
}

fn frames(traceback: Option<Traceback<'_, '_>>) -> Vec<String> {
    let frames = traceback.into_iter().flatten();
    frames.map(|frame| frame.to_string()).collect()
}

#[test]
fn dask_exceptions_have_causes_and_all_frames() {
    let frame =
        |line: u32, function: &str| format!("File \"example.py\", line {line}, in {function}");
    for pickle in pickles("dask.jsonl", "exception") {
        let tree = build(&pickle).expect("a tree");
        let outer = exception(tree.root());
        assert_eq!(
            said(&outer),
            ("ValueError".into(), vec!["\"outer\"".into()])
        );
        assert_eq!(frames(outer.traceback), [frame(11, "outer")]);
        let cause = outer.cause.expect("raised from another");
        let context = outer.context.expect("while another was handled");
        assert_eq!(cause.index(), context.index(), "they are one");
        assert!(outer.suppress_context, "as the cause is shown");
        let cause = exception(cause);
        let arguments = vec!["\"missing\"".into(), "1".into()];
        assert_eq!(said(&cause), ("KeyError".into(), arguments));
        let expected = [frame(9, "outer"), frame(5, "inner")];
        assert_eq!(frames(cause.traceback), expected);
        assert!(cause.cause.is_none() && cause.context.is_none());
    }
    for pickle in pickles("dask.jsonl", "exception-deep") {
        let tree = build(&pickle).expect("a tree");
        let exception = exception(tree.root());
        let (class, arguments) = said(&exception);
        assert_eq!((class.as_str(), arguments.len()), ("ZeroDivisionError", 1));
        assert_eq!(frames(exception.traceback), vec![frame(14, "deep"); 3]);
    }
    for (protocol, pickle) in pickles("dask.jsonl", "exception-of-files")
        .iter()
        .enumerate()
    {
        let tree = build(pickle).expect("a tree");
        let exception = exception(tree.root());
        let (class, arguments) = said(&exception);
        let expected = (class_of_files(protocol), 2);
        assert_eq!((class.as_str(), arguments.len()), expected);
        assert!(exception.traceback.is_none());
    }
    for pickle in pickles("dask.jsonl", "traceback") {
        let tree = build(&pickle).expect("a tree");
        let Ok(KnownValue::Traceback(traceback)) = known::convert(&exceptions(), tree.root())
        else {
            panic!("{tree}");
        };
        let found: Vec<_> = traceback.collect();
        assert_eq!(found.len(), 2);
        for frame in &found {
            let parts = (&*frame.file, frame.line, &*frame.function);
            assert_eq!(parts, ("example.py", 14, "deep"));
        }
        let error = known::convert(&Registry::new(), tree.root()).expect_err("nothing is allowed");
        assert_eq!(error.kind, ConvertErrorKind::NotAllowed);
    }
}

#[test]
fn exceptions_without_tblib_are_read() {
    for (protocol, pickle) in pickles("library.jsonl", "exceptions").iter().enumerate() {
        let tree = build(pickle).expect("a tree");
        let found: Vec<_> = tree.root().items().map(exception).collect();
        let classes: Vec<_> = found.iter().map(|exception| said(exception).0).collect();
        let of_files = class_of_files(protocol);
        let expected = ["ValueError", "KeyError", of_files, "RuntimeError"];
        assert_eq!(classes, expected, "protocol {protocol}");
        assert!(found.iter().all(|exception| exception.traceback.is_none()));
    }
}

/// `unpickle_traceback(FRAME, 1, NEXT)`, where the frame is in file `a` and
/// function `b`, and `next` are the opcodes of the rest.
fn traceback_of(next: &[u8]) -> Vec<u8> {
    [
        &b"ctblib.pickling_support\nunpickle_traceback\n(ctblib\nFrame\n)\x81}Vf_code\n"[..],
        b"ctblib\nCode\n)\x81}(Vco_filename\nVa\nVco_name\nVb\nubsbq\x01K\x01",
        next,
        b"tR.",
    ]
    .concat()
}

fn frames_of(pickle: &[u8]) -> usize {
    let tree = build(pickle).expect("a tree");
    match known::convert(&exceptions(), tree.root()) {
        Ok(KnownValue::Traceback(traceback)) => traceback.count(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn recursive_tracebacks_end() {
    // The last has None, or has no `tb_next`.
    assert_eq!(frames_of(&traceback_of(b"N")), 1);
    let object = |state: &[u8]| {
        let next = [b"ctblib\nTraceback\n)\x81q\x02}(", state, b"ub"].concat();
        traceback_of(&next)
    };
    let whole = b"Vtb_frame\nh\x01Vtb_lineno\nK\x02";
    assert_eq!(frames_of(&object(whole)), 2);
    assert_eq!(
        frames_of(&object(&[&whole[..], b"Vtb_next\nN"].concat())),
        2
    );
    // Frames in another form than tblib's are ignored.
    assert_eq!(frames_of(&object(b"Vtb_frame\nh\x01")), 1);
    assert_eq!(frames_of(&object(b"Vtb_lineno\nK\x02")), 1);
    assert_eq!(frames_of(&object(b"Vtb_frame\nh\x01Vtb_lineno\nVno\n")), 1);
    assert_eq!(frames_of(&traceback_of(b"K\x05")), 1);
    // One that contains itself takes linear time.
    let itself = [&whole[..], b"Vtb_next\nh\x02"].concat();
    assert!((2..1_000).contains(&frames_of(&object(&itself))));
    let wide = [&itself[..], &b"K\0N".repeat(200_000)].concat();
    assert!((2..1_000).contains(&frames_of(&object(&wide))));
    // Its frames share a long name, which each frame reads.
    let name = [b"V", &b"a".repeat(1 << 16)[..], b"\n"].concat();
    let pickle = object(&itself);
    let at = pickle
        .windows(3)
        .position(|at| at == b"Va\n")
        .expect("a file");
    let long = [&pickle[..at], &name, &pickle[at + 3..]].concat();
    assert!(frames_of(&long) < 2);
}
