//! The promises of docs/SEMANTICS.md, by their cases in docs/PROMISES.md, and docs/TRAPS.md: each names its tests, and every run but
//! `make check` must have all of them, on one kind of store at least; those that need 540 MB of a program of others, only
//! `make test-full`.

use crate::build::Test;
use crate::tiers::Tier;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::Path;

const DOCUMENTS: [&str; 2] = ["docs/PROMISES.md", "docs/TRAPS.md"];

/// Fails with a list of the promises' tests that are not among `tests`.
pub fn check(workspace: &Path, tests: &[Test], tier: Tier) -> Result<()> {
    let mut named = BTreeSet::new();
    for document in DOCUMENTS {
        let path = workspace.join(document);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        named.extend(names(&text, "test"));
        if tier == Tier::Full {
            named.extend(names(&text, "test-full"));
        }
    }
    let there: Vec<Vec<&str>> = tests.iter().map(|test| parts(&test.name)).collect();
    let missing: Vec<&String> = named.iter().filter(|name| !is_there(name, &there)).collect();
    if !missing.is_empty() {
        let list: Vec<&str> = missing.iter().map(|name| name.as_str()).collect();
        bail!(
            "tests that {} name and that the tier {tier:?} does not run (tests/tiers.conf):\n  {}",
            DOCUMENTS.join(" and "),
            list.join("\n  ")
        );
    }
    println!(
        "promises: the {} tests named in {} are in this run",
        named.len(),
        DOCUMENTS.join(" and ")
    );
    Ok(())
}

/// What stands as `MARK: NAME` in backquotes.
fn names(text: &str, mark: &str) -> Vec<String> {
    let begin = format!("`{mark}: ");
    let found = text.split(&begin).skip(1).filter_map(|rest| rest.split_once('`'));
    found.map(|(name, _)| name.to_string()).collect()
}

fn parts(name: &str) -> Vec<&str> {
    name.split("::").flat_map(|part| part.split('/')).collect()
}

/// `NAME` is a part of a test's full name; of `FILE::NAME`, FILE comes before NAME.
fn is_there(name: &str, there: &[Vec<&str>]) -> bool {
    there.iter().any(|parts| {
        let mut rest = parts.iter();
        name.split("::").all(|wanted| rest.any(|part| *part == wanted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_kept_by_a_test_of_its_name_on_any_kind() {
        let text =
            "| a | `test: staging::trees` `test: once` |\n| b | `test: gone` `test-full: real` |";
        assert_eq!(names(text, "test"), ["staging::trees", "once", "gone"]);
        assert_eq!(names(text, "test-full"), ["real"]);
        let tests = ["system::staging::trees::tmpfs", "client/once::once"];
        let there: Vec<Vec<&str>> = tests.iter().map(|name| parts(name)).collect();
        for (name, is) in [
            ("staging::trees", true),
            ("trees", true),
            ("once", true),
            ("once::once", true),
            ("gone", false),
            ("tree", false),
            ("trees::staging", false),
        ] {
            assert_eq!(is_there(name, &there), is, "{name}");
        }
    }
}
