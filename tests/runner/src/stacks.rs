//! Where the processes of a test hang that is about to be killed by its limit: what each thread waits for in the kernel.
//!
//! Invariants: what is printed is bounded, and so is the time that it takes, since the runner kills the test after it. A process
//! that is held up while it begins a program, such as by the close of a file of a mount that does not answer, holds up whoever
//! reads its `wchan`, `stack`, `syscall`, `stat` or `environ` (Linux 6.18; not `comm` and `status`). Such files are read with a
//! limit, and none of a process after one that did not answer. Called by [`super::run`].

use crate::leftovers;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most processes, threads of each, lines of a stack, and lines in all.
const PROCESSES_MAX: usize = 40;
const THREADS_MAX: usize = 40;
const LINES_MAX: usize = 12;
const ALL_LINES_MAX: usize = 1_000;
/// Most that is told of a command line.
const COMMAND_CHARACTERS_MAX: usize = 160;
/// When so much time has gone, only files are read that answer at once.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Of these processes, in words. Stacks are root's to see; without them each thread's wait channel is told.
pub fn of(processes: &[i32]) -> String {
    let (mut text, until) = (String::new(), Instant::now() + TIME_MAX);
    for pid in processes.iter().take(PROCESSES_MAX) {
        tell(&Path::new("/proc").join(pid.to_string()), until, &mut text);
    }
    let mut text = cut(&text, ALL_LINES_MAX);
    if processes.len() > PROCESSES_MAX {
        let _ = writeln!(text, "and {} processes more", processes.len() - PROCESSES_MAX);
    }
    text
}

/// Of one process, which has this directory.
fn tell(process: &Path, until: Instant, text: &mut String) {
    let mut asked = Asked { until, is_answering: true };
    let pid = process.file_name().unwrap_or_default().display();
    let command = asked.word(&process.join("cmdline")).replace('\0', " ");
    let command: String = command.trim_end().chars().take(COMMAND_CHARACTERS_MAX).collect();
    let _ = writeln!(text, "process {pid} ({}): {command}", word(&process.join("comm")));
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    for thread in threads.take(THREADS_MAX) {
        let (thread, id) = (thread.path(), thread.file_name());
        let status = word(&thread.join("status"));
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        let state = state.unwrap_or_default().trim();
        let channel = asked.word(&thread.join("wchan"));
        let call = asked.word(&thread.join("syscall"));
        // Its arguments follow.
        let call = call.split(' ').next().unwrap_or_default();
        let name = word(&thread.join("comm"));
        let _ = writeln!(text, "  {} {name}: {state}, {channel}, system call {call}", id.display());
        for line in asked.word(&thread.join("stack")).lines().take(LINES_MAX) {
            let _ = writeln!(text, "    {}", line.trim_start_matches("[<0>] "));
        }
    }
    if !asked.is_answering {
        let _ = writeln!(text, "  not all of it can be looked at: a program begins there");
    }
}

/// Reads files of a process that may not answer: none after one that did not, and none when the time is over.
struct Asked {
    until: Instant,
    is_answering: bool,
}

impl Asked {
    /// As [`word`].
    fn word(&mut self, path: &Path) -> String {
        self.is_answering = self.is_answering && Instant::now() < self.until;
        let bytes = if self.is_answering { leftovers::read_within(path) } else { None };
        self.is_answering = bytes.is_some();
        String::from_utf8_lossy(&bytes.unwrap_or_default()).trim().to_string()
    }
}

/// What a file of /proc has that answers at once; nothing of a thread that has ended meanwhile.
fn word(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// The first lines, and how many more there are.
fn cut(text: &str, most: usize) -> String {
    let mut kept: String = text.split_inclusive('\n').take(most).collect();
    let all = text.lines().count();
    if all > most {
        let _ = writeln!(kept, "and {} lines more", all - most);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_process_that_waits_is_told_with_what_it_waits_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let told = loop {
            let told = of(&[child.id() as i32]);
            // Before it has begun its program it waits for something else, or runs.
            if told.contains("nanosleep") || Instant::now() > until {
                break told;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(told.contains(&format!("process {} (sleep): sleep 60\n", child.id())), "{told}");
        assert!(told.contains("sleep: S (sleeping), ") && told.contains("nanosleep"), "{told}");
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn a_process_whose_files_do_not_answer_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("4711");
        for thread in ["4711", "4712"] {
            let thread = process.join("task").join(thread);
            fs::create_dir_all(&thread).unwrap();
            fs::write(thread.join("comm"), "stuck\n").unwrap();
            fs::write(thread.join("status"), "Name:\tstuck\nState:\tD (disk sleep)\n").unwrap();
            // Whoever opens a pipe waits for who writes.
            for file in ["wchan", "syscall", "stack"] {
                let path = CString::new(thread.join(file).as_os_str().as_bytes()).unwrap();
                // SAFETY: a path that ends with a zero.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
            }
        }
        fs::write(process.join("comm"), "stuck\n").unwrap();
        fs::write(process.join("cmdline"), "stuck\0here\0").unwrap();
        let mut text = String::new();
        tell(&process, Instant::now() + TIME_MAX, &mut text);
        assert!(text.starts_with("process 4711 (stuck): stuck here\n"), "{text}");
        assert_eq!(text.matches(" stuck: D (disk sleep), ").count(), 2, "{text}");
        assert!(text.ends_with("  not all of it can be looked at: a program begins there\n"));
        // When the time is over nothing is waited for.
        let mut late = String::new();
        tell(&process, Instant::now(), &mut late);
        assert!(late.starts_with("process 4711 (stuck): \n"), "{late}");
    }

    #[test]
    fn what_is_told_is_cut() {
        assert_eq!(cut("a\nb\nc\n", 3), "a\nb\nc\n");
        assert_eq!(cut("a\nb\nc\n", 1), "a\nand 2 lines more\n");
    }
}
