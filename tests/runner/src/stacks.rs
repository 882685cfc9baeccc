//! Where the processes of a test hang that is about to be killed by its limit: what each thread waits for in the kernel.
//!
//! Invariants: only files of /proc are read that wait for nobody; what is printed is bounded. Called by [`super::run`].

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Most processes, threads of each, and lines of a stack.
const PROCESSES_MAX: usize = 40;
const THREADS_MAX: usize = 40;
const LINES_MAX: usize = 12;

/// Of these processes, in words. Stacks are root's to see; without them each thread's wait channel is told.
pub fn of(processes: &[i32]) -> String {
    let mut text = String::new();
    for pid in processes.iter().take(PROCESSES_MAX) {
        let process = Path::new("/proc").join(pid.to_string());
        let _ = writeln!(text, "process {pid} ({})", word(&process.join("comm")));
        for thread in
            fs::read_dir(process.join("task")).into_iter().flatten().flatten().take(THREADS_MAX)
        {
            let (thread, id) = (thread.path(), thread.file_name());
            let read = |name: &str| word(&thread.join(name));
            let _ = writeln!(text, "  {} {}: {}", id.display(), read("comm"), read("wchan"));
            let stack = fs::read_to_string(thread.join("stack")).unwrap_or_default();
            for line in stack.lines().take(LINES_MAX) {
                let _ = writeln!(text, "    {}", line.trim_start_matches("[<0>] "));
            }
        }
    }
    if processes.len() > PROCESSES_MAX {
        let _ = writeln!(text, "and {} processes more", processes.len() - PROCESSES_MAX);
    }
    text
}

/// What a file of /proc has; nothing of a thread that has ended meanwhile.
fn word(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_waits_is_told_with_what_it_waits_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let told = loop {
            let told = of(&[child.id() as i32]);
            // Before it has begun its program it waits for something else, or runs.
            if told.contains("nanosleep") || std::time::Instant::now() > until {
                break told;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(told.contains(&format!("process {} (sleep)", child.id())), "{told}");
        assert!(told.contains("sleep: ") && told.contains("nanosleep"), "{told}");
        assert_eq!(of(&[]), "");
    }
}
