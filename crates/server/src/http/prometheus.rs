//! The figures as OpenMetrics text, which Prometheus reads. Each name stands in docs/METRICS.md,
//! and a test compares the two.

use forebay_proto::latency::{LATENCY_BOUNDS_NS, Latency};
use forebay_proto::metrics::{
    BufferMetrics, CacheMetrics, Counts, DeviceMetrics, LogMetrics, MountMetrics, ServerMetrics,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;

/// Of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A value. A counter's name gets `_total` behind it.
#[derive(Clone)]
enum Value {
    Gauge(f64),
    Bytes(u64),
    Count(u64),
    Seconds(f64),
    Histogram(Latency),
}

type Labels = Vec<(&'static str, String)>;
type Values = Vec<(Labels, Value)>;

/// A name, what it means, and how its values are found.
struct Family {
    name: &'static str,
    help: &'static str,
    values: fn(&ServerMetrics) -> Values,
}

const fn family(
    name: &'static str,
    help: &'static str,
    values: fn(&ServerMetrics) -> Values,
) -> Family {
    Family { name, help, values }
}

fn one(value: Value) -> Values {
    vec![(Vec::new(), value)]
}

/// One value of each buffer that is served.
fn each(m: &ServerMetrics, value: impl Fn(&BufferMetrics) -> Value) -> Values {
    many(m, |b| vec![(Vec::new(), value(b))])
}

/// Some values of each buffer that is served.
fn many(m: &ServerMetrics, values: impl Fn(&BufferMetrics) -> Values) -> Values {
    let mut all = Vec::new();
    for buffer in m.buffers.iter().filter(|buffer| buffer.up) {
        for (mut labels, value) in values(buffer) {
            labels.insert(0, ("buffer", buffer.buffer.clone()));
            all.push((labels, value));
        }
    }
    all
}

/// One value of each cache.
fn cache(m: &ServerMetrics, value: impl Fn(&CacheMetrics) -> Option<Value>) -> Values {
    many(m, |b| {
        let value = b.cache.as_ref().and_then(&value);
        value.map(|value| (Vec::new(), value)).into_iter().collect()
    })
}

/// One value of each buffer with files in logs.
fn logs(m: &ServerMetrics, value: impl Fn(&LogMetrics) -> Value) -> Values {
    many(m, |b| b.logs.iter().map(|logs| (Vec::new(), value(logs))).collect())
}

fn eta(seconds: Option<f64>) -> Values {
    seconds.map(|seconds| (Vec::new(), Value::Gauge(seconds))).into_iter().collect()
}

fn up(m: &ServerMetrics) -> Values {
    let of = |b: &BufferMetrics| {
        (vec![("buffer", b.buffer.clone())], Value::Gauge(f64::from(u8::from(b.up))))
    };
    m.buffers.iter().map(of).collect()
}

fn degraded(m: &ServerMetrics) -> Values {
    each(m, |b| Gauge(f64::from(u8::from(b.why.is_some()))))
}

/// A counter for each name.
fn counted(label: &'static str, counts: &Counts) -> Values {
    counts.iter().map(|(name, count)| (vec![(label, name.clone())], Count(*count))).collect()
}

fn latency(of: &BTreeMap<String, Latency>) -> Values {
    let one = |(kind, latency): (&String, &Latency)| {
        (vec![("kind", kind.clone())], Histogram(latency.clone()))
    };
    of.iter().map(one).collect()
}

fn errors(b: &BufferMetrics) -> Values {
    let of = |source: &'static str, counts: &Counts| {
        let mut values = counted("errno", counts);
        values.iter_mut().for_each(|(labels, _)| labels.insert(0, ("source", source.into())));
        values
    };
    [of("calls", &b.error_counts.calls), of("staging", &b.error_counts.staging)].concat()
}

fn device(m: &ServerMetrics, bytes: impl Fn(&DeviceMetrics) -> u64) -> Values {
    many(m, |b| b.device.iter().map(|device| (Vec::new(), Count(bytes(device)))).collect())
}

/// Values of the mount that the process is, if it is one.
fn mount(m: &ServerMetrics, values: impl Fn(&MountMetrics) -> Values) -> Values {
    let Some(mount) = &m.mount else { return Vec::new() };
    let mut all = values(mount);
    for (labels, _) in &mut all {
        labels.insert(0, ("mount", mount.mount_point.clone()));
        labels.insert(1, ("buffer", mount.buffer.clone()));
    }
    all
}

fn labelled(label: &'static str, values: &[(&str, Value)]) -> Values {
    values.iter().map(|(name, value)| (vec![(label, (*name).to_string())], value.clone())).collect()
}

fn plans(b: &BufferMetrics) -> Values {
    let s = &b.staging;
    labelled("state", &[("queued", Value::Bytes(s.queued)), ("running", Value::Bytes(s.running))])
}

fn plans_ended(b: &BufferMetrics) -> Values {
    let s = &b.staging;
    let values = [("done", s.done), ("failed", s.failed), ("cancelled", s.cancelled)];
    labelled("result", &values.map(|(name, count)| (name, Value::Count(count))))
}

fn staged(b: &BufferMetrics) -> Values {
    let s = &b.staging;
    let values = [("in", Value::Count(s.in_bytes)), ("out", Value::Count(s.out_bytes))];
    labelled("direction", &values)
}

use Value::{Bytes, Count, Gauge, Histogram, Seconds};

/// All names, in the order of the text.
const FAMILIES: &[Family] = &[
    family("forebay_info", "Version of the program and host, as labels", |m| {
        let labels = vec![("version", m.program.clone()), ("host", m.host.clone())];
        vec![(labels, Gauge(1.0))]
    }),
    family("forebay_uptime_seconds", "Seconds since the process started", |m| {
        one(Gauge(m.uptime_s))
    }),
    family("forebay_cpu_seconds", "CPU time of the process, user and system", |m| {
        one(Seconds(m.cpu_s))
    }),
    family("forebay_resident_bytes", "Memory of the process", |m| one(Bytes(m.resident_bytes))),
    family("forebay_capacity_bytes", "What the server gives in all", |m| {
        m.capacity_bytes.map_or(Vec::new(), |bytes| one(Bytes(bytes)))
    }),
    family("forebay_reserved_bytes", "Of it promised to buffers", |m| {
        m.reserved_bytes.map_or(Vec::new(), |bytes| one(Bytes(bytes)))
    }),
    family("forebay_buffer_up", "1 if the buffer is served, 0 if it cannot be", up),
    family("forebay_buffer_capacity_bytes", "Capacity of this server's shard", |m| {
        each(m, |b| Bytes(b.capacity_bytes))
    }),
    family("forebay_buffer_used_bytes", "Of it used, by whatever way it was written", |m| {
        each(m, |b| Bytes(b.used_bytes))
    }),
    family("forebay_buffer_inodes", "Inodes in use", |m| each(m, |b| Bytes(b.inodes))),
    family("forebay_buffer_degraded", "1 if a shard of it is not served", degraded),
    family("forebay_buffer_calls", "Calls answered, by kind", |m| {
        many(m, |b| counted("kind", &b.calls))
    }),
    family("forebay_buffer_call_seconds", "How long calls took, by kind", |m| {
        many(m, |b| latency(&b.latency))
    }),
    family("forebay_buffer_answers", "Ordinary answers that were no success, by errno", |m| {
        many(m, |b| counted("errno", &b.answer_counts))
    }),
    family("forebay_buffer_device_read_bytes", "Bytes read from the device below it", |m| {
        device(m, |device| device.read_bytes)
    }),
    family("forebay_buffer_device_written_bytes", "Bytes written to the device below it", |m| {
        device(m, |device| device.written_bytes)
    }),
    family("forebay_buffer_read_bytes", "Bytes read for callers by this process", |m| {
        each(m, |b| Count(b.read_bytes))
    }),
    family("forebay_buffer_written_bytes", "Bytes written for callers by this process", |m| {
        each(m, |b| Count(b.written_bytes))
    }),
    family("forebay_buffer_errors", "Errors given, by errno", |m| many(m, errors)),
    family("forebay_buffer_sessions", "Mounts attached", |m| each(m, |b| Bytes(b.sessions))),
    family("forebay_buffer_leases", "Leases that mounts hold", |m| each(m, |b| Bytes(b.leases))),
    family("forebay_buffer_recalls", "Leases taken back", |m| each(m, |b| Count(b.recalls))),
    family("forebay_buffer_locks", "Locks held", |m| each(m, |b| Bytes(b.locks))),
    family("forebay_buffer_lock_waits", "Requests for locks that wait", |m| {
        each(m, |b| Bytes(b.lock_waits))
    }),
    family("forebay_buffer_plans", "Staging plans that have not ended", |m| many(m, plans)),
    family("forebay_buffer_plans_ended", "Staging plans that have ended", |m| many(m, plans_ended)),
    family("forebay_buffer_staged_bytes", "Bytes that staging copied", |m| many(m, staged)),
    family("forebay_buffer_stage_backlog_bytes", "Bytes found by plans and not yet copied", |m| {
        each(m, |b| Bytes(b.staging.backlog_bytes))
    }),
    family("forebay_buffer_stage_bytes_per_second", "Rate of the plans that run", |m| {
        each(m, |b| Gauge(b.staging.rate_bytes_per_s))
    }),
    family(
        "forebay_buffer_stage_eta_seconds",
        "Until all plans have ended, if it can be told",
        |m| many(m, |b| eta(b.staging.eta_s)),
    ),
    family("forebay_buffer_events", "Events written to the buffer's record", |m| {
        each(m, |b| Count(b.events))
    }),
    family("forebay_buffer_events_lost", "Events that could not be written", |m| {
        each(m, |b| Count(b.events_lost))
    }),
    family("forebay_log_files", "Files in logs", |m| logs(m, |l| Bytes(l.files))),
    family("forebay_log_logs", "Logs of files", |m| logs(m, |l| Bytes(l.log_count))),
    family("forebay_log_bytes", "Bytes published in logs", |m| logs(m, |l| Bytes(l.log_bytes))),
    family("forebay_log_live_bytes", "Of these what counts", |m| logs(m, |l| Bytes(l.live_bytes))),
    family("forebay_log_extents", "Pieces of files in logs", |m| logs(m, |l| Bytes(l.extents))),
    family("forebay_log_begun", "Logs that were begun", |m| logs(m, |l| Count(l.begun))),
    family("forebay_log_publications", "Publications by mounts", |m| {
        logs(m, |l| Count(l.publications))
    }),
    family("forebay_log_records", "Records that were published", |m| logs(m, |l| Count(l.records))),
    family("forebay_log_published_bytes", "Bytes of logs that were published", |m| {
        logs(m, |l| Count(l.published_bytes))
    }),
    family("forebay_log_read_logs", "Logs read to their ends for mounts that had gone", |m| {
        logs(m, |l| Count(l.read_logs))
    }),
    family("forebay_log_together_bytes", "Bytes brought together into the files' objects", |m| {
        logs(m, |l| Count(l.together_bytes))
    }),
    family("forebay_cache_dirty_bytes", "Bytes that the PFS does not have yet", |m| {
        cache(m, |c| Some(Bytes(c.dirty_bytes)))
    }),
    family("forebay_cache_hit_bytes", "Bytes that requests found on flash", |m| {
        cache(m, |c| Some(Count(c.hit_bytes)))
    }),
    family("forebay_cache_miss_bytes", "Bytes that requests did not find on flash", |m| {
        cache(m, |c| Some(Count(c.miss_bytes)))
    }),
    family("forebay_cache_hits", "Requests that found all of what they read on flash", |m| {
        cache(m, |c| Some(Count(c.hits)))
    }),
    family("forebay_cache_misses", "Requests that did not", |m| {
        cache(m, |c| Some(Count(c.misses)))
    }),
    family("forebay_cache_filled_bytes", "Bytes fetched from the PFS", |m| {
        cache(m, |c| Some(Count(c.filled_bytes)))
    }),
    family("forebay_cache_drained_bytes", "Bytes drained to the PFS", |m| {
        cache(m, |c| Some(Count(c.drained_bytes)))
    }),
    family("forebay_cache_evicted_bytes", "Clean bytes dropped from flash", |m| {
        cache(m, |c| Some(Count(c.evicted_bytes)))
    }),
    family("forebay_cache_failed_files", "Files whose drain has failed", |m| {
        cache(m, |c| Some(Bytes(c.failed_files)))
    }),
    family("forebay_cache_conflicts", "Files that both sides have changed", |m| {
        cache(m, |c| Some(Bytes(c.conflicts)))
    }),
    family("forebay_cache_drain_bytes_per_second", "Rate of the drain", |m| {
        cache(m, |c| Some(Gauge(c.drain_bytes_per_s)))
    }),
    family("forebay_cache_drain_eta_seconds", "Until nothing is dirty, if it can be told", |m| {
        cache(m, |c| c.drain_eta_s.map(Gauge))
    }),
    family("forebay_mount_fast_path", "1 if the kernel reads and writes files itself", |m| {
        mount(m, |m| vec![(Vec::new(), Gauge(f64::from(u8::from(m.fast_path))))])
    }),
    family("forebay_mount_requests", "Requests of the kernel, by kind", |m| {
        mount(m, |m| counted("kind", &m.requests))
    }),
    family("forebay_mount_request_seconds", "How long they took in the mount process", |m| {
        mount(m, |m| latency(&m.latency))
    }),
    family("forebay_mount_read_bytes", "Bytes read for programs by the mount process", |m| {
        mount(m, |m| vec![(Vec::new(), Count(m.read_bytes))])
    }),
    family("forebay_mount_written_bytes", "Bytes written for programs by the mount process", |m| {
        mount(m, |m| vec![(Vec::new(), Count(m.written_bytes))])
    }),
    family("forebay_mount_errors", "Errors that programs got, by errno", |m| {
        mount(m, |m| counted("errno", &m.error_counts))
    }),
    family("forebay_mount_answers", "Ordinary answers that were no success, by errno", |m| {
        mount(m, |m| counted("errno", &m.answer_counts))
    }),
];

/// The figures as a collector of the library.
#[derive(Debug)]
struct Snapshot(ServerMetrics);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in FAMILIES {
            let values = (family.values)(&self.0);
            let Some((_, first)) = values.first() else { continue };
            let kind = match first {
                Gauge(_) | Bytes(_) => MetricType::Gauge,
                Count(_) | Seconds(_) => MetricType::Counter,
                Histogram(_) => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, value) in &values {
                match labels.is_empty() {
                    true => put(&mut metric, value)?,
                    false => put(&mut metric.encode_family(labels)?, value)?,
                }
            }
        }
        Ok(())
    }
}

