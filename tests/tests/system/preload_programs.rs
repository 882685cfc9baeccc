//! Programs of others with `libforebay_preload.so`, on a scratch buffer of one machine: what they leave is what they leave through the
//! mount. And programs that the library cannot see, beside those that it serves: static ones, raw system calls, user namespaces.
#![allow(clippy::unwrap_used)]

use crate::preload::{Report, library};
use forebay_tests::buffer::{Buffer, Kind, Options, binary};
use forebay_tests::{procs, sys};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn buffer(extra: &[&str]) -> Buffer {
    let extra = extra.iter().map(ToString::to_string).collect();
    Buffer::mount_with(Options { kind: Kind::Tmpfs, capacity: 1 << 30, extra })
}

/// Runs a script in a directory `work` of the buffer, through the mount and with the library: both say the same, which is checksums
/// of what they left. The directory has the same name both times, since some files have its path in them. The library must have
/// opened so many files at least.
fn leave_the_same(script: &str, variables: &[(&str, &Path)], least: u64) {
    let buffer = buffer(&[]);
    let file = buffer.outside().join("work.sh");
    let head = "set -eu; mkdir work; cd work; export HOME=$PWD";
    std::fs::write(&file, format!("{head}\n{script}\n")).unwrap();
    let run = |mut command: Command, dir: &str| {
        command.arg("bash").arg(&file).current_dir(buffer.root()).envs(variables.iter().copied());
        let said = procs::run(&mut command);
        std::fs::rename(buffer.root().join("work"), buffer.root().join(dir)).unwrap();
        said
    };
    let plain = run(Command::new("env"), "plain");
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut exec = Command::new(binary());
    exec.args(["exec", "--report"]).arg(report.path()).arg("--");
    assert_eq!(run(exec, "beside"), plain);
    assert!(plain.lines().count() > 3, "{plain}");
    let report = Report::read(report.path());
    assert!(report.answered("open") >= least, "{report:?}");
}

/// Sources of a real project, with its Makefile: that of LMDB, which cargo has fetched for this repository.
fn lmdb() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home =
        home.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo"));
    let sources = home.join("registry/src");
    for registry in entries(&sources) {
        for package in entries(&registry) {
            if package.file_name().unwrap().to_string_lossy().starts_with("lmdb-master-sys-") {
                return package.join("lmdb/libraries/liblmdb");
            }
        }
    }
    panic!("no lmdb-master-sys in {}", sources.display());
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A library and its tools by make and gcc, in several processes; the tools that were built run in the buffer too.
#[test]
fn make_and_gcc_build_a_real_project() {
    let script = r#"
        cp "$SOURCE"/*.[ch] "$SOURCE"/Makefile .
        make -s -j3 OPT=-O0 XCFLAGS=-w > /dev/null
        make -q OPT=-O0 XCFLAGS=-w
        for n in 1 2 3 4 5; do printf 'key%s\nvalue%s\n' $n $n; done > text
        ./mdb_load -T -n -f text loaded.db
        ./mdb_dump -n -p loaded.db
        ./mdb_stat -n loaded.db | grep Entries
        touch midl.h; if make -q OPT=-O0 XCFLAGS=-w; then exit 9; fi
        sha256sum *.o *.lo *.so mdb_stat mdb_copy mtest mtest2
    "#;
    leave_the_same(script, &[("SOURCE", lmdb().as_path())], 20);
}

/// A virtual environment with pip, and a small package of this machine that pip installs.
#[test]
fn pip_installs_a_package() {
    let script = r#"
        /usr/bin/python3 -m venv v
        /usr/bin/python3 - <<'END'
import base64, hashlib, zipfile
info = "small-1.0.dist-info/"
files = {"small/__init__.py": "def twice(n):\n    return 2 * n\n", "small/data.txt": "x" * 5000,
         info + "METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
         info + "WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
record = ""
for name, text in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(text)}\n"
files[info + "RECORD"] = record + info + "RECORD,,\n"
with zipfile.ZipFile("small-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        wheel.writestr(zipfile.ZipInfo(name), text)
END
        v/bin/pip install -q --no-index --no-cache-dir --disable-pip-version-check ./small-1.0-py3-none-any.whl
        v/bin/python -c 'import small; print(small.twice(21))'
        v/bin/pip list --disable-pip-version-check --format=freeze
        find v -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum
        find v -type l -printf '%p %l\n' | sort
    "#;
    leave_the_same(script, &[], 20);
}

/// The melt that LAMMPS publishes, with restarts while it runs and a run that goes on from one of them; and the tools of HDF5.
#[test]
fn lammps_and_hdf5_leave_the_same() {
    let script = r#"
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        sed 's/^run.*//' /usr/share/lammps/examples/melt/in.melt | sed 's/^atom_style.*/&\natom_modify sort 0 0.0/' > in.first
        cat >> in.first <<'END'
restart 40 restart.*
run 120
write_dump all custom first.dump id x y z vx vy vz modify sort id format float %.17g
END
        cat > in.second <<'END'
atom_modify sort 0 0.0
read_restart restart.80
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
run 120 upto
write_dump all custom second.dump id x y z vx vy vz modify sort id format float %.17g
END
        lmp -in in.first -screen none -log none
        lmp -in in.second -screen none -log none
        sha256sum first.dump second.dump
        stat -c '%n %s' restart.*
        /usr/bin/python3 -c 'import h5py, numpy
with h5py.File("source.h5", "w") as file:
    group = file.create_group("group")
    group.create_dataset("grid", data=numpy.arange(300000.0).reshape(300, 1000), chunks=(30, 100))
    group["grid"].attrs["unit"] = "m"
with h5py.File("source.h5", "r+") as file:
    file["group/grid"][7:90, 3] = -1.0
    file["more"] = numpy.arange(1000)'
        h5repack -f GZIP=4 -l CHUNK=64x64 source.h5 packed.h5
        h5copy -i packed.h5 -o copied.h5 -s /group -d /there/group -p
        h5diff source.h5 packed.h5
        h5diff source.h5 copied.h5 /group /there/group
        for file in source packed copied; do h5dump $file.h5 | tail -n +2 | sha256sum; done
    "#;
    leave_the_same(script, &[], 20);
}

