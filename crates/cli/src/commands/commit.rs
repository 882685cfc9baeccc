//! `forebay commit`: publishes a tree on the PFS at once, and tells what became of commits.
//!
//! A commit is a staging plan: `stage` has what follows one, and `forebay stage wait|cancel|rate`
//! take its number too. The exit code is 0 only for a tree that is published.

use super::plan_text::{error_text, line};
use super::stage::{
    catch_interrupt, follow, in_mount, of_all_buffers, path_bytes, print_errors, print_waited_for,
};
use super::stager::Stager;
use crate::args::CommitArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, print_json, visible};
use crate::servers::{BufferPath, ServedStaging};
use anyhow::Context;
use forebay_proto::PlanId;
use forebay_proto::commit::CommitSpec;
use forebay_proto::control::{
    Direction, PlanState, PlanStatus, StageKind, StageOptions, StageSpec,
};
use std::ffi::OsStr;
use std::path::Path;

/// Runs the command.
pub fn run(args: CommitArgs) -> Outcome {
    match (&args.status, &args.source, &args.to) {
        (Some(asked), ..) => status(&args, asked.as_deref()),
        (None, Some(source), Some(to)) => commit(&args, source, to),
        // The parser lets nothing else through.
        _ => Ok(EXIT_FAILED),
    }
}

fn commit(args: &CommitArgs, source: &Path, to: &Path) -> Outcome {
    let (mut stager, buffer_path) = match BufferPath::parse(source.as_os_str()) {
        Some(place) => {
            let served = ServedStaging::connect(&args.at, &place.name)?;
            (Stager::Served(Box::new(served)), place.path)
        }
        None => in_mount(Direction::Out, (to, None), source)?,
    };
    let absolute = std::path::absolute(to).context("find the current directory")?;
    let _caught = (!args.background).then(|| catch_interrupt(&stager, None, args.json));
    let started = stager.start(StageSpec {
        direction: Direction::Out,
        kind: StageKind::Directory,
        pfs_path: path_bytes(&absolute),
        buffer_path,
        verify: args.verify.into(),
        rate_bytes_per_s: args.rate.unwrap_or(0),
        keep_going: true,
        retries: args.retries,
        seen_at: None,
        commit: Some(CommitSpec { keep_old: args.keep_old, replace: args.replace }),
        options: StageOptions::default(),
    })?;
    if args.background {
        match args.json {
            true => print_json(&started)?,
            false => println!("{}", started.plan),
        }
        return Ok(EXIT_OK);
    }
    follow(&mut stager, &[started.plan], args.json)
}

fn status(args: &CommitArgs, asked: Option<&OsStr>) -> Outcome {
    let plan = asked.and_then(|asked| asked.to_str()?.parse().ok()).map(PlanId);
    let named = args.buffer.as_deref().or(args.source.as_deref());
    let path = match plan {
        None => asked.map(Path::new).or(named),
        Some(_) => named,
    };
    let Some(plan) = plan else {
        let mut commits = match path {
            Some(_) => Stager::connect(path, &args.at, &[])?.list()?,
            None => of_all_buffers(|plan| plan.commit.is_some())?,
        };
        commits.retain(|plan| plan.commit.is_some());
        match args.json {
            true => commits.iter().try_for_each(print_json)?,
            false => commits.iter().for_each(|one| {
                println!("{}", visible(&listed(one)));
                print_waited_for(one);
            }),
        }
        return Ok(EXIT_OK);
    };
    let mut stager = Stager::connect(path, &args.at, &[plan])?;
    let one = stager.status(plan)?;
    match args.json {
        true => print_json(&one)?,
        false => {
            println!("{}", visible(&line(&one)));
            print_waited_for(&one);
            print_errors(&one, &stager.flags());
        }
    }
    Ok(EXIT_OK)
}

/// A commit in the list of all: what failed says why, as its first error has it.
fn listed(status: &PlanStatus) -> String {
    let line = line(status);
    match (status.state, status.errors.first()) {
        (PlanState::Failed, Some(error)) => {
            format!("{line}; why: {}", error_text(error))
        }
        _ => line,
    }
}
