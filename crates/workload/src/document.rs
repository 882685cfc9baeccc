//! Reads TOML files that people write, so that each fault has its file, line and key, and says what was expected.
//!
//! A caller takes the keys that it knows from a [`Table`] and then calls [`Table::finish`], which refuses all others. One that calls
//! [`Table::knows`] before says first which key is misspelt, and not that the one that was meant is missing.
//! Sizes are texts with a unit or integers in bytes, times are texts with a unit or numbers in seconds (see [`crate::units`]).
//!
//! Invariant: nothing panics, whatever the text is.
//! Callers: `language`, and other readers of files with the same manners (machine files).

use crate::units;
use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Most bytes of a file that a person writes.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub path: PathBuf,
    /// Its line, from 1; 0 if it is about all of the file.
    pub line: usize,
    /// The key, with those of the tables around it: `job[1].phase[0].repeat`. Empty: none.
    pub key: String,
    /// What stands there.
    pub found: String,
    /// What should.
    pub expected: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.path.display())?;
        if self.line > 0 {
            write!(to, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(to, ": {}", self.key)?;
        }
        write!(to, ": {}", self.found)?;
        if !self.expected.is_empty() {
            write!(to, "; expected {}", self.expected)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// A file's text, and where its lines begin.
struct Source {
    path: PathBuf,
    line_starts: Vec<usize>,
}

impl Source {
    fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= at)
    }
}

/// A parsed file.
pub struct Document<'t> {
    source: Source,
    root: Spanned<DeTable<'t>>,
}

/// Reads the text of a file, as far as [`MAX_TEXT_BYTES`] allow.
///
/// # Errors
/// That of the call, or a file that is too long or no text.
pub fn read_text(path: &Path) -> Result<String, Fault> {
    let fault = |found: String, expected: &str| Fault {
        path: path.into(),
        line: 0,
        key: String::new(),
        found,
        expected: expected.into(),
    };
    let cannot = |error: std::io::Error| fault(error.to_string(), "a file that can be read");
    let len = std::fs::metadata(path).map_err(cannot)?.len();
    if len > MAX_TEXT_BYTES {
        return Err(fault(format!("{len} bytes"), "at most 64 MiB of TOML"));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    String::from_utf8(bytes).map_err(|_| fault("bytes that are no UTF-8".into(), "TOML"))
}

impl<'t> Document<'t> {
    /// Parses `text`, which was read from `path`.
    ///
    /// # Errors
    /// The first place that is no TOML.
    pub fn parse(path: &Path, text: &'t str) -> Result<Document<'t>, Fault> {
        let mut line_starts = vec![0];
        line_starts.extend(text.match_indices('\n').map(|(at, _)| at + 1));
        let source = Source { path: path.into(), line_starts };
        match DeTable::parse(text) {
            Ok(root) => Ok(Document { source, root }),
            Err(error) => Err(Fault {
                line: error.span().map_or(0, |span| source.line(span.start)),
                path: source.path,
                key: String::new(),
                found: format!("this is not TOML: {}", error.message().replace('\n', ", ")),
                expected: String::new(),
            }),
        }
    }

    /// The outermost table.
    pub fn root(&self) -> Table<'_> {
        Table {
            source: &self.source,
            name: String::new(),
            line: 1,
            entries: self.root.get_ref(),
            asked: RefCell::default(),
            known: RefCell::default(),
        }
    }
}

/// A table, of which keys are taken one by one.
pub struct Table<'d> {
    source: &'d Source,
    /// Its key, with those around it; empty for the outermost one.
    name: String,
    line: usize,
    entries: &'d DeTable<'d>,
    asked: RefCell<Vec<&'static str>>,
    /// What [`Table::knows`] was given: nothing else may be asked for. Empty: it was not called.
    known: RefCell<Vec<&'static str>>,
}

type Value<'d> = &'d Spanned<DeValue<'d>>;

impl<'d> Table<'d> {
    /// Its line in the file.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The line of one of its keys, or its own if the key is not there.
    pub fn line_of(&self, key: &str) -> usize {
        let entry = self.entries.iter().find(|(name, _)| name.get_ref() == key);
        entry.map_or(self.line, |(name, _)| self.source.line(name.span().start))
    }

