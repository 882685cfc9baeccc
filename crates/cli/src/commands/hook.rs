//! `forebay` called as `dw_wlm_cli` or `dwstat`: the steps of a job's buffer as Slurm's burst-buffer plugins call
//! them, and the tables that users of DataWarp know.
//!
//! Standard output is the answer and nothing else; standard error is never used, for the plugin merges both ([`quiet`] comes
//! before all else). Each call leaves a line in `hooks.log` in the site's state directory. Exit codes: 0 done, 1 failed.

use crate::failure::{EXIT_FAILED, EXIT_OK};
use crate::scheduler::SiteBack;
use forebay_jobs::hooks::answers;
use forebay_jobs::hooks::call::{self, Call};
use forebay_jobs::hooks::session::{Sessions, open_log};
use forebay_jobs::hooks::site::Site;
use forebay_jobs::hooks::{Done, Hooks, Refusal, one_line};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest that a question may take which a scheduler asks with its locks held: below a second, which is promised.
const AT_ONCE: Duration = Duration::from_millis(800);
const _: () = assert!(AT_ONCE.as_millis() < 1_000);
/// In the state directory.
const LOG_NAME: &str = "hooks.log";
/// Longest log of calls; the one before it is kept beside it.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Under which name this executable is a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// `dw_wlm_cli`.
    Steps,
    /// `dwstat`.
    Tables,
}

/// Whether this executable was called as a hook.
pub fn front(program: Option<&OsStr>) -> Option<Front> {
    match Path::new(program?).file_name()?.to_str()? {
        "dw_wlm_cli" => Some(Front::Steps),
        "dwstat" => Some(Front::Tables),
        _ => None,
    }
}

/// Runs as a hook, after [`quiet`].
pub fn run(front: Front, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let begun = Instant::now();
    let words: Vec<OsString> = arguments.collect();
    let site = match Site::load(&Site::path()) {
        Ok(Some(site)) => site,
        Ok(None) => {
            let text =
                format!("there is no {}: the site is not configured", Site::path().display());
            return say(&Err(Refusal::new(&text)));
        }
        Err(error) => return say(&Err(error.into())),
    };
    let done = match front {
        Front::Steps => step(&site, words.clone()),
        Front::Tables => tables(&site, &words),
    };
    log(&site.state_dir, front, &words, &done, begun.elapsed());
    say(&done)
}

/// Nothing that this process starts or writes may keep the scheduler's pipes, or spoil its answer. The first that a hook does.
pub fn quiet() {
    let null = File::options().write(true).open("/dev/null");
    // SAFETY: plain numbers of descriptors; `null` lives until it is duplicated, and nothing uses a descriptor above 2
    // yet: this process has just begun.
    unsafe {
        if let Ok(null) = null {
            libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO);
        }
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32);
    }
}

/// Slurm (22.05) may kill the teardown of a job that is cancelled while it waits: it kills all that runs for the job, by
/// their process group, in one thread, and starts the teardown in another. It does not call it again, so the teardown goes
/// on without the group. Its limits are its own, and it keeps nothing of Slurm's open but the pipe of its answer.
fn leave_the_group() {
    // A leader of its group cannot leave it: by the DataWarp plugin, which kills first and starts then.
    let _ = rustix::process::setsid();
}

/// Ends a hook that did not begin: what is wrong goes where the scheduler reads.
pub fn refuse(wrong: &anyhow::Error) -> ExitCode {
    say(&Err(Refusal::new(&format!("{wrong:#}"))))
}

fn say(done: &Done) -> ExitCode {
    let (text, code) = match done {
        Ok(text) => (text, EXIT_OK),
        Err(Refusal(text)) => (text, EXIT_FAILED),
    };
    if !text.is_empty() {
        // Whoever does not read the answer any more does not need it.
        let _ = write!(std::io::stdout(), "{text}");
    }
    ExitCode::from(code)
}

fn with_hooks<T>(
    site: &Site,
    work: impl FnOnce(&Hooks<'_>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let sessions = Sessions::open(&site.state_dir)?;
    let back = SiteBack::new(site);
    work(&Hooks::new(site, &sessions, &back))
}

/// Does it, and gives it up after [`AT_ONCE`]: the end of the process ends it.
fn at_once(
    site: &Site,
    what: &str,
    work: impl FnOnce(&Hooks<'_>) -> Done + Send + 'static,
) -> Done {
    let site = site.clone();
    within(AT_ONCE, what, move || with_hooks(&site, work))
}

/// What a thread says within the limit. It is not waited for any longer, and goes on.
fn within(limit: Duration, what: &str, work: impl FnOnce() -> Done + Send + 'static) -> Done {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        // Who waits may have given up.
        let _ = tell.send(work());
    });
    told.recv_timeout(limit).unwrap_or_else(|_| {
        Err(Refusal::new(&format!("{what}: no answer within {} ms", limit.as_millis())))
    })
}

