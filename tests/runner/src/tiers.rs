//! `tests/tiers.conf`: which tests run when, beside what, and for how long.
//!
//! A line is a word, its values, and patterns of full test names, in which `*` stands for any characters:
//!
//! ```text
//! root PATTERN...             needs root: not part of `make check`
//! slow PATTERN...             takes longer than `make check` may: not part of it
//! full PATTERN...             runs in `make test-full` only
//! keep PATTERN...             part of `make test` although a line `full` names it
//! alone PATTERN...            runs beside no other test, after them
//! weight N PATTERN...         takes the place of N tests
//! waits PATTERN...            waits most of the time: takes no place
//! group NAME MAX PATTERN...   at most MAX of this group at once
//! limit SECONDS PATTERN...    may take that long, if not the default
//! first PATTERN...            takes long: starts before others
//! ```
//!
//! `make check` has the unit tests that no line `root`, `slow`, `alone` or `full` names.
//!
//! A pattern that names no test is an error: it is a test that was renamed and now runs as it should not.

use crate::build::Test;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// How long a test may take. The fixtures of system tests end a test that hangs after 300 s, and then
/// clean up.
const LIMIT: Duration = Duration::from_secs(360);

/// A choice of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Unit tests that need no root, of those that are built.
    Check,
    /// Each promise at least once.
    Test,
    /// Everything.
    Full,
}

impl FromStr for Tier {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Tier> {
        match text {
            "check" => Ok(Tier::Check),
            "test" => Ok(Tier::Test),
            "full" => Ok(Tier::Full),
            _ => bail!("no such tier: {text} (check, test or full)"),
        }
    }
}

enum Rule {
    Root,
    Slow,
    Full,
    Keep,
    Alone,
    Weight(usize),
    Waits,
    Group(String, usize),
    Limit(Duration),
    First,
}

/// The file.
pub struct Tiers {
    path: String,
    rules: Vec<(Rule, String)>,
}

impl Tiers {
    /// Reads the file. Errors say which line is wrong.
    pub fn read(path: &Path) -> Result<Tiers> {
        let path = path.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Tiers::parse(path, &text)
    }

