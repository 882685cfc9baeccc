//! What `--json` prints, where it is not what servers and mounts say to each other: one name for one thing in all
//! commands. docs/JSON.md has every key, and a test compares it with what the commands print.

use forebay_proto::control::ControlError;
use forebay_proto::events::Event;
use forebay_proto::layout::log_or_plain;
use forebay_proto::net::ledger::{BufferSpec, PoolStatus, ServedBuffer};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// The keys of something that is an object.
fn object(value: &impl Serialize) -> anyhow::Result<Map<String, Value>> {
    match serde_json::to_value(value)? {
        Value::Object(object) => Ok(object),
        other => anyhow::bail!("this is no object: {other}"),
    }
}

fn rename(object: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = object.remove(from) {
        object.insert(to.into(), value);
    }
}

/// A buffer of `forebay serve`.
pub fn buffer(of: &ServedBuffer) -> anyhow::Result<Value> {
    let mut shown = object(of)?;
    shown.remove("spec");
    // Its parts name their servers.
    shown.remove("servers");
    let BufferSpec { name, capacity_bytes, buffer_type, access, servers, cache, log, .. } =
        &of.spec;
    let asked = json!({
        "buffer": name,
        "buffer_type": buffer_type,
        "access": access,
        "asked_capacity_bytes": capacity_bytes,
        "asked_server_count": servers,
        "cache_spec": cache,
        "layout": log_or_plain(!log.is_off()),
    });
    shown.extend(object(&asked)?);
    if !log.is_off() {
        shown.insert("consistency".into(), serde_json::to_value(log)?);
    }
    let parts = shown.get_mut("parts").and_then(Value::as_array_mut);
    for (part, told) in parts.into_iter().flatten().zip(&of.parts) {
        if !told.is_told() {
            part["used_bytes"] = Value::Null;
        }
    }
    let partial = of.is_partial();
    shown.insert("partial".into(), partial.into());
    if partial {
        let told = shown.insert("used_bytes".into(), Value::Null);
        shown.insert("used_at_least_bytes".into(), told.unwrap_or_default());
        shown.insert("inodes".into(), Value::Null);
    }
    Ok(shown.into())
}

/// The servers of a pool.
pub fn pool(of: &PoolStatus) -> anyhow::Result<Value> {
    let mut shown = object(of)?;
    let servers = shown.get_mut("servers").and_then(Value::as_array_mut);
    for server in servers.into_iter().flatten().filter_map(Value::as_object_mut) {
        rename(server, "id", "server");
        rename(server, "lost", "given_up");
    }
    Ok(shown.into())
}

/// An event.
pub fn event(of: &Event) -> anyhow::Result<Value> {
    let mut shown = object(of)?;
    if let Some(crc) = of.happened.crc32c {
        shown.insert("crc32c".into(), format!("{crc:08x}").into());
    }
    Ok(shown.into())
}

/// An error.
pub fn error(of: &ControlError) -> Value {
    json!({ "error": of })
}

/// The command line was wrong, as clap says it.
pub fn usage(text: &str) -> Value {
    let why = text.strip_prefix("error: ").unwrap_or(text).trim();
    let told = ControlError::new("use the command line", None, why).errno(libc::EINVAL);
    error(&told.hint("--help shows what there is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_hexadecimal() {
        let line =
            r#"{"seq":1,"time":"2026-11-22T05:10:33Z","event":"staged","uid":0,"crc32c":26}"#;
        let told: Event = serde_json::from_str(line).unwrap();
        assert_eq!(event(&told).unwrap()["crc32c"], "0000001a");
    }
}
