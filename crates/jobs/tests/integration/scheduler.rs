//! Scripts as a scheduler's hooks read them: persistent buffers, and what differs from `forebay run`.

use forebay_jobs::request::{AccessMode, JobRequest};
use forebay_jobs::script::{Dialect, parse_for};

const JOBDW: &str = "#DW jobdw type=scratch capacity=1GiB access_mode=striped,private pool=fast";

fn read(lines: &[&str]) -> Result<JobRequest, String> {
    let script = format!("#!/bin/sh\n{}\ntrue\n", lines.join("\n"));
    parse_for(Dialect::Scheduler, "job.sh", script.as_bytes())
        .map_err(|refused| refused.to_string())
}

#[test]
fn swap_is_asked_for_by_the_node_with_or_without_a_buffer() {
    let job = read(&["#DW swap 3GiB"]).unwrap();
    assert_eq!((job.swap_bytes_per_node, job.capacity_bytes), (3 << 30, 0));
    assert!(job.access_modes.is_empty() && job.notes.is_empty());
    // As Slurm writes `--bb="swap=2 capacity=1GB access=striped type=scratch pool=fast"`.
    let job = read(&[
        "#DW swap 2GiB pool=fast",
        "#DW jobdw capacity=1GB access_mode=striped pool=fast type=scratch",
    ])
    .unwrap();
    assert_eq!((job.swap_bytes_per_node, job.capacity_bytes), (2 << 30, 1_000_000_000));
    assert!(job.notes[0].text.contains("flash of the job's nodes"), "{:?}", job.notes);
}

#[test]
fn persistent_buffers_are_made_used_and_destroyed() {
    let job = read(&[
        "#BB create_persistent name=alpha capacity=1TiB access=striped type=scratch pool=fast",
    ])
    .unwrap();
    let made = &job.create_persistent[0];
    assert_eq!((made.name.as_str(), made.capacity_bytes, made.line), ("alpha", 1 << 40, 2));
    assert!(job.access_modes.is_empty() && job.capacity_bytes == 0);
    let job = read(&[
        "#BB create_persistent name=beta capacity=1TiB access_mode=ldbalance type=cache pfs=/pfs/data",
    ])
    .unwrap();
    let made = &job.create_persistent[0];
    assert_eq!(made.cache.as_ref().unwrap().to_string(), "/pfs/data");
    assert_eq!(made.access, AccessMode::Ldbalance);
    let job = read(&["#BB destroy_persistent name=alpha hurry"]).unwrap();
    assert_eq!(job.destroy_persistent[0].name, "alpha");
    let job = read(&[
        "#DW persistentdw name=alpha",
        "#DW stage_in type=directory source=/pfs/in destination=$DW_PERSISTENT_STRIPED_alpha/in",
        JOBDW,
        "#DW stage_out type=file source=$DW_JOB_STRIPED/x destination=/pfs/x",
    ])
    .unwrap();
    assert_eq!(job.stage_in[0].persistent.as_deref(), Some("alpha"));
    assert_eq!(job.buffer_path(&job.stage_in[0]).to_string(), "/in");
    // The job's own buffer has a directory for each of its modes.
    assert_eq!(job.buffer_path(&job.stage_out[0]).to_string(), "/striped/x");
    assert_eq!(job.access_modes, [AccessMode::Striped, AccessMode::Private]);
    assert!(job.notes.is_empty(), "a pool is no matter of chance here: {:?}", job.notes);
}

#[test]
fn what_a_scheduler_cannot_do_is_refused_with_its_word() {
    let alpha = "#DW persistentdw name=alpha";
    for (lines, words) in [
        (
            vec!["#DW create_persistent name=a capacity=1GiB"],
            "create_persistent stands in a #BB line",
        ),
        (vec!["#BB persistentdw name=a"], "persistentdw stands in a #DW line"),
        (vec!["#BB create_persistent name=a"], "create_persistent has no capacity="),
        (
            vec!["#BB create_persistent name=7a capacity=1GiB"],
            "\"7a\" is no name of a persistent buffer",
        ),
        (vec!["#BB create_persistent name=a-b capacity=1GiB"], "\"a-b\" is no name"),
        (vec!["#BB create_persistent name=a capacity=1GiB type=cache"], "a cache has no pfs="),
        (
            vec!["#BB create_persistent name=a capacity=1GiB type=cache pfs=data"],
            "an absolute path",
        ),
        (vec!["#BB create_persistent name=a capacity=1GiB pfs=/p"], "pfs= belongs to type=cache"),
        (
            vec!["#BB create_persistent name=a capacity=1GiB type=scratch access=ldbalance"],
            "expected striped",
        ),
        (vec!["#BB create_persistent name=a capacity=1GB access_mode=private"], "expected striped"),
        (vec![alpha, alpha], "line 2 already names alpha"),
        (
            vec![alpha, "#BB destroy_persistent name=alpha"],
            "line 2 needs the buffer that this line destroys",
        ),
        (
            vec![
                JOBDW,
                "#DW stage_in type=file source=/p/a destination=$DW_PERSISTENT_STRIPED_b/a",
            ],
            "no line says #DW persistentdw name=b",
        ),
        (
            vec![alpha, "#DW stage_in type=file source=/p/a destination=$DW_JOB_STRIPED/a"],
            "no jobdw line asks for access_mode=striped",
        ),
        (
            vec![
                alpha,
                "#DW stage_in type=file source=/p/a destination=$DW_PERSISTENT_PRIVATE_alpha/a",
            ],
            "a persistent buffer is striped",
        ),
        (
            vec![JOBDW, "#DW stage_in type=file source=/p/a destination=$DW_JOB_PRIVATE/a"],
            "before the job's nodes are known",
        ),
        (
            vec![JOBDW, "#DW stage_out type=file source=$DW_JOB_PRIVATE/a destination=/p/a"],
            "each node has its own $DW_JOB_PRIVATE",
        ),
        (
            vec!["#DW persistentdw \\", "#BB name=alpha"],
            "a line of another kind continues the directive",
        ),
        (vec!["#DW persistent name=a"], "unknown command"),
        (vec!["#SBATCH -N 1"], "asks for no buffer"),
        (vec!["#DW swap"], "swap has no size"),
        (vec!["#DW swap pool=fast"], "swap has no size"),
        (vec!["#DW swap 3"], "swap 3 has no unit"),
        (vec!["#DW swap 0GiB"], "the size is 0"),
        (vec!["#DW swap 3GiB", "#DW swap 1GiB"], "two swap lines"),
        (vec!["#DW swap 3GiB speed=9"], "unknown key"),
        (
            vec![
                "#DW swap 3GiB",
                "#DW stage_in type=file source=/p/a destination=$DW_JOB_STRIPED/a",
            ],
            "no jobdw line asks for access_mode=striped",
        ),
    ] {
        let said = read(&lines).expect_err(words);
        assert!(said.contains(words), "{lines:?}: {said}");
    }
}
