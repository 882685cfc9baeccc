//! Unmodified programs on a cache over real file systems: git, the HDF5 tools, LAMMPS with restart
//! files and SQLite work in the mount; after the unmount the PFS has, byte by byte, what the same
//! programs leave in a plain directory, and they can go on with it there.
//!
//! The PFS is a GlusterFS, mounted by its own FUSE client, or a disk of 100 MB/s.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::gluster::Gluster;
use forebay_tests::procs::{run, try_run_for};
use forebay_tests::site::Kind;
use forebay_tests::slow_disk::SlowDisk;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(90);
/// The buffer of a served cache.
const NAME: &str = "programs";
/// Speed of the slow disk.
const SLOW_BYTES_PER_S: u64 = 100_000_000;

/// Histories are the same whenever and wherever they are made.
const GIT: &str = r#"
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=a@b.c
export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1
# A drain moves the ctime, and once the kernel has forgotten the file also its inode number (see "Not promised" in SEMANTICS):
# `git merge` fails if one of them moves while it runs. Without ctime, numbers and owner git still looks at time and size.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.checkStat GIT_CONFIG_VALUE_0=minimal
git init -q -b main repo; cd repo; git config pack.threads 1
for i in $(seq 1 80); do seq $i $((i * 40)) > file$i; done
git add .; git commit -qm first
git checkout -qb side; git mv file1 renamed; seq 1 9 >> file2; git commit -qam second
git checkout -q main; seq 5 >> file3; git commit -qam third; git merge -q -m merged side
git tag -a -m tagged v1; git gc -q; git fsck --strict; test -z "$(git status --short)"
cd ..; git clone -q --no-hardlinks repo clone; cd clone; git log --stat > ../log.txt; cd ..
# Where it was cloned from is another path in each run.
git -C clone config remote.origin.url ../repo; rm -r clone/.git/logs
git -C clone archive --format=tar v1 > v1.tar
"#;

/// Fewer files, and a clone that is checked out twice: its files and objects drain while git renames, links and removes them.
const GIT_SHORT: &str = r#"
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=a@b.c GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=a@b.c
export HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.checkStat GIT_CONFIG_VALUE_0=minimal
git init -q -b main repo; cd repo; git config pack.threads 1
for i in $(seq 1 30); do seq $i $((i * 40)) > file$i; done
git add .; git commit -qm first
git checkout -qb side; git mv file1 renamed; seq 1 9 >> file2; git commit -qam second
git checkout -q main; seq 5 >> file3; git commit -qam third; git merge -q -m merged side
git gc -q; git fsck --strict; test -z "$(git status --short)"
cd ..; git clone -q --no-hardlinks repo clone; cd clone
git checkout -q HEAD~1; git checkout -q main; git fsck --strict; test -z "$(git status --short)"
"#;
/// What that may take on a served cache over a GlusterFS beyond `GIT_SHORT_TIMES` what it takes on the GlusterFS itself: 2 s on a
/// quiet machine, 17 s on one whose processors are busy.
const GIT_SHORT_MORE: Duration = Duration::from_secs(20);
const GIT_SHORT_TIMES: u32 = 4;

/// `source.h5` is the same file for every run.
const HDF5: &str = r#"
cp "$SOURCE" source.h5
h5repack -f GZIP=4 -l CHUNK=64x64 source.h5 packed.h5
h5repack -f NONE -l CONTI packed.h5 unpacked.h5
h5copy -i source.h5 -o copied.h5 -s /group -d /there/group -p
h5diff source.h5 packed.h5; h5diff packed.h5 unpacked.h5
h5diff source.h5 copied.h5 /group /there/group
h5dump packed.h5 | tail -n +2 > packed.txt; h5dump unpacked.h5 | tail -n +2 > unpacked.txt
h5dump -H copied.h5 | tail -n +2 > copied.txt
"#;

/// The published melt, with restart files while it runs, and a run that goes on from one of them.
const LAMMPS: &str = r#"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
sed 's/^run.*//' /usr/share/lammps/examples/melt/in.melt |
  sed 's/^atom_style.*/&\natom_modify sort 0 0.0/' > in.first
