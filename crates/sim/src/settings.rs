//! Changes keys of the machine file, or of the workload, from the command line or in a sweep: `storage.servers=64`, `buffer=none`,
//! `workload.block=1MiB`.

pub mod workload;

use crate::machine::Machine;
use forebay_workload::document::Fault;
use std::path::Path;
use toml::{Table, Value};

/// A key with those of the tables around it, and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// `buffer.capacity`, or of a workload `workload.block`.
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
            // Of a list: steps[0].
            let name = match part.strip_suffix(']').and_then(|part| part.split_once('[')) {
                Some((name, index)) if index.parse::<u16>().is_ok() => name,
                Some(_) => "",
                None => part,
            };
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        match key.split('.').all(plain) && !value.is_empty() {
            true => Ok(Setting { key: key.into(), value: value.into() }),
            false => Err(wrong()),
        }
    }

    /// Whether it is of a workload, not of a machine file.
    pub fn is_of_workload(&self) -> bool {
        self.key.starts_with(workload::PREFIX)
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

/// Keys whose values may be the text `none`; of all others `none` removes them.
const WITH_NONE: [&str; 1] = ["buffer.redundancy.kind"];
/// A key for both directions, and those of one direction each.
const BOTH: [(&str, [&str; 2]); 2] =
    [("rate", ["write_rate", "read_rate"]), ("overhead", ["write_overhead", "read_overhead"])];
/// Keys of one kind of redundancy: without meaning for the others, which refuse them.
const OF_KIND: [(&str, &[&str]); 3] =
    [("none", &[]), ("copies", &["copies"]), ("parity", &["data", "parity", "strip"])];
/// The tables whose rate has no directions.
const ONE_RATE: &str = "storage.controller";

/// Gives a key of a file's tables a value, or removes it (`None`). One value for both directions becomes two where one of them
/// changes, and goes where both do; another kind of redundancy takes the keys of the old one away.
///
/// # Errors
/// Why the key has no place.
pub(crate) fn put(root: &mut Table, key: &str, new: Option<Value>) -> Result<(), &'static str> {
    let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
    let mut table = root;
    for part in tables.split('.').filter(|part| !part.is_empty()) {
        // What is to be removed is not there: nothing is made for it.
        if new.is_none() && !table.contains_key(part) {
            return Ok(());
        }
        let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        table = entry.as_table_mut().ok_or("what stands before the last dot is no table")?;
    }
    let Some(new) = new else {
        table.remove(name);
        return Ok(());
    };
    if table.get(name).is_some_and(Value::is_table) {
        return Err("this is a table: set one of its keys, or none");
    }
    for (both, sides) in BOTH.iter().filter(|_| tables != ONE_RATE) {
        if name == *both {
            sides.iter().for_each(|side| drop(table.remove(*side)));
        } else if sides.contains(&name)
            && let Some(old) = table.remove(*both)
        {
            for side in sides {
                table.entry(*side).or_insert_with(|| old.clone());
            }
        }
    }
    if key == "buffer.redundancy.kind" {
        let others = OF_KIND.iter().filter(|(kind, _)| new.as_str() != Some(kind));
        others.flat_map(|(_, keys)| *keys).for_each(|key| drop(table.remove(*key)));
    }
    table.insert(name.into(), new);
    Ok(())
}

/// The machine of a file's text with settings. Faults of values name the keys; lines are those of the text as it is after
/// the settings, so they are left out. Settings of a workload are not for it: they are left out.
///
/// # Errors
/// That of the file, of a key that has no table, or of what the changed machine says.
pub fn machine(path: &Path, text: &str, settings: &[Setting]) -> Result<Machine, Fault> {
    if settings.iter().all(Setting::is_of_workload) {
        return Machine::parse(path, text);
    }
    // The file as it is must be sound: its faults have lines.
    Machine::parse(path, text)?;
    let mut root = tables(path, text)?;
    for setting in settings.iter().filter(|setting| !setting.is_of_workload()) {
        let removes = setting.value == "none" && !WITH_NONE.contains(&setting.key.as_str());
        let new = (!removes).then(|| value(&setting.value));
        put(&mut root, &setting.key, new).map_err(|found| Fault {
            path: path.into(),
            line: 0,
            key: setting.key.clone(),
            found: found.into(),
            expected: "a key of docs/SIMULATION.md".into(),
        })?;
    }
    Machine::parse(path, &root.to_string()).map_err(|found| Fault { line: 0, ..found })
}

