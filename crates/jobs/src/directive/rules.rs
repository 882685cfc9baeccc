//! The rules between the lines of a script: what one directive asks for, and another one needs or rules out.
//!
//! Invariant: nothing is changed here; each problem is told at the word that is to be changed. Called by [`super::interpret`]
//! when all lines are read.

use super::Directive;
use crate::problem::Problems;
use crate::request::{AccessMode, JobRequest, StageRequest};
use forebay_proto::control::StageKind;

/// A persistent buffer is named once by each kind of line, and stages name those that the job uses.
pub(super) fn check_persistent(
    directives: &[Directive],
    request: &JobRequest,
    problems: &mut Problems<'_>,
) {
    let uses: Vec<(u32, &str)> =
        request.persistent.iter().map(|one| (one.line, one.name.as_str())).collect();
    let made: Vec<(u32, &str)> =
        request.create_persistent.iter().map(|one| (one.line, one.name.as_str())).collect();
    let destroyed: Vec<(u32, &str)> =
        request.destroy_persistent.iter().map(|one| (one.line, one.name.as_str())).collect();
    for list in [&uses, &made, &destroyed] {
        for (at, (line, name)) in list.iter().enumerate() {
            let Some((first, _)) = list[..at].iter().find(|(_, other)| other == name) else {
                continue;
            };
            if let Some((line, start, len)) = key_word(directives, *line, "name") {
                let what = format!("line {first} already names {name}");
                problems.add(line, start, len, what, "each name once");
            }
        }
    }
    for (line, name) in &destroyed {
        let other = uses.iter().chain(&made).find(|(_, other)| other == name);
        if let (Some((other, _)), Some((line, start, len))) =
            (other, key_word(directives, *line, "name"))
        {
            let what = format!("line {other} needs the buffer that this line destroys");
            problems.add(line, start, len, what, "destroy it in a later job");
        }
    }
    let sides = [(&request.stage_in, "destination"), (&request.stage_out, "source")];
    for (stages, key) in sides {
        for stage in stages {
            let Some(name) = &stage.persistent else { continue };
            if uses.iter().all(|(_, used)| used != name)
                && let Some((line, start, len)) = key_word(directives, stage.line, key)
            {
                let what = format!("no line says #DW persistentdw name={name}");
                problems.add(line, start, len, what, format!("#DW persistentdw name={name}"));
            }
        }
    }
}

/// Under a scheduler input is copied before the nodes are known.
pub(super) fn check_private(
    directives: &[Directive],
    request: &JobRequest,
    problems: &mut Problems<'_>,
) {
    for stage in request.stage_in.iter().filter(|stage| stage.mode == AccessMode::Private) {
        if let Some((line, start, len)) = key_word(directives, stage.line, "destination") {
            let what = "under a scheduler input is staged before the job's nodes are known";
            problems.add(line, start, len, what, "$DW_JOB_STRIPED/PATH");
        }
    }
    let private = |stage: &&StageRequest| {
        stage.mode == AccessMode::Private && stage.kind != StageKind::Directory
    };
    for stage in request.stage_out.iter().filter(private) {
        if let Some((line, start, len)) = key_word(directives, stage.line, "type") {
            let what =
                "each node has its own $DW_JOB_PRIVATE: results go into a directory of its name";
            problems.add(line, start, len, what, "type=directory");
        }
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
pub(super) fn check_cache(
    directives: &[Directive],
    request: &JobRequest,
    problems: &mut Problems<'_>,
) {
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
pub(super) fn check_modes(
    directives: &[Directive],
    request: &JobRequest,
    problems: &mut Problems<'_>,
) {
    let offered: Vec<String> =
        request.access_modes.iter().map(|m| format!("${}", m.variable())).collect();
    let both = [(&request.stage_in, "destination"), (&request.stage_out, "source")];
    for (stages, key) in both {
        for stage in stages
            .iter()
            .filter(|s| s.persistent.is_none() && !request.access_modes.contains(&s.mode))
        {
            let Some((line, start, len)) = key_word(directives, stage.line, key) else { continue };
            let what = format!("no jobdw line asks for access_mode={}", stage.mode.word());
            let offered = match offered.is_empty() {
                true => "$DW_PERSISTENT_STRIPED_NAME/PATH".to_string(),
                false => offered.join(" or "),
            };
            problems.add(line, start, len, what, offered);
        }
    }
}

/// No two stages of type file write the same file: which one wins would be chance.
pub(super) fn check_targets(
    directives: &[Directive],
    request: &JobRequest,
    problems: &mut Problems<'_>,
) {
    let mut seen = std::collections::HashMap::new();
    let ins = request
        .stage_in
        .iter()
        .map(|s| (s, (Some((s.mode, s.persistent.clone())), s.buffer_path.clone())));
    let outs = request.stage_out.iter().map(|s| (s, (None, s.pfs_path.clone())));
    for (stage, target) in ins.chain(outs).filter(|(s, _)| s.kind == StageKind::File) {
        let Some(first) = seen.insert(target, stage.line) else { continue };
        if let Some((line, start, len)) = key_word(directives, stage.line, "destination") {
            let what = format!("line {first} already writes this file");
            problems.add(line, start, len, what, "another destination");
        }
    }
}
