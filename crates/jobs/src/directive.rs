//! What a directive means: commands, their keys, and the rules between lines.
//!
//! Tables first: a command lists the keys it takes; words of other DataWarp-like systems are
//! known by name, so that a user who has a script for one of them is told what is not offered
//! here, not that it is a typing error. Called by [`crate::script`].

use crate::problem::{Problems, printable_bytes};
use crate::request::{AccessMode, JobRequest, Note, StageRequest};
use crate::stage_path;
use forebay_proto::control::{Direction, PathBytes, StageKind};
use forebay_proto::size::parse_bytes;

/// A word of a directive and where it stands.
pub(crate) struct Word {
    /// Line, from 0.
    pub(crate) line: usize,
    /// Byte offset in the line.
    pub(crate) start: usize,
    /// The word.
    pub(crate) bytes: Vec<u8>,
}

impl Word {
    fn shown(&self) -> String {
        printable_bytes(&self.bytes)
    }
}

/// A directive, continuations joined, without its `#DW`.
pub(crate) struct Directive {
    /// First line, from 0.
    pub(crate) line: usize,
    /// The command and its arguments.
    pub(crate) words: Vec<Word>,
}

/// Keys of `jobdw`; the first three are required.
const JOBDW_KEYS: &[&str] =
    &["type", "capacity", "access_mode", "pool", "optimization_strategy", "max_mds", "pfs"];
const JOBDW_REQUIRED: usize = 3;

/// Keys of `stage_in` and `stage_out`; the first three are required.
const STAGE_KEYS: &[&str] = &["type", "source", "destination", "tolerate_errors"];
const STAGE_REQUIRED: usize = 3;

/// Commands of DataWarp and its relatives that this version's server does not offer.
const NOT_OFFERED_COMMANDS: &[(&str, &str)] = &[
    ("persistentdw", "persistent buffers are"),
    ("create_persistent", "persistent buffers are"),
    ("destroy_persistent", "persistent buffers are"),
    ("swap", "swap is"),
    ("copy_in", "copy_in (HPE Rabbit) is"),
    ("copy_out", "copy_out (HPE Rabbit) is"),
    ("tier_in", "tier_in (ClusterStor) is"),
    ("tier_out", "tier_out (ClusterStor) is"),
    ("container", "containers (HPE Rabbit) are"),
];

/// Keys of `jobdw` that exist elsewhere and are not offered here.
const NOT_OFFERED_KEYS: &[(&str, &str)] = &[
    ("modified_threshold", "is for a DataWarp cache"),
    ("read_ahead", "is for a DataWarp cache"),
    ("sync_on_close", "is for a DataWarp cache"),
    ("sync_to_pfs", "is for a DataWarp cache"),
    ("write_window_length", "is a limit on wear"),
    ("write_window_multiplier", "is a limit on wear"),
    ("name", "is HPE Rabbit's"),
    ("profile", "is HPE Rabbit's"),
    ("requires", "is HPE Rabbit's"),
];

/// True if the word is a command of DataWarp or a relative.
pub(crate) fn is_command(word: &[u8]) -> bool {
    matches!(word, b"jobdw" | b"stage_in" | b"stage_out")
        || NOT_OFFERED_COMMANDS.iter().any(|(name, _)| name.as_bytes() == word)
}

/// A value and where it stands.
struct Value<'d> {
    word: &'d Word,
    /// Offset of the value in the word.
    at: usize,
}

impl<'d> Value<'d> {
    fn bytes(&self) -> &'d [u8] {
        &self.word.bytes[self.at..]
    }
    fn shown(&self) -> String {
        printable_bytes(self.bytes())
    }
    fn refuse(&self, problems: &mut Problems<'_>, what: String, expected: impl Into<String>) {
        let start = self.word.start + self.at;
        problems.add(self.word.line, start, self.bytes().len().max(1), what, expected);
    }
}

