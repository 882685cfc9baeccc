//! What failed, on which path, why and what to do: of errors of other crates, which know no `ControlError`.
//! Called by `failure`.

use forebay_loadgen::failed;
use forebay_loadgen::ior::IorError;
use forebay_loadgen::mpi::MpiError;
use forebay_loadgen::replay::ReplayError;
use forebay_loadgen::replay::board::BoardError;
use forebay_proto::control::ControlError;
use forebay_sim::model::{Key, SimError};
use forebay_sim::presets::ProgramError;
use forebay_trace_export::ExportError;
use forebay_trace_report::ReportError;
use forebay_workload::document::Fault;
use std::path::{Path, PathBuf};

/// A wrong use that is told in parts: of a file that says something wrong, of one that is there already. Ends with
/// [`crate::failure::EXIT_USAGE`].
#[derive(Debug, thiserror::Error)]
#[error("{plain}")]
pub struct Refused {
    /// What was refused, of which path, why, what to do.
    pub told: Box<ControlError>,
    /// The same as a person reads it.
    pub plain: String,
}

impl From<ControlError> for Refused {
    fn from(told: ControlError) -> Refused {
        Refused { plain: told.to_string(), told: Box::new(told) }
    }
}

/// A simulation that failed, with the files that it was of.
#[derive(Debug, thiserror::Error)]
#[error("simulate {}: {error}", .machine.display())]
pub struct NotSimulated {
    /// The machine file.
    pub machine: PathBuf,
    /// The workload file, if there is one.
    pub workload: Option<PathBuf>,
    /// Why.
    pub error: SimError,
}

/// The parts of an error, if it is of a type that has them.
pub fn parts(error: &anyhow::Error) -> Option<ControlError> {
    if let Some(Refused { told, .. }) = error.downcast_ref() {
        return Some(ControlError::clone(told));
    }
    if let Some(error) = error.downcast_ref::<Fault>() {
        return Some(of_fault(error));
    }
    if let Some(error) = error.downcast_ref::<IorError>() {
        return Some(of_ior(error));
    }
    if let Some(error) = error.downcast_ref::<ReplayError>() {
        return Some(of_replay(error));
    }
    if let Some(error) = error.downcast_ref::<MpiError>() {
        return Some(of_mpi(error));
    }
    if let Some(error) = error.downcast_ref::<SimError>() {
        return Some(of_simulation(error, None, None));
    }
    if let Some(NotSimulated { machine, workload, error }) = error.downcast_ref() {
        return Some(of_simulation(error, Some(machine), workload.as_deref()));
    }
    if let Some(error) = error.downcast_ref::<ProgramError>() {
        return Some(of_program(error));
    }
    if let Some(error) = error.downcast_ref::<ReportError>() {
        return Some(of_report(error));
    }
    error.downcast_ref::<ExportError>().map(of_export)
}

/// The same as a person reads it: files with their lines, and a simulation's own words.
pub fn plain(error: &anyhow::Error) -> Option<String> {
    if let Some(Refused { plain, .. }) = error.downcast_ref() {
        return Some(plain.clone());
    }
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return Some(plain_fault(fault));
    }
    if error.is::<SimError>() {
        return Some(format!("simulate: {error}"));
    }
    if let Some(NotSimulated { machine, workload, error }) = error.downcast_ref() {
        let told = of_simulation(error, Some(machine), workload.as_deref());
        let hint = told.hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
        return Some(format!("{}{hint}", ControlError { hint: None, ..told.clone() }));
    }
    if let Some(ProgramError::Fault(fault)) = error.downcast_ref() {
        return Some(plain_fault(fault));
    }
    if error.is::<ReportError>() || error.is::<ExportError>() {
        return None;
    }
    parts(error).map(|told| told.to_string())
}

/// A file that says something wrong, by who wrote it.
pub fn misread(fault: Fault) -> Refused {
    Refused { plain: plain_fault(&fault), told: Box::new(of_fault(&fault)) }
}

fn plain_fault(fault: &Fault) -> String {
    format!("read {fault}")
}

fn of_fault(fault: &Fault) -> ControlError {
    let line = if fault.line > 0 { format!("line {}: ", fault.line) } else { String::new() };
    let key = if fault.key.is_empty() { String::new() } else { format!("{}: ", fault.key) };
    // What the system said has its number behind it.
    let (found, number) =
        fault.found.split_once(" (os error ").unwrap_or((fault.found.as_str(), ""));
    let errno = number.trim_end_matches(')').parse().ok();
    let why = format!("{line}{key}{found}");
    let told = ControlError { errno, ..ControlError::new("read", Some(&fault.path), &why) };
    expecting(told, &fault.expected)
}

fn expecting(told: ControlError, expected: &str) -> ControlError {
    if expected.is_empty() { told } else { told.hint(&format!("expected {expected}")) }
}

