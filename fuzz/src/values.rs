//! Payloads as values.

use daskwire::message::{
    BuilderBuffers, Layout, Message, MessageBuilder, Payload, PayloadKind, SHARD_LEN, Workspace,
};
use daskwire_numpy::known;
use daskwire_numpy::{
    Array, Class, DType, Description, Element, ElementType, Kind, Order, PayloadValue,
    PickledPayload, RecordType, ValueBuilder as _, WriteOptions,
};
use daskwire_pickle::tree::Tree;

use super::read_options;

/// The maximum number of elements visited, since broadcasting makes any number
/// of elements from a few bytes.
const MAX_VISITED_COUNT: usize = 1 << 10;

/// Checks that any header and data give a value within the data or an error,
/// and that arrays round-trip.
///
/// The input: the kind of payload and whether it is split, the length of the
/// header, the header, the data.
pub(crate) fn numpy(input: &[u8]) {
    let [choice, low, high, rest @ ..] = input else {
        return;
    };
    let header_len = usize::from(u16::from_le_bytes([*low, *high]));
    let Some((header, data)) = rest.split_at_checked(header_len) else {
        // Short inputs are also used as types and classes.
        types(rest);
        return;
    };
    let body: &[u8] = match choice & 1 {
        0 => b"\x81\xa1x\x81\xae__Serialized__\x01",
        _ => b"\x81\xa1x\x81\xab__Pickled__\x01",
    };
    let step = match choice >> 1 {
        0 => data.len(),
        step => usize::from(step),
    };
    let mut frames: Vec<&[u8]> = vec![body, header];
    frames.extend(data.chunks(step.max(1)));
    frames.resize(frames.len().max(3), data);
    let mut workspace = Workspace::new();
    let options = read_options();
    let opened = Message::open(&frames, Layout::Modern, &options, &mut workspace).map(|message| {
        if let Ok(payload) = message.payload(0) {
            read(&payload, data);
        }
    });
    opened.expect("the body is right");
}

fn read(payload: &Payload<'_, &[u8]>, data: &[u8]) {
    let _ = Description::of(payload.header());
    if let Ok(pickled) = PickledPayload::read(payload) {
        assert_eq!(
            pickled
                .writeable()
                .map_or(pickled.buffer_count(), |flags| flags.len()),
            pickled.buffer_count()
        );
        if let Ok(there) = pickled.borrowed() {
            assert_eq!(there.buffers().len(), pickled.buffer_count());
            let mut items = there.items();
            while let Ok(Some(item)) = items.next_item() {
                if let Some(found) = item.data
                    && found.buffer.is_some()
                {
                    assert!(is_within(found.bytes, data));
                }
            }
        }
    }
    let Ok(parsed) = PayloadValue::read(payload) else {
        return;
    };
    let mut out = vec![0xa5; 1 << 12];
    let copied = parsed.copy_into(&mut out).map(<[u8]>::to_vec);
    if let Ok(slice) = parsed.as_slice() {
        assert!(is_within(slice, data), "a slice of something else");
        if let Ok(copied) = &copied {
            assert_eq!(copied, slice);
        }
    }
    if let (Ok(parts), Ok(copied)) = (parsed.parts(), &copied) {
        let parts: Result<Vec<&[u8]>, _> = parts.collect();
        if let Ok(parts) = parts {
            assert_eq!(parts.concat(), *copied);
        }
    }
    if let Ok(masked) = parsed.masked_array() {
        use_array(masked.data());
        let len = masked
            .elements::<f64>()
            .map_or(0, |elements| elements.len());
        assert!(len == 0 || len == masked.data().items().len());
        if let Some(mask) = masked.mask() {
            use_array(mask);
            assert_eq!(mask.shape(), masked.data().shape());
        }
        let mut out = vec![0x5a; 1 << 12];
        if copied.is_ok() {
            assert_eq!(parsed.masked_array_into(&mut out), Ok(masked));
        }
    }
    let Ok(array) = parsed.array() else { return };
    use_array(&array);
    write(&array);
    if let Description::Array(header) = parsed.description() {
        use_fields(&array, header.element_type());
    }
    // Compare with the result from a copy.
    if copied.is_ok() {
        let mut out = vec![0x5a; 1 << 12];
        assert_eq!(parsed.array_into(&mut out), Ok(array));
    }
}

fn is_within(part: &[u8], whole: &[u8]) -> bool {
    let range = whole.as_ptr_range();
    part.is_empty() || (range.contains(&part.as_ptr()) && part.as_ptr_range().end <= range.end)
}

