//! Our reader: all fields, everything, one key.

use daskwire::msgpack::{Malformed, RawStr, Reader, Str, Token};

use super::model::{
    Bandwidth, Bin, ComputeTask, Extensions, Heartbeat, Host, Metrics, Pairs, Pickled, Rates,
    RegisterWorker, Spilled, StartStop, TaskFinished, Transfer, Versions,
};

/// A string, validated or not.
pub(crate) trait Words<'a>: Copy + Default {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed>;
}

impl<'a> Words<'a> for Str<'a> {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.str()
    }
}

impl<'a> Words<'a> for RawStr<'a> {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        reader.raw_str()
    }
}

/// A function that reads a map: of each known key, its value.
macro_rules! read_fields {
    (fn $name:ident($value:ident) -> $type:ty {
        $($key:literal => $field:ident = $read:expr;)*
    }) => {
        #[inline]
        pub(crate) fn $name<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<$type, Malformed> {
            let mut message = <$type>::default();
            let mut fields = reader.fields()?;
            while fields.more()? {
                $(if let Some($value) = fields.take($key) {
                    message.$field = $read;
                })*
            }
            Ok(message)
        }
    };
}

/// Reads a map whose keys are data.
#[inline]
fn pairs<'a, T: Words<'a>, V: Copy + Default, const N: usize>(
    reader: &mut Reader<'a>,
    mut value: impl FnMut(&mut Reader<'a>) -> Result<V, Malformed>,
) -> Result<Pairs<T, V, N>, Malformed> {
    let mut pairs = Pairs::default();
    for _ in 0..reader.map()? {
        let key = T::read(reader)?;
        pairs.push(key, value(reader)?).expect("room");
    }
    Ok(pairs)
}

#[inline]
fn array_of<'a, V: Copy + Default, const N: usize>(
    reader: &mut Reader<'a>,
    mut value: impl FnMut(&mut Reader<'a>) -> Result<V, Malformed>,
) -> Result<[V; N], Malformed> {
    assert_eq!(reader.array()? as usize, N);
    let mut values = [V::default(); N];
    for place in &mut values {
        *place = value(reader)?;
    }
    Ok(values)
}

read_fields! { fn compute_task(value) -> ComputeTask<T> {
    "op" => op = T::read(value)?;
    "key" => key = T::read(value)?;
    "run_id" => run_id = value.u64()?;
    "priority" => priority = array_of(value, Reader::u64)?;
    "stimulus_id" => stimulus_id = T::read(value)?;
    "who_has" => who_has = pairs(value, |value| array_of(value, T::read))?;
    "nbytes" => nbytes = pairs(value, Reader::u64)?;
    "run_spec" => run_spec = pickled::<T>(value)?;
    "resource_restrictions" => resource_restrictions = optional(value, |value| pairs(value, Reader::f64))?;
    "actor" => actor = value.bool()?;
    "annotations" => annotations = pairs(value, Reader::u64)?;
    "span_id" => span_id = optional(value, T::read)?;
} }

read_fields! { fn task_finished(value) -> TaskFinished<'a, T> {
    "key" => key = T::read(value)?;
    "run_id" => run_id = value.u64()?;
    "nbytes" => nbytes = value.u64()?;
    "type" => pickled_type = Bin(value.bin()?);
    "typename" => typename = T::read(value)?;
    "metadata" => metadata = pairs(value, Reader::u64)?;
    "thread" => thread = value.u64()?;
    "startstops" => startstops = array_of(value, start_stop)?;
    "op" => op = T::read(value)?;
    "stimulus_id" => stimulus_id = T::read(value)?;
    "status" => status = T::read(value)?;
} }

read_fields! { fn start_stop(value) -> StartStop<T> {
    "action" => action = T::read(value)?;
    "start" => start = value.f64()?;
    "stop" => stop = value.f64()?;
} }

#[inline]
fn optional<'a, V>(
    reader: &mut Reader<'a>,
    value: impl FnOnce(&mut Reader<'a>) -> Result<V, Malformed>,
) -> Result<Option<V>, Malformed> {
    if reader.take_nil() {
        return Ok(None);
    }
    value(reader).map(Some)
}

pub(crate) fn batch<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<(), Malformed> {
    for _ in 0..reader.array()? {
        core::hint::black_box(&task_finished::<T>(reader)?);
    }
    Ok(())
}

read_fields! { fn metrics(value) -> Metrics<T> {
    "task_counts" => task_counts = pairs(value, Reader::u64)?;
    "bandwidth" => bandwidth = bandwidth(value)?;
    "digests_total_since_heartbeat" => digests_total_since_heartbeat = pairs(value, Reader::f64)?;
    "managed_bytes" => managed_bytes = value.u64()?;
    "spilled_bytes" => spilled_bytes = spilled::<T>(value)?;
    "transfer" => transfer = transfer::<T>(value)?;
    "event_loop_interval" => event_loop_interval = value.f64()?;
    "cpu" => cpu = value.f64()?;
    "memory" => memory = value.u64()?;
    "time" => time = value.f64()?;
    "host_net_io" => host_net_io = rates::<T>(value)?;
    "host_disk_io" => host_disk_io = rates::<T>(value)?;
    "num_fds" => num_fds = value.u64()?;
} }

