//! `forebay man [--out DIR]`: manual pages, generated from the flags. The examples of a
//! command's help become a section whose lines are left as they are. With `--markdown` the same as pages of a
//! book (`man_markdown`).

use super::man_markdown::{self, notes_and_examples};
use crate::args::{Cli, ManArgs};
use crate::failure::{EXIT_OK, Outcome};
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;

/// Writes forebay(1), or with a directory also a page per command.
pub fn run(args: ManArgs) -> Outcome {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    match args.out {
        Some(dir) => {
            std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
            if args.markdown {
                man_markdown::write_pages(&command, &dir)?;
            } else {
                write_pages(&command, &dir)?;
            }
        }
        None => std::io::stdout().write_all(&page(&command)?)?,
    }
    Ok(EXIT_OK)
}

fn write_pages(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command)?).with_context(|| format!("write {}", path.display()))?;
    command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .try_for_each(|sub| write_pages(sub, dir))
}

fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let man = Man::new(command.clone()).title(name);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = notes_and_examples(&after);
    if !notes.trim().is_empty() {
        writeln!(page, ".SH NOTES")?;
        write_text(&mut page, notes)?;
    }
    if !examples.is_empty() {
        writeln!(page, ".SH EXAMPLES\n.nf")?;
        write_text(&mut page, examples)?;
        writeln!(page, ".fi")?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// Text in which no line is taken for a request, nor a hyphen for a dash.
fn write_text(page: &mut Vec<u8>, text: &str) -> std::io::Result<()> {
    for line in text.trim_end().lines() {
        let line = line.strip_prefix("  ").unwrap_or(line).replace('\\', "\\e").replace('-', "\\-");
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(page, "{guard}{line}")?;
    }
    Ok(())
}
