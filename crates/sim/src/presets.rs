//! The machines that come with the program, each a file of `presets/`.

use crate::from_workload;
use crate::machine::Machine;
use crate::program::{Action, Program};
use crate::settings::{self, Setting};
use forebay_sim_engine::ns;
use forebay_sim_engine::random::Random;
use forebay_workload::document::Fault;
use forebay_workload::language::Workload;
use forebay_workload::patterns::checkpoint::{Checkpoint, Files, MODELS};
use std::path::{Path, PathBuf};

/// Name and text of each.
pub const MACHINES: [(&str, &str); 6] = [
    ("intrepid-2011", include_str!("../presets/intrepid-2011.toml")),
    ("intrepid-2011-half", include_str!("../presets/intrepid-2011-half.toml")),
    ("cori-datawarp", include_str!("../presets/cori-datawarp.toml")),
    ("summit-like", include_str!("../presets/summit-like.toml")),
    ("gordon-like", include_str!("../presets/gordon-like.toml")),
    ("laptop", include_str!("../presets/laptop.toml")),
];

/// Schema of machine files (JSON Schema, draft 7), for editors.
pub const SCHEMA: &str = include_str!("../presets/machine.schema.json");

/// Workloads that come with the program: name and text of each.
pub const WORKLOADS: [(&str, &str); 5] = [
    ("plasma-physics", include_str!("../workloads/plasma-physics.toml")),
    ("turbulence1", include_str!("../workloads/turbulence1.toml")),
    ("astrophysics", include_str!("../workloads/astrophysics.toml")),
    ("turbulence2", include_str!("../workloads/turbulence2.toml")),
    ("mixed-2011", include_str!("../workloads/mixed-2011.toml")),
];

/// Ranks of a node of those of [`AI_MODELS`]: as many as each machine here has room for.
const AI_PER_NODE: u32 = 4;
/// What they do: an hour of training, with a checkpoint every five minutes that all ranks wait for.
const AI_CHECKPOINTS: u32 = 12;
const AI_INTERVAL_NS: u64 = 300_000_000_000;
/// Checkpoints of large models, sharded: a file of each rank. Name of the workload, and of the model in MLPerf Storage's table.
pub const AI_MODELS: [(&str, &str); 4] =
    [("ai-8b", "8b"), ("ai-70b", "70b"), ("ai-405b", "405b"), ("ai-1t", "1t")];

/// The checkpoints of a model of MLPerf Storage's table.
fn of_model(name: &str, model: &str) -> Result<Workload, ProgramError> {
    let fails = |why: String| ProgramError::Simulate(name.into(), why);
    let known = MODELS.iter().find(|(known, ..)| *known == model);
    let (_, total_bytes, processes) = *known.ok_or_else(|| fails("no such model".into()))?;
    let checkpoint = Checkpoint {
        processes,
        total_bytes,
        files: Files::Each,
        tensors: 1,
        transfer_bytes: 16 << 20,
        checkpoints: AI_CHECKPOINTS,
        interval_ns: AI_INTERVAL_NS,
        reads: false,
        cold: false,
        seed: 1,
    };
    let mut workload = checkpoint.workload().map_err(|refused| fails(refused.to_string()))?;
    workload.name = format!("checkpoints of a model of {model} parameters");
    for job in &mut workload.jobs {
        job.name = name.into();
        job.processes_per_node = AI_PER_NODE;
    }
    Ok(workload)
}

/// Name of the generated month of jobs.
pub const MONTH: &str = "month-2011";
/// Its days, and the mean time between jobs that come.
const MONTH_S: f64 = 30.0 * 86_400.0;
const BETWEEN_JOBS_S: f64 = 5.0 * 3600.0;

/// A synthetic month: jobs of Table I's four kinds, drawn evenly, come at exponential times and wait for nodes. The study's
/// own month is not available, and this one claims nothing about it.
fn month() -> Result<Program, ProgramError> {
    let kinds = ["plasma-physics", "turbulence1", "astrophysics", "turbulence2"];
    let kinds: Vec<Program> =
        kinds.iter().map(|name| program(Path::new(name))).collect::<Result<_, _>>()?;
    let mut random = Random::new(2011, 12);
    let mut month = Program { name: MONTH.into(), ..Program::default() };
    let mut at_s = random.exponential(BETWEEN_JOBS_S);
    while at_s < MONTH_S {
        let number = month.jobs.len() as u32;
        let kind = &kinds[random.below(kinds.len() as u64) as usize];
        let mut job = kind.jobs[0].clone();
        job.name = format!("{}-{number}", job.name);
        job.start_ns = ns(at_s);
        // Files of one job are not those of another.
        for step in job.phases.iter_mut().flat_map(|phase| &mut phase.steps) {
            if let Action::Move { file, .. } = &mut step.action {
                *file += 8 * number;
            }
        }
        month.jobs.push(job);
        at_s += random.exponential(BETWEEN_JOBS_S);
    }
    Ok(month)
}