cat >> in.first <<'END'
restart 40 restart.*
run 120
write_restart final.restart
write_dump all custom first.dump id x y z vx vy vz modify sort id format float %.17g
END
cat > in.second <<'END'
atom_modify sort 0 0.0
read_restart restart.80
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 50
run 120 upto
write_restart again.restart
write_dump all custom second.dump id x y z vx vy vz modify sort id format float %.17g
END
lmp -in in.first -screen none -log none
lmp -in in.second -screen none -log none
tail -n +10 first.dump | sed 's/ *$//' > a; tail -n +10 second.dump | sed 's/ *$//' > b; cmp a b; rm a b
"#;

const SQLITE: &str = r#"
for mode in delete truncate wal; do
  sqlite3 $mode.db "pragma journal_mode=$mode; create table t (a integer primary key, b text);" > /dev/null
  for i in $(seq 1 40); do
    echo "insert into t(b) select hex(zeroblob($i)) from generate_series(1, 50);"
  done | sqlite3 $mode.db
  sqlite3 $mode.db "delete from t where a % 7 = 0; create index i on t(b); vacuum;"
  test "$(sqlite3 $mode.db 'pragma integrity_check')" = ok
  sqlite3 $mode.db .dump > $mode.sql
done
"#;

const PROGRAMS: [(&str, &str); 4] =
    [("git", GIT), ("hdf5", HDF5), ("lammps", LAMMPS), ("sqlite", SQLITE)];

/// What they say about their files where the PFS has them.
const AFTERWARDS: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 HOME=/nonexistent
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
git -c safe.directory='*' -C git/repo fsck --strict
h5diff hdf5/source.h5 hdf5/packed.h5
for mode in delete truncate wal; do test "$(sqlite3 sqlite/$mode.db 'pragma integrity_check')" = ok; done
(cd lammps && sed 's/^write_.*//' in.second > "$SCRATCH/in" && lmp -in "$SCRATCH/in" -screen none -log none)
"#;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Directories of one test, removed on drop.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-programs-{}-{number}", std::process::id());
        let base = Path::new("/dev/shm").join(name);
        for part in ["plain", "flash", "mnt", "pfs"] {
            std::fs::create_dir_all(base.join(part)).unwrap();
        }
        Place(base)
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The executable, with secrets of its own.
    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.env("FOREBAY_CONFIG_DIR", self.dir("config"));
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut umount = Command::new(binary());
        umount.args(["umount", "--force", "--discard-dirty"]).arg(self.dir("mnt"));
        let _ = try_run_for(&mut umount, LIMIT);
        let _ = Command::new("umount").args(["-q", "-l"]).arg(self.dir("mnt")).status();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn forebay(place: &Place, args: &[&str], path: &Path) -> String {
    let (ok, said) = try_run_for(place.command().args(args).arg(path), LIMIT);
    assert!(ok, "forebay {args:?}: {said}");
    said
}

/// A server with a cache buffer over `pfs`, ended on drop.
struct Server {
    address: String,
    pid: i32,
}

