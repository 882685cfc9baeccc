//! The figures as OpenMetrics text, which Prometheus reads. Each name stands in docs/METRICS.md,
//! and a test compares the two.

use forebay_proto::Errno;
use forebay_proto::metrics::{BufferMetrics, CacheMetrics, ServerMetrics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// Of the text.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A value. A counter's name gets `_total` behind it.
#[derive(Clone, Copy)]
enum Value {
    Gauge(f64),
    Bytes(u64),
    Count(u64),
    Seconds(f64),
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

fn eta(seconds: Option<f64>) -> Values {
    seconds.map(|seconds| (Vec::new(), Value::Gauge(seconds))).into_iter().collect()
}

fn up(m: &ServerMetrics) -> Values {
    let of = |b: &BufferMetrics| {
        (vec![("buffer", b.buffer.clone())], Value::Gauge(f64::from(u8::from(b.up))))
    };
    m.buffers.iter().map(of).collect()
}

fn calls(b: &BufferMetrics) -> Values {
    let of = |call: &forebay_proto::metrics::CallCount| {
        (vec![("kind", call.kind.clone())], Value::Count(call.count))
    };
    b.calls.iter().map(of).collect()
}

fn errors(b: &BufferMetrics) -> Values {
    let of = |error: &forebay_proto::metrics::ErrorCount| {
        let errno = Errno(error.errno).name();
        let labels = vec![("source", error.source.name().to_string()), ("errno", errno)];
        (labels, Value::Count(error.count))
    };
    b.errors.iter().map(of).collect()
}

fn labelled(label: &'static str, values: &[(&str, Value)]) -> Values {
    values.iter().map(|(name, value)| (vec![(label, (*name).to_string())], *value)).collect()
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

use Value::{Bytes, Count, Gauge, Seconds};

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
    family("forebay_buffer_capacity_bytes", "Capacity of this server's part", |m| {
        each(m, |b| Bytes(b.capacity_bytes))
    }),
    family("forebay_buffer_used_bytes", "Of it used, by whatever way it was written", |m| {
        each(m, |b| Bytes(b.used_bytes))
    }),
    family("forebay_buffer_inodes", "Inodes in use", |m| each(m, |b| Bytes(b.inodes))),
    family("forebay_buffer_calls", "Calls answered, by kind", |m| many(m, calls)),
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
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, value) in &values {
                match labels.is_empty() {
                    true => put(&mut metric, *value)?,
                    false => put(&mut metric.encode_family(labels)?, *value)?,
                }
            }
        }
        Ok(())
    }
}

fn put(encoder: &mut MetricEncoder<'_>, value: Value) -> Result<(), fmt::Error> {
    match value {
        Gauge(value) => encoder.encode_gauge(&value),
        Bytes(value) => encoder.encode_gauge(&value),
        Count(value) => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
        Seconds(value) => encoder.encode_counter::<NoLabelSet, _, f64>(&value, None),
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
        }
    };
    FAMILIES.iter().filter_map(named).collect()
}
