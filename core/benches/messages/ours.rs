//! Our reader: all fields, everything, one key.

use daskwire::msgpack::{Malformed, RawStr, Reader, Str, Token};

use super::model::{
    Bandwidth, Bin, ComputeTask, Heartbeat, Host, Metrics, Pairs, Pickled, Rates, RegisterWorker,
    Spilled, StartStop, TaskFinished, Transfer, Versions,
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

pub(crate) fn compute_task<'a, T: Words<'a>>(
    reader: &mut Reader<'a>,
) -> Result<ComputeTask<T>, Malformed> {
    let mut message = ComputeTask::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("op") {
            message.op = T::read(value)?;
        }
        if let Some(value) = fields.take("key") {
            message.key = T::read(value)?;
        }
        if let Some(value) = fields.take("run_id") {
            message.run_id = value.u64()?;
        }
        if let Some(value) = fields.take("priority") {
            message.priority = array_of(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("stimulus_id") {
            message.stimulus_id = T::read(value)?;
        }
        if let Some(value) = fields.take("who_has") {
            message.who_has = pairs(value, |value| array_of(value, T::read))?;
        }
        if let Some(value) = fields.take("nbytes") {
            message.nbytes = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("run_spec") {
            let mut fields = value.fields()?;
            while fields.more()? {
                if let Some(value) = fields.take("__Pickled__") {
                    message.run_spec = Pickled {
                        index: value.u64()?,
                    };
                }
            }
        }
        if let Some(value) = fields.take("resource_restrictions") {
            message.resource_restrictions = if value.take_nil() {
                None
            } else {
                Some(pairs(value, Reader::f64)?)
            };
        }
        if let Some(value) = fields.take("actor") {
            message.actor = value.bool()?;
        }
        if let Some(value) = fields.take("annotations") {
            message.annotations = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("span_id") {
            message.span_id = if value.take_nil() {
                None
            } else {
                Some(T::read(value)?)
            };
        }
    }
    Ok(message)
}

pub(crate) fn task_finished<'a, T: Words<'a>>(
    reader: &mut Reader<'a>,
) -> Result<TaskFinished<'a, T>, Malformed> {
    let mut message = TaskFinished::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("key") {
            message.key = T::read(value)?;
        }
        if let Some(value) = fields.take("run_id") {
            message.run_id = value.u64()?;
        }
        if let Some(value) = fields.take("nbytes") {
            message.nbytes = value.u64()?;
        }
        if let Some(value) = fields.take("type") {
            message.pickled_type = Bin(value.bin()?);
        }
        if let Some(value) = fields.take("typename") {
            message.typename = T::read(value)?;
        }
        if let Some(value) = fields.take("metadata") {
            message.metadata = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("thread") {
            message.thread = value.u64()?;
        }
        if let Some(value) = fields.take("startstops") {
            message.startstops = array_of(value, start_stop)?;
        }
        if let Some(value) = fields.take("op") {
            message.op = T::read(value)?;
        }
        if let Some(value) = fields.take("stimulus_id") {
            message.stimulus_id = T::read(value)?;
        }
        if let Some(value) = fields.take("status") {
            message.status = T::read(value)?;
        }
    }
    Ok(message)
}

#[inline]
fn start_stop<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<StartStop<T>, Malformed> {
    let mut span = StartStop::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("action") {
            span.action = T::read(value)?;
        }
        if let Some(value) = fields.take("start") {
            span.start = value.f64()?;
        }
        if let Some(value) = fields.take("stop") {
            span.stop = value.f64()?;
        }
    }
    Ok(span)
}

pub(crate) fn batch<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<(), Malformed> {
    for _ in 0..reader.array()? {
        core::hint::black_box(&task_finished::<T>(reader)?);
    }
    Ok(())
}

fn metrics<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<Metrics<T>, Malformed> {
    let mut metrics = Metrics::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("task_counts") {
            metrics.task_counts = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("bandwidth") {
            metrics.bandwidth = bandwidth(value)?;
        }
        if let Some(value) = fields.take("digests_total_since_heartbeat") {
            metrics.digests_total_since_heartbeat = pairs(value, Reader::f64)?;
        }
        if let Some(value) = fields.take("managed_bytes") {
            metrics.managed_bytes = value.u64()?;
        }
        if let Some(value) = fields.take("spilled_bytes") {
            metrics.spilled_bytes = spilled(value)?;
        }
        if let Some(value) = fields.take("transfer") {
            metrics.transfer = transfer(value)?;
        }
        if let Some(value) = fields.take("event_loop_interval") {
            metrics.event_loop_interval = value.f64()?;
        }
        if let Some(value) = fields.take("cpu") {
            metrics.cpu = value.f64()?;
        }
        if let Some(value) = fields.take("memory") {
            metrics.memory = value.u64()?;
        }
        if let Some(value) = fields.take("time") {
            metrics.time = value.f64()?;
        }
        if let Some(value) = fields.take("host_net_io") {
            metrics.host_net_io = rates(value)?;
        }
        if let Some(value) = fields.take("host_disk_io") {
            metrics.host_disk_io = rates(value)?;
        }
        if let Some(value) = fields.take("num_fds") {
            metrics.num_fds = value.u64()?;
        }
    }
    Ok(metrics)
}

fn bandwidth<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<Bandwidth<T>, Malformed> {
    let mut bandwidth = Bandwidth::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("total") {
            bandwidth.total = value.u64()?;
        }
        if let Some(value) = fields.take("workers") {
            bandwidth.workers = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("types") {
            bandwidth.types = pairs(value, Reader::u64)?;
        }
    }
    Ok(bandwidth)
}

fn spilled(reader: &mut Reader<'_>) -> Result<Spilled, Malformed> {
    let mut spilled = Spilled::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("memory") {
            spilled.memory = value.u64()?;
        }
        if let Some(value) = fields.take("disk") {
            spilled.disk = value.u64()?;
        }
    }
    Ok(spilled)
}

fn transfer(reader: &mut Reader<'_>) -> Result<Transfer, Malformed> {
    let mut transfer = Transfer::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("incoming_bytes") {
            transfer.incoming_bytes = value.u64()?;
        }
        if let Some(value) = fields.take("incoming_count") {
            transfer.incoming_count = value.u64()?;
        }
        if let Some(value) = fields.take("incoming_count_total") {
            transfer.incoming_count_total = value.u64()?;
        }
        if let Some(value) = fields.take("outgoing_bytes") {
            transfer.outgoing_bytes = value.u64()?;
        }
        if let Some(value) = fields.take("outgoing_count") {
            transfer.outgoing_count = value.u64()?;
        }
        if let Some(value) = fields.take("outgoing_count_total") {
            transfer.outgoing_count_total = value.u64()?;
        }
    }
    Ok(transfer)
}

