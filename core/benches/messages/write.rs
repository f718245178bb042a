//! Our writer.

use daskwire::msgpack::Writer;

use super::model::{
    ComputeTask, Heartbeat, Metrics, Pairs, Rates, RegisterWorker, StartStop, TaskFinished,
};

#[inline]
fn pairs<V, const N: usize>(
    out: &mut Writer<'_>,
    pairs: &Pairs<&str, V, N>,
    mut value: impl FnMut(&mut Writer<'_>, &V),
) {
    let pairs = pairs.as_slice();
    out.map(pairs.len() as u32);
    for (key, item) in pairs {
        out.str(key);
        value(out, item);
    }
}

#[inline]
fn uints<const N: usize>(out: &mut Writer<'_>, map: &Pairs<&str, u64, N>) {
    pairs(out, map, |out, value| _ = out.u64(*value));
}

#[inline]
fn floats<const N: usize>(out: &mut Writer<'_>, map: &Pairs<&str, f64, N>) {
    pairs(out, map, |out, value| _ = out.f64(*value));
}

pub(crate) fn compute_task(out: &mut Writer<'_>, message: &ComputeTask<&str>) {
    out.map(12);
    out.str("op").str(message.op);
    out.str("key").str(message.key);
    out.str("run_id").u64(message.run_id);
    out.str("priority").array(3);
    for value in message.priority {
        out.u64(value);
    }
    out.str("stimulus_id").str(message.stimulus_id);
    pairs(out.str("who_has"), &message.who_has, |out, addresses| {
        out.array(addresses.len() as u32);
        for address in addresses {
            out.str(address);
        }
    });
    uints(out.str("nbytes"), &message.nbytes);
    out.str("run_spec").map(1);
    out.str("__Pickled__").u64(message.run_spec.index);
    out.str("resource_restrictions");
    match &message.resource_restrictions {
        Some(restrictions) => floats(out, restrictions),
        None => _ = out.nil(),
    }
    out.str("actor").bool(message.actor);
    uints(out.str("annotations"), &message.annotations);
    out.str("span_id");
    match message.span_id {
        Some(id) => _ = out.str(id),
        None => _ = out.nil(),
    }
}

pub(crate) fn task_finished(out: &mut Writer<'_>, message: &TaskFinished<'_, &str>) {
    out.map(11);
    out.str("key").str(message.key);
    out.str("run_id").u64(message.run_id);
    out.str("nbytes").u64(message.nbytes);
    out.str("type").bin(message.pickled_type.0);
    out.str("typename").str(message.typename);
    uints(out.str("metadata"), &message.metadata);
    out.str("thread").u64(message.thread);
    out.str("startstops").array(message.startstops.len() as u32);
    for StartStop {
        action,
        start,
        stop,
    } in &message.startstops
    {
        out.map(3);
        out.str("action").str(action);
        out.str("start").f64(*start);
        out.str("stop").f64(*stop);
    }
    out.str("op").str(message.op);
    out.str("stimulus_id").str(message.stimulus_id);
    out.str("status").str(message.status);
}

pub(crate) fn batch(out: &mut Writer<'_>, messages: &[TaskFinished<'_, &str>]) {
    out.array(messages.len() as u32);
    for message in messages {
        task_finished(out, message);
    }
}

fn rates(out: &mut Writer<'_>, rates: &Rates) {
    out.map(2);
    out.str("read_bps").f64(rates.read_bps);
    out.str("write_bps").f64(rates.write_bps);
}

fn metrics(out: &mut Writer<'_>, metrics: &Metrics<&str>) {
    out.map(13);
    uints(out.str("task_counts"), &metrics.task_counts);
    out.str("bandwidth").map(3);
    out.str("total").u64(metrics.bandwidth.total);
    uints(out.str("workers"), &metrics.bandwidth.workers);
    uints(out.str("types"), &metrics.bandwidth.types);
    floats(
        out.str("digests_total_since_heartbeat"),
        &metrics.digests_total_since_heartbeat,
    );
    out.str("managed_bytes").u64(metrics.managed_bytes);
    out.str("spilled_bytes").map(2);
    out.str("memory").u64(metrics.spilled_bytes.memory);
    out.str("disk").u64(metrics.spilled_bytes.disk);
    out.str("transfer").map(6);
    out.str("incoming_bytes")
        .u64(metrics.transfer.incoming_bytes);
    out.str("incoming_count")
        .u64(metrics.transfer.incoming_count);
    out.str("incoming_count_total")
        .u64(metrics.transfer.incoming_count_total);
    out.str("outgoing_bytes")
        .u64(metrics.transfer.outgoing_bytes);
    out.str("outgoing_count")
        .u64(metrics.transfer.outgoing_count);
    out.str("outgoing_count_total")
        .u64(metrics.transfer.outgoing_count_total);
    out.str("event_loop_interval")
        .f64(metrics.event_loop_interval);
    out.str("cpu").f64(metrics.cpu);
    out.str("memory").u64(metrics.memory);
    out.str("time").f64(metrics.time);
    rates(out.str("host_net_io"), &metrics.host_net_io);
    rates(out.str("host_disk_io"), &metrics.host_disk_io);
    out.str("num_fds").u64(metrics.num_fds);
}

pub(crate) fn heartbeat(out: &mut Writer<'_>, message: &Heartbeat<&str>) {
    out.map(7);
    out.str("op").str(message.op);
    out.str("address").str(message.address);
    out.str("now").f64(message.now);
    metrics(out.str("metrics"), &message.metrics);
    floats(out.str("executing"), &message.executing);
    out.str("extensions").map(2);
    uints(out.str("spans"), &message.extensions.spans);
    uints(out.str("shuffle"), &message.extensions.shuffle);
    out.str("reply").bool(message.reply);
}

pub(crate) fn register_worker(out: &mut Writer<'_>, message: &RegisterWorker<&str>) {
    out.map(18);
    out.str("op").str(message.op);
    out.str("reply").bool(message.reply);
    out.str("address").str(message.address);
    out.str("status").str(message.status);
    out.str("nthreads").u64(message.nthreads);
    out.str("name").str(message.name);
    out.str("now").f64(message.now);
    floats(out.str("resources"), &message.resources);
    out.str("memory_limit").u64(message.memory_limit);
    out.str("local_directory").str(message.local_directory);
    uints(out.str("services"), &message.services);
    out.str("nanny");
    match message.nanny {
        Some(address) => _ = out.str(address),
        None => _ = out.nil(),
    }
    out.str("pid").u64(message.pid);
    out.str("versions").map(2);
    out.str("host").map(9);
    let host = &message.versions.host;
    out.str("python").str(host.python);
    out.str("python-bits").u64(host.python_bits);
    out.str("OS").str(host.os);
    out.str("OS-release").str(host.os_release);
    out.str("machine").str(host.machine);
    out.str("processor").str(host.processor);
    out.str("byteorder").str(host.byteorder);
    out.str("LC_ALL").str(host.lc_all);
    out.str("LANG").str(host.lang);
    pairs(
        out.str("packages"),
        &message.versions.packages,
        |out, version| {
            out.str(version);
        },
    );
    metrics(out.str("metrics"), &message.metrics);
    uints(out.str("extra"), &message.extra);
    out.str("stimulus_id").str(message.stimulus_id);
    out.str("server_id").str(message.server_id);
}