impl Server {
    fn start(place: &Place, pfs: &Path) -> Server {
        let address = format!("unix:{}", place.dir("sock").display());
        let serve = ["serve", "--background", "--json", "--listen", &address, "--capacity"];
        let said =
            forebay(place, &[&serve[..], &["600MiB", "--flash"]].concat(), &place.dir("flash"));
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let server = Server { address, pid: told["pid"].as_i64().unwrap() as i32 };
        let create = ["buffer", "create", NAME, "--type", "cache", "--capacity", "256MiB"];
        forebay(place, &[&create[..], &["--server", &server.address, "--pfs"]].concat(), pfs);
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut destroy = Command::new(binary());
        destroy.args(["buffer", "destroy", NAME, "--force", "--discard-dirty", "--server"]);
        let _ = try_run_for(destroy.arg(&self.address), LIMIT);
        // SAFETY: plain numbers: our own daemon.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

fn work(place: &Place, dir: &Path) {
    for program in PROGRAMS {
        work_of(program, place, dir, LIMIT);
    }
}

/// Runs one program in a directory of its own below `dir`; how long it took.
fn work_of((name, script): (&str, &str), place: &Place, dir: &Path, limit: Duration) -> Duration {
    let own = dir.join(name);
    std::fs::create_dir(&own).unwrap();
    let mut command = Command::new("sh");
    command.args(["-ec", script]).current_dir(&own).env("SOURCE", place.dir("source.h5"));
    let begun = Instant::now();
    let (ok, said) = try_run_for(&mut command, limit);
    let took = begun.elapsed();
    println!("{name} in {}: {took:?}", dir.display());
    let shown = dir.display();
    assert!(ok, "{name} in {shown} after {took:?}: {said}\n{}", what_goes_on(&own));
    took
}

/// Of a program that did not end in time: how many files it has, several times, and what its processes and ours wait for. So
/// one that is slow is told from one that is stuck.
fn what_goes_on(dir: &Path) -> String {
    const LOOKS: Duration = Duration::from_secs(20);
    let script = "for look in 1 2 3; do
        find . | wc -l
        timeout -s KILL 5 ps -eo pid,stat,wchan:32,time,args | grep -e '[g]it ' -e '[f]orebay' -e '[g]luster' | cut -c 1-160
        sleep 2
    done";
    try_run_for(Command::new("sh").args(["-c", script]).current_dir(dir), LOOKS).1
}

/// A file for the HDF5 tools, made once.
fn make_source(path: &Path) {
    let script = r#"
import h5py, numpy, sys
with h5py.File(sys.argv[1], "w") as f:
    group = f.create_group("group")
    for i in range(3):
        data = numpy.arange(128 * 256, dtype="f8").reshape(128, 256) * (i + 0.5)
        group.create_dataset("d%d" % i, data=data).attrs["unit"] = "m"
    f["text"] = "some text"
    f["link"] = h5py.SoftLink("/group/d0")
"#;
    run(Command::new("/usr/bin/python3").args(["-c", script]).arg(path));
}

/// Checksums of all files, with modes and sizes.
fn sums(dir: &Path) -> String {
    let script = "find . -name .glusterfs -prune -o -name lost+found -prune -o -type f -print0 | \
                  sort -z | xargs -0 sha256sum; \
                  find . -name .glusterfs -prune -o -name lost+found -prune -o ! -type d \
                  -printf '%p %m %s\\n' | sort";
    run(Command::new("sh").arg("-c").arg(script).current_dir(dir))
}

/// Of those the lines that are the same in each run: git's index holds inodes and times of its files,
/// and h5repack writes the time into what it makes. For these `git status`, `h5dump` and `h5diff`
/// have judged.
fn timeless(sums: &str) -> String {
    let timed = [".git/index", "/packed.h5", "/unpacked.h5"];
    let same = |line: &&str| !timed.iter().any(|name| line.contains(name));
    sums.lines().filter(same).map(|line| format!("{line}\n")).collect()
}

/// Programs work on a cache over `pfs`, and all of it is there afterwards.
fn programs_on(place: &Place, pfs: &Path, kind: Kind) -> String {
    make_source(&place.dir("source.h5"));
    work(place, &place.dir("plain"));
    let plain = sums(&place.dir("plain"));
    assert!(plain.lines().count() > 300, "the programs have left their files: {plain}");
    let mnt = place.dir("mnt");
    let server = (kind == Kind::Served).then(|| Server::start(place, pfs));
    let mut mount = place.command();
    match &server {
        None => {
            mount.args(["mount", "--cache"]).arg(pfs).args(["--capacity", "256MiB", "--flash"]);
            mount.arg(place.dir("flash"))
        }
        Some(server) => mount.args(["mount", "--buffer", NAME, "--server", &server.address]),
    };
    let (ok, said) = try_run_for(mount.arg(&mnt), LIMIT);
    assert!(ok, "{said}");
    work(place, &mnt);
    let wanted = sums(&mnt);
    same(&timeless(&wanted), &timeless(&plain), "the mount, and a plain directory");
    forebay(place, &["wait", "--timeout", "60", "--json"], &mnt);
    same(&sums(pfs), &wanted, "the PFS after a wait, and the mount");
    forebay(place, &["umount"], &mnt);
    same(&sums(pfs), &wanted, "the PFS after the unmount, and the mount");
    let mut again = Command::new("sh");
    again.args(["-ec", AFTERWARDS]).current_dir(pfs).env("SCRATCH", &place.0);
    let (ok, said) = try_run_for(&mut again, LIMIT);
    assert!(ok, "on the PFS: {said}");
    wanted
}

fn same(got: &str, wanted: &str, what: &str) {
    let all = |text: &'_ str| text.lines().map(String::from).collect::<BTreeSet<String>>();
    let (got, wanted) = (all(got), all(wanted));
    let told: Vec<&String> = got.symmetric_difference(&wanted).take(10).collect();
    assert!(told.is_empty(), "{what} differ: {told:#?}");
}

forebay_tests::on_both_kinds!(git_hdf5_lammps_and_sqlite_leave_the_right_bytes_on_glusterfs);

fn git_hdf5_lammps_and_sqlite_leave_the_right_bytes_on_glusterfs(kind: Kind) {
    let place = Place::new();
    let gluster = Gluster::start(&place.dir("gluster"));
    let wanted = programs_on(&place, &gluster.path(), kind);
    same(&sums(&gluster.brick()), &wanted, "the server's own directory, and the mount");
}

/// Each of git's calls waits for GlusterFS some times, and for what a drain of its file is at; none waits for others' calls or for
/// drains of other files. Where one does, git takes minutes.
#[test]
fn git_on_a_served_cache_over_glusterfs_ends_soon() {
    let place = Place::new();
    let gluster = Gluster::start(&place.dir("gluster"));
    let [bare, pfs] = ["bare", "cached"].map(|name| gluster.path().join(name));
    [&bare, &pfs].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let git = ("git", GIT_SHORT);
    let itself = work_of(git, &place, &bare, LIMIT);
    let mnt = place.dir("mnt");
    let server = Server::start(&place, &pfs);
    forebay(&place, &["mount", "--buffer", NAME, "--server", &server.address], &mnt);
    let cached = work_of(git, &place, &mnt, GIT_SHORT_MORE + GIT_SHORT_TIMES * itself);
    println!("git took {itself:?} on GlusterFS itself, {cached:?} on a served cache over it");
    forebay(&place, &["wait", "--timeout", "60", "--json"], &mnt);
    forebay(&place, &["umount"], &mnt);
    for repository in ["repo", "clone"] {
        let mut fsck = Command::new("git");
        fsck.args(["-c", "safe.directory=*", "-C"]).arg(pfs.join("git").join(repository));
        fsck.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
        let (ok, said) = try_run_for(fsck.args(["fsck", "--strict"]), LIMIT);
        assert!(ok, "{repository} on the PFS: {said}");
    }
}

#[test]
fn git_hdf5_lammps_and_sqlite_leave_the_right_bytes_on_a_slow_disk() {
    let place = Place::new();
    let slow = SlowDisk::new(&place.dir("pfs"), 1 << 30).unwrap();
    slow.limit(SLOW_BYTES_PER_S).unwrap();
    let wanted = programs_on(&place, slow.path(), Kind::Own);
    drop_pages(slow.path());
    same(&sums(slow.path()), &wanted, "the disk itself, and the mount");
}

/// The next reads come from the device.
fn drop_pages(dir: &Path) {
    run(Command::new("sync").arg("-f").arg(dir));
    let script = "find . -type f -exec dd of={} oflag=nocache conv=notrunc,fdatasync count=0 status=none \\;";
    run(Command::new("sh").arg("-c").arg(script).current_dir(dir));
}
