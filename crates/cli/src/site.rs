//! What commands take from the site's configuration file (`forebay_jobs::hooks::site`) where neither a flag nor a variable
//! says it: the flash directory, the servers, the roots of the PFS.
//!
//! Invariants: a flag goes before its variable, and that before the file; the file is read only by a command that needs
//! something of it, so that a mistake in it stops no other one. Called by the commands.

use forebay_jobs::hooks::site::Site;
use forebay_net::ServerAddress;
use forebay_proto::control::ControlError;
use std::path::{Path, PathBuf};

/// The variable that goes before the file's `flash`.
const FLASH_VARIABLE: &str = "FOREBAY_FLASH";

/// The flash directory of a command: `given` (--flash), else of the file unless $FOREBAY_FLASH is set. `None`: the store
/// looks at the variables.
///
/// # Errors
/// What is wrong with the file.
pub fn flash(given: Option<&Path>) -> Result<Option<PathBuf>, ControlError> {
    let set = std::env::var_os(FLASH_VARIABLE).is_some_and(|value| !value.is_empty());
    match given {
        Some(given) => Ok(Some(given.to_path_buf())),
        None if set => Ok(None),
        None => Ok(Site::load(&Site::path())?.and_then(|site| site.flash)),
    }
}

/// The directories in which buffers that are kept or ending are looked for without --flash, those beside stores in use
/// among them. A file that cannot be read adds none.
pub fn usual_places() -> Vec<PathBuf> {
    let of_site = Site::load(&Site::path()).ok().flatten().and_then(|site| site.flash);
    forebay_store::flash::usual_places(of_site, forebay_store::flash::in_use())
}

/// A server of the site's default pool, if there is one.
///
/// # Errors
/// What is wrong with the file.
pub fn server() -> Result<Option<ServerAddress>, ControlError> {
    let path = Site::path();
    let Some(site) = Site::load(&path)? else { return Ok(None) };
    let Some(pool) = site.default_pool().and_then(|name| site.pools.get(name)) else {
        return Ok(None);
    };
    match pool.server.parse() {
        Ok(address) => Ok(Some(address)),
        Err(error) => {
            let what = "read the server in the site's configuration";
            let why = format!("{:?}: {error}", pool.server);
            Err(ControlError::new(what, Some(&path), &why).errno(libc::EINVAL))
        }
    }
}

/// Directories of the PFS, of a server that was given none.
///
/// # Errors
/// What is wrong with the file.
pub fn pfs_roots(given: Vec<PathBuf>) -> Result<Vec<PathBuf>, ControlError> {
    match given.is_empty() {
        true => Ok(Site::load(&Site::path())?.map_or_else(Vec::new, |site| site.pfs_roots)),
        false => Ok(given),
    }
}
