//! Tests of records, masked arrays and arrays of objects, recorded and made up.

use std::fmt::Write as _;

use crate::support::{Workspaces, merged, vector};
use daskwire::message::Payload;
use daskwire_numpy::known;
use daskwire_numpy::{
    Array, ArrayHeader, DType, Description, ElementType, FillValue, Kind, MaskedArray,
    NumpyErrorKind, Order, PayloadValue, RecordType,
};
use daskwire_pickle::tree::Tree;
use serde_json::Value;

/// Opens a vector and calls `with` for each payload.
fn each_payload(name: &str, mut with: impl FnMut(&str, Payload<'_, &[u8]>)) {
    let vector = vector(name);
    let frames = vector.frames();
    let mut workspaces = Workspaces::new();
    let (message, _) = workspaces
        .open(&frames, vector.layout(), &vector.reading())
        .unwrap();
    for (payload, json) in message.payloads().zip(vector.payloads()) {
        let path = json["path"].as_array().unwrap();
        with(
            path.last().and_then(Value::as_str).unwrap(),
            payload.unwrap(),
        );
    }
}

/// A type as text: `V12{n@0 <u4, x@4 <f8}`, with optional `(title)` and shape.
fn text(element_type: &ElementType<'_>) -> String {
    let ElementType::Record(record) = element_type else {
        return element_type.dtype().map_or("?".into(), |d| d.to_string());
    };
    let mut out = format!("V{}{{", record.item_len());
    for (number, field) in record.fields().enumerate() {
        let field = field.unwrap_or_else(|error| panic!("{out}: {error}"));
        let comma = if number > 0 { ", " } else { "" };
        let _ = write!(out, "{comma}{}", field.name());
        if let Some(title) = field.title() {
            let _ = write!(out, "({title})");
        }
        let _ = write!(out, "@{} ", field.offset());
        if !field.shape().is_empty() {
            let _ = write!(out, "{:?}", field.shape());
        }
        out.push_str(&text(&field.element_type()));
    }
    out.push('}');
    out
}

fn array_header<'a>(description: &Description<'a>) -> ArrayHeader<'a> {
    match description {
        Description::Array(header) => *header,
        other => panic!("{other:?}"),
    }
}

