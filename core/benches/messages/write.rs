//! Writing of the messages, with the same hand-written code for our writer and
//! rmp's.

use daskwire::msgpack::Writer;

use super::model::{
    ComputeTask, Heartbeat, Metrics, Pairs, Rates, RegisterWorker, StartStop, TaskFinished,
};

/// The common interface of the writers.
pub(crate) trait Sink {
    fn map(&mut self, count: u32);
    fn array(&mut self, count: u32);
    /// Writes a string that is known at compile time.
    fn key(&mut self, key: &'static str);
    fn string(&mut self, string: &str);
    fn bin(&mut self, data: &[u8]);
    fn uint(&mut self, value: u64);
    fn float(&mut self, value: f64);
    fn boolean(&mut self, value: bool);
    fn nil(&mut self);
}

impl Sink for Writer<'_> {
    #[inline]
    fn map(&mut self, count: u32) {
        Writer::map(self, count);
    }

    #[inline]
    fn array(&mut self, count: u32) {
        Writer::array(self, count);
    }

    #[inline]
    fn key(&mut self, key: &'static str) {
        self.str(key);
    }

    #[inline]
    fn string(&mut self, string: &str) {
        self.str(string);
    }

    #[inline]
    fn bin(&mut self, data: &[u8]) {
        Writer::bin(self, data);
    }

    #[inline]
    fn uint(&mut self, value: u64) {
        self.u64(value);
    }

    #[inline]
    fn float(&mut self, value: f64) {
        self.f64(value);
    }

    #[inline]
    fn boolean(&mut self, value: bool) {
        self.bool(value);
    }

    #[inline]
    fn nil(&mut self) {
        Writer::nil(self);
    }
}

/// rmp's functions into a slice; its first error is kept.
pub(crate) struct Rmp<'b> {
    pub out: &'b mut [u8],
    pub failed: bool,
}

impl Sink for Rmp<'_> {
    #[inline]
    fn map(&mut self, count: u32) {
        self.failed |= rmp::encode::write_map_len(&mut self.out, count).is_err();
    }

    #[inline]
    fn array(&mut self, count: u32) {
        self.failed |= rmp::encode::write_array_len(&mut self.out, count).is_err();
    }

    #[inline]
    fn key(&mut self, key: &'static str) {
        self.failed |= rmp::encode::write_str(&mut self.out, key).is_err();
    }

    #[inline]
    fn string(&mut self, string: &str) {
        self.failed |= rmp::encode::write_str(&mut self.out, string).is_err();
    }

    #[inline]
    fn bin(&mut self, data: &[u8]) {
        self.failed |= rmp::encode::write_bin(&mut self.out, data).is_err();
    }

    #[inline]
    fn uint(&mut self, value: u64) {
        self.failed |= rmp::encode::write_uint(&mut self.out, value).is_err();
    }

    #[inline]
    fn float(&mut self, value: f64) {
        self.failed |= rmp::encode::write_f64(&mut self.out, value).is_err();
    }

    #[inline]
    fn boolean(&mut self, value: bool) {
        self.failed |= rmp::encode::write_bool(&mut self.out, value).is_err();
    }

    #[inline]
    fn nil(&mut self) {
        self.failed |= rmp::encode::write_nil(&mut self.out).is_err();
    }
}

#[inline]
fn pairs<S: Sink, V, const N: usize>(
    sink: &mut S,
    pairs: &Pairs<&str, V, N>,
    mut value: impl FnMut(&mut S, &V),
) {
    let pairs = pairs.as_slice();
    sink.map(pairs.len() as u32);
    for (key, item) in pairs {
        sink.string(key);
        value(sink, item);
    }
}

#[inline]
fn uints<S: Sink, const N: usize>(sink: &mut S, map: &Pairs<&str, u64, N>) {
    pairs(sink, map, |sink, value| sink.uint(*value));
}

