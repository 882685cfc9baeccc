//! The server that a `forebay stage` command speaks with: that of a mount, by its control socket,
//! or a `forebay serve`, which needs no mount. A buffer served there is named `NAME:`.
//!
//! A plan outlives its server: one that is away while a command waits for the plan is waited for, as
//! long as mounts wait ([`PATIENCE`]), and asked again.

use super::looking::{Looking, Work};
use super::{interrupted, which_buffer};
use crate::args::ServerArgs;
use crate::failure::visible;
use crate::hints::Asked;
use crate::said;
use crate::servers::ServedStaging;
use forebay_client::remote::PATIENCE;
use forebay_client::{Control, MountRef};
use forebay_proto::PlanId;
use forebay_proto::control::{ControlError, PlanStatus, StageSpec};
use forebay_proto::net::ledger::BufferName;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two looks at a plan of a served buffer: first, and at most.
const LOOK_FIRST: Duration = Duration::from_millis(5);
const LOOK_LONGEST: Duration = Duration::from_millis(250);
/// Pause before a server that is away is asked again.
const AWAY_PAUSE: Duration = Duration::from_millis(500);
/// What asking a server that is away, or is just starting, ends with.
const AWAY: [i32; 8] = [
    libc::ECONNREFUSED,
    libc::ECONNRESET,
    libc::EPIPE,
    libc::ETIMEDOUT,
    libc::EHOSTUNREACH,
    libc::ENETUNREACH,
    libc::ENOTCONN,
    libc::EAGAIN,
];

/// Where plans are.
pub enum Stager {
    /// At the server of a mount.
    Mounted(Box<(Control, MountRef)>),
    /// At a server, by the buffer's name.
    Served(Box<ServedStaging>),
}

/// The name in `NAME:` and `NAME:/path`; `None` for a path of this machine.
pub fn served_name(text: &Path) -> Option<BufferName> {
    let (name, rest) = text
        .as_os_str()
        .as_bytes()
        .split_at(text.as_os_str().as_bytes().iter().position(|byte| *byte == b':')?);
    let plain = matches!(rest, b":") || rest.starts_with(b":/");
    std::str::from_utf8(name).ok()?.parse().ok().filter(|_| plain)
}

impl Stager {
    /// The buffer that is named (`NAME:`, or a path in a mount), or the only one meant.
    pub fn connect(
        named: Option<&Path>,
        at: &ServerArgs,
        plans: &[PlanId],
    ) -> anyhow::Result<Stager> {
        match named.and_then(served_name) {
            Some(name) => Ok(Stager::Served(Box::new(ServedStaging::connect(at, &name)?))),
            None => Ok(Stager::Mounted(Box::new(which_buffer::connect(named, plans)?))),
        }
    }

    /// Starts a plan; it is journaled when this returns. A server that is away is asked again: by the token it
    /// knows whether the request came through before its answer was lost.
    pub fn start(&mut self, spec: StageSpec) -> Result<PlanStatus, ControlError> {
        let token = forebay_net::random::token()
            .map_err(|error| ControlError::io("start staging", None, &error))?;
        let mut away = Away::default();
        let _looking = self.looking("begin a plan in");
        loop {
            let started = match self {
                Stager::Mounted(mount) => mount.0.stage_start(spec.clone()),
                Stager::Served(served) => served.start(spec.clone(), &token),
            };
            let error = match started {
                Ok(started) => {
                    away.is_over();
                    return Ok(started);
                }
                Err(error) => error,
            };
            // EAGAIN says here that too many plans wait.
            let silent = error.errno.is_some_and(|e| e != libc::EAGAIN && AWAY.contains(&e));
            if silent && interrupted::is_interrupted() {
                return Err(interrupted::not_known(&self.who(), &self.flags()));
            }
            if !silent || matches!(self, Stager::Mounted(_)) {
                return Err(self.complete(error));
            }
            away.tell(self, error)?;
            self.pause_and_connect();
        }
    }

