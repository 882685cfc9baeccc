//! A cache over a PFS with real processes: programs work in the mount, the PFS has the right bytes
//! afterwards, whatever fails, is killed or hangs in between. Caches of their own and served ones.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::binary;
use forebay_tests::cached::{pattern, sums};
use forebay_tests::pfs::{Air, Pfs};
use forebay_tests::procs::{Cred, as_user, run, try_run};
use forebay_tests::site::{Kind, LIMIT, Site, stormy_as};
use forebay_tests::sys;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

forebay_tests::on_both_kinds!(
    programs_work_on_the_cache_and_the_pfs_has_their_bytes,
    an_unmount_waits_for_the_drain_and_its_exit_code_tells,
    states_are_told_to_programs_and_passthrough_makes_no_request,
    a_wait_ends_when_what_was_written_before_is_on_the_pfs_also_of_open_files,
    what_is_stored_into_a_mapping_after_the_close_is_drained,
    records_that_end_with_their_own_crc_are_drained,
    of_a_drained_file_that_is_opened_again_only_what_is_changed_drains,
    warm_tells_what_is_on_flash_and_what_did_not_fit,
    served_writers_of_more_than_the_buffer_wait_and_never_see_enospc,
    a_flash_that_kernels_filled_to_the_last_page_drains,
    users_have_on_the_cache_the_rights_that_they_have_on_the_pfs,
    what_is_made_is_on_the_pfs_as_who_made_it,
    files_without_a_name_get_one_and_else_leave_nothing,
    a_cache_killed_while_it_writes_and_drains_loses_nothing,
    errors_of_the_pfs_are_told_and_what_failed_drains_when_they_are_over,
    a_pfs_that_hangs_or_vanishes_holds_the_drain_up_and_nothing_else,
);

const MIB: u64 = 1 << 20;

/// CRC32C, a bit at a time, as ext4 and others have it at the end of their records.
fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }
        })
    })
}