fn step(site: &Site, words: Vec<OsString>) -> Done {
    let call = Call::parse(words).map_err(|why| Refusal::new(&why))?;
    let token = || call::token(call.token.as_deref());
    let job = call.job.as_deref();
    match call.function.as_str() {
        "pools" => at_once(site, "ask the servers for their pools", |hooks| hooks.answers.pools())
            .or_else(|why| answers::last_answer(&site.state_dir).ok_or(why)),
        "show_sessions" => with_hooks(site, |hooks| hooks.answers.show_sessions()),
        "show_instances" => with_hooks(site, |hooks| hooks.answers.show_instances()),
        "show_configurations" => with_hooks(site, |hooks| hooks.answers.show_configurations()),
        "job_process" => {
            let job = call.job.clone();
            at_once(site, "look at the script", move |hooks| {
                hooks.setup.job_process(job.as_deref())
            })
        }
        "paths" => {
            let token = token()?;
            let call = call.clone();
            at_once(site, "make the job's environment", move |hooks| {
                hooks.mounts.paths(&token, call.job.as_deref(), call.path_file.as_deref())
            })
        }
        "setup" => {
            let who = call.user.zip(call.group);
            let who = who.ok_or_else(|| Refusal::new("--user and --groupid are missing"))?;
            with_hooks(site, |hooks| hooks.setup.make(&token()?, who, job))
        }
        "data_in" => with_hooks(site, |hooks| hooks.staging.data_in(&token()?)),
        "real_size" => with_hooks(site, |hooks| hooks.staging.real_size(&token()?)),
        "pre_run" => with_hooks(site, |hooks| {
            hooks.mounts.pre_run(&token()?, call.node_file.as_deref(), call.nodes.as_deref())
        }),
        "post_run" => with_hooks(site, |hooks| hooks.mounts.post_run(&token()?)),
        "data_out" => with_hooks(site, |hooks| hooks.staging.data_out(&token()?)),
        "teardown" => {
            leave_the_group();
            with_hooks(site, |hooks| hooks.teardown.end(&token()?, call.hurry))
        }
        "create_persistent" => with_hooks(site, |hooks| hooks.persistent.create(&call)),
        other => Err(Refusal::new(&format!("invalid function {other}"))),
    }
}

fn tables(site: &Site, words: &[OsString]) -> Done {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    at_once(site, "ask for the state", move |hooks| hooks.tables.text(&words))
}

/// Notes a call: when, what, how it ended, how long it took.
fn log(dir: &Path, front: Front, words: &[OsString], done: &Done, took: Duration) {
    let path = dir.join(LOG_NAME);
    if fs::metadata(&path).is_ok_and(|meta| meta.len() > MAX_LOG_BYTES) {
        // Of two at once one finds it moved already.
        let _ = fs::rename(&path, dir.join("hooks.log.1"));
    }
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (code, said) = match done {
        Ok(said) => (0, said),
        Err(Refusal(said)) => (1, said),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = format!(
        "{}.{:03} {front:?} {:.1} ms exit {code}: {}: {}\n",
        now.as_secs(),
        now.subsec_millis(),
        took.as_secs_f64() * 1e3,
        one_line(&words.join(" ")),
        one_line(said),
    );
    // A step is worth more than its line in a log.
    let _ = open_log(dir, LOG_NAME).and_then(|mut file| file.write_all(line.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By no clock: who waited longer than the limit would wait for ever here.
    #[test]
    fn what_does_not_answer_within_the_limit_is_given_up() {
        let (end, until_the_end) = mpsc::channel::<()>();
        let work = move || -> Done {
            let _ = until_the_end.recv();
            Ok("too late".to_string())
        };
        let said = within(Duration::from_millis(7), "ask", work);
        assert_eq!(said, Err(Refusal("ask: no answer within 7 ms".into())));
        drop(end);
        let said = within(Duration::from_secs(3_600), "ask", || Ok("in time".to_string()));
        assert_eq!(said, Ok("in time".to_string()));
    }
}
