//! What the README says of its two commands: how much they install or make at most, and that `/dev/fuse` is left as it is.
//!
//! Sizes are Debian's own (`Installed-Size`, in KiB) of the packages in the lists of `make demo` and `make test` and of all
//! that these depend on, without what each system has and what the README asks for beforehand. What is installed here
//! beside that does not count.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::procs::{LET_GO, run};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the packages that a command installs.
const OF_DEMO: [&str; 3] =
    ["scripts/apt-packages-build.txt", "scripts/apt-packages-run.txt", "demo/apt-packages.txt"];
const OF_TEST: [&str; 3] =
    ["scripts/apt-packages-build.txt", "scripts/apt-packages-run.txt", "tests/apt-packages.txt"];
/// What is there before: a system that can install packages, and what the README names.
const BEFORE: [&str; 3] = ["apt", "make", "ca-certificates"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[derive(Default)]
struct Package {
    installed_kib: u64,
    /// One of each of these.
    depends: Vec<Vec<String>>,
    is_basic: bool,
}

/// Packages by name, and who provides a name.
#[derive(Default)]
struct Packages {
    by_name: HashMap<String, Package>,
    provided: HashMap<String, Vec<String>>,
}

/// `a (>= 1), b:any | c` as names.
fn names(text: &str) -> Vec<Vec<String>> {
    let name = |one: &str| {
        let name = one.split_whitespace().next().unwrap_or_default();
        name.split(':').next().unwrap_or_default().to_string()
    };
    text.split(',')
        .map(|all| all.split('|').map(name).filter(|name| !name.is_empty()).collect())
        .filter(|all: &Vec<String>| !all.is_empty())
        .collect()
}

impl Packages {
    /// Those that are installed.
    fn installed() -> Packages {
        const FIELDS: &str = "${db:Status-Status}\t${Package}\t${Installed-Size}\t${Pre-Depends}\t${Depends}\t${Provides}\t${Essential}\t${Priority}\n";
        let mut packages = Packages::default();
        for line in run(Command::new("dpkg-query").args(["-W", "-f", FIELDS])).lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            if let ["installed", name, kib, before, after, provides, essential, priority] =
                fields[..]
            {
                let is_basic = essential == "yes" || ["required", "important"].contains(&priority);
                packages.add(name, kib, &format!("{before}, {after}"), provides, is_basic);
            }
        }
        packages
    }

    fn add(&mut self, name: &str, kib: &str, depends: &str, provides: &str, is_basic: bool) {
        for provided in names(provides).into_iter().flatten() {
            self.provided.entry(provided).or_default().push(name.into());
        }
        let installed_kib = kib.trim().parse().unwrap_or(0);
        let package = Package { installed_kib, depends: names(depends), is_basic };
        self.by_name.insert(name.into(), package);
    }

    /// Takes in what apt knows of a package that is not installed.
    fn ask_apt(&mut self, name: &str) {
        let output = Command::new("apt-cache").args(["show", "--no-all-versions", name]).output();
        let text = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        let field = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            line.unwrap_or_default().to_string()
        };
        if text.contains("\nInstalled-Size: ") {
            let depends = format!("{}, {}", field("Pre-Depends"), field("Depends"));
            self.add(name, &field("Installed-Size"), &depends, &field("Provides"), false);
        }
    }

    /// The one of several that is there, or that apt knows.
    fn choose(&mut self, any: &[String]) -> Option<String> {
        let there = |packages: &Packages| {
            any.iter().find_map(|name| match packages.by_name.contains_key(name) {
                true => Some(name.clone()),
                false => packages.provided.get(name).and_then(|by| by.first()).cloned(),
            })
        };
        there(self).or_else(|| {
            any.iter().for_each(|name| self.ask_apt(name));
            there(self)
        })
    }

    /// Bytes of these and of all that they need, without what is in `without`; all that is counted comes into it.
    fn bytes(&mut self, wanted: Vec<Vec<String>>, without: &mut HashSet<String>) -> u64 {
        let (mut kib, mut todo) = (0, wanted);
        while let Some(any) = todo.pop() {
            let Some(name) = self.choose(&any) else { continue };
            if without.insert(name.clone()) {
                let package = &self.by_name[&name];
                kib += package.installed_kib;
                todo.extend(package.depends.iter().cloned());
            }
        }
        kib * 1024
    }

    fn basic(&mut self) -> HashSet<String> {
        let basic = self.by_name.iter().filter(|(_, package)| package.is_basic);
        let names = basic.map(|(name, _)| name.clone()).chain(BEFORE.map(String::from));
        let (names, mut all) = (names.map(|name| vec![name]).collect(), HashSet::new());
        self.bytes(names, &mut all);
        all
    }

    /// What the lists add to a system that has none of it.
    fn added(&mut self, lists: [&str; 3]) -> u64 {
        let mut wanted = Vec::new();
        for list in lists {
            let text = std::fs::read_to_string(top().join(list)).unwrap();
            let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
            wanted.extend(lines.flat_map(names));
        }
        let mut without = self.basic();
        self.bytes(wanted, &mut without)
    }
}

