//! One file per command. Each has `run(args) -> Outcome`.

pub mod buffer;
mod buffer_lost;
mod cache;
mod cache_files;
mod cached;
mod check;
mod commit;
mod completions;
mod events;
mod man;
pub mod mount;
mod pool;
mod run;
mod serve;
mod stage;
mod stager;
mod status;
mod stripe;
mod top;
mod umount;
mod validate;
mod which_buffer;

use crate::args::Command;
use crate::failure::{Outcome, as_control_error, print_json};

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
        Command::Check(args) => check::run(args),
        Command::Stage(args) => stage::run(args),
        Command::Commit(args) => commit::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Buffer(args) => buffer::run(args),
        Command::Stripe(args) => stripe::run(args),
        Command::Pool(args) => pool::run(args),
        Command::Run(args) => run::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    };
    if let (true, Err(error)) = (json, &outcome) {
        print_json(&serde_json::json!({ "error": as_control_error(error) }))?;
    }
    outcome
}

/// True if the command was asked for JSON.
fn wants_json(command: &Command) -> bool {
    use crate::args::{BufferCommand as B, PoolCommand as P, StageCommand as S};
    match command {
        Command::Mount(args) => args.json,
        Command::Umount(args) => args.json,
        Command::Flush(args) => args.json,
        Command::Wait(args) => args.json,
        Command::Warm(args) | Command::Invalidate(args) => args.json,
        Command::Pin(args) => args.json,
        Command::Resolve(args) => args.json,
        Command::DrainRate(_) => false,
        Command::Stage(S::In(args) | S::Out(args)) => args.json,
        Command::Stage(S::Status(args)) => args.json,
        Command::Stage(S::Cancel(args) | S::Wait(args)) => args.json,
        Command::Stage(S::Rate(args)) => args.json,
        Command::Commit(args) => args.json,
        Command::Serve(args) => args.json,
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
        Command::Pool(P::Status(args)) => args.json,
        Command::Pool(P::Forget(args)) => args.json,
        Command::Pool(P::Keeper(args)) => args.json,
        Command::Run(args) => args.json,
        Command::Validate(args) => args.json,
        Command::Status(args) => args.json,
        Command::Events(args) => args.json,
        Command::Top(args) => args.json,
        Command::Check(args) => args.json,
        Command::Completions(_) | Command::Man(_) => false,
    }
}
