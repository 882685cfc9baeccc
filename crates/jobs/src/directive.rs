//! What a directive means: commands, their keys, and the rules between lines.
//!
//! Tables first: a command lists the keys it takes; words of other DataWarp-like systems are
//! known by name, so that a user who has a script for one of them is told what is not offered
//! here, not that it is a typing error. Called by [`crate::script`].
//!
//! | module | what it does |
//! | --- | --- |
//! | `values` | the values of keys |
//! | `rules` | the rules between lines |

mod rules;
mod values;

use crate::problem::{Problems, printable_bytes};
use crate::request::{
    AccessMode, Dialect, FileLimits, JobRequest, Note, PersistentCreate, PersistentUse,
    StageRequest,
};
use crate::stage_path::{self, NO_PERSISTENT};
use forebay_proto::control::{Direction, PathBytes, StageKind};
use forebay_proto::layout::Logs;
use rules::{check_cache, check_modes, check_persistent, check_private, check_targets};
use values::{
    check_type, read_capacity, read_kind, read_layout, read_modes, read_name, read_pfs, read_pool,
    read_pool_name, read_preload, read_size,
};

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

    fn copy(&self) -> Word {
        Word { line: self.line, start: self.start, bytes: self.bytes.clone() }
    }
}

/// A directive, continuations joined, without its `#DW`.
pub(crate) struct Directive {
    /// First line, from 0.
    pub(crate) line: usize,
    /// It is a `#BB` line.
    pub(crate) is_bb: bool,
    /// The command and its arguments.
    pub(crate) words: Vec<Word>,
}

/// Keys of `jobdw`; the first three are required.
const JOBDW_KEYS: &[&str] = &[
    "type",
    "capacity",
    "access_mode",
    "pool",
    "optimization_strategy",
    "max_mds",
    "pfs",
    "layout",
    "consistency",
    "preload",
];
const JOBDW_REQUIRED: usize = 3;

/// Keys of `stage_in` and `stage_out`; the first three are required.
const STAGE_KEYS: &[&str] = &["type", "source", "destination", "tolerate_errors"];
const STAGE_REQUIRED: usize = 3;

/// Commands of DataWarp and its relatives that this version's server does not offer.
const NOT_OFFERED_COMMANDS: &[(&str, &str)] = &[
    ("copy_in", "copy_in (HPE Rabbit) is"),
    ("copy_out", "copy_out (HPE Rabbit) is"),
    ("tier_in", "tier_in (ClusterStor) is"),
    ("tier_out", "tier_out (ClusterStor) is"),
    ("container", "containers (HPE Rabbit) are"),
];

/// Commands about persistent buffers, which a scheduler counts.
const PERSISTENT_COMMANDS: &[&str] = &["persistentdw", "create_persistent", "destroy_persistent"];

/// Keys of `#BB create_persistent`; the first two are required. `access` is another word for `access_mode`.
const CREATE_KEYS: &[&str] = &["name", "capacity", "access_mode", "access", "type", "pool", "pfs"];
const CREATE_REQUIRED: usize = 2;

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
    matches!(word, b"jobdw" | b"stage_in" | b"stage_out" | b"swap")
        || PERSISTENT_COMMANDS.iter().any(|name| name.as_bytes() == word)
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

/// A request of which no directive was read yet.
fn nothing_asked(interpreter: Option<String>, notes: Vec<Note>) -> JobRequest {
    JobRequest {
        interpreter,
        capacity_bytes: 0,
        access_modes: Vec::new(),
        limits: FileLimits::default(),
        swap_bytes_per_node: 0,
        pool: None,
        cache: None,
        log: Logs::Off,
        preload: false,
        persistent: Vec::new(),
        create_persistent: Vec::new(),
        destroy_persistent: Vec::new(),
        stage_in: Vec::new(),
        stage_out: Vec::new(),
        notes,
    }
}

/// Reads a directive into the request. True if it is a `jobdw`.
fn read(
    dialect: Dialect,
    directive: &Directive,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) -> bool {
    let Some(command) = directive.words.first() else {
        let what = "the directive has no command";
        problems.add(directive.line, 0, 3, what, commands(dialect, directive.is_bb));
        return false;
    };
    match (directive.is_bb, command.bytes.as_slice()) {
        (false, b"jobdw") => {
            jobdw(dialect, directive, request, problems);
            return true;
        }
        (false, b"stage_in") => stage(dialect, Direction::In, directive, request, problems),
        (false, b"stage_out") => stage(dialect, Direction::Out, directive, request, problems),
        (false, b"persistentdw") if dialect == Dialect::Scheduler => {
            request.persistent.extend(persistent(directive, &["name"], problems));
        }
        (false, b"swap") if dialect == Dialect::Scheduler => swap(directive, request, problems),
        (true, b"create_persistent") => create_persistent(directive, request, problems),
        (true, b"destroy_persistent") => {
            request.destroy_persistent.extend(persistent(directive, &["name"], problems));
        }
        _ => unknown_command(dialect, directive.is_bb, command, problems),
    }
    false
}