/// One such record in the place of another leaves the CRC32C of what it lies in as it was.
fn records_that_end_with_their_own_crc_are_drained(kind: Kind) {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let site = Site::mounted_as(kind, 64 * MIB, &[]);
    let record = |number: u64| {
        let mut record = number.to_le_bytes().repeat(100);
        record.extend(crc32c(&record).to_le_bytes());
        record
    };
    let mut expected = pattern(7, 3 * MIB as usize);
    std::fs::write(site.mnt("f"), &expected).unwrap();
    for number in 1..5 {
        // In the middle of blocks, at the begin and at the end of the file.
        let record = record(number);
        for at in [0, 200_000, 131_072 * 3 - 400, expected.len() - record.len()] {
            let file = File::options().write(true).open(site.mnt("f")).unwrap();
            file.write_all_at(&record, at as u64).unwrap();
            expected[at..at + record.len()].copy_from_slice(&record);
        }
        site.must_be_durable();
        assert!(std::fs::read(site.pfs("f")).unwrap() == expected, "record {number}");
    }
    // What a server that begins does not know.
    site.kill();
    site.mount();
    let record = record(9);
    let file = File::options().write(true).open(site.mnt("f")).unwrap();
    file.write_all_at(&record, 0).unwrap();
    drop(file);
    expected[..record.len()].copy_from_slice(&record);
    site.must_be_durable();
    assert!(std::fs::read(site.pfs("f")).unwrap() == expected, "after a kill");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

/// The kernel of a mount of a server is asked to forget a file after each close and each drain.
fn of_a_drained_file_that_is_opened_again_only_what_is_changed_drains(kind: Kind) {
    let site = Site::mounted_as(kind, 256 * MIB, &[]);
    let drained = || site.status(&site.mnt(""))["cache"]["tree"]["drained_bytes"].as_u64().unwrap();
    let mut expected = pattern(1, 16 * MIB as usize);
    std::fs::write(site.mnt("f"), &expected).unwrap();
    site.must_be_durable();
    for round in 1..4 {
        // It forgets it.
        std::thread::sleep(Duration::from_millis(500));
        let before = drained();
        // Other bytes than what is there: a drain leaves equal blocks out.
        let piece = pattern(round + 1, MIB as usize);
        let at = u64::from(round) * 4 * MIB;
        let file = File::options().read(true).write(true).open(site.mnt("f")).unwrap();
        file.write_all_at(&piece, at).unwrap();
        drop(file);
        expected[at as usize..][..piece.len()].copy_from_slice(&piece);
        site.must_be_durable();
        let bytes = drained() - before;
        // A drain may come while it is written, and after it.
        assert!((MIB..=2 * MIB).contains(&bytes), "round {round}: {bytes} bytes");
        assert!(std::fs::read(site.pfs("f")).unwrap() == expected, "round {round}");
    }
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

fn programs_work_on_the_cache_and_the_pfs_has_their_bytes(kind: Kind) {
    let site = Site::mounted_as(kind, 256 * MIB, &[]);
    let script = r#"set -e
        git init -q repo; cd repo; git config user.email a@b.c; git config user.name n
        for i in $(seq 1 60); do echo "line $i" > "file$i"; done
        git add .; git commit -qm first; git mv file1 renamed; git commit -qam second; git gc -q
        git fsck --strict; test -z "$(git status --short)"; cd ..
        mkdir tree; cp -a repo/. tree/
"#;
    run(Command::new("sh").arg("-c").arg(script).current_dir(site.mnt("")));
    // A drain moves the ctime, which tar takes for a change of what it reads (see "Not promised" in SEMANTICS).
    site.must_be_durable();
    let script = r#"set -e
        tar cf tree.tar tree; rm -r tree; tar xf tree.tar
        ln tree/file2 hard; ln -s tree/file3 soft; echo more >> hard
        python3 - <<'END'
import sqlite3
for mode in ("delete", "wal"):
    db = sqlite3.connect(mode + ".db")
    db.execute("pragma journal_mode=" + mode)
    db.execute("create table t (a integer primary key, b text)")
    for i in range(300):
        with db:
            db.execute("insert into t values (?, ?)", (i, "x" * (i % 97)))
    assert db.execute("select count(*) from t").fetchone() == (300,)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()
END
"#;
    run(Command::new("sh").arg("-c").arg(script).current_dir(site.mnt("")));
    site.must_be_durable();
    let wanted = sums(&site.mnt(""));
    assert_eq!(sums(&site.pfs("")), wanted);
    assert_eq!(std::fs::metadata(site.pfs("hard")).unwrap().nlink(), 2);
    assert_eq!(site.umount(&[]), (true, String::new()));
    assert_eq!(sums(&site.pfs("")), wanted, "nothing is left behind");
    site.mount();
    assert_eq!(sums(&site.mnt("")), wanted);
    run(Command::new("git").args(["fsck", "--strict"]).current_dir(site.mnt("repo")));
}

/// A file that is mapped for writing, and closed.
struct Mapping(*mut libc::c_void, usize);

impl Mapping {
    fn of(path: &std::path::Path, bytes: usize) -> Mapping {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap();
        file.set_len(bytes as u64).unwrap();
        let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping of an open file.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, read_write, shared, &file, 0) };
        Mapping(at.unwrap(), bytes)
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.1);
        // SAFETY: within the mapping, which is there until the drop.
        unsafe {
            self.0.cast::<u8>().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { munmap(self.0, self.1).unwrap() };
    }
}

