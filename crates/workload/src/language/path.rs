//! Paths of files with placeholders, and which file a process means.
//!
//! `{process}`, `{node}`, `{repeat}`, `{item}`, `{job}` and `{tree}` stand for numbers and names; `{process:08}` fills up with
//! zeros, `{process+1%4}` is the number of the next one of four. A path with `{process}` is a file for each process, one with `{node}` a file for each node, any other one is shared.
//!
//! Invariants: a rendered path is relative and stays below its directory. A path is made for each operation on a name, so making one
//! allocates nothing but what the buffer needs to grow.
//! Callers: `walk`, and who opens files.

/// Most bytes of a path.
pub const MAX_PATH_BYTES: usize = 4095;
/// Most digits of a number with leading zeros.
const MAX_WIDTH: usize = 20;

/// A file: which of the workload's, and which of its copies. Numbers that the path does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Place among the workload's files; beyond their number: of the listed operations of the job.
    pub spec: u32,
    /// Job, if the path has `{job}` or the job lists its operations.
    pub job: u32,
    /// Process or node.
    pub process: u32,
    /// Repetition of the phase.
    pub repeat: u32,
    /// Item; of listed operations the file's number there.
    pub item: u32,
}

/// A part of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// As it is.
    Text(String),
    /// Number of the process.
    Process {
        /// Least digits.
        width: usize,
    },
    /// Number of the process some places further on.
    Shifted {
        /// Places.
        by: u32,
        /// Of so many processes; at least 1.
        of: u32,
        /// Least digits.
        width: usize,
    },
    /// Number of the node.
    Node {
        /// Least digits.
        width: usize,
    },
    /// Repetition of the phase.
    Repeat {
        /// Least digits.
        width: usize,
    },
    /// Number of the item.
    Item {
        /// Least digits.
        width: usize,
    },
    /// Name of the job.
    Job,
    /// Directories of the item's place in a tree.
    Tree,
}

/// What a path is made of. It is asked for with each operation, so it is found once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Uses {
    process: bool,
    node: bool,
    repeat: bool,
    item: bool,
    job: bool,
    tree: bool,
}

impl Uses {
    fn of(parts: &[Part]) -> Uses {
        let mut uses = Uses::default();
        for part in parts {
            match part {
                Part::Text(_) => {}
                Part::Process { .. } | Part::Shifted { .. } => uses.process = true,
                Part::Node { .. } => uses.node = true,
                Part::Repeat { .. } => uses.repeat = true,
                Part::Item { .. } => uses.item = true,
                Part::Job => uses.job = true,
                Part::Tree => uses.tree = true,
            }
        }
        uses
    }
}

/// A path with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
    uses: Uses,
}

const PLACEHOLDERS: &str = "{process}, {node}, {repeat}, {item}, {job}, {tree}, a number with zeros such as {process:08}, or that of a process further on such as {process+1%4}";