fn rates(reader: &mut Reader<'_>) -> Result<Rates, Malformed> {
    let mut rates = Rates::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("read_bps") {
            rates.read_bps = value.f64()?;
        }
        if let Some(value) = fields.take("write_bps") {
            rates.write_bps = value.f64()?;
        }
    }
    Ok(rates)
}

pub(crate) fn heartbeat<'a, T: Words<'a>>(
    reader: &mut Reader<'a>,
) -> Result<Heartbeat<T>, Malformed> {
    let mut message = Heartbeat::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("op") {
            message.op = T::read(value)?;
        }
        if let Some(value) = fields.take("address") {
            message.address = T::read(value)?;
        }
        if let Some(value) = fields.take("now") {
            message.now = value.f64()?;
        }
        if let Some(value) = fields.take("metrics") {
            message.metrics = metrics(value)?;
        }
        if let Some(value) = fields.take("executing") {
            message.executing = pairs(value, Reader::f64)?;
        }
        if let Some(value) = fields.take("extensions") {
            let extensions = &mut message.extensions;
            let mut fields = value.fields()?;
            while fields.more()? {
                if let Some(value) = fields.take("spans") {
                    extensions.spans = pairs(value, Reader::u64)?;
                }
                if let Some(value) = fields.take("shuffle") {
                    extensions.shuffle = pairs(value, Reader::u64)?;
                }
            }
        }
        if let Some(value) = fields.take("reply") {
            message.reply = value.bool()?;
        }
    }
    Ok(message)
}