/// As programs do: they map a file, close it, and store into it for as long as they like.
fn what_is_stored_into_a_mapping_after_the_close_is_drained(kind: Kind) {
    const BYTES: usize = 300_000;
    let site = Site::mounted_as(kind, 64 * MIB, &["--drain", "close"]);
    std::fs::write(site.pfs("there"), vec![b'.'; BYTES]).unwrap();
    for (turn, name) in ["new", "there", "at the end"].into_iter().enumerate() {
        let mut wanted = vec![if name == "there" { b'.' } else { 0 }; BYTES];
        let mapping = Mapping::of(&site.mnt(name), BYTES);
        let mut store = |at: usize, text: &[u8]| {
            mapping.store(at, text);
            wanted[at..at + text.len()].copy_from_slice(text);
        };
        store(0, b"after the close");
        // The drain of the close has gone by.
        site.must_be_durable();
        assert!(std::fs::read(site.pfs(name)).unwrap().starts_with(b"after the close"), "{name}");
        std::thread::sleep(Duration::from_millis(300));
        store(0, b"after the drain");
        store(200_000, b"elsewhere");
        drop(mapping);
        match turn {
            2 => assert_eq!(site.umount(&[]), (true, String::new())),
            _ => site.must_be_durable(),
        }
        assert!(std::fs::read(site.pfs(name)).unwrap() == wanted, "{name}");
    }
}

fn an_unmount_waits_for_the_drain_and_its_exit_code_tells(kind: Kind) {
    let site = Site::mounted_as(kind, 256 * MIB, &["--drain", "end"]);
    let data = pattern(1, 20 << 20);
    std::fs::write(site.mnt("result"), &data).unwrap();
    assert_eq!(std::fs::metadata(site.pfs("result")).unwrap().len(), 0, "not yet");
    assert_eq!(site.umount(&[]), (true, String::new()));
    assert!(std::fs::read(site.pfs("result")).unwrap() == data);
    site.mount();
    std::fs::write(site.mnt("result"), b"ours").unwrap();
    std::fs::write(site.pfs("result"), b"somebody else's").unwrap();
    let (ok, said) = site.umount(&[]);
    assert!(!ok, "a conflict was unmounted away");
    assert!(said.contains("conflict") && said.contains("resolve"), "{said}");
    assert_eq!(std::fs::read(site.mnt("result")).unwrap(), b"ours", "still mounted");
    let resolve = ["resolve", "--keep", "both"];
    let (ok, said) = site.forebay(&resolve, &site.mnt("result"));
    assert!(ok, "{said}");
    assert_eq!(site.umount(&[]), (true, String::new()));
    assert_eq!(std::fs::read(site.pfs("result")).unwrap(), b"somebody else's");
    assert_eq!(std::fs::read(site.pfs("result.forebay-ours")).unwrap(), b"ours");
}

#[test]
fn dirty_data_is_not_destroyed_unless_it_is_said() {
    let site = Site::mounted(128 * MIB, &["--drain", "never"]);
    std::fs::write(site.mnt("f"), b"only here").unwrap();
    assert!(site.umount(&["--keep", "--no-drain"]).0);
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), b"");
    let (ok, said) = site.umount(&["--flash", site.base.join("flash").to_str().unwrap()]);
    assert!(!ok && said.contains("--discard-dirty"), "{said}");
    site.mount();
    assert_eq!(std::fs::read(site.mnt("f")).unwrap(), b"only here");
    site.kill();
    let (ok, said) = site.umount(&[]);
    assert!(!ok && said.contains("--discard-dirty"), "{said}");
    site.mount();
    assert!(site.umount(&[]).0);
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), b"only here");
}

