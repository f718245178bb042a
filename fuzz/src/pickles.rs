//! Properties of the pickle writer and tree.

#[path = "../../core/pickle/tests/it/longer.rs"]
mod pickle_longer;

use daskwire_numpy::known::{self, Known};
use daskwire_pickle::BufferTooSmall;
use daskwire_pickle::tree::{Int, Node, Operation, Registry, Tree, Value, WalkEvent};
use daskwire_pickle::{
    ArgumentForm, Framing, Mutability, Opcode, OutOfBandReader, PickleBuffer, PickleErrorKind,
    Placement, Protocol, Reader, WriteError, Writer, WriterLevel, WriterOptions,
};

/// The maximum numbers of values to complete containers and of long strings, so
/// that an input does not take seconds.
const MAX_FILL_COUNT: u64 = 10_000;
const MAX_LONG_COUNT: usize = 6;

/// Bytes as choices. After the end every choice is 0.
struct Choices<'a> {
    rest: &'a [u8],
    long_count: usize,
    fill_count: u64,
}

impl<'a> Choices<'a> {
    const fn new(input: &'a [u8]) -> Self {
        Self {
            rest: input,
            long_count: MAX_LONG_COUNT,
            fill_count: MAX_FILL_COUNT,
        }
    }

    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        byte
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(self.bytes(8)) {
            *to = *from;
        }
        u64::from_le_bytes(bytes)
    }

    /// A number of members, mostly small.
    fn count(&mut self) -> usize {
        match self.byte() {
            byte @ 0..=199 => usize::from(byte % 5),
            byte @ 200..=250 => 998 + usize::from(byte % 5),
            251 => 2_000,
            252 => usize::MAX,
            _ => usize::from(self.byte()) << 3,
        }
    }

    /// Data, mostly short, sometimes around the lengths where the encoding
    /// changes.
    fn data(&mut self) -> Vec<u8> {
        let byte = self.byte();
        let len = match byte {
            0..=239 => return self.bytes(usize::from(byte % 24)).to_vec(),
            248.. if self.long_count > 0 => {
                self.long_count -= 1;
                65_520 + usize::from(self.byte() % 20)
            }
            _ => 253 + usize::from(byte % 5),
        };
        vec![self.byte(); len]
    }

    /// Data as a string.
    fn string(&mut self) -> String {
        // Faster than the conversion of any bytes.
        String::from_utf8(self.data())
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

/// Writes values from the choices and returns the number of out-of-band
/// buffers.
fn write(choices: &mut Choices<'_>, writer: &mut Writer<'_, '_>) -> usize {
    let mut buffer_count = 0;
    let mut memoized = 0;
    while !choices.rest.is_empty() {
        match choices.byte() % 32 {
            0 => writer.none(),
            1 => writer.bool(choices.byte() & 1 == 1),
            2 => writer.i64(i64::from(choices.byte().cast_signed())),
            3 => writer.i64(choices.u64().cast_signed() >> (choices.byte() & 63)),
            4 => writer.u64(choices.u64()),
            5 => writer.i128(i128::from(choices.u64()) << (choices.byte() & 63)),
            6 => writer.int_bytes(&choices.data()),
            7 => writer.int_magnitude(choices.byte() & 1 == 1, &choices.data()),
            8 => writer.f64(f64::from_bits(choices.u64())),
            9 => writer.str(&choices.string()),
            10 => writer.str_bytes(&choices.data()),
            11 => writer.bytes(&choices.data()),
            12 => writer.bytearray(&choices.data()),
            13 | 14 => {
                let choice = choices.byte();
                let mutability = [Mutability::ReadOnly, Mutability::Writable];
                let data = choices.data();
                let buffer = PickleBuffer::new(&data, mutability[usize::from(choice & 1)]);
                writer.buffer(buffer, |buffer| {
                    assert_eq!(buffer.as_bytes().as_ptr(), data.as_ptr());
                    if choice & 2 == 0 {
                        return Placement::InBand;
                    }
                    buffer_count += 1;
                    Placement::OutOfBand
                })
            }
            15 => writer.global("module", &choices.string()),
            16 => writer.stack_global(),
            17 => writer.tuple(choices.count()),
            18 => writer.frozenset(choices.count()),
            19 => writer.list(choices.count()),
            20 => writer.dict(choices.count()),
            21 => writer.set(choices.count()),
            22 => writer.reduce(),
            23 => writer.newobj(),
            24 => writer.newobj_ex(),
            25 => writer.build(),
            26 => writer.extend(choices.count()),
            27 => writer.update(choices.count()),
            28 => writer.end(),
            29 => {
                let index = writer.memoize();
                assert!(index <= memoized, "an index was left out");
                memoized += 1;
                continue;
            }
            30 => writer.get(u32::from(choices.byte() % 8)),
            _ => fill(choices, writer),
        };
    }
    if buffer_count > 0 || writer.owed().is_multiple_of(2) {
        fill(choices, writer);
    }
    buffer_count
}

/// Writes all values owed.
fn fill<'w, 'b, 'l>(
    choices: &mut Choices<'_>,
    writer: &'w mut Writer<'b, 'l>,
) -> &'w mut Writer<'b, 'l> {
    let owed = writer.owed();
    if let Some(left) = choices.fill_count.checked_sub(owed) {
        choices.fill_count = left;
        for _ in 0..owed {
            writer.none();
        }
    }
    writer
}

