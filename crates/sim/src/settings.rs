//! Changes a machine file's keys from the command line or in a sweep: `storage.servers=64`, `buffer=none`.

use crate::machine::Machine;
use forebay_workload::document::Fault;
use std::path::Path;
use toml::{Table, Value};

/// A key with those of the tables around it, and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// `buffer.capacity`.
    pub key: String,
    /// `4GiB`; `none` removes the key.
    pub value: String,
}

impl Setting {
    /// Parses `KEY=VALUE`.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Setting, String> {
        let wrong = || {
            format!(
                "{text:?} is no setting: expected KEY=VALUE, such as storage.servers=64 or buffer.capacity=4GiB"
            )
        };
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let (key, value) = (key.trim(), value.trim());
        let plain = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        match key.split('.').all(plain) && !value.is_empty() {
            true => Ok(Setting { key: key.into(), value: value.into() }),
            false => Err(wrong()),
        }
    }
}

/// A value as TOML has it where it is a number, flag or list; everything else is a text.
fn value(text: &str) -> Value {
    let parsed = format!("v = {text}").parse::<Table>().ok();
    match parsed.and_then(|mut table| table.remove("v")) {
        Some(
            value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Array(_)),
        ) => value,
        _ => Value::String(text.trim_matches('"').into()),
    }
}

/// The machine of a file's text with settings. Faults of values name the keys; lines are those of the text as it is after
/// the settings, so they are left out.
///
/// # Errors
/// That of the file, of a key that has no table, or of what the changed machine says.
pub fn machine(path: &Path, text: &str, settings: &[Setting]) -> Result<Machine, Fault> {
    if settings.is_empty() {
        return Machine::parse(path, text);
    }
    // The file as it is must be sound: its faults have lines.
    Machine::parse(path, text)?;
    let fault = |setting: &Setting, found: &str| Fault {
        path: path.into(),
        line: 0,
        key: setting.key.clone(),
        found: found.into(),
        expected: "a key of docs/SIMULATION.md".into(),
    };
    let mut root: Table = text.parse().map_err(|error: toml::de::Error| Fault {
        path: path.into(),
        line: 0,
        key: String::new(),
        found: error.message().into(),
        expected: "TOML".into(),
    })?;
    for setting in settings {
        let (tables, key) = match setting.key.rsplit_once('.') {
            Some((tables, key)) => (tables.split('.').collect(), key),
            None => (Vec::new(), setting.key.as_str()),
        };
        let mut table = &mut root;
        for name in tables {
            let entry = table.entry(name).or_insert_with(|| Value::Table(Table::new()));
            table = entry
                .as_table_mut()
                .ok_or_else(|| fault(setting, "what stands before the last dot is no table"))?;
        }
        if setting.value == "none" && table.get(key).is_none_or(|old| !old.is_str()) {
            table.remove(key);
            continue;
        }
        if table.get(key).is_some_and(Value::is_table) {
            return Err(fault(setting, "this is a table: set one of its keys, or none"));
        }
        table.insert(key.into(), value(&setting.value));
    }
    Machine::parse(path, &root.to_string()).map_err(|found| Fault { line: 0, ..found })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intrepid(settings: &[&str]) -> Result<Machine, Fault> {
        let settings: Vec<_> =
            settings.iter().map(|text| Setting::parse(text).expect(text)).collect();
        let text = crate::presets::text("intrepid-2011").expect("a preset");
        machine(Path::new("m.toml"), text, &settings)
    }

    #[test]
    fn keys_change_appear_and_go() {
        let machine =
            intrepid(&["storage.servers=64", "buffer.capacity=4GiB", "buffer.drain.when=idle"])
                .expect("sound");
        let buffer = machine.buffer.expect("a buffer");
        assert_eq!((machine.storage.servers, buffer.capacity_bytes), (64, 4 << 30));
        assert_eq!(buffer.drain.when, crate::machine::DrainWhen::Idle);
        assert!(intrepid(&["buffer=none"]).expect("sound").buffer.is_none());
        // Later settings go on from earlier ones.
        assert!(intrepid(&["buffer.nodes=7", "buffer.nodes=none"]).is_ok());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let told = |settings: &[&str]| intrepid(settings).expect_err("wrong").to_string();
        assert_eq!(
            told(&["storage.server=64"]).split("; expected").next(),
            Some("m.toml: storage.server: this key is not known here (did you mean servers?)")
        );
        assert!(told(&["buffer=4GiB"]).contains("this is a table"));
        assert!(told(&["storage.servers.x=1"]).contains("no table"));
        assert!(told(&["storage.servers=-1"]).starts_with("m.toml: storage.servers: it is -1"));
        assert!(told(&["storage.device.rate=0MB/s"]).contains("expected a rate above 0"));
        for wrong in ["", "a", "a=", "=1", "a..b=1", "a b=1"] {
            assert!(Setting::parse(wrong).is_err(), "{wrong}");
        }
    }
}
