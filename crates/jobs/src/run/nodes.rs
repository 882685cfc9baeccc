//! The other nodes of a job: a script handed to a shell there by the launch command (`ssh {host}`,
//! `srun -w {host} -n1 -N1`), which mounts the job's buffer or ends that mount.
//!
//! The script goes to standard input, so it needs no quoting by the launcher, and a secret in it
//! stands on no command line. Nodes are asked side by side, at most [`MAX_LAUNCHED`] at once, each
//! with a time limit: one that does not answer is named and left, and holds up nobody. Called by
//! [`super::served`].

use super::signals::{Signals, with_clear_mask};
use super::waiting::TOLD_AGAIN_AFTER;
use super::words::{reason, shell_word, words};
use crate::record_file;
use crate::request::FileLimits;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// In the job's directory: what leads to the node's own part of a buffer with both access modes.
pub const OWN_LINK: &str = "private";
/// How a shell on another node is started, unless the user says otherwise.
pub const DEFAULT_LAUNCH: &str = "ssh -o BatchMode=yes {host}";
/// What stands for the node in a launch command.
pub const HOST_MARK: &str = "{host}";
/// Most nodes of a job beside this one.
pub const MAX_NODES: usize = 4096;
/// Most launch commands at once.
const MAX_LAUNCHED: usize = 64;
/// Most time for one node.
const NODE_LIMIT: Duration = Duration::from_secs(120);
/// Time that launch commands have to end after SIGTERM when a signal ends the wait for them, before they are killed.
const END_GRACE: Duration = Duration::from_millis(500);
/// Time between two looks at that.
const END_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Nodes that take longer than this are named, again every [`TOLD_AGAIN_AFTER`], and at most so many.
const SILENT_MAX: Duration = Duration::from_secs(3);
const MAX_HOSTS_SHOWN: usize = 5;
/// Time between two looks at the launch commands; an end of one wakes us earlier.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest name of a node.
const MAX_HOST_BYTES: usize = 253;
/// Before the name that a node gives itself, in what the script prints.
const NAME_MARK: &str = "forebay-node ";
/// What every script prints first: where it is missing, no shell has run.
const SHELL_MARK: &str = "forebay-shell";

/// Another node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// As the user named it, for the launch command.
    pub host: String,
    /// Its own name (`uname -n`), once it has told.
    pub name: Option<String>,
    /// The launch command ended before a shell ran there: nothing of the job was ever made on it.
    #[serde(default)]
    pub untouched: bool,
}

/// Why a node did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFailure {
    /// In words.
    pub why: String,
    /// A shell ran there, or may have: something may be left on the node.
    pub touched: bool,
}

impl NodeFailure {
    fn untouched(why: impl Into<String>) -> NodeFailure {
        NodeFailure { why: why.into(), touched: false }
    }

    fn touched(why: impl Into<String>) -> NodeFailure {
        NodeFailure { why: why.into(), touched: true }
    }
}

impl Node {
    /// A node that the user named.
    ///
    /// # Errors
    /// Why this cannot be the name of a host: the launcher might take it for something else.
    pub fn named(host: &str) -> Result<Node, String> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-:@".contains(&b);
        let good = !host.is_empty()
            && host.len() <= MAX_HOST_BYTES
            && !host.starts_with('-')
            && host.bytes().all(plain);
        match good {
            true => Ok(Node { host: host.to_string(), name: None, untouched: false }),
            false => Err(format!("{host:?} is no name of a host")),
        }
    }
}

/// What is done on the nodes, in words that the script needs.
#[derive(Debug)]
pub struct Place<'a> {
    /// This executable; it is at the same path on all nodes.
    pub program: &'a Path,
    /// The job's directory.
    pub dir: &'a Path,
    /// Mount point.
    pub mount_point: &'a Path,
}