/// Makes the request of all directives; `None` if something essential is missing.
pub(crate) fn interpret(
    dialect: Dialect,
    directives: &[Directive],
    interpreter: Option<String>,
    notes: Vec<Note>,
    problems: &mut Problems<'_>,
) -> Option<JobRequest> {
    let mut request = nothing_asked(interpreter, notes);
    let mut jobdw_seen = false;
    for directive in directives {
        jobdw_seen |= read(dialect, directive, &mut request, problems);
    }
    let without_own_buffer = dialect == Dialect::Scheduler
        && !jobdw_seen
        && !(request.persistent.is_empty()
            && request.create_persistent.is_empty()
            && request.destroy_persistent.is_empty()
            && request.swap_bytes_per_node == 0);
    if without_own_buffer {
        check_modes(directives, &request, problems);
        check_targets(directives, &request, problems);
        check_persistent(directives, &request, problems);
        return Some(request);
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
        check_persistent(directives, &request, problems);
        if dialect == Dialect::Scheduler {
            check_private(directives, &request, problems);
        }
    }
    (jobdw_seen && !request.access_modes.is_empty()).then_some(request)
}

/// The commands that there are.
fn commands(dialect: Dialect, is_bb: bool) -> &'static str {
    match (dialect, is_bb) {
        (_, true) => "create_persistent or destroy_persistent",
        (Dialect::Run, _) => "jobdw, stage_in or stage_out",
        (Dialect::Scheduler, _) => "jobdw, persistentdw, swap, stage_in or stage_out",
    }
}