/// Checks that no sequence of calls panics, that measuring and writing agree,
/// and that loading the pickle leaves one value on the stack.
pub(crate) fn pickle_writer(input: &[u8]) {
    let (&choice, input) = input.split_first().unwrap_or((&0, &[]));
    let mut levels = vec![WriterLevel::EMPTY; usize::from(choice >> 2 & 15)];
    let protocol = [Protocol::V5, Protocol::V4][usize::from(choice & 1)];
    let mut pickles = [Framing::Frames, Framing::None].map(|framing| {
        let options = WriterOptions::new()
            .with_protocol(protocol)
            .with_framing(framing);
        let mut measure = Writer::with_options(&mut [], &mut levels, options);
        let buffer_count = write(&mut Choices::new(input), &mut measure);
        let measured = measure.measure();
        let len = measured.unwrap_or(input.len());
        let mut out = vec![0xa5; len + 1];

        let mut writer = Writer::with_options(&mut out, &mut levels, options);
        assert_eq!(write(&mut Choices::new(input), &mut writer), buffer_count);
        match (writer.finish().map(<[u8]>::len), measured) {
            (Ok(written), Ok(measured)) => assert_eq!(written, measured),
            (Err(written), Err(measured)) => {
                assert_eq!(written, measured);
                assert!(!matches!(written, WriteError::BufferTooSmall(_)));
                assert!(!written.to_string().is_empty());
                return None;
            }
            (written, measured) => panic!("{written:?} written, {measured:?} measured"),
        }
        assert_eq!(out.pop(), Some(0xa5), "it wrote past the end");

        // Every shorter buffer is too small by the missing length.
        let available = len.saturating_sub(usize::from(choice >> 4) + 1);
        let mut part = vec![0; available];
        let mut writer = Writer::with_options(&mut part, &mut levels, options);
        write(&mut Choices::new(input), &mut writer);
        let too_small = BufferTooSmall {
            needed: len,
            available,
        };
        assert_eq!(writer.finish(), Err(too_small.into()));
        Some((out, buffer_count))
    });
    match &mut pickles {
        [Some((framed, buffer_count)), Some((bare, _))] => {
            assert_eq!(without_frames(framed), *bare);
            load(bare, *buffer_count, protocol);
            read_back(framed, bare, *buffer_count);
        }
        [None, None] => {}
        other => panic!("frames are the difference between {other:?}"),
    }
}

/// Writes a tree as a pickle with its buffers.
fn written_again<'p>(tree: &Tree<'p>) -> Option<(Vec<u8>, Vec<&'p [u8]>)> {
    let mut levels = vec![WriterLevel::EMPTY; 512];
    let mut write = |out: &mut [u8]| {
        let mut buffers = Vec::new();
        let mut writer = Writer::new(out, &mut levels);
        for event in tree.root().walk(10_000) {
            if let WalkEvent::Enter(node) = event.ok()? {
                begin(&mut writer, node, &mut buffers);
            }
        }
        Some((writer.measure(), buffers))
    };
    let len = match write(&mut [])?.0 {
        Ok(len) => len,
        Err(WriteError::TooDeep { .. }) => return None,
        Err(error) => panic!("{error}: {tree}"),
    };
    let mut out = vec![0; len];
    let (written, buffers) = write(&mut out)?;
    assert_eq!(written, Ok(len));
    Some((out, buffers))
}