impl Place<'_> {
    /// What every script begins with. Scripts of one job wait for each other: a runner that was
    /// killed may have left one at work.
    fn head(&self) -> String {
        let above = self.mount_point.parent().unwrap_or(Path::new("/"));
        let jobs = self.dir.parent().unwrap_or(Path::new("/"));
        let names = [
            ("forebay", self.program),
            ("dir", self.dir),
            ("jobs", jobs),
            ("mnt", self.mount_point),
            ("above", above),
        ];
        let mut text = format!("echo {SHELL_MARK}\nset -u\numask 077\n");
        for (name, path) in names {
            text += &format!("{name}={}\n", shell_word(path));
        }
        text + &HEAD.replace("OWN_LINK", OWN_LINK)
    }

    /// Mounts `buffer`. With `secret`, the text of a secret file, that is shown to the server.
    /// With `own_of`, a directory below the mount point, the node gets a directory of its own
    /// there, and a link to it in the job's directory. Where it fails, nothing is left.
    pub fn mount(
        &self,
        buffer: &str,
        server: &str,
        secret: Option<&str>,
        own_of: Option<&str>,
        limits: &FileLimits,
    ) -> String {
        let mut text = self.head();
        text += "mkdir -p -- \"$jobs\" || exit 1\nlock\nmkdir -p -- \"$dir\" \"$mnt\" || exit 1\nset --\n";
        if let Some(secret) = secret {
            // Made anew each time: the file of an earlier try may be half written.
            text += &format!(
                "printf '%s\\n' {} > \"$dir/secret\" || exit 1\n\
                 set -- --secret-file \"$dir/secret\"\n",
                shell_word(Path::new(secret.trim_end()))
            );
        }
        text += &format!(
            "if mounted; then run umount --force -- \"$mnt\"; fi\n\
             run mount --json --buffer {} --server {} \"$@\"{} --log-file \"$log\" -- \"$mnt\"\n\
             code=$?\nrm -f -- \"$dir/secret\"\n\
             if [ \"$code\" -ne 0 ]; then clear; exit \"$code\"; fi\n",
            shell_word(Path::new(buffer)),
            shell_word(Path::new(server)),
            limits.flags().iter().map(|flag| format!(" {flag}")).collect::<String>(),
        );
        if let Some(own_of) = own_of {
            text += &format!(
                "if [ -e \"$dir/job.json\" ]; then\n  \
                 echo \"$dir is shared by the nodes: give --work-dir a directory that each has for \
                 itself\" >&2\n  exit 1\nfi\n\
                 own=\"$mnt\"/{}/$(uname -n)\nmkdir -p -- \"$own\" || exit 1\n\
                 ln -sfn -- \"$own\" \"$dir/{}\" || exit 1\n",
                shell_word(Path::new(own_of)),
                OWN_LINK,
            );
        }
        text + &format!("printf '\\n{NAME_MARK}%s\\n' \"$(uname -n)\"\n")
    }

    /// Makes a directory, of a path that is the same on all nodes.
    pub fn make_directory(&self, path: &Path) -> String {
        let path = shell_word(path);
        format!("{}umask 022\nmkdir -p -- {path}\n", self.head())
    }

    /// Ends the mount, by force if somebody still uses it, and removes what was made there. Done
    /// twice it is done once.
    pub fn umount(&self) -> String {
        let end = "[ -d \"$jobs\" ] || exit 0\nlock\nif mounted; then\n  \
             run umount --keep -- \"$mnt\" 2> \"$dir/umount.said\" ||\n    \
             run umount --keep --force -- \"$mnt\" || exit 1\nfi\nclear\n";
        self.head() + end
    }
}

/// Functions of the scripts. The lock is the directory of jobs, taken anew if another job's end
/// has removed that directory meanwhile; commands that leave a process behind do not get it.
const HEAD: &str = r#"log=$dir/mount.$(uname -n).log
lock() {
  while :; do
    exec 9< "$jobs" || exit 1
    flock -w 100 9 || { echo "another command of the job does not end" >&2; exit 1; }
    [ "$jobs" -ef /proc/self/fd/9 ] && return
    mkdir -p -- "$jobs" || exit 1
  done
}
run() { "$forebay" "$@" 9<&- < /dev/null > /dev/null; }
# A mount whose process is dead, or whose buffer is gone, cannot be looked at.
mounted() {
  here=$(stat -c %d -- "$mnt" 2> /dev/null) ||
    { [ -d "$above" ] && ls -a -- "$above" | grep -qxF -- "${mnt##*/}"; return; }
  [ "$here" != "$(stat -c %d -- "$above")" ]
}
# A directory that is this job's own on its first node too is removed there.
clear() {
  [ ! -e "$dir/job.json" ] || return 0
  if [ -d "$dir" ]; then
    rm -f -- "$dir/OWN_LINK" "$dir/secret" "$dir/umount.said" "$log"
    [ ! -d "$mnt" ] || rmdir -- "$mnt" || exit 1
    rmdir -- "$dir" || exit 1
  fi
  # Other jobs may have theirs in it.
  rmdir -- "$jobs" 2> /dev/null || return 0
}
"#;

/// Does the same on several nodes.
pub struct Launcher<'a> {
    /// Launch command, with [`HOST_MARK`].
    pub launch: &'a str,
    /// The job's directory here, for what the commands say.
    pub dir: &'a Path,
    /// Signals of the runner.
    pub signals: &'a Signals,
    /// Told which nodes are waited for, if that takes long.
    pub say: Option<&'a dyn Fn(&str)>,
}

/// A launch command that runs.
struct Running {
    at: usize,
    child: Child,
    until: Instant,
}

