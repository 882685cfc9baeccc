//! mdtest: creates, stats, reads and removes files and directories in a tree.
//!
//! Source: names, counts and order of phases of mdtest 4.1, as its source and output show them: `test-dir.I-0`, trees
//! `mdtest_tree.0` or, with `-u`, `mdtest_tree.RANK.0`, items `file.mdtest.RANK.N` and `dir.mdtest.RANK.N`; with `-N n` each
//! process stats the items of the one n further on, reads those of 2n, removes those of 3n further on.
//! Caller: `forebay bench mdtest`.

use super::{Refused, file, phase, refuse, workload};
use crate::language::{
    Action, FileSpec, Items, NameOp, Only, Phase, Step, Template, Tree, Whole, Whose, Workload,
};

/// The parameters; letters are mdtest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mdtest {
    /// Processes.
    pub processes: u32,
    /// `-n`: items of each process; 0: given by `items_per_dir`.
    pub items: u32,
    /// `-I`: items of each directory; 0: given by `items`.
    pub items_per_dir: u32,
    /// `-z`: levels of the tree below its root.
    pub depth: u32,
    /// `-b`: directories in each directory.
    pub branch: u32,
    /// `-u`: a tree for each process.
    pub unique: bool,
    /// `-L`: items at the last level only.
    pub leaf_only: bool,
    /// `-F`: files only.
    pub files_only: bool,
    /// `-D`: directories only.
    pub dirs_only: bool,
    /// `-w`: bytes written into each file.
    pub write_bytes: u64,
    /// `-e`: bytes read of each file.
    pub read_bytes: u64,
    /// `-y`: fsync after the write of a file.
    pub sync: bool,
    /// `-N`: places between the process that made an item and the one that uses it.
    pub stride: u32,
    /// `-i`: iterations.
    pub iterations: u32,
    /// `-C`, `-T`, `-E`, `-r`: only these; none of them and no `-U`: all.
    pub only: [bool; 4],
    /// `-U`: directories are renamed.
    pub rename: bool,
    /// `-W`: files are created until this time after the first, then until each process has as many as the one that had most.
    pub stonewall_ns: Option<u64>,
    /// Files that each process has created before, where `-W` ended that: what later phases use. None: all.
    pub created: Option<u32>,
    /// Seed of the files' content.
    pub seed: u32,
}

impl Mdtest {
    /// IO500's easy metadata: empty files, a directory for each process.
    pub fn easy(processes: u32, items: u32) -> Mdtest {
        Mdtest {
            unique: true,
            leaf_only: true,
            files_only: true,
            stride: 1,
            ..Mdtest::new(processes, items)
        }
    }

    /// IO500's hard metadata: files of 3,901 bytes in one shared directory.
    pub fn hard(processes: u32, items: u32) -> Mdtest {
        let (write_bytes, read_bytes) = (3901, 3901);
        Mdtest {
            files_only: true,
            write_bytes,
            read_bytes,
            stride: 1,
            ..Mdtest::new(processes, items)
        }
    }

    /// mdtest's defaults.
    pub fn new(processes: u32, items: u32) -> Mdtest {
        Mdtest {
            processes,
            items,
            items_per_dir: 0,
            depth: 0,
            branch: 1,
            unique: false,
            leaf_only: false,
            files_only: false,
            dirs_only: false,
            write_bytes: 0,
            read_bytes: 0,
            sync: false,
            stride: 0,
            iterations: 1,
            only: [false; 4],
            rename: false,
            stonewall_ns: None,
            created: None,
            seed: 0,
        }
    }

    fn directories(&self) -> Option<(u32, u32)> {
        let tree = self.tree(1);
        tree.directories().zip(tree.leaf_directories())
    }

    /// The directories themselves.
    fn tree(&self, per_dir: u32) -> Tree {
        let name = if self.unique { "mdtest_tree.{process}" } else { "mdtest_tree" };
        let (branch, depth) = (self.branch.max(1), self.depth.min(60));
        Tree { name: Template::of(name), branch, depth, per_dir, leaves: false }
    }

    /// The directories of items.
    fn tree_of_items(&self, per_dir: u32) -> Tree {
        let tree = self.tree(per_dir);
        match self.unique {
            true => Tree { name: own_tree(self.processes, self.stride), ..tree },
            false => tree,
        }
    }