/// The figure after these words, in bytes.
fn said(readme: &str, words: &str) -> f64 {
    let at = readme.find(words).unwrap_or_else(|| panic!("README does not say {words:?}"));
    let mut rest = readme[at + words.len()..].split_whitespace();
    let (number, unit) = (rest.next().unwrap(), rest.next().unwrap());
    let unit = match unit.trim_end_matches(|c: char| !c.is_alphabetic()) {
        "GB" => 1e9,
        "MB" => 1e6,
        other => panic!("{other:?} is no unit"),
    };
    number.parse::<f64>().unwrap() * unit
}

#[test]
fn the_readme_says_how_much_is_installed() {
    let readme = std::fs::read_to_string(top().join("README.md")).unwrap();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut packages = Packages::installed();
    for (words, lists) in [("`make demo` up to", OF_DEMO), ("`make test` up to", OF_TEST)] {
        let (said, added) = (said(&readme, words), packages.added(lists) as f64);
        println!("{words} {said:.0} B: {added:.0} B");
        // A package of another release is another size; a figure that is twice as large says nothing.
        assert!(added <= said, "{words} {said:.0} B, and it is {added:.0} B");
        assert!(added > said / 2.0, "{words} {said:.0} B, and it is {added:.0} B");
    }
    let metadata = std::fs::read_to_string(top().join("Cargo.toml")).unwrap();
    let least = metadata.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next());
    let words = format!("with Rust {} or newer", least.unwrap());
    assert!(readme.contains(&words), "README does not say {words:?}");
    for package in &BEFORE[1..] {
        assert!(readme.contains(package), "README does not name {package}");
    }
}

/// What lies on disk below a directory, in bytes.
fn used_below(dir: &Path) -> u64 {
    let told = run(Command::new("du").args(["-s", "-B1"]).arg(dir));
    told.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap()
}

/// `make test-full` makes both.
#[test]
fn the_readme_says_how_much_python_lies_below_target() {
    let readme = std::fs::read_to_string(top().join("README.md")).unwrap();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    for (words, variable, hint) in [
        ("`make test-full` puts another", "FOREBAY_TORCH_PYTHON", "torch-venv"),
        ("of PyTorch and", "FOREBAY_TRACE_PYTHON", "trace-venv"),
    ] {
        let named = std::env::var_os(variable).map(PathBuf::from);
        let beside = binary().parent().unwrap().join(format!("../{hint}/bin/python"));
        let python = named.unwrap_or(beside);
        assert!(python.exists(), "no {}: scripts/{hint} makes it", python.display());
        let venv = python.parent().and_then(Path::parent).unwrap();
        let (said, used) = (said(&readme, words), used_below(venv) as f64);
        println!("{words} {said:.0} B: {used:.0} B");
        assert!(used <= said && used > said / 2.0, "{words} {said:.0} B, and it is {used:.0} B");
    }
}

/// A device of its own, which no other test uses.
#[test]
fn dev_fuse_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    let script = "set -e
        mount -t tmpfs -o size=64M,dev,mode=0755 none \"$2\"; cd \"$2\"
        mknod fuse c 10 229; chmod 640 fuse; mount --bind fuse /dev/fuse
        (cd \"$1\"; scripts/install-packages scripts/apt-packages-build.txt scripts/apt-packages-run.txt)
        mkdir -m 755 flash mnt
        \"$3\" mount --scratch 16MiB --flash \"$2/flash\" mnt > /dev/null
        echo abc > mnt/f; stat -c %a /dev/fuse
        \"$3\" umount --destroy mnt > /dev/null
        stat -c %a /dev/fuse";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{LET_GO}{script}"), "sh"]);
    let modes = run(command.arg(top()).arg(dir.path()).arg(binary()));
    assert_eq!(modes.lines().collect::<Vec<_>>(), ["640", "640"]);
}