    fn parse(path: String, text: &str) -> Result<Tiers> {
        let mut rules = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(word) = words.next() else { continue };
            let mut next = || words.next().with_context(|| format!("{path}:{}: too short", at + 1));
            let mut rule: Box<dyn FnMut() -> Rule> = match word {
                "root" => Box::new(|| Rule::Root),
                "slow" => Box::new(|| Rule::Slow),
                "full" => Box::new(|| Rule::Full),
                "keep" => Box::new(|| Rule::Keep),
                "alone" => Box::new(|| Rule::Alone),
                "waits" => Box::new(|| Rule::Waits),
                "first" => Box::new(|| Rule::First),
                "weight" => {
                    let weight = next()?.parse()?;
                    Box::new(move || Rule::Weight(weight))
                }
                "group" => {
                    let (name, most) = (next()?.to_string(), next()?.parse()?);
                    Box::new(move || Rule::Group(name.clone(), most))
                }
                "limit" => {
                    let limit = Duration::from_secs(next()?.parse()?);
                    Box::new(move || Rule::Limit(limit))
                }
                _ => bail!("{path}:{}: no such word: {word}", at + 1),
            };
            rules.extend(words.map(|pattern| (rule(), pattern.to_string())));
        }
        Ok(Tiers { path, rules })
    }

    /// Fails if a pattern names no test.
    pub fn check(&self, tests: &[Test]) -> Result<()> {
        for (_, pattern) in &self.rules {
            if !tests.iter().any(|test| matches(pattern, &test.name)) {
                bail!("{}: {pattern} names no test: was it renamed?", self.path);
            }
        }
        Ok(())
    }

    fn of<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a Rule> {
        self.rules.iter().filter(|(_, pattern)| matches(pattern, name)).map(|(rule, _)| rule)
    }

    /// True if a test is part of a tier.
    pub fn has(&self, tier: Tier, name: &str) -> bool {
        let is = |wanted: fn(&Rule) -> bool| self.of(name).any(wanted);
        let is_full = is(|r| matches!(r, Rule::Full)) && !is(|r| matches!(r, Rule::Keep));
        match tier {
            Tier::Full => true,
            Tier::Test => !is_full,
            Tier::Check => {
                let is_left_out = is(|r| matches!(r, Rule::Root | Rule::Slow | Rule::Alone));
                !is_left_out && !is_full
            }
        }
    }

    /// True for a test that runs beside no other.
    pub fn is_alone(&self, name: &str) -> bool {
        self.of(name).any(|rule| matches!(rule, Rule::Alone))
    }

    /// True for a test that waits most of the time: for a lease, a patience, a limit of the product's. Processors are
    /// idle meanwhile, so it runs beside the places.
    pub fn is_waiting(&self, name: &str) -> bool {
        self.of(name).any(|rule| matches!(rule, Rule::Waits))
    }

    /// True for a test that is to start early.
    pub fn is_first(&self, name: &str) -> bool {
        self.of(name).any(|rule| matches!(rule, Rule::First))
    }

    /// How many places a test takes.
    pub fn weight(&self, name: &str) -> usize {
        let found = self.of(name).rev().find_map(|rule| match rule {
            Rule::Weight(weight) => Some(*weight),
            _ => None,
        });
        found.unwrap_or(1)
    }

    /// The groups of a test, and how many of each may run at once.
    pub fn groups(&self, name: &str) -> Vec<(String, usize)> {
        let groups = self.of(name).filter_map(|rule| match rule {
            Rule::Group(name, most) => Some((name.clone(), *most)),
            _ => None,
        });
        groups.collect()
    }

    /// How long a test may take.
    pub fn limit(&self, name: &str) -> Duration {
        let found = self.of(name).rev().find_map(|rule| match rule {
            Rule::Limit(limit) => Some(*limit),
            _ => None,
        });
        found.unwrap_or(LIMIT)
    }
}

/// True if `name` is what the pattern says: `*` stands for any characters, also none.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|start| name.strip_prefix(start)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(end) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, is_match) in [
            ("a::b", "a::b", true),
            ("a::b", "a::bc", false),
            ("a::*", "a::b::c", true),
            ("*::xfs", "system::model::x::xfs", true),
            ("*::xfs", "system::xfs::x", false),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }

    #[test]
    fn a_test_is_in_the_tiers_that_its_lines_say() {
        let text = "# all\nroot server::act::*\nfull *::xfs\nkeep system::capacity::*\n\
                    slow server::model::*\nweight 2 system::mpi::*\ngroup loop 1 *::xfs\nlimit 9 system::mpi::a\n\
                    waits system::model::*\n";
        let tiers = Tiers::parse("tiers.conf".into(), text).unwrap_or_else(|e| panic!("{e}"));
        let of =
            |name: &str| [Tier::Check, Tier::Test, Tier::Full].map(|tier| tiers.has(tier, name));
        assert_eq!(of("server::net::a"), [true, true, true]);
        assert_eq!(of("server::act::a"), [false, true, true]);
        assert_eq!(of("server::model::a"), [false, true, true]);
        assert_eq!(of("system::model::a::xfs"), [false, false, true]);
        assert_eq!(of("system::capacity::a::xfs"), [true, true, true]);
        assert_eq!(tiers.weight("system::mpi::a"), 2);
        assert!(tiers.is_waiting("system::model::a") && !tiers.is_waiting("system::mpi::a"));
        assert_eq!(tiers.limit("system::mpi::a"), Duration::from_secs(9));
        assert_eq!(tiers.limit("system::mpi::b"), LIMIT);
        assert_eq!(tiers.groups("system::capacity::a::xfs"), [("loop".to_string(), 1)]);
    }

    #[test]
    fn a_line_with_a_fault_is_named() {
        for text in ["full a\nmost b", "weight x a", "group loop"] {
            assert!(Tiers::parse("tiers.conf".into(), text).is_err(), "{text}");
        }
    }
}
