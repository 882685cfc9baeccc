//! Staging by several servers, as users do it: buffers over two and three `forebay serve`
//! processes, without a mount (but to make a directory striped); each server killed with -9 in the middle.

use crate::common::pool::Pool;
use crate::common::{must_be_root, text, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0_u8; len.next_multiple_of(8)];
    // Words, not slices: nothing optimizes this.
    for word in bytes.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_le_bytes();
    }
    bytes.truncate(len);
    bytes
}

/// Small files in some directories, links, odd names, a sparse file.
fn make_tree(top: &Path, files: u64) {
    for dir in 0..10 {
        let dir = top.join(format!("d{dir}/\u{e4} b\n"));
        fs::create_dir_all(&dir).unwrap();
        for number in 0..files / 10 {
            fs::write(
                dir.join(format!("rank.{number}")),
                noise(500 + number as usize % 3_000, number),
            )
            .unwrap();
        }
        let odd = dir.join(std::ffi::OsStr::from_bytes(b"\xff\xfe odd"));
        fs::write(&odd, b"odd").unwrap();
        fs::set_permissions(&odd, PermissionsExt::from_mode(0o604)).unwrap();
        let again = dir.parent().unwrap().with_extension("odd");
        fs::hard_link(&odd, again).unwrap();
        symlink("rank.0", dir.join("link")).unwrap();
    }
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(&noise(300_000, 5), 5 << 20).unwrap();
    sparse.set_len(11 << 20).unwrap();
}

fn big_files(top: &Path, count: u64, mib: usize) {
    fs::create_dir_all(top).unwrap();
    for number in 0..count {
        fs::write(top.join(format!("out.{number:03}")), noise(mib << 20, number)).unwrap();
    }
}

/// All that two trees show: names, types, modes, times, targets of links, links, bytes.
fn same(one: &Path, other: &Path) {
    let names = |dir: &Path| {
        let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        all.sort();
        all
    };
    assert_eq!(names(one), names(other), "{one:?}");
    for name in names(one) {
        let (a, b) = (one.join(&name), other.join(&name));
        let (from, to) = (a.symlink_metadata().unwrap(), b.symlink_metadata().unwrap());
        let facts = |m: &fs::Metadata| (m.mode(), m.mtime(), m.mtime_nsec(), m.uid(), m.gid());
        assert_eq!(facts(&from), facts(&to), "{a:?}");
        if from.is_dir() {
            same(&a, &b);
        } else if from.is_symlink() {
            assert_eq!(fs::read_link(&a).unwrap(), fs::read_link(&b).unwrap());
        } else {
            assert_eq!(from.nlink(), to.nlink(), "{a:?}");
            // The buffer's tmpfs keeps data in huge pages of 2 MiB: a range may grow by two of them.
            assert!(to.blocks() <= from.blocks() + 2 * 4096, "{a:?} has lost its holes");
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{a:?} is not the same");
        }
    }
}

fn leftovers(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.file_name().as_bytes().starts_with(b".forebay-") {
            found.push(entry.path());
        }
        if entry.file_type().unwrap().is_dir() {
            found.extend(leftovers(&entry.path()));
        }
    }
    found
}

fn pool(servers: usize) -> Pool {
    let pool = Pool::new(&["512MiB", "512MiB", "512MiB"][..servers]);
    let count = servers.to_string();
    let arguments = ["buffer", "create", "wide", "--capacity", "600MiB", "--store", "tmpfs"];
    pool.done(0, &[&arguments[..], &["--servers", &count]].concat());
    pool
}

fn bytes_of_parts(plan: &Value) -> Vec<u64> {
    let parts = plan["parts"].as_array().unwrap();
    parts.iter().map(|part| part["bytes_done"].as_u64().unwrap()).collect()
}

