//! Random operations on several mounts of a served cache agree with a reference model, seen from every mount,
//! while its server is killed with -9; the PFS has what the model has afterwards.
#![allow(clippy::unwrap_used)]

use forebay_tests::procs::try_run_for;
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::{env_u64, long, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Duration;

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(90);
/// Names of files and of directories, and files that are open at a time.
const FILES: u64 = 12;
const DIRS: u64 = 3;
const OPEN_MAX: usize = 6;
/// All names are compared each so many steps, so the fault is in one of the last so many; told of each.
const COMPARE_EVERY: usize = 100;
/// Largest offset and longest write: files of some blocks.
const OFFSET_MAX: u64 = 700_000;
const WRITE_MAX: usize = 200_000;

/// Content of all files, by number; names lead to numbers.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, u64>,
    data: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Model {
    fn links(&self, id: u64) -> u64 {
        self.names.values().filter(|other| **other == id).count() as u64
    }
}

/// A file that is open on a mount.
struct Held {
    mount: usize,
    id: u64,
    file: File,
    append: bool,
}

struct Run<'a> {
    served: &'a Served,
    rng: StdRng,
    model: Model,
    held: Vec<Held>,
}

impl Run<'_> {
    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.served.root(mount).join(name)
    }

    fn any_mount(&mut self) -> usize {
        self.rng.random_range(0..self.served.mount_count())
    }

    fn any_name(&mut self) -> String {
        let (dir, file) = (self.rng.random_range(0..=DIRS), self.rng.random_range(0..FILES));
        match dir {
            0 => format!("f{file}"),
            dir => format!("d{dir}/f{file}"),
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = self.rng.random_range(1..WRITE_MAX);
        let first: u8 = self.rng.random();
        (0..length).map(|i| first.wrapping_add((i / 7) as u8)).collect()
    }

    fn step(&mut self) -> String {
        let (mount, name) = (self.any_mount(), self.any_name());
        let path = self.path(mount, &name);
        let known = self.model.names.get(&name).copied();
        match (self.rng.random_range(0..12), known) {
            (0..=1, _) => {
                let data = self.bytes();
                let said = format!("mount {mount}: {name} made anew, {} bytes", data.len());
                std::fs::write(&path, &data).unwrap();
                let id = known.unwrap_or_else(|| {
                    self.model.next += 1;
                    self.model.next
                });
                self.model.names.insert(name, id);
                self.model.data.insert(id, data);
                said
            }
            (2, Some(id)) if self.held.len() < OPEN_MAX => {
                let append = self.rng.random();
                let mut options = OpenOptions::new();
                options.read(true).append(append).write(true);
                let file = options.open(&path).unwrap();
                self.held.push(Held { mount, id, file, append });
                format!("mount {mount}: {name} opened, append {append}")
            }
            (3, _) if !self.held.is_empty() => {
                let at = self.rng.random_range(0..self.held.len());
                let gone = self.held.swap_remove(at);
                format!("mount {}: file {} closed", gone.mount, gone.id)
            }
            (4..=5, _) if !self.held.is_empty() => self.write_held(),
            (6, Some(id)) => {
                let size = self.rng.random_range(0..OFFSET_MAX);
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(size).unwrap();
                self.model.data.get_mut(&id).unwrap().resize(size as usize, 0);
                format!("mount {mount}: {name} has {size} bytes now")
            }
            (7, Some(id)) => {
                let to = self.any_name();
                std::fs::rename(&path, self.path(mount, &to)).unwrap();
                let replaced = self.model.names.get(&to).copied();
                if replaced != Some(id) {
                    self.model.names.remove(&name);
                    self.model.names.insert(to.clone(), id);
                    self.let_go(replaced);
                }
                format!("mount {mount}: {name} renamed to {to}")
            }
            (8, Some(id)) => {
                std::fs::remove_file(&path).unwrap();
                self.model.names.remove(&name);
                self.let_go(Some(id));
                format!("mount {mount}: {name} removed")
            }
            (9, Some(id)) => {
                let to = self.any_name();
                let made = std::fs::hard_link(&path, self.path(mount, &to));
                assert_eq!(made.is_ok(), !self.model.names.contains_key(&to), "{made:?}");
                self.model.names.entry(to.clone()).or_insert(id);
                format!("mount {mount}: {name} linked as {to}")
            }
            (10, Some(_)) => {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                file.sync_all().unwrap();
                format!("mount {mount}: {name} synced")
            }
            _ => {
                self.compare(mount, &name);
                format!("mount {mount}: {name} read")
            }
        }
    }

    fn write_held(&mut self) -> String {
        let at = self.rng.random_range(0..self.held.len());
        let data = self.bytes();
        let offset = self.rng.random_range(0..OFFSET_MAX);
        let held = &self.held[at];
        let content = self.model.data.get_mut(&held.id).unwrap();
        let offset = if held.append { content.len() as u64 } else { offset };
        match held.append {
            true => std::io::Write::write_all(&mut &held.file, &data).unwrap(),
            false => held.file.write_all_at(&data, offset).unwrap(),
        }
        let end = offset as usize + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset as usize..end].copy_from_slice(&data);
        format!("mount {}: file {}, {} bytes at {offset}", held.mount, held.id, data.len())
    }

    /// What has no name any more is closed: a kill of the server takes it (docs/SEMANTICS.md).
    fn let_go(&mut self, id: Option<u64>) {
        if let Some(id) = id.filter(|id| self.model.links(*id) == 0) {
            self.held.retain(|held| held.id != id);
            self.model.data.remove(&id);
        }
    }

    fn compare(&self, mount: usize, name: &str) {
        let path = self.path(mount, name);
        match self.model.names.get(name) {
            None => assert!(!path.exists(), "mount {mount}: {name} is there"),
            Some(id) => {
                let want = &self.model.data[id];
                let meta = std::fs::metadata(&path)
                    .unwrap_or_else(|e| panic!("mount {mount}: {name}: {e}"));
                assert_eq!(meta.len(), want.len() as u64, "mount {mount}: size of {name}");
                assert_eq!(meta.nlink(), self.model.links(*id), "mount {mount}: links of {name}");
                let got = std::fs::read(&path).unwrap();
                if got != *want {
                    panic!("mount {mount}: {}", self.difference(name, want, &got));
                }
            }
        }
    }

    /// Where a file differs, and who else sees it so.
    fn difference(&self, name: &str, want: &[u8], got: &[u8]) -> String {
        let differs = |got: &[u8]| (0..want.len()).find(|at| got.get(*at) != want.get(*at));
        let first = differs(got).unwrap_or(want.len());
        let wrong = &got[first.min(got.len())..];
        let zeros = wrong.iter().take_while(|byte| **byte == 0).count();
        let mut places: Vec<_> =
            (0..self.served.mount_count()).map(|at| self.path(at, name)).collect();
        places.push(self.served.pfs(name));
        let told = places.iter().map(|path| match std::fs::read(path) {
            Ok(now) => {
                format!("{}: {} bytes, differs at {:?}", path.display(), now.len(), differs(&now))
            }
            Err(error) => format!("{}: {error}", path.display()),
        });
        let told: Vec<String> = told.collect();
        let (length, wanted) = (got.len(), want.len());
        format!(
            "{name}: {length} bytes, of {wanted}; differs at {first} by {:?}, {zeros} zeros; a moment later:\n{}",
            wrong.first(),
            told.join("\n")
        )
    }

    fn compare_all(&self) {
        let all = (0..=DIRS).flat_map(|dir| (0..FILES).map(move |file| (dir, file)));
        for (dir, file) in all {
            let name = if dir == 0 { format!("f{file}") } else { format!("d{dir}/f{file}") };
            for mount in 0..self.served.mount_count() {
                self.compare(mount, &name);
            }
        }
    }
}

