//! Real programs over two mounts: what one made on a mount, the same or another works with on the
//! other; SQLite, HDF5 and dbench on both at once. What they need is in `tests/apt-packages.txt`.

use super::place::Two;
use forebay_tests::procs::run;
use forebay_tests::traps;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter that sees the distribution's modules.
const PYTHON: &str = "/usr/bin/python3";

fn sh(dir: &Path, script: &str) -> String {
    run(Command::new("sh").args(["-ec", script]).current_dir(dir))
}

/// A directory for programs, on each mount: on several servers its files go to all in turn, and what
/// is in `striped` there is striped.
fn places(two: &Two, name: &str) -> (PathBuf, PathBuf) {
    let dir = two.dir_on(two.dirs().last().unwrap(), name, two.servers().last().unwrap());
    (two.here_path(&dir), two.there_path(&dir))
}

/// A tree with everything an archive has to carry.
fn tree(root: &Path) {
    std::fs::create_dir_all(root.join("src/sub/deep")).unwrap();
    for i in 0..60 {
        std::fs::write(root.join(format!("src/sub/{i}")), vec![i as u8; i * 187]).unwrap();
    }
    sh(
        &root.join("src"),
        "ln -s sub/7 link; ln sub/8 hard; ln sub/8 sub/deep/hard2; mkfifo fifo
         truncate -s 30M sparse; printf end | dd of=sparse bs=1 seek=20000000 conv=notrunc 2>/dev/null
         setfattr -n user.color -v blue sub/9; setfattr -n user.dir -v x sub
         setfacl -m u:1001:rwx sub/10; setfacl -d -m g:2000:rx sub/deep
         chown 1001:2000 sub/11; chmod 4755 sub/12; chmod 1777 sub/deep
         touch -d '1969-12-31 12:00:00.123456789 UTC' sub/13; touch -d '2040-01-01' sub/14
         mkdir -p 'with space'; echo x > \"with space/new
line\"",
    );
}

pub fn pair20_archives(two: &Two) {
    let (here, there) = places(two, "archives");
    tree(&here);
    let check = "rsync -aHAXSni --checksum --delete";
    // Copied on one mount from the other, and looked at the other way round.
    sh(&here, &format!("rsync -aHAXS {}/src/ copy/", there.display()));
    let changes = sh(&there, &format!("{check} {}/src/ copy/", here.display()));
    assert_eq!(changes.trim(), "", "rsync on the other mount finds nothing to do");
    let xattrs = "--xattrs --xattrs-include='user.*' --acls";
    sh(
        &there,
        &format!(
            "mkdir untar && tar {xattrs} --sparse -cf - -C src . | tar {xattrs} -xpf - -C {}/untar",
            here.display()
        ),
    );
    let changes = sh(&here, &format!("{check} src/ {}/untar/", there.display()));
    // tar stores nanoseconds only in its own format; times may differ below a second.
    let other: Vec<&str> = changes.lines().filter(|line| !line.contains("..t....")).collect();
    assert!(other.is_empty(), "{other:?}");
    sh(&there, "cp -a --sparse=always src cp");
    sh(&here, "diff -r --no-dereference --exclude=fifo src cp");
    sh(&here, "mv copy moved");
    sh(&there, "rm -rf src moved untar cp; test -z \"$(ls -A)\"");
}

pub fn pair20_git(two: &Two) {
    let (here, there) = places(two, "git");
    tree(&here);
    let home = "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
                git config --global --replace-all safe.directory '*'";
    sh(
        &here,
        &format!(
            "rm -f src/fifo; {home}; cd src
             git init -q -b main .; git config user.email a@b; git config user.name n
             git add -A; git commit -qm one; git checkout -q -b side; rm sub/2?; echo x > sub/new
             git add -A; git commit -qm two; git checkout -q main; git merge -q side"
        ),
    );
    // The other mount goes on in the same repository, and clones it.
    let said = sh(
        &there,
        &format!(
            "{home}; cd src; git status --porcelain; echo y >> sub/new; git commit -qam three
             git gc -q --prune=now; git fsck --strict --no-dangling 2>&1
             cd ..; git clone -q {}/src clone; cd clone; git log --oneline | wc -l",
            here.display()
        ),
    );
    assert_eq!(said.trim(), "3", "a clean tree, and a clone with three commits");
    let status =
        sh(&here, &format!("{home}; cd clone; git status --porcelain; git log --oneline | wc -l"));
    assert_eq!(status.trim(), "3");
}