/// IOR and mdtest, which Debian does not have, by `forebay bench`, which has their parameters and checks what it reads. What it does by
/// raw system calls is the kernel's.
#[test]
fn ior_and_mdtest_of_forebay_bench_leave_the_same() {
    let script = r#"
        bench() { "$FOREBAY" bench "$@" > ../said 2>&1 || { cat ../said; exit 1; }; }
        bench ior -N 3 -t 47008 -b 94016 -s 5 -w -W -r -R -e -k -l o -G 9 -o shared
        bench ior -N 2 -t 64k -b 1m -F -C -O numTasksOnNode0=1 -w -r -R -k -l o -G 9 -o own
        sha256sum shared own*
        bench mdtest --tasks 2 -n 100 -F -w 3901 --keep .
        find . -type f -printf '%f %s\n' | sort
    "#;
    leave_the_same(script, &[("FOREBAY", binary().as_path())], 1);
}

/// Data by io_uring, by the kernel's aio and by a mapping, on descriptors that the library gave, as fio writes and verifies it; a static
/// program reads the same bytes through the mount.
#[test]
fn descriptors_of_the_library_are_for_io_uring_aio_and_mappings() {
    // Where an administrator has forbidden io_uring, programs do without.
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let uring = !disabled.is_ok_and(|number| number.trim() != "0");
    let engines = if uring { "io_uring libaio mmap" } else { "libaio mmap" };
    let script = r#"
        for engine in $ENGINES; do
          fio --name=$engine --filename=f --size=4m --rw=randwrite --bs=4k --iodepth=8 --ioengine=$engine --thread \
            --fallocate=none --verify=crc32c --do_verify=1 --verify_state_save=0 > ../said 2>&1 || { cat ../said; exit 1; }
          [ "$(sha256sum f)" = "$(busybox sha256sum f)" ]
          busybox stat -c '%n %s' f; rm f; echo "$engine is right"
        done
    "#;
    leave_the_same(script, &[("ENGINES", Path::new(engines))], 3);
}

