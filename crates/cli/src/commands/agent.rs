//! `forebay agent`: mounts the buffers of jobs on this node, as a scheduler's hooks ask.

use super::paths::absolute;
use crate::args::AgentArgs;
use crate::daemon::agent::{AgentPlan, serve};
use crate::daemon::agent_swap::SwapPlace;
use crate::daemon::{self, Reporter};
use crate::failure::{EXIT_OK, Outcome};
use crate::secrets;
use forebay_jobs::hooks::site::{AgentSite, Site};
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::Key;

/// Runs the command.
pub fn run(args: AgentArgs) -> Outcome {
    let site = Site::load(&Site::path())?;
    let of_site = site.map_or_else(AgentSite::default, |site| site.agent);
    let mount_root = absolute(&args.mount_root.unwrap_or(of_site.mount_root))?;
    let swap_dir = args.swap_dir.or(of_site.swap_dir);
    let swap = match swap_dir.as_deref().map(absolute).transpose()? {
        Some(dir) => {
            let of_site = of_site.swap_capacity.map(|size| size.bytes);
            Some(SwapPlace { dir, capacity_bytes: args.swap_capacity.or(of_site) })
        }
        None => None,
    };
    let key_file = absolute(&secrets::server_key_path(args.secret_file.as_deref())?)?;
    // Never made here: an agent with a key of its own could mount nothing.
    let Some((Key::Server, key)) = secrets::read(&key_file)? else {
        let error = ControlError::new("read the servers' key", Some(&key_file), "there is none");
        let hint = secrets::where_the_key_is(None, &key_file);
        return Err(error.errno(libc::ENOENT).hint(&hint).into());
    };
    let plan = AgentPlan {
        key,
        key_file,
        addresses: args.listen,
        mount_root,
        swap,
        log_file: args.log_file.as_deref().map(absolute).transpose()?,
        log_level: args.log_level,
    };
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
    match args.background {
        false => work(Reporter::Terminal { json: args.json }),
        true => daemon::run_in_background(args.json, work),
    }
}