impl Running {
    /// Sends a signal to its process group, which has what the launcher started on this node.
    fn signal(&self, signal: Signal) {
        // ESRCH: it has ended, which is what the next look finds.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// True if a process of its group is left.
    fn is_there(&mut self) -> bool {
        // One that has ended and was not waited for counts as there.
        let _ = self.child.try_wait();
        test_kill_process_group(Pid::from_child(&self.child)).is_ok()
    }
}

/// Ends launch commands with all that they started on this node: those that do not end within [`END_GRACE`] are killed.
fn end_all(running: &mut [Running]) {
    running.iter().for_each(|launched| launched.signal(Signal::TERM));
    let until = Instant::now() + END_GRACE;
    while running.iter_mut().any(Running::is_there) && Instant::now() < until {
        std::thread::sleep(END_LOOK_INTERVAL);
    }
    for launched in running.iter_mut() {
        if launched.is_there() {
            launched.signal(Signal::KILL);
        }
    }
}

impl Launcher<'_> {
    /// Runs a script on each node to its end: what it printed, or why it failed.
    pub fn run(&self, nodes: &[&Node], script: &str) -> Vec<Result<String, NodeFailure>> {
        let mut results: Vec<Option<Result<String, NodeFailure>>> = vec![None; nodes.len()];
        let mut running: Vec<Running> = Vec::new();
        let mut next = 0;
        let mut signalled = None;
        let (begun, mut told) = (Instant::now(), None::<Instant>);
        while next < nodes.len() || !running.is_empty() {
            while next < nodes.len() && running.len() < MAX_LAUNCHED {
                match self.start(nodes[next], script) {
                    Ok(child) => running.push(Running {
                        at: next,
                        child,
                        until: Instant::now() + NODE_LIMIT,
                    }),
                    Err(why) => results[next] = Some(Err(NodeFailure::untouched(why))),
                }
                next += 1;
            }
            running.retain_mut(|launched| {
                let ended = self.look(launched, nodes[launched.at]);
                let goes_on = ended.is_none();
                if let Some(ended) = ended {
                    results[launched.at] = Some(ended);
                }
                goes_on
            });
            if !running.is_empty()
                && begun.elapsed() >= SILENT_MAX
                && told.is_none_or(|at| at.elapsed() >= TOLD_AGAIN_AFTER)
                && let Some(say) = self.say
            {
                told = Some(Instant::now());
                let hosts = running.iter().map(|launched| nodes[launched.at].host.as_str());
                say(&waiting_for(&hosts.collect::<Vec<_>>()));
            }
            if !running.is_empty() {
                // The next step acts on it: half of the nodes help nobody.
                let signal = self.signals.wait(LOOK_INTERVAL).unwrap_or_default();
                let signal = signal.filter(|signal| *signal != Signal::CHILD);
                // A job that is left to its record: nobody waits for the launch commands any more. What they have begun on the
                // nodes may go on there.
                if let Some(signal) = signal {
                    if self.signals.may_leave() {
                        end_all(&mut running);
                    }
                    self.signals.leave(signal);
                }
                signalled = signalled.or(signal);
            }
        }
        if let Some(signal) = signalled {
            self.signals.hold(signal);
        }
        let not_asked = || Err(NodeFailure::untouched("not asked"));
        results.into_iter().map(|result| result.unwrap_or_else(not_asked)).collect()
    }

    fn said(&self, node: &Node, what: &str) -> PathBuf {
        self.dir.join(format!("node.{}.{what}", node.host))
    }

    fn start(&self, node: &Node, script: &str) -> Result<Child, String> {
        let words = words(self.launch).map_err(|why| format!("the launch command: {why}"))?;
        let words: Vec<String> =
            words.iter().map(|word| word.replace(HOST_MARK, &node.host)).collect();
        let (program, args) = words.split_first().ok_or("the launch command is empty")?;
        let file = |what: &str| {
            let path = self.said(node, what);
            record_file::create(&path, record_file::SAID_MODE)
                .map_err(|e| format!("make {}: {e}", path.display()))
        };
        let mut command = Command::new(program);
        command.args(args).arg("sh").stdin(Stdio::piped());
        command.stdout(file("stdout")?).stderr(file("stderr")?).process_group(0);
        let mut child = with_clear_mask(&mut command)
            .spawn()
            .map_err(|error| format!("start {program}: {error}"))?;
        // Smaller than a pipe holds: it does not wait for the reader. A launcher that ended
        // without reading is told by its exit code.
        if let Some(mut input) = child.stdin.take() {
            let _ = input.write_all(script.as_bytes());
        }
        Ok(child)
    }

