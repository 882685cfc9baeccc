//! `forebay man [--out DIR]`: manual pages, generated from the flags.

use crate::args::{Cli, ManArgs};
use crate::failure::{EXIT_OK, Outcome};
use anyhow::Context;
use clap::CommandFactory;
use std::io::Write;

/// Writes forebay(1) and a page per command.
pub fn run(args: ManArgs) -> Outcome {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    match args.out {
        Some(dir) => {
            std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
            clap_mangen::generate_to(command, &dir)
                .with_context(|| format!("write manual pages to {}", dir.display()))?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(EXIT_OK)
}
