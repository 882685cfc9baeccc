//! The text of every refusal, as the user sees it.

use forebay_jobs::script::parse;

const JOBDW: &str = "#DW jobdw type=scratch capacity=1GiB access_mode=striped";

/// Everything that is said about a script made of these lines after `#!/bin/sh`.
fn refusal(lines: &[&str]) -> String {
    refusal_of(format!("#!/bin/sh\n{}\ntrue\n", lines.join("\n")).as_bytes())
}

fn refusal_of(script: &[u8]) -> String {
    parse("job.sh", script).expect_err("this script is to be refused").to_string()
}

/// Refusals of several scripts, one after another.
fn refusals(scripts: &[&[&str]]) -> String {
    scripts.iter().map(|lines| refusal(lines)).collect::<Vec<_>>().join("----\n")
}

#[test]
fn keys_and_values_of_jobdw() {
    insta::assert_snapshot!(refusals(&[
        &["#DW jobdw capcity=1GiB type=scratch access_mode=striped"],
        &["#DW jobdw type=scratch capacity=1GiB capacity=2GiB access_mode=striped"],
        &["#DW jobdw type=scratch"],
        &["#DW jobdw type=scratch capacity=10 access_mode=striped"],
        &["#DW jobdw type=scratch capacity=10G access_mode=striped"],
        &["#DW jobdw type=scratch capacity=3XB access_mode=striped"],
        &["#DW jobdw type=scratch capacity=0GiB access_mode=striped"],
        &["#DW jobdw type=scratch capacity=-1GiB access_mode=striped"],
        &["#DW jobdw type=scratch capacity=1.5TiB access_mode=striped"],
        &["#DW jobdw type=scratch capacity=99999999TiB access_mode=striped"],
        &["#DW jobdw type=scratch capacity=2nodes access_mode=striped"],
        &["#DW jobdw type=scratch capacity= access_mode=striped"],
        &["#DW jobdw type=scratch capacity = 1GiB access_mode=striped"],
        &["#DW jobdw type=fast capacity=1GiB access_mode=striped"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=stripped"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped,striped"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped, private"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped pool=a/b"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped max_mds=maybe"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped optimization_strategy=luck"],
    ]));
}

#[test]
fn what_is_not_offered_is_named() {
    insta::assert_snapshot!(refusals(&[
        &["#DW persistentdw name=alpha"],
        &["#DW swap 3GiB"],
        &["#DW jobdw type=lustre capacity=1GiB name=x"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=ldbalance"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped(MFS=1GiB"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped(MFC=7)"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped(MFS=1G)"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=private(MFS=1GiB,MCF=7)"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped(MFS=1GiB),private"],
        &["#BB create_persistent name=alpha capacity=1GiB"],
        &["#BB_LUA capacity=1GiB"],
        &["#DW copy_in source=/a destination=$DW_JOB_x/"],
        &[JOBDW, "#DW stage_in type=file source=/p/a destination=$DW_PERSISTENT_STRIPED_a/a"],
    ]));
}

#[test]
fn lines_and_words() {
    insta::assert_snapshot!(refusals(&[
        &["#SBATCH -N 1"],
        &["#DW"],
        &["#DW jobd type=scratch capacity=1GiB access_mode=striped"],
        &["#DWjobdw type=scratch capacity=1GiB access_mode=striped"],
        &["#dw jobdw type=scratch capacity=1GiB access_mode=striped"],
        &["  #DW jobdw type=scratch capacity=1GiB access_mode=striped"],
        &[JOBDW, "sleep 1", "#DW stage_out type=file source=$DW_JOB_STRIPED/a destination=/p/a"],
        &["#DW jobdw type=scratch capacity=1GiB \\", "# a comment", "#DW access_mode=striped"],
        &["#DW jobdw type=scratch capacity=1GiB access_mode=striped \\"],
        &["#DW jobdw type=scratch capacity=1GiB access_\\", "#DW mode=striped"],
        &["#DW jobdw type=scratch capacity=1GiB \\ ", "#DW access_mode=striped"],
        &["\t#DW\tjobdw"],
        &[JOBDW, JOBDW],
    ]));
}