fn states_are_told_to_programs_and_passthrough_makes_no_request(kind: Kind) {
    let site = Site::mounted_as(kind, 256 * MIB, &["--drain", "end"]);
    let file = std::fs::File::create(site.mnt("f")).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let count = || {
        let status = site.status(&site.base.join("mnt"));
        let count = |name: &str| status["requests"][name].as_u64().unwrap_or(0);
        count("WRITE") + count("GETXATTR")
    };
    let before: u64 = count();
    for i in 0..200 {
        file.write_all_at(&[2; 4096], i * 4096).unwrap();
    }
    assert_eq!(count(), before);
    assert_eq!(site.xattr("f", "state"), "dirty");
    assert_eq!(site.xattr("f", "grade"), "written");
    drop(file);
    let (ok, said) = site.wait(&site.mnt("f"));
    assert!(ok, "{said}");
    assert_eq!(site.xattr("f", "state"), "clean");
    assert_eq!(site.xattr("f", "grade"), "durable");
    assert_eq!(site.xattr("f", "verified"), "cache");
    assert_eq!(std::fs::read(site.pfs("f")).unwrap(), vec![2; 200 * 4096]);
    // A directory's policy is inherited.
    std::fs::create_dir_all(site.mnt("d/e")).unwrap();
    let dir = site.mnt("d");
    sys::setxattr(sys::bytes(&dir), "user.forebay.drain", b"close", 0).unwrap();
    std::fs::write(site.mnt("d/e/now"), b"now").unwrap();
    std::fs::write(site.mnt("later"), b"later").unwrap();
    let start = Instant::now();
    while std::fs::read(site.pfs("d/e/now")).unwrap() != b"now" {
        assert!(start.elapsed() < LIMIT, "it does not drain at its close");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(std::fs::read(site.pfs("later")).unwrap(), b"");
}

/// A writer's mapping, a reader, and a program that never stops writing keep files open.
fn a_wait_ends_when_what_was_written_before_is_on_the_pfs_also_of_open_files(kind: Kind) {
    let site = Site::mounted_as(kind, 256 * MIB, &["--drain", "end"]);
    let open = |name: &str| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(site.mnt(name))
            .unwrap()
    };
    let (log, read) = (open("log"), pattern(7, 3 << 20));
    std::fs::write(site.mnt("read"), &read).unwrap();
    let reader = File::open(site.mnt("read")).unwrap();
    open("mapped").set_len(MIB).unwrap();
    let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\n\
                  for n in sys.stdin:\n m[:100]=bytes([int(n)])*100\n print(n.strip(),flush=True)";
    let mut maps = Command::new("python3")
        .args(["-c", script])
        .arg(site.mnt("mapped"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(maps.stdout.take().unwrap()).lines();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in 0_u64.. {
                if ends.load(Relaxed) {
                    return;
                }
                log.write_all_at(&[b'x'; 100], 4_096 + line * 100 % MIB).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for round in 1..=3_u8 {
            writeln!(maps.stdin.as_mut().unwrap(), "{round}").unwrap();
            assert_eq!(says.next().unwrap().unwrap(), round.to_string());
            log.write_all_at(&[round; 100], 0).unwrap();
            let (ok, said) = site.forebay(&["wait", "--timeout", "40"], &site.mnt(""));
            assert!(ok && said.contains("still open"), "{said}");
            assert_eq!(std::fs::read(site.pfs("mapped")).unwrap()[..100], [round; 100]);
            assert_eq!(std::fs::read(site.pfs("log")).unwrap()[..100], [round; 100]);
            assert!(std::fs::read(site.pfs("read")).unwrap() == read);
        }
        ends.store(true, Relaxed);
    });
    assert_ne!(site.xattr("mapped", "state"), "clean", "it may be written at any moment");
    let (ok, said) = site.forebay(&["wait", "--timeout", "5", "--no-flush"], &site.mnt(""));
    assert!(!ok && said.contains("still open"), "nothing was drained since it began: {said}");
    drop((maps.stdin.take(), reader, log));
    assert!(maps.wait().unwrap().success());
    site.must_be_durable();
    assert_eq!(sums(&site.pfs("")), sums(&site.mnt("")));
}

fn warm_tells_what_is_on_flash_and_what_did_not_fit(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &[]);
    std::fs::create_dir(site.pfs("some")).unwrap();
    for n in 0..3 {
        std::fs::write(site.pfs(&format!("some/{n}")), pattern(n, 5 << 20)).unwrap();
    }
    std::fs::File::create(site.pfs("some/hole")).unwrap().set_len(MIB).unwrap();
    std::os::unix::fs::symlink("0", site.pfs("some/link")).unwrap();
    let (ok, said) = site.forebay(&["warm"], &site.mnt("some"));
    assert!(ok && said.contains("4 files, 16.0 MiB on flash"), "{said}");
    for n in 10..20 {
        std::fs::write(site.pfs(&n.to_string()), pattern(n, 15 << 20)).unwrap();
    }
    let (ok, said) = site.forebay(&["warm"], &site.mnt(""));
    assert!(!ok && said.contains("not all of it fits"), "{said}");
    let data = std::fs::read(site.mnt("10")).unwrap();
    assert!(data == pattern(10, 15 << 20), "read from the PFS all the same");
}