fn unknown_command(dialect: Dialect, is_bb: bool, command: &Word, problems: &mut Problems<'_>) {
    let expected = commands(dialect, is_bb);
    let shown = command.shown();
    let len = command.bytes.len();
    if PERSISTENT_COMMANDS.contains(&shown.as_str()) {
        let what = match (dialect, is_bb) {
            (Dialect::Run, _) => NO_PERSISTENT.to_string(),
            (Dialect::Scheduler, true) => format!("{shown} stands in a #DW line"),
            (Dialect::Scheduler, false) => format!("{shown} stands in a #BB line"),
        };
        problems.add(command.line, command.start, len, what, expected);
        return;
    }
    if shown == "swap" && dialect == Dialect::Run {
        let what = "swap needs a scheduler, and agents on its nodes";
        problems.add(command.line, command.start, len, what, expected);
        return;
    }
    let offered = NOT_OFFERED_COMMANDS.iter().find(|(name, _)| *name == shown);
    let what = match offered {
        Some((_, what)) => format!("{what} not offered by this version's server"),
        None => format!("unknown command {shown:?}"),
    };
    let known: &[&str] = match (dialect, is_bb) {
        (_, true) => &["create_persistent", "destroy_persistent"],
        (Dialect::Run, _) => &["jobdw", "stage_in", "stage_out"],
        (Dialect::Scheduler, _) => &["jobdw", "persistentdw", "swap", "stage_in", "stage_out"],
    };
    let expected = match closest(&shown, known) {
        Some(near) if offered.is_none() => format!("{expected}; did you mean {near}?"),
        _ => expected.to_string(),
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
        ("name", _) => "letters, digits and _, not beginning with a digit",
        ("type", b"jobdw") => "scratch or cache",
        ("type", _) => "file, directory or list",
        ("capacity", _) => "an integer and a unit, such as 100GiB",
        ("access_mode", _) => "striped, private or striped,private; of a cache also ldbalance",
        ("layout", _) => "plain or log",
        ("consistency", _) => "commit or strict",
        ("preload", _) => "yes or no",
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

/// `persistentdw` and `destroy_persistent`.
fn persistent(
    directive: &Directive,
    table: &[&str],
    problems: &mut Problems<'_>,
) -> Option<PersistentUse> {
    // Slurm reads the word by itself.
    let words = directive.words.iter().filter(|word| word.bytes != b"hurry" || !directive.is_bb);
    let plain = Directive {
        line: directive.line,
        is_bb: directive.is_bb,
        words: words.map(Word::copy).collect(),
    };
    let values = keys(&plain, table, 1, problems);
    let name = read_name(values.first()?.as_ref()?, problems)?;
    Some(PersistentUse { line: directive.line as u32 + 1, name })
}

fn create_persistent(directive: &Directive, request: &mut JobRequest, problems: &mut Problems<'_>) {
    let values = keys(directive, CREATE_KEYS, CREATE_REQUIRED, problems);
    let [name, capacity, mode, access, kind, pool, pfs] = &values[..] else { return };
    if let Some(kind) = kind {
        one_of(kind, &["scratch", "cache"], "a type of persistent buffer", problems);
    }
    let is_cache = kind.as_ref().is_some_and(|kind| kind.bytes() == b"cache");
    let modes: &[&str] = if is_cache { &["striped", "ldbalance"] } else { &["striped"] };
    let mut shared = AccessMode::Striped;
    for mode in [mode, access].into_iter().flatten() {
        one_of(mode, modes, "an access mode of a persistent buffer", problems);
        if mode.bytes() == b"ldbalance" {
            shared = AccessMode::Ldbalance;
        }
    }
    let cache = read_pfs(directive, is_cache, kind.is_some(), pfs.as_ref(), problems);
    let pool = pool.as_ref().and_then(|pool| read_pool_name(pool, problems));
    let name = name.as_ref().and_then(|name| read_name(name, problems));
    let capacity_bytes = capacity.as_ref().and_then(|value| read_capacity(value, problems));
    if let (Some(name), Some(capacity_bytes)) = (name, capacity_bytes) {
        let line = directive.line as u32 + 1;
        let made = PersistentCreate { line, name, capacity_bytes, pool, cache, access: shared };
        request.create_persistent.push(made);
    }
}

/// `swap SIZE [pool=NAME]`: space for each node, which lies on the node's own flash.
fn swap(directive: &Directive, request: &mut JobRequest, problems: &mut Problems<'_>) {
    let command = &directive.words[0];
    let size = directive.words.get(1).filter(|word| !word.bytes.contains(&b'='));
    let Some(size) = size else {
        let help = "swap SIZE, of each node, such as 3GiB";
        problems.add(command.line, command.start, command.bytes.len(), "swap has no size", help);
        return;
    };
    let words = std::iter::once(command).chain(&directive.words[2..]);
    let keyed = Directive {
        line: directive.line,
        is_bb: directive.is_bb,
        words: words.map(Word::copy).collect(),
    };
    if let [Some(pool)] = &keys(&keyed, &["pool"], 0, problems)[..]
        && read_pool_name(pool, problems).is_some()
    {
        note(
            request,
            directive.line,
            "pool= has no effect: swap lies on the flash of the job's nodes",
        );
    }
    let value = Value { word: size, at: 0 };
    let Some(bytes) = read_size(&value, "swap ", problems) else { return };
    if request.swap_bytes_per_node > 0 {
        value.refuse(problems, "two swap lines in one script".into(), "one swap line");
    }
    request.swap_bytes_per_node = bytes;
}

fn jobdw(
    dialect: Dialect,
    directive: &Directive,
    request: &mut JobRequest,
    problems: &mut Problems<'_>,
) {
    let values = keys(directive, JOBDW_KEYS, JOBDW_REQUIRED, problems);
    let [kind, capacity, modes, pool, strategy, max_mds, pfs, layout, consistency, preload] =
        &values[..]
    else {
        return;
    };
    let is_cache = kind.as_ref().is_some_and(|kind| check_type(kind, problems));
    if let Some(path) = read_pfs(directive, is_cache, kind.is_some(), pfs.as_ref(), problems) {
        request.cache = Some(path);
    }
    read_layout(is_cache, [layout.as_ref(), consistency.as_ref()], request, problems);
    read_preload(dialect, (directive.line, is_cache), preload.as_ref(), request, problems);
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
        read_pool(dialect, pool, directive.line, request, problems);
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

fn stage(
    dialect: Dialect,
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
        stage_path::buffer_side(value.bytes(), dialect)
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
    let (Some(kind), Some(side), Some(pfs_path)) = (kind, buffer_side, pfs_path) else { return };
    let (mode, persistent, buffer_path) = (side.mode, side.persistent, side.path);
    if kind == StageKind::File {
        for (value, path) in [(buffer, &buffer_path), (pfs, &pfs_path)] {
            refuse_directory_name(value.as_ref(), path, problems);
        }
    }
    let line = directive.line as u32 + 1;
    let stage =
        StageRequest { line, kind, mode, persistent, buffer_path, pfs_path, tolerate_errors };
    match direction {
        Direction::In => request.stage_in.push(stage),
        Direction::Out => request.stage_out.push(stage),
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
