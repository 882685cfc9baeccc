//! `forebay commit` to a PFS that fails or hangs in each of its steps, by one server and by two: the place is the
//! old tree or the new one, whole; the outcome that is told, then and afterwards, is what is so; and what an
//! undo could not remove goes with the next commit.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, binary, is_raw};
use forebay_tests::long;
use forebay_tests::pfs::{Air, Pfs};
use forebay_tests::procs::try_run_for;
use forebay_tests::served::{self, Served, Store, Via};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest that a commit of these tests may take.
const LIMIT: Duration = Duration::from_secs(150);
const RANKS: u32 = 4;
/// More requests than a commit makes.
const REQUESTS_MAX: u64 = 300;

/// The content of a file of a generation.
fn content(generation: u32, rank: u32) -> Vec<u8> {
    format!("generation {generation} rank {rank}\n").repeat(4_000).into_bytes()
}

fn write_tree(dir: &Path, generation: u32) {
    let _before = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir.join("d")).unwrap();
    for rank in 0..RANKS {
        let dir = if rank % 2 == 0 { dir.to_path_buf() } else { dir.join("d") };
        std::fs::write(dir.join(format!("rank.{rank}")), content(generation, rank)).unwrap();
    }
}

/// Which generation a place is, `None`: it is not there. A part of one, or of two, is no generation.
fn generation_of(place: &Path, known: std::ops::RangeInclusive<u32>) -> Option<u32> {
    if !place.exists() {
        return None;
    }
    let is = |generation: u32| {
        (0..RANKS).all(|rank| {
            let dir = if rank % 2 == 0 { place.to_path_buf() } else { place.join("d") };
            std::fs::read(dir.join(format!("rank.{rank}"))).ok() == Some(content(generation, rank))
        })
    };
    let found = known.clone().find(|generation| is(*generation));
    assert!(found.is_some(), "{} is no generation of {known:?}", place.display());
    found
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A buffer, and a PFS whose weather is made.
struct Site {
    buffer: Buffer,
    pfs: Pfs,
}

impl Site {
    fn new() -> Site {
        let buffer = Buffer::mount(Kind::Tmpfs, 128 << 20);
        let outside = buffer.outside();
        let pfs = Pfs::mount(&outside.join("backing"), &outside.join("pfs"));
        Site { buffer, pfs }
    }

    /// Where the PFS's files really are.
    fn backing(&self) -> PathBuf {
        self.buffer.outside().join("backing")
    }

    /// Commits a generation; whether the command ended with 0, and what it said.
    fn commit(&self, generation: u32) -> (bool, String) {
        let from = self.buffer.root().join("ckpt");
        write_tree(&from, generation);
        let mut command = Command::new(binary());
        let to = self.buffer.outside().join("pfs/ckpt");
        command.arg("commit").arg(from).arg("--to").arg(to).arg("--json");
        try_run_for(&mut command, LIMIT)
    }

    /// What is told of the last commit.
    fn last_phase(&self) -> String {
        let mut command = Command::new(binary());
        command.args(["commit", "--status", "--json"]).arg(self.buffer.root());
        let (ok, text) = try_run_for(&mut command, LIMIT);
        assert!(ok, "{text}");
        let plans =
            text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let last = plans.max_by_key(|plan| plan["plan"].as_u64()).unwrap();
        last["commit"]["phase"].as_str().unwrap().to_string()
    }

    /// Holds what a commit told against the place, then commits once more in fair weather.
    fn judge(&self, when: &str, generation: u32, (ok, said): (bool, String)) {
        self.pfs.weather.set(Air::Fair);
        let place = self.backing().join("ckpt");
        let now = generation_of(&place, generation - 1..=generation).unwrap();
        let published = self.last_phase() == "published";
        assert_eq!(ok, now == generation, "{when}: {said}");
        assert_eq!(published, now == generation, "{when}: {said}");
        if !ok {
            assert!(
                said.contains("not published") || said.contains("\"failed\""),
                "{when}: {said}"
            );
        }
        let (ok, said) = self.commit(generation);
        assert!(ok, "{when}, then in fair weather: {said}");
        assert_eq!(generation_of(&place, generation..=generation), Some(generation), "{when}");
        assert_eq!(names(&self.backing()), ["ckpt"], "{when}: something is left");
    }
}

/// Commits while the PFS gets `air` after 0, `stride`, ... requests, until one commit does not meet it any more.
fn at_each_step(stride: u64, air: Air, clears_after: Option<Duration>) -> u32 {
    let site = Site::new();
    let (ok, said) = site.commit(1);
    assert!(ok, "{said}");
    let mut generation = 1;
    for calls in (0..).step_by(stride as usize) {
        generation += 1;
        site.pfs.weather.after_calls(calls, air);
        let told = std::thread::scope(|scope| {
            let commit = scope.spawn(|| site.commit(generation));
            if let Some(after) = clears_after {
                let until = Instant::now() + LIMIT;
                while site.pfs.weather.air() != air && !commit.is_finished() {
                    assert!(Instant::now() < until, "neither met nor over");
                    std::thread::sleep(Duration::from_millis(2));
                }
                if !commit.is_finished() {
                    std::thread::sleep(after);
                }
                if site.pfs.weather.air() == air {
                    site.pfs.weather.set(Air::Fair);
                }
            }
            commit.join().unwrap()
        });
        let met = clears_after.is_some() || site.pfs.weather.air() == air;
        site.judge(&format!("{air:?} after {calls} requests"), generation, told);
        // So many requests has no commit of this tree.
        let over = !met || (clears_after.is_some() && calls > REQUESTS_MAX);
        if over {
            break;
        }
    }
    generation
}

#[test]
fn a_commit_to_a_pfs_that_is_full_at_any_step_is_undone_and_told() {
    if is_raw() {
        return;
    }
    let steps = at_each_step(if long() { 1 } else { 11 }, Air::Foul(libc::ENOSPC), None);
    assert!(steps > 8, "only {steps} steps were met");
}

#[test]
fn a_commit_to_a_pfs_that_breaks_for_a_moment_at_any_step_is_published_or_undone() {
    if is_raw() {
        return;
    }
    let stride = if long() { 7 } else { 61 };
    at_each_step(stride, Air::Foul(libc::EIO), Some(Duration::from_millis(500)));
}

#[test]
fn a_commit_to_a_pfs_that_hangs_for_a_minute_only_takes_longer() {
    if is_raw() {
        return;
    }
    let site = Site::new();
    assert!(site.commit(1).0);
    // In the copying, and near the exchange. A third of a minute outlasts all limits of a call but the minute of `--patience`.
    let minute = Duration::from_secs(if forebay_tests::every_point() { 61 } else { 20 });
    for (calls, hang) in
        [(40, minute), (120, Duration::from_secs(3)), (160, Duration::from_secs(3))]
    {
        let generation = 2;
        site.pfs.weather.after_calls(calls, Air::Still);
        let told = std::thread::scope(|scope| {
            let commit = scope.spawn(|| site.commit(generation));
            while site.pfs.weather.air() != Air::Still && !commit.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            if !commit.is_finished() {
                // Nobody else is held up by it.
                let hangs_since = Instant::now();
                std::thread::sleep(Duration::from_secs(1));
                let begun = Instant::now();
                let new = generation_of(&site.backing().join("ckpt"), 1..=2) == Some(2);
                // The new tree may be there already, and the old one be on its way out.
                assert!(site.last_phase() != "published" || new, "after {calls} requests");
                let refused = site.buffer.umount(&[]).unwrap_err();
                assert!(refused.contains("not finished"), "{refused}");
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
                std::thread::sleep(hang.saturating_sub(hangs_since.elapsed()));
            }
            site.pfs.weather.set(Air::Fair);
            commit.join().unwrap()
        });
        assert!(told.0, "after {calls} requests: {}", told.1);
        assert_eq!(generation_of(&site.backing().join("ckpt"), 1..=2), Some(2));
        assert_eq!(names(&site.backing()), ["ckpt"]);
    }
    site.buffer.umount(&[]).unwrap();
}

#[test]
fn a_commit_of_two_servers_meets_a_pfs_that_fails_and_kills_of_each() {
    if is_raw() {
        return;
    }
    let served = Served::with(served::Options::over(2, Store::Tmpfs), &[Via::Local, Via::Local]);
    let base = served.root(0).parent().unwrap().to_path_buf();
    let pfs = Pfs::mount(&base.join("backing"), &base.join("commits"));
    let (from, to) = (served.root(0).join("ckpt"), base.join("commits/ckpt"));
    let place = base.join("backing/ckpt");
    let commit = |generation: u32| {
        write_tree(&from, generation);
        let mut command = Command::new(binary());
        command.arg("commit").arg(&from).arg("--to").arg(&to);
        try_run_for(&mut command, LIMIT)
    };
    let (ok, said) = commit(1);
    assert!(ok, "{said}");
    let mut generation = 1;
    for (calls, air) in [
        (20, Air::Foul(libc::ENOSPC)),
        (70, Air::Foul(libc::ENOSPC)),
        (130, Air::Foul(libc::ENOSPC)),
        (60, Air::Still),
    ] {
        generation += 1;
        pfs.weather.after_calls(calls, air);
        let (ok, said) = std::thread::scope(|scope| {
            let commit = scope.spawn(|| commit(generation));
            let until = Instant::now() + LIMIT;
            while !commit.is_finished() && pfs.weather.air() != air {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_secs(3));
            pfs.weather.set(Air::Fair);
            commit.join().unwrap()
        });
        let now = generation_of(&place, generation - 1..=generation).unwrap();
        assert_eq!(ok, now == generation, "{air:?} after {calls}: {said}");
        let (ok, said) = commit(generation);
        assert!(ok, "{said}");
        assert_eq!(generation_of(&place, generation..=generation), Some(generation));
        assert_eq!(names(&base.join("backing")), ["ckpt"]);
    }
    // Each server is killed while the PFS holds the commit up, and goes on when it is back.
    for server in 0..2 {
        generation += 1;
        pfs.weather.after_calls(50, Air::Still);
        let (ok, said) = std::thread::scope(|scope| {
            let commit = scope.spawn(|| commit(generation));
            let until = Instant::now() + LIMIT;
            while !commit.is_finished() && pfs.weather.air() != Air::Still {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(5));
            }
            let killed = scope.spawn(|| served.kill_server_at(server));
            // It dies when its last call on the PFS is answered.
            std::thread::sleep(Duration::from_millis(300));
            pfs.weather.set(Air::Fair);
            killed.join().unwrap();
            served.start_server_at(server);
            commit.join().unwrap()
        });
        // The command may have lost its server: then the plan goes on without it.
        let until = Instant::now() + LIMIT;
        while ok && generation_of(&place, generation - 1..=generation) != Some(generation) {
            assert!(Instant::now() < until, "{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let until = Instant::now() + LIMIT;
        loop {
            let (ok, said) = commit(generation);
            if ok {
                break;
            }
            assert!(Instant::now() < until, "after the kill of server {server}: {said}");
            std::thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(generation_of(&place, generation..=generation), Some(generation));
        assert_eq!(names(&base.join("backing")), ["ckpt"]);
    }
    drop(served);
}
