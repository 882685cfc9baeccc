//! The README's tour and the tutorial, as they stand: the commands of their code blocks are read from README.md and
//! docs/tutorial.md and run, unchanged and in order, and what they promise is looked at. A document that says what does not
//! work fails here.
//!
//! They run in a place of their own: namespaces of mounts, network, host name and processes, where `/pfs`, `/nvme`,
//! `/tmp` and `/dev/shm` are the test's, `./simulate`, `mpirun` and `scp` are there, and `node1` and `node2` are two
//! nodes with the same PFS. What a comment says of where a command runs is heeded: `# on node2`, `# on each node`. A
//! server that stays in the foreground gets a terminal of its own. Nothing of it is seen outside, and all ends
//! with the first process.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs::{LET_GO, try_run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A command of a document.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    /// What the document shows as its output.
    shown: String,
}

/// The commands of the code blocks in the README's section "A tour".
fn tour() -> Vec<Vec<Step>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = fs::read_to_string(path).unwrap();
    let section = text.split("\n## ").find(|part| part.starts_with("A tour\n")).unwrap();
    let blocks: Vec<Vec<Step>> = section.split("\n```").skip(1).step_by(2).map(steps).collect();
    assert_eq!(blocks.len(), 3, "the tour has other blocks now: see that this test runs them");
    blocks
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    // The first line is the language, if there is one.
    for line in block.lines().skip(1) {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.into(), shown: String::new() });
        } else if let Some(step) = steps.last_mut().filter(|_| !line.is_empty()) {
            step.shown += &format!("{line}\n");
        }
    }
    steps
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The driver's lines for the tutorial: its commands, each with the lines that it shows of the output, and the files that it
/// has its reader save (`Save this as PATH:` before a code block).
fn tutorial() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tutorial.md");
    of_tutorial(&fs::read_to_string(path).unwrap())
}

fn of_tutorial(text: &str) -> String {
    let parts: Vec<&str> = text.split("\n```").collect();
    let mut driver = String::new();
    for (before, block) in parts.iter().zip(&parts[1..]).step_by(2) {
        let saved =
            before.rsplit_once("Save this as `").and_then(|(_, rest)| rest.split_once("`:\n"));
        if let Some((path, "")) = saved {
            let (_, content) = block.split_once('\n').unwrap();
            driver += &format!("printf '%s\\n' {} > {}\n", quoted(content), quoted(path));
        }
        for step in steps(block) {
            driver += &format!("step node1 {}\n", quoted(&step.command));
            let lines: Vec<String> =
                step.shown.lines().map(|line| quoted(&pattern(line))).collect();
            if !lines.is_empty() {
                driver += &format!("shows {}\n", lines.join(" "));
            }
        }
    }
    driver
}

/// A shell's pattern for a line of output in which `...` stands for anything.
fn pattern(line: &str) -> String {
    let literal = |text: &str| -> String {
        let escape = |char: char| match char.is_alphanumeric() {
            true => char.to_string(),
            false => format!("\\{char}"),
        };
        text.chars().map(escape).collect()
    };
    line.split("...").map(literal).collect::<Vec<_>>().join("*")
}

/// The driver's lines for one command: on its node, and what the reader's own programs do before it.
fn run_step(step: &Step) -> String {
    let command = quoted(&step.command);
    let comment = step.command.rsplit_once(" #").map_or("", |(_, comment)| comment);
    let mut lines = String::new();
    for (before, program) in [
        (
            "forebay wait /mnt/fast/results",
            "mkdir /mnt/fast/results; echo cached > /mnt/fast/results/x",
        ),
        ("forebay commit /mnt/run7/ckpt ", "mkdir /mnt/run7/ckpt; echo one > /mnt/run7/ckpt/x"),
    ] {
        if step.command.starts_with(before) {
            // The other node's, where there is one: all see the same.
            let node = if before.contains("run7") { "node2" } else { "node1" };
            lines += &format!("on {node} {}\n", quoted(program));
        }
    }
    let nodes: &[&str] = match comment {
        text if text.contains("on each node") => &["node1", "node2"],
        text if text.contains("on node2") => &["node2"],
        _ => &["node1"],
    };
    for node in nodes {
        let stays = step.command.starts_with("forebay serve ") && !comment.contains("--background");
        lines += &match stays {
            true => format!("serve {node} {command}\n"),
            false => format!("step {node} {command}\n"),
        };
    }
    if !step.shown.is_empty() {
        lines += &format!("must [ \"$said\" = {} ]\n", quoted(step.shown.trim_end()));
    }
    lines
}