fn served_writers_of_more_than_the_buffer_wait_and_never_see_enospc(kind: Kind) {
    let site = Site::mounted_as(kind, 48 * MIB, &["--writes", "served", "--drain-rate", "40MB"]);
    let data = pattern(3, 4 << 20);
    for i in 0..32 {
        std::fs::write(site.mnt(&format!("f{i}")), &data).unwrap();
    }
    let one = std::fs::File::create(site.mnt("large")).unwrap();
    for i in 0..20 {
        one.write_all_at(&data, i * data.len() as u64).unwrap();
    }
    drop(one);
    let (ok, said) = site.forebay(&["drain-rate"], &site.base.join("mnt"));
    assert!(!ok && said.contains("BYTES"), "{said}");
    let mut rate = Command::new(binary());
    assert!(try_run(rate.arg("drain-rate").arg(site.base.join("mnt")).arg("0")).0);
    site.must_be_durable();
    for i in 0..32 {
        assert!(std::fs::read(site.pfs(&format!("f{i}"))).unwrap() == data);
    }
    let large = std::fs::read(site.pfs("large")).unwrap();
    assert!(large.len() == 20 * data.len() && large.chunks(data.len()).all(|c| c == data));
    assert!(std::fs::read(site.mnt("large")).unwrap() == large);
}

/// A kernel that writes by itself may leave not one page: the maps of what it wrote have room all the same.
fn a_flash_that_kernels_filled_to_the_last_page_drains(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &[]);
    std::fs::write(site.pfs("clean"), pattern(1, 8 << 20)).unwrap();
    assert_eq!(std::fs::read(site.mnt("clean")).unwrap(), pattern(1, 8 << 20));
    let (piece, mut files) = (pattern(2, 4096), Vec::new());
    let mut full = 0;
    for number in 0..40 {
        let name = format!("part{number}");
        files.push((std::fs::File::create(site.mnt(&name)).unwrap(), name, 0u64));
    }
    // All of them a page at a time, until nothing more goes into any.
    let mut open: Vec<usize> = (0..files.len()).collect();
    while !open.is_empty() {
        open.retain(|&i| {
            let (file, _, length) = &mut files[i];
            match file.write_at(&piece, *length) {
                Ok(4096) => {
                    *length += 4096;
                    true
                }
                Ok(short) => panic!("a write of a page wrote {short} bytes"),
                Err(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                    full += 1;
                    false
                }
            }
        });
    }
    assert_eq!(full, 40, "the kernel found the end of the flash");
    let written: Vec<(String, u64)> =
        files.into_iter().map(|(_, name, length)| (name, length)).collect();
    site.must_be_durable();
    for (name, length) in &written {
        let got = std::fs::read(site.pfs(name)).unwrap();
        assert_eq!(got.len() as u64, *length, "{name}");
        assert!(got.chunks(4096).all(|chunk| chunk == piece), "{name}");
    }
    // And it can be filled again: the room for maps is there again.
    // No file is longer than the room that a kernel is given at its open, a quarter of the flash.
    for number in 0..4 {
        std::fs::write(site.mnt(&format!("again{number}")), pattern(3 + number, 10 << 20)).unwrap();
    }
    site.must_be_durable();
    for number in 0..4 {
        let got = std::fs::read(site.pfs(&format!("again{number}"))).unwrap();
        assert!(got == pattern(3 + number, 10 << 20), "again{number}");
    }
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
}

