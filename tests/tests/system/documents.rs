//! The documents: their links lead somewhere (`scripts/check-links`), and the page of settings has each variable and each
//! attribute that the code knows.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::{run, try_run};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

#[test]
fn links_of_the_documents_lead_somewhere_and_dead_ones_are_found() {
    run(&mut Command::new(tree().join("scripts/check-links")));
    let base = tempfile::tempdir().unwrap();
    let copy = base.path();
    fs::create_dir_all(copy.join("docs/how-to")).unwrap();
    fs::create_dir(copy.join("scripts")).unwrap();
    fs::copy(tree().join("scripts/check-links"), copy.join("scripts/check-links")).unwrap();
    fs::write(copy.join("README.md"), "[a](docs/a.md#one-two) [b](docs/how-to/b.md)\n").unwrap();
    fs::write(copy.join("docs/a.md"), "# A\n\n## One, two\n\n`[no](link.md)`\n").unwrap();
    fs::write(copy.join("docs/how-to/b.md"), "[up](../a.md#a)\n\n```\n[no](link.md)\n```\n")
        .unwrap();
    fs::write(copy.join("docs/SUMMARY.md"), "- [a](a.md)\n- [b](how-to/b.md)\n").unwrap();
    let check = || try_run(&mut Command::new(copy.join("scripts/check-links")));
    let (good, said) = check();
    assert!(good, "{said}");
    let text = "[x](../gone.md) [y](../a.md#gone) [z](#gone)\n";
    fs::write(copy.join("docs/how-to/b.md"), text).unwrap();
    fs::write(copy.join("docs/c.md"), "# Listed nowhere\n").unwrap();
    let (good, said) = check();
    for wrong in [
        "docs/how-to/b.md: no file ../gone.md",
        "docs/how-to/b.md: no heading ../a.md#gone",
        "docs/how-to/b.md: no heading #gone",
        "docs/SUMMARY.md names docs/c.md 0 times",
    ] {
        assert!(!good && said.contains(wrong), "{wrong}: {said}");
    }
}

/// Words of the sources of the product, without its tests, that begin with `prefix`.
fn words(prefix: &str, is_of_word: fn(char) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut left: Vec<PathBuf> =
        fs::read_dir(tree().join("crates")).unwrap().map(|e| e.unwrap().path()).collect();
    // What only tests use.
    left.retain(|path| !path.ends_with("testkit"));
    for crate_dir in &mut left {
        crate_dir.push("src");
    }
    while let Some(path) = left.pop() {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        if path.is_dir() && name != "tests" && name != "shard_tests" {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if name.ends_with(".rs") && !name.contains("test") {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            for rest in text.split(prefix).skip(1) {
                found.insert(rest.chars().take_while(|c| is_of_word(*c)).collect());
            }
        }
    }
    found
}

#[test]
fn the_page_of_settings_has_each_variable_and_each_attribute() {
    let page = fs::read_to_string(tree().join("docs/settings.md")).unwrap();
    // `FOREBAY_TRACE_*` in a comment, and what only tests of their own crate set.
    let of_tests = |name: &str| {
        name.is_empty()
            || name.ends_with('_')
            || name.starts_with("TEST_")
            || ["BIN", "SEED", "SPEED_DIR"].contains(&name)
    };
    let variables = words("\"FOREBAY_", |c| c.is_ascii_uppercase() || c == '_');
    assert!(variables.contains("FLASH") && variables.contains("TIMING"), "{variables:?}");
    for name in variables.iter().filter(|name| !of_tests(name)) {
        assert!(
            page.contains(&format!("`FOREBAY_{name}`")),
            "docs/settings.md has no FOREBAY_{name}"
        );
    }
    let attributes = words("user.forebay.", |c| c.is_ascii_lowercase() || c == '_');
    for name in attributes.iter().filter(|name| !name.is_empty()) {
        assert!(
            page.contains(&format!("`user.forebay.{name}`")),
            "docs/settings.md has no user.forebay.{name}"
        );
    }
    for name in ["state", "drain", "grade", "verified", "stripe_count", "servers"] {
        assert!(page.contains(&format!("`user.forebay.{name}`")), "{name}");
    }
}