/// Makes the request of all directives; `None` if something essential is missing.
pub(crate) fn interpret(
    directives: &[Directive],
    interpreter: Option<String>,
    notes: Vec<Note>,
    problems: &mut Problems<'_>,
) -> Option<JobRequest> {
    let mut request = JobRequest {
        interpreter,
        capacity_bytes: 0,
        access_modes: Vec::new(),
        pool: None,
        cache: None,
        stage_in: Vec::new(),
        stage_out: Vec::new(),
        notes,
    };
    let mut jobdw_seen = false;
    for directive in directives {
        let Some(command) = directive.words.first() else {
            let what = "the directive has no command";
            problems.add(directive.line, 0, 3, what, "jobdw, stage_in or stage_out");
            continue;
        };
        match command.bytes.as_slice() {
            b"jobdw" => {
                jobdw_seen = true;
                jobdw(directive, &mut request, problems);
            }
            b"stage_in" => stage(Direction::In, directive, &mut request, problems),
            b"stage_out" => stage(Direction::Out, directive, &mut request, problems),
            _ => unknown_command(command, problems),
        }
    }
    if directives.is_empty() && problems.is_empty() {
        problems.add(
            0,
            0,
            0,
            "the script has no #DW line in its leading comments, so it asks for no buffer",
            "#DW jobdw type=scratch capacity=SIZE access_mode=striped",
        );
    } else if !jobdw_seen && !directives.is_empty() {
        let first = &directives[0];
        let has_stage = !(request.stage_in.is_empty() && request.stage_out.is_empty());
        if has_stage || problems.is_empty() {
            let what = "there is no jobdw line, so there is no buffer to stage to or from";
            problems.add(first.line, 0, 3, what, "#DW jobdw ... before it");
        }
    } else if jobdw_seen && !request.access_modes.is_empty() {
        check_cache(directives, &request, problems);
        check_modes(directives, &request, problems);
        check_targets(directives, &request, problems);
    }
    (jobdw_seen && !request.access_modes.is_empty()).then_some(request)
}

fn unknown_command(command: &Word, problems: &mut Problems<'_>) {
    const EXPECTED: &str = "jobdw, stage_in or stage_out";
    let shown = command.shown();
    let len = command.bytes.len();
    let offered = NOT_OFFERED_COMMANDS.iter().find(|(name, _)| *name == shown);
    let what = match offered {
        Some((_, what)) => format!("{what} not offered by this version's server"),
        None => format!("unknown command {shown:?}"),
    };
    let expected = match closest(&shown, &["jobdw", "stage_in", "stage_out"]) {
        Some(near) if offered.is_none() => format!("{EXPECTED}; did you mean {near}?"),
        _ => EXPECTED.to_string(),
    };
    problems.add(command.line, command.start, len, what, expected);
}

/// Splits `key=value` words and checks keys against a command's table. The result is in the
/// table's order; `None` for a key that is not there.
fn keys<'d>(
    directive: &'d Directive,
    table: &[&str],
    required: usize,
    problems: &mut Problems<'_>,
) -> Vec<Option<Value<'d>>> {
    let mut values: Vec<Option<Value<'d>>> = table.iter().map(|_| None).collect();
    let command = &directive.words[0];
    // A word that was refused may be the one that seems to be missing: do not say both.
    let mut refused = false;
    for word in &directive.words[1..] {
        let equals = word.bytes.iter().position(|&b| b == b'=');
        let key = printable_bytes(&word.bytes[..equals.unwrap_or(word.bytes.len())]);
        let slot = table.iter().position(|name| *name == key);
        match (equals, slot) {
            (Some(_), Some(slot)) if values[slot].is_some() => {
                let what = format!("{key}= is given twice in one directive");
                let expected = "each key once".to_string();
                problems.add(word.line, word.start, word.bytes.len(), what, expected);
            }
            (Some(equals), Some(slot)) => values[slot] = Some(Value { word, at: equals + 1 }),
            (equals, slot) => {
                refused = true;
                refuse_word(word, &key, equals.is_some(), slot.is_some(), table, problems);
            }
        }
    }
    for (name, value) in table.iter().zip(&values).take(required) {
        if value.is_none() && !refused {
            let what = format!("{} has no {name}=", command.shown());
            let expected = format!("{name}= ({})", key_help(name, &command.bytes));
            problems.add(command.line, command.start, command.bytes.len(), what, expected);
        }
    }
    values
}