/// User and group of who asks, also of root with another group, before and after the drain.
fn what_is_made_is_on_the_pfs_as_who_made_it(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &[]);
    std::fs::set_permissions(site.mnt(""), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::create_dir(site.mnt("team")).unwrap();
    std::os::unix::fs::chown(site.mnt("team"), Some(0), Some(2000)).unwrap();
    std::fs::set_permissions(site.mnt("team"), PermissionsExt::from_mode(0o2777)).unwrap();
    let makers = [("root", Cred::new(0, 2001, &[])), ("user", Cred::new(1001, 2001, &[2000]))];
    for (name, who) in &makers {
        for top in ["", "team/"] {
            let at = |what: &str| site.mnt(&format!("{top}{name}.{what}"));
            as_user(who, || {
                std::fs::write(at("file"), pattern(3, 200_000)).unwrap();
                std::fs::hard_link(at("file"), at("hard")).unwrap();
                std::fs::write(at("single"), b"x").unwrap();
                std::fs::create_dir(at("dir")).unwrap();
                std::os::unix::fs::symlink("x", at("link")).unwrap();
                sys::mknod(sys::bytes(&at("fifo")), libc::S_IFIFO | 0o600, 0).unwrap();
                let dir = site.mnt(top);
                let made = sys::open(sys::bytes(&dir), libc::O_TMPFILE | libc::O_RDWR, 0o600);
                sys::link_fd(&made.unwrap(), sys::bytes(&at("named"))).unwrap();
            });
        }
    }
    for drained in [false, true] {
        for (name, who) in &makers {
            for (top, gid) in [("", 2001), ("team/", 2000)] {
                for what in ["file", "hard", "single", "dir", "link", "fifo", "named"] {
                    let path = format!("{top}{name}.{what}");
                    for at in [site.mnt(&path), site.pfs(&path)] {
                        let meta = std::fs::symlink_metadata(&at).unwrap();
                        let wanted = (who.uid, gid);
                        assert_eq!((meta.uid(), meta.gid()), wanted, "{at:?}, drained: {drained}");
                    }
                }
            }
        }
        site.must_be_durable();
    }
}

fn files_without_a_name_get_one_and_else_leave_nothing(kind: Kind) {
    let site = Site::mounted_as(kind, 64 * MIB, &[]);
    let root = site.mnt("");
    let nameless = |bytes: &[u8]| {
        let made = sys::open(sys::bytes(&root), libc::O_TMPFILE | libc::O_RDWR, 0o640).unwrap();
        assert_eq!(sys::write(&made, bytes), Ok(bytes.len()));
        assert_eq!(sys::fstat(&made).unwrap().nlink, 0);
        made
    };
    let names = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    // Its room comes back with its last close.
    let data = pattern(1, 15 << 20);
    for _ in 0..6 {
        let file = nameless(&data);
        assert_eq!((names(&root), names(&site.pfs(""))), (0, 0));
        let (ok, said) = site.wait(&root);
        assert!(ok, "{said}");
        assert_eq!(sys::pread(&file, 1000, 100).unwrap(), data[1000..1100]);
    }
    let named = pattern(2, 3 << 20);
    let file = nameless(&named);
    sys::link_fd(&file, sys::bytes(&site.mnt("named"))).unwrap();
    let taken = sys::link_fd(&nameless(b"other"), sys::bytes(&site.mnt("named")));
    assert_eq!(taken, Err(sys::Errno(libc::EEXIST)));
    drop(file);
    site.must_be_durable();
    assert!(std::fs::read(site.pfs("named")).unwrap() == named);
    let stat = sys::stat(sys::bytes(&site.pfs("named"))).unwrap();
    assert_eq!((stat.nlink, stat.mode & 0o777), (1, 0o640));

    let lost = nameless(b"without a name");
    let late = nameless(&named);
    sys::link_fd(&late, sys::bytes(&site.mnt("late"))).unwrap();
    site.kill();
    site.mount();
    drop((lost, late));
    assert!(std::fs::read(site.mnt("late")).unwrap() == named);
    site.must_be_durable();
    assert_eq!((names(&root), names(&site.pfs(""))), (2, 2));
    assert_eq!(site.umount(&[]), (true, String::new()));
    assert!(std::fs::read(site.pfs("late")).unwrap() == named);
}

