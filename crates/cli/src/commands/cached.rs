//! What a command asks of a cache: by the control socket of a mount, or of a `forebay serve`, which needs
//! no mount. A buffer served there is named `NAME:/PATH`, as with `forebay stage`.

use super::looking::Looking;
use super::stager::served_name;
use crate::args::ServerArgs;
use crate::servers::Server;
use forebay_client::{Control, server_process};
use forebay_proto::cache::{CacheRequest, CachedFile, TreeState};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::net::ledger::{BufferName, LedgerReply, LedgerRequest};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server is waited for that does not answer and is not seen stopped: as long as mounts are patient by default.
const SILENT_MAX: Duration = Duration::from_secs(60);
/// Pause before it is asked again: the mount's process has waited for it already.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// Who is asked.
pub enum Cached {
    /// The process of a mount, and who tells which server that waits for when it takes long.
    Mounted(Box<Control>, Looking),
    /// A server, about one of its buffers.
    Served(Box<Server>, BufferName),
}

impl Cached {
    /// The buffer and path that `NAME:/PATH` names; `None` for a path of this machine.
    pub fn named(text: &Path, at: &ServerArgs) -> anyhow::Result<Option<(Cached, PathBuf)>> {
        let Some(name) = served_name(text) else { return Ok(None) };
        let path = &text.as_os_str().as_bytes()[name.as_str().len() + 1..];
        let path = Path::new("/").join(OsStr::from_bytes(path));
        let server = Server::connect(at, Some(&name))?;
        Ok(Some((Cached::Served(Box::new(server), name), path)))
    }

    fn ask(
        server: &mut Server,
        name: &BufferName,
        request: CacheRequest,
    ) -> Result<LedgerReply, ControlError> {
        server.ask(&LedgerRequest::Cache { name: name.clone(), request, on_behalf: None })
    }

    /// A question about a tree.
    pub fn tree(&mut self, request: CacheRequest) -> Result<TreeState, ControlError> {
        match self {
            Cached::Mounted(control, _) => control.cache_tree(request),
            Cached::Served(server, name) => match Cached::ask(server, name, request)? {
                LedgerReply::CacheTree(tree) => Ok(*tree),
                _ => Err(server.unexpected()),
            },
        }
    }

    /// The same for who waits for what the answer tells: a server that is silent is asked again, as long as its process is seen
    /// stopped, else for [`SILENT_MAX`], but not beyond `until`.
    pub fn tree_patiently(
        &mut self,
        request: CacheRequest,
        until: Option<Instant>,
    ) -> Result<TreeState, ControlError> {
        let begun = Instant::now();
        loop {
            let error = match self.tree(request.clone()) {
                Err(error) if !self.gave_up() && Cached::is_of_silent_server(&error) => error,
                answer => return answer,
            };
            let is_stopped = error.why.contains(server_process::ARE_STOPPED);
            let is_over = until.is_some_and(|until| Instant::now() >= until);
            if is_over || (!is_stopped && begun.elapsed() >= SILENT_MAX) {
                return Err(error);
            }
            std::thread::sleep(ASK_PAUSE);
        }
    }

    /// True if the answer of a mount's process was not waited for, or it gave none. A server is waited for by its connection.
    pub fn gave_up(&self) -> bool {
        match self {
            Cached::Mounted(control, _) => control.gave_up(),
            Cached::Served(..) => true,
        }
    }

    /// Whether an error that a mount's process told says that a server of its buffer has not answered.
    pub fn is_of_silent_server(error: &ControlError) -> bool {
        let is_stopped = || error.why.contains(server_process::ARE_STOPPED);
        error.path.is_none() && (error.errno == Some(libc::ETIMEDOUT) || is_stopped())
    }

    /// A question about a file.
    pub fn file(&mut self, request: CacheRequest) -> Result<CachedFile, ControlError> {
        match self {
            Cached::Mounted(control, _) => control.cache_file(request),
            Cached::Served(server, name) => match Cached::ask(server, name, request)? {
                LedgerReply::CacheFile(file) => Ok(*file),
                _ => Err(server.unexpected()),
            },
        }
    }

    /// What has no answer but that it is done.
    pub fn tell(&mut self, request: CacheRequest) -> Result<(), ControlError> {
        match self {
            Cached::Mounted(control, _) => control.cache_tell(request),
            Cached::Served(server, name) => match Cached::ask(server, name, request)? {
                LedgerReply::Ok => Ok(()),
                _ => Err(server.unexpected()),
            },
        }
    }

    /// The files that a path in a served buffer stands for: itself, or all below it.
    pub fn files_below(&mut self, path: &Path) -> Result<Vec<PathBuf>, ControlError> {
        let (mut files, mut dirs) = (Vec::new(), vec![path.to_path_buf()]);
        while let Some(dir) = dirs.pop() {
            let mut after = None;
            loop {
                let request = CacheRequest::List {
                    path: PathBytes::new(dir.as_os_str().as_bytes()),
                    after: after.take(),
                };
                let Cached::Served(server, name) = self else { return Ok(files) };
                let list = match Cached::ask(server, name, request)? {
                    LedgerReply::CacheList(list) => list,
                    _ => return Err(server.unexpected()),
                };
                if list.is_file {
                    files.push(dir.clone());
                    break;
                }
                after = list.names.last().map(|(name, _)| name.clone());
                for (name, is_dir) in list.names {
                    let below = dir.join(OsStr::from_bytes(name.as_bytes()));
                    match is_dir {
                        true => dirs.push(below),
                        false => files.push(below),
                    }
                }
                if list.is_all {
                    break;
                }
            }
        }
        Ok(files)
    }
}