    /// As a workload: a phase for each of mdtest's rows.
    ///
    /// # Errors
    /// Parameters that do not fit together.
    pub fn workload(&self) -> Result<Workload, Refused> {
        if self.files_only && self.dirs_only {
            return refuse("-F and -D: expected at most one of them");
        }
        if self.stonewall_ns.is_some() && !self.files_only {
            return refuse("-W: expected with -F, it ends the creation of files");
        }
        if self.depth > 60 {
            return refuse(format!("-z {}: expected at most 60", self.depth));
        }
        let Some((directories, leaves)) = self.directories() else {
            return refuse("-z and -b: the tree has too many directories");
        };
        let holding = if self.leaf_only { leaves } else { directories };
        let per_dir = match (self.items, self.items_per_dir) {
            (0, 0) => return refuse("expected -n or -I: how many items there are"),
            (items, 0) if items < holding => {
                return refuse(format!(
                    "-n {items}: fewer items than the {holding} directories that hold them"
                ));
            }
            (items, 0) => items / holding,
            (0, per_dir) => per_dir,
            (items, per_dir) if holding.checked_mul(per_dir) == Some(items) => per_dir,
            (items, per_dir) => {
                return refuse(format!(
                    "-n {items} and -I {per_dir}: {holding} directories hold {} items; leave one of the two away",
                    u64::from(holding) * u64::from(per_dir)
                ));
            }
        };
        if per_dir.checked_mul(directories).is_none() {
            return refuse("there are too many items: at most 4294967295 of each process");
        }
        let (mut files, mut phases) = (Vec::new(), Vec::new());
        for iteration in 0..self.iterations.max(1) {
            self.iteration(iteration, (directories, leaves, per_dir), &mut files, &mut phases);
        }
        workload("mdtest", self.seed, self.processes, files, phases)
    }

    /// An iteration's files, in this order: the tree, directories, files, the same to be read; with `renames` the second names of
    /// directories.
    fn add_files(
        &self,
        iteration: u32,
        (directories, per_dir): (u32, u32),
        renames: bool,
        files: &mut Vec<FileSpec>,
    ) {
        let path = |inside: &str| format!("test-dir.{iteration}-0/{{tree}}{inside}");
        let mut add = |name: &str, inside: &str, per_dir: u32, bytes: Option<u64>| {
            let items = !inside.is_empty();
            files.push(FileSpec {
                items: per_dir * directories,
                sizes: bytes.into_iter().collect(),
                tree: Some(if items { self.tree_of_items(per_dir) } else { self.tree(per_dir) }),
                ..file(&format!("{name}{iteration}"), &path(inside))
            });
        };
        add("tree", "", 1, None);
        add("dir", "/dir.mdtest.{process}.{item}", per_dir, None);
        add("file", "/file.mdtest.{process}.{item}", per_dir, Some(self.write_bytes));
        let reads = self.read_bytes.min(self.write_bytes);
        add("read", "/file.mdtest.{process}.{item}", per_dir, Some(reads));
        if renames {
            add("spare", "/dir.mdtest.{process}.{item}-XX", per_dir, None);
        }
    }

    /// The items of each process that are made and used.
    fn used_items(&self, directories: u32, leaves: u32, per_dir: u32) -> Items {
        let items = match self.leaf_only {
            true => Items { first: per_dir * (directories - leaves), count: per_dir * leaves },
            false => Items::ALL,
        };
        match self.created {
            Some(created) => Items { count: items.count.min(created), ..items },
            None => items,
        }
    }

    /// Files that are written or read as a whole.
    fn whole(&self, file: u32, of: Whose, items: Items) -> Whole {
        Whole {
            file,
            of,
            items,
            transfer_bytes: 1 << 20,
            sync: self.sync,
            verify: false,
            stop_after_ns: self.stonewall_ns,
            wear_out: self.stonewall_ns.is_some(),
        }
    }

