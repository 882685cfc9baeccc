//! `forebay serve`: gives flash of this node away as buffers that any node can mount.

use super::mount::absolute;
use crate::args::ServeArgs;
use crate::daemon::serve::{ServePlan, serve};
use crate::daemon::{self, Reporter};
use crate::failure::{EXIT_OK, Outcome};
use crate::secrets;
use forebay_client::canonical;
use forebay_server::ServerOptions;
use forebay_server::flash;
use forebay_server::ledger::LedgerOptions;

/// Runs the command.
pub fn run(args: ServeArgs) -> Outcome {
    let flash = flash::resolve_flash(args.flash.as_deref())?;
    let key_path = absolute(&secrets::server_key_path(args.secret_file.as_deref())?)?;
    let foreground = !args.background;
    let pfs_roots = args.pfs_root.iter().map(|root| canonical(root)).collect::<Result<_, _>>()?;
    let plan = ServePlan {
        ledger: LedgerOptions {
            flash,
            capacity_bytes: args.capacity,
            granularity_bytes: args.granularity,
            server: ServerOptions { hold_orphans: true, pfs_roots, ..ServerOptions::default() },
            key: secrets::server_key(&key_path)?,
        },
        key_file: key_path,
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
