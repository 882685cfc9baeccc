//! One file per command. Each has `run(args) -> Outcome`.

mod agent;
mod at_once;
mod bench;
mod bench_bar;
mod bench_caching;
mod bench_common;
mod bench_compare;
mod bench_compressed;
mod bench_io500;
mod bench_ior_json;
mod bench_machine;
mod bench_replay;
pub mod buffer;
mod buffer_lost;
mod cache;
mod cache_files;
mod cached;
mod check;
mod commit;
mod completions;
mod events;
mod exec;
pub mod hook;
mod in_child;
mod interrupted;
pub mod looking;
mod man;
mod man_markdown;
pub mod mount;
mod paths;
mod plan_text;
mod pool;
mod preload_library;
mod publish;
mod reconcile;
mod report;
mod rescue;
mod run;
mod serve;
mod sim;
mod sim_check;
mod stage;
mod stage_options;
mod stager;
mod status;
mod status_ending;
mod still_mounted;
mod stripe;
mod top;
mod trace;
mod trace_buffers;
mod trace_export;
mod trace_program;
mod trace_run;
mod trace_unrecorded;
mod umount;
mod umount_drain;
mod umount_ending;
mod umount_kept;
mod umount_live;
mod umount_lost;
mod umount_who;
mod validate;
mod verify;
mod which_buffer;

use crate::args::{Command, TraceArgs, TraceCommand};
use crate::failure::{Outcome, as_control_error, print_json};
use crate::json;

/// Runs a command. With `--json`, its error is printed as `{"error": ...}` too.
pub fn run(command: Command) -> Outcome {
    let json = wants_json(&command);
    let outcome = match command {
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Flush(args) => cache::flush(args),
        Command::Wait(args) => cache::wait(args),
        Command::Warm(args) => cache_files::warm(args),
        Command::Pin(args) => cache_files::pin(args),
        Command::Invalidate(args) => cache_files::invalidate(args),
        Command::Resolve(args) => cache::resolve(args),
        Command::DrainRate(args) => cache::drain_rate(args),
        Command::Status(args) => status::run(args),
        Command::Events(args) => events::run(args),
        Command::Top(args) => top::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Trace(TraceArgs { command_of: Some(TraceCommand::Export(args)), .. }) => {
            trace_export::run(args)
        }
        Command::Trace(args) => trace::run(args),
        Command::Report(args) => report::run(args),
        Command::Check(args) => check::run(args),
        Command::Bench(command) => bench::run(command),
        Command::Sim(command) => sim::run(command),
        Command::Stage(args) => stage::run(args),
        Command::Commit(args) => commit::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Rescue(args) => rescue::run(args),
        Command::Reconcile(args) => reconcile::run(args),
        Command::Buffer(args) => buffer::run(args),
        Command::Stripe(args) => stripe::run(args),
        Command::Publish(args) => publish::run(args),
        Command::Pool(args) => pool::run(args),
        Command::Run(args) => run::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    };
    if let (true, Err(error)) = (json, &outcome) {
        print_json(&json::error(&as_control_error(error)))?;
    }
    outcome
}

/// True if the command was asked for JSON.
fn wants_json(command: &Command) -> bool {
    use crate::args::{
        BufferCommand as B, PoolCommand as P, SimCommand as Simulate, StageCommand as S,
    };
    match command {
        Command::Mount(args) => args.json,
        Command::Umount(args) => args.json,
        Command::Flush(args) => args.json,
        Command::Wait(args) => args.json,
        Command::Warm(args) | Command::Invalidate(args) => args.json,
        Command::Pin(args) => args.json,
        Command::Resolve(args) => args.json,
        Command::DrainRate(args) => args.json,
        Command::Stage(S::In(args)) => args.json,
        Command::Stage(S::Out(args)) => args.copy.json,
        Command::Stage(S::Status(args)) => args.json,
        Command::Stage(S::Cancel(args) | S::Wait(args)) => args.json,
        Command::Stage(S::Rate(args)) => args.json,
        Command::Commit(args) => args.json,
        Command::Verify(args) => args.json,
        Command::Serve(args) => args.json,
        Command::Agent(args) => args.json,
        Command::Rescue(args) => args.json,
        Command::Reconcile(args) => args.json,
        Command::Buffer(B::Create(args)) => args.json,
        Command::Buffer(B::List(args)) => args.json,
        Command::Buffer(B::Status(args)) => args.json,
        Command::Buffer(B::Lost(args)) => args.json,
        Command::Buffer(B::Extend(args)) => args.json,
        Command::Buffer(B::Destroy(args)) => args.json,
        Command::Stripe(args) => match &args.command {
            Some(crate::args::StripeCommand::Set(set)) => set.json,
            None => args.json,
        },
        Command::Publish(args) => args.json,
        Command::Pool(P::Status(args)) => args.json,
        Command::Pool(P::Forget(args)) => args.json,
        Command::Pool(P::Leader(args)) => args.json,
        Command::Run(args) => args.json,
        Command::Validate(args) => args.json,
        Command::Status(args) => args.json,
        Command::Events(args) => args.json,
        Command::Top(args) => args.json,
        Command::Check(args) => args.json,
        Command::Bench(command) => command.json(),
        Command::Sim(Simulate::Run(args)) => args.json,
        Command::Sim(Simulate::Validate(args)) => args.json,
        Command::Sim(Simulate::Machine(args)) => args.json,
        Command::Sim(Simulate::Explain(args)) => args.json,
        Command::Sim(Simulate::Sweep(args)) => args.json,
        Command::Sim(Simulate::Size(args)) => args.json,
        Command::Sim(Simulate::Compare(args)) => args.json,
        Command::Sim(Simulate::Phold(args)) => args.json,
        Command::Sim(Simulate::Figure(args)) => args.json,
        Command::Sim(Simulate::Check(args)) => args.json,
        Command::Sim(Simulate::Calibrate(args)) => args.json,
        Command::Report(args) => args.json,
        Command::Trace(TraceArgs { command_of: Some(TraceCommand::Export(args)), .. }) => args.json,
        Command::Exec(_) | Command::Trace(_) | Command::Completions(_) | Command::Man(_) => false,
    }
}