/// Calls a function with a header whose pickled type has been read.
pub(crate) fn with_type<R>(
    header: &ArrayHeader<'_>,
    with: impl FnOnce(&ArrayHeader<'_>) -> R,
) -> R {
    match header.element_type() {
        ElementType::Pickled(pickle) => {
            let tree = Tree::new(pickle).unwrap();
            let element_type = known::element_type(&tree).unwrap();
            with(&header.with_element_type(element_type))
        }
        _ => with(header),
    }
}

/// The field at the end of a path.
fn field<'d>(array: &Array<'d>, of: ElementType<'_>, path: &[&str]) -> Array<'d> {
    let Some((first, rest)) = path.split_first() else {
        return *array;
    };
    let ElementType::Record(record) = of else {
        panic!("{of:?} has no field {first}")
    };
    let found = record.field(first).unwrap();
    let found = found.unwrap_or_else(|| panic!("there is no field {first}"));
    field(&array.field(&found).unwrap(), found.element_type(), rest)
}

const POINT: &str = "V16{x@0 <f8, y@8 <f8}";

/// PROTOCOL TYPED-8
#[test]
fn records_have_the_fields_that_numpy_gave_them() {
    let expected = [
        (
            "aligned",
            format!(
                "V184{{titled(its title)@0 <i4, from@4 {POINT}, to@20 {POINT}, path@36 [2, 3]{POINT}, \
                 flag@132 |b1, bytes@133 |S3, text@136 >U2, when@144 <M8[25s], took@152 <m8[ns], \
                 waves@160 [2]>c8, nothing@176 |V5}}"
            ),
        ),
        (
            "packed",
            format!(
                "V181{{titled(its title)@0 <i4, from@4 {POINT}, to@20 {POINT}, path@36 [2, 3]{POINT}, \
                 flag@132 |b1, bytes@133 |S3, text@136 >U2, when@144 <M8[25s], took@152 <m8[ns], \
                 waves@160 [2]>c8, nothing@176 |V5}}"
            ),
        ),
        (
            "fortran",
            format!("V181{{titled(its title)@0 <i4, to@20 {POINT}}}"),
        ),
        ("in no order", "V12{second@6 <u4, first@1 <u2}".into()),
        (
            "without records",
            format!("V36{{titled(its title)@0 <i4, from@4 {POINT}, to@20 {POINT}}}"),
        ),
        ("recarray", "V12{n@0 <u4, x@4 <f8}".into()),
        ("void", "|V5".into()),
    ];
    for generation in ["classic-2.30.1", "modern-nosplit-2026.8.0"] {
        let mut seen = 0;
        let name = format!("{generation}/case-array-of-records-of-all-kinds");
        each_payload(&name, |name, payload| {
            let parsed = PayloadValue::read(&payload).unwrap();
            let header = array_header(parsed.description());
            with_type(&header, |header| {
                let of = header.element_type();
                let (_, expected) = expected.iter().find(|(at, _)| *at == name).unwrap();
                assert_eq!(text(&of), *expected, "{name}");
                seen += 1;

                let array = header.over(parsed.as_slice().unwrap()).unwrap();
                let field = |path: &[&str]| field(&array, of, path);
                let doubles = |path: &[&str]| -> Vec<f64> {
                    field(path).elements::<f64>().unwrap().collect()
                };
                match name {
                    "aligned" => {
                        let titled = field(&["titled"]);
                        assert_eq!((titled.shape(), titled.strides()), (&[2][..], &[184][..]));
                        assert!(titled.elements::<i32>().unwrap().eq([1, -2]));
                        // Titles find fields too.
                        assert_eq!(field(&["its title"]), titled);
                        assert_eq!(doubles(&["from", "x"]), [0.5, 2.5]);
                        assert_eq!(doubles(&["from", "y"]), [1.5, 3.5]);
                        let path = field(&["path", "y"]);
                        assert_eq!(path.shape(), [2, 2, 3]);
                        assert_eq!(path.strides(), [184, 48, 16]);
                        let numbers: Vec<f64> = (0..12).map(f64::from).collect();
                        assert_eq!(doubles(&["path", "y"]), numbers);
                        assert_eq!(path.item(&[1, 1, 2]), Some(&11.0_f64.to_le_bytes()[..]));
                        let when = field(&["when"]).elements::<i64>().unwrap();
                        assert!(when.eq([1, 2]));
                        let waves = field(&["waves"]).elements::<[f32; 2]>().unwrap();
                        assert!(waves.eq([[1.0, 2.0]; 4]));
                        let text = field(&["text"]);
                        assert_eq!(text.items().next(), Some(&[0, 0, 0, 97, 0, 0, 0, 98][..]));
                        // Nothing was copied, and there are bytes in between.
                        assert_eq!(text.bytes().as_ptr(), array.bytes()[136..].as_ptr());
                        let error = titled.memory_elements::<i32>().map(drop).unwrap_err();
                        assert!(
                            matches!(error.kind, NumpyErrorKind::Dimensions(_)),
                            "{error}"
                        );
                        let mut copy = [0; 8];
                        let copied = titled.copy_into(&mut copy).unwrap();
                        assert!(copied.memory_elements::<i32>().unwrap().eq([1, -2]));
                        let mut decoded = [0; 3];
                        assert_eq!(titled.decode_into(&mut decoded).unwrap(), [1, -2]);
                    }
                    "packed" => {
                        assert_eq!(array.shape(), [2, 3]);
                        let numbers: Vec<f64> = (0..6).map(f64::from).collect();
                        assert_eq!(doubles(&["to", "x"]), numbers);
                    }
                    "fortran" => {
                        assert_eq!(array.order(), Some(Order::Fortran));
                        assert_eq!(field(&["to", "x"]).strides(), [181, 362]);
                        let numbers: Vec<f64> = (0..6).map(f64::from).collect();
                        assert_eq!(doubles(&["to", "x"]), numbers);
                    }
                    "in no order" => {
                        assert!(field(&["first"]).elements::<u16>().unwrap().eq([2, 4]));
                        assert!(field(&["second"]).elements::<u32>().unwrap().eq([1, 3]));
                    }
                    "without records" => {
                        assert_eq!(field(&["to", "x"]).elements::<f64>().unwrap().len(), 0);
                        assert_eq!(field(&["to"]).bytes(), b"");
                    }
                    "recarray" => assert_eq!(doubles(&["x"]), [2.0, 4.0]),
                    _ => {
                        assert_eq!(array.dtype().kind(), Kind::Void);
                        assert!(array.items().eq([&b"12345"[..], b"67890"]));
                    }
                }
                // Fields of other records are refused.
                let other = RecordType::from_list(b"\x91\x92\xa0\xa5|V999").unwrap();
                let other = other.field("").unwrap().unwrap();
                let error = array.field(&other).unwrap_err();
                assert!(
                    matches!(error.kind, NumpyErrorKind::OtherType { .. }),
                    "{error}"
                );
            });
        });
        assert_eq!(seen, expected.len());
    }
}

/// PROTOCOL TYPED-8: up to 1.16.3 fields are a list, with padding as fields
/// without a name.
#[test]
fn lists_of_fields_are_records() {
    let expected = [
        ("np-structured", "V14{a@0 <i4, b@4 <f8, c@12 |S2}"),
        (
            "np-structured-nested",
            "V32{p@0 V8{x@0 <f4, y@4 <f4}, q@8 [2]<i8, s@24 |S3, @27 |V5}",
        ),
        (
            "np-structured-titles",
            "V18{n(its title)@0 >u2, at@2 V16{x@0 <f8, y@8 <f8}}",
        ),
        ("np-structured-one-field", "V8{n@0 <i8}"),
        ("np-void", "V5{@0 |V5}"),
    ];
    for (name, expected) in expected {
        each_payload(&format!("classic-1.16.3/{name}"), |_, payload| {
            let parsed = PayloadValue::read(&payload).unwrap();
            let of = array_header(parsed.description()).element_type();
            assert_eq!(text(&of), expected);
            let array = parsed.array().unwrap();
            let field = |path: &[&str]| field(&array, of, path);
            match name {
                "np-structured" => {
                    assert!(field(&["b"]).elements::<f64>().unwrap().eq([2.5, 4.5]));
                    assert!(field(&["c"]).items().eq([&b"ab"[..], b"cd"]));
                }
                "np-structured-titles" => {
                    let y = field(&["at", "y"]);
                    assert!(y.elements::<f64>().unwrap().eq([3.0, 6.0]));
                    assert!(field(&["its title"]).elements::<u16>().unwrap().eq([1, 4]));
                }
                _ => {}
            }
        });
    }
    each_payload("classic-1.16.3/np-object", |_, payload| {
        let parsed = PayloadValue::read(&payload).unwrap();
        assert_eq!(*parsed.description(), Description::Pickle);
    });
}

/// The name of a payload, its elements, and its fill value.
fn masked_elements(name: &str, masked: &MaskedArray<'_>) -> String {
    match name {
        "some" | "fortran" => format!("{:?}", some::<i16>(masked)),
        "without a mask" => format!("{:?}", some::<f64>(masked)),
        "booleans" => format!("{:?}", some::<bool>(masked)),
        _ => format!(
            "{:?}",
            (0..2).map(|at| masked.is_masked(&[at])).collect::<Vec<_>>()
        ),
    }
}

fn some<E: daskwire_numpy::Element>(masked: &MaskedArray<'_>) -> Vec<Option<E>> {
    masked.elements::<E>().unwrap().collect()
}

const MASKED: [(&str, &str); 6] = [
    ("some", "[None, Some(1), None, Some(3), None, Some(5)]"),
    ("fortran", "[Some(0), Some(1), Some(2), None, None, None]"),
    ("without a mask", "[Some(0.0), Some(1.0), Some(2.0)]"),
    ("booleans", "[None, Some(false)]"),
    ("text", "[Some(false), Some(true)]"),
    ("records", "[Some(false), Some(false)]"),
];

/// PROTOCOL TYPED-9
#[test]
fn masked_arrays_have_their_masks() {
    for generation in ["classic-2.30.1", "modern-nosplit-2026.8.0"] {
        let mut seen = 0;
        each_payload(
            &format!("{generation}/case-array-masked"),
            |name, payload| {
                seen += 1;
                let parsed = PayloadValue::read(&payload).unwrap();
                let header = match parsed.description() {
                    Description::MaskedArray(header) => header,
                    other => {
                        assert_eq!((name, *other), ("an element", Description::Masked));
                        return;
                    }
                };
                let fill_value = header.fill_value().unwrap();
                match name {
                    "some" => assert_eq!(fill_value, FillValue::Int(-1)),
                    "without a mask" => assert_eq!(fill_value, FillValue::Float(1e20)),
                    "booleans" => assert_eq!(fill_value, FillValue::Bool(true)),
                    "fortran" => assert_eq!(fill_value, FillValue::Int(999_999)),
                    _ => assert!(
                        matches!(fill_value, FillValue::Pickled(_)),
                        "{fill_value:?}"
                    ),
                }
                if name == "objects" {
                    assert_eq!(header.data(), Ok(Description::Pickle));
                    let mask = header.mask().unwrap().unwrap();
                    let frames = merged(&payload).unwrap();
                    let mask = mask.over(&frames[1]).unwrap();
                    assert!(mask.elements::<bool>().unwrap().eq([false, false, true]));
                    let error = parsed.masked_array().unwrap_err();
                    assert!(matches!(error.kind, NumpyErrorKind::OtherClass { .. }));
                    return;
                }
                let (_, expected) = MASKED.into_iter().find(|(at, _)| *at == name).unwrap();
                if name == "records" {
                    let error = parsed.masked_array().unwrap_err();
                    assert_eq!(error.kind, NumpyErrorKind::NotPlain);
                    let frames = merged(&payload).unwrap();
                    let data = array_header(&header.data().unwrap());
                    let mask = header.mask().unwrap().unwrap();
                    with_type(&data, |data| {
                        with_type(&mask, |mask| {
                            assert_eq!(text(&mask.element_type()), "V2{n@0 |b1, x@1 |b1}");
                            let data = data.over(&frames[0]).unwrap();
                            let of = mask.element_type();
                            let mask = mask.over(&frames[1]).unwrap();
                            let masked = MaskedArray::new(data, Some(mask)).unwrap();
                            assert_eq!(masked_elements(name, &masked), expected);
                            let x = field(&mask, of, &["x"]);
                            assert!(x.elements::<bool>().unwrap().eq([false, true]));
                        });
                    });
                    return;
                }
                let masked = parsed.masked_array().unwrap();
                assert_eq!(masked_elements(name, &masked), expected, "{name}");
                let mut copy = [0xa5; 100];
                assert_eq!(
                    parsed.masked_array_into(&mut copy).unwrap(),
                    masked,
                    "{name}"
                );
            },
        );
        assert_eq!(seen, 8);
    }
    // A mask of another type.
    let bytes = [0; 6];
    let data = Array::new(DType::U8, &[2, 3], Order::C, &bytes).unwrap();
    let kind = |mask| MaskedArray::new(data, Some(mask)).unwrap_err().kind;
    let other = Array::new(DType::BOOL, &[3, 2], Order::C, &bytes).unwrap();
    assert!(matches!(kind(other), NumpyErrorKind::Dimensions(_)));
    let other = Array::new(DType::I8, &[2, 3], Order::C, &bytes).unwrap();
    assert!(matches!(kind(other), NumpyErrorKind::OtherType { .. }));
}

/// PROTOCOL TYPED-8: errors have the kind and location of the fault.
#[test]
fn invalid_field_lists_are_refused() {
    let refused = |list: &[u8]| RecordType::from_list(list).unwrap_err();
    for (list, at) in [
        (&b"\xa3<f8"[..], 0),
        (b"\x91\x91\xa1a", 2),
        (b"\x91\x94\xa1a\xa3<f8\x90\x90", 2),
        (b"\x91\x92\xa1a\xa3<f9", 7),
        (b"\x91\x92\xa1a\xa2|O", 6),
        (b"\x91\x92\xa1a\xd9\x03<f9", 8),
        (b"\x91\x92\xa1a\x01", 4),
        (b"\x91\x92\xa1a\xa3<f", 4),
        (b"\x91\x93\xa1a\xa3<f8\x91\xff", 8),
        (b"\x91\x93\xa1a\xa3<f8\xa1x", 8),
        (b"\x91\x92\xa1a\xa3<f8\xc0", 8),
        (b"\x92\x92\xa1a\xa3<f8", 8),
    ] {
        let error = refused(list);
        assert_eq!(error.at, at, "{}: {error}", list.escape_ascii());
    }
    // Lengths that overflow, of one field and of all together.
    let large = b"\x91\x93\xa1a\xa3<f8\xcf\x7f\xff\xff\xff\xff\xff\xff\xff";
    if usize::BITS == 64 {
        assert_eq!(refused(large).expected, "lengths that do not overflow");
    }
    // At most 16 levels of records are read.
    let levels = |count: usize| {
        let mut list = b"\x91\x92\xa1a".repeat(count);
        list.extend(b"\xa3<f8");
        list
    };
    let list = levels(16);
    let mut of = ElementType::Record(RecordType::from_list(&list).unwrap());
    for _ in 0..16 {
        let ElementType::Record(record) = of else {
            panic!("{of:?}")
        };
        assert_eq!(record.item_len(), 8);
        of = record.field("a").unwrap().unwrap().element_type();
    }
    assert_eq!(of, ElementType::Plain(DType::F64));
    assert_eq!(
        refused(&levels(17)).expected,
        "records in at most 16 levels"
    );
    // A field with an invalid name is reported on access.
    let list = b"\x92\x92\xa1a\xa3<f8\x92\x01\xa3<f8";
    let record = RecordType::from_list(list).unwrap();
    assert!(record.field("a").unwrap().is_some());
    assert_eq!(record.field("b").unwrap_err().at, 9);
    let mut fields = record.fields();
    assert!(fields.next().is_some_and(|field| field.is_ok()));
    assert!(fields.next().is_some_and(|field| field.is_err()));
    assert!(fields.next().is_none());
}

/// The pickle of a type, called by the name memoized as 2.
fn type_pickle(state: &[u8]) -> Vec<u8> {
    let head = b"\x80\x04\x8c\x05numpy\x94\x8c\x05dtype\x94\x93\x94";
    [head, state, b"."].concat()
}

/// The call of `numpy.dtype`, memoized as 2, and its state.
fn type_of(name: &str, state: &[u8]) -> Vec<u8> {
    let len = u8::try_from(name.len()).unwrap();
    let callable: &[u8] = b"h\x02";
    let call = [&[0x8c, len], name.as_bytes(), b"\x89\x88\x87R"].concat();
    [callable, &call, b"(K\x03", state, b"tb"].concat()
}

const F8: &[u8] = b"\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00";

/// PROTOCOL TYPED-7, TYPED-8
#[test]
fn pickles_other_than_dtypes_are_refused() {
    // The first type is named where the name is memoized.
    let whole = |types: &[u8]| type_pickle(types.strip_prefix(b"h\x02").unwrap());
    let read = |pickle: &[u8]| {
        let tree = Tree::new(pickle).ok()?;
        known::element_type(&tree).ok().map(|found| text(&found))
    };
    let f8 = type_of("f8", F8);
    assert_eq!(read(&whole(&f8)).unwrap(), "<f8");
    for (at, byte) in whole(&f8).iter().enumerate() {
        // Truncated pickles and trailing items are refused.
        let pickle = whole(&f8);
        assert!(read(&pickle[..at]).is_none(), "{at}");
        if *byte == b'R' {
            let mut other = pickle.clone();
            other[at] = 0x81;
            assert!(read(&other).is_none());
        }
    }
    let mut other = whole(&f8);
    let at = other.windows(5).position(|part| part == b"dtype").unwrap();
    other[at..at + 5].copy_from_slice(b"dtypf");
    assert!(read(&other).is_none());

    let record = |len: u8, names: &[u8], fields: &[u8]| {
        let state = [b"\x8c\x01|N", names, fields, b"K", &[len], b"K\x01K\x10"].concat();
        whole(&type_of("V8", &state))
    };
    let one = |offset: u8| [b"}\x8c\x01a", &f8[..], b"K", &[offset], b"\x86s"].concat();
    assert_eq!(
        read(&record(8, b"\x8c\x01a\x85", &one(0))).unwrap(),
        "V8{a@0 <f8}"
    );
    assert_eq!(
        read(&record(9, b"(\x8c\x01at", &one(1))).unwrap(),
        "V9{a@1 <f8}"
    );
    let first = |pickle: &[u8]| {
        let tree = Tree::new(pickle).unwrap();
        let Ok(ElementType::Record(record)) = known::element_type(&tree) else {
            panic!("{}", pickle.escape_ascii())
        };
        record.fields().next().unwrap().map(|field| field.offset())
    };
    // Out of the record, under another name, without a field.
    assert!(first(&record(8, b"\x8c\x01a\x85", &one(1))).is_err());
    assert!(first(&record(8, b"\x8c\x01b\x85", &one(0))).is_err());
    assert!(first(&record(8, b"\x8c\x01a\x85", b"}")).is_err());
    assert_eq!(first(&record(8, b"\x8c\x01a\x85", &one(0))), Ok(0));
}

/// PROTOCOL TYPED-8: a type that contains itself is refused at the depth limit.
#[test]
fn self_containing_dtype_is_limited_to_16_levels() {
    // Memoized after REDUCE, before it has fields.
    let pickle = b"\x80\x04\x8c\x05numpy\x94\x8c\x05dtype\x94\x93\x94\x8c\x02V8\x89\x88\x87R\x94\
        (K\x03\x8c\x01|N\x8c\x01a\x8c\x01b\x86}(\x8c\x01ah\x03K\x00\x86\x8c\x01bh\x03K\x00\x86u\
        K\x08K\x01K\x10tb.";
    let tree = Tree::new(pickle).unwrap();
    let mut of = known::element_type(&tree).unwrap();
    let mut levels = 0;
    let error = loop {
        let ElementType::Record(record) = of else {
            panic!("{of:?}")
        };
        assert_eq!(record.field_count(), 2);
        levels += 1;
        match record.field("b") {
            Ok(field) => of = field.unwrap().element_type(),
            Err(error) => break error,
        }
    };
    assert_eq!(
        (levels, error.expected),
        (16, "records in at most 16 levels")
    );
}

/// Many fields, each with memo references.
#[test]
fn dtype_with_3000_fields_takes_linear_time() {
    let mut names = Vec::new();
    let mut fields = b"}\x94(".to_vec();
    let count = 3_000_u32;
    // numpy, dtype and numpy.dtype are 0 to 2, then come the names.
    for number in 0..count {
        names.extend(b"\x8c\x05");
        names.extend(format!("f{number:04}").as_bytes());
        names.push(0x94);
        fields.push(b'j');
        fields.extend((number + 3).to_le_bytes());
        match number {
            0 => {
                fields.extend(b"h\x02\x8c\x02f8\x89\x88\x87R\x94(K\x03");
                fields.extend(F8);
                fields.extend(b"tb");
            }
            _ => {
                fields.push(b'j');
                // After the names, their tuple and the dictionary.
                fields.extend((count + 5).to_le_bytes());
            }
        }
        fields.push(b'J');
        fields.extend((8 * number).to_le_bytes());
        fields.extend(b"\x86\x94");
    }
    let state = [b"(K\x03\x8c\x01|N(", &names[..], b"t\x94", &fields, b"uJ"].concat();
    let len = (8 * count).to_le_bytes();
    let pickle = [
        b"\x80\x04\x8c\x05numpy\x94\x8c\x05dtype\x94\x93\x94\x8c\x06V24000\x89\x88\x87R",
        &state[..],
        &len,
        b"K\x01K\x10tb.",
    ]
    .concat();
    let tree = Tree::new(&pickle).unwrap();
    let Ok(ElementType::Record(record)) = known::element_type(&tree) else {
        panic!("{tree}")
    };
    assert_eq!(record.field_count(), 3_000);
    let mut found = 0;
    for (number, field) in record.fields().enumerate() {
        let field = field.unwrap();
        assert_eq!(field.name(), format!("f{number:04}"));
        assert_eq!(
            (field.offset(), field.dtype()),
            (8 * number, Some(DType::F64))
        );
        found += 1;
    }
    assert_eq!(found, 3_000);
}

/// Reading the name of each field would take much longer.
#[test]
fn dtype_with_shared_long_names_takes_linear_time() {
    let long = |len: usize, put: u8| {
        let mut name = b"X".to_vec();
        name.extend(u32::try_from(len).unwrap().to_le_bytes());
        name.resize(name.len() + len - 1, b'a');
        name.extend([put, b'r', put, 1, 0, 0]);
        name
    };
    let (one, other, short) = (long(1 << 20, 1), long(1 << 20, 2), long(1, 3));
    let entries = |name: &[u8]| {
        let entry = [b"j", &name[name.len() - 4..], b"N"].concat();
        [b"}(", name, b"N", &entry.repeat(1_000_000), b"u"].concat()
    };
    for name in [&other, &short] {
        let state = [
            &b"\x8c\x01|N"[..],
            name,
            b"\x85",
            &entries(&one),
            b"K\x08K\x01K\x10",
        ]
        .concat();
        let pickle = type_pickle(&type_of("V8", &state)[2..]);
        let tree = Tree::new(&pickle).unwrap();
        let Ok(ElementType::Record(record)) = known::element_type(&tree) else {
            panic!("not a record")
        };
        assert!(record.fields().next().unwrap().is_err());
    }
}

/// The name of a type may be shared too, so a long one is not read.
#[test]
fn long_names_of_types_are_refused() {
    for (zero_count, is_read) in [(60, true), (70, false)] {
        let name = format!("f{}8", "0".repeat(zero_count));
        let pickle = type_pickle(&type_of(&name, F8)[2..]);
        let tree = Tree::new(&pickle).unwrap();
        assert_eq!(known::element_type(&tree).is_ok(), is_read, "{name}");
    }
}

/// Types that only Python knows are refused.
#[test]
fn dtypes_of_other_packages_stay_pickles() {
    let pickle = b"\x80\x04\x8c\x09ml_dtypes\x8c\x08bfloat16\x93.";
    let tree = Tree::new(pickle).unwrap();
    let error = known::element_type(&tree).unwrap_err();
    assert_eq!(error.kind, known::ConvertErrorKind::NotAllowed);
}

#[cfg(feature = "alloc")]
mod in_trees {
    use std::collections::BTreeMap;

    use daskwire_numpy::known::{self, ConvertErrorKind, Known, KnownValue, MaskedData};
    use daskwire_numpy::{ElementType, Order, PayloadValue};
    use daskwire_pickle::tree::{Node, Operation, Registry, Tree};
    use daskwire_pickle::{Limits, Reader};

    use super::{MASKED, each_payload, field, masked_elements, merged, text};

    fn registry() -> Registry<Known> {
        let mut registry = Registry::new();
        registry.allow_all(known::NUMPY);
        registry
    }

    fn converted<'t, 'p>(node: Node<'t, 'p>) -> KnownValue<'t, 'p> {
        known::convert(&registry(), node).unwrap_or_else(|error| panic!("{error}: {node}"))
    }

    /// Type, shape and items.
    type Sent = (String, Vec<usize>, Vec<Vec<u8>>);

    /// The arrays of a message by name.
    fn sent(name: &str) -> BTreeMap<String, Sent> {
        let mut found = BTreeMap::new();
        each_payload(name, |name, payload| {
            let parsed = PayloadValue::read(&payload).unwrap();
            let header = super::array_header(parsed.description());
            super::with_type(&header, |header| {
                let array = header.over(parsed.as_slice().unwrap()).unwrap();
                let items = array.items().map(<[u8]>::to_vec).collect();
                let shape = array.shape().to_vec();
                found.insert(
                    name.to_owned(),
                    (text(&header.element_type()), shape, items),
                );
            });
        });
        found
    }

    /// PROTOCOL TYPED-10: pickled arrays equal those with headers.
    #[test]
    fn pickled_arrays_equal_array_payloads() {
        for generation in ["classic-2.30.1", "modern-nosplit-2026.8.0"] {
            let records = sent(&format!("{generation}/case-array-of-records-of-all-kinds"));
            let name = format!("{generation}/case-pickled-arrays-of-all-kinds");
            let mut seen = 0;
            each_payload(&name, |_, payload| {
                let frames = merged(&payload).unwrap();
                let (pickle, buffers) = frames.split_first().unwrap();
                let tree = Tree::build(Reader::new(pickle), buffers, &Limits::HOST).unwrap();
                // The state of a SimpleNamespace.
                let Some(Operation::State(state)) = tree.root().operations().next() else {
                    panic!("{tree}")
                };
                let of = |kind: &str| state.node().get(kind).unwrap().entries();
                for (name, node) in of("records") {
                    let KnownValue::Array(found) = converted(node) else {
                        panic!("{node}")
                    };
                    let (of, shape, items) = &records[name.as_str().unwrap()];
                    let array = found.array();
                    assert_eq!(text(&found.element_type()), *of);
                    assert_eq!(array.shape(), shape);
                    assert!(array.items().eq(items.iter().map(Vec::as_slice)), "{node}");
                    assert_eq!(array.writeable(), Some(true));
                    assert_eq!(found.borrowed(), Some(array));
                    if shape.len() == 1 && of.contains("path") {
                        let y = field(&array, found.element_type(), &["path", "y"]);
                        assert!(y.elements::<f64>().unwrap().eq((0..12).map(f64::from)));
                    }
                    seen += 1;
                }
                for (name, node) in of("masked") {
                    seen += 1;
                    let name = name.as_str().unwrap();
                    let found = match converted(node) {
                        KnownValue::MaskedArray(found) => found,
                        other => {
                            assert!(matches!(other, KnownValue::Masked), "{name}: {other:?}");
                            assert_eq!(name, "an element");
                            continue;
                        }
                    };
                    // Dask has asked each of them for it, before it was pickled.
                    let KnownValue::Array(value) = converted(found.fill_value().unwrap()) else {
                        panic!("{node}")
                    };
                    assert!(value.array().shape().is_empty());
                    let Some(masked) = found.array() else {
                        let MaskedData::Objects(objects) = found.data() else {
                            panic!("{node}")
                        };
                        assert_eq!(name, "objects");
                        let what: Vec<_> = objects.items().map(|item| item.to_string()).collect();
                        assert_eq!(what, ["1", "\"two\"", "None"]);
                        let flags = found.mask();
                        assert!(flags.elements::<bool>().unwrap().eq([false, false, true]));
                        continue;
                    };
                    let (_, expected) = MASKED.into_iter().find(|(at, _)| *at == name).unwrap();
                    assert_eq!(masked_elements(name, &masked), expected, "{name}");
                    if name == "fortran" {
                        assert_eq!(masked.data().order(), Some(Order::Fortran));
                    }
                    if name == "records" {
                        let flags: Vec<_> = found.mask().items().collect();
                        assert_eq!(flags, [[1, 0], [0, 1]]);
                    }
                }
                for (name, node) in of("objects") {
                    seen += 1;
                    let KnownValue::ObjectArray(found) = converted(node) else {
                        panic!("{node}")
                    };
                    let what: Vec<_> = found.items().map(|item| item.to_string()).collect();
                    let (shape, expected): (&[usize], &[&str]) = match name.as_str().unwrap() {
                        // In C order, unlike the other one.
                        "objects" | "fortran" => (
                            &[2, 3],
                            &["1", "\"two\"", "None", "2.5", "b\"bytes\"", "(3, 4)"],
                        ),
                        "none" => (&[0, 2], &[]),
                        _ => {
                            assert_eq!(text(&found.element_type()), "V12{n@0 <u4, what@4 |O}");
                            (&[2], &["(1, \"a\")", "(2, None)"])
                        }
                    };
                    assert_eq!(found.shape(), shape);
                    assert_eq!(what, expected);
                }
            });
            assert_eq!(seen, 7 + 8 + 4);
        }
    }

    /// A type with `text` as its name, in an array of `shape` with `data`.
    fn frombuffer(dtype: &str, data: &str, rest: &str) -> Result<String, ConvertErrorKind> {
        let pickle = format!("cnumpy._core.numeric\n_frombuffer\n({data}{dtype}{rest}tR.");
        let reader = Reader::new(pickle.as_bytes()).text_opcodes(true);
        let tree = Tree::build::<&[u8]>(reader, &[], &Limits::HOST).unwrap();
        match known::convert(&registry(), tree.root()) {
            Ok(KnownValue::Array(found)) => {
                let array = found.array();
                let strides = array.strides();
                Ok(format!("{} {:?} {strides:?}", array.dtype(), array.shape()))
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.kind),
        }
    }

    fn dtype(name: &str, state: &str) -> String {
        format!("cnumpy\ndtype\n(V{name}\nI00\nI01\ntR(I3\n{state}tb")
    }

    /// PROTOCOL TYPED-10
    #[test]
    fn inconsistent_pickled_arrays_are_refused() {
        let u2 = dtype("u2", "V<\nNNNI-1\nI-1\nI0\n");
        let data = "C\x0cabcdefghijkl";
        let good = |rest: &str| frombuffer(&u2, data, rest).unwrap();
        assert_eq!(good("(I2\nI3\ntVC\n"), "<u2 [2, 3] [6, 2]");
        assert_eq!(good("(I2\nI3\ntVF\n"), "<u2 [2, 3] [2, 4]");
        assert_eq!(good("(I3\nI2\ntVK\n(I1\nI0\nt"), "<u2 [2, 3] [2, 4]");
        let wrong = |dtype: &str, rest: &str| frombuffer(dtype, data, rest).unwrap_err();
        let c = "(I6\ntVC\n";
        for rest in [
            "(I5\ntVC\n",
            "(I7\ntVC\n",
            &format!("(I{}\nI9\ntVC\n", isize::MAX),
        ] {
            let kind = wrong(&u2, rest);
            assert!(matches!(kind, ConvertErrorKind::Dimensions(_)), "{kind}");
        }
        let many = format!("({}tVC\n", "I1\n".repeat(65));
        let kind = wrong(&u2, &many);
        assert!(matches!(kind, ConvertErrorKind::Dimensions(_)), "{kind}");
        for rest in ["(I3\nI2\ntVK\n(I1\nI1\nt", "(I3\nI2\ntVK\n(I1\nt"] {
            let kind = wrong(&u2, rest);
            assert!(matches!(kind, ConvertErrorKind::Invalid { .. }), "{kind}");
        }
        for rest in ["(I6\ntVA\n", "(I-6\ntVC\n", "(V6\ntVC\n", "I6\nVC\n"] {
            let kind = wrong(&u2, rest);
            assert!(
                matches!(kind, ConvertErrorKind::Expected { .. }),
                "{rest}: {kind}"
            );
        }
        for state in [
            dtype("u3", "V<\nNNNI-1\nI-1\nI0\n"),
            dtype("u2", "V=\nNNNI-1\nI-1\nI0\n"),
            dtype("u2", "V<\nNNNI-2\nI-1\nI0\n"),
            dtype("u2", "V<\nNNNI-1\nI-1\n"),
            dtype("u2", "V<\n(I1\nI2\ntNNI-1\nI-1\nI0\n"),
            dtype("u2", "V<\nN(Va\nt(dI2\nI-1\nI0\n"),
            dtype("M8", "V<\nNNNI-1\nI-1\nI0\n"),
            dtype("U1", "V<\nNNNI3\nI-1\nI0\n"),
            u2.replace("dtype", "dtypf"),
        ] {
            let kind = wrong(&state, c);
            let is_right = matches!(
                kind,
                ConvertErrorKind::Expected { .. } | ConvertErrorKind::NotAllowed
            );
            assert!(is_right, "{state}: {kind}");
        }
        let kind = wrong(&dtype("O8", "V|\nNNNI-1\nI-1\nI63\n"), c);
        assert!(
            matches!(kind, ConvertErrorKind::Unsupported { .. }),
            "{kind}"
        );
    }

    /// A type that contains itself, in a tree.
    #[test]
    fn self_containing_dtype_is_limited_to_16_levels() {
        let pickle = b"\x80\x04\x8c\x05numpy\x8c\x05dtype\x93\x8c\x02V8\x89\x88\x87R\x94\
            (K\x03\x8c\x01|N\x8c\x01a\x85}\x8c\x01ah\x00K\x00\x86sK\x08K\x01K\x10tb.";
        let tree = Tree::new(pickle).unwrap();
        let KnownValue::DType {
            mut element_type,
            shape,
        } = converted(tree.root())
        else {
            panic!("{tree}")
        };
        assert!(shape.is_empty());
        let mut levels = 0;
        while let ElementType::Record(record) = element_type {
            levels += 1;
            match record.field("a") {
                Ok(field) => element_type = field.unwrap().element_type(),
                Err(error) => {
                    assert_eq!(error.expected, "records in at most 16 levels");
                    break;
                }
            }
        }
        assert_eq!(levels, 16);
    }
}