/// A workload that comes with the program, or that of a file, as a program.
///
/// # Errors
/// What is wrong with it.
pub fn program(name: &Path) -> Result<Program, ProgramError> {
    changed_program(name, &[])
}

/// The same with some of its keys changed: settings of [`Setting::is_of_workload`].
///
/// # Errors
/// What is wrong with it, or with the changed one.
pub fn changed_program(name: &Path, set: &[Setting]) -> Result<Program, ProgramError> {
    if name.to_str() == Some(MONTH) {
        return match set {
            [] => month(),
            [first, ..] => {
                let why = format!("{}: this workload is generated, and has no file", first.key);
                Err(ProgramError::Simulate(MONTH.into(), why))
            }
        };
    }
    let model = name.to_str().and_then(|name| AI_MODELS.iter().find(|(known, _)| *known == name));
    let known = name.to_str().and_then(|name| WORKLOADS.iter().find(|(known, _)| *known == name));
    let workload = match (model, known) {
        (Some((name, model)), _) => {
            let workload = of_model(name, model)?;
            match set {
                [] => workload,
                _ => changed(Path::new(&format!("{name}.toml")), &workload.to_toml(), set)?,
            }
        }
        (None, Some((name, text))) => changed(Path::new(&format!("{name}.toml")), text, set)?,
        (None, None) => {
            if !name.exists() && name.extension().is_none() {
                let names = WORKLOADS.iter().map(|(name, _)| *name).chain([MONTH]);
                let names: Vec<_> = names.chain(AI_MODELS.iter().map(|(name, _)| *name)).collect();
                return Err(ProgramError::Unknown(name.display().to_string(), names.join(", ")));
            }
            changed(name, &forebay_workload::document::read_text(name)?, set)?
        }
    };
    from_workload::program(&workload)
        .map_err(|why| ProgramError::Simulate(name.display().to_string(), why))
}

/// The workload of a file's text with settings; lines of faults are those of the file as it is.
fn changed(path: &Path, text: &str, set: &[Setting]) -> Result<Workload, Fault> {
    let workload = Workload::parse_beside(path, text)?;
    if set.is_empty() {
        return Ok(workload);
    }
    let text = settings::workload::changed(path, text, set)?;
    Workload::parse_beside(path, &text).map_err(|fault| Fault { line: 0, ..fault })
}

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// No such file or name.
    #[error("{0}: there is no such workload; expected a file, or one of {1}")]
    Unknown(String, String),
    /// The file is wrong.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// What it says cannot be simulated.
    #[error("{0}: {1}")]
    Simulate(String, String),
}

/// The file of a machine that is named so; that of a preset is called after it.
pub fn path(name: &str) -> PathBuf {
    match text(name) {
        Some(_) => PathBuf::from(format!("{name}.toml")),
        None => PathBuf::from(name),
    }
}

/// The text of a preset.
pub fn text(name: &str) -> Option<&'static str> {
    MACHINES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// A preset, or the machine of a file: its path, text, and what it says.
