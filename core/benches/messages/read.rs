//! Reading all fields by hand with rmp, and with the least that can be done.

use super::model::{
    Bandwidth, Bin, ComputeTask, Extensions, Heartbeat, Host, Metrics, Pairs, Pickled, Rates,
    RegisterWorker, Spilled, StartStop, TaskFinished, Transfer, Unexpected, Versions,
};

/// The common interface of the readers.
pub(crate) trait Pull<'a> {
    type Str: Copy + Default;
    type Error: From<Unexpected>;

    fn map(&mut self) -> Result<u32, Self::Error>;
    fn array(&mut self) -> Result<u32, Self::Error>;
    /// Reads a key to compare with the known keys.
    fn key(&mut self) -> Result<&'a [u8], Self::Error>;
    fn string(&mut self) -> Result<Self::Str, Self::Error>;
    fn bin(&mut self) -> Result<&'a [u8], Self::Error>;
    fn uint(&mut self) -> Result<u64, Self::Error>;
    fn float(&mut self) -> Result<f64, Self::Error>;
    fn boolean(&mut self) -> Result<bool, Self::Error>;
    /// Reads nil if it is next.
    fn is_nil(&mut self) -> Result<bool, Self::Error>;
}

/// rmp's functions over a slice. (Its `read_str_from_slice` costs 50 % more
/// than this code.)
pub(crate) struct Rmp<'a>(pub &'a [u8]);

/// rmp has four error types, which are not distinguished here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmpError;

impl From<Unexpected> for RmpError {
    fn from(_: Unexpected) -> Self {
        Self
    }
}

impl<'a> Pull<'a> for Rmp<'a> {
    type Str = &'a str;
    type Error = RmpError;

    #[inline]
    fn map(&mut self) -> Result<u32, RmpError> {
        rmp::decode::read_map_len(&mut self.0).map_err(|_| RmpError)
    }

    #[inline]
    fn array(&mut self) -> Result<u32, RmpError> {
        rmp::decode::read_array_len(&mut self.0).map_err(|_| RmpError)
    }

    #[inline]
    fn key(&mut self) -> Result<&'a [u8], RmpError> {
        let len = rmp::decode::read_str_len(&mut self.0).map_err(|_| RmpError)?;
        let (string, rest) = self.0.split_at_checked(len as usize).ok_or(RmpError)?;
        self.0 = rest;
        Ok(string)
    }

    #[inline]
    fn string(&mut self) -> Result<&'a str, RmpError> {
        core::str::from_utf8(self.key()?).map_err(|_| RmpError)
    }

    #[inline]
    fn bin(&mut self) -> Result<&'a [u8], RmpError> {
        let len = rmp::decode::read_bin_len(&mut self.0).map_err(|_| RmpError)?;
        let (data, rest) = self.0.split_at_checked(len as usize).ok_or(RmpError)?;
        self.0 = rest;
        Ok(data)
    }

    #[inline]
    fn uint(&mut self) -> Result<u64, RmpError> {
        rmp::decode::read_int(&mut self.0).map_err(|_| RmpError)
    }

    #[inline]
    fn float(&mut self) -> Result<f64, RmpError> {
        rmp::decode::read_f64(&mut self.0).map_err(|_| RmpError)
    }

    #[inline]
    fn boolean(&mut self) -> Result<bool, RmpError> {
        rmp::decode::read_bool(&mut self.0).map_err(|_| RmpError)
    }

    #[inline]
    fn is_nil(&mut self) -> Result<bool, RmpError> {
        if self.0.first() == Some(&0xc0) {
            self.0 = &self.0[1..];
            return Ok(true);
        }
        Ok(false)
    }
}

/// The floor: the least that a reader can do without unsafe code. It has no
/// limits, no offsets, and one error.
pub(crate) struct Floor<'a, const CHECKED: bool>(pub &'a [u8]);

#[derive(Clone, Copy, Debug)]
pub(crate) struct FloorError;

impl From<Unexpected> for FloorError {
    fn from(_: Unexpected) -> Self {
        Self
    }
}

impl<'a, const CHECKED: bool> Floor<'a, CHECKED> {
    #[inline]
    fn byte(&mut self) -> Result<u8, FloorError> {
        let (&byte, rest) = self.0.split_first().ok_or(FloorError)?;
        self.0 = rest;
        Ok(byte)
    }

    #[inline]
    fn number<const N: usize>(&mut self) -> Result<[u8; N], FloorError> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(FloorError)?;
        self.0 = rest;
        Ok(*bytes)
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], FloorError> {
        let (data, rest) = self.0.split_at_checked(len).ok_or(FloorError)?;
        self.0 = rest;
        Ok(data)
    }
}

