//! Tests of trees: pickles of CPython and hostile pickles.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;

use crate::reader::vectors;
use daskwire_pickle::tree::{Registry, Tree, Value};
use daskwire_pickle::{
    ArgumentForm, Limits, Opcode, Operand, PickleError, PickleErrorKind, Reader,
};

/// An allocator that counts the memory of each thread.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(before: usize, after: usize) {
    let _ = NOW.try_with(|now| {
        now.set((now.get() + after).saturating_sub(before));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is forwarded to the system's allocator.
#[allow(unsafe_code, reason = "an allocator can only be implemented so")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller keeps the promises of this same function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both may exist at the same time.
        count(0, new_size);
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Limits that an input of some megabytes cannot reach.
const WIDE: Limits = Limits::HOST
    .with_opcode_count(u32::MAX)
    .with_value_count(u32::MAX)
    .with_stack_count(u32::MAX)
    .with_memo_count(u32::MAX);

fn build<'p>(pickle: &'p [u8], buffers: &'p [Vec<u8>]) -> Result<Tree<'p>, PickleError> {
    let reader = Reader::with_limits(pickle, &WIDE).text_opcodes(true);
    Tree::build(reader, buffers, &WIDE)
}

/// The tree and the peak memory of building it, which is checked against the
/// bound.
fn measured(pickle: &[u8]) -> (Result<Tree<'_>, PickleError>, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let tree = build(pickle, &[]);
    let peak = PEAK.get() - before;
    assert!(
        peak <= 64 * pickle.len() + 256,
        "{peak} bytes for a pickle of {}",
        pickle.len()
    );
    (tree, peak)
}

fn kind_of(pickle: &[u8]) -> PickleErrorKind {
    match measured(pickle).0 {
        Ok(tree) => panic!("{} is {tree}", pickle.escape_ascii()),
        Err(error) => error.kind,
    }
}

fn shown(pickle: &[u8]) -> String {
    match measured(pickle).0 {
        Ok(tree) => tree.to_string(),
        Err(error) => panic!("{}: {error}", pickle.escape_ascii()),
    }
}

#[test]
fn every_cpython_pickle_builds_a_tree() {
    for vector in vectors() {
        let (name, pickle) = (vector.name, vector.pickle);
        let buffers = vector.buffers.unwrap_or_default();
        let tree = build(&pickle, &buffers).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(tree.pickle_len(), pickle.len(), "{name}");
        let text = tree.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{name}: {text}");
        let again = build(&pickle, &buffers).expect("the same");
        assert_eq!(tree, again, "{name}");
        // Without its last buffer, or with one more, it is refused.
        let mut other = buffers.clone();
        other.push(vec![0]);
        assert!(matches!(
            build(&pickle, &other).map_err(|error| error.kind),
            Err(PickleErrorKind::TooManyBuffers { .. })
        ));
        if let Some((_, fewer)) = buffers.split_last() {
            assert!(matches!(
                build(&pickle, fewer).map_err(|error| error.kind),
                Err(PickleErrorKind::TooFewBuffers { .. })
            ));
        }
    }
}

#[test]
fn tree_is_independent_of_the_opcodes_used() {
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        usize::try_from(random >> 33).expect("31 bits") % bound.max(1)
    };
    for vector in vectors() {
        let (mut pickle, buffers) = (vector.pickle, vector.buffers.unwrap_or_default());
        for text_opcodes in [false, true] {
            crate::longer::check(&pickle, text_opcodes, &buffers, &WIDE);
        }
        for _ in 0..8 {
            let limit = u32::try_from(below(40)).expect("it is small");
            let at_most = |choice| if choice == 0 { limit } else { u32::MAX };
            let limits = Limits::HOST
                .with_opcode_count(at_most(below(4)))
                .with_value_count(at_most(below(4)))
                .with_stack_count(at_most(below(4)))
                .with_memo_count(at_most(below(4)));
            crate::longer::check(&pickle, true, &buffers, &limits);
        }
        pickle.truncate(2048);
        for end in 0..pickle.len() {
            crate::longer::check(&pickle[..end], true, &buffers, &WIDE);
        }
        // One byte is changed, mostly an opcode.
        for _ in 0..64 {
            let place = below(pickle.len());
            let before = pickle[place];
            pickle[place] = match below(4) {
                0 => before ^ (1 << below(8)),
                _ => Opcode::ALL[below(Opcode::ALL.len())].byte(),
            };
            crate::longer::check(&pickle, true, &buffers, &WIDE);
            pickle[place] = before;
        }
    }
}

#[test]
fn values_match_what_was_pickled() {
    for (pickle, text) in [
        (&b"N."[..], "None"),
        (b"(I1\nI01\nL-5L\nF1.5\nt.", "(1, True, -5, 1.5)"),
        (b"S'a\\x41\\n\\101\\7\\q'\n.", r#"str b"aA\nA\x07\\q""#),
        (b"S''\n.", r#"str b"""#),
        (
            b"V\\u00e4\xe4\\U0001f600\\n\\\\u0041\n.",
            r#""ää😀\\n\\\\u0041""#,
        ),
        (b"V\\ud800\n.", r#""\xed\xa0\x80""#),
        (b"(lp0\ng0\na.", "[<again: see byte 1>]"),
        (b"}q\x00K\x01h\x00s.", "{1: <again: see byte 0>}"),
        (b"K\x01\x85.", "(1,)"),
        (b"K\x012\x86.", "(1, 1)"),
        (b"]2\x86.", "([], [])"),
        (b"]K\x01a2\x86.", "([1], <again: see byte 0>)"),
        (b"(K\x01K\x02(K\x031K\x040t.", "(1, 2)"),
        (b"(K\x010(0(0t.", "()"),
        (b"\x8f(K\x01K\x02\x90.", "set(1, 2)"),
        (b"(K\x01\x91.", "frozenset(1)"),
        (b"(K\x01K\x02d.", "{1: 2}"),
        (b"](K\x01e(K\x02K\x03eK\x04a.", "[1, 2, 3, 4]"),
        (
            b"cos\nsystem\n(Vid\ntR.",
            r#"call(global os.system, ("id",))"#,
        ),
        (b"ca\nb\n)\x81}b.", "new(global a.b, ()).state({})"),
        (
            b"ca\nb\n)}\x92(K\x01K\x02e(K\x03K\x04u.",
            "new(global a.b, (), {}).append(1, 2).set(3: 4)",
        ),
        (b"(K\x01ia\nb\n.", "instance(a.b, (1,))"),
        (b"(ca\nb\nK\x01o.", "object(global a.b, (1,))"),
        (b"\x82\x05.", "extension 5"),
        (b"Pan id\n.", r#"persistent "an id""#),
        (b"K\x05Q.", "persistent(5)"),
        (b"ca\nb\n\x98.", "read-only(global a.b)"),
        (
            b"\x96\x02\0\0\0\0\0\0\0hiq\x00\x98h\x00\x86.",
            r#"(read-only bytearray b"hi", bytearray b"hi")"#,
        ),
        // Appending no items to a number has no effect.
        (b"K\x01(e.", "1"),
        // Marks below the result do not matter.
        (b"((K\x01.", "1"),
    ] {
        assert_eq!(shown(pickle), text, "{}", pickle.escape_ascii());
    }
}

#[test]
fn invalid_stack_operations_are_refused() {
    use Opcode as O;
    use PickleErrorKind as K;
    let wrong = |opcode, expected| K::WrongOperand { opcode, expected };
    let underflow = |opcode| K::StackUnderflow { opcode };
    for (pickle, kind) in [
        (&b"N"[..], K::MissingStop),
        (b"K\x01K\x02s.", underflow(O::SetItem)),
        (b"N(\x85.", underflow(O::Tuple1)),
        (b"N(.", underflow(O::Stop)),
        (b"N1.", K::NoMark { opcode: O::PopMark }),
        (b"((e.", underflow(O::Appends)),
        (b"](N(Ne.", wrong(O::Appends, Operand::List)),
        (b"00.", underflow(O::Pop)),
        (b"(o.", underflow(O::Obj)),
        (b"h\x05.", K::NotMemoized { index: 5 }),
        (
            b"Nr\0\xc2\xeb\x0bj\x01\xc2\xeb\x0b.",
            K::NotMemoized { index: 200_000_001 },
        ),
        (
            b"(Nd.",
            K::OddItems {
                opcode: O::Dict,
                count: 1,
            },
        ),
        (
            b"}(NNNu.",
            K::OddItems {
                opcode: O::SetItems,
                count: 3,
            },
        ),
        (b"NNa.", wrong(O::Append, Operand::List)),
        (b"](N\x90.", wrong(O::AddItems, Operand::Set)),
        (b"]NNs.", wrong(O::SetItem, Operand::Dict)),
        (b"N)R.", wrong(O::Reduce, Operand::Callable)),
        (b"ca\nb\n]R.", wrong(O::Reduce, Operand::Tuple)),
        (b"ca\nb\n)]\x92.", wrong(O::NewObjEx, Operand::Dict)),
        (b"]}b.", wrong(O::Build, Operand::Object)),
        (b"K\x01K\x02\x93.", wrong(O::StackGlobal, Operand::Str)),
        (b"S'\n.", K::NotQuoted),
        (b"\x82\0.", K::ExtensionCode { code: 0 }),
        (b"N\x98.", K::NoBuffer),
        (b"\x97.", K::TooFewBuffers { buffer_count: 0 }),
    ] {
        assert_eq!(kind_of(pickle), kind, "{}", pickle.escape_ascii());
    }
}

/// A valid argument of an opcode.
fn argument(opcode: Opcode) -> Vec<u8> {
    match opcode.argument_form() {
        ArgumentForm::None => vec![],
        ArgumentForm::Bytes(len) | ArgumentForm::Counted(len) => vec![0; len.into()],
        ArgumentForm::Line => match opcode {
            Opcode::String => b"''\n".to_vec(),
            Opcode::Unicode | Opcode::PersId => b"a\n".to_vec(),
            _ => b"0\n".to_vec(),
        },
        ArgumentForm::TwoLines => b"a\nb\n".to_vec(),
        _ => panic!("{opcode} has another form"),
    }
}

#[test]
fn stack_underflow_is_reported_by_every_opcode() {
    const MAKES_ONE: &str = "INT BININT BININT1 BININT2 LONG LONG1 LONG4 STRING BINSTRING \
        SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 NONE NEWTRUE NEWFALSE \
        UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 FLOAT BINFLOAT EMPTY_LIST EMPTY_TUPLE \
        EMPTY_DICT EMPTY_SET GLOBAL PERSID";
    let is_in = |names: &str, opcode: &Opcode| names.split(' ').any(|name| name == opcode.name());
    for opcode in Opcode::ALL {
        for mark in [&b""[..], b"("] {
            let pickle = [mark, &[opcode.byte()], &argument(*opcode), b"."].concat();
            let built = build(&pickle, &[]).map(|tree| tree.to_string());
            let takes_a_mark = !mark.is_empty() && is_in("LIST TUPLE DICT FROZENSET INST", opcode);
            assert_eq!(
                built.is_ok(),
                is_in(MAKES_ONE, opcode) || takes_a_mark,
                "{opcode}: {built:?}"
            );
        }
    }
}

/// Runs on a thread with a small stack.
fn with_small_stack(run: impl FnOnce() + Send) {
    thread::scope(|scope| {
        thread::Builder::new()
            .stack_size(64 << 10)
            .spawn_scoped(scope, run)
            .expect("a thread")
            .join()
            .expect("it ends");
    });
}

#[test]
fn deep_nesting_needs_no_recursion() {
    const DEPTH: usize = 1_000_000;
    let repeated =
        |begin: &[u8], step: &[u8], end: &[u8]| [begin, &step.repeat(DEPTH), end, b"."].concat();
    let pickles = [
        repeated(b")", b"\x85", b""),
        [b"(".repeat(DEPTH), b"l".repeat(DEPTH), b".".to_vec()].concat(),
        repeated(b"N", b"N\x86", b""),
        repeated(b"ca\nb\n", b")R", b""),
        repeated(b"N", b"Q", b""),
        repeated(b"ca\nb\n", b"}b", b""),
        repeated(b"]", b"Na", b""),
        [b"]".repeat(DEPTH), b"a".repeat(DEPTH - 1), b".".to_vec()].concat(),
        [b"(".repeat(DEPTH), b"t".repeat(DEPTH), b".".to_vec()].concat(),
    ];
    with_small_stack(|| {
        for pickle in &pickles {
            let tree = measured(pickle).0.unwrap_or_else(|error| panic!("{error}"));
            let other = build(pickle, &[]).expect("the same");
            assert_eq!(tree, other);
            assert!(tree.to_string().len() < 1 << 20);
            assert!(format!("{tree:.100}").len() < 4_000);
            assert!(tree.root().walk(usize::MAX).count() > DEPTH);
            let short = tree.root().walk(10).last();
            assert!(matches!(short, Some(Err(error)) if error.budget == 10));
            drop(other);
        }
    });
}

#[test]
fn sharing_costs_nothing_and_never_takes_exponential_time() {
    for (begin, step) in [
        (&b")"[..], &b"2\x86"[..]),
        (b"]", b"2\x86"),
        (b"]", b"q\x00(h\x00h\x00l"),
        // A name with two states.
        (b"ca\nb\n", b"q\x00ca\nb\nh\x00bh\x00b"),
    ] {
        let pickle = [begin, &step.repeat(60), b"."].concat();
        let tree = measured(&pickle).0.expect("a tree");
        assert_eq!(tree, build(&pickle, &[]).expect("the same"));
        assert!(tree.to_string().len() < 1 << 16);
        let walked = tree.root().walk(10_000).last();
        assert!(matches!(walked, Some(Err(error)) if error.budget == 10_000));
        assert_eq!(tree.root().walk(10_000).filter(Result::is_err).count(), 1);
    }
}

/// One comparison of each reference would take much longer.
#[test]
fn shared_strings_are_compared_once() {
    let of = |string: u8, references: &[u8]| {
        let mut pickle = b"\x80\x04]\x94X\x00\x00\x10\x00".to_vec();
        pickle.resize(pickle.len() + (1 << 20), string);
        pickle.extend(b"\x94a(");
        pickle.extend(references.repeat(200_000));
        pickle.extend(b"e.");
        pickle
    };
    for references in [&b"h\x01"[..], b"h\x01h\x01\x93"] {
        let (one, same, other) = (
            of(b'a', references),
            of(b'a', references),
            of(b'b', references),
        );
        let [one, same, other] = [&one, &same, &other].map(|pickle| Tree::new(pickle).unwrap());
        assert!(one == same);
        assert!(one != other);
    }
}

/// Reading the names of all globals would take much longer.
#[test]
fn a_registry_does_not_read_long_names() {
    let mut pickle = b"\x80\x04X\x00\x00\x10\x00".to_vec();
    pickle.resize(pickle.len() + (1 << 20), b'a');
    pickle.extend(b"\x94h\x00\x93.");
    let tree = Tree::new(&pickle).unwrap();
    let mut registry = Registry::new();
    // With escapes, a name is longer in the pickle.
    registry.allow("builtins", "complex", ());
    assert!((0..200_000).all(|_| registry.object(tree.root()).is_none()));
    let escaped = "\\U00000063\\U0000006f\\U0000006d\\U00000070\\U0000006c\\U00000065\\U00000078";
    let pickle = format!("Vbuiltins\nV{escaped}\n\u{93}.");
    let pickle: Vec<u8> = pickle.chars().map(|byte| byte as u8).collect();
    let tree = build(&pickle, &[]).unwrap();
    assert!(registry.object(tree.root()).is_some());
}

#[test]
fn recursive_values_compare_at_every_depth() {
    fn tree(pickle: &[u8]) -> Tree<'_> {
        build(pickle, &[]).expect("a tree")
    }
    // A list that contains itself, directly and through another list.
    let one = tree(b"]q\x00h\x00a.");
    assert_eq!(one, tree(b"]q\x00]h\x00aa."));
    assert_ne!(one, tree(b"]."));
    assert_ne!(one, tree(b"]q\x00(h\x00h\x00e."));
    assert_eq!(tree(b"]q\x00h\x00\x86."), tree(b"]]\x86."));
    assert_eq!(tree(b"](K\x01K\x02e."), tree(b"]K\x01aI2\na."));
    assert_eq!(tree(b"Va\n."), tree(b"X\x01\0\0\0a."));
    assert_ne!(tree(b"Va\n."), tree(b"C\x01a."));
    assert_eq!(tree(b"Fnan\n."), tree(b"Fnan\n."));
    assert_eq!(tree(b"ca\nb\n."), tree(b"Va\nVb\n\x93."));
    assert_ne!(tree(b"ca\nb\n)R}b."), tree(b"ca\nb\n)RNb."));
    assert_eq!(
        tree(b"ca\nb\n(K\x01e(K\x02e."),
        tree(b"ca\nb\n(K\x01K\x02e.")
    );
}

#[test]
fn memo_indices_do_not_determine_memory() {
    let pickle = b"Nr\0\xc2\xeb\x0bj\0\xc2\xeb\x0b\x86.";
    assert_eq!(shown(pickle), "(None, None)");
    // Backwards and with gaps.
    let mut pickle = b"N".to_vec();
    for index in (0..50_000_u32).rev() {
        pickle.push(b'r');
        pickle.extend((index * 3).to_le_bytes());
    }
    pickle.extend(b"j\x03\0\0\0\x86.");
    assert_eq!(shown(&pickle), "(None, None)");
    // MEMOIZE counts entries, regardless of their indices.
    let memoized = shown(b"(K\x01q\x05K\x02\x94K\x03\x94h\x05h\x01h\x02t.");
    assert_eq!(memoized, "(1, 2, 3, 1, 2, 3)");
    assert_eq!(shown(b"K\x01q\x01K\x02q\x00K\x03q\x01h\x01\x85."), "(3,)");
}

#[test]
fn memory_is_proportional_to_the_pickle() {
    const COUNT: usize = 200_000;
    let mut peak_per_byte = 0;
    for step in [
        &b"]"[..],
        b")",
        b"}",
        b"N",
        b"(",
        b"0N0N",
        b"2",
        b"\x94",
        b"]\x85",
        b"\x8f",
        b"]Na",
        b"]\x94",
        b"q\x00",
        b"Q",
        b"ca\nb\nNb",
        b"(l",
        b"(t",
        b"](Ne",
        b"2Na0",
        b")(Nl",
        b"]Q",
    ] {
        let mut pickle = [b"]", &step.repeat(COUNT)[..], b"N."].concat();
        let (_, peak) = measured(&pickle);
        peak_per_byte = peak_per_byte.max(peak / pickle.len());
        pickle.pop();
        assert!(build(&pickle, &[]).is_err());
    }
    println!("at most {peak_per_byte} bytes for a byte");
    // Two lists in turn, so that no batch can grow.
    let pickle = [
        b"]q\x00]q\x01",
        &b"h\x00Na0h\x01Na0".repeat(COUNT)[..],
        b".",
    ]
    .concat();
    let tree = measured(&pickle).0.expect("a tree");
    assert_eq!(tree.root().items().count(), COUNT);
    assert_eq!(tree.root().items().count_left(), COUNT);
    // An integer of a million bytes is borrowed.
    let pickle = [b"\x8b\x40\x42\x0f\0", &vec![0x7f; 1_000_000][..], b"."].concat();
    let (tree, peak) = measured(&pickle);
    let tree = tree.expect("a tree");
    assert!(matches!(tree.root().value(), Value::Int(value) if value.to_i64().is_none()));
    assert!(peak < 1024, "{peak}");
    // Lengths beyond the input allocate nothing.
    for pickle in [
        &b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."[..],
        b"\x8d\0\0\0\0\x01\0\0\0.",
        b"\x96\0\0\0\0\x01\0\0\0.",
        b"B\xff\xff\xff\xff.",
    ] {
        assert!(matches!(kind_of(pickle), PickleErrorKind::Truncated { .. }));
        assert!(measured(pickle).1 < 1024);
    }
}

#[test]
fn limits_are_exact() {
    let limits = Limits::HOST
        .with_value_count(3)
        .with_stack_count(2)
        .with_memo_count(1);
    let kind = |pickle| {
        Tree::build::<&[u8]>(Reader::with_limits(pickle, &limits), &[], &limits)
            .map(|tree| tree.to_string())
            .map_err(|error| (error.offset, error.kind))
    };
    let values = PickleErrorKind::TooManyValues { limit: 3 };
    let stack = PickleErrorKind::StackTooLarge { limit: 2 };
    let memo = PickleErrorKind::MemoTooLarge { limit: 1 };
    assert_eq!(kind(b"NN\x86."), Ok("(None, None)".to_owned()));
    assert_eq!(kind(b"N0N0N0N."), Err((6, values)));
    assert_eq!(kind(b"((N."), Err((2, stack)));
    assert_eq!(kind(b"(((."), Err((2, stack)));
    assert_eq!(kind(b"N\x94q\x00\x94."), Err((4, memo)));
    assert_eq!(kind(b"Nq\x07q\x07q\x08."), Err((5, memo)));
}

#[test]
fn nothing_is_copied() {
    let pickle = b"(X\x03\0\0\0abcC\x02hi\x97\x98\x97t.";
    let buffers = [vec![1, 2, 3], vec![4]];
    let tree = build(pickle, &buffers).expect("a tree");
    let [text, bytes, first, second] = tree.root().items().exactly().expect("four");
    assert_eq!(text.as_str().expect("text").as_ptr(), pickle[6..].as_ptr());
    assert_eq!(
        bytes.as_bytes().expect("data").as_ptr(),
        pickle[11..].as_ptr()
    );
    for (index, node) in [first, second].iter().enumerate() {
        let Value::Buffer {
            data,
            index: found,
            read_only,
        } = node.value()
        else {
            panic!("{node}");
        };
        assert_eq!((found, read_only), (index, index == 0));
        assert_eq!(data.as_ptr(), buffers[index].as_ptr());
    }
}