#[inline]
fn floats<S: Sink, const N: usize>(sink: &mut S, map: &Pairs<&str, f64, N>) {
    pairs(sink, map, |sink, value| sink.float(*value));
}

pub(crate) fn compute_task<S: Sink>(sink: &mut S, message: &ComputeTask<&str>) {
    sink.map(12);
    sink.key("op");
    sink.string(message.op);
    sink.key("key");
    sink.string(message.key);
    sink.key("run_id");
    sink.uint(message.run_id);
    sink.key("priority");
    sink.array(3);
    for value in message.priority {
        sink.uint(value);
    }
    sink.key("stimulus_id");
    sink.string(message.stimulus_id);
    sink.key("who_has");
    pairs(sink, &message.who_has, |sink, addresses| {
        sink.array(addresses.len() as u32);
        for address in addresses {
            sink.string(address);
        }
    });
    sink.key("nbytes");
    uints(sink, &message.nbytes);
    sink.key("run_spec");
    sink.map(1);
    sink.key("__Pickled__");
    sink.uint(message.run_spec.index);
    sink.key("resource_restrictions");
    match &message.resource_restrictions {
        Some(restrictions) => floats(sink, restrictions),
        None => sink.nil(),
    }
    sink.key("actor");
    sink.boolean(message.actor);
    sink.key("annotations");
    uints(sink, &message.annotations);
    sink.key("span_id");
    match message.span_id {
        Some(id) => sink.string(id),
        None => sink.nil(),
    }
}

pub(crate) fn task_finished<S: Sink>(sink: &mut S, message: &TaskFinished<'_, &str>) {
    sink.map(11);
    sink.key("key");
    sink.string(message.key);
    sink.key("run_id");
    sink.uint(message.run_id);
    sink.key("nbytes");
    sink.uint(message.nbytes);
    sink.key("type");
    sink.bin(message.pickled_type.0);
    sink.key("typename");
    sink.string(message.typename);
    sink.key("metadata");
    uints(sink, &message.metadata);
    sink.key("thread");
    sink.uint(message.thread);
    sink.key("startstops");
    sink.array(message.startstops.len() as u32);
    for StartStop {
        action,
        start,
        stop,
    } in &message.startstops
    {
        sink.map(3);
        sink.key("action");
        sink.string(action);
        sink.key("start");
        sink.float(*start);
        sink.key("stop");
        sink.float(*stop);
    }
    sink.key("op");
    sink.string(message.op);
    sink.key("stimulus_id");
    sink.string(message.stimulus_id);
    sink.key("status");
    sink.string(message.status);
}