/// What ended a run: a rank's own words, or how it died.
fn of_rank(text: &str) -> ControlError {
    let failed = failed::parts(text);
    let what = if failed.what.is_empty() { "finish the run" } else { failed.what };
    let why = failed.why.split(" (os error").next().unwrap_or(failed.why);
    ControlError { errno: failed.errno, ..ControlError::new(what, failed.path, why) }
}

fn of_ior(error: &IorError) -> ControlError {
    let run = |why: String| ControlError::new("run ior", None, &why);
    match error {
        IorError::Pattern(why) => run(why.to_string()).errno(libc::EINVAL),
        IorError::Refused(why) => run(why.clone()).errno(libc::EINVAL),
        IorError::File { what, path, source } => ControlError::io(what, Some(path), source),
        IorError::Start { ranks, source } => {
            ControlError::io(&format!("start {ranks} ranks"), None, source)
        }
        IorError::Exists(path) => ControlError::new("write", Some(path), "it is there already")
            .errno(libc::EEXIST)
            .hint("--overwrite replaces it, -E writes into it, another -o leaves it alone"),
        IorError::NotCold { path, why } => {
            ControlError::new("empty the page cache (--cold) of", Some(path), why)
                .hint("without --cold it is read from where it is")
        }
        IorError::Rank(text) => of_rank(text),
    }
}

fn of_replay(error: &ReplayError) -> ControlError {
    match error {
        ReplayError::Board(BoardError::Memory(source)) => {
            ControlError::io("map memory for the figures", None, source)
        }
        ReplayError::Board(why) => {
            ControlError::new("replay", None, &why.to_string()).errno(libc::EINVAL)
        }
        ReplayError::Refused(why) => ControlError::new("replay", None, why).errno(libc::EINVAL),
        ReplayError::Start { processes, source } => {
            ControlError::io(&format!("start {processes} processes"), None, source)
        }
        ReplayError::Prepare(text) | ReplayError::Rank(text) => of_rank(text),
    }
}

fn of_mpi(error: &MpiError) -> ControlError {
    match error {
        MpiError::NoLibrary { launcher, tried } => {
            let why = format!(
                "a launcher started this process ({launcher}), and no MPI library was found ({tried})"
            );
            let variable = forebay_loadgen::mpi::VARIABLE;
            ControlError::new("begin MPI", None, &why).hint(&format!(
                "install one, name it in {variable}, or say {variable}=off to run each process for itself"
            ))
        }
        MpiError::Strange { library, missing } => {
            let why =
                format!("it has neither Open MPI's nor MPICH's interface ({missing} is missing)");
            ControlError::new("use the MPI library", Some(Path::new(library)), &why)
        }
        MpiError::Call { call, why } => ControlError::new(call, None, why),
        MpiError::Alone { tasks } => {
            let why = format!("the launcher started {tasks} processes, but MPI knows of 1 in each");
            ControlError::new("begin MPI", None, &why)
                .hint("with srun say --mpi=pmix or --mpi=pmi2, as the MPI library needs it")
        }
    }
}

fn of_simulation(
    error: &SimError,
    machine: Option<&Path>,
    workload: Option<&Path>,
) -> ControlError {
    let (path, key) = match error.key() {
        Some(Key::Machine(key)) => (machine, key),
        Some(Key::Workload(key)) => (workload, key),
        None => (machine, ""),
    };
    let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
    let told = ControlError::new("simulate", path, &format!("{key}{}", error.why()));
    expecting(told, error.expected())
}

fn of_program(error: &ProgramError) -> ControlError {
    match error {
        ProgramError::Unknown(name, known) => {
            let why = "there is no such workload";
            let told = ControlError::new("read", Some(Path::new(name)), why).errno(libc::ENOENT);
            expecting(told, &format!("a file, or one of {known}"))
        }
        ProgramError::Fault(fault) => of_fault(fault),
        ProgramError::Simulate(name, why) => {
            ControlError::new("simulate", Some(Path::new(name)), why)
        }
    }
}

fn of_report(error: &ReportError) -> ControlError {
    match error {
        ReportError::Read { path, error } => ControlError::io("read", Some(path), error),
        ReportError::Nothing { places, file, why } => {
            let why = if why.is_empty() { "there is none" } else { why.as_str() };
            match (file, &places[..]) {
                (Some(path), _) | (None, [path]) => {
                    ControlError::new("find a trace in", Some(path), why)
                }
                (None, all) => {
                    let what = format!("find a trace in {}", forebay_trace_report::listed(all));
                    ControlError::new(&what, None, why)
                }
            }
        }
    }
}