fn host<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<Host<T>, Malformed> {
    let mut host = Host::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("python") {
            host.python = T::read(value)?;
        }
        if let Some(value) = fields.take("python-bits") {
            host.python_bits = value.u64()?;
        }
        if let Some(value) = fields.take("OS") {
            host.os = T::read(value)?;
        }
        if let Some(value) = fields.take("OS-release") {
            host.os_release = T::read(value)?;
        }
        if let Some(value) = fields.take("machine") {
            host.machine = T::read(value)?;
        }
        if let Some(value) = fields.take("processor") {
            host.processor = T::read(value)?;
        }
        if let Some(value) = fields.take("byteorder") {
            host.byteorder = T::read(value)?;
        }
        if let Some(value) = fields.take("LC_ALL") {
            host.lc_all = T::read(value)?;
        }
        if let Some(value) = fields.take("LANG") {
            host.lang = T::read(value)?;
        }
    }
    Ok(host)
}

fn versions<'a, T: Words<'a>>(reader: &mut Reader<'a>) -> Result<Versions<T>, Malformed> {
    let mut versions = Versions::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("host") {
            versions.host = host(value)?;
        }
        if let Some(value) = fields.take("packages") {
            versions.packages = pairs(value, T::read)?;
        }
    }
    Ok(versions)
}

pub(crate) fn register_worker<'a, T: Words<'a>>(
    reader: &mut Reader<'a>,
) -> Result<RegisterWorker<T>, Malformed> {
    let mut message = RegisterWorker::default();
    let mut fields = reader.fields()?;
    while fields.more()? {
        if let Some(value) = fields.take("op") {
            message.op = T::read(value)?;
        }
        if let Some(value) = fields.take("reply") {
            message.reply = value.bool()?;
        }
        if let Some(value) = fields.take("address") {
            message.address = T::read(value)?;
        }
        if let Some(value) = fields.take("status") {
            message.status = T::read(value)?;
        }
        if let Some(value) = fields.take("nthreads") {
            message.nthreads = value.u64()?;
        }
        if let Some(value) = fields.take("name") {
            message.name = T::read(value)?;
        }
        if let Some(value) = fields.take("now") {
            message.now = value.f64()?;
        }
        if let Some(value) = fields.take("resources") {
            message.resources = pairs(value, Reader::f64)?;
        }
        if let Some(value) = fields.take("memory_limit") {
            message.memory_limit = value.u64()?;
        }
        if let Some(value) = fields.take("local_directory") {
            message.local_directory = T::read(value)?;
        }
        if let Some(value) = fields.take("services") {
            message.services = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("nanny") {
            message.nanny = if value.take_nil() {
                None
            } else {
                Some(T::read(value)?)
            };
        }
        if let Some(value) = fields.take("pid") {
            message.pid = value.u64()?;
        }
        if let Some(value) = fields.take("versions") {
            message.versions = versions(value)?;
        }
        if let Some(value) = fields.take("metrics") {
            message.metrics = metrics(value)?;
        }
        if let Some(value) = fields.take("extra") {
            message.extra = pairs(value, Reader::u64)?;
        }
        if let Some(value) = fields.take("stimulus_id") {
            message.stimulus_id = T::read(value)?;
        }
        if let Some(value) = fields.take("server_id") {
            message.server_id = T::read(value)?;
        }
    }
    Ok(message)
}

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