/// A file's text as tables.
fn tables(path: &Path, text: &str) -> Result<Table, Fault> {
    text.parse().map_err(|error: toml::de::Error| Fault {
        path: path.into(),
        line: 0,
        key: String::new(),
        found: error.message().into(),
        expected: "TOML".into(),
    })
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
        // What is not there is not made in order to be removed.
        assert!(intrepid(&["compute.port.rate=none", "buffer.drain.limit=none"]).is_ok());
        // Later settings go on from earlier ones.
        assert!(intrepid(&["buffer.nodes=7", "buffer.nodes=none"]).is_ok());
    }

    #[test]
    fn one_direction_of_a_rate_changes_and_the_other_stays() {
        let rates = |settings: &[&str]| {
            let network = intrepid(settings).expect("sound").network;
            (network.write_bytes_per_s, network.read_bytes_per_s)
        };
        let (both, _) = rates(&[]);
        assert_eq!(rates(&["network.write_rate=7MB/s"]), (7e6, both));
        assert_eq!(rates(&["network.read_rate=7MB/s"]), (both, 7e6));
        assert_eq!(rates(&["network.rate=5MB/s", "network.read_rate=7MB/s"]), (5e6, 7e6));
        assert_eq!(rates(&["network.read_rate=7MB/s", "network.rate=5MB/s"]), (5e6, 5e6));
        let device = intrepid(&["storage.device.write_rate=1MB/s", "storage.device.rate=2MB/s"]);
        assert_eq!(device.expect("sound").storage.device.write_bytes_per_s, 2e6);
        let controller = ["storage.controller.servers=8", "storage.controller.rate=5GB/s"];
        let controller = intrepid(&controller).expect("sound").storage.controller;
        assert_eq!(controller.map(|controller| controller.bytes_per_s), Some(5e9));
    }

    #[test]
    fn each_kind_of_redundancy_can_be_set_over_another() {
        use crate::machine::Redundancy;
        let of = |settings: &[&str]| {
            let buffer = intrepid(settings).expect("sound").buffer;
            buffer.expect("a buffer").redundancy
        };
        let (kind, copies) = ("buffer.redundancy.kind", "buffer.redundancy.copies=3");
        let [none, copied, parity] =
            ["none", "copies", "parity"].map(|word| format!("{kind}={word}"));
        assert_eq!(of(&[&none]), Redundancy::None);
        assert_eq!(of(&[&copied, &none]), Redundancy::None);
        assert_eq!(of(&[&copied, copies]), Redundancy::Copies { copies: 3 });
        assert_eq!(of(&[&copied, copies, &copied]), Redundancy::Copies { copies: 3 });
        assert_eq!(of(&[&copied, copies, &none]), Redundancy::None);
        let whole = Redundancy::Parity { data: 8, parity: 1, strip_bytes: 1 << 20 };
        assert_eq!(of(&[&copied, copies, &parity]), whole);
        assert_eq!(of(&[&none, "buffer.redundancy=none"]), Redundancy::None);
    }

    #[test]
    fn a_misspelt_key_is_told_before_the_one_that_is_missing() {
        let laptop = crate::presets::text("laptop").expect("a preset");
        for (from, to, wanted) in [
            (
                "nodes = 1",
                "nodez = 1",
                "compute.nodez: this key is not known here (did you mean nodes?)",
            ),
            ("[storage]", "[storag]", "storag: this key is not known here (did you mean storage?)"),
            (
                "attach =",
                "atach =",
                "buffer.atach: this key is not known here (did you mean attach?)",
            ),
            (
                "rate = \"1G",
                "rat = \"1G",
                "network.rat: this key is not known here (did you mean rate?)",
            ),
        ] {
            let changed = laptop.replacen(from, to, 1);
            let told = Machine::parse(Path::new("m.toml"), &changed).expect_err(to).to_string();
            assert!(told.contains(wanted), "{told}");
        }
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
        let (copies, servers) = ("buffer.redundancy.kind=copies", "buffer.servers=8");
        assert!(
            told(&["storage.stripe=0"])
                .starts_with("m.toml: storage.stripe: it is 0; expected a size")
        );
        assert!(
            told(&["buffer.capacity=0GiB"]).contains("buffer.capacity: it is \"0GiB\"; expected")
        );
        let strip = told(&["buffer.redundancy.kind=parity", "buffer.redundancy.strip=0"]);
        assert!(strip.contains("buffer.redundancy.strip: it is 0; expected a size"), "{strip}");
        let fabric = [
            "buffer.drain=none",
            "buffer.attach=fabric",
            "buffer.nodes=4",
            "buffer.rules=forebay",
            servers,
        ];
        assert!(told(&fabric).contains("buffer.servers is 8 and buffer.nodes 4"));
        assert!(intrepid(&[&fabric[..4], &["buffer.servers=4"]].concat()).is_ok());
        let one = told(&["buffer.attach=fabric", "buffer.nodes=1", copies]);
        assert!(one.contains("2 copies and the machine has 1 buffers"), "{one}");
        assert!(
            told(&["buffer.mtbf=1h"]).contains("buffer.mtbf is given and buffer.attach is \"io\"")
        );
        for wrong in
            ["", "a", "a=", "=1", "a..b=1", "a b=1", "a[x]=1", "a[]=1", "[0]=1", "a[0=1", "a[0]b=1"]
        {
            assert!(Setting::parse(wrong).is_err(), "{wrong}");
        }
    }
}