impl<'a, const CHECKED: bool> Pull<'a> for Floor<'a, CHECKED> {
    type Str = &'a [u8];
    type Error = FloorError;

    #[inline]
    fn map(&mut self) -> Result<u32, FloorError> {
        match self.byte()? {
            marker @ 0x80..=0x8f => Ok(u32::from(marker & 0x0f)),
            0xde => Ok(u32::from(u16::from_be_bytes(self.number()?))),
            0xdf => Ok(u32::from_be_bytes(self.number()?)),
            _ => Err(FloorError),
        }
    }

    #[inline]
    fn array(&mut self) -> Result<u32, FloorError> {
        match self.byte()? {
            marker @ 0x90..=0x9f => Ok(u32::from(marker & 0x0f)),
            0xdc => Ok(u32::from(u16::from_be_bytes(self.number()?))),
            0xdd => Ok(u32::from_be_bytes(self.number()?)),
            _ => Err(FloorError),
        }
    }

    #[inline]
    fn key(&mut self) -> Result<&'a [u8], FloorError> {
        let len = match self.byte()? {
            marker @ 0xa0..=0xbf => usize::from(marker & 0x1f),
            0xd9 => usize::from(self.byte()?),
            0xda => usize::from(u16::from_be_bytes(self.number()?)),
            0xdb => u32::from_be_bytes(self.number()?) as usize,
            _ => return Err(FloorError),
        };
        self.take(len)
    }

    #[inline]
    fn string(&mut self) -> Result<&'a [u8], FloorError> {
        let string = self.key()?;
        if CHECKED && !string.is_ascii() && core::str::from_utf8(string).is_err() {
            return Err(FloorError);
        }
        Ok(string)
    }

    #[inline]
    fn bin(&mut self) -> Result<&'a [u8], FloorError> {
        let len = match self.byte()? {
            0xc4 => usize::from(self.byte()?),
            0xc5 => usize::from(u16::from_be_bytes(self.number()?)),
            0xc6 => u32::from_be_bytes(self.number()?) as usize,
            _ => return Err(FloorError),
        };
        self.take(len)
    }

    #[inline]
    fn uint(&mut self) -> Result<u64, FloorError> {
        match self.byte()? {
            marker @ 0..=0x7f => Ok(u64::from(marker)),
            0xcc => Ok(u64::from(self.byte()?)),
            0xcd => Ok(u64::from(u16::from_be_bytes(self.number()?))),
            0xce => Ok(u64::from(u32::from_be_bytes(self.number()?))),
            0xcf => Ok(u64::from_be_bytes(self.number()?)),
            _ => Err(FloorError),
        }
    }

    #[inline]
    fn float(&mut self) -> Result<f64, FloorError> {
        match self.byte()? {
            0xcb => Ok(f64::from_be_bytes(self.number()?)),
            _ => Err(FloorError),
        }
    }

    #[inline]
    fn boolean(&mut self) -> Result<bool, FloorError> {
        match self.byte()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            _ => Err(FloorError),
        }
    }

    #[inline]
    fn is_nil(&mut self) -> Result<bool, FloorError> {
        if self.0.first() == Some(&0xc0) {
            self.byte()?;
            return Ok(true);
        }
        Ok(false)
    }
}

