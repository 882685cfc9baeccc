//! Real programs that simply have to work: git, SQLite, rsync, tar, builds, key-value stores,
//! HDF5, dbench. What they need is in `tests/apt-packages.txt`.

use forebay_tests::buffer::Buffer;
use forebay_tests::procs::run;
use forebay_tests::{long, sys, traps};
use std::path::Path;
use std::process::Command;

/// The interpreter that sees the distribution's modules.
const PYTHON: &str = "/usr/bin/python3";

fn sh(dir: &Path, script: &str) -> String {
    run(Command::new("sh").args(["-ec", script]).current_dir(dir))
}

/// A tree with everything an archive has to carry.
fn tree(buffer: &Buffer) {
    let source = buffer.root().join("src");
    std::fs::create_dir_all(source.join("sub/deep")).unwrap();
    for i in 0..300 {
        std::fs::write(source.join(format!("sub/{i}")), vec![i as u8; i * 37]).unwrap();
    }
    sh(
        &source,
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

pub fn t20_archives(buffer: &Buffer) {
    tree(buffer);
    let root = buffer.root();
    sh(&root, "rsync -aHAXS src/ copy/");
    let changes = sh(&root, "rsync -aHAXSni --checksum --delete src/ copy/");
    assert_eq!(changes.trim(), "", "a second rsync finds nothing to do");
    sh(
        &root,
        "mkdir untar && tar --xattrs --xattrs-include='user.*' --acls --sparse -cf - -C src . | tar --xattrs --xattrs-include='user.*' --acls -xpf - -C untar",
    );
    let changes = sh(&root, "rsync -aHAXSni --checksum --delete src/ untar/");
    // tar stores nanoseconds only in its own format; times may differ below a second.
    let other: Vec<&str> = changes.lines().filter(|line| !line.contains("..t....")).collect();
    assert!(other.is_empty(), "{other:?}");
    sh(&root, "cp -a --sparse=always src cp && diff -r --no-dereference --exclude=fifo src cp");
    let sparse = sys::stat(buffer.path("copy/sparse")).unwrap();
    assert_eq!(sparse.size, 30 << 20);
    assert!(sparse.blocks * 512 < 8 << 20, "{} bytes allocated", sparse.blocks * 512);
    sh(&root, "rm -rf src copy untar cp");
}

pub fn t20_git(buffer: &Buffer) {
    tree(buffer);
    let root = buffer.root();
    sh(
        &root,
        "rm -f src/fifo; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1; cd src
         git init -q -b main .; git config user.email a@b; git config user.name n
         git config safe.directory '*'
         git add -A; git commit -qm one; git checkout -q -b side; rm sub/2?; echo x > sub/new
         git add -A; git commit -qm two; git checkout -q main; git merge -q side
         git gc -q --aggressive --prune=now; git fsck --strict --no-dangling",
    );
    let status = sh(
        &root,
        "export HOME=$PWD; git config --global --add safe.directory '*'
         git clone -q src clone; cd clone; git status --porcelain; git log --oneline | wc -l",
    );
    assert_eq!(status.trim(), "2", "a clean clone with two commits");
    if let Ok(repository) = std::env::var("FOREBAY_TEST_REPOSITORY") {
        sh(
            &root,
            &format!(
                "export HOME=$PWD; git clone -q {repository} big; cd big; git status; git gc -q; git fsck"
            ),
        );
    }
}

/// Several processes on one database in WAL mode, killed at random, checked for lost commits.
const SQLITE: &str = r#"
import os, random, signal, sqlite3, sys, time
path, rounds = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(path, timeout=60)
assert db.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
db.execute("create table t(writer integer, n integer, data blob, primary key(writer, n))")
db.close()
def work(writer, start, out):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("pragma synchronous=full")
    n = start
    while True:
        db.execute("begin immediate")
        for i in range(random.randint(1, 5)):
            db.execute("insert into t values(?,?,?)", (writer, n, os.urandom(random.randint(0, 9000))))
            n += 1
        db.execute("commit")
        os.write(out, b"%d\n" % n)
acknowledged = [0] * 3
for round in range(rounds):
    children = []
    for writer in range(3):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                work(writer, acknowledged[writer], w)
            except BaseException as e:
                os.write(w, b"error %s\n" % str(e).encode()); os._exit(1)
        os.close(w)
        children.append((pid, r, writer))
    time.sleep(random.uniform(0.1, 0.4))
    for pid, r, writer in children:
        os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)
        text = b""
        while True:
            some = os.read(r, 65536)
            if not some: break
            text += some
        os.close(r)
        assert b"error" not in text, text
        lines = text.split(b"\n")[:-1]
        if lines: acknowledged[writer] = int(lines[-1])
    db = sqlite3.connect(path, timeout=60)
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    for writer in range(3):
        count, top = db.execute("select count(*), coalesce(max(n)+1,0) from t where writer=?", (writer,)).fetchone()
        assert count == top, ("a hole", writer, count, top)
        assert top >= acknowledged[writer], ("lost", writer, top, acknowledged)
        acknowledged[writer] = top
    db.close()
assert sum(acknowledged) > 0
print("ok", sum(acknowledged))
"#;

pub fn t20_sqlite_torture(buffer: &Buffer) {
    let rounds = if long() { "60" } else { "8" };
    let mut command = Command::new(PYTHON);
    command.args(["-c", SQLITE]).arg(buffer.root().join("db")).arg(rounds);
    assert!(run(&mut command).starts_with("ok"));
}

pub fn t20_builds(buffer: &Buffer) {
    let dir = buffer.root().join("project");
    std::fs::create_dir(&dir).unwrap();
    let (mut calls, mut names) = (String::new(), String::new());
    for i in 0..40 {
        let text = format!("#include \"all.h\"\nint f{i}(int x) {{ return x * {i}; }}\n");
        std::fs::write(dir.join(format!("f{i}.c")), text).unwrap();
        calls += &format!("sum += f{i}(1);\n");
        names += &format!("int f{i}(int);\n");
    }
    std::fs::write(dir.join("all.h"), names).unwrap();
    let main = format!(
        "#include <stdio.h>\n#include \"all.h\"\nint main(void) {{ int sum = 0;\n{calls}printf(\"%d\\n\", sum); return 0; }}\n"
    );
    std::fs::write(dir.join("main.c"), main).unwrap();
    let makefile = "OBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nprog: libf.a main.o\n\tcc -o $@ main.o libf.a\nlibf.a: $(filter-out main.o,$(OBJ))\n\trm -f $@ && ar rcs $@ $^\n%.o: %.c all.h\n\tcc -O1 -c -o $@ $<\n";
    std::fs::write(dir.join("Makefile"), makefile).unwrap();
    sh(&dir, "make -s -j4");
    assert_eq!(run(&mut Command::new(dir.join("prog"))), "780\n");
    assert!(sh(&dir, "make").contains("up to date"), "make trusts the times");
    sh(&dir, "sleep 0.05; touch f3.c; make -q && exit 1 || true; make -s");
    let mut ninja = String::from(
        "rule cc\n  command = cc -c -o $out $in\nrule ld\n  command = cc -o $out $in\n",
    );
    let mut objects = String::new();
    for name in (0..40).map(|i| format!("f{i}")).chain(["main".to_string()]) {
        ninja += &format!("build n/{name}.o: cc {name}.c\n");
        objects += &format!(" n/{name}.o");
    }
    ninja += &format!("build nprog: ld{objects}\n");
    std::fs::write(dir.join("build.ninja"), ninja).unwrap();
    sh(&dir, "ninja -j4");
    assert!(sh(&dir, "ninja").contains("no work to do"), "ninja trusts the times");
    assert_eq!(run(&mut Command::new(dir.join("nprog"))), "780\n");
}

const STORES: &str = r#"
import dbm.gnu, lmdb, os, sys
os.chdir(sys.argv[1])
with dbm.gnu.open("g.db", "c") as db:
    for i in range(5000): db[str(i)] = "v" * (i % 300)
    for i in range(0, 5000, 2): del db[str(i)]
    db.reorganize()
with dbm.gnu.open("g.db", "r") as db:
    assert sum(1 for _ in db.keys()) == 2500
    assert all(len(db[str(i)]) == i % 300 for i in range(1, 5000, 2))
for writemap in (False, True):
    env = lmdb.open("l%d" % writemap, map_size=64 << 20, writemap=writemap, max_dbs=2)
    for batch in range(50):
        with env.begin(write=True) as t:
            for i in range(100): t.put(b"%d.%d" % (batch, i), b"x" * (i * 11))
    pid = os.fork()
    if pid == 0:
        other = lmdb.open("l%d" % writemap, readonly=True)
        with other.begin() as t: os._exit(0 if t.stat()["entries"] == 5000 else 3)
    assert os.waitpid(pid, 0)[1] == 0
    with env.begin() as t: assert t.get(b"49.99") == b"x" * 1089
    env.close()
print("ok")
"#;

pub fn t20_databases(buffer: &Buffer) {
    let said = run(Command::new(PYTHON).args(["-c", STORES]).arg(buffer.root()));
    assert_eq!(said, "ok\n");
}

pub fn t20_hdf5(buffer: &Buffer) {
    let file = buffer.root().join("data.h5");
    assert_eq!(run(Command::new(PYTHON).args(["-c", traps::HDF5]).args([&file, &file])), "ok\n");
    let shown = run(Command::new("h5dump").args(["-H"]).arg(&file));
    assert!(shown.contains("DATASET \"grid\""), "{shown}");
}

/// NetCDF's programs, in the classic format (its own I/O, with records appended and the header
/// rewritten) and in that on HDF5: what they write is read back value by value, from another copy too.
pub fn t20_netcdf(buffer: &Buffer) {
    const RECORDS: usize = 2_000;
    let numbers = |step: usize| (0..RECORDS).map(|i| (i * step).to_string()).collect::<Vec<_>>();
    let cdl = format!(
        "netcdf run {{ dimensions: time = UNLIMITED; variables: int time(time); \
         double level(time); level:units = \"m\"; data: time = {}; level = {}; }}\n",
        numbers(1).join(", "),
        numbers(3).join(", ")
    );
    let root = buffer.root();
    std::fs::write(root.join("run.cdl"), cdl).unwrap();
    let dump =
        |file: &str| run(Command::new("ncdump").args(["-n", "run", file]).current_dir(&root));
    let make =
        |program: &str, args: &[&str]| run(Command::new(program).args(args).current_dir(&root));
    make("ncgen", &["-k", "classic", "-o", "classic.nc", "run.cdl"]);
    make("ncgen", &["-k", "netCDF-4", "-o", "four.nc", "run.cdl"]);
    make("nccopy", &["-k", "netCDF-4", "-d", "5", "-c", "time/100", "classic.nc", "packed.nc"]);
    make("nccopy", &["-k", "classic", "packed.nc", "back.nc"]);
    let wanted = dump("classic.nc");
    assert!(wanted.contains("5997") && wanted.contains("level:units = \"m\""), "{wanted}");
    for file in ["four.nc", "packed.nc", "back.nc"] {
        assert_eq!(dump(file), wanted, "{file}");
    }
    let bytes = |file: &str| std::fs::read(root.join(file)).unwrap();
    assert!(bytes("back.nc") == bytes("classic.nc"), "there and back is another file");
}

pub fn t20_dbench(buffer: &Buffer) {
    traps::dbench(&buffer.root(), if long() { 60 } else { 5 }, 4);
}