/// Writes the start of a value with its number of members.
fn begin<'p>(writer: &mut Writer<'_, '_>, node: Node<'_, 'p>, buffers: &mut Vec<&'p [u8]>) {
    let operations: Vec<Operation<'_, '_>> = node.operations().collect();
    for operation in operations.iter().rev() {
        match operation {
            Operation::Append(items) => writer.extend(items.count_left()),
            Operation::Set(entries) => writer.update(entries.count_left()),
            Operation::State(_) => writer.build(),
            other => panic!("{other:?} is never written"),
        };
    }
    match node.value() {
        Value::None => writer.none(),
        Value::Bool(value) => writer.bool(value),
        Value::Int(Int::Small(value)) => writer.i64(value),
        Value::Int(Int::Big(value)) => writer.int_bytes(value.as_bytes()),
        Value::Float(value) => writer.f64(value),
        Value::Str(string) => writer.str_bytes(&string.to_bytes()),
        Value::Bytes(data) => writer.bytes(data),
        Value::ByteArray { data, .. } => writer.bytearray(data),
        Value::Buffer {
            data, read_only, ..
        } => {
            buffers.push(data);
            let mutability = [Mutability::Writable, Mutability::ReadOnly][usize::from(read_only)];
            writer.buffer(PickleBuffer::new(data, mutability), |_| {
                Placement::OutOfBand
            })
        }
        Value::Tuple(items) => writer.tuple(items.count_left()),
        Value::List(items) => writer.list(items.count_left()),
        Value::Set(items) => writer.set(items.count_left()),
        Value::FrozenSet(items) => writer.frozenset(items.count_left()),
        Value::Dict(entries) => writer.dict(entries.count_left()),
        Value::Global(global) => writer
            .stack_global()
            .str_bytes(&global.module.to_bytes())
            .str_bytes(&global.name.to_bytes()),
        Value::Call { .. } => writer.reduce(),
        Value::New { keywords: None, .. } => writer.newobj(),
        Value::New { .. } => writer.newobj_ex(),
        other => panic!("{other:?} is never written"),
    };
}

/// Checks that the pickle gives the same tree with and without frames, if it is
/// valid (the writer does not check callables), and that writing the tree
/// reproduces it.
fn read_back(framed: &[u8], bare: &[u8], buffer_count: usize) {
    let buffers: Vec<[u8; 1]> = (0..buffer_count)
        .map(|index| [index.to_le_bytes()[0]])
        .collect();
    let tree = Tree::with_buffers(framed, &buffers);
    let (tree, same) = match (tree, Tree::with_buffers(bare, &buffers)) {
        (Ok(tree), Ok(same)) => (tree, same),
        (Err(error), Err(same)) => {
            assert_eq!(error.kind, same.kind);
            let wrong = matches!(error.kind, PickleErrorKind::WrongOperand { .. });
            assert!(wrong, "{error}");
            return;
        }
        (tree, same) => panic!("{tree:?} and {same:?}"),
    };
    assert!(tree == same, "{tree} and {same}");
    if let Some((again, buffers)) = written_again(&tree) {
        let other = Tree::with_buffers(&again, &buffers).expect("it was written");
        assert!(tree == other, "{tree} and {other}");
    }
}