fn agree(name: &str, servers: usize, arguments: &[&str], mounts: &[Via], kill_every: u64) {
    let options = Options { servers, ..Options::cache(Store::Tmpfs, arguments) };
    let served = Served::with(options, mounts);
    for dir in 1..=DIRS {
        std::fs::create_dir(served.root(0).join(format!("d{dir}"))).unwrap();
    }
    let (seed, steps) = (seed(name), env_u64("FOREBAY_STEPS", if long() { 20_000 } else { 700 }));
    let rng = StdRng::seed_from_u64(seed);
    let mut run = Run { served: &served, rng, model: Model::default(), held: Vec::new() };
    let mut trace: Vec<String> = Vec::new();
    for step in 1..=steps {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let said = run.step();
            if kill_every > 0 && step % kill_every == 0 {
                let at = (step / kill_every) as usize % servers;
                run.served.kill_and_restart_server_at(at);
                run.compare_all();
                return format!("{said}; server {at} was killed");
            }
            if step % COMPARE_EVERY as u64 == 0 {
                run.compare_all();
            }
            said
        }));
        match done {
            Ok(said) => trace.push(said),
            Err(_) => {
                let last = trace[trace.len().saturating_sub(COMPARE_EVERY)..].join("\n  ");
                panic!("step {step} of FOREBAY_SEED={seed}; steps before:\n  {last}");
            }
        }
    }
    run.held.clear();
    run.compare_all();
    let mut wait = served.forebay(&["wait", "--timeout", "60", "--server", &served.unix()]);
    let (ok, said) = try_run_for(wait.arg("shared:/"), LIMIT);
    assert!(ok, "{said}\n{}", served.log_tail());
    for (name, id) in &run.model.names {
        assert!(
            std::fs::read(served.pfs(name)).unwrap() == run.model.data[id],
            "{name} on the PFS"
        );
    }
    run.compare_all();
}

#[test]
fn mounts_of_a_served_cache_agree_with_the_model() {
    let mounts = [Via::Local, Via::Tcp, Via::Local];
    agree("mounts_of_a_served_cache_agree_with_the_model", 1, &["--drain", "close"], &mounts, 0);
}

#[test]
fn mounts_of_a_served_cache_agree_with_the_model_over_kills_of_the_server() {
    let name = "mounts_of_a_served_cache_agree_with_the_model_over_kills_of_the_server";
    agree(name, 1, &["--drain", "idle:1"], &[Via::Local, Via::Tcp], 70);
}

#[test]
fn mounts_of_a_cache_over_two_servers_agree_with_the_model() {
    let name = "mounts_of_a_cache_over_two_servers_agree_with_the_model";
    agree(name, 2, &["--drain", "close"], &[Via::Local, Via::Tcp, Via::Local], 0);
}

#[test]
fn mounts_of_a_cache_over_two_servers_agree_with_the_model_over_kills_of_both() {
    let name = "mounts_of_a_cache_over_two_servers_agree_with_the_model_over_kills_of_both";
    agree(name, 2, &["--drain", "idle:1"], &[Via::Local, Via::Tcp], 70);
}