impl Template {
    /// Parses a path.
    ///
    /// # Errors
    /// What is wrong, and what was expected.
    pub fn parse(text: &str) -> Result<Template, (String, String)> {
        let wrong = |found: &str, expected: &str| Err((found.to_string(), expected.to_string()));
        if text.len() > MAX_PATH_BYTES {
            return wrong("the path is too long", "at most 4095 bytes");
        }
        if text.contains('\0') {
            return wrong("the path has a zero byte", "a path");
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            if open > 0 {
                parts.push(Part::Text(rest[..open].into()));
            }
            let Some(close) = rest[open..].find('}').filter(|_| rest[open..].starts_with('{'))
            else {
                return wrong("a brace that stands alone", PLACEHOLDERS);
            };
            let inside = &rest[open + 1..open + close];
            match placeholder(inside) {
                Some(part) => parts.push(part),
                None => return wrong(&format!("{{{inside}}} is no placeholder"), PLACEHOLDERS),
            }
            rest = &rest[open + close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        let uses = Uses::of(&parts);
        let template = Template { parts, uses };
        if template.by_process() && template.by_node() {
            return wrong("{process} and {node} in one path", "one of the two");
        }
        if !is_below(text) {
            return wrong(
                &format!("{text:?}"),
                "a path relative to the directory in which the workload runs, without \".\" and \"..\"",
            );
        }
        Ok(template)
    }

    /// A path without placeholders, or with those that it has; for paths in code.
    ///
    /// # Panics
    /// If it is no template.
    pub fn of(text: &str) -> Template {
        match Template::parse(text) {
            Ok(template) => template,
            Err((found, expected)) => panic!("{text:?}: {found}; expected {expected}"),
        }
    }

    /// Its parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether each process has a file of its own.
    pub fn by_process(&self) -> bool {
        self.uses.process
    }

    /// Whether each node has.
    pub fn by_node(&self) -> bool {
        self.uses.node
    }

    /// Whether each repetition of a phase has.
    pub fn by_repeat(&self) -> bool {
        self.uses.repeat
    }

    /// Whether it has items.
    pub fn by_item(&self) -> bool {
        self.uses.item || self.uses.tree
    }

    /// Whether each job has.
    pub fn by_job(&self) -> bool {
        self.uses.job
    }

    /// Whether it has `{tree}`.
    pub fn by_tree(&self) -> bool {
        self.uses.tree
    }

    /// Of how many processes the path shifts one's number, if it does: the least such number.
    pub fn shifts_of(&self) -> Option<u32> {
        let of = |part: &Part| if let Part::Shifted { of, .. } = part { Some(*of) } else { None };
        self.parts.iter().filter_map(of).min()
    }

    /// As it is written.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Process { width } => text.push_str(&in_braces("process", *width)),
                Part::Shifted { by, of, width } => {
                    text.push_str(&in_braces(&format!("process+{by}%{of}"), *width));
                }
                Part::Node { width } => text.push_str(&in_braces("node", *width)),
                Part::Repeat { width } => text.push_str(&in_braces("repeat", *width)),
                Part::Item { width } => text.push_str(&in_braces("item", *width)),
                Part::Job => text.push_str("{job}"),
                Part::Tree => text.push_str("{tree}"),
            }
        }
        text
    }

    /// Appends the path of a file.
    pub fn append(&self, id: &FileId, job: &str, tree: Option<&Tree>, to: &mut String) {
        for part in &self.parts {
            match part {
                Part::Text(plain) => to.push_str(plain),
                Part::Process { width } | Part::Node { width } => {
                    append_number(to, id.process, *width);
                }
                Part::Shifted { by, of, width } => {
                    let place = (u64::from(id.process) + u64::from(*by)) % u64::from(*of);
                    append_number(to, place as u32, *width);
                }
                Part::Repeat { width } => append_number(to, id.repeat, *width),
                Part::Item { width } => append_number(to, id.item, *width),
                Part::Job => to.push_str(job),
                Part::Tree => {
                    if let Some(tree) = tree {
                        tree.append(id, job, to);
                    }
                }
            }
        }
    }
}

/// Appends a number, with zeros before it up to `width` digits (at most [`MAX_WIDTH`]). Creating a file in memory takes so little that
/// `format!` would show in the rate.
fn append_number(to: &mut String, number: u32, width: usize) {
    let mut digits = [b'0'; MAX_WIDTH];
    let mut first = MAX_WIDTH;
    let mut left = number;
    loop {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let first = first.min(MAX_WIDTH - width.min(MAX_WIDTH));
    to.push_str(std::str::from_utf8(&digits[first..]).unwrap_or_default());
}

/// Whether a path stays below its directory.
pub fn is_below(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with('/')
        && !path.contains('\0')
        && path.split('/').all(|name| name != ".." && name != ".")
        && path.split('/').any(|name| !name.is_empty())
}

/// Whether a name of a job may stand in a path.
pub fn is_name(name: &str) -> bool {
    is_below(name) && !name.contains('/') && name.len() <= 255
}

fn in_braces(name: &str, width: usize) -> String {
    if width == 0 { format!("{{{name}}}") } else { format!("{{{name}:0{width}}}") }
}

fn placeholder(inside: &str) -> Option<Part> {
    let (name, width) = match inside.split_once(':') {
        None => (inside, 0),
        Some((name, digits)) => {
            let width: usize = digits.strip_prefix('0')?.parse().ok()?;
            if !(1..=MAX_WIDTH).contains(&width) || digits.starts_with("0+") {
                return None;
            }
            (name, width)
        }
    };
    if let Some((by, of)) = name.strip_prefix("process+").and_then(|rest| rest.split_once('%')) {
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| n.to_string() == text);
        let (by, of) = (number(by)?, number(of).filter(|of| *of > 0)?);
        return Some(Part::Shifted { by, of, width });
    }
    Some(match name {
        "process" => Part::Process { width },
        "node" => Part::Node { width },
        "repeat" => Part::Repeat { width },
        "item" => Part::Item { width },
        "job" if width == 0 => Part::Job,
        "tree" if width == 0 => Part::Tree,
        _ => return None,
    })
}