pub(crate) fn batch<S: Sink>(sink: &mut S, messages: &[TaskFinished<'_, &str>]) {
    sink.array(messages.len() as u32);
    for message in messages {
        task_finished(sink, message);
    }
}

fn rates<S: Sink>(sink: &mut S, rates: &Rates) {
    sink.map(2);
    sink.key("read_bps");
    sink.float(rates.read_bps);
    sink.key("write_bps");
    sink.float(rates.write_bps);
}

fn metrics<S: Sink>(sink: &mut S, metrics: &Metrics<&str>) {
    sink.map(13);
    sink.key("task_counts");
    uints(sink, &metrics.task_counts);
    sink.key("bandwidth");
    sink.map(3);
    sink.key("total");
    sink.uint(metrics.bandwidth.total);
    sink.key("workers");
    uints(sink, &metrics.bandwidth.workers);
    sink.key("types");
    uints(sink, &metrics.bandwidth.types);
    sink.key("digests_total_since_heartbeat");
    floats(sink, &metrics.digests_total_since_heartbeat);
    sink.key("managed_bytes");
    sink.uint(metrics.managed_bytes);
    sink.key("spilled_bytes");
    sink.map(2);
    sink.key("memory");
    sink.uint(metrics.spilled_bytes.memory);
    sink.key("disk");
    sink.uint(metrics.spilled_bytes.disk);
    sink.key("transfer");
    sink.map(6);
    sink.key("incoming_bytes");
    sink.uint(metrics.transfer.incoming_bytes);
    sink.key("incoming_count");
    sink.uint(metrics.transfer.incoming_count);
    sink.key("incoming_count_total");
    sink.uint(metrics.transfer.incoming_count_total);
    sink.key("outgoing_bytes");
    sink.uint(metrics.transfer.outgoing_bytes);
    sink.key("outgoing_count");
    sink.uint(metrics.transfer.outgoing_count);
    sink.key("outgoing_count_total");
    sink.uint(metrics.transfer.outgoing_count_total);
    sink.key("event_loop_interval");
    sink.float(metrics.event_loop_interval);
    sink.key("cpu");
    sink.float(metrics.cpu);
    sink.key("memory");
    sink.uint(metrics.memory);
    sink.key("time");
    sink.float(metrics.time);
    sink.key("host_net_io");
    rates(sink, &metrics.host_net_io);
    sink.key("host_disk_io");
    rates(sink, &metrics.host_disk_io);
    sink.key("num_fds");
    sink.uint(metrics.num_fds);
}

pub(crate) fn heartbeat<S: Sink>(sink: &mut S, message: &Heartbeat<&str>) {
    sink.map(7);
    sink.key("op");
    sink.string(message.op);
    sink.key("address");
    sink.string(message.address);
    sink.key("now");
    sink.float(message.now);
    sink.key("metrics");
    metrics(sink, &message.metrics);
    sink.key("executing");
    floats(sink, &message.executing);
    sink.key("extensions");
    sink.map(2);
    sink.key("spans");
    uints(sink, &message.extensions.spans);
    sink.key("shuffle");
    uints(sink, &message.extensions.shuffle);
    sink.key("reply");
    sink.boolean(message.reply);
}

pub(crate) fn register_worker<S: Sink>(sink: &mut S, message: &RegisterWorker<&str>) {
    sink.map(18);
    sink.key("op");
    sink.string(message.op);
    sink.key("reply");
    sink.boolean(message.reply);
    sink.key("address");
    sink.string(message.address);
    sink.key("status");
    sink.string(message.status);
    sink.key("nthreads");
    sink.uint(message.nthreads);
    sink.key("name");
    sink.string(message.name);
    sink.key("now");
    sink.float(message.now);
    sink.key("resources");
    floats(sink, &message.resources);
    sink.key("memory_limit");
    sink.uint(message.memory_limit);
    sink.key("local_directory");
    sink.string(message.local_directory);
    sink.key("services");
    uints(sink, &message.services);
    sink.key("nanny");
    match message.nanny {
        Some(address) => sink.string(address),
        None => sink.nil(),
    }
    sink.key("pid");
    sink.uint(message.pid);
    sink.key("versions");
    sink.map(2);
    sink.key("host");
    sink.map(9);
    let host = &message.versions.host;
    sink.key("python");
    sink.string(host.python);
    sink.key("python-bits");
    sink.uint(host.python_bits);
    sink.key("OS");
    sink.string(host.os);
    sink.key("OS-release");
    sink.string(host.os_release);
    sink.key("machine");
    sink.string(host.machine);
    sink.key("processor");
    sink.string(host.processor);
    sink.key("byteorder");
    sink.string(host.byteorder);
    sink.key("LC_ALL");
    sink.string(host.lc_all);
    sink.key("LANG");
    sink.string(host.lang);
    sink.key("packages");
    pairs(sink, &message.versions.packages, |sink, version| {
        sink.string(version);
    });
    sink.key("metrics");
    metrics(sink, &message.metrics);
    sink.key("extra");
    uints(sink, &message.extra);
    sink.key("stimulus_id");
    sink.string(message.stimulus_id);
    sink.key("server_id");
    sink.string(message.server_id);
}