    /// State of a plan.
    pub fn status(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        let _looking = self.looking("ask for a plan of");
        let told = match self {
            Stager::Mounted(mount) => mount.0.stage_status(plan),
            Stager::Served(served) => served.status(plan),
        };
        told.map_err(|error| self.complete(error))
    }

    /// All plans that the caller may see.
    pub fn list(&mut self) -> Result<Vec<PlanStatus>, ControlError> {
        let _looking = self.looking("ask for the plans of");
        let told = match self {
            Stager::Mounted(mount) => mount.0.stage_list(),
            Stager::Served(served) => served.list(),
        };
        told.map_err(|error| self.complete(error))
    }

    /// Stops a plan.
    pub fn cancel(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        let _looking = self.looking("cancel a plan in");
        let told = match self {
            Stager::Mounted(mount) => mount.0.stage_cancel(plan),
            Stager::Served(served) => served.cancel(plan),
        };
        told.map_err(|error| self.complete(error))
    }

    /// Changes the rate limit of a plan; 0 = none.
    pub fn rate(&mut self, plan: PlanId, bytes_per_s: u64) -> Result<PlanStatus, ControlError> {
        let _looking = self.looking("change the rate of a plan in");
        let told = match self {
            Stager::Mounted(mount) => mount.0.stage_rate(plan, bytes_per_s),
            Stager::Served(served) => served.rate(plan, bytes_per_s),
        };
        told.map_err(|error| self.complete(error))
    }

    /// Calls `progress` with each state seen until the plan has ended, or it returns false.
    pub fn wait(
        &mut self,
        plan: PlanId,
        mut progress: impl FnMut(&PlanStatus) -> bool,
    ) -> Result<PlanStatus, ControlError> {
        let mut last = None;
        let mut away = Away::default();
        let looking = self.looking("follow a plan of");
        loop {
            let seen = self.wait_while_there(plan, |status| {
                away.is_over();
                if let Some(looking) = &looking {
                    looking.answered();
                }
                last = Some(status.clone());
                progress(status)
            });
            let error = match seen {
                Err(error) if self.is_away(&error) => error,
                other => return other.map_err(|error| self.complete(error)),
            };
            away.tell(self, error)?;
            if let Some(status) = last.take_if(|status| !progress(status)) {
                return Ok(status);
            }
            self.pause_and_connect();
        }
    }

    /// Before a server that is away is asked again.
    fn pause_and_connect(&mut self) {
        std::thread::sleep(AWAY_PAUSE);
        if let Stager::Served(served) = self
            && let Err(error) = served.connect_again()
        {
            // Asking on the old connection fails, and the asker looks at that.
            tracing::debug!(%error, "not there yet");
        }
    }

    /// The same, as long as the server answers.
    fn wait_while_there(
        &mut self,
        plan: PlanId,
        mut progress: impl FnMut(&PlanStatus) -> bool,
    ) -> Result<PlanStatus, ControlError> {
        if let Stager::Mounted(mount) = self {
            return mount.0.stage_wait(plan, progress);
        }
        let mut pause = LOOK_FIRST;
        loop {
            let status = self.status(plan)?;
            if !progress(&status) || status.state.is_final() {
                return Ok(status);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_LONGEST);
        }
    }

    /// Whether it is worth to ask again. The server of a private mount is its own process: that one does
    /// not come back by itself.
    fn is_away(&self, error: &ControlError) -> bool {
        let away = error.errno.is_some_and(|errno| AWAY.contains(&errno));
        away && match self {
            Stager::Mounted(mount) => Control::connect_store(&mount.1.store_dir).is_ok(),
            Stager::Served(_) => true,
        }
    }

    /// As long as it lives a mount's process is asked, which may wait for a server. A server that is asked itself needs none.
    fn looking(&self, what: &'static str) -> Option<Looking> {
        match self {
            Stager::Mounted(mount) => Some(Looking::in_mount(&mount.1, Work::Other(what))),
            Stager::Served(_) => None,
        }
    }