fn of_export(error: &ExportError) -> ControlError {
    match error {
        ExportError::Trace(error) => of_report(error),
        ExportError::Exists(path) => ControlError::new("write", Some(path), "it exists already")
            .errno(libc::EEXIST)
            .hint("give another name"),
        ExportError::Write { path, error } => ControlError::io("write", Some(path), error),
        ExportError::Nothing(why) => ControlError::new("export the trace", None, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_fault_has_path_line_and_what_was_expected() {
        let fault = Fault {
            path: "w.toml".into(),
            line: 8,
            key: "job[0].repeat".into(),
            found: "it is 0".into(),
            expected: "at least 1".into(),
        };
        let error = anyhow::Error::from(misread(fault.clone()));
        let told = parts(&error).unwrap();
        assert_eq!((&*told.what, &*told.why), ("read", "line 8: job[0].repeat: it is 0"));
        assert_eq!(told.path.unwrap().to_string(), "w.toml");
        assert_eq!(told.hint.as_deref(), Some("expected at least 1"));
        let wanted = "read w.toml:8: job[0].repeat: it is 0; expected at least 1";
        assert_eq!(plain(&error).as_deref(), Some(wanted));
        assert_eq!(plain(&fault.into()).as_deref(), Some(wanted));
    }

    #[test]
    fn a_simulation_that_fails_names_the_file_and_the_key() {
        let failed = |key| {
            anyhow::Error::from(NotSimulated {
                machine: "m.toml".into(),
                workload: Some("w.toml".into()),
                error: SimError::Stuck { why: "a waits".into(), expected: "b".into(), key },
            })
        };
        let wanted = "simulate m.toml: buffer.mode: the simulation cannot end: a waits; expected b";
        assert_eq!(plain(&failed(Key::Machine("buffer.mode"))).as_deref(), Some(wanted));
        let error = failed(Key::Workload("await"));
        let wanted = "simulate w.toml: await: the simulation cannot end: a waits; expected b";
        assert_eq!(plain(&error).as_deref(), Some(wanted));
        let told = parts(&error).unwrap();
        assert_eq!(
            (&*told.what, &*told.why),
            ("simulate", "await: the simulation cannot end: a waits")
        );
        assert_eq!(told.path.unwrap().to_string(), "w.toml");
        assert_eq!(told.hint.as_deref(), Some("expected b"));
    }

    #[test]
    fn what_a_rank_failed_at_comes_apart() {
        let text = "rank 2: open\u{1f}d/f\u{1f}2\u{1f}No such file or directory (os error 2)";
        let told = parts(&IorError::Rank(text.into()).into()).unwrap();
        assert_eq!(told.to_string(), "rank 2: open d/f: No such file or directory");
        assert_eq!((&*told.what, told.errno), ("rank 2: open", Some(libc::ENOENT)));
        let killed = ReplayError::Rank("rank 1 was killed by signal 9".into());
        let told = parts(&killed.into()).unwrap();
        assert_eq!(told.to_string(), "finish the run: rank 1 was killed by signal 9");
    }

    #[test]
    fn no_part_is_missing() {
        let source = || std::io::Error::from_raw_os_error(libc::EACCES);
        let path = || PathBuf::from("/p");
        let nothing = |places, file| ReportError::Nothing { places, file, why: "no trace".into() };
        let stuck = || SimError::Stuck {
            why: "2 writes wait".into(),
            expected: "room".into(),
            key: Key::Machine("buffer.capacity"),
        };
        let errors: Vec<(anyhow::Error, bool)> = vec![
            (IorError::File { what: "remove", path: path(), source: source() }.into(), true),
            (IorError::Exists(path()).into(), true),
            (IorError::NotCold { path: path(), why: "no".into() }.into(), true),
            (IorError::Start { ranks: 2, source: source() }.into(), false),
            (ReplayError::Refused("no".into()).into(), false),
            (stuck().into(), false),
            (NotSimulated { machine: path(), workload: None, error: stuck() }.into(), true),
            (ProgramError::Unknown("x".into(), "a, b".into()).into(), true),
            (ReportError::Read { path: path(), error: source() }.into(), true),
            (nothing(vec![path()], None).into(), true),
            (nothing(vec![path(), path()], Some(path())).into(), true),
            (nothing(vec![path(), path()], None).into(), false),
            (ExportError::Exists(path()).into(), true),
        ];
        for (error, has_path) in errors {
            let told = parts(&error).unwrap();
            assert!(!told.what.is_empty() && !told.why.is_empty(), "{told:?}");
            assert_eq!(told.path.is_some(), has_path, "{told:?}");
            let twice = has_path && (told.what.contains("/p") || told.why.contains("/p"));
            assert!(!twice, "{told:?}");
        }
    }

    #[test]
    fn people_read_where_a_trace_was_looked_for_and_which_file_is_none() {
        let of = |places: &[&str], file: Option<&str>, why: &str| {
            let places = places.iter().map(PathBuf::from).collect();
            ReportError::Nothing { places, file: file.map(PathBuf::from), why: why.into() }
        };
        let told = |error: ReportError| error.to_string();
        assert_eq!(told(of(&["a", "b"], None, "")), "no trace in a, b");
        assert_eq!(told(of(&["a"], None, "only x")), "no trace in a: only x");
        let wanted = "no trace in a: a/f: it is not a trace";
        assert_eq!(told(of(&["a"], Some("a/f"), "it is not a trace")), wanted);
    }
}