#[test]
fn stage_lines() {
    let stage_in = |rest: &str| refusal(&[JOBDW, &format!("#DW stage_in {rest}")]);
    let cases = [
        "type=file source=/p/a",
        "type=tree source=/p/a destination=$DW_JOB_STRIPED/a",
        "type=file source=p/a destination=$DW_JOB_STRIPED/a",
        "type=file source=~/a destination=$DW_JOB_STRIPED/a",
        "type=file source=$HOME/a destination=$DW_JOB_STRIPED/a",
        "type=file source=/p/../etc/shadow destination=$DW_JOB_STRIPED/a",
        "type=file source=/p/a destination=$DW_JOB_STRIPED/../a",
        "type=file source=/p/a destination=/mnt/a",
        "type=file source=/p/a destination=${DW_JOB_STRIPED}/a",
        "type=file source=/p/a destination=$DW_JOB_STRIPEDX/a",
        "type=file source=/p/a destination=$DW_JOB_PRIVATE/a",
        "type=file source=$DW_JOB_STRIPED/b destination=$DW_JOB_STRIPED/a",
        "type=file source=/p/a destination=$DW_JOB_STRIPED",
        "type=file source=/p/a destination=$DW_JOB_STRIPED/dir/",
        "type=file source=\"/p/a b\" destination=$DW_JOB_STRIPED/a",
        "type=file source=/p/a\\ b destination=$DW_JOB_STRIPED/a",
        "type=file source=/p/%j/a destination=$DW_JOB_STRIPED/a",
        "type=file source=/p/a destination=$DW_JOB_STRIPED/a tolerate_errors=true",
        "type=file source=/p/a destination=$DW_JOB_STRIPED/a pool=x",
        "type=file source= destination=$DW_JOB_STRIPED/a",
    ];
    let text: Vec<String> = cases.iter().map(|case| stage_in(case)).collect();
    insta::assert_snapshot!(text.join("----\n"));
}

#[test]
fn rules_between_lines() {
    insta::assert_snapshot!(refusals(&[
        &["#DW stage_in type=file source=/p/a destination=$DW_JOB_STRIPED/a"],
        &[
            JOBDW,
            "#DW stage_out type=file source=$DW_JOB_STRIPED/a destination=/p/a",
            "#DW stage_out type=file source=$DW_JOB_STRIPED/b destination=/p//./a",
        ],
        &[
            "#DW jobdw type=scratch capacity=8000000TiB access_mode=striped pool=one",
            "#DW jobdw type=scratch capacity=8000000TiB access_mode=private pool=two",
        ],
    ]));
}

#[test]
fn files_that_are_no_scripts() {
    let bytes: &[&[u8]] = &[
        b"",
        b"\x7fELF\x02\x01\x01",
        b"\xef\xbb\xbf#!/bin/sh\n#DW jobdw type=scratch capacity=1GiB access_mode=striped\n",
        b"#!/bin/sh\r\n#DW jobdw type=scratch capacity=1GiB access_mode=striped\r\n",
        b"#!\n#DW jobdw type=scratch capacity=1GiB access_mode=striped\n",
        b"#!/bin/sh\n#DW jobdw type=\xff\xfe capacity=1GiB access_mode=striped\n",
        b"#!/bin/sh\n#DW jobdw type=\x1b[31mred capacity=1GiB access_mode=striped\n",
    ];
    let text: Vec<String> = bytes.iter().map(|script| refusal_of(script)).collect();
    insta::assert_snapshot!(text.join("----\n"));
}

#[test]
fn many_problems_are_counted_not_flooded() {
    let lines = vec!["#DW nonsense"; 50];
    let text = refusal(&lines);
    assert!(text.ends_with("and 30 more\n"), "{text}");
}

#[test]
fn a_very_long_line_is_shown_around_the_word() {
    let line = format!("{JOBDW} pool={} bad", "p".repeat(5_000));
    let text = refusal(&[&line]);
    assert!(text.lines().all(|line| line.chars().count() < 200), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with(" bad"), "{text}");
    assert_eq!(lines[1].rfind("bad"), lines[2].find("^^^"), "{text}");
}

#[test]
fn caches() {
    let good = "#DW jobdw type=cache pfs=/pfs/x capacity=1GiB access_mode=striped";
    insta::assert_snapshot!(refusals(&[
        &["#DW jobdw type=cache capacity=1GiB access_mode=striped"],
        &["#DW jobdw type=cache pfs=x capacity=1GiB access_mode=striped"],
        &["#DW jobdw type=cache pfs=/pfs/x capacity=1GiB access_mode=striped,private"],
        &["#DW jobdw type=scratch pfs=/pfs/x capacity=1GiB access_mode=striped"],
        &[good, JOBDW],
        &[good, "#DW stage_in type=file source=/p/a destination=$DW_JOB_STRIPED/a"],
    ]));
}