pub(crate) fn use_array(array: &Array<'_>) {
    let items = array.items();
    let count = items.len();
    assert_eq!(Some(count), array.dimensions().item_count());
    let mut seen = 0;
    for item in items.take(MAX_VISITED_COUNT) {
        assert_eq!(item.len(), array.dtype().item_len());
        assert!(is_within(item, array.bytes()));
        seen += 1;
    }
    assert_eq!(seen, count.min(MAX_VISITED_COUNT));
    let first = array.shape().iter().map(|_| 0).collect::<Vec<usize>>();
    assert_eq!(array.item(&first), array.items().next());
    elements::<bool>(array);
    elements::<i64>(array);
    elements::<u16>(array);
    elements::<f32>(array);
    elements::<[f64; 2]>(array);
    if count <= MAX_VISITED_COUNT && array.dtype().item_len() <= 64 {
        let mut out = vec![0; count * array.dtype().item_len()];
        let copy = array.copy_into(&mut out).expect("it fits");
        assert!(copy.items().eq(array.items()));
        assert_eq!(copy.order(), Some(Order::C));
    }
}

/// Checks that fields are within their records at all levels, up to a budget.
pub(crate) fn use_fields(array: &Array<'_>, of: ElementType<'_>) {
    let mut left = vec![(*array, of)];
    let mut budget = 200_usize;
    while let Some((array, of)) = left.pop() {
        let ElementType::Record(record) = of else {
            continue;
        };
        assert_eq!(array.dtype(), record.dtype());
        for field in record.fields() {
            if budget == 0 {
                return;
            }
            budget -= 1;
            let Ok(field) = field else { break };
            let Ok(of_all) = array.field(&field) else {
                continue;
            };
            assert_eq!(Some(of_all.dtype()), field.dtype());
            assert!(is_within(of_all.bytes(), array.bytes()));
            use_array(&of_all);
            left.push((of_all, field.element_type()));
        }
    }
}

/// Checks a type alone, from a list and from a pickle.
fn record_types(input: &[u8]) {
    let use_type = |of: ElementType<'_>| {
        if let Some(dtype) = of.dtype()
            && let Ok(array) = Array::new(dtype, &[0], Order::C, &[])
        {
            use_fields(&array, of);
        }
    };
    match RecordType::from_list(input) {
        Ok(record) => use_type(ElementType::Record(record)),
        Err(error) => {
            assert!(error.at <= input.len());
            assert!(error.to_string().contains("expected"));
        }
    }
    let reader = daskwire_pickle::Reader::with_limits(input, &crate::PICKLE_LIMITS);
    if let Ok(tree) = Tree::build::<&[u8]>(reader, &[], &crate::PICKLE_LIMITS)
        && let Ok(of) = known::element_type(&tree)
    {
        use_type(of);
    }
}

fn elements<E: Element>(array: &Array<'_>) {
    match array.elements::<E>() {
        Ok(elements) => {
            assert!(E::is_of(array.dtype()));
            let taken = elements.clone().take(MAX_VISITED_COUNT).count();
            assert_eq!(taken, elements.len().min(MAX_VISITED_COUNT));
        }
        Err(_) => assert!(!E::is_of(array.dtype())),
    }
}

/// Checks that an array round-trips.
fn write(array: &Array<'_>) {
    let (mut body, mut headers) = ([0; 64], [0; 4096]);
    let mut slots = [&[][..]; 8];
    let buffers = BuilderBuffers {
        body: &mut body,
        headers: &mut headers,
        slots: &mut slots,
    };
    let mut builder = MessageBuilder::new(Layout::Modern, buffers);
    let options = WriteOptions::default().with_shard_len(SHARD_LEN);
    if builder.array_payload(array, &options).is_err() {
        let is_record = array.dtype().kind() == Kind::Record;
        assert!(is_record || array.order().is_none(), "it is contiguous");
        return;
    }
    let frames = builder.finish().expect("it is whole");
    let mut workspace = Workspace::new();
    let options = read_options();
    let opened = Message::open(frames, Layout::Modern, &options, &mut workspace).map(|message| {
        let payload = message.payload(0).expect("our own");
        assert_eq!(payload.kind(), PayloadKind::Serialized);
        let again = PayloadValue::read(&payload).expect("our own").array();
        let again = again.expect("our own");
        assert_eq!(
            (again.dtype(), again.shape(), again.bytes()),
            (array.dtype(), array.shape(), array.bytes())
        );
        assert!(
            again
                .items()
                .take(MAX_VISITED_COUNT)
                .eq(array.items().take(MAX_VISITED_COUNT))
        );
    });
    opened.expect("our own");
}

/// Checks that types display as they parse, and that classes are recognised.
fn types(input: &[u8]) {
    record_types(input);
    if let Ok(name) = core::str::from_utf8(input) {
        match DType::parse(name) {
            Ok(dtype) => {
                let again = dtype.type_string();
                assert_eq!(DType::parse(again.as_str()), Ok(dtype));
            }
            Err(error) => assert!(error.at <= name.len()),
        }
    }
    if let Ok(class) = Class::read(input) {
        let names = [class.module, class.name];
        let has = |name: &str| {
            name.is_empty()
                || input
                    .windows(name.len())
                    .any(|part| part == name.as_bytes())
        };
        // `builtins` may have been `__builtin__`.
        assert!(class.module == "builtins" || names.into_iter().all(has));
        assert!(input.ends_with(b"."));
    }
}