/// What begins in the first process of the namespaces. $1: an empty directory, $2: the executable.
const PLACE: &str = r#"
base=$1 forebay=$2
LET_GO
root=$base/root
mkdir "$root"
mount -t tmpfs -o mode=755 root "$root"
mkdir -p "$root/tour/bin" "$root/old"
for entry in /*; do
  name=${entry#/}
  case $name in proc | run | tmp | mnt | pfs | nvme | dev | etc | tour | old) continue ;; esac
  if [ -L "$entry" ]; then cp -P "$entry" "$root/"
  elif [ -d "$entry" ]; then mkdir "$root/$name"; mount --rbind "$entry" "$root/$name"
  fi
done
mkdir -p "$root"/{proc,run,tmp,dev,etc,nvme,mnt/fast,mnt/run7,pfs/inputs/deep,pfs/project}
touch "$root/tour/bin/forebay"
mount --bind "$forebay" "$root/tour/bin/forebay"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,size=16g shm "$root/dev/shm"
cp -a /etc/. "$root/etc/"
rm -rf "$root/etc/forebay"
printf '127.0.0.1 localhost\n10.1.1.1 node1\n10.1.1.2 node2\n' > "$root/etc/hosts"
cd "$root"
pivot_root . old
exec chroot . /bin/bash /tour/driver
"#;

/// What the tour finds, and how its commands are run.
const DRIVER: &str = r#"
set -euo pipefail
umount -l /old
cd /tour
export PATH=/tour/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
unset FOREBAY_FLASH FOREBAY_SERVER TMPDIR

# The user's programs: a rank of the simulation, and mpirun with as many of it as asked for.
cat > simulate <<'EOF'
#!/bin/bash
set -eu
[ "$1" = --in ] && [ "$3" = --out ]
mkdir -p "$4"
cat "$2"/a "$2"/deep/b > "$4/ckpt.000$((${RANK:-0} + 1))"
[ "${RANK:-0}" -ne 0 ] || head -c 50000000 /dev/urandom > "$4/field"
EOF
cat > bin/mpirun <<'EOF'
#!/bin/bash
set -eu
[ "$1" = -n ]
count=$2; shift 2
for ((rank = 0; rank < count; rank++)); do RANK=$rank "$@" & pids[rank]=$!; done
for pid in "${pids[@]}"; do wait "$pid"; done
EOF
# Copies from a node, as ssh would: node1 has the first process.
cat > bin/scp <<'EOF'
#!/bin/bash
set -eu
[ "$1" = -p ] && [ "${2%%:*}" = node1 ]
cp -p "/proc/1/root/${2#*:}" "$3"
EOF
chmod +x simulate bin/mpirun bin/scp
echo alpha > /pfs/inputs/a
echo beta > /pfs/inputs/deep/b
echo theirs > /pfs/project/input

# Two nodes: what is of one node only (names, network, mounts, flash, settings, running services) is its own.
hostname node1
ip link set lo up
touch node2.pid
unshare --mount --uts --net --propagation private bash -ec '
  hostname node2; ip link set lo up; mount -t tmpfs -o size=4t nvme /nvme; mount -t tmpfs run /run
  cp -a /etc etc.node2; mount --bind etc.node2 /etc
  echo $$ > node2.pid; exec sleep 600' &
while [ ! -s node2.pid ]; do sleep 0.02; done
node2=$(cat node2.pid)
mount -t tmpfs -o size=4t nvme /nvme
mount -t tmpfs run /run
ip link add eth0 type veth peer name eth0 netns "$node2"
ip addr add 10.1.1.1/24 dev eth0
ip link set eth0 up

on() { # NODE COMMAND
  if [ "$1" = node1 ]; then bash -euc "$2" < /dev/null
  else nsenter -t "$node2" -m -u -n --wdns=/tour bash -euc "$2" < /dev/null
  fi
}
on node2 'ip addr add 10.1.1.2/24 dev eth0; ip link set eth0 up'

step() { # NODE COMMAND: as its reader types it; what it says is kept in $said
  echo "$1 \$ $2"
  said=$(on "$1" "$2" 2>&1) || { echo "$said"; echo "this command of the document fails on $1: $2"; exit 1; }
  echo "$said"
}
serve() { # NODE COMMAND: in a terminal of its own, until it answers
  echo "$1 \$ $2"
  on "$1" "$2" > "serve.$1" 2>&1 &
  local server=$! tries=0
  until on "$1" "forebay pool status --server $1:4242" > /dev/null 2>&1; do
    if ! kill -0 "$server" 2> /dev/null || [ $((tries += 1)) -gt 300 ]; then
      cat "serve.$1"; echo "this command of the document does not serve on $1: $2"; exit 1
    fi
    sleep 0.1
  done
}
shows() { # PATTERN...: lines of the output, in this order, others between them
  local line
  while IFS= read -r line; do
    [[ $# -gt 0 && $line == $1 ]] && shift
  done <<< "$said"
  [ $# -eq 0 ] || { echo "the document shows a line that is not there: $1"; exit 1; }
}
must() { # TEST...: what the README promises
  "$@" || { echo "not so: $*"; exit 1; }
}
"#;

/// Runs a driver in the place; fails with all that was said.
fn run_tour(parts: &[String]) {
    let base = tempfile::tempdir().unwrap();
    let driver = base.path().join("driver");
    fs::write(&driver, format!("{DRIVER}\n{}\necho THE END\n", parts.concat())).unwrap();
    let place = PLACE
        .replace("LET_GO", LET_GO)
        .replace("cd \"$root\"\n", "cp \"$base/driver\" \"$root/tour/driver\"\ncd \"$root\"\n");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "240", "unshare", "--mount", "--uts", "--net", "--pid"]);
    command.args(["--fork", "--kill-child", "bash", "-euc", &place, "bash"]);
    let (done, said) = try_run(command.arg(base.path()).arg(binary()));
    assert!(done && said.contains("THE END"), "{said}");
}

fn of_block(steps: &[Step]) -> String {
    steps.iter().map(run_step).collect()
}

#[test]
fn the_tour_of_the_readme_works_as_it_stands() {
    let blocks = tour();
    let first = of_block(&blocks[0])
        + r#"
must [ "$(cat /pfs/run17/ckpt.0001)" = $'alpha\nbeta' ]
must [ "$(stat -c %s /pfs/run17/field)" = 50000000 ]
must [ -z "$(ls /tmp/fb)" ]
must [ "$(ls /dev/shm)" = '' ]
"#;
    // The script is shown by the README itself.
    let job = &blocks[1];
    let script = job.iter().find(|step| step.command == "cat job.sh").unwrap();
    assert!(script.shown.contains("#DW stage_out"), "{script:?}");
    let job = format!("printf '%s' {} > job.sh\nrm -r /pfs/run17\n", quoted(&script.shown))
        + &of_block(job)
        + r#"
must [ "$(ls /pfs/run17 | wc -l)" = 17 ]
must [ "$(cat /pfs/run17/ckpt.00016)" = $'alpha\nbeta' ]
must [ "$(ls /dev/shm)" = '' ]
"#;
    let servers = of_block(&blocks[2])
        + r#"
must [ "$(cat /pfs/project/results/x)" = cached ]
must [ "$(cat /pfs/run17/ckpt/x)" = one ]
must on node2 '[ "$(cat /mnt/run7/ckpt/x)" = one ]'
must on node1 '[ "$(cat /mnt/run7/ckpt/x)" = one ]'
"#;
    run_tour(&[first, job, servers]);
}

#[test]
fn the_tutorial_works_as_it_stands() {
    let driver = tutorial();
    assert!(
        driver.matches("\nstep node1 ").count() > 20 && driver.contains("/tmp/tour/job.sh"),
        "{driver}"
    );
    let end = r#"
must [ "$(sha256sum < /tmp/tour/pfs/input/mesh)" = "$(sed 's,  input/mesh,  -,' /tmp/tour/pfs/results/checksum)" ]
must diff -r --exclude=.forebay-* /tmp/tour/pfs/ckpt /tmp/tour/pfs/copy
must [ "$(ls /dev/shm)" = '' ]
"#;
    run_tour(&[driver, end.to_string()]);
}

#[test]
fn a_document_that_says_what_does_not_work_is_found() {
    let wrong = |command: &str| {
        let said =
            std::panic::catch_unwind(|| run_tour(&[of_block(&steps(&format!("\n{command}")))]))
                .unwrap_err();
        said.downcast_ref::<String>().unwrap().clone()
    };
    let said = wrong("$ forebay mount --scratch 4GiB --flash /dev/shm /tmp/none   # not there");
    assert!(said.contains("this command of the document fails on node1"), "{said}");
    let said = wrong("$ cat /pfs/inputs/a\nomega");
    assert!(!said.contains("THE END"), "{said}");
    let tutorial = |shown: &str| {
        of_tutorial(&format!(
            "Look:\n\n```\n$ cat /pfs/inputs/a /pfs/inputs/deep/b\n{shown}\n```\n"
        ))
    };
    run_tour(&[tutorial("al...a\nbeta"), tutorial("beta"), tutorial("...")]);
    let said = std::panic::catch_unwind(|| run_tour(&[tutorial("beta\nalpha")])).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.contains("the document shows a line that is not there: alpha"), "{said}");
}