    /// How a launch command ended, if it has.
    fn look(&self, launched: &mut Running, node: &Node) -> Option<Result<String, NodeFailure>> {
        let printed = || {
            let text = fs::read(self.said(node, "stdout")).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        match launched.child.try_wait() {
            Ok(Some(status)) if status.success() => Some(Ok(printed())),
            Ok(Some(status)) => {
                let said = reason(&self.said(node, "stderr"));
                let why = said.unwrap_or(format!("its launch command ended: {status}"));
                let touched = printed().lines().any(|line| line.trim() == SHELL_MARK);
                Some(Err(NodeFailure { why, touched }))
            }
            Ok(None) if Instant::now() < launched.until => None,
            Ok(None) => {
                launched.signal(Signal::KILL);
                // It fails only if it has ended just now.
                let _ = launched.child.wait();
                let why = format!("it did not answer within {} s", NODE_LIMIT.as_secs());
                Some(Err(NodeFailure::touched(why)))
            }
            Err(error) => {
                Some(Err(NodeFailure::touched(format!("wait for its launch command: {error}"))))
            }
        }
    }
}

/// Says which nodes have not ended their mounts yet.
fn waiting_for(hosts: &[&str]) -> String {
    let shown = hosts[..hosts.len().min(MAX_HOSTS_SHOWN)].join(", ");
    let more = match hosts.len().saturating_sub(MAX_HOSTS_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (nodes, each) = if hosts.len() == 1 { ("node", "it") } else { ("nodes", "each") };
    format!(
        "waiting for {nodes} {shown}{more} to unmount ({each} for {} s at most); `forebay status` there tells who has the mount",
        NODE_LIMIT.as_secs()
    )
}

/// The name that a node gave itself.
pub fn name_in(said: &str) -> Option<String> {
    let name = said.lines().find_map(|line| line.strip_prefix(NAME_MARK))?.trim();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let good = !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain);
    good.then(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_launcher_could_misread_are_refused() {
        for good in ["node7", "me@node-7.site", "10.0.0.7", "fe80::1"] {
            assert!(Node::named(good).is_ok(), "{good}");
        }
        for bad in ["", "-oProxyCommand=x", "a b", "a;b", "$(x)", "a/b", "a\nb"] {
            assert!(Node::named(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_tells_its_name_among_other_lines() {
        assert_eq!(name_in("motd\n\nforebay-node n7\n"), Some("n7".into()));
        for bad in ["", "n7", "forebay-node ../x", "forebay-node .."] {
            assert_eq!(name_in(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn nodes_that_are_waited_for_are_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let signals = Signals::watch().unwrap();
        let nodes = [Node::named("n1").unwrap(), Node::named("n2").unwrap()];
        let told = std::cell::RefCell::new(Vec::new());
        let say = |text: &str| told.borrow_mut().push(text.to_string());
        let wait = SILENT_MAX.as_secs() + 1;
        let launch = format!("sh -c '[ $0 = n1 ] || sleep {wait}' {{host}}");
        let launcher =
            Launcher { launch: &launch, dir: dir.path(), signals: &signals, say: Some(&say) };
        let results = launcher.run(&[&nodes[0], &nodes[1]], "");
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let one = waiting_for(&["n2"]);
        assert!(one.starts_with("waiting for node n2 to unmount (it for 120 s at most)"), "{one}");
        assert_eq!(*told.borrow(), [one]);
        let many = waiting_for(&["a", "b", "c", "d", "e", "f", "g"]);
        assert!(many.starts_with("waiting for nodes a, b, c, d, e and 2 more to "), "{many}");
    }

    #[test]
    fn launch_commands_that_nobody_waits_for_are_ended_also_if_they_ignore_it() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            let child = command.args(["-c", script]).process_group(0).spawn().unwrap();
            Running { at: 0, child, until: Instant::now() }
        };
        let mut running = [start("sleep 60"), start("trap '' TERM; sleep 60 & wait; sleep 60")];
        // The second one has set its trap.
        std::thread::sleep(END_GRACE);
        let begun = Instant::now();
        end_all(&mut running);
        for launched in &mut running {
            assert!(!launched.child.wait().unwrap().success());
        }
        let took = begun.elapsed();
        assert!(took >= END_GRACE && took < END_GRACE * 10, "{took:?}");
    }

    #[test]
    fn scripts_are_good_shell_and_smaller_than_a_pipe() {
        let place = Place {
            program: Path::new("/opt/with blank/forebay"),
            dir: Path::new("/tmp/it's/job-1"),
            mount_point: Path::new("/tmp/it's/job-1/mnt"),
        };
        let scripts = [
            place.mount(
                "job-1",
                "node9:4242",
                Some("buffer job-1 00ff\n"),
                Some("private"),
                &FileLimits::default(),
            ),
            place.make_directory(Path::new("in/deep")),
            place.umount(),
        ];
        for script in scripts {
            assert!(script.len() < 16 << 10);
            let mut command = Command::new("sh");
            let checked = command.args(["-n", "-c", &script]).output().expect("sh");
            assert!(checked.status.success(), "{script}\n{checked:?}");
        }
    }
}