    /// The keys that are there, each with its line.
    pub fn keys(&self) -> impl Iterator<Item = (&str, usize)> {
        self.entries.keys().map(|key| (key.get_ref().as_ref(), self.source.line(key.span().start)))
    }

    /// Whether a key is there.
    pub fn has(&self, key: &str) -> bool {
        self.entries.keys().any(|name| name.get_ref() == key)
    }

    fn full(&self, key: &str) -> String {
        match (self.name.as_str(), key) {
            ("", key) => key.into(),
            (name, "") => name.into(),
            (name, key) => format!("{name}.{key}"),
        }
    }

    /// A fault at one of its keys (empty: the table itself).
    pub fn fault(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) -> Fault {
        Fault {
            path: self.source.path.clone(),
            line: self.line_of(key),
            key: self.full(key),
            found: found.into(),
            expected: expected.into(),
        }
    }

    fn get(&self, key: &'static str) -> Option<Value<'d>> {
        let known = self.known.borrow();
        debug_assert!(known.is_empty() || known.contains(&key), "{key} stands in no list of keys");
        self.asked.borrow_mut().push(key);
        self.entries.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// The value by `read`, or what it said was wrong.
    fn take<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&DeValue) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match read(value.get_ref()) {
            Some(value) => Ok(Some(value)),
            None => Err(self.fault(key, shown(value.get_ref()), expected)),
        }
    }

    /// As `take`, of a number with a unit: what is one, and too large, is told the most.
    fn take_at_most<T>(
        &self,
        key: &'static str,
        (expected, most): (&str, &str),
        read: impl Fn(&DeValue) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        self.take(key, expected, &read).map_err(|fault| {
            let value = self.entries.iter().find(|(name, _)| name.get_ref() == key);
            let smaller = value.and_then(|(_, value)| as_small(value.get_ref()));
            match smaller.is_some_and(|smaller| read(&smaller).is_some()) {
                true => Fault { expected: format!("{expected}, at most {most}"), ..fault },
                false => fault,
            }
        })
    }

    /// Makes a missing key a fault.
    pub fn required<T>(&self, key: &str, value: Option<T>, expected: &str) -> Result<T, Fault> {
        value.ok_or_else(|| self.fault(key, "it is missing", expected))
    }

    /// A text.
    pub fn text(&self, key: &'static str, expected: &str) -> Result<Option<String>, Fault> {
        self.take(key, expected, |value| value.as_str().map(String::from))
    }

    /// A text that is one of a few words; gives its place among them.
    pub fn choice(&self, key: &'static str, words: &[&str]) -> Result<Option<usize>, Fault> {
        self.take(key, &one_of(words), |value| {
            words.iter().position(|word| value.as_str() == Some(word))
        })
    }

    /// `true` or `false`; absent is false.
    pub fn flag(&self, key: &'static str) -> Result<bool, Fault> {
        Ok(self.take(key, "true or false", |value| value.as_bool())?.unwrap_or(false))
    }

    /// `true`, `false`, or nothing.
    pub fn boolean(&self, key: &'static str) -> Result<Option<bool>, Fault> {
        self.take(key, "true or false", |value| value.as_bool())
    }

    /// An integer within `range`.
    pub fn integer(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Fault> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.take(key, &expected, |value| integer(value).filter(|number| range.contains(number)))
    }

    /// A number within `range`; integers will do.
    pub fn number(
        &self,
        key: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, Fault> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.take(key, &expected, |value| number(value).filter(|number| range.contains(number)))
    }

    /// A size in bytes.
    pub fn size(&self, key: &'static str) -> Result<Option<u64>, Fault> {
        self.take_at_most(key, (SIZE, MOST_SIZE), size)
    }

    /// A size of at least one byte.
    pub fn positive_size(&self, key: &'static str) -> Result<Option<u64>, Fault> {
        let expected = format!("{SIZE}; at least 1 byte");
        let positive = |value: &DeValue| size(value).filter(|&bytes| bytes > 0);
        self.take_at_most(key, (&expected, MOST_SIZE), positive)
    }

    /// One size, or a list of them.
    pub fn sizes(&self, key: &'static str) -> Result<Vec<u64>, Fault> {
        let sizes =
            self.take(key, "a size, or a list of sizes, such as [\"4KiB\", \"1MiB\"]", |value| {
                match value.as_array() {
                    Some(list) => list.iter().map(|value| size(value.get_ref())).collect(),
                    None => size(value).map(|size| vec![size]),
                }
            })?;
        Ok(sizes.unwrap_or_default())
    }