/// Processes on both mounts write to one database in turns, each commit acknowledged.
const SQLITE: &str = r#"
import os, sqlite3, sys
paths = sys.argv[1:3]
def open_(path): return sqlite3.connect(path, timeout=60, isolation_level=None)
db = open_(paths[0])
assert db.execute("pragma journal_mode=delete").fetchone()[0] == "delete"
db.execute("create table t(writer integer, n integer, data blob, primary key(writer, n))")
db.close()
COUNT = 25
children = []
for writer in range(4):
    pid = os.fork()
    if pid == 0:
        try:
            db = open_(paths[writer % 2])
            db.execute("pragma synchronous=full")
            for n in range(COUNT):
                db.execute("begin immediate")
                assert db.execute("select count(*) from t where writer=?", (writer,)).fetchone()[0] == n
                db.execute("insert into t values(?,?,?)", (writer, n, os.urandom(n * 100)))
                db.execute("commit")
            os._exit(0)
        except BaseException as e:
            # "disk I/O error" has thirty reasons: its name says which call failed.
            name = getattr(e, "sqlite_errorname", "")
            os.write(2, ("writer %d: %s %s\n" % (writer, e, name)).encode()); os._exit(1)
    children.append(pid)
assert all([os.waitpid(pid, 0)[1] == 0 for pid in children])
for path in paths:
    db = open_(path)
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    for writer in range(4):
        assert db.execute("select count(*) from t where writer=?", (writer,)).fetchone()[0] == COUNT
    db.close()
# In WAL mode its processes share memory, so all are on one node: the next node goes on after them.
for turn in range(4):
    db = open_(paths[turn % 2])
    assert db.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
    db.execute("insert into t values(?,?,?)", (9, turn, b"wal"))
    assert db.execute("select count(*) from t where writer=9").fetchone()[0] == turn + 1
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    db.close()
print("ok")
"#;

pub fn pair20_sqlite(two: &Two) {
    let (here, there) = places(two, "sqlite");
    let mut command = Command::new(PYTHON);
    command.args(["-c", SQLITE]).arg(here.join("db")).arg(there.join("db"));
    assert_eq!(run(&mut command), "ok\n");
}

const STORES: &str = r#"
import dbm.gnu, lmdb, os, sys
here, there = sys.argv[1:3]
for i in range(4):
    # The nodes take turns, as gdbm's own lock has it.
    with dbm.gnu.open((here, there)[i % 2] + "/g.db", "c") as db:
        for k in range(i, 1200, 4): db["%d" % k] = "v" * (k % 300)
with dbm.gnu.open(here + "/g.db", "w") as db:
    for k in range(0, 1200, 2): del db[str(k)]
    db.reorganize()
with dbm.gnu.open(there + "/g.db", "r") as db:
    assert sum(1 for _ in db.keys()) == 600
    assert all(len(db[str(k)]) == k % 300 for k in range(1, 1200, 2))
# LMDB keeps readers in shared memory: one node at a time.
for writemap in (False, True):
    for turn, root in enumerate((here, there, here)):
        env = lmdb.open(root + "/l%d" % writemap, map_size=32 << 20, writemap=writemap)
        with env.begin() as t: assert t.stat()["entries"] == turn * 500
        for batch in range(5):
            with env.begin(write=True) as t:
                for i in range(100): t.put(b"%d.%d.%d" % (turn, batch, i), b"x" * (i * 11))
        with env.begin() as t: assert t.get(b"0.4.99") == b"x" * 1089
        env.close()
print("ok")
"#;

pub fn pair20_databases(two: &Two) {
    let (here, there) = places(two, "stores");
    let said = run(Command::new(PYTHON).args(["-c", STORES]).args([&here, &there]));
    assert_eq!(said, "ok\n");
}

pub fn pair20_hdf5(two: &Two) {
    for name in two.files("data") {
        let (here, there) = (two.here_path(&name), two.there_path(&name));
        let said = run(Command::new(PYTHON).args(["-c", traps::HDF5]).args([&here, &there]));
        assert_eq!(said, "ok\n", "{name}");
        let shown = run(Command::new("h5dump").arg("-H").arg(&there));
        assert!(shown.contains("DATASET \"grid\""), "{shown}");
    }
}