    fn iteration(
        &self,
        iteration: u32,
        (directories, leaves, per_dir): (u32, u32, u32),
        files: &mut Vec<FileSpec>,
        phases: &mut Vec<Phase>,
    ) {
        let first = files.len() as u32;
        let (trees, dirs, named) = (first, first + 1, first + 2);
        let spare = first + 4;
        let renames = !self.files_only && (self.rename || self.only == [false; 4]);
        self.add_files(iteration, (directories, per_dir), renames, files);
        let items = self.used_items(directories, leaves, per_dir);
        let of = |times: u32| match self.stride.wrapping_mul(times) % self.processes.max(1) {
            0 => Whose::Own,
            shift => Whose::Shift(shift),
        };
        let names = |op, file, of| -> Vec<Step> {
            vec![Action::Names { op, file, to: None, to_first: None, of, items }.into()]
        };
        let whole = |file, of| self.whole(file, of, items);
        let all = self.only == [false; 4] && !self.rename;
        let [creates, stats, reads, removes] = self.only.map(|asked| asked || all);
        // A tree of its own belongs to each process, a shared one to process 0.
        let only = if self.unique { None } else { Some(Only { first: 0, last: 0, every: 1 }) };
        let tree = |op| -> Vec<Step> {
            let (of, items) = (Whose::Own, Items::ALL);
            let action = Action::Names { op, file: trees, to: None, to_first: None, of, items };
            vec![Step { only, ..action.into() }]
        };
        if creates {
            phases.push(phase("Tree creation", tree(NameOp::Mkdir)));
        }
        if !self.files_only {
            let count = items.of(per_dir * directories);
            let wanted = [
                (creates, "Directory creation", names(NameOp::Mkdir, dirs, of(0))),
                (stats, "Directory stat", names(NameOp::Stat, dirs, of(1))),
                (
                    renames && count > 1,
                    "Directory rename",
                    renamed_in_turn(dirs, spare, of(1), (items.first, count)),
                ),
                (removes, "Directory removal", names(NameOp::Rmdir, dirs, of(3))),
            ];
            for (_, name, steps) in wanted.into_iter().filter(|(asked, ..)| *asked) {
                phases.push(phase(name, steps));
            }
        }
        if !self.dirs_only {
            if creates {
                phases
                    .push(phase("File creation", vec![Action::Store(whole(named, of(0))).into()]));
            }
            if stats {
                phases.push(phase("File stat", names(NameOp::Stat, named, of(1))));
            }
            if reads {
                let whole =
                    Whole { stop_after_ns: None, wear_out: false, ..whole(named + 1, of(2)) };
                phases.push(phase("File read", vec![Action::Load(whole).into()]));
            }
            if removes {
                phases.push(phase("File removal", names(NameOp::Unlink, named, of(3))));
            }
        }
        if removes {
            phases.push(phase("Tree removal", tree(NameOp::Rmdir)));
        }
    }
}

/// With a tree for each process, the items that a process makes lie in the tree of the one `stride` places further on: so does mdtest,
/// and so another client fills a directory than the one that has made it.
pub(super) fn own_tree(processes: u32, stride: u32) -> Template {
    let processes = processes.max(1);
    match stride % processes {
        0 => Template::of("mdtest_tree.{process}"),
        by => Template::of(&format!("mdtest_tree.{{process+{by}%{processes}}}")),
    }
}