    /// The error, with a hint that names the buffer. What a server told names it already.
    fn complete(&self, error: ControlError) -> ControlError {
        match self {
            Stager::Mounted(_) => {
                Asked { plans_of: self.flags(), ..Asked::default() }.complete(error)
            }
            Stager::Served(_) => error,
        }
    }

    /// Who is waited for.
    pub fn who(&self) -> String {
        match self {
            Stager::Mounted(mount) => format!("the server of {}", mount.1.mount_point.display()),
            Stager::Served(served) => format!("the server {}", served.address()),
        }
    }

    /// How a command names this buffer, after a plan's number.
    pub fn flags(&self) -> String {
        match self {
            Stager::Mounted(mount) => {
                let point = forebay_jobs::run::words::shell_word(&mount.1.mount_point);
                format!("--buffer {point}")
            }
            Stager::Served(served) => served.flags(),
        }
    }

    /// What became of a plan whose server does not answer for it any more.
    pub fn lost(&self, plan: PlanId, error: ControlError) -> ControlError {
        if error.errno == Some(libc::ENOENT) {
            return error;
        }
        let flags = self.flags();
        let (of, dead, again) = match self {
            Stager::Mounted(mount) => {
                let answers = Control::connect_store(&mount.1.store_dir);
                let dead = answers.is_err_and(|e| e.errno != Some(libc::EACCES));
                (Some(mount.1.mount_point.as_path()), dead, "mount it again with the same command")
            }
            Stager::Served(_) => {
                let gone = [libc::ECONNRESET, libc::ECONNREFUSED, libc::EPIPE];
                let dead = error.errno.is_some_and(|errno| gone.contains(&errno));
                (None, dead, "start the server again with the same command")
            }
        };
        let (why, hint) = match dead {
            true => (
                "its server has ended".to_string(),
                format!(
                    "{again}: the plan then goes on, and `forebay stage wait {plan} {flags}` \
                     follows it"
                ),
            ),
            false => (
                error.to_string(),
                format!("it may go on: `forebay stage status {plan} {flags}` tells"),
            ),
        };
        let what = match of {
            Some(_) => format!("follow plan {plan} of"),
            None => format!("follow plan {plan}"),
        };
        ControlError::new(&what, of, &why).errno(error.errno.unwrap_or(libc::EIO)).hint(&hint)
    }
}

/// Since when a server does not answer; told once.
#[derive(Default)]
struct Away {
    since: Option<Instant>,
    /// Why, as it was said.
    said: Option<String>,
}

impl Away {
    /// It answers.
    fn is_over(&mut self) {
        if let Some(why) = self.said.take() {
            said::is_over(&why);
        }
        self.since = None;
    }

    /// Says that the server is waited for; the error once it was away for longer than [`PATIENCE`].
    fn tell(&mut self, stager: &Stager, error: ControlError) -> Result<(), ControlError> {
        if self.since.is_none() {
            // The server that is asked may tell of another one: that one is named, with what to do.
            let says_what_to_do =
                error.hint.as_ref().is_some_and(|hint| hint.contains("kill -CONT"));
            let why = match says_what_to_do || error.what.starts_with("ask server ") {
                true => error.to_string(),
                false => error.why.clone(),
            };
            // Who looks at the mount meanwhile may have named the process.
            if said::is_new(&why) {
                eprintln!("forebay: waiting for {}: {}", stager.who(), visible(&why));
            }
            self.said = Some(why);
        }
        match self.since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
            true => Ok(()),
            false => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_served_buffer_is_told_from_a_path() {
        let name = |text: &str| served_name(Path::new(text)).map(|name| name.to_string());
        assert_eq!(name("run.7:"), Some("run.7".into()));
        assert_eq!(name("run.7:/x"), Some("run.7".into()));
        for path in ["/mnt/a:", "./a:", "a", "a:3", ":", ""] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}
