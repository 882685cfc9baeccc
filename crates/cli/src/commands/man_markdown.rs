//! `forebay man --markdown`: the reference of the commands as Markdown, from the same definition as the manual pages. The
//! book of the documents (`make docs`) takes them in.
//!
//! One page for each command, with its subcommands as sections, and an overview, README.md, that links to all of them.

use anyhow::Context;
use clap::{Arg, Command};
use std::fmt::Write;
use std::path::Path;

/// Writes README.md and NAME.md for each command into `dir`.
pub fn write_pages(root: &Command, dir: &Path) -> anyhow::Result<()> {
    let save = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    let mut overview = String::from("# Commands\n\n");
    paragraphs(&mut overview, &about(root));
    overview.push_str("| command | |\n| --- | --- |\n");
    for command in visible(root) {
        let name = full_name(command);
        let short = command.get_about().map(ToString::to_string).unwrap_or_default();
        let short = escape(short.trim_end_matches('.')).replace('|', "\\|");
        writeln!(overview, "| [`{}`]({name}.md) | {short} |", name.replacen('-', " ", 1))?;
        let mut page = String::new();
        section(&mut page, command, 1)?;
        save(&format!("{name}.md"), page)?;
    }
    overview.push('\n');
    after_help(&mut overview, root, 2);
    save("README.md", overview)
}

/// What stands after the flags of a command's help: text, and lines that can be copied.
pub fn notes_and_examples(after_help: &str) -> (&str, &str) {
    after_help
        .split_once("Examples:\n")
        .or_else(|| after_help.split_once("Example:\n"))
        .unwrap_or((after_help, ""))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

fn full_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The long description, or the short one.
fn about(command: &Command) -> String {
    let about = command.get_long_about().or_else(|| command.get_about());
    let mut text = about.map(ToString::to_string).unwrap_or_default();
    // The full stop that the source has, and that a list of commands leaves out.
    if !text.is_empty() && !text.ends_with(['.', '?', '!', ':']) {
        text.push('.');
    }
    text
}

/// A command and its subcommands, which are one level deeper.
fn section(page: &mut String, command: &Command, level: usize) -> anyhow::Result<()> {
    let mark = "#".repeat(level);
    let called = command.get_bin_name().unwrap_or(command.get_name());
    writeln!(page, "{mark} {called}\n")?;
    paragraphs(page, &about(command));
    let usage = command.clone().render_usage().to_string();
    writeln!(page, "```text\n{}\n```\n", usage.trim_start_matches("Usage: ").trim_end())?;
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let is_help = |arg: &Arg| matches!(arg.get_id().as_str(), "help" | "version");
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) =
        shown().filter(|arg| !is_help(arg)).partition(|arg| arg.is_positional());
    for arg in positional.into_iter().chain(options) {
        argument(page, arg)?;
    }
    after_help(page, command, level + 1);
    visible(command).try_for_each(|sub| section(page, sub, level + 1))
}

/// An argument as an entry of a definition list.
fn argument(page: &mut String, arg: &Arg) -> anyhow::Result<()> {
    let mut name = arg.to_string();
    if let (Some(short), Some(_)) = (arg.get_short(), arg.get_long()) {
        name = format!("-{short}, {name}");
    }
    writeln!(page, "`{name}`")?;
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default().replace("\n\n", " ");
    if !text.is_empty() && !text.ends_with(['.', '?', '!']) {
        text.push('.');
    }
    let mut text = escape(&text.replace('\n', " "));
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values())
        .map(|value| match value.get_help() {
            Some(help) => {
                format!(
                    "`{}`: {}",
                    value.get_name(),
                    escape(help.to_string().trim_end_matches('.'))
                )
            }
            None => format!("`{}`", value.get_name()),
        })
        .collect();
    if !values.is_empty() {
        write!(text, " Values: {}.", values.join("; "))?;
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        write!(text, " Default: `{}`.", defaults.join(" "))?;
    }
    if let Some(variable) = arg.get_env() {
        write!(text, " Environment: `{}`.", variable.to_string_lossy())?;
    }
    writeln!(page, ": {}\n", text.trim())?;
    Ok(())
}

/// Notes, and examples as a block of code.
fn after_help(page: &mut String, command: &Command, level: usize) {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = notes_and_examples(&after);
    paragraphs(page, notes);
    if !examples.is_empty() {
        let lines: Vec<&str> = examples
            .trim_end()
            .lines()
            .map(|line| line.strip_prefix("  ").unwrap_or(line))
            .collect();
        let mark = "#".repeat(level);
        page.push_str(&format!("{mark} Examples\n\n```text\n{}\n```\n\n", lines.join("\n")));
    }
}

/// Text in which an empty line ends a paragraph. Lines that are indented stay as they are.
fn paragraphs(page: &mut String, text: &str) {
    for paragraph in text.trim().split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        if paragraph.lines().any(|line| line.starts_with("  ")) {
            page.push_str(&format!("```text\n{paragraph}\n```\n\n"));
        } else {
            page.push_str(&format!("{}\n\n", escape(paragraph)));
        }
    }
}

/// What Markdown would take for a mark of its own stands as it is; code in backquotes stays code.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for (number, part) in text.split('`').enumerate() {
        if number > 0 {
            escaped.push('`');
        }
        let is_code = number % 2 == 1;
        for char in part.chars() {
            if !is_code && matches!(char, '*' | '_' | '[' | ']' | '#' | '<' | '>' | '\\' | '$') {
                escaped.push('\\');
            }
            escaped.push(char);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_and_every_flag_of_the_help_stands_on_a_page() {
        let mut root = crate::args::Cli::command().disable_help_subcommand(true);
        root.build();
        let dir = tempfile::tempdir().unwrap();
        write_pages(&root, dir.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let overview = read("README.md");
        fn all_of<'a>(command: &'a Command, into: &mut Vec<&'a Command>) {
            into.push(command);
            visible(command).for_each(|sub| all_of(sub, into));
        }
        for command in visible(&root) {
            let name = full_name(command);
            assert!(overview.contains(&format!("]({name}.md)")), "{name}");
            let page = read(&format!("{name}.md"));
            let mut all = Vec::new();
            all_of(command, &mut all);
            for command in all {
                let called = command.get_bin_name().unwrap();
                assert!(page.contains(&format!("# {called}\n")), "{called}");
                for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                    let Some(long) = arg.get_long().filter(|long| *long != "help") else {
                        continue;
                    };
                    assert!(page.contains(&format!("--{long}")), "{called} --{long}");
                }
            }
        }
        assert!(!dir.path().join("forebay-man.md").exists(), "hidden commands have no page");
        let mount = read("forebay-mount.md");
        assert!(mount.contains("`--store <KIND>`\n: How the capacity is held"), "{mount}");
        assert!(mount.contains("Values: `tmpfs`: A tmpfs of its own"), "{mount}");
        assert!(mount.contains("## Examples\n\n```text\nforebay mount --scratch 4GiB"), "{mount}");
        assert!(mount.contains("Default: `60`. Environment: `FOREBAY_PATIENCE`."), "{mount}");
    }

    #[test]
    fn marks_of_markdown_are_text_outside_of_code() {
        assert_eq!(
            escape("#DW lines of <FILE> and `a_b*c`, d_e"),
            "\\#DW lines of \\<FILE\\> and `a_b*c`, d\\_e"
        );
    }
}
