//! What scripts mean: accepted forms, and properties over generated and arbitrary ones.

use forebay_jobs::request::{AccessMode, JobRequest};
use forebay_jobs::script::parse;
use forebay_proto::control::StageKind;
use forebay_proto::layout::Logs;
use proptest::prelude::*;

fn job(script: &str) -> JobRequest {
    parse("job.sh", script.as_bytes()).unwrap_or_else(|refused| panic!("{refused}"))
}

const JOBDW_SCRIPT: &str = "#!/bin/sh\n#DW jobdw type=scratch capacity=1GiB access_mode=striped\n";
const JOBDW: &str = "#DW jobdw type=scratch capacity=1GiB access_mode=striped\n";

#[test]
fn a_datawarp_script_is_understood() {
    let job = job("#!/bin/bash -l\n#SBATCH -N 2\n# prose about #DW lines\n##DW jobdw off\n\n\
        #DW  jobdw\tcapacity=10GB   access_mode=striped \\\n\
        #DW    type=scratch pool=wlm_pool\n\
        #DW stage_in type=directory source=/pfs/in/ destination=$DW_JOB_STRIPED\n\
        #DW stage_in type=list source=/pfs/list destination=$DW_JOB_STRIPED/l tolerate_errors=yes\n\
        #DW stage_out type=file source=$DW_JOB_STRIPED//a/./b destination=/pfs/out/b\n\
        \nsrun app\n cat <<E\n #DW not one\nE\n");
    assert_eq!(job.interpreter.as_deref(), Some("/bin/bash -l"));
    assert_eq!(job.capacity_bytes, 10_000_000_000);
    assert_eq!(job.access_modes, [AccessMode::Striped]);
    assert_eq!(job.pool.as_deref(), Some("wlm_pool"));
    assert_eq!(job.stage_in[0].pfs_path.as_bytes(), b"/pfs/in");
    assert_eq!(job.stage_in[0].buffer_path.as_bytes(), b"/");
    assert_eq!(job.stage_in[1].kind, StageKind::List);
    assert!(job.stage_in[1].tolerate_errors && !job.stage_in[0].tolerate_errors);
    assert_eq!(job.stage_out[0].buffer_path.as_bytes(), b"/a/b");
    assert_eq!(job.stage_out[0].line, 10);
}

#[test]
fn a_cache_is_understood() {
    let job =
        job("#!/bin/sh\n#DW jobdw type=cache pfs=/pfs/me capacity=1GiB access_mode=ldbalance\n");
    assert_eq!(job.cache.as_ref().map(|pfs| pfs.as_bytes()), Some(&b"/pfs/me"[..]));
    assert_eq!(job.access_modes, [AccessMode::Ldbalance]);
    assert_eq!(job.variable(AccessMode::Ldbalance), "DW_JOB_LDBAL_CACHE");
    assert_eq!(job.variable(AccessMode::Striped), "DW_JOB_STRIPED_CACHE");
}

#[test]
fn a_buffer_in_logs_is_understood_and_is_scratch() {
    let line =
        |rest: &str| format!("#!/bin/sh\n#DW jobdw capacity=1GiB access_mode=striped {rest}\n");
    let logs = |rest: &str| job(&line(rest)).log;
    assert_eq!(logs("type=scratch layout=log"), Logs::Commit);
    assert_eq!(logs("type=scratch layout=log consistency=commit"), Logs::Commit);
    assert_eq!(logs("type=scratch layout=log consistency=strict"), Logs::Strict);
    assert!(logs("type=scratch layout=plain").is_off() && job(JOBDW_SCRIPT).log.is_off());
    let refused = |rest: &str| parse("job.sh", line(rest).as_bytes()).unwrap_err().to_string();
    let said = refused("type=cache pfs=/pfs/me layout=log");
    assert!(said.contains("layout= belongs to type=scratch"), "{said}");
    let said = refused("type=scratch layout=sideways");
    assert!(said.contains("is not a layout"), "{said}");
    let said = refused("type=scratch consistency=strict");
    assert!(said.contains("belongs to layout=log"), "{said}");
    let said = refused("type=log");
    assert!(said.contains("type=scratch layout=log"), "{said}");
}

#[test]
fn the_preload_library_is_for_scratch_buffers() {
    let line =
        |rest: &str| format!("#!/bin/sh\n#DW jobdw capacity=1GiB access_mode=striped {rest}\n");
    let asked = |rest: &str| job(&line(rest)).preload;
    assert!(asked("type=scratch preload=yes"));
    assert!(!asked("type=scratch preload=no") && !asked("type=scratch"));
    let refused = |rest: &str| parse("job.sh", line(rest).as_bytes()).unwrap_err().to_string();
    let said = refused("type=cache pfs=/pfs/me preload=yes");
    assert!(said.contains("preload= belongs to type=scratch"), "{said}");
    let said = refused("type=scratch preload=maybe");
    assert!(said.contains("expected yes or no"), "{said}");
}

#[test]
fn capacities_of_two_jobdw_lines_add_and_share_one_buffer() {
    let job = job("#!/bin/sh\n#DW jobdw type=scratch capacity=1GiB access_mode=private\n\
        #DW jobdw type=scratch capacity=512MiB access_mode=striped\n\
        #DW stage_in type=directory source=/p destination=$DW_JOB_PRIVATE\n\
        #DW stage_out type=file source=$DW_JOB_STRIPED/x destination=/p/x\ntrue\n");
    assert_eq!(job.capacity_bytes, 1536 << 20);
    assert_eq!(job.access_modes, [AccessMode::Striped, AccessMode::Private]);
    assert_eq!(job.buffer_path(&job.stage_in[0]).as_bytes(), b"/private");
    assert_eq!(job.buffer_path(&job.stage_out[0]).as_bytes(), b"/striped/x");
}

