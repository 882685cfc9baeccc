//! `burst_buffer.lua` by itself, in the interpreter that Slurm has, with a program of the test's in the place of ours:
//! what its functions pass on, and what they take for success. Arguments are those of Slurm 22.05 and of later versions.

use super::cluster::repository;
use forebay_tests::procs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// What calls of functions return, a line each: the code, and what is said.
fn results(program: &str, calls: &[&str]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("it's a program");
    fs::write(&path, format!("#!/bin/bash\n{program}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let text = fs::read_to_string(repository("packaging/slurm/burst_buffer.lua")).unwrap();
    let mut script = String::from("slurm = { log_error = function() end }\n");
    script += &text.replace("@LIBEXEC@", "/no/such/place");
    for call in calls {
        script += &format!(
            "\ndo local code, said = {call}\nprint(tostring(code) .. ' ' .. tostring(said):gsub('\\n', '|')) end"
        );
    }
    let lua = dir.path().join("test.lua");
    fs::write(&lua, script).unwrap();
    let mut command = Command::new("lua5.1");
    command.arg(&lua).env("FOREBAY_DW_WLM_CLI", &path).env("FOREBAY_DWSTAT", &path);
    procs::run(&mut command).lines().map(str::to_string).collect()
}

/// Shows its words.
const SHOW: &str = r#"printf '%s,' "$@""#;

#[test]
fn arguments_of_all_versions_of_slurm_are_passed_on() {
    let said = results(
        SHOW,
        &[
            "slurm_bb_job_process('/s', 1, 2, {})",
            "slurm_bb_setup('7', '1', '2', 'flash', '64', \"/a script's\", {})",
            "slurm_bb_data_in('7', '/s', 1, 2, {})",
            "slurm_bb_pre_run('7', '/s')",
            "slurm_bb_pre_run('7', '/s', 1, 2, { nodes = 'n[1-2]' })",
            "slurm_bb_job_teardown('7', '/s', 'true', 1, 2)",
            "slurm_bb_job_teardown('7', '/s', 'false')",
            "slurm_bb_test_data_in('7', '/s', 1, 2, {})",
            "slurm_bb_test_data_out('7', '/s', 1, 2, {})",
            "slurm_bb_get_status('1', '2', 'sessions')",
            "slurm_bb_get_status('pools')",
        ],
    );
    assert_eq!(
        said,
        [
            "0 --function,job_process,--job,/s,",
            "0 --function,setup,--token,7,--caller,SLURM,--user,1,--groupid,2,--capacity,flash:64,--job,/a script's,",
            "0 --function,data_in,--token,7,--job,/s,",
            "0 --function,pre_run,--token,7,--job,/s,",
            "0 --function,pre_run,--token,7,--job,/s,--nodes,n[1-2],",
            "0 --function,teardown,--token,7,--job,/s,--hurry,",
            "0 --function,teardown,--token,7,--job,/s,",
            "0 ",
            "0 ",
            "0 sessions,|",
            "0 pools,|",
        ]
    );
}

/// Slurm takes none of the functions if one that it wants is missing: eleven in 22.05, two more from 24.05 on.
#[test]
fn every_function_that_any_version_of_slurm_calls_is_there() {
    let names = [
        "pools",
        "job_process",
        "setup",
        "data_in",
        "test_data_in",
        "real_size",
        "paths",
        "pre_run",
        "post_run",
        "data_out",
        "test_data_out",
        "job_teardown",
        "get_status",
    ];
    let calls = names.map(|name| format!("type(slurm_bb_{name})"));
    let said = results("exit 1", &calls.each_ref().map(String::as_str));
    assert_eq!(said, names.map(|_| "function nil"));
}

#[test]
fn only_a_program_that_ended_well_by_itself_has_done_its_step() {
    let step = ["slurm_bb_data_out('7', '/s')"];
    for (program, result) in [
        ("exit 0", "0 "),
        ("echo why; exit 1", "1 why"),
        // Codes above 1, which Slurm takes modulo 256.
        ("echo why; exit 255", "1 why"),
        ("kill -9 $$", "1 it ended with status 137"),
        // Slurm kills the shell with the program.
        ("kill -9 $PPID; sleep 0.1", "1 it was ended before it was done"),
        ("kill -15 $PPID; sleep 0.1", "1 it was ended before it was done"),
        // Nobody may say by its text that it ended well.
        ("echo forebay_exit_status=0; exit 1", "1 forebay_exit_status=0"),
        ("echo token not found; exit 1", "0 "),
        ("echo No matching session; exit 1", "0 "),
    ] {
        assert_eq!(results(program, &step), [result], "{program}");
    }
    let setup = ["slurm_bb_setup('7', '1', '2', 'p', '64', '/s')"];
    assert_eq!(results("echo token not found; exit 1", &setup), ["1 token not found"]);
    let size = ["slurm_bb_real_size('7')"];
    assert_eq!(results(r#"echo '{"units":"bytes","capacity":67108864}'"#, &size), ["0 67108864"]);
    assert_eq!(results("echo nonsense", &size), ["1 the size of the buffer is not known"]);
    assert_eq!(results("exit 0", &["slurm_bb_pools()"]), ["0 "]);
}