/// Processor time that the threads of a process have had, in nanoseconds.
fn processor_ns(pid: u32) -> u64 {
    let of_thread = |thread: PathBuf| {
        // A thread may end meanwhile.
        let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    entries(Path::new(&format!("/proc/{pid}/task"))).into_iter().filter_map(of_thread).sum()
}

/// Nobody looks again and again for something to do: a program that has asked, and the mount that has answered, take no time while nothing
/// is asked.
#[test]
fn a_program_and_its_mount_take_no_time_while_nothing_is_asked() {
    const IDLE: Duration = Duration::from_secs(3);
    // A tenth of a processor, for what other tests mount meanwhile is looked at; who polls takes all of one.
    const MOST_NS: u64 = 300_000_000;
    // What was done is tidied up behind it, and signs of life are given.
    const LOOKS: u32 = 5;
    let script = "for n in $(seq 200); do echo $n > f$n; read -r line < f$n; done; rm f*; \
        echo ready; read -r end || true";
    let buffer = buffer(&[]);
    let report = tempfile::NamedTempFile::new().unwrap();
    let mut exec = Command::new(binary());
    exec.args(["exec", "--report"]).arg(report.path()).args(["--", "bash", "-euc", script]);
    exec.current_dir(buffer.root()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = exec.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    let processes = [program.id(), u32::try_from(buffer.pid()).unwrap()];
    let taken_ns = || processes.map(processor_ns).iter().sum::<u64>();
    let mut looks = Vec::new();
    for _ in 0..LOOKS {
        let before = taken_ns();
        std::thread::sleep(IDLE);
        looks.push(taken_ns().saturating_sub(before));
        if looks.last() <= Some(&MOST_NS) {
            break;
        }
    }
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(looks.last() <= Some(&MOST_NS), "{looks:?} ns in {IDLE:?} each");
    assert!(Report::read(report.path()).answered("open") >= 100, "it has asked");
}

/// Adds a line to a file by raw system calls, as programs do that have no libc, and says how many bytes the file has then.
const RAW: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s\n", words[count - 1]);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, words[1], O_RDWR | O_CREAT | O_APPEND, 0644);
    if (fd < 0 || syscall(SYS_write, fd, line, length) != length)
        return 1;
    long end = syscall(SYS_lseek, fd, 0L, SEEK_END);
    printf("%ld\n", end);
    return end < length || syscall(SYS_close, fd) != 0;
}
"#;

/// A program by the library, one by raw calls, a static one and busybox write one file in turn: each adds to what the others wrote, and
/// sees how large it is, with passthrough and without.
#[test]
fn programs_that_the_library_does_not_see_are_right_beside_it() {
    let tools = tempfile::tempdir().unwrap();
    let source = tools.path().join("raw.c");
    std::fs::write(&source, RAW).unwrap();
    for (name, flags) in [("raw", &[][..]), ("static", &["-static"][..])] {
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-Wall", "-Werror"]).args(flags).arg("-o").arg(tools.path().join(name));
        procs::run(gcc.arg(&source));
    }
    let script = r#"
        for n in $(seq 20); do
          echo "library $n" >> f
          for tool in raw static; do
            size=$("$TOOLS/$tool" f "$tool $n")
            [ "$size" = "$(stat -c %s f)" ] || { echo "$tool $n: $size"; stat f; exit 1; }
          done
          busybox sh -c "echo busybox $n >> f; test \$(stat -c %s f) -gt $size"
          tail -n 1 f | grep -q "^busybox $n\$"
          [ $((n % 5)) != 0 ] || { busybox mv f g; sed -i s/old/new/ g; busybox cp g f; rm g; }
        done
        busybox ln f h; echo "old" >> h; busybox sed -i s/old/changed/ f; test "$(stat -c %h h)" = 1
        cat f; busybox rm f; test ! -e f; tail -n 1 h
    "#;
    let mut wanted = String::new();
    for n in 1..=20 {
        for tool in ["library", "raw", "static", "busybox"] {
            wanted += &format!("{tool} {n}\n");
        }
    }
    wanted += "changed\nold\n";
    for extra in [&[][..], &["--no-fast-path"][..]] {
        let buffer = buffer(extra);
        let report = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new(binary());
        command.args(["exec", "--report"]).arg(report.path()).args(["--", "bash", "-euc", script]);
        command.current_dir(buffer.root()).env("TOOLS", tools.path());
        assert_eq!(procs::run(&mut command), wanted, "{extra:?}");
        let report = Report::read(report.path());
        assert!(report.answered("open") > 20, "{extra:?}: {report:?}");
    }
}

/// Somebody else's library: it says that it is there, tells of each open, and passes it on. (Not at the end: programs close
/// their standard error before.)
const TELLS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>

#define TOLD(name)                                                                      \
    int name(const char *path, int flags, ...)                                          \
    {                                                                                   \
        int (*next)(const char *, int, ...);                                            \
        next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                \
        va_list rest;                                                                   \
        va_start(rest, flags);                                                          \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                       \
        va_end(rest);                                                                   \
        if (write(2, "open told\n", 10) != 10)                                          \
            return -1;                                                                  \
        return next(path, flags, mode);                                                 \
    }

TOLD(open)
TOLD(open64)

__attribute__((constructor)) static void begin(void)
{
    if (write(2, "loaded\n", 7) != 7)
        _exit(9);
}
"#;

/// Other people's preloads see their calls and the library its own, whichever comes first.
#[test]
fn another_preload_goes_along_in_either_order() {
    let tools = tempfile::tempdir().unwrap();
    let (source, other) = (tools.path().join("tells.c"), tools.path().join("tells.so"));
    std::fs::write(&source, TELLS).unwrap();
    let mut gcc = Command::new("gcc");
    procs::run(gcc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&other).arg(&source).arg("-ldl"));
    let (ours, other) = (library().display().to_string(), other.display().to_string());
    let buffer = buffer(&[]);
    std::fs::write(buffer.root().join("f"), "content\n").unwrap();
    for order in [format!("{ours}:{other}"), format!("{other}:{ours}")] {
        let report = tempfile::NamedTempFile::new().unwrap();
        let mut dd = Command::new("dd");
        dd.args(["if=f", "of=g", "status=none"]).current_dir(buffer.root());
        dd.env("LD_PRELOAD", &order).env("FOREBAY_PRELOAD_REPORT", report.path());
        let said = procs::run(&mut dd);
        assert_eq!(std::fs::read(buffer.root().join("g")).unwrap(), b"content\n", "{order}");
        std::fs::remove_file(buffer.root().join("g")).unwrap();
        let report = Report::read(report.path());
        assert!(report.answered("open") > 0, "{order}: {report:?}");
        assert!(said.contains("loaded"), "{order}: {said}");
        // Behind the library it sees what that leaves to libc.
        let told = said.contains("open told");
        assert!(told || !order.starts_with(&other), "{order}: {said}");
    }
}