fn users_have_on_the_cache_the_rights_that_they_have_on_the_pfs(kind: Kind) {
    let site = Site::mounted_as(kind, 128 * MIB, &[]);
    for part in ["", "mnt", "pfs"] {
        let path = site.base.join(part);
        if part != "mnt" {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        }
    }
    std::fs::write(site.pfs("secret"), b"secret").unwrap();
    std::fs::set_permissions(site.pfs("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::write(site.pfs("group"), b"group").unwrap();
    std::os::unix::fs::chown(site.pfs("group"), Some(0), Some(4300)).unwrap();
    std::fs::set_permissions(site.pfs("group"), PermissionsExt::from_mode(0o660)).unwrap();
    let user = Cred::new(4242, 4242, &[4300]);
    as_user(&user, || {
        let denied = std::fs::read(site.mnt("secret")).unwrap_err();
        assert_eq!(denied.raw_os_error(), Some(libc::EACCES));
        std::fs::write(site.mnt("mine"), b"mine").unwrap();
        std::fs::write(site.mnt("group"), b"by a member").unwrap();
        std::fs::create_dir(site.mnt("dir")).unwrap();
        std::fs::write(site.mnt("dir/f"), b"f").unwrap();
    });
    // Who may write, but is not root, takes suid off: by an open that empties it as well.
    std::fs::write(site.mnt("suid"), b"suid").unwrap();
    for empties in [false, true] {
        std::fs::set_permissions(site.mnt("suid"), PermissionsExt::from_mode(0o6777)).unwrap();
        as_user(&user, || {
            let mut options = std::fs::File::options();
            let file = options.write(true).truncate(empties).open(site.mnt("suid")).unwrap();
            if !empties {
                file.write_all_at(b"by a user", 0).unwrap();
            }
        });
        let mode = std::fs::metadata(site.mnt("suid")).unwrap().mode() & 0o7777;
        assert_eq!(mode, 0o777, "emptied: {empties}");
    }
    // What a program may by its file goes too: else who may write it could have it run what they like.
    let (of_pfs, name) = (site.pfs("suid"), "security.capability");
    let mut value = [0u8; 20];
    value[..8].copy_from_slice(&[1, 0, 0, 2, 1, 0, 0, 0]);
    let path = site.mnt("suid");
    sys::setxattr(sys::bytes(&path), name, &value, 0).unwrap();
    assert_eq!(sys::getxattr(sys::bytes(&of_pfs), name).unwrap(), value);
    as_user(&user, || std::fs::File::options().append(true).open(&path).unwrap());
    for path in [&path, &of_pfs] {
        let gone = sys::getxattr(sys::bytes(path), name);
        assert_eq!(gone, Err(sys::Errno(libc::ENODATA)), "{}", path.display());
    }
    site.must_be_durable();
    let owner = |name: &str| {
        let meta = std::fs::metadata(site.pfs(name)).unwrap();
        (meta.uid(), meta.gid())
    };
    assert_eq!(owner("mine"), (4242, 4242));
    assert_eq!(owner("dir/f"), (4242, 4242));
    assert_eq!(owner("group"), (0, 4300), "who owns it stays");
    assert_eq!(std::fs::read(site.pfs("group")).unwrap(), b"by a member");
}

fn a_cache_killed_while_it_writes_and_drains_loses_nothing(kind: Kind) {
    let site = Site::mounted_as(kind, 128 * MIB, &["--drain", "close"]);
    for round in 0..6u8 {
        for i in 0..6u8 {
            let data = pattern(round * 10 + i, 3 << 20);
            std::fs::write(site.mnt(&format!("f{i}")), &data).unwrap();
        }
        std::thread::sleep(Duration::from_millis(u64::from(round) * 7));
        site.kill();
        site.mount();
        for i in 0..6u8 {
            let got = std::fs::read(site.mnt(&format!("f{i}"))).unwrap();
            assert!(got == pattern(round * 10 + i, 3 << 20), "round {round}, file {i}");
        }
    }
    site.must_be_durable();
    assert_eq!(sums(&site.pfs("")), sums(&site.mnt("")));
    assert_eq!(std::fs::read_dir(site.pfs("")).unwrap().count(), 6, "no temporary is left");
}

fn errors_of_the_pfs_are_told_and_what_failed_drains_when_they_are_over(kind: Kind) {
    for errno in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::ESTALE] {
        let (site, pfs) = stormy_as(kind, &["--drain", "end"]);
        let data = pattern(7, 2 << 20);
        std::fs::write(site.mnt("f"), &data).unwrap();
        pfs.weather.after(MIB, Air::Foul(errno));
        let (ok, said) = site.forebay(&["wait", "--timeout", "20", "--json"], &site.mnt("f"));
        let name = forebay_name(errno);
        assert!(!ok && said.contains(name), "{name}: {said}");
        // As it was when the wait ended: with fair weather the next attempt may be through at once.
        let told = said.lines().find(|line| line.starts_with('{')).unwrap();
        let state: serde_json::Value = serde_json::from_str(told).unwrap();
        assert_eq!(state["failed"], 1, "{state}");
        assert_eq!(state["file"]["error"]["errno"], errno, "{state}");
        pfs.weather.set(Air::Fair);
        site.must_be_durable();
        assert!(std::fs::read(site.base.join("backing/f")).unwrap() == data, "{name}");
        assert!(site.umount(&[]).0);
        drop(pfs);
    }
}

fn forebay_name(errno: i32) -> &'static str {
    match errno {
        libc::EIO => "EIO",
        libc::ENOSPC => "ENOSPC",
        libc::EDQUOT => "EDQUOT",
        libc::EROFS => "EROFS",
        _ => "ESTALE",
    }
}

