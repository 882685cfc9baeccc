//! A command that runs beside the tests and needs nothing of them: it gets the processors while tests wait.
//!
//! It has the lowest priority. Its end is told when it comes, what it said only if it failed, and the run
//! fails with it. It dies with the runner.

use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The command.
pub struct Beside {
    line: String,
    child: Child,
    since: Instant,
    output: PathBuf,
    /// Whether it succeeded, once it has ended.
    ended: Option<bool>,
}

impl Beside {
    /// Starts a line of the shell in a directory; what it says goes to `output`.
    pub fn start(line: &str, directory: &Path, output: PathBuf) -> Result<Beside> {
        let file =
            File::create(&output).with_context(|| format!("cannot make {}", output.display()))?;
        let mut command = Command::new("nice");
        command
            .args(["-n", "19", "sh", "-c", line])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        // SAFETY: one call of the kernel, which a process may make between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("cannot run `{line}`"))?;
        Ok(Beside { line: line.to_string(), child, since: Instant::now(), output, ended: None })
    }

    /// Tells its end, if it has come since the last look.
    pub fn look(&mut self) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        if let Some(status) = self.child.try_wait()? {
            self.tell(status.success());
        }
        Ok(())
    }

    /// Waits for its end. False if it failed.
    pub fn wait(&mut self) -> Result<bool> {
        if let Some(is_good) = self.ended {
            return Ok(is_good);
        }
        println!("waits for `{}`", self.line);
        let is_good = self.child.wait()?.success();
        self.tell(is_good);
        Ok(is_good)
    }

    /// The command.
    pub fn line(&self) -> &str {
        &self.line
    }

    fn tell(&mut self, is_good: bool) {
        self.ended = Some(is_good);
        let word = if is_good { "ok" } else { "FAILED" };
        println!("{word:6} {:7.2} s  {}", self.since.elapsed().as_secs_f64(), self.line);
        if !is_good {
            let said = std::fs::read(&self.output).unwrap_or_default();
            println!("---- {}\n{}\n----", self.line, String::from_utf8_lossy(&said));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_command_is_its_exit_code() {
        let here = std::env::temp_dir();
        for (line, is_good) in
            [("true", true), ("echo no; exit 3", false), ("no-such-command-x", false)]
        {
            let output = here.join(format!("forebay-beside-{}-{}", std::process::id(), line.len()));
            let mut beside = Beside::start(line, &here, output.clone()).unwrap();
            assert_eq!(beside.wait().unwrap(), is_good, "{line}");
            beside.look().unwrap();
            assert_eq!(beside.wait().unwrap(), is_good, "{line}: asked again");
            std::fs::remove_file(output).unwrap();
        }
    }
}