/// What mdtest renames: the first item gets a spare name, each further one but the last the name that has just become free, and at
/// the end the first one the name that is free then; as many renames as there are items, and all names are there again.
fn renamed_in_turn(dirs: u32, spare: u32, of: Whose, (first, count): (u32, u32)) -> Vec<Step> {
    let rename = |file, to, from: u32, to_first, count| {
        let items = Items { first: from, count };
        Action::Names { op: NameOp::Rename, file, to: Some(to), to_first, of, items }.into()
    };
    let mut steps = vec![rename(dirs, spare, first, None, 1)];
    if count > 2 {
        steps.push(rename(dirs, dirs, first + 1, Some(first), count - 2));
    }
    steps.push(rename(spare, dirs, first, Some(first + count.saturating_sub(2)), 1));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Op;

    fn paths(mdtest: &Mdtest, process: u32, wanted: NameOp) -> Vec<String> {
        let workload = mdtest.workload().expect("good");
        let mut path = String::new();
        let walk = workload.walk(0, process).expect("walked");
        walk.filter_map(|op| match op.expect("read") {
            Op::Name { op, file, .. } if op == wanted => {
                workload.path(&file, &mut path).expect("a path");
                Some(path.clone())
            }
            _ => None,
        })
        .collect()
    }

    /// What mdtest 4.1 made with `-n 6 -z 1 -b 2 -L -u -F` (3 directories, 2 of them leaves), by its source.
    #[test]
    fn names_are_those_of_mdtest() {
        let mut mdtest = Mdtest { depth: 1, branch: 2, ..Mdtest::easy(2, 6) };
        let root = "test-dir.0-0/mdtest_tree.1.0";
        assert_eq!(
            paths(&mdtest, 1, NameOp::Mkdir),
            [
                root.to_string(),
                format!("{root}/mdtest_tree.1.1"),
                format!("{root}/mdtest_tree.1.2")
            ]
        );
        let removed = paths(&mdtest, 1, NameOp::Rmdir);
        assert_eq!(removed[2], root, "a tree is removed from its leaves on: {removed:?}");
        // With -N 1 process 0 stats what process 1 made, which lies in the tree of process 0.
        let stats = paths(&mdtest, 0, NameOp::Stat);
        let root = "test-dir.0-0/mdtest_tree.0.0";
        assert_eq!(stats[0], format!("{root}/mdtest_tree.0.1/file.mdtest.1.3"));
        assert_eq!(stats[5], format!("{root}/mdtest_tree.0.2/file.mdtest.1.8"));
        assert_eq!(stats.len(), 6);
        let dirs = Mdtest { unique: true, dirs_only: true, stride: 1, ..Mdtest::new(3, 2) };
        let dir = |item| format!("test-dir.0-0/mdtest_tree.2.0/dir.mdtest.1.{item}");
        assert_eq!(paths(&dirs, 1, NameOp::Mkdir)[1..], [dir(0), dir(1)]);
        // Three places further on is the process itself; items are removed in their order.
        assert_eq!(paths(&dirs, 1, NameOp::Rmdir)[..2], [dir(0), dir(1)]);
        mdtest = Mdtest::hard(3, 4);
        assert_eq!(
            paths(&mdtest, 2, NameOp::Stat)[3],
            "test-dir.0-0/mdtest_tree.0/file.mdtest.0.3"
        );
        assert_eq!(paths(&mdtest, 2, NameOp::Mkdir).len(), 0, "process 0 makes a shared tree");
    }

    /// What mdtest 4.1 renamed with `-n 4 -D -u -N 1`, by its source; in the end all names are there.
    #[test]
    fn directories_are_renamed_in_turn() {
        let renames = |mdtest: &Mdtest| -> Vec<(String, String)> {
            let workload = mdtest.workload().expect("good");
            let walk = workload.walk(0, 0).expect("walked");
            let name = |file: &crate::language::FileId| {
                let mut path = String::new();
                workload.path(file, &mut path).expect("a path");
                path.rsplit('/').next().unwrap_or_default().to_string()
            };
            walk.filter_map(|op| match op.expect("read") {
                Op::Name { op: NameOp::Rename, file, to: Some(to) } => {
                    Some((name(&file), name(&to)))
                }
                _ => None,
            })
            .collect()
        };
        let mdtest = Mdtest { unique: true, dirs_only: true, stride: 1, ..Mdtest::new(2, 4) };
        let dir = |number: &str| format!("dir.mdtest.1.{number}");
        let wanted = [("0", "0-XX"), ("1", "0"), ("2", "1"), ("0-XX", "2")];
        assert_eq!(renames(&mdtest), wanted.map(|(from, to)| (dir(from), dir(to))));
        let two = Mdtest { rename: true, ..Mdtest { items: 2, ..mdtest.clone() } };
        let wanted = [("0", "0-XX"), ("0-XX", "0")];
        assert_eq!(renames(&two), wanted.map(|(from, to)| (dir(from), dir(to))));
        assert!(renames(&Mdtest { items: 1, ..mdtest.clone() }).is_empty());
        assert!(renames(&Mdtest { only: [true, false, false, true], ..mdtest }).is_empty());
    }

    #[test]
    fn counts_that_do_not_fit_are_refused() {
        let refused = |mdtest: Mdtest| mdtest.workload().expect_err("refused").to_string();
        assert!(refused(Mdtest::new(1, 0)).contains("-n or -I"));
        assert!(
            refused(Mdtest { depth: 2, branch: 2, ..Mdtest::new(1, 3) }).contains("7 directories")
        );
        let both = Mdtest { items_per_dir: 3, depth: 1, branch: 2, ..Mdtest::new(1, 10) };
        assert!(refused(both).contains("hold 9 items"));
        assert!(refused(Mdtest { depth: 60, branch: 9, ..Mdtest::new(1, 3) }).contains("too many"));
    }
}