#[test]
fn one_mode_alone_has_the_whole_mount() {
    let job = job(&format!(
        "#!/bin/sh\n{JOBDW}#DW stage_out type=file source=$DW_JOB_STRIPED/x destination=/p/x\n"
    ));
    assert_eq!(job.buffer_path(&job.stage_out[0]).as_bytes(), b"/x");
}

#[test]
fn a_missing_interpreter_is_noted() {
    let job = job(&format!("# no shebang\n{JOBDW}true\n"));
    assert_eq!(job.interpreter, None);
    assert!(job.notes[0].text.contains("/bin/sh"), "{:?}", job.notes);
}

#[test]
fn the_body_may_hold_any_bytes_and_paths_any_encoding() {
    let mut script = b"#!/bin/sh\n".to_vec();
    script.extend_from_slice(JOBDW.as_bytes());
    script.extend_from_slice(
        b"#DW stage_in type=file source=/p/\xe9t\xe9 destination=$DW_JOB_STRIPED/\xff\n",
    );
    script.extend_from_slice(b"echo \xff\xfe\x00\r\n\0");
    let job = parse("job.sh", &script).unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!(job.stage_in[0].pfs_path.as_bytes(), b"/p/\xe9t\xe9");
    assert_eq!(job.stage_in[0].buffer_path.as_bytes(), b"/\xff");
}

#[test]
fn a_comment_that_only_mentions_dw_is_no_directive() {
    job(&format!(
        "#!/bin/sh\n# DW jobdw is what we use\n#dw is our cluster\n#DW\u{20}{}",
        &JOBDW[4..]
    ));
}

/// A name that a path may have in a directive.
fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_+=,:@.-]{1,20}".prop_filter("no dots alone", |n| n != "." && n != "..")
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(name(), 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

/// Words of a directive joined by blanks, tabs or continuations.
fn joined(words: Vec<String>, seams: &[u8]) -> String {
    let mut text = String::from("#DW ");
    for (index, word) in words.iter().enumerate() {
        text.push_str(word);
        if index + 1 < words.len() {
            text.push_str(match seams.get(index).copied().unwrap_or(0) % 3 {
                0 => " ",
                1 => "\t  ",
                _ => " \\\n#DW ",
            });
        }
    }
    text + "\n"
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(script in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Err(refused) = parse("x", &script) {
            prop_assert!(!refused.problems.is_empty());
            let text = refused.to_string();
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }

    #[test]
    fn arbitrary_directives_never_panic(
        lines in prop::collection::vec("#DW (jobdw|stage_in|stage_out|[a-z]{0,4})( (type|source|destination|capacity|access_mode)?=?(\\$DW_JOB_STRIPED|scratch|file|striped|1GiB|/|,|\\.\\.|\\PC){0,6}){0,5}[ \\\\\r]{0,2}", 0..6)
    ) {
        let script = format!("#!/bin/sh\n{}\n", lines.join("\n"));
        if let Err(refused) = parse("x", script.as_bytes()) {
            for problem in &refused.problems {
                let line = script.lines().nth(problem.line as usize - 1).unwrap_or("");
                prop_assert!(problem.column as usize <= line.chars().count() + 1);
            }
        }
    }

    #[test]
    fn every_valid_script_is_taken_with_its_meaning(
        mebibytes in 1u64..1_000_000,
        private in any::<bool>(),
        stages in prop::collection::vec((any::<bool>(), 0usize..3, path(), path(), any::<bool>()), 0..6),
        order in any::<u64>(),
        seams in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mode = if private { "private" } else { "striped" };
        let variable = if private { "$DW_JOB_PRIVATE" } else { "$DW_JOB_STRIPED" };
        let rotate = |mut words: Vec<String>| {
            let len = words.len() - 1;
            words[1..].rotate_left(order as usize % len);
            words
        };
        let mut script = String::from("#!/bin/sh\n");
        script += &joined(rotate(vec![
            "jobdw".into(), "type=scratch".into(),
            format!("capacity={mebibytes}MiB"), format!("access_mode={mode}"),
        ]), &seams);
        let kinds = ["file", "directory", "list"];
        for (index, (inward, kind, pfs, buffer, tolerate)) in stages.iter().enumerate() {
            // The index keeps targets of type=file apart.
            let (pfs, buffer) = (format!("{pfs}{index}"), format!("{variable}{buffer}{index}"));
            let (command, source, destination) =
                if *inward { ("stage_in", pfs, buffer) } else { ("stage_out", buffer, pfs) };
            let mut words = vec![
                command.to_string(), format!("type={}", kinds[*kind]),
                format!("source={source}"), format!("destination={destination}"),
            ];
            if *tolerate { words.push("tolerate_errors=yes".into()); }
            script += &joined(rotate(words), &seams);
        }
        script += "true\n";
        let job = parse("job.sh", script.as_bytes())
            .map_err(|refused| TestCaseError::fail(format!("{refused}\n{script}")))?;
        prop_assert_eq!(job.capacity_bytes, mebibytes << 20);
        let expected: Vec<bool> = stages.iter().map(|s| s.4).collect();
        let inward = job.stage_in.iter().map(|s| (s.line, s.tolerate_errors));
        let mut found: Vec<_> =
            inward.chain(job.stage_out.iter().map(|s| (s.line, s.tolerate_errors))).collect();
        found.sort();
        prop_assert_eq!(found.into_iter().map(|(_, t)| t).collect::<Vec<_>>(), expected);
    }
}