read_fields! { fn bandwidth(value) -> Bandwidth<T> {
    "total" => total = value.u64()?;
    "workers" => workers = pairs(value, Reader::u64)?;
    "types" => types = pairs(value, Reader::u64)?;
} }

read_fields! { fn spilled(value) -> Spilled {
    "memory" => memory = value.u64()?;
    "disk" => disk = value.u64()?;
} }

read_fields! { fn transfer(value) -> Transfer {
    "incoming_bytes" => incoming_bytes = value.u64()?;
    "incoming_count" => incoming_count = value.u64()?;
    "incoming_count_total" => incoming_count_total = value.u64()?;
    "outgoing_bytes" => outgoing_bytes = value.u64()?;
    "outgoing_count" => outgoing_count = value.u64()?;
    "outgoing_count_total" => outgoing_count_total = value.u64()?;
} }

read_fields! { fn rates(value) -> Rates {
    "read_bps" => read_bps = value.f64()?;
    "write_bps" => write_bps = value.f64()?;
} }

read_fields! { fn pickled(value) -> Pickled {
    "__Pickled__" => index = value.u64()?;
} }

read_fields! { fn extensions(value) -> Extensions<T> {
    "spans" => spans = pairs(value, Reader::u64)?;
    "shuffle" => shuffle = pairs(value, Reader::u64)?;
} }

read_fields! { fn heartbeat(value) -> Heartbeat<T> {
    "op" => op = T::read(value)?;
    "address" => address = T::read(value)?;
    "now" => now = value.f64()?;
    "metrics" => metrics = metrics(value)?;
    "executing" => executing = pairs(value, Reader::f64)?;
    "extensions" => extensions = extensions(value)?;
    "reply" => reply = value.bool()?;
} }

read_fields! { fn host(value) -> Host<T> {
    "python" => python = T::read(value)?;
    "python-bits" => python_bits = value.u64()?;
    "OS" => os = T::read(value)?;
    "OS-release" => os_release = T::read(value)?;
    "machine" => machine = T::read(value)?;
    "processor" => processor = T::read(value)?;
    "byteorder" => byteorder = T::read(value)?;
    "LC_ALL" => lc_all = T::read(value)?;
    "LANG" => lang = T::read(value)?;
} }

read_fields! { fn versions(value) -> Versions<T> {
    "host" => host = host(value)?;
    "packages" => packages = pairs(value, T::read)?;
} }

read_fields! { fn register_worker(value) -> RegisterWorker<T> {
    "op" => op = T::read(value)?;
    "reply" => reply = value.bool()?;
    "address" => address = T::read(value)?;
    "status" => status = T::read(value)?;
    "nthreads" => nthreads = value.u64()?;
    "name" => name = T::read(value)?;
    "now" => now = value.f64()?;
    "resources" => resources = pairs(value, Reader::f64)?;
    "memory_limit" => memory_limit = value.u64()?;
    "local_directory" => local_directory = T::read(value)?;
    "services" => services = pairs(value, Reader::u64)?;
    "nanny" => nanny = optional(value, T::read)?;
    "pid" => pid = value.u64()?;
    "versions" => versions = versions(value)?;
    "metrics" => metrics = metrics(value)?;
    "extra" => extra = pairs(value, Reader::u64)?;
    "stimulus_id" => stimulus_id = T::read(value)?;
    "server_id" => server_id = T::read(value)?;
} }

/// Reads every token of a document, and optionally validates its strings.
pub(crate) fn walk<const CHECKED: bool>(document: &[u8]) -> Result<u64, Malformed> {
    let mut reader = Reader::new(document);
    let mut owed = 1_u64;
    let mut sum = 0_u64;
    while owed != 0 {
        let at = reader.position();
        let token = reader.token()?;
        owed -= 1;
        match token {
            Token::Str(string) if CHECKED => match string.check() {
                Ok(string) => sum ^= string.len() as u64,
                Err(_) => return Err(Reader::new(&document[at..]).str().unwrap_err()),
            },
            Token::Str(string) => sum ^= string.as_bytes().len() as u64,
            Token::Bin(data) | Token::Ext(_, data) => sum ^= data.len() as u64,
            Token::UInt(value) => sum ^= value,
            Token::Int(value) => sum ^= value.cast_unsigned(),
            Token::F64(value) => sum ^= value.to_bits(),
            Token::F32(value) => sum ^= u64::from(value.to_bits()),
            Token::Bool(value) => sum ^= u64::from(value),
            Token::Array(count) => owed += u64::from(count),
            Token::Map(count) => owed += 2 * u64::from(count),
            Token::Nil => {}
        }
    }
    reader.finish()?;
    Ok(sum)
}

/// Finds `op` in one message.
pub(crate) fn op<'a>(document: &'a [u8]) -> Result<RawStr<'a>, Malformed> {
    let mut reader = Reader::new(document);
    assert!(reader.find("op")?);
    reader.raw_str()
}

/// Finds `op` in each message of a batch, in one pass.
pub(crate) fn ops(document: &[u8]) -> Result<(), Malformed> {
    let mut reader = Reader::new(document);
    for _ in 0..reader.array()? {
        for _ in 0..reader.map()? {
            if reader.raw_str()? == "op" {
                core::hint::black_box(reader.raw_str()?);
            } else {
                reader.skip()?;
            }
        }
    }
    Ok(())
}