pub fn pair20_netcdf(two: &Two) {
    const RECORDS: usize = 1_000;
    let numbers = |step: usize| (0..RECORDS).map(|i| (i * step).to_string()).collect::<Vec<_>>();
    let cdl = format!(
        "netcdf run {{ dimensions: time = UNLIMITED; variables: int time(time); \
         double level(time); level:units = \"m\"; data: time = {}; level = {}; }}\n",
        numbers(1).join(", "),
        numbers(3).join(", ")
    );
    let (here, there) = places(two, "netcdf");
    std::fs::write(here.join("run.cdl"), cdl).unwrap();
    let on = |dir: &Path, program: &str, args: &[&str]| {
        run(Command::new(program).args(args).current_dir(dir))
    };
    on(&there, "ncgen", &["-k", "classic", "-o", "classic.nc", "run.cdl"]);
    on(&here, "ncgen", &["-k", "netCDF-4", "-o", "four.nc", "run.cdl"]);
    on(
        &there,
        "nccopy",
        &["-k", "netCDF-4", "-d", "5", "-c", "time/100", "classic.nc", "packed.nc"],
    );
    on(&here, "nccopy", &["-k", "classic", "packed.nc", "back.nc"]);
    let dump = |dir: &Path, file: &str| on(dir, "ncdump", &["-n", "run", file]);
    let wanted = dump(&here, "classic.nc");
    assert!(wanted.contains("2997") && wanted.contains("level:units = \"m\""), "{wanted}");
    for file in ["four.nc", "packed.nc", "back.nc"] {
        assert_eq!(dump(&there, file), wanted, "{file}");
    }
    assert!(
        std::fs::read(there.join("back.nc")).unwrap()
            == std::fs::read(here.join("classic.nc")).unwrap()
    );
}

pub fn pair20_builds(two: &Two) {
    let (here, there) = places(two, "builds");
    let (mut calls, mut names) = (String::new(), String::new());
    for i in 0..12 {
        let text = format!("#include \"all.h\"\nint f{i}(int x) {{ return x * {i}; }}\n");
        std::fs::write(here.join(format!("f{i}.c")), text).unwrap();
        calls += &format!("sum += f{i}(1);\n");
        names += &format!("int f{i}(int);\n");
    }
    std::fs::write(here.join("all.h"), names).unwrap();
    let main = format!(
        "#include <stdio.h>\n#include \"all.h\"\nint main(void) {{ int sum = 0;\n{calls}printf(\"%d\\n\", sum); return 0; }}\n"
    );
    std::fs::write(there.join("main.c"), main).unwrap();
    let makefile = "OBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nprog: libf.a main.o\n\tcc -o $@ main.o libf.a\nlibf.a: $(filter-out main.o,$(OBJ))\n\trm -f $@ && ar rcs $@ $^\n%.o: %.c all.h\n\tcc -O1 -c -o $@ $<\n";
    std::fs::write(there.join("Makefile"), makefile).unwrap();
    sh(&here, "make -s -j2");
    assert_eq!(run(&mut Command::new(there.join("prog"))), "66\n");
    assert!(sh(&there, "make").contains("up to date"), "make trusts the times of the other mount");
    sh(&there, "sleep 0.05; touch f3.c");
    sh(&here, "make -q && exit 1 || true; make -s");
    assert!(sh(&there, "make").contains("up to date"));
    let mut ninja = String::from("rule cc\n  command = cc -c -o $out $in\n");
    (0..12).for_each(|i| ninja += &format!("build n/f{i}.o: cc f{i}.c\n"));
    std::fs::write(there.join("build.ninja"), ninja).unwrap();
    sh(&there, "ninja -j2");
    assert!(sh(&here, "ninja").contains("no work to do"), "ninja trusts the times");
}

pub fn pair20_dbench(two: &Two) {
    let seconds = if forebay_tests::long() { 30 } else { 2 };
    let (here, there) = places(two, "dbench");
    std::thread::scope(|scope| {
        let runs = [("one", &here), ("two", &there)].map(|(name, root)| {
            scope.spawn(move || {
                let own = root.join(name);
                std::fs::create_dir(&own).unwrap();
                traps::dbench(&own, seconds, 2);
            })
        });
        runs.into_iter().for_each(|run| run.join().unwrap());
    });
}