fn last_line(said: &str) -> Value {
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

#[test]
fn ten_thousand_files_go_in_and_out_over_two_servers() {
    must_be_root();
    let pool = pool(2);
    let (tree, out) = (pool.rig.base().join("tree"), pool.rig.base().join("out"));
    make_tree(&tree, 10_000);
    let text = |path: &Path| path.to_str().unwrap().to_string();
    // Asked of the server that does not have the plan.
    let said = pool.done(1, &["stage", "in", &text(&tree), "wide:/in", "--json"]);
    let plan = last_line(&said);
    assert_eq!(plan["state"], "done", "{plan}");
    assert_eq!(plan["files_done"], plan["files_total"]);
    let files: Vec<_> = plan["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["files_done"].as_u64().unwrap())
        .collect();
    assert!(files.iter().all(|count| (4_000..6_200).contains(count)), "{files:?}");
    let shown = pool.done(0, &["stage", "status", &plan["plan"].to_string(), "--buffer", "wide:"]);
    assert!(shown.contains("127.0.0.1"), "the servers are named: {shown}");
    pool.done(1, &["stage", "out", "wide:/in", &text(&out)]);
    same(&tree, &out);
    assert_eq!(leftovers(&out), Vec::<PathBuf>::new());
}

#[test]
fn large_files_are_spread_evenly_and_a_cancel_leaves_nothing() {
    must_be_root();
    let pool = pool(3);
    let (tree, out) = (pool.rig.base().join("tree"), pool.rig.base().join("out"));
    big_files(&tree, 24, 4);
    let plan =
        last_line(&pool.done(0, &["stage", "in", tree.to_str().unwrap(), "wide:/", "--json"]));
    assert_eq!(bytes_of_parts(&plan), [32 << 20; 3]);
    let arguments =
        ["stage", "out", "wide:/", out.to_str().unwrap(), "--rate", "12MiB", "--no-wait"];
    let number = pool.done(0, &arguments).trim().to_string();
    let status = || pool.json(1, &["stage", "status", &number, "--buffer", "wide:"]);
    wait_for("all servers at work", || bytes_of_parts(&status()).iter().all(|bytes| *bytes > 0));
    let ended = pool.json(2, &["stage", "cancel", &number, "--buffer", "wide:"]);
    assert_eq!(ended["state"], "cancelled");
    assert_eq!(leftovers(&out), Vec::<PathBuf>::new());
}

/// One plan, in the middle of which a server is killed and started again.
fn killed(pool: &mut Pool, victim: usize, arguments: &[&str]) {
    let asked = (victim + 1) % 3;
    let rate = ["--rate", "24MiB", "--no-wait"];
    let number = pool.done(asked, &[arguments, &rate[..]].concat()).trim().to_string();
    wait_for("all servers at work", || {
        let status = pool.json(asked, &["stage", "status", &number, "--buffer", "wide:"]);
        bytes_of_parts(&status).iter().all(|bytes| *bytes > 1 << 20)
    });
    pool.kill(victim);
    // Unless it was the one that has the plan (or the pool), the status says who is waited for.
    wait_for("the status to name it", || {
        let shown = pool.ask(asked, &["stage", "status", &number, "--buffer", "wide:"]);
        !shown.status.success() || text(&shown.stdout).contains("waiting: it does not answer")
    });
    pool.start(victim, None);
    wait_for("the plan", || {
        pool.ask(asked, &["stage", "rate", &number, "1GiB", "--buffer", "wide:"]).status.success()
    });
    let ended = pool.ask(asked, &["stage", "wait", &number, "--buffer", "wide:"]);
    assert!(ended.status.success(), "{}{}", text(&ended.stdout), text(&ended.stderr));
}

#[test]
fn each_server_is_killed_in_the_middle_and_the_plan_ends_whole() {
    must_be_root();
    let mut pool = pool(3);
    let tree = pool.rig.base().join("tree");
    make_tree(&tree, 200);
    big_files(&tree, 12, 4);
    for victim in 0..3 {
        let (into, out) =
            (format!("wide:/in{victim}"), pool.rig.base().join(format!("out{victim}")));
        killed(&mut pool, victim, &["stage", "in", tree.to_str().unwrap(), &into]);
        killed(&mut pool, victim, &["stage", "out", &into, out.to_str().unwrap()]);
        same(&tree, &out);
        assert_eq!(leftovers(&out), Vec::<PathBuf>::new());
        fs::remove_dir_all(&out).unwrap();
    }
}

/// From here on this thread, and what it starts, has a network of its own: only a loopback.
fn own_network() {
    // SAFETY: plain integers; it changes nothing but the calling thread's network.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(done, 0, "unshare: {}", std::io::Error::last_os_error());
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
}

/// Bytes that have crossed it, in all directions.
fn crossed_bytes() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Makes the buffer's directory `striped` one whose files are cut over all servers.
fn make_striped(pool: &Pool) {
    let mount = pool.rig.base().join("shared");
    fs::create_dir(&mount).unwrap();
    let path = |name: &str| mount.join(name).to_str().unwrap().to_string();
    pool.done(0, &["mount", "--buffer", "wide", &path("")]);
    let made = fs::create_dir(mount.join("striped"));
    let set = ["stripe", "set", "--count", "all", "--size", "256KiB", &path("striped")];
    let set = pool.command(&set).output().unwrap();
    let ended = pool.command(&["umount", &path("")]).output().unwrap();
    made.unwrap();
    assert!(set.status.success(), "{}", text(&set.stderr));
    assert!(ended.status.success(), "{}", text(&ended.stderr));
}

#[test]
fn each_of_two_servers_moves_its_half_of_a_striped_file_and_nothing_crosses_the_network() {
    must_be_root();
    own_network();
    let pool = pool(2);
    make_striped(&pool);
    const BYTES: usize = (96 << 20) + 12_345;
    let (source, back) = (pool.rig.base().join("shared.h5"), pool.rig.base().join("back.h5"));
    fs::write(&source, noise(BYTES, 7)).unwrap();
    let before = crossed_bytes();
    let arguments = ["stage", "in", source.to_str().unwrap(), "wide:/striped/shared.h5", "--json"];
    let staged_in = last_line(&pool.done(1, &arguments));
    let arguments = ["stage", "out", "wide:/striped/shared.h5", back.to_str().unwrap(), "--json"];
    let staged_out = last_line(&pool.done(0, &arguments));
    let crossed = crossed_bytes() - before;
    for plan in [staged_in, staged_out] {
        assert_eq!(plan["state"], "done", "{plan}");
        let parts = bytes_of_parts(&plan);
        assert_eq!(parts.iter().sum::<u64>(), BYTES as u64);
        assert!(parts.iter().all(|bytes| bytes.abs_diff(48 << 20) < 1 << 20), "{parts:?}");
    }
    assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap());
    println!("{crossed} bytes crossed the network for {} bytes staged", 2 * BYTES);
    assert!(crossed < 2 << 20, "{crossed} bytes crossed the network for {} staged", 2 * BYTES);
    assert_eq!(leftovers(pool.rig.base()), Vec::<PathBuf>::new());
}

#[test]
fn each_server_is_killed_while_it_moves_its_half_of_a_striped_file() {
    must_be_root();
    let mut pool = pool(2);
    make_striped(&pool);
    let source = pool.rig.base().join("shared.h5");
    fs::write(&source, noise(40 << 20, 9)).unwrap();
    for victim in 0..2 {
        let inside = format!("wide:/striped/{victim}");
        let back = pool.rig.base().join(format!("back{victim}"));
        let plans = [
            ["stage", "in", source.to_str().unwrap(), &inside],
            ["stage", "out", &inside, back.to_str().unwrap()],
        ];
        for plan in plans {
            let asked = 1 - victim;
            let limited = [&plan[..], &["--rate", "12MiB", "--no-wait"]].concat();
            let number = pool.done(asked, &limited).trim().to_string();
            wait_for("both servers at work", || {
                let status = pool.json(asked, &["stage", "status", &number, "--buffer", "wide:"]);
                bytes_of_parts(&status).iter().all(|bytes| *bytes > 1 << 20)
            });
            pool.kill(victim);
            pool.start(victim, None);
            let rate = ["stage", "rate", &number, "1GiB", "--buffer", "wide:"];
            wait_for("the plan", || pool.ask(asked, &rate).status.success());
            let ended = pool.ask(asked, &["stage", "wait", &number, "--buffer", "wide:"]);
            assert!(ended.status.success(), "{}{}", text(&ended.stdout), text(&ended.stderr));
        }
        assert!(fs::read(&source).unwrap() == fs::read(&back).unwrap());
        assert_eq!(leftovers(pool.rig.base()), Vec::<PathBuf>::new());
    }
}