///
/// # Errors
/// That of the file, or of what it says.
pub fn load(name: &str) -> Result<(PathBuf, String, Machine), Fault> {
    let (path, text) = match text(name) {
        Some(text) => (path(name), text.to_string()),
        None => {
            let path = Path::new(name);
            if !name.contains(['/', '.']) && !path.exists() {
                let known: Vec<_> = MACHINES.iter().map(|(name, _)| *name).collect();
                return Err(Fault {
                    path: path.into(),
                    line: 0,
                    key: String::new(),
                    found: "there is no such machine".into(),
                    expected: format!("a file, or one of {}", known.join(", ")),
                });
            }
            (path.to_path_buf(), forebay_workload::document::read_text(path)?)
        }
    };
    let machine = Machine::parse(&path, &text)?;
    Ok((path, text, machine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn each_workload_is_one() {
        for (name, _) in WORKLOADS {
            let program = program(Path::new(name)).expect(name);
            assert!(program.written_bytes() > 1 << 40 && program.simplified.is_empty(), "{name}");
        }
        let why = program(Path::new("nothing")).expect_err("there is none").to_string();
        assert!(why.contains("one of plasma-physics, turbulence1"), "{why}");
    }

    #[test]
    fn keys_of_a_workload_change() {
        let with = |name: &str, set: &str| {
            let set = [Setting::parse(set).expect(set)];
            changed_program(Path::new(name), &set).map_err(|error| error.to_string())
        };
        let before = program(Path::new("turbulence1")).expect("a preset").written_bytes();
        let after = with("turbulence1", "workload.repeat=1").expect("changed").written_bytes();
        assert!(after < before / 10, "{before} {after}");
        let half = with("ai-8b", "workload.repeat=6").expect("changed");
        let whole = program(Path::new("ai-8b")).expect("a preset");
        assert_eq!(half.written_bytes() * 2, whole.written_bytes());
        assert_eq!((&half.name, &half.jobs[0].name), (&whole.name, &whole.jobs[0].name));
        assert_eq!(half.jobs[0].processes_per_node, AI_PER_NODE);
        let told = with("turbulence1", "workload.repeat=0").expect_err("no repetition");
        assert!(told.starts_with("turbulence1.toml: job[0].phase[0].repeat: it is 0"), "{told}");
        let told = with(MONTH, "workload.repeat=1").expect_err("no file");
        assert!(told.contains("generated"), "{told}");
    }

    #[test]
    fn each_model_writes_a_file_of_each_rank_between_pauses() {
        for (name, model) in AI_MODELS {
            let program = program(Path::new(name)).expect(name);
            let (_, bytes, ranks) = MODELS.iter().find(|(known, ..)| *known == model).expect(name);
            let whole = bytes / u64::from(*ranks) * u64::from(*ranks);
            assert_eq!(program.written_bytes(), whole * u64::from(AI_CHECKPOINTS), "{name}");
            let job = &program.jobs[0];
            assert_eq!((job.processes, job.phases.len()), (*ranks, 1), "{name}");
            let phase = &job.phases[0];
            assert!(phase.meet && phase.checkpoint && phase.pause_ns == AI_INTERVAL_NS, "{name}");
            let shares = |step: &crate::program::Step| {
                matches!(step.action, Action::Move { shared: true, .. })
            };
            assert!(!phase.steps.iter().any(shares), "{name}");
        }
    }

    #[test]
    fn the_month_is_always_the_same_and_has_all_kinds() {
        let month = program(Path::new(MONTH)).expect("generated");
        assert_eq!(Some(&month), program(Path::new(MONTH)).ok().as_ref());
        for kind in ["plasma", "turbulence1", "astro", "turbulence2"] {
            assert!(
                month.jobs.iter().filter(|job| job.name.starts_with(kind)).count() > 10,
                "{kind}"
            );
        }
    }

    /// What a part of the schema stands for.
    fn resolved<'s>(schema: &'s Value, part: &'s Value) -> &'s Value {
        if let Some(all) = part["allOf"].as_array() {
            return resolved(schema, &all[0]);
        }
        match part["$ref"].as_str() {
            Some(name) => schema.pointer(name.trim_start_matches('#')).expect(name),
            None => part,
        }
    }

    /// Each key of a file is in the schema, where it stands.
    fn has_keys(schema: &Value, part: &Value, found: &toml::Value, at: &str) {
        let part = resolved(schema, part);
        match found {
            toml::Value::Table(table) => {
                assert_eq!(part["additionalProperties"], false, "{at}");
                for (key, value) in table {
                    let of_key = &part["properties"][key];
                    assert!(of_key.is_object(), "{at}.{key} is not in the schema");
                    has_keys(schema, of_key, value, &format!("{at}.{key}"));
                }
            }
            toml::Value::Array(list) => {
                list.iter().for_each(|one| has_keys(schema, &part["items"], one, at));
            }
            _ => {}
        }
    }

    #[test]
    fn the_schema_has_the_keys_of_the_files_and_of_the_document() {
        let schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
        for (name, text) in MACHINES {
            let file: toml::Table = text.parse().expect(name);
            has_keys(&schema, &schema, &toml::Value::Table(file), name);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/SIMULATION.md");
        let document = std::fs::read_to_string(path).expect("the document");
        let (_, document) = document.split_once("\n## Machine files\n").expect("its part");
        let (document, _) = document.split_once("\n## Questions\n").expect("its end");
        let mut part = &schema;
        for line in document.lines() {
            if let Some(name) = line.strip_prefix("### [").and_then(|rest| rest.strip_suffix(']')) {
                part = resolved(&schema, &schema["properties"][name]);
            }
            let cell = line.strip_prefix("| `").and_then(|row| row.split(" | ").next());
            for key in cell.unwrap_or_default().split('`').step_by(2).filter(|key| !key.is_empty())
            {
                assert!(part["properties"][key].is_object(), "{key} is not in the schema: {line}");
            }
        }
        // And no key of the schema is missing there.
        let parts =
            ["/properties/compute", "/properties/io", "/properties/storage", "/properties/buffer"];
        let more = ["/properties/cost", "/definitions/link", "/definitions/device"];
        for pointer in parts.into_iter().chain(more) {
            let part = schema.pointer(pointer).expect(pointer);
            for key in part["properties"].as_object().expect(pointer).keys() {
                assert!(document.contains(&format!("`{key}`")), "{pointer}: {key}");
            }
        }
    }

    #[test]
    fn each_preset_is_a_machine_of_its_name() {
        for (name, _) in MACHINES {
            let (_, _, machine) = load(name).expect(name);
            assert_eq!(machine.name, name);
            assert!(!machine.about.is_empty() && !machine.assumptions.is_empty(), "{name}");
        }
    }
}
