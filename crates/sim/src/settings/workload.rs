//! Changes a workload file's keys: `workload.block=1MiB`, `workload.job[0].phase[1].repeat=20`.
//!
//! Behind `workload.` stands the end of a place in the file: `block` is every key of this name, `phase[0].repeat` that of each
//! job's first phase. A whole place, from the outermost table on, may also be one that is not there yet.
//! Callers: `presets`, for `forebay sim`.

use super::{Setting, value};
use forebay_workload::document::Fault;
use std::path::Path;
use toml::{Table, Value};

/// What a key of a workload begins with.
pub const PREFIX: &str = "workload.";
/// The one key of the outermost table that is added where it is not there: nothing else there has a default that matters.
const SEED: &str = "seed";

/// A part of a place: a key, and which of a list.
struct Part<'k> {
    name: &'k str,
    index: Option<usize>,
}

fn parts(key: &str) -> Vec<Part<'_>> {
    let part = |text| match str::strip_suffix(text, ']').and_then(|text| text.split_once('[')) {
        Some((name, index)) => Part { name, index: index.parse().ok() },
        None => Part { name: text, index: None },
    };
    key.split('.').map(part).collect()
}

/// The text of a workload file with settings, whose keys begin with [`PREFIX`].
///
/// # Errors
/// A key that stands nowhere in the file. What the changed file says is for its reader.
pub(crate) fn changed(path: &Path, text: &str, settings: &[Setting]) -> Result<String, Fault> {
    let mut root = super::tables(path, text)?;
    for setting in settings {
        let key = setting.key.strip_prefix(PREFIX).unwrap_or(&setting.key);
        let new = (setting.value != "none").then(|| value(&setting.value));
        let parts = parts(key);
        let set = set_where_it_stands(&mut root, &parts, &mut Vec::new(), new.as_ref());
        if set == 0 && !add(&mut root, &parts, new) {
            return Err(Fault {
                path: path.into(),
                line: 0,
                key: key.into(),
                found: "this key stands nowhere in the workload".into(),
                expected:
                    "one that it has, or a whole place, such as job[0].phase[0].steps[0].block"
                        .into(),
            });
        }
    }
    Ok(root.to_string())
}

/// Sets all keys whose places end with these parts; says how many. `way`: the place of the table.
fn set_where_it_stands(
    table: &mut Table,
    parts: &[Part],
    way: &mut Vec<(String, Option<usize>)>,
    new: Option<&Value>,
) -> usize {
    let mut count = 0;
    for name in table.keys().cloned().collect::<Vec<_>>() {
        way.push((name.clone(), None));
        if ends_with(way, parts) {
            match new {
                Some(new) => drop(table.insert(name, new.clone())),
                None => drop(table.remove(&name)),
            }
            count += 1;
        } else {
            match table.get_mut(&name) {
                Some(Value::Table(inner)) => count += set_where_it_stands(inner, parts, way, new),
                Some(Value::Array(list)) => {
                    for (index, one) in list.iter_mut().enumerate() {
                        if let (Value::Table(inner), Some(last)) = (one, way.last_mut()) {
                            last.1 = Some(index);
                            count += set_where_it_stands(inner, parts, way, new);
                        }
                    }
                }
                _ => {}
            }
        }
        way.pop();
    }
    count
}

fn ends_with(way: &[(String, Option<usize>)], parts: &[Part]) -> bool {
    let Some(before) = way.len().checked_sub(parts.len()) else { return false };
    way[before..].iter().zip(parts).all(|((name, index), part)| {
        name == part.name && (part.index.is_none() || *index == part.index)
    })
}

/// Adds a key to the table of a whole place; false: there is no such table.
fn add(root: &mut Table, parts: &[Part], new: Option<Value>) -> bool {
    let (Some((key, tables)), Some(new)) = (parts.split_last(), new) else { return false };
    if key.index.is_some() || (tables.is_empty() && key.name != SEED) {
        return false;
    }
    let mut table = root;
    for part in tables {
        let found = match (table.get_mut(part.name), part.index) {
            (Some(Value::Array(list)), Some(index)) => list.get_mut(index),
            (found, None) => found,
            _ => None,
        };
        let Some(Value::Table(inner)) = found else { return false };
        table = inner;
    }
    table.insert(key.name.into(), new);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"workload = 1
[[file]]
name = "f"
path = "f.{process}"
[[job]]
name = "a"
phase = [
  { name = "p", steps = [{ think = "1s" }, { write = "f", block = "4MiB", transfer = "1MiB" }] },
  { name = "q", repeat = 2, steps = [{ write = "f", block = "8MiB" }] },
]
[[job]]
name = "b"
phase = [{ name = "p", repeat = 3, steps = [{ think = "2s" }] }]
"#;

    fn with(settings: &[&str]) -> Result<String, String> {
        let settings: Vec<Setting> =
            settings.iter().map(|text| Setting::parse(text).expect(text)).collect();
        changed(Path::new("w.toml"), TEXT, &settings).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_key_is_set_wherever_it_stands_or_at_one_place() {
        let lines = |settings: &[&str], what: &str| -> Vec<String> {
            let text = with(settings).expect("set");
            let root: Table = text.parse().expect("TOML");
            let mut found = Vec::new();
            for job in root["job"].as_array().expect("jobs") {
                for phase in job["phase"].as_array().expect("phases") {
                    found.extend(phase.get(what).map(Value::to_string));
                    let steps = phase["steps"].as_array().expect("steps").iter();
                    found.extend(steps.filter_map(|step| step.get(what)).map(Value::to_string));
                }
            }
            found
        };
        assert_eq!(lines(&["workload.block=2MiB"], "block"), ["\"2MiB\"", "\"2MiB\""]);
        assert_eq!(
            lines(&["workload.phase[0].steps.block=2MiB"], "block"),
            ["\"2MiB\"", "\"8MiB\""]
        );
        assert_eq!(lines(&["workload.think=5"], "think"), ["5", "5"]);
        assert_eq!(lines(&["workload.job[1].phase[0].repeat=9"], "repeat"), ["2", "9"]);
        assert_eq!(lines(&["workload.job[0].phase[0].repeat=9"], "repeat"), ["9", "2", "3"]);
        assert_eq!(lines(&["workload.repeat=none"], "repeat"), [""; 0]);
        assert!(with(&["workload.seed=7"]).expect("added").contains("seed = 7"));
    }

    #[test]
    fn what_stands_nowhere_is_refused() {
        for key in ["blok", "job[7].phase[0].repeat", "transfer[0]", "name.x", "items"] {
            let told = with(&[&format!("workload.{key}=1")]).expect_err(key);
            assert!(told.starts_with(&format!("w.toml: {key}: this key stands nowhere")), "{told}");
        }
    }
}