fn key_help(key: &str, command: &[u8]) -> &'static str {
    match (key, command) {
        ("type", b"jobdw") => "scratch or cache",
        ("type", _) => "file, directory or list",
        ("capacity", _) => "an integer and a unit, such as 100GiB",
        ("access_mode", _) => "striped, private or striped,private; of a cache also ldbalance",
        ("pfs", _) => "an absolute path on the parallel file system",
        ("source", b"stage_in") => "an absolute path on the parallel file system",
        ("source", _) => "$DW_JOB_STRIPED/PATH or $DW_JOB_PRIVATE/PATH",
        ("destination", b"stage_in") => "$DW_JOB_STRIPED/PATH or $DW_JOB_PRIVATE/PATH",
        _ => "an absolute path on the parallel file system",
    }
}

/// Says why a word is no argument of this command.
fn refuse_word(
    word: &Word,
    key: &str,
    has_equals: bool,
    known: bool,
    table: &[&str],
    problems: &mut Problems<'_>,
) {
    let expected = format!("one of {}", table.join("=, ") + "=");
    let (what, expected) = if !has_equals && known {
        (format!("{key} has no value"), format!("{key}=VALUE, without blanks around the ="))
    } else if !has_equals {
        (format!("{key:?} is not of the form key=value"), expected)
    } else if key.is_empty() {
        ("a value without a key".to_string(), "KEY=VALUE, without blanks around the =".to_string())
    } else if let (true, Some((_, why))) =
        (table == JOBDW_KEYS, NOT_OFFERED_KEYS.iter().find(|(name, _)| *name == key))
    {
        (format!("{key}= {why}, which this version's server does not offer"), expected)
    } else {
        let near = closest(key, table).map(|n| format!("; did you mean {n}=?"));
        (format!("unknown key {key:?}"), expected + &near.unwrap_or_default())
    };
    // With `=` the key alone is marked: it is what is wrong.
    let len = if has_equals { key.len().max(1) } else { word.bytes.len() };
    problems.add(word.line, word.start, len.min(word.bytes.len()), what, expected);
}

fn jobdw(directive: &Directive, request: &mut JobRequest, problems: &mut Problems<'_>) {
    let values = keys(directive, JOBDW_KEYS, JOBDW_REQUIRED, problems);
    let [kind, capacity, modes, pool, strategy, max_mds, pfs] = &values[..] else { return };
    let is_cache = kind.as_ref().is_some_and(|kind| check_type(kind, problems));
    match (is_cache, pfs) {
        (true, Some(pfs)) => match stage_path::pfs_side(pfs.bytes()) {
            Ok(path) => request.cache = Some(path),
            Err((what, expected)) => pfs.refuse(problems, what, expected),
        },
        (true, None) => {
            let (command, help) =
                (&directive.words[0], "pfs= (an absolute path on the parallel file system)");
            let what = "a cache has no pfs=".to_string();
            problems.add(command.line, command.start, command.bytes.len(), what, help);
        }
        (false, Some(pfs)) if kind.is_some() => {
            pfs.refuse(problems, "pfs= belongs to type=cache".into(), "type=cache, or no pfs=");
        }
        (false, _) => {}
    }
    if let Some(capacity) = capacity
        && let Some(bytes) = read_capacity(capacity, problems)
    {
        match request.capacity_bytes.checked_add(bytes).filter(|sum| *sum <= i64::MAX as u64) {
            Some(sum) => request.capacity_bytes = sum,
            None => capacity.refuse(
                problems,
                "the capacities of all jobdw lines add up to more than 2^63-1 bytes".into(),
                "less",
            ),
        }
    }
    if let Some(modes) = modes {
        read_modes(modes, is_cache, request, problems);
    }
    if let Some(pool) = pool {
        read_pool(pool, directive.line, request, problems);
    }
    if let Some(value) = strategy
        && one_of(value, &["bandwidth", "interference", "wear"], "a strategy", problems)
    {
        note(request, directive.line, "optimization_strategy= has no effect with one server");
    }
    if let Some(value) = max_mds
        && one_of(value, &["yes", "no"], "yes or no", problems)
    {
        note(request, directive.line, "max_mds= has no effect with one server");
    }
}

fn note(request: &mut JobRequest, line: usize, text: &str) {
    request.notes.push(Note { line: line as u32 + 1, text: text.to_string() });
}

/// Checks that a value is one of some words.
fn one_of(value: &Value<'_>, words: &[&str], what: &str, problems: &mut Problems<'_>) -> bool {
    let known = words.iter().any(|word| word.as_bytes() == value.bytes());
    if !known {
        let text = format!("{:?} is not {what}", value.shown());
        value.refuse(problems, text, words.join(" or "));
    }
    known
}

