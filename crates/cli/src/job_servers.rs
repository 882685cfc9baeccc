//! Servers, as `forebay run --server` asks them: the job's buffer made, staged and destroyed.
//!
//! Who made a buffer may end it: both are asked with the same credential, so that a job whose
//! runner was killed before it had the buffer's secret can still give it back.

use crate::args::ServerArgs;
use crate::commands::buffer;
use crate::commands::looking::{Looking, Work};
use crate::daemon::ServerWait;
use crate::failure::as_control_error;
use crate::secrets;
use crate::servers::{self, ServedStaging, Server};
use forebay_jobs::run::record::{JobRecord, as_path};
use forebay_jobs::run::served::{Plans, ServedJob, Servers, access, is_away};
use forebay_net::ServerAddress;
use forebay_proto::PlanId;
use forebay_proto::control::{ControlError, PlanStatus, StageSpec, StoreKind};
use forebay_proto::net::ledger::{
    BufferName, BufferSpec, BufferState, BufferType, CacheSpec, LedgerReply, LedgerRequest,
    ServedBuffer, Token,
};
use forebay_store::flash::{self, StoreKey};
use std::any::Any;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for a server that is away, when a buffer is to be given back.
const AWAY_LIMIT: Duration = Duration::from_secs(60);
/// The same when a buffer is given up: for one that only has a part of it, once the server that is asked has on record that it goes.
const PART_AWAY_LIMIT: Duration = Duration::from_secs(5);
/// How long names and attributes of a job's cache are believed, and when it drains: as `forebay mount
/// --cache` has it.
const CACHE_TTL_MS: u64 = 1_000;
const CACHE_POLICY: &str = "idle";
/// Pause between two tries.
const AWAY_PAUSE: Duration = Duration::from_millis(500);

/// The servers of jobs.
#[derive(Debug)]
pub struct JobServers;

fn at(job: &ServedJob) -> Result<ServerArgs, ControlError> {
    let server: ServerAddress = job.server.parse().map_err(|error| {
        let what = format!("ask the server {}", job.server);
        ControlError::new(&what, None, &format!("{error}")).errno(libc::EINVAL)
    })?;
    let secret_file = job.secret_file.as_ref().map(|path| as_path(path).to_path_buf());
    Ok(ServerArgs { server: Some(server), secret_file })
}

fn connect(job: &ServedJob) -> Result<Server, ControlError> {
    Server::connect(&at(job)?, None).map_err(|error| as_control_error(&error))
}

/// Says, until it is dropped, why there is no answer if that takes long, however often the job's server is asked meanwhile.
fn tell_of_waits(at: &ServerArgs) -> Option<ServerWait> {
    servers::tell_of_waits(at).ok()
}

/// The same again and again, for who asks but once and may wait for long.
fn tell_of_long_waits(job: &ServedJob) -> Option<ServerWait> {
    servers::tell_of_long_waits(&at(job).ok()?).ok()
}

/// `--store`, by its name on the command line.
fn store_kind(name: &str) -> Option<StoreKind> {
    use clap::ValueEnum;
    crate::args::StoreChoice::from_str(name, false).ok().map(Into::into)
}

impl Servers for JobServers {
    fn create(&self, record: &JobRecord, job: &ServedJob) -> Result<ServedBuffer, ControlError> {
        let spec = BufferSpec {
            name: job.buffer.clone(),
            capacity_bytes: record.request.capacity_bytes,
            buffer_type: match record.request.cache {
                Some(_) => BufferType::Cache,
                None => BufferType::Scratch,
            },
            cache: record.request.cache.as_ref().map(|pfs| CacheSpec {
                pfs: pfs.clone(),
                ttl_ms: CACHE_TTL_MS,
                writes_by_kernel: true,
                policy: CACHE_POLICY.into(),
                verify: record.verify,
                rate_bytes_per_s: 0,
            }),
            access: access(record),
            servers: job.servers,
            store_kind: record.store.as_deref().and_then(store_kind),
            log: record.request.log,
        };
        let token = Token(job.token.clone());
        let (made, secret) = buffer::ask_until_answered(&at(job)?, &token, &spec)
            .map_err(|error| as_control_error(&error))?;
        secrets::keep_buffer(&job.buffer, &secret)?;
        Ok(*made)
    }

    fn reach(&self, job: &ServedJob) -> Result<(), ControlError> {
        let _told = tell_of_long_waits(job);
        connect(job).map(drop)
    }