fn a_pfs_that_hangs_or_vanishes_holds_the_drain_up_and_nothing_else(kind: Kind) {
    let (site, pfs) = stormy_as(kind, &["--drain", "end", "--pfs-ttl", "60"]);
    let data = pattern(9, 2 << 20);
    std::fs::write(site.mnt("f"), &data).unwrap();
    let open = std::fs::File::options().read(true).write(true).open(site.mnt("f")).unwrap();
    pfs.weather.after(MIB, Air::Still);
    let (ok, said) = site.forebay(&["wait", "--timeout", "2", "--json"], &site.mnt(""));
    assert!(!ok, "{said}");
    open.write_all_at(b"while it hangs", 5).unwrap();
    let mut got = [0; 14];
    open.read_exact_at(&mut got, 5).unwrap();
    assert_eq!(&got, b"while it hangs");
    pfs.weather.set(Air::Fair);
    drop(open);
    site.must_be_durable();
    let mut wanted = data;
    wanted[5..19].copy_from_slice(b"while it hangs");
    assert!(std::fs::read(site.base.join("backing/f")).unwrap() == wanted);
    // Gone, and back.
    std::fs::write(site.mnt("g"), b"written before it went").unwrap();
    pfs.lose();
    let (ok, _) = site.forebay(&["wait", "--timeout", "5"], &site.base.join("mnt"));
    assert!(!ok);
    drop(pfs);
    let (ok, said) = site.forebay(&["wait", "--timeout", "5"], &site.base.join("mnt"));
    assert!(!ok, "an empty mount point is not the PFS: {said}");
    assert_eq!(std::fs::read_dir(site.base.join("pfs")).unwrap().count(), 0);
    let _pfs = Pfs::mount(&site.base.join("backing"), &site.base.join("pfs"));
    site.must_be_durable();
    assert_eq!(std::fs::read(site.base.join("backing/g")).unwrap(), b"written before it went");
}