/// Checks that any pickle is a tree or an error, that any tree can be shown,
/// compared, walked and converted, and that the same pickle in other opcodes
/// gives the same tree.
///
/// The first byte of the input is the number of buffers.
pub(crate) fn pickle_tree(input: &[u8]) {
    let Some((&buffer_count, input)) = input.split_first() else {
        return;
    };
    let buffers: Vec<[u8; 1]> = (0..buffer_count).map(|index| [index]).collect();
    pickle_longer::check(
        input,
        buffer_count & 1 == 0,
        &buffers,
        &crate::PICKLE_LIMITS,
    );
    let reader = Reader::with_limits(input, &crate::PICKLE_LIMITS).text_opcodes(true);
    let tree = match Tree::build(reader, &buffers, &crate::PICKLE_LIMITS) {
        Ok(tree) => tree,
        Err(error) => {
            assert!(error.offset <= input.len());
            assert!(error.to_string().starts_with("at byte "));
            return;
        }
    };
    // The reader accepts it too, with the same buffers.
    let mut items = OutOfBandReader::new(reader, &buffers);
    while items.next_item().expect("it was read").is_some() {}
    assert_eq!(items.reader().position(), tree.pickle_len());
    assert!(tree.value_count() < tree.pickle_len() * 2);

    let again = Tree::build(reader, &buffers, &crate::PICKLE_LIMITS).expect("as before");
    assert!(tree == again);
    assert!(tree.to_string().len() < 512 * (tree.pickle_len() + 16));
    assert!(format!("{tree:.3}").len() < 8192);

    let mut registry = Registry::<Known>::new();
    for names in [known::BUILTINS, known::NUMPY, known::EXCEPTIONS] {
        registry.allow_all(names);
    }
    let nothing = Registry::new();
    for node in tree.nodes() {
        assert!(node.offset() < tree.pickle_len());
        assert_eq!(node.items().count(), node.items().count_left());
        assert!(known::convert(&nothing, node).is_err());
        match known::convert(&registry, node) {
            Ok(known::KnownValue::Exception(exception)) => {
                let frames = exception.traceback.into_iter().flatten().count();
                assert!(frames <= tree.value_count());
            }
            Ok(known::KnownValue::Array(found)) => {
                let array = found.array();
                super::values::use_array(&array);
                super::values::use_fields(&array, found.element_type());
            }
            Ok(known::KnownValue::MaskedArray(found)) => {
                super::values::use_array(&found.mask());
                if let Some(masked) = found.array() {
                    super::values::use_array(masked.data());
                }
            }
            Ok(known::KnownValue::ObjectArray(found)) => {
                let is_empty = found.shape().contains(&0);
                let count = || found.shape().iter().product();
                let count = if is_empty { 0 } else { count() };
                assert_eq!(found.items().count(), count);
            }
            Ok(known::KnownValue::Scalar(found)) => {
                assert_eq!(found.bytes().len(), found.dtype().item_len());
            }
            _ => {}
        }
    }
    let mut open = 0_usize;
    for event in tree.root().walk(1_000) {
        match event {
            Ok(WalkEvent::Enter(_)) => open += 1,
            Ok(WalkEvent::Leave(_)) => open -= 1,
            Ok(WalkEvent::Operation(_)) => assert!(open > 0),
            Err(_) => open = 0,
        }
    }
    assert_eq!(open, 0);
}

/// The first opcode, its argument without a count, and the bytes after it.
fn opcode(rest: &[u8]) -> (Opcode, &[u8], &[u8]) {
    let (&byte, rest) = rest.split_first().expect("STOP comes last");
    let opcode = Opcode::from_byte(byte).expect("an opcode");
    let number = |len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&rest[..len]);
        usize::try_from(u64::from_le_bytes(bytes)).expect("a length")
    };
    let (start, len) = match opcode.argument_form() {
        ArgumentForm::None => (0, 0),
        ArgumentForm::Bytes(len) => (0, usize::from(len)),
        ArgumentForm::Counted(len) => (usize::from(len), number(usize::from(len))),
        _ => panic!("{opcode} is of an old protocol"),
    };
    let (argument, rest) = rest[start..].split_at(len);
    (opcode, argument, rest)
}

/// The pickle without its frames, each of which must have whole opcodes.
fn without_frames(pickle: &[u8]) -> Vec<u8> {
    let (mut bare, mut rest) = (Vec::new(), pickle);
    while !rest.is_empty() {
        let (first, argument, after) = opcode(rest);
        let len = rest.len() - after.len();
        if first != Opcode::Frame {
            bare.extend(&rest[..len]);
            rest = after;
            continue;
        }
        let frame_len = u64::from_le_bytes(argument.try_into().expect("8 bytes"));
        let frame_len = usize::try_from(frame_len).expect("a length");
        let mut frame = &after[..frame_len];
        bare.extend(frame);
        while !frame.is_empty() {
            let (inner, _, after) = opcode(frame);
            assert_ne!(inner, Opcode::Frame, "a frame in a frame");
            let begun = frame_len - frame.len();
            assert!(begun < 1 << 16, "the frame should have ended");
            assert!(frame.len() - after.len() <= 1 << 16, "too long for frames");
            frame = after;
        }
        rest = &after[frame_len..];
    }
    bare
}