/// Reads a map, one known key after the other.
#[inline]
fn fields<'a, P: Pull<'a>>(
    pull: &mut P,
    mut each: impl FnMut(&mut P, &'a [u8]) -> Result<(), P::Error>,
) -> Result<(), P::Error> {
    for _ in 0..pull.map()? {
        let key = pull.key()?;
        each(pull, key)?;
    }
    Ok(())
}

/// Reads a map whose keys are data.
#[inline]
fn pairs<'a, P: Pull<'a>, V: Copy + Default, const N: usize>(
    pull: &mut P,
    mut value: impl FnMut(&mut P) -> Result<V, P::Error>,
) -> Result<Pairs<P::Str, V, N>, P::Error> {
    let mut pairs = Pairs::default();
    for _ in 0..pull.map()? {
        let key = pull.string()?;
        pairs.push(key, value(pull)?)?;
    }
    Ok(pairs)
}

#[inline]
fn array_of<'a, P: Pull<'a>, V: Copy + Default, const N: usize>(
    pull: &mut P,
    mut value: impl FnMut(&mut P) -> Result<V, P::Error>,
) -> Result<[V; N], P::Error> {
    if pull.array()? as usize != N {
        return Err(Unexpected.into());
    }
    let mut values = [V::default(); N];
    for place in &mut values {
        *place = value(pull)?;
    }
    Ok(values)
}

pub(crate) fn compute_task<'a, P: Pull<'a>>(pull: &mut P) -> Result<ComputeTask<P::Str>, P::Error> {
    let mut message = ComputeTask::default();
    fields(pull, |pull, key| {
        match key {
            b"op" => message.op = pull.string()?,
            b"key" => message.key = pull.string()?,
            b"run_id" => message.run_id = pull.uint()?,
            b"priority" => message.priority = array_of(pull, P::uint)?,
            b"stimulus_id" => message.stimulus_id = pull.string()?,
            b"who_has" => {
                message.who_has = pairs(pull, |pull| array_of(pull, P::string))?;
            }
            b"nbytes" => message.nbytes = pairs(pull, P::uint)?,
            b"run_spec" => {
                fields(pull, |pull, key| {
                    match key {
                        b"__Pickled__" => {
                            message.run_spec = Pickled {
                                index: pull.uint()?,
                            };
                        }
                        _ => return Err(Unexpected.into()),
                    }
                    Ok(())
                })?;
            }
            b"resource_restrictions" => {
                message.resource_restrictions = if pull.is_nil()? {
                    None
                } else {
                    Some(pairs(pull, P::float)?)
                };
            }
            b"actor" => message.actor = pull.boolean()?,
            b"annotations" => message.annotations = pairs(pull, P::uint)?,
            b"span_id" => {
                message.span_id = if pull.is_nil()? {
                    None
                } else {
                    Some(pull.string()?)
                };
            }
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(message)
}

pub(crate) fn task_finished<'a, P: Pull<'a>>(
    pull: &mut P,
) -> Result<TaskFinished<'a, P::Str>, P::Error> {
    let mut message = TaskFinished::default();
    fields(pull, |pull, key| {
        match key {
            b"key" => message.key = pull.string()?,
            b"run_id" => message.run_id = pull.uint()?,
            b"nbytes" => message.nbytes = pull.uint()?,
            b"type" => message.pickled_type = Bin(pull.bin()?),
            b"typename" => message.typename = pull.string()?,
            b"metadata" => message.metadata = pairs(pull, P::uint)?,
            b"thread" => message.thread = pull.uint()?,
            b"startstops" => message.startstops = array_of(pull, start_stop)?,
            b"op" => message.op = pull.string()?,
            b"stimulus_id" => message.stimulus_id = pull.string()?,
            b"status" => message.status = pull.string()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(message)
}

#[inline]
fn start_stop<'a, P: Pull<'a>>(pull: &mut P) -> Result<StartStop<P::Str>, P::Error> {
    let mut span = StartStop::default();
    fields(pull, |pull, key| {
        match key {
            b"action" => span.action = pull.string()?,
            b"start" => span.start = pull.float()?,
            b"stop" => span.stop = pull.float()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(span)
}

pub(crate) fn batch<'a, P: Pull<'a>>(pull: &mut P) -> Result<(), P::Error> {
    for _ in 0..pull.array()? {
        core::hint::black_box(&task_finished(pull)?);
    }
    Ok(())
}

fn metrics<'a, P: Pull<'a>>(pull: &mut P) -> Result<Metrics<P::Str>, P::Error> {
    let mut metrics = Metrics::default();
    fields(pull, |pull, key| {
        match key {
            b"task_counts" => metrics.task_counts = pairs(pull, P::uint)?,
            b"bandwidth" => metrics.bandwidth = bandwidth(pull)?,
            b"digests_total_since_heartbeat" => {
                metrics.digests_total_since_heartbeat = pairs(pull, P::float)?;
            }
            b"managed_bytes" => metrics.managed_bytes = pull.uint()?,
            b"spilled_bytes" => metrics.spilled_bytes = spilled(pull)?,
            b"transfer" => metrics.transfer = transfer(pull)?,
            b"event_loop_interval" => metrics.event_loop_interval = pull.float()?,
            b"cpu" => metrics.cpu = pull.float()?,
            b"memory" => metrics.memory = pull.uint()?,
            b"time" => metrics.time = pull.float()?,
            b"host_net_io" => metrics.host_net_io = rates(pull)?,
            b"host_disk_io" => metrics.host_disk_io = rates(pull)?,
            b"num_fds" => metrics.num_fds = pull.uint()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(metrics)
}

fn bandwidth<'a, P: Pull<'a>>(pull: &mut P) -> Result<Bandwidth<P::Str>, P::Error> {
    let mut bandwidth = Bandwidth::default();
    fields(pull, |pull, key| {
        match key {
            b"total" => bandwidth.total = pull.uint()?,
            b"workers" => bandwidth.workers = pairs(pull, P::uint)?,
            b"types" => bandwidth.types = pairs(pull, P::uint)?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(bandwidth)
}

fn spilled<'a, P: Pull<'a>>(pull: &mut P) -> Result<Spilled, P::Error> {
    let mut spilled = Spilled::default();
    fields(pull, |pull, key| {
        match key {
            b"memory" => spilled.memory = pull.uint()?,
            b"disk" => spilled.disk = pull.uint()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(spilled)
}

fn transfer<'a, P: Pull<'a>>(pull: &mut P) -> Result<Transfer, P::Error> {
    let mut transfer = Transfer::default();
    fields(pull, |pull, key| {
        match key {
            b"incoming_bytes" => transfer.incoming_bytes = pull.uint()?,
            b"incoming_count" => transfer.incoming_count = pull.uint()?,
            b"incoming_count_total" => transfer.incoming_count_total = pull.uint()?,
            b"outgoing_bytes" => transfer.outgoing_bytes = pull.uint()?,
            b"outgoing_count" => transfer.outgoing_count = pull.uint()?,
            b"outgoing_count_total" => transfer.outgoing_count_total = pull.uint()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(transfer)
}

fn rates<'a, P: Pull<'a>>(pull: &mut P) -> Result<Rates, P::Error> {
    let mut rates = Rates::default();
    fields(pull, |pull, key| {
        match key {
            b"read_bps" => rates.read_bps = pull.float()?,
            b"write_bps" => rates.write_bps = pull.float()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(rates)
}

pub(crate) fn heartbeat<'a, P: Pull<'a>>(pull: &mut P) -> Result<Heartbeat<P::Str>, P::Error> {
    let mut message = Heartbeat::default();
    fields(pull, |pull, key| {
        match key {
            b"op" => message.op = pull.string()?,
            b"address" => message.address = pull.string()?,
            b"now" => message.now = pull.float()?,
            b"metrics" => message.metrics = metrics(pull)?,
            b"executing" => message.executing = pairs(pull, P::float)?,
            b"extensions" => {
                fields(pull, |pull, key| {
                    let extensions: &mut Extensions<_> = &mut message.extensions;
                    match key {
                        b"spans" => extensions.spans = pairs(pull, P::uint)?,
                        b"shuffle" => extensions.shuffle = pairs(pull, P::uint)?,
                        _ => return Err(Unexpected.into()),
                    }
                    Ok(())
                })?;
            }
            b"reply" => message.reply = pull.boolean()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(message)
}

fn host<'a, P: Pull<'a>>(pull: &mut P) -> Result<Host<P::Str>, P::Error> {
    let mut host = Host::default();
    fields(pull, |pull, key| {
        match key {
            b"python" => host.python = pull.string()?,
            b"python-bits" => host.python_bits = pull.uint()?,
            b"OS" => host.os = pull.string()?,
            b"OS-release" => host.os_release = pull.string()?,
            b"machine" => host.machine = pull.string()?,
            b"processor" => host.processor = pull.string()?,
            b"byteorder" => host.byteorder = pull.string()?,
            b"LC_ALL" => host.lc_all = pull.string()?,
            b"LANG" => host.lang = pull.string()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(host)
}

fn versions<'a, P: Pull<'a>>(pull: &mut P) -> Result<Versions<P::Str>, P::Error> {
    let mut versions = Versions::default();
    fields(pull, |pull, key| {
        match key {
            b"host" => versions.host = host(pull)?,
            b"packages" => versions.packages = pairs(pull, P::string)?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(versions)
}

pub(crate) fn register_worker<'a, P: Pull<'a>>(
    pull: &mut P,
) -> Result<RegisterWorker<P::Str>, P::Error> {
    let mut message = RegisterWorker::default();
    fields(pull, |pull, key| {
        match key {
            b"op" => message.op = pull.string()?,
            b"reply" => message.reply = pull.boolean()?,
            b"address" => message.address = pull.string()?,
            b"status" => message.status = pull.string()?,
            b"nthreads" => message.nthreads = pull.uint()?,
            b"name" => message.name = pull.string()?,
            b"now" => message.now = pull.float()?,
            b"resources" => message.resources = pairs(pull, P::float)?,
            b"memory_limit" => message.memory_limit = pull.uint()?,
            b"local_directory" => message.local_directory = pull.string()?,
            b"services" => message.services = pairs(pull, P::uint)?,
            b"nanny" => {
                message.nanny = if pull.is_nil()? {
                    None
                } else {
                    Some(pull.string()?)
                };
            }
            b"pid" => message.pid = pull.uint()?,
            b"versions" => message.versions = versions(pull)?,
            b"metrics" => message.metrics = metrics(pull)?,
            b"extra" => message.extra = pairs(pull, P::uint)?,
            b"stimulus_id" => message.stimulus_id = pull.string()?,
            b"server_id" => message.server_id = pull.string()?,
            _ => return Err(Unexpected.into()),
        }
        Ok(())
    })?;
    Ok(message)
}