    fn destroy(&self, job: &ServedJob, discard: bool) -> Result<(), ControlError> {
        let _told = tell_of_long_waits(job);
        let request = LedgerRequest::Destroy { name: job.buffer.clone(), force: true, discard };
        let begun = Instant::now();
        loop {
            let answer = connect(job).and_then(|mut server| match server.ask(&request)? {
                LedgerReply::Ok => Ok(()),
                _ => Err(server.unexpected()),
            });
            let error = match answer {
                Ok(()) => return secrets::forget_buffer(&job.buffer),
                Err(error) if is_away(&error) => error,
                Err(error) => return Err(error),
            };
            let found = if discard { self.find(job).ok().flatten() } else { None };
            let is_going = found.is_some_and(|buffer| buffer.state == BufferState::Destroying);
            let limit = if is_going { PART_AWAY_LIMIT } else { AWAY_LIMIT };
            if begun.elapsed() >= limit {
                if is_going {
                    secrets::forget_buffer(&job.buffer)?;
                }
                return Err(error);
            }
            std::thread::sleep(AWAY_PAUSE);
        }
    }

    fn status(&self, job: &ServedJob) -> Result<ServedBuffer, ControlError> {
        let _told = tell_of_long_waits(job);
        connect(job)?.buffer(&LedgerRequest::Status { name: job.buffer.clone() })
    }

    fn find(&self, job: &ServedJob) -> Result<Option<ServedBuffer>, ControlError> {
        let _told = tell_of_long_waits(job);
        // A socket that is not there is no answer about the buffer.
        let mut server = connect(job)?;
        match server.buffer(&LedgerRequest::Status { name: job.buffer.clone() }) {
            Err(error) if error.errno == Some(libc::ENOENT) => Ok(None),
            found => found.map(Some),
        }
    }

    fn secret(&self, job: &ServedJob) -> Result<Option<String>, ControlError> {
        if matches!(at(job)?.server, Some(ServerAddress::Unix(_))) {
            // There the kernel says who asks.
            return Ok(None);
        }
        secrets::buffer_text(&job.buffer)
    }

    fn plans(&self, job: &ServedJob) -> Result<Box<dyn Plans>, ControlError> {
        let name = job.buffer.clone();
        Ok(Box::new(JobPlans { at: at(job)?, name, open: None, told: None }))
    }

    fn is_on_flash(&self, flash: &Path, point: &Path) -> Result<bool, ControlError> {
        flash::is_own_directory(&flash::store_dir(flash, &StoreKey::mount(point)))
    }

    fn tell_of_mount(&self, point: &Path, what: &'static str) -> Box<dyn Any> {
        Box::new(Looking::at(point, Work::Long(what)))
    }
}

/// Staging of a job's buffer, over as many connections as it takes: a server that comes back has
/// its plans still.
struct JobPlans {
    at: ServerArgs,
    name: BufferName,
    open: Option<ServedStaging>,
    /// Since a question was answered by nobody.
    told: Option<ServerWait>,
}

impl JobPlans {
    fn ask(
        &mut self,
        question: impl FnOnce(&mut ServedStaging) -> Result<PlanStatus, ControlError>,
    ) -> Result<PlanStatus, ControlError> {
        let answer = self.ask_once(question);
        // Who asks tries again, and each try may be short.
        self.told = match answer.as_ref().is_err_and(is_away) {
            true => self.told.take().or_else(|| tell_of_waits(&self.at)),
            false => None,
        };
        answer
    }

    fn ask_once(
        &mut self,
        question: impl FnOnce(&mut ServedStaging) -> Result<PlanStatus, ControlError>,
    ) -> Result<PlanStatus, ControlError> {
        let mut staging = match self.open.take() {
            Some(staging) => staging,
            None => ServedStaging::connect(&self.at, &self.name)
                .map_err(|error| as_control_error(&error))?,
        };
        let answer = question(&mut staging);
        if !answer.as_ref().is_err_and(is_away) {
            self.open = Some(staging);
        }
        answer
    }
}

impl Plans for JobPlans {
    fn start(&mut self, spec: StageSpec, token: &Token) -> Result<PlanStatus, ControlError> {
        self.ask(|staging| staging.start(spec, token))
    }

    fn status(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.ask(|staging| staging.status(plan))
    }

    fn cancel(&mut self, plan: PlanId) -> Result<PlanStatus, ControlError> {
        self.ask(|staging| staging.cancel(plan))
    }
}