/// An ordinary user's container: a user namespace with mounts of its own, one of which is a part of the buffer elsewhere.
#[test]
fn what_runs_in_a_user_namespace_leaves_the_same() {
    let buffer = buffer(&[]);
    sys::chmod(sys::bytes(&buffer.root()), 0o777).unwrap();
    let copied = tempfile::Builder::new().suffix(".so").tempfile().unwrap();
    std::fs::copy(library(), copied.path()).unwrap();
    sys::chmod(sys::bytes(copied.path()), 0o755).unwrap();
    let inner = r#"
        echo before > here
        mount --bind . /mnt; cd /mnt
        echo one > f; echo two >> f; id -u; stat -c '%u %g %a %s' f
        mv f g; cat g here; chmod 600 g; ln g h; stat -c %h g; rm h
        bash -c 'echo three >> g; cat g'
        cd "$OLDPWD"; cat g; echo four >> g
    "#;
    let script = format!(
        "umask 022; mkdir \"$0\"; cd \"$0\"; unshare -Urm bash -euc '{}'; stat -c '%u %g %a %s' g here; cat g; ls",
        inner.replace('\'', "'\\''")
    );
    let run = |dir: &str, preload: bool| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=1002", "--regid=1002", "--clear-groups", "bash", "-euc"]);
        command.arg(&script).arg(dir).current_dir(buffer.root());
        if preload {
            command.env("LD_PRELOAD", copied.path());
        }
        procs::run(&mut command)
    };
    let plain = run("plain", false);
    assert!(plain.contains("one\ntwo\nthree\n") && plain.contains("1002 1002 600"), "{plain}");
    assert_eq!(run("beside", true), plain);
}
