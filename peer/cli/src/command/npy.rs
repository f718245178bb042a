//! Files of `numpy.save`, of the version 1.0 to 3.0 of its format.

use daskwire_numpy::{DType, Order};
use daskwire_peer::{Array, Value};
use serde_json::Value as Json;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Encodes an array as a `.npy` file, version 1.0.
pub(crate) fn write(result: &Value) -> Result<Vec<u8>, String> {
    let Value::Array(array) = result else {
        return Err(format!(
            "this format is for arrays, and the result is of type {}",
            result.type_name()
        ));
    };
    let view = array.view().map_err(|error| error.to_string())?;
    let order = view.order();
    let shape: String = array.shape().iter().map(|len| format!("{len}, ")).collect();
    let mut header = format!(
        "{{'descr': '{}', 'fortran_order': {}, 'shape': ({}), }}",
        array.dtype().type_string().as_str(),
        if order == Some(Order::Fortran) {
            "True"
        } else {
            "False"
        },
        shape.trim_end(),
    );
    // numpy aligns the data to 64 bytes.
    const ALIGNMENT: usize = 64;
    let len = MAGIC.len() + b"\x01\x00??".len() + header.len() + 1;
    header.push_str(&" ".repeat(len.next_multiple_of(ALIGNMENT) - len));
    header.push('\n');
    let header_len = u16::try_from(header.len()).map_err(|_| "too many dimensions")?;
    let mut file = [MAGIC, b"\x01\x00"].concat();
    file.extend_from_slice(&header_len.to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    match order {
        Some(_) => file.extend_from_slice(view.bytes()),
        None => view.items().for_each(|item| file.extend_from_slice(item)),
    }
    Ok(file)
}

/// Reads the array of a `.npy` file.
///
/// # Errors
///
/// If the file is no such file, or if its elements are Python objects or records.
pub(crate) fn read(file: Vec<u8>) -> Result<Value, String> {
    let rest = file.strip_prefix(MAGIC).ok_or("not a file of numpy.save")?;
    let (header_len, rest) = match rest {
        [1, _, a, b, rest @ ..] => (u16::from_le_bytes([*a, *b]).into(), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
        _ => return Err("expected the version 1, 2 or 3 of the format".to_owned()),
    };
    let header_len = usize::try_from(header_len).unwrap_or(usize::MAX);
    let header = rest.get(..header_len).ok_or("the header is not complete")?;
    let header = literal(header).filter(Json::is_object);
    let header = header.ok_or("the header is not a dictionary")?;
    let dtype = header["descr"]
        .as_str()
        .ok_or("records are not supported")?;
    let dtype = DType::parse(dtype)
        .map_err(|error| format!("elements of type {dtype} are not supported: {error}"))?;
    let order = match header["fortran_order"].as_bool() {
        Some(true) => Order::Fortran,
        Some(false) => Order::C,
        None => return Err("the header has no order of elements".to_owned()),
    };
    let shape = header["shape"]
        .as_array()
        .ok_or("the header has no shape")?;
    let lens = shape.iter().map(|len| usize::try_from(len.as_u64()?).ok());
    let shape: Vec<usize> = lens
        .collect::<Option<_>>()
        .ok_or("the header has no shape")?;
    let start = file.len() - rest.len() + header_len;
    let data = bytes::Bytes::from(file).slice(start..);
    let array = Array::from_bytes(dtype, &shape, order, data);
    Ok(Value::Array(array.map_err(|error| error.to_string())?))
}

/// The dictionary in a header, a literal of Python. A string in it that has one of the replaced
/// characters is the name of a field of records, which are not supported.
fn literal(header: &[u8]) -> Option<Json> {
    let mut json = core::str::from_utf8(header).ok()?.trim_end().to_owned();
    for (python, other) in [
        ("'", "\""),
        ("(", "["),
        (")", "]"),
        ("True", "true"),
        ("False", "false"),
        (", }", "}"),
        (",}", "}"),
        (",]", "]"),
        (", ]", "]"),
    ] {
        json = json.replace(python, other);
    }
    serde_json::from_str(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_they_were_written() {
        for shape in [&[][..], &[6], &[2, 3], &[0, 4]] {
            let elements = vec![1.5_f64; shape.iter().product()];
            let array = Array::from_vec(shape, elements).expect("an array");
            let file = write(&Value::Array(array.clone())).expect("a file");
            assert_eq!(read(file).expect("an array"), Value::Array(array));
        }
    }

    #[test]
    fn other_files_are_refused() {
        let header = |text: &str| {
            let len = u16::try_from(text.len()).expect("short").to_le_bytes();
            [MAGIC, b"\x01\x00", &len, text.as_bytes()].concat()
        };
        for (file, error) in [
            (b"PK".to_vec(), "not a file of numpy.save"),
            (
                MAGIC.to_vec(),
                "expected the version 1, 2 or 3 of the format",
            ),
            (
                [MAGIC, b"\x01\x00\xff\xff{"].concat(),
                "the header is not complete",
            ),
            (header("[]"), "the header is not a dictionary"),
            (header("{"), "the header is not a dictionary"),
            (
                header("{'descr': [('a', '<f8')], 'shape': (1,), }"),
                "records are not supported",
            ),
            (
                header("{'descr': '<f8', 'shape': (1,), }"),
                "the header has no order of elements",
            ),
            (
                header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
                "the header has no shape",
            ),
        ] {
            assert_eq!(read(file).expect_err(error), error);
        }
        let objects = read(header(
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        ));
        let error = objects.expect_err("objects");
        assert!(
            error.starts_with("elements of type |O are not supported: "),
            "{error}"
        );
        let short = read(header(
            "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }",
        ));
        assert!(short.is_err());
    }
}