/// A tree of directories, as mdtest makes it: directory 0 is the root, and the children of directory d are
/// `branch`*d + 1 to `branch`*d + `branch`. Its items lie in its directories, `per_dir` in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// What the directories' names begin with; a dot and the number follow.
    pub name: Template,
    /// Children of a directory.
    pub branch: u32,
    /// Levels below the root.
    pub depth: u32,
    /// Items of a directory.
    pub per_dir: u32,
    /// Items lie in the directories of the last level only.
    pub leaves: bool,
}

impl Tree {
    /// Number of directories; None if they are more than a u32 counts.
    pub fn directories(&self) -> Option<u32> {
        let (mut sum, mut level) = (1_u32, 1_u32);
        for _ in 0..self.depth {
            level = level.checked_mul(self.branch)?;
            sum = sum.checked_add(level)?;
        }
        Some(sum)
    }

    /// Number of directories of the last level.
    pub fn leaf_directories(&self) -> Option<u32> {
        self.branch.checked_pow(self.depth)
    }

    /// The directory of an item.
    fn directory_of(&self, item: u32) -> u32 {
        let at = item / self.per_dir.max(1);
        if !self.leaves {
            return at;
        }
        let before = self.directories().zip(self.leaf_directories());
        before.map_or(at, |(all, last)| at.saturating_add(all - last))
    }

    fn append(&self, id: &FileId, job: &str, to: &mut String) {
        /// More levels than a tree with more than one branch can have.
        const MOST: usize = 64;
        let mut chain = [0; MOST];
        chain[0] = self.directory_of(id.item);
        let mut last = 0;
        while chain[last] > 0 && last + 1 < MOST {
            chain[last + 1] = (chain[last] - 1) / self.branch.max(1);
            last += 1;
        }
        for at in (0..=last).rev() {
            if at < last {
                to.push('/');
            }
            self.name.append(id, job, None, to);
            to.push('.');
            append_number(to, chain[at], 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: FileId = FileId { spec: 0, job: 0, process: 7, repeat: 2, item: 5 };

    fn rendered(text: &str) -> String {
        let mut path = String::new();
        Template::of(text).append(&ID, "astro", None, &mut path);
        path
    }

    #[test]
    fn placeholders_become_numbers_and_names() {
        assert_eq!(
            rendered("{job}/ckpt.{process:05}.{repeat}/{item:03}"),
            "astro/ckpt.00007.2/005"
        );
        let template = Template::of("a/{node:02}.{item}");
        assert_eq!(template.text(), "a/{node:02}.{item}");
        assert!(template.by_node() && template.by_item() && !template.by_process());
        let shifted = Template::of("{process+3%9}.{process+3%8:02}");
        assert_eq!(rendered(&shifted.text()), "1.02");
        assert!(shifted.by_process() && shifted.shifts_of() == Some(8));
    }

    #[test]
    fn numbers_are_those_that_format_makes() {
        let ends = [0, 1, 9, 10, 99, 100, 4095, 999_999_999, 1_000_000_000, u32::MAX];
        for number in ends {
            for width in 0..=MAX_WIDTH {
                let mut appended = "f.".to_string();
                append_number(&mut appended, number, width);
                assert_eq!(appended, format!("f.{number:0width$}"));
            }
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_and_unknown_placeholders_are_refused() {
        for wrong in [
            "",
            "/a",
            "a/../b",
            "./a",
            "{x}",
            "{process",
            "}",
            "{process}{node}",
            "{item:5}",
            "{item:0}",
            "{item:099}",
            "a\0b",
            "{job:03}",
            "/",
            "{{item}}",
            "{process+1}",
            "{process+1%0}",
            "{process++1%4}",
            "{process+1%04}",
            "{node+1%4}",
        ] {
            assert!(Template::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_tree_has_the_directories_of_mdtest() {
        let mut tree = Tree {
            name: Template::of("mdtest_tree.{process}"),
            branch: 3,
            depth: 2,
            per_dir: 2,
            leaves: false,
        };
        let path = |tree: &Tree, item| {
            let mut path = String::new();
            let id = FileId { item, ..ID };
            Template::of("{tree}/f.{item}").append(&id, "", Some(tree), &mut path);
            path
        };
        assert_eq!(path(&tree, 1), "mdtest_tree.7.0/f.1");
        assert_eq!(path(&tree, 8), "mdtest_tree.7.0/mdtest_tree.7.1/mdtest_tree.7.4/f.8");
        assert_eq!((tree.directories(), tree.leaf_directories()), (Some(13), Some(9)));
        tree.leaves = true;
        assert_eq!(path(&tree, 2), "mdtest_tree.7.0/mdtest_tree.7.1/mdtest_tree.7.5/f.2");
        (tree.branch, tree.depth) = (2, 40);
        assert_eq!(tree.directories(), None);
    }
}
