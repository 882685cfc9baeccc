//! The command line as a command.
//!
//! All commands together have hundreds of options. Building those took longer than all else that a short command does, so those of
//! the command that is named are built alone. Where they do not fit, everything is built and says what is wrong, or helps.

use crate::args::{Cli, Command};
use clap::{Args, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;

/// What this process is called with.
pub fn parse() -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match named(&arguments) {
        Some(command) => Ok(Cli { command }),
        None => Cli::try_parse_from(arguments),
    }
}

/// The command that the first argument names, if the others fit it. Commands that are asked for seldom are not looked for.
fn named(arguments: &[OsString]) -> Option<Command> {
    let arguments = arguments.get(1..)?;
    let command = match arguments.first()?.to_str()? {
        "mount" => Command::Mount(one(arguments)?),
        "flush" => Command::Flush(one(arguments)?),
        "wait" => Command::Wait(one(arguments)?),
        "umount" => Command::Umount(one(arguments)?),
        "stage" => Command::Stage(one_of(arguments)?),
        "commit" => Command::Commit(one(arguments)?),
        "serve" => Command::Serve(one(arguments)?),
        "buffer" => Command::Buffer(one_of(arguments)?),
        "publish" => Command::Publish(one(arguments)?),
        "pool" => Command::Pool(one_of(arguments)?),
        "status" => Command::Status(one(arguments)?),
        "events" => Command::Events(one(arguments)?),
        "check" => Command::Check(one(arguments)?),
        "bench" => Command::Bench(one_of(arguments)?),
        _ => return None,
    };
    Some(command)
}

fn one<T: Args>(arguments: &[OsString]) -> Option<T> {
    parsed(T::augment_args(clap::Command::new("forebay")), arguments)
}

fn one_of<T: Subcommand>(arguments: &[OsString]) -> Option<T> {
    let command = T::augment_subcommands(clap::Command::new("forebay"));
    parsed(command.subcommand_required(true), arguments)
}

/// The first argument stands where the name of a program does.
fn parsed<T: FromArgMatches>(command: clap::Command, arguments: &[OsString]) -> Option<T> {
    let matches = command.try_get_matches_from(arguments).ok()?;
    T::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> (Option<String>, Option<String>) {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let whole = Cli::try_parse_from(&arguments).ok().map(|cli| format!("{:?}", cli.command));
        (named(&arguments).map(|command| format!("{command:?}")), whole)
    }

    #[test]
    fn a_command_by_itself_is_read_as_among_all() {
        for line in [
            "forebay mount --scratch 4GiB /mnt/fb",
            "forebay mount --cache /pfs/project --capacity 100GiB --flash /nvme /mnt/fast",
            "forebay mount --buffer run7 --server node1:4242 -o allow_other,nosuid -f /mnt/fb",
            "forebay flush /mnt/fast/results",
            "forebay wait --timeout 600 /mnt/fast/results",
            "forebay umount --keep /mnt/fb",
            "forebay stage in /pfs/input /mnt/fb/input",
            "forebay stage out --no-wait /mnt/fb/result /pfs/run1",
            "forebay stage status",
            "forebay commit /mnt/fb/ckpt --to /pfs/ckpt",
            "forebay serve --flash /nvme --capacity 1TiB --listen 0.0.0.0:4242",
            "forebay buffer list --server node1:4242",
            "forebay publish --final /mnt/fb/results",
            "forebay pool status --server node1:4242",
            "forebay status --json /mnt/fb",
            "forebay events --server node9:4242 --since 2026-11-22T05:10:33Z",
            "forebay check --flash /nvme /mnt/fb",
            "forebay bench run checkpoint.toml /mnt/fb",
        ] {
            let (alone, whole) = shown(line);
            assert!(whole.is_some(), "{line} is no command line");
            assert_eq!(alone, whole, "{line}");
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_all_commands() {
        for line in [
            "forebay",
            "forebay --help",
            "forebay --version",
            "forebay mount",
            "forebay mount --help",
            "forebay mount --version",
            "forebay mount --no-such-option /mnt/fb",
            "forebay mount --scratch much /mnt/fb",
            "forebay mount --buffer run7 --scratch 1GiB /mnt/fb",
            "forebay stage",
            "forebay stage help in",
            "forebay stage sideways",
            "forebay buffer",
            "forebay no-such-command",
        ] {
            assert_eq!(shown(line), (None, None), "{line}");
        }
    }
}