/// An entry of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Value,
    Set,
    Mark,
}

/// Simulates the stack of a loader.
fn load(pickle: &[u8], buffer_count: usize, protocol: Protocol) {
    let (mut stack, mut memo, mut buffers) = (Vec::new(), Vec::new(), 0);
    let mut rest = pickle;
    loop {
        let (opcode, argument, after) = opcode(rest);
        rest = after;
        let limit = if protocol == Protocol::V5 { 5 } else { 4 };
        assert!(opcode.protocol() <= limit, "{opcode} in {protocol:?}");
        match opcode {
            Opcode::Proto => assert_eq!(argument, [limit]),
            Opcode::Stop => break,
            Opcode::Mark => stack.push(Item::Mark),
            Opcode::EmptySet => stack.push(Item::Set),
            Opcode::Append => {
                pop(&mut stack);
                check_top(&stack);
            }
            Opcode::SetItem => {
                pop(&mut stack);
                pop(&mut stack);
                check_top(&stack);
            }
            Opcode::Appends => {
                assert!(pop_mark(&mut stack) <= 1000);
                check_top(&stack);
            }
            Opcode::SetItems => {
                let count = pop_mark(&mut stack);
                assert!(count <= 2000 && count.is_multiple_of(2));
                check_top(&stack);
            }
            Opcode::AddItems => {
                assert!(pop_mark(&mut stack) <= 1000);
                assert_eq!(stack.last(), Some(&Item::Set));
            }
            Opcode::Tuple => {
                assert!(pop_mark(&mut stack) > 3);
                stack.push(Item::Value);
            }
            Opcode::FrozenSet => {
                pop_mark(&mut stack);
                stack.push(Item::Value);
            }
            Opcode::Tuple1 => made_of(&mut stack, 1),
            Opcode::Tuple3 | Opcode::NewObjEx => made_of(&mut stack, 3),
            Opcode::Tuple2 | Opcode::StackGlobal | Opcode::Reduce | Opcode::NewObj => {
                made_of(&mut stack, 2);
            }
            Opcode::Build => {
                pop(&mut stack);
                check_top(&stack);
            }
            Opcode::Memoize => {
                check_top(&stack);
                memo.extend(stack.last().copied());
            }
            Opcode::BinGet | Opcode::LongBinGet => {
                let mut index = [0; 4];
                index[..argument.len()].copy_from_slice(argument);
                stack.push(memo[u32::from_le_bytes(index) as usize]);
            }
            Opcode::NextBuffer => {
                buffers += 1;
                stack.push(Item::Value);
            }
            Opcode::ReadOnlyBuffer => assert_eq!(stack.last(), Some(&Item::Value)),
            Opcode::None
            | Opcode::NewTrue
            | Opcode::NewFalse
            | Opcode::BinInt
            | Opcode::BinInt1
            | Opcode::BinInt2
            | Opcode::Long1
            | Opcode::Long4
            | Opcode::BinFloat
            | Opcode::ShortBinBytes
            | Opcode::BinBytes
            | Opcode::ByteArray8
            | Opcode::ShortBinUnicode
            | Opcode::BinUnicode
            | Opcode::EmptyList
            | Opcode::EmptyDict
            | Opcode::EmptyTuple => stack.push(Item::Value),
            other => panic!("{other} is never written"),
        }
    }
    assert!(rest.is_empty(), "bytes follow STOP");
    assert_eq!(stack.len(), 1, "{stack:?}");
    assert_ne!(stack[0], Item::Mark);
    assert_eq!(buffers, buffer_count, "buffers");
}

fn pop(stack: &mut Vec<Item>) {
    assert_ne!(stack.pop().expect("a value"), Item::Mark);
}

fn pop_mark(stack: &mut Vec<Item>) -> usize {
    let mark = stack
        .iter()
        .rposition(|item| *item == Item::Mark)
        .expect("a mark");
    let count = stack.len() - mark - 1;
    stack.truncate(mark);
    count
}

fn made_of(stack: &mut Vec<Item>, count: usize) {
    for _ in 0..count {
        pop(stack);
    }
    stack.push(Item::Value);
}

/// Checks that the top can have items or a state.
fn check_top(stack: &[Item]) {
    assert!(!matches!(stack.last(), None | Some(Item::Mark)));
}
