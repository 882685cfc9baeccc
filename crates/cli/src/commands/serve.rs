//! `forebay serve`: gives flash of this node away as buffers that any node can mount.

use super::paths::absolute;
use crate::args::ServeArgs;
use crate::daemon::serve::{ServePlan, serve};
use crate::daemon::{self, Reporter};
use crate::failure::{EXIT_OK, Outcome};
use crate::{secrets, site};
use forebay_client::canonical;
use forebay_net::ServerAddress;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Secret;
use forebay_server::ServerOptions;
use forebay_server::ledger::{LedgerOptions, is_member};
use forebay_store::flash;
use std::path::Path;

/// Runs the command.
pub fn run(args: ServeArgs) -> Outcome {
    let flash = flash::resolve_flash(site::flash(args.flash.as_deref())?.as_deref())?;
    let key_path = absolute(&secrets::server_key_path(args.secret_file.as_deref())?)?;
    let foreground = !args.background;
    let pfs_roots = site::pfs_roots(args.pfs_root)?;
    let pfs_roots = pfs_roots.iter().map(|root| canonical(root)).collect::<Result<_, _>>()?;
    let plan = ServePlan {
        ledger: LedgerOptions {
            capacity_bytes: args.capacity,
            granularity_bytes: args.granularity,
            server: ServerOptions { hold_orphans: true, pfs_roots, ..ServerOptions::default() },
            key: key(&key_path, &flash, args.join.as_ref())?,
            flash,
        },
        key_file: key_path,
        own_socket: !args.no_own_socket,
        addresses: args.listen,
        advertise: args.advertise,
        join: args.join,
        http: args.http,
        log_file: args.log_file.as_deref().map(absolute).transpose()?,
        log_level: args.log_level,
        foreground,
    };
    args.cpu.apply();
    let work = move |report: Reporter| -> Outcome {
        let failed = report.another()?;
        match serve(plan, report) {
            Ok(()) => Ok(EXIT_OK),
            Err(error) => {
                failed.failed(&error);
                Err(error.into())
            }
        }
    };
    match foreground {
        true => work(Reporter::Terminal { json: args.json }),
        false => daemon::run_in_background(args.json, work),
    }
}

/// The server's key. The first server of a pool makes one where there is none; the others need the same one, and a
/// new one would only lock them out.
fn key(path: &Path, flash: &Path, join: Option<&ServerAddress>) -> anyhow::Result<Secret> {
    let is_there = secrets::read(path)?.is_some();
    if !is_there && (join.is_some() || is_member(flash)?) {
        let what = match join {
            Some(address) => format!("join the pool of {address}"),
            None => "go on as a member of a pool".to_string(),
        };
        let why = "the servers of a pool have one key, and here is none at";
        let error = ControlError::new(&what, None, &format!("{why} {}", path.display()));
        return Err(error.errno(libc::ENOENT).hint(&secrets::where_the_key_is(join, path)).into());
    }
    Ok(secrets::server_key(path)?)
}
