//! `forebay reconcile`: the hooks' record compared with the scheduler's.

use super::rescue::site;
use crate::args::ReconcileArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use crate::scheduler::SiteBack;
use forebay_jobs::hooks::session::Sessions;
use forebay_jobs::hooks::{Hooks, Refusal};
use forebay_proto::control::ControlError;
use serde_json::json;

/// Runs the command.
pub fn run(args: ReconcileArgs) -> Outcome {
    let site = site()?;
    let sessions = Sessions::open(&site.state_dir)?;
    let back = SiteBack::new(&site);
    let hooks = Hooks::new(&site, &sessions, &back);
    let found = hooks.reconcile.compare(args.dry_run).map_err(|Refusal(why)| {
        ControlError::new("compare with the scheduler's record", None, &why)
    })?;
    if args.json {
        print_json(&json!({
            "ended_jobs": found.ended, "failed_jobs": found.failed, "unknown_buffers": found.unknown,
            "ended_on_nodes": found.ended_on_nodes, "unreachable_nodes": found.unreachable_nodes,
            "jobs_without_buffer": found.without_buffer,
        }))?;
    } else {
        let what = if args.dry_run { "would be torn down" } else { "torn down" };
        found.ended.iter().for_each(|job| {
            println!("job {job}: {what}, the scheduler calls no step of it any more")
        });
        for one in &found.ended_on_nodes {
            println!("job {} on node {}: {what}, nothing here knows it", one.job, one.node);
        }
        found.unreachable_nodes.iter().for_each(|why| eprintln!("forebay: {}", visible(why)));
        found.failed.iter().for_each(|why| eprintln!("forebay: job {}", visible(why)));
        for token in &found.without_buffer {
            eprintln!(
                "forebay: {}: Slurm counts a buffer of it, and there is none (`systemctl restart slurmctld` makes Slurm look \
                 again; running jobs go on)",
                visible(token)
            );
        }
        for buffer in &found.unknown {
            println!(
                "buffer {buffer}: no job here has it (`forebay buffer destroy {buffer}` removes it)"
            );
        }
    }
    Ok(if found.failed.is_empty() { EXIT_OK } else { EXIT_FAILED })
}