    /// A list of integers of at least `least`.
    pub fn integers(&self, key: &'static str, least: u64) -> Result<Option<Vec<u64>>, Fault> {
        let expected = format!("a list of integers of at least {least}");
        self.take(key, &expected, |value| {
            let list = value.as_array()?.iter();
            list.map(|value| integer(value.get_ref()).filter(|&number| number >= least)).collect()
        })
    }

    /// A list of numbers.
    pub fn numbers(&self, key: &'static str) -> Result<Option<Vec<f64>>, Fault> {
        self.take(key, "a list of numbers", |value| {
            value.as_array()?.iter().map(|value| number(value.get_ref())).collect()
        })
    }

    /// A list of texts.
    pub fn texts(&self, key: &'static str, expected: &str) -> Result<Vec<String>, Fault> {
        let texts = self.take(key, expected, |value| {
            value
                .as_array()?
                .iter()
                .map(|value| value.get_ref().as_str().map(String::from))
                .collect()
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// A time, in nanoseconds.
    pub fn time_ns(&self, key: &'static str) -> Result<Option<u64>, Fault> {
        let expected = "a time, such as \"20ms\", \"1.5h\", or a number of seconds";
        self.take_at_most(key, (expected, MOST_TIME), |value| match value {
            DeValue::String(text) => units::parse_time_ns(text),
            other => units::seconds_to_ns(number(other)?),
        })
    }

    /// The tables of a list: `[[key]]`, or `key = [{ ... }, ...]`.
    pub fn tables(&self, key: &'static str) -> Result<Vec<Table<'d>>, Fault> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let expected = format!("tables: [[{key}]], or {key} = [{{ ... }}]");
        let Some(list) = value.get_ref().as_array() else {
            return Err(self.fault(key, shown(value.get_ref()), expected));
        };
        let mut tables = Vec::new();
        for (index, value) in list.iter().enumerate() {
            let Some(entries) = value.get_ref().as_table() else {
                return Err(self.fault(key, shown(value.get_ref()), expected));
            };
            tables.push(Table {
                source: self.source,
                name: format!("{}[{index}]", self.full(key)),
                line: self.source.line(value.span().start),
                entries,
                asked: RefCell::default(),
                known: RefCell::default(),
            });
        }
        Ok(tables)
    }

    /// A table: `[key]`, or `key = { ... }`.
    pub fn table(&self, key: &'static str) -> Result<Option<Table<'d>>, Fault> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Some(entries) = value.get_ref().as_table() else {
            return Err(self.fault(key, shown(value.get_ref()), format!("a table: [{key}]")));
        };
        Ok(Some(Table {
            source: self.source,
            name: self.full(key),
            line: self.source.line(value.span().start),
            entries,
            asked: RefCell::default(),
            known: RefCell::default(),
        }))
    }

    /// Refuses keys that nobody asked for.
    ///
    /// # Errors
    /// The first such key, with what may have been meant.
    pub fn finish(&self) -> Result<(), Fault> {
        self.refuse_others(&self.asked.borrow())
    }

    /// Refuses keys that are none of these. None but these may be asked for afterwards.
    ///
    /// # Errors
    /// The first such key, with what may have been meant.
    pub fn knows(&self, known: &[&'static str]) -> Result<(), Fault> {
        *self.known.borrow_mut() = known.to_vec();
        self.refuse_others(known)
    }

    fn refuse_others(&self, known: &[&str]) -> Result<(), Fault> {
        let is_known = |key: &str| known.contains(&key);
        let Some(key) = self.entries.keys().find(|key| !is_known(key.get_ref())) else {
            return Ok(());
        };
        let mut all = known.to_vec();
        all.sort_unstable();
        all.dedup();
        let meant = match nearest(key.get_ref(), &all) {
            Some(near) => format!(" (did you mean {near}?)"),
            None => String::new(),
        };
        let found = format!("this key is not known here{meant}");
        Err(self.fault(key.get_ref(), found, one_of(&all)))
    }
}

/// What may have been meant by a word that is none of these: the one that fewest keystrokes turn it into, if they are few for its
/// length; else one of which it is the begin, or that is its begin.
fn nearest<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    /// Shorter words begin too many others.
    const BEGIN: usize = 3;
    let most = (word.chars().count() + 1) / 3;
    let by_steps = known.iter().map(|other| (keystrokes(word, other), *other));
    let near = by_steps.filter(|(steps, _)| *steps <= most).min_by_key(|(steps, _)| *steps);
    near.map(|(_, other)| other).or_else(|| {
        let begins = |a: &str, b: &str| a.len() >= BEGIN && b.starts_with(a);
        known.iter().find(|other| begins(word, other) || begins(other, word)).copied()
    })
}

/// How many keystrokes are between two words: a letter more, less or another, or two neighbours exchanged.
fn keystrokes(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // The last three rows of the usual table: for each begin of `b` the steps from the begin of `a`.
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (row, from) in a.iter().enumerate() {
        let mut this = vec![row + 1];
        for (column, to) in b.iter().enumerate() {
            let same = usize::from(from != to);
            let mut steps = (last[column] + same).min(last[column + 1] + 1).min(this[column] + 1);
            let exchanged = row > 0 && column > 0 && a[row - 1] == *to && b[column - 1] == *from;
            if exchanged {
                steps = steps.min(before[column - 1] + 1);
            }
            this.push(steps);
        }
        before = std::mem::replace(&mut last, this);
    }
    last[b.len()]
}

/// The most of a size, and of a time: what 63 bits hold of bytes and of nanoseconds.
const MOST_SIZE: &str = "8 EiB less one byte";
const MOST_TIME: &str = "292 years";

/// A number above 0 with a unit, as a small one of that unit.
fn as_small<'v>(value: &DeValue) -> Option<DeValue<'v>> {
    /// No number of seconds that is refused is smaller, but for negative ones.
    const LARGE: f64 = 9e9;
    match value {
        DeValue::String(text) => {
            let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
            let (number, unit) = text.split_at(end.unwrap_or(text.len()));
            let small = if number.contains('.') { "1.5" } else { "1" };
            let above_0 = number.parse::<f64>().is_ok_and(|number| number > 0.0);
            above_0.then(|| DeValue::String(format!("{small}{unit}").into()))
        }
        other if number(other).is_some_and(|number| number > LARGE) => {
            Some(DeValue::String("1s".into()))
        }
        _ => None,
    }
}

const SIZE: &str = "a size, such as \"4KiB\", \"1MB\", or an integer in bytes";

fn one_of(words: &[&str]) -> String {
    match words {
        [] => "nothing".into(),
        [word] => (*word).into(),
        words => format!("one of {}", words.join(", ")),
    }
}

fn integer(value: &DeValue) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

fn number(value: &DeValue) -> Option<f64> {
    let number = match value {
        DeValue::Integer(_) => integer(value)? as f64,
        DeValue::Float(float) => float.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

fn size(value: &DeValue) -> Option<u64> {
    match value {
        DeValue::String(text) => units::parse_size(text).ok(),
        other => integer(other).filter(|&bytes| bytes <= i64::MAX as u64),
    }
}

/// A value in a message.
fn shown(value: &DeValue) -> String {
    /// Most characters of a text that are repeated.
    const MOST: usize = 60;
    match value {
        DeValue::String(text) => {
            let cut: String = text.chars().take(MOST).collect();
            let more = if text.chars().count() > MOST { "..." } else { "" };
            format!("it is {cut:?}{more}")
        }
        DeValue::Integer(number) => format!("it is {number}"),
        DeValue::Float(number) => format!("it is {number}"),
        DeValue::Boolean(flag) => format!("it is {flag}"),
        DeValue::Datetime(date) => format!("it is the date {date}"),
        DeValue::Array(list) if list.is_empty() => "it is an empty list".into(),
        DeValue::Array(_) => "it is a list".into(),
        DeValue::Table(_) => "it is a table".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document<'_> {
        Document::parse(Path::new("f.toml"), text).expect("TOML")
    }

    #[test]
    fn faults_have_file_line_key_and_what_was_expected() {
        let text = "a = 1\n\n[[b]]\nc = \"4KiB\"\n[[b]]\nc = -5\nd = 1\n";
        let document = document(text);
        let root = document.root();
        assert_eq!(root.integer("a", 0..=9), Ok(Some(1)));
        let tables = root.tables("b").expect("tables");
        assert_eq!(tables[0].size("c"), Ok(Some(4096)));
        let fault = tables[1].size("c").expect_err("negative");
        assert_eq!(
            fault.to_string(),
            "f.toml:6: b[1].c: it is -5; expected a size, such as \"4KiB\", \"1MB\", or an integer in bytes"
        );
        let fault = tables[1].finish().expect_err("unknown");
        assert_eq!(fault.to_string(), "f.toml:7: b[1].d: this key is not known here; expected c");
        let fault = Document::parse(Path::new("g.toml"), "a = 1\nb = \n").err().expect("no TOML");
        assert_eq!((fault.line, fault.path.as_path()), (2, Path::new("g.toml")));
    }

    #[test]
    fn the_key_that_was_meant_is_named() {
        let known = ["array", "block", "offset", "of", "segments", "transfer", "write"];
        for (word, meant) in [
            ("blok", Some("block")),
            ("block_size", Some("block")),
            ("bolck", Some("block")),
            ("wirte", Some("write")),
            ("trnasfer", Some("transfer")),
            ("transfers", Some("transfer")),
            ("seg", Some("segments")),
            ("Offset", Some("offset")),
            ("t", None),
            ("of2", Some("of")),
            ("size", None),
            ("\u{e4}\u{f6}\u{fc}", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
        for (a, b, steps) in
            [("", "ab", 2), ("ab", "ba", 1), ("abc", "abc", 0), ("kitten", "sitting", 3)]
        {
            assert_eq!((keystrokes(a, b), keystrokes(b, a)), (steps, steps), "{a} {b}");
        }
        let document = document("a = 1\nblok = 2\n");
        let root = document.root();
        let fault = root.knows(&known).expect_err("unknown").to_string();
        assert!(
            fault.starts_with("f.toml:1: a: this key is not known here; expected one of"),
            "{fault}"
        );
        let fault = root.knows(&["a", "block"]).expect_err("unknown").to_string();
        let expected = "f.toml:2: blok: this key is not known here (did you mean block?); expected one of a, block";
        assert_eq!(fault, expected);
        assert_eq!(root.knows(&["a", "blok"]), Ok(()));
    }

    #[test]
    fn what_is_too_large_and_what_is_nothing_is_told_so() {
        let document = document(
            "a = \"99999999999999TiB\"\nb = \"1000000000h\"\nc = 0\nd = \"0KiB\"\ne = \"5 weeks\"\nf = \"4 GiB\"\ng = 1e15\n",
        );
        let root = document.root();
        let told = |fault: Result<Option<u64>, Fault>| fault.expect_err("refused").to_string();
        let size = told(root.size("a"));
        assert!(size.starts_with("f.toml:1: a: it is \"99999999999999TiB\"; expected"), "{size}");
        assert!(size.ends_with(", at most 8 EiB less one byte"), "{size}");
        assert!(told(root.time_ns("b")).ends_with("seconds, at most 292 years"));
        assert!(told(root.time_ns("g")).ends_with("seconds, at most 292 years"));
        for (key, value) in [("c", "0"), ("d", "\"0KiB\"")] {
            let fault = told(root.positive_size(key));
            assert!(fault.contains(&format!(": {key}: it is {value}; expected a size")), "{fault}");
            assert!(fault.ends_with("at least 1 byte"), "{fault}");
        }
        for fault in [told(root.time_ns("e")), told(root.size("f")), told(root.size("e"))] {
            assert!(!fault.contains("at most"), "{fault}");
        }
        assert_eq!(root.positive_size("h"), Ok(None));
    }

    #[test]
    fn values_of_the_wrong_kind_are_refused() {
        let document = document("a = true\nb = 1.5\nc = []\nd = {}\ne = 99999999999999999999\n");
        let root = document.root();
        assert!(root.text("a", "a text").is_err());
        assert!(root.integer("b", 0..=9).is_err());
        assert_eq!(root.number("b", 0.0..=9.0), Ok(Some(1.5)));
        assert!(root.size("c").is_err());
        assert!(root.tables("d").is_err());
        assert!(root.size("e").is_err());
        assert_eq!(root.time_ns("b"), Ok(Some(1_500_000_000)));
        assert_eq!(root.finish(), Ok(()));
    }
}