fn put(encoder: &mut MetricEncoder<'_>, value: &Value) -> Result<(), fmt::Error> {
    match value {
        Gauge(value) => encoder.encode_gauge(value),
        Bytes(value) => encoder.encode_gauge(value),
        Count(value) => encoder.encode_counter::<NoLabelSet, _, u64>(value, None),
        Seconds(value) => encoder.encode_counter::<NoLabelSet, _, f64>(value, None),
        Histogram(latency) => {
            let bounds = LATENCY_BOUNDS_NS.iter().map(|bound_ns| *bound_ns as f64 / 1e9);
            let bounds = bounds.chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(latency.buckets.iter().copied()).collect();
            let count = latency.count();
            encoder.encode_histogram::<NoLabelSet>(latency.sum_s, count, &buckets, None)
        }
    }
}

/// All figures as text.
pub(super) fn text(metrics: ServerMetrics) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(metrics)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Names and types, as they are in the text.
#[cfg(test)]
pub(super) fn names(metrics: &ServerMetrics) -> Vec<(String, &'static str)> {
    let named = |family: &Family| {
        let values = (family.values)(metrics);
        match values.first()?.1 {
            Gauge(_) | Bytes(_) => Some((family.name.to_string(), "gauge")),
            Count(_) | Seconds(_) => Some((format!("{}_total", family.name), "counter")),
            Histogram(_) => Some((family.name.to_string(), "histogram")),
        }
    };
    FAMILIES.iter().filter_map(named).collect()
}