/// Checks the type of a buffer; true if it is a cache.
fn check_type(value: &Value<'_>, problems: &mut Problems<'_>) -> bool {
    let what = match value.bytes() {
        b"scratch" => return false,
        b"cache" => return true,
        b"swap" | b"log" => {
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

fn read_capacity(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<u64> {
    const EXPECTED: &str = "an integer and KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as 100GiB";
    let text = value.shown();
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let what = if !text.is_empty() && digits.is_empty() {
        // A bare number is bytes to Slurm, and hardly ever what is meant.
        format!("capacity={text} has no unit")
    } else if matches!(digits, "K" | "M" | "G" | "T" | "P") {
        format!("the unit {digits} can be read as {digits}iB or as {digits}B")
    } else if matches!(digits.to_ascii_lowercase().as_str(), "n" | "node" | "nodes") {
        "capacity by the node is not offered by this version's server".to_string()
    } else {
        match parse_bytes(&text) {
            Ok(0) => "the capacity is 0".to_string(),
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

fn read_modes(
    value: &Value<'_>,
    is_cache: bool,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    const EXPECTED: &str = "striped, private or striped,private";
    const OF_CACHE: &str = "one of striped, private and ldbalance";
    let mut offset = value.at;
    for part in value.bytes().split(|&b| b == b',') {
        let shown = printable_bytes(part);
        let mode = match part {
            b"striped" => Ok(AccessMode::Striped),
            b"private" => Ok(AccessMode::Private),
            b"ldbalance" if is_cache => Ok(AccessMode::Ldbalance),
            b"ldbalance" => Err("ldbalance belongs to type=cache".to_string()),
            _ if shown.contains(['(', ')']) => Err(format!(
                "{shown:?} sets limits in parentheses, which this version's server does not keep"
            )),
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
            Ok(mode) => request.access_modes.push(mode),
            Err(what) => {
                let (line, start) = (value.word.line, value.word.start + offset);
                let expected = if is_cache { OF_CACHE } else { EXPECTED };
                problems.add(line, start, part.len().max(1), what, expected);
            }
        }
        offset += part.len() + 1;
    }
    request.access_modes.sort();
}

fn read_pool(
    value: &Value<'_>,
    line: usize,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    let name = value.shown();
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(good) {
        let what = format!("{name:?} is not a pool's name");
        value.refuse(problems, what, "letters, digits, _ - .");
    } else if request.pool.as_ref().is_some_and(|pool| *pool != name) {
        let what = "two pools for one job".to_string();
        value.refuse(problems, what, "one pool: this version's buffer lies in one");
    } else {
        let text = format!("pool={name}: without a scheduler the flash directory is the pool");
        note(request, line, &text);
        request.pool = Some(name);
    }
}

fn stage(
    direction: Direction,
    directive: &Directive,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    let values = keys(directive, STAGE_KEYS, STAGE_REQUIRED, problems);
    let [kind, source, destination, tolerate] = &values[..] else { return };
    let kind = kind.as_ref().and_then(|value| read_kind(value, problems));
    let (buffer, pfs) = match direction {
        Direction::In => (destination, source),
        Direction::Out => (source, destination),
    };
    let buffer_side = buffer.as_ref().and_then(|value| {
        stage_path::buffer_side(value.bytes())
            .map_err(|(what, expected)| value.refuse(problems, what, expected))
            .ok()
    });
    let pfs_path = pfs.as_ref().and_then(|value| {
        stage_path::pfs_side(value.bytes())
            .map_err(|(what, expected)| value.refuse(problems, what, expected))
            .ok()
    });
    let tolerate_errors = match tolerate {
        Some(value) => {
            one_of(value, &["yes", "no"], "yes or no", problems) && value.bytes() == b"yes"
        }
        None => false,
    };
    let (Some(kind), Some((mode, buffer_path)), Some(pfs_path)) = (kind, buffer_side, pfs_path)
    else {
        return;
    };
    if kind == StageKind::File {
        for (value, path) in [(buffer, &buffer_path), (pfs, &pfs_path)] {
            refuse_directory_name(value.as_ref(), path, problems);
        }
    }
    let line = directive.line as u32 + 1;
    let stage = StageRequest { line, kind, mode, buffer_path, pfs_path, tolerate_errors };
    match direction {
        Direction::In => request.stage_in.push(stage),
        Direction::Out => request.stage_out.push(stage),
    }
}

fn read_kind(value: &Value<'_>, problems: &mut Problems<'_>) -> Option<StageKind> {
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

/// A file's path names a file on both sides: `type=file` does not put it into a directory.
fn refuse_directory_name(value: Option<&Value<'_>>, path: &PathBytes, problems: &mut Problems<'_>) {
    if let Some(value) = value
        && (path.as_bytes() == b"/" || value.bytes().ends_with(b"/"))
    {
        let what = "type=file, but the path names a directory".to_string();
        value.refuse(problems, what, "the file's own name at the end, or type=directory");
    }
}

/// The word of a key in the directive at `line` (from 1), for rules between lines.
fn key_word(directives: &[Directive], line: u32, key: &str) -> Option<(usize, usize, usize)> {
    let directive = directives.iter().find(|d| d.line as u32 + 1 == line)?;
    let prefix = format!("{key}=");
    let word = directive.words.iter().find(|w| w.bytes.starts_with(prefix.as_bytes()))?;
    Some((word.line, word.start + prefix.len(), word.bytes.len() - prefix.len()))
}

/// A cache is all that its job has: what is on the PFS is in it.
fn check_cache(directives: &[Directive], request: &JobRequest, problems: &mut Problems<'_>) {
    if request.cache.is_none() {
        return;
    }
    let is = |directive: &&Directive, command: &[u8]| {
        directive.words.first().is_some_and(|word| word.bytes == command)
    };
    let mut refuse = |directive: &Directive, what: &str, expected: &str| {
        let word = &directive.words[0];
        problems.add(word.line, word.start, word.bytes.len(), what, expected);
    };
    for second in directives.iter().filter(|d| is(d, b"jobdw")).skip(1) {
        refuse(second, "a job with a cache has no other buffer", "one jobdw line");
    }
    for stage in directives.iter().filter(|d| is(d, b"stage_in") || is(d, b"stage_out")) {
        let what = "a cache needs no staging: what is on the PFS is in it, and the other way round";
        refuse(stage, what, "no stage_in and no stage_out line");
    }
}

/// Every stage uses a namespace that a jobdw line offers.
fn check_modes(directives: &[Directive], request: &JobRequest, problems: &mut Problems<'_>) {
    let offered: Vec<String> =
        request.access_modes.iter().map(|m| format!("${}", m.variable())).collect();
    let both = [(&request.stage_in, "destination"), (&request.stage_out, "source")];
    for (stages, key) in both {
        for stage in stages.iter().filter(|s| !request.access_modes.contains(&s.mode)) {
            let Some((line, start, len)) = key_word(directives, stage.line, key) else { continue };
            let what = format!("no jobdw line asks for access_mode={}", stage.mode.word());
            problems.add(line, start, len, what, offered.join(" or "));
        }
    }
}

/// No two stages of type file write the same file: which one wins would be chance.
fn check_targets(directives: &[Directive], request: &JobRequest, problems: &mut Problems<'_>) {
    let mut seen = std::collections::HashMap::new();
    let ins = request.stage_in.iter().map(|s| (s, (Some(s.mode), s.buffer_path.clone())));
    let outs = request.stage_out.iter().map(|s| (s, (None, s.pfs_path.clone())));
    for (stage, target) in ins.chain(outs).filter(|(s, _)| s.kind == StageKind::File) {
        let Some(first) = seen.insert(target, stage.line) else { continue };
        if let Some((line, start, len)) = key_word(directives, stage.line, "destination") {
            let what = format!("line {first} already writes this file");
            problems.add(line, start, len, what, "another destination");
        }
    }
}

/// The known word nearest to a misspelled one, if it is near enough to be meant.
fn closest<'t>(word: &str, known: &[&'t str]) -> Option<&'t str> {
    /// Longer words are not compared: the distance is quadratic, and they are no slip.
    const MAX_COMPARED_CHARS: usize = 32;
    if word.chars().count() > MAX_COMPARED_CHARS {
        return None;
    }
    let (distance, name) = known.iter().map(|name| (edit_distance(word, name), *name)).min()?;
    (distance <= 2 && distance < name.len() / 2).then_some(name)
}

/// Levenshtein's distance, ignoring case.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(!from.eq_ignore_ascii_case(to));
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
