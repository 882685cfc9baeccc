//! The values of keys: what each may be, and what is told of one that may not.
//!
//! A reader takes the value of one key into the request, or tells what is wrong with it. Called by [`super`] for the keys that
//! a command takes.

use super::{Directive, Value, note, one_of};
use crate::problem::{Problems, printable_bytes};
use crate::request::{AccessMode, Dialect, FileLimits, JobRequest};
use crate::stage_path;
use forebay_proto::control::{PathBytes, StageKind};
use forebay_proto::layout::{COMMIT, LOG, Logs, PLAIN, STRICT};
use forebay_proto::size::parse_bytes;

/// A persistent buffer's name: it is part of a variable's.
pub(super) fn read_name(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<String> {
    let name = value.shown();
    let good = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
        && name.len() <= forebay_proto::net::ledger::BUFFER_NAME_MAX
        // A buffer's name begins with a letter or digit.
        && !name.starts_with('_');
    if !good {
        let what = format!("{name:?} is no name of a persistent buffer");
        value.refuse(problems, what, "letters, digits and _, beginning with a letter");
    }
    good.then_some(name)
}

/// How the files of a scratch buffer are written, and what others see of them.
pub(super) fn read_layout(
    is_cache: bool,
    [layout, consistency]: [Option<&Value<'_>>; 2],
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    if let Some(layout) = layout
        && one_of(layout, &[PLAIN, LOG], "a layout", problems)
        && layout.bytes() == LOG.as_bytes()
    {
        match is_cache {
            true => layout.refuse(
                problems,
                "layout= belongs to type=scratch".into(),
                "type=scratch, or no layout=",
            ),
            false => request.log = Logs::Commit,
        }
    }
    if let Some(consistency) = consistency
        && one_of(consistency, &[COMMIT, STRICT], "a consistency", problems)
    {
        match request.log {
            Logs::Off => consistency.refuse(
                problems,
                "consistency= belongs to layout=log".into(),
                "layout=log, or no consistency=",
            ),
            _ if consistency.bytes() == STRICT.as_bytes() => request.log = Logs::Strict,
            _ => {}
        }
    }
}

/// Whether the script runs with the preload library, which has something to do on scratch buffers of one machine.
pub(super) fn read_preload(
    dialect: Dialect,
    (line, is_cache): (usize, bool),
    preload: Option<&Value<'_>>,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    let Some(preload) = preload else { return };
    if !one_of(preload, &["yes", "no"], "yes or no", problems) || preload.bytes() == b"no" {
        return;
    }
    match (is_cache, dialect) {
        (true, _) => preload.refuse(
            problems,
            "preload= belongs to type=scratch".into(),
            "type=scratch, or no preload=",
        ),
        (false, Dialect::Run) => request.preload = true,
        (false, Dialect::Scheduler) => {
            note(request, line, "preload= has no effect on buffers at servers");
        }
    }
}

/// The directory that a cache caches: `pfs=` belongs to each cache, and to nothing else.
pub(super) fn read_pfs(
    directive: &Directive,
    is_cache: bool,
    has_type: bool,
    pfs: Option<&Value<'_>>,
    problems: &mut Problems<'_>,
) -> Option<PathBytes> {
    match (is_cache, pfs) {
        (true, Some(pfs)) => match stage_path::pfs_side(pfs.bytes()) {
            Ok(path) => return Some(path),
            Err((what, expected)) => pfs.refuse(problems, what, expected),
        },
        (true, None) => {
            let (command, help) =
                (&directive.words[0], "pfs= (an absolute path on the parallel file system)");
            let what = "a cache has no pfs=".to_string();
            problems.add(command.line, command.start, command.bytes.len(), what, help);
        }
        // Without type= a persistent buffer is scratch.
        (false, Some(pfs)) if has_type || directive.is_bb => {
            pfs.refuse(problems, "pfs= belongs to type=cache".into(), "type=cache, or no pfs=");
        }
        (false, _) => {}
    }
    None
}

/// Checks the type of a buffer; true if it is a cache.
pub(super) fn check_type(value: &Value<'_>, problems: &mut Problems<'_>) -> bool {
    let what = match value.bytes() {
        b"scratch" => return false,
        b"cache" => return true,
        b"log" => "type=log is written type=scratch layout=log here".to_string(),
        b"swap" => {
            format!("type={} is not offered by this version's server", value.shown())
        }
        b"raw" | b"xfs" | b"gfs2" | b"lustre" => {
            format!("type={} (HPE Rabbit) is not offered by this version's server", value.shown())
        }
        _ => format!("{:?} is not a type", value.shown()),
    };
    value.refuse(problems, what, "scratch or cache");
    false
}

pub(super) fn read_capacity(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<u64> {
    read_size(value, "capacity=", problems)
}

/// A size; `before` is what stands before it in the script.
pub(super) fn read_size(
    value: &Value<'_>,
    before: &str,
    problems: &mut Problems<'_>,
) -> Option<u64> {
    const EXPECTED: &str = "an integer and KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as 100GiB";
    let text = value.shown();
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let what = if !text.is_empty() && digits.is_empty() {
        // A bare number is bytes to Slurm, and hardly ever what is meant.
        format!("{before}{text} has no unit")
    } else if matches!(digits, "K" | "M" | "G" | "T" | "P") {
        format!("the unit {digits} can be read as {digits}iB or as {digits}B")
    } else if matches!(digits.to_ascii_lowercase().as_str(), "n" | "node" | "nodes") {
        "a size by the node is not offered by this version's server".to_string()
    } else {
        match parse_bytes(&text) {
            Ok(0) => "the size is 0".to_string(),
            Ok(bytes) => return Some(bytes),
            Err(error) => {
                // parse_bytes names its own units; the caret's line repeats ours.
                let full = error.to_string();
                full.split(": expected").next().unwrap_or(&full).to_string()
            }
        }
    };
    value.refuse(problems, what, EXPECTED);
    None
}

pub(super) fn read_modes(
    value: &Value<'_>,
    is_cache: bool,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    const EXPECTED: &str = "striped, private or striped,private";
    const OF_CACHE: &str = "one of striped, private and ldbalance";
    let expected = if is_cache { OF_CACHE } else { EXPECTED };
    let mut offset = value.at;
    let mut limits = Vec::new();
    for part in outside_parentheses(value.bytes()) {
        let name_len = part.iter().position(|b| *b == b'(').unwrap_or(part.len());
        let (name, modifiers) = part.split_at(name_len);
        let shown = printable_bytes(name);
        let mode = match name {
            b"striped" => Ok(AccessMode::Striped),
            b"private" => Ok(AccessMode::Private),
            b"ldbalance" if is_cache => Ok(AccessMode::Ldbalance),
            b"ldbalance" => Err("ldbalance belongs to type=cache".to_string()),
            _ => Err(format!("{shown:?} is not an access mode")),
        };
        let what = match mode {
            Ok(mode) if request.access_modes.contains(&mode) => {
                Err(format!("{shown} is asked for twice"))
            }
            Ok(_) if is_cache && !request.access_modes.is_empty() => {
                Err("a cache has one access mode".to_string())
            }
            Ok(mode) => Ok(mode),
            Err(what) => Err(what),
        };
        match what {
            Ok(mode) => {
                request.access_modes.push(mode);
                let at = value.word.start + offset + name_len;
                match read_modifiers(modifiers, mode) {
                    Ok((found, has_client_cache)) => {
                        limits.push(found);
                        if has_client_cache {
                            note(request, value.word.line, "client_cache= has no effect");
                        }
                    }
                    Err((what, expected)) => {
                        problems.add(value.word.line, at, modifiers.len(), what, expected);
                    }
                }
            }
            Err(what) => {
                let (line, start) = (value.word.line, value.word.start + offset);
                problems.add(line, start, name_len.max(1), what, expected);
            }
        }
        offset += part.len() + 1;
    }
    // Of two jobdw lines, one for each mode, the other one's limits stand in the request.
    let other_line = (request.access_modes.len() > limits.len()).then_some(request.limits);
    if let Some(first) = limits.first() {
        if limits.iter().chain(&other_line).any(|one| one != first) {
            let what = "the two modes share one buffer, and have other limits".to_string();
            value.refuse(problems, what, "the same limits for both, or one mode");
        }
        request.limits = *first;
    }
    request.access_modes.sort();
}

/// Divides a value at its commas, but for those in parentheses.
fn outside_parentheses(value: &[u8]) -> Vec<&[u8]> {
    let mut depth = 0_usize;
    value
        .split(|byte| {
            match byte {
                b'(' => depth += 1,
                b')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            *byte == b',' && depth == 0
        })
        .collect()
}

/// What stands behind an access mode in parentheses: `(MFS=SIZE,MFC=COUNT,client_cache=no)`. The limits, and whether
/// `client_cache=` is named.
fn read_modifiers(
    text: &[u8],
    mode: AccessMode,
) -> Result<(FileLimits, bool), (String, &'static str)> {
    const EXPECTED: &str = "(MFS=SIZE), of private also (MFC=COUNT), divided by commas";
    let mut limits = FileLimits::default();
    let mut has_client_cache = false;
    if text.is_empty() {
        return Ok((limits, has_client_cache));
    }
    let inner = text.strip_prefix(b"(").and_then(|rest| rest.strip_suffix(b")"));
    let Some(inner) = inner else {
        return Err(("the parentheses are not closed".into(), EXPECTED));
    };
    for part in inner.split(|byte| *byte == b',') {
        let shown = printable_bytes(part);
        let (key, value) = shown.split_once('=').unwrap_or((&shown, ""));
        match key {
            "MFS" if mode != AccessMode::Ldbalance => {
                let bytes = parse_bytes(value).ok().filter(|bytes| *bytes > 0);
                let has_unit = value.ends_with('B');
                match bytes.filter(|_| has_unit) {
                    Some(bytes) => limits.max_file_bytes = Some(bytes),
                    None => {
                        return Err((
                            format!("{shown:?} is no size"),
                            "MFS=SIZE, such as MFS=1GiB",
                        ));
                    }
                }
            }
            "MFC" if mode == AccessMode::Private => match value.parse() {
                Ok(files) => limits.max_files = Some(files),
                Err(_) => return Err((format!("{shown:?} is no number of files"), "MFC=COUNT")),
            },
            "MFC" => return Err(("MFC= belongs to private".into(), EXPECTED)),
            "client_cache" if matches!(value, "yes" | "no") => has_client_cache = true,
            _ => return Err((format!("{shown:?} is no limit"), EXPECTED)),
        }
    }
    Ok((limits, has_client_cache))
}

pub(super) fn read_pool_name(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<String> {
    let name = value.shown();
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(good) {
        let what = format!("{name:?} is not a pool's name");
        value.refuse(problems, what, "letters, digits, _ - .");
        return None;
    }
    Some(name)
}

pub(super) fn read_pool(
    dialect: Dialect,
    value: &Value<'_>,
    line: usize,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    let Some(name) = read_pool_name(value, problems) else { return };
    if request.pool.as_ref().is_some_and(|pool| *pool != name) {
        let what = "two pools for one job".to_string();
        value.refuse(problems, what, "one pool: this version's buffer lies in one");
    } else {
        let text = format!("pool={name}: without a scheduler the flash directory is the pool");
        if dialect == Dialect::Run {
            note(request, line, &text);
        }
        request.pool = Some(name);
    }
}

pub(super) fn read_kind(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<StageKind> {
    match value.bytes() {
        b"file" => Some(StageKind::File),
        b"directory" => Some(StageKind::Directory),
        b"list" => Some(StageKind::List),
        _ => {
            let what = format!("{:?} is not a type of stage", value.shown());
            value.refuse(problems, what, "file, directory or list");
            None
        }
    }
}
