//! Striped files are copied by all servers that hold them: three servers of one process (`over_rig`),
//! whose questions the tests count, lose, repeat and keep for later. Kills are in `striped_kill`.

use super::over_rig::{Fate, Rig, SERVERS, make_wide};
use super::support::{LIMIT, leftovers, noise};
use crate::PfsHook;
use forebay_interfaces::tree::BufferTree;
use forebay_proto::control::{Direction, PlanState, PlanStatus, StageSpec, Verify};
use forebay_proto::net::staging::StagingQuestion;
use forebay_proto::net::stripes::{StripesQuestion, StripesReply};
use forebay_proto::{Caller, Errno, PlanId, ShardId};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const UNIT: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

fn rig(hook: Option<(u16, PfsHook)>) -> Rig {
    let rig = Rig::with(hook);
    make_wide(&rig.at(0), "wide", UNIT);
    std::fs::create_dir(rig.pfs("tree")).unwrap();
    std::fs::create_dir(rig.pfs("out")).unwrap();
    rig
}

/// A hook at one server for calls on what `is_it` says.
fn hook(
    server: u16,
    work: impl Fn(&'static str, &[u8]) -> Result<(), Errno> + Send + Sync + 'static,
) -> Option<(u16, PfsHook)> {
    Some((server, Arc::new(work)))
}

fn write(rig: &Rig, name: &str, bytes: u64, seed: u64) {
    std::fs::write(rig.pfs(&format!("tree/{name}")), noise(bytes as usize, seed)).unwrap();
}

/// A file of holes with data at these places.
fn sparse(rig: &Rig, name: &str, bytes: u64, data: &[(u64, u64)]) {
    let file = std::fs::File::create(rig.pfs(&format!("tree/{name}"))).unwrap();
    file.set_len(bytes).unwrap();
    for (at, len) in data {
        file.write_all_at(&noise(*len as usize, *at + 1), *at).unwrap();
    }
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    names.sort();
    names
}

fn same(rig: &Rig) {
    assert_eq!(names(&rig.pfs("tree")), names(&rig.pfs("out")));
    for name in names(&rig.pfs("tree")) {
        let read = |dir: &str| std::fs::read(rig.pfs(dir).join(&name)).unwrap();
        assert!(read("tree") == read("out"), "{}", name.display());
    }
}

fn with(spec: StageSpec, verify: Verify) -> StageSpec {
    StageSpec { verify, ..spec }
}

fn parts(status: &PlanStatus) -> Vec<u64> {
    status.parts.iter().map(|part| part.bytes_done).collect()
}

fn start(rig: &Rig, spec: StageSpec) -> PlanId {
    rig.at(0).mover.start(&Caller::root(), spec).unwrap().plan
}

fn wait(rig: &Rig, plan: PlanId) -> PlanStatus {
    let status = rig.at(0).mover.wait(&Caller::root(), plan, LIMIT).unwrap();
    assert!(status.state.is_final(), "the plan does not end: {status:#?}");
    status
}

/// The checksums that the journal of the newest plan has, by name.
fn journaled(rig: &Rig, name: &str) -> u32 {
    let mut found = None;
    let mut plans: Vec<_> =
        std::fs::read_dir(rig.dir.join("store-0/plans")).unwrap().flatten().collect();
    plans.sort_by_key(|plan| plan.file_name());
    for plan in plans {
        let text = std::fs::read(plan.path().join("journal")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        for line in text.lines().filter(|line| line.contains(&format!("\"{name}\""))) {
            let Some((_, crc)) = line.split_once("\"crc32c\":") else { continue };
            let digits: String = crc.chars().take_while(char::is_ascii_digit).collect();
            found = Some(digits.parse().unwrap());
        }
    }
    found.unwrap()
}

#[test]
fn each_server_copies_its_own_part_straight_from_and_to_the_pfs() {
    let rig = rig(None);
    let round = UNIT * u64::from(SERVERS);
    let borders = [
        MIB,
        MIB + 1,
        7 * round - 1,
        7 * round,
        7 * round + 1,
        8 * round - UNIT,
        9 * MIB + 4097,
        13 * UNIT,
    ];
    for (number, bytes) in borders.into_iter().enumerate() {
        write(&rig, &format!("f{number}"), bytes.max(MIB), number as u64);
    }
    let dense: u64 = borders.iter().sum();
    sparse(&rig, "one unit", 6 * MIB, &[(5 * MIB + 3, UNIT)]);
    sparse(&rig, "ends in a hole", 5 * MIB + 77, &[(0, 10), (UNIT - 5, 20), (3 * MIB, 500_000)]);
    sparse(&rig, "ends in data", 5 * MIB + 77, &[(5 * MIB, 77), (2 * MIB, MIB)]);
    sparse(&rig, "hole", 3 * MIB, &[]);
    let size = |name: &PathBuf| rig.pfs("tree").join(name).metadata().unwrap().len();
    let data: u64 = names(&rig.pfs("tree")).iter().map(size).sum();
    for verify in [Verify::Cache, Verify::Medium] {
        let before = rig.net.bytes.load(Relaxed);
        let staged_in = rig.must(with(rig.stage_in("tree", "/wide"), verify));
        let staged_out = rig.must(with(rig.stage_out("/wide", "out"), verify));
        same(&rig);
        let crossed = rig.net.bytes.load(Relaxed) - before;
        assert!(crossed < data / 100, "{crossed} bytes between servers for {data} bytes");
        for status in [&staged_in, &staged_out] {
            let parts = parts(status);
            assert_eq!(parts.iter().sum::<u64>(), data);
            // Holes count for the server that asked.
            assert!(parts.iter().all(|part| *part > dense / 4), "{parts:?} of {dense}");
        }
        for name in names(&rig.pfs("tree")) {
            let name = name.display().to_string();
            let bytes = std::fs::read(rig.pfs(&format!("tree/{name}"))).unwrap();
            let crc = forebay_sums::crc32c(&bytes);
            assert_eq!(journaled(&rig, &name), crc, "{name}");
        }
        for name in ["one unit", "hole", "ends in data", "ends in a hole"] {
            let blocks = |dir: &str| rig.pfs(dir).join(name).metadata().unwrap().blocks();
            assert!(blocks("out") <= blocks("tree") + 64, "{name}: holes are not kept");
        }
    }
    // Files that one server copies: too small to ask for.
    write(&rig, "small", MIB - 1, 3);
    rig.must(rig.stage_in("tree", "/wide"));
    rig.must(rig.stage_out("/wide", "out"));
    same(&rig);
    assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
}

#[test]
fn lost_and_repeated_questions_about_parts_change_nothing() {
    let rig = rig(None);
    for number in 0..6 {
        write(&rig, &format!("f{number}"), 2 * MIB + number * 77_777, number);
    }
    let luck = Mutex::new(StdRng::seed_from_u64(5));
    *rig.net.weather.write() = Some(Box::new(move |_, question| match question {
        StagingQuestion::Stripes(_) => match luck.lock().random::<u8>() {
            0..50 => Fate::Lost,
            50..100 => Fate::AnswerLost,
            100..150 => Fate::Twice,
            _ => Fate::Arrives,
        },
        _ => Fate::Arrives,
    }));
    rig.must(rig.stage_in("tree", "/wide"));
    rig.must(rig.stage_out("/wide", "out"));
    same(&rig);
    assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
}

#[test]
fn a_question_that_comes_late_writes_nothing_into_a_file_that_is_published() {
    let rig = rig(None);
    write(&rig, "f", 3 * MIB, 1);
    *rig.net.kept.lock() = Some(Vec::new());
    rig.must(rig.stage_in("tree", "/wide"));
    // The source is another now, and its attributes are what they were.
    let source = rig.pfs("tree/f");
    let before = source.metadata().unwrap();
    std::fs::File::options()
        .write(true)
        .open(&source)
        .unwrap()
        .write_all_at(&[7; 999_999], 0)
        .unwrap();
    let times = std::fs::FileTimes::new().set_modified(before.modified().unwrap());
    std::fs::File::options().write(true).open(&source).unwrap().set_times(times).unwrap();
    let kept = rig.net.kept.lock().take().unwrap();
    let begins: Vec<_> = kept
        .iter()
        .filter(|(_, question)| {
            let question = forebay_proto::net::frame::decode(question).unwrap();
            matches!(question, StagingQuestion::Stripes(StripesQuestion::Begin { .. }))
        })
        .collect();
    assert_eq!(begins.len(), usize::from(SERVERS) - 1);
    for (to, question) in &begins {
        rig.at(to.0).mover.answer(question).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    rig.must(rig.stage_out("/wide", "out"));
    assert!(std::fs::read(rig.pfs("out/f")).unwrap() == noise(3 * MIB as usize, 1));
}

#[test]
fn a_server_that_does_not_see_the_file_on_the_pfs_leaves_its_part_to_who_asked() {
    // As on a node where it is not mounted.
    let rig = rig(hook(1, |call, name| match call {
        "open" if name == b"f" || name.ends_with(b".tmp") => Err(Errno::ENOENT),
        _ => Ok(()),
    }));
    write(&rig, "f", 4 * MIB, 1);
    // By shard 0: nothing else was given to a server yet.
    let staged_in = rig.must(rig.stage_in("tree/f", "/wide/f"));
    let staged_out = rig.must(rig.stage_out("/wide/f", "out/f"));
    same(&rig);
    for status in [staged_in, staged_out] {
        assert_eq!(parts(&status), [4 * MIB, 0, 0]);
    }
    assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
}

#[test]
fn a_bit_that_flips_in_a_part_is_found_by_the_server_that_wrote_it() {
    let flips = Arc::new(AtomicU32::new(1));
    for always in [false, true] {
        for server in [0, 1] {
            let (left, dir) = (flips.clone(), Arc::new(Mutex::new(PathBuf::new())));
            left.store(if always { u32::MAX } else { 1 }, Relaxed);
            let at = dir.clone();
            let rig = rig(hook(server, move |call, name| {
                if call == "fsync" && name.ends_with(b".tmp") && left.load(Relaxed) > 0 {
                    left.fetch_sub(1, Relaxed);
                    let name = String::from_utf8_lossy(name).into_owned();
                    let path = at.lock().join(name);
                    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
                    // A byte of each object.
                    for object in 0..u64::from(SERVERS) {
                        let mut byte = [0];
                        file.read_exact_at(&mut byte, object * UNIT + 5).unwrap();
                        file.write_all_at(&[byte[0] ^ 1], object * UNIT + 5).unwrap();
                    }
                }
                Ok(())
            }));
            *dir.lock() = rig.pfs("out");
            write(&rig, "f", 4 * MIB, 1);
            rig.must(rig.stage_in("tree/f", "/wide/f"));
            let mut spec = rig.stage_out("/wide/f", "out/f");
            spec.retries = 1;
            let status = rig.run_as(&Caller::root(), spec);
            match always {
                false => {
                    assert_eq!(status.state, PlanState::Done, "{:#?}", status.errors);
                    assert_eq!(flips.load(Relaxed), 0);
                    same(&rig);
                }
                true => {
                    assert_eq!(status.state, PlanState::Failed);
                    let error = &status.errors[0];
                    assert!(error.why.contains("not what was written"), "{error:?}");
                    assert!(!rig.pfs("out/f").exists());
                }
            }
            assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
        }
    }
}

#[test]
fn a_source_that_changes_under_the_parts_is_copied_again() {
    let changes = Arc::new(AtomicU32::new(1));
    let (left, path) = (changes.clone(), Arc::new(Mutex::new(PathBuf::new())));
    let at = path.clone();
    let rig = rig(hook(1, move |call, _| {
        if call == "read" && left.swap(0, Relaxed) == 1 {
            let file = std::fs::File::options().write(true).open(&*at.lock()).unwrap();
            file.write_all_at(b"other", 10).unwrap();
        }
        Ok(())
    }));
    *path.lock() = rig.pfs("tree/f");
    write(&rig, "f", 4 * MIB, 1);
    rig.must(rig.stage_in("tree/f", "/wide/f"));
    assert_eq!(changes.load(Relaxed), 0);
    rig.must(rig.stage_out("/wide/f", "out/f"));
    same(&rig);
}

#[test]
fn a_cancel_reaches_all_parts_and_leaves_nothing() {
    for direction in [Direction::In, Direction::Out] {
        let rig = rig(None);
        write(&rig, "f", 12 * MIB, 1);
        let mut spec = match direction {
            Direction::In => rig.stage_in("tree/f", "/wide/f"),
            Direction::Out => {
                rig.must(rig.stage_in("tree/f", "/wide/f"));
                rig.stage_out("/wide/f", "out/f")
            }
        };
        let held = rig.held();
        spec.rate_bytes_per_s = 3 * MIB;
        let plan = start(&rig, spec);
        let mover = rig.at(0).mover.clone();
        let end = Instant::now() + LIMIT;
        while !parts(&mover.status(&Caller::root(), plan).unwrap()).iter().all(|part| *part > 0) {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(5));
        }
        let begun = Instant::now();
        let status = mover.cancel(&Caller::root(), plan).unwrap();
        assert_eq!(status.state, PlanState::Cancelled);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        assert_eq!(leftovers(&rig.dir.join("pfs")), Vec::<PathBuf>::new());
        while rig.held() != held {
            assert!(Instant::now() < end, "{:?} instead of {held:?}", rig.held());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_rate_limit_is_that_of_all_parts_together_and_can_be_changed() {
    let rig = rig(None);
    write(&rig, "f", 9 * MIB, 1);
    write(&rig, "g", 9 * MIB, 2);
    let mut spec = rig.stage_in("tree", "/wide");
    spec.rate_bytes_per_s = 6 * MIB;
    let begun = Instant::now();
    assert_eq!(wait(&rig, start(&rig, spec.clone())).state, PlanState::Done);
    let took_s = begun.elapsed().as_secs_f64();
    assert!((2.4..5.5).contains(&took_s), "{took_s} s for 18 MiB at 6 MiB/s");
    spec.rate_bytes_per_s = MIB / 4;
    let plan = start(&rig, spec);
    std::thread::sleep(Duration::from_millis(300));
    rig.at(0).mover.set_rate(&Caller::root(), plan, 0).unwrap();
    let begun = Instant::now();
    assert_eq!(wait(&rig, plan).state, PlanState::Done);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    rig.must(rig.stage_out("/wide", "out"));
    same(&rig);
}

#[test]
fn a_server_that_is_away_when_a_part_begins_is_waited_for() {
    let rig = rig(None);
    write(&rig, "f", 6 * MIB, 1);
    let is_away = Arc::new(AtomicU32::new(1));
    let away = is_away.clone();
    *rig.net.weather.write() = Some(Box::new(move |to, question| {
        let about_parts = matches!(question, StagingQuestion::Stripes(_));
        match about_parts && to == ShardId(2) && away.load(Relaxed) > 0 {
            true => Fate::Lost,
            false => Fate::Arrives,
        }
    }));
    let plan = start(&rig, rig.stage_in("tree/f", "/wide/f"));
    std::thread::sleep(Duration::from_millis(800));
    assert_eq!(rig.at(0).mover.status(&Caller::root(), plan).unwrap().state, PlanState::Running);
    is_away.store(0, Relaxed);
    assert_eq!(wait(&rig, plan).state, PlanState::Done);
    rig.must(rig.stage_out("/wide/f", "out/f"));
    same(&rig);
}

#[test]
fn a_part_that_makes_no_sense_is_refused() {
    let rig = rig(None);
    write(&rig, "f", 2 * MIB, 1);
    *rig.net.kept.lock() = Some(Vec::new());
    rig.must(rig.stage_in("tree", "/wide"));
    let kept = rig.net.kept.lock().take().unwrap();
    let begin = kept.iter().find_map(|(to, question)| {
        match forebay_proto::net::frame::decode(question).unwrap() {
            StagingQuestion::Stripes(StripesQuestion::Begin { work, .. }) => Some((*to, work)),
            _ => None,
        }
    });
    let (to, work) = begin.unwrap();
    let mover = rig.at(to.0).mover.clone();
    let changes: [fn(&mut forebay_proto::net::stripes::StripeWork); 6] = [
        |work| work.layout.stripe_size_bytes = 0,
        |work| work.layout.stripe_size_bytes = 1_000,
        |work| work.layout.stripe_count = u16::MAX,
        |work| work.layout.stripe_count = 0,
        |work| work.size_bytes = u64::MAX,
        |work| work.ino = forebay_proto::Ino(u64::MAX),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut work = work.clone();
        change(&mut work);
        let job = forebay_proto::net::stripes::JobId(number as u64);
        let begun = mover.answer_stripes(StripesQuestion::Begin { job, work });
        assert_eq!(begun, StripesReply::Begun);
        let look = StripesQuestion::Look {
            job,
            rate_bytes_per_s: 0,
            allowed_bytes: u64::MAX,
            wait_ms: 200,
        };
        let end = Instant::now() + LIMIT;
        loop {
            match mover.answer_stripes(look.clone()) {
                StripesReply::Working { end: None, .. } => assert!(Instant::now() < end),
                StripesReply::Working { end: Some(end), copied_bytes: 0, .. } => {
                    assert!(format!("{end:?}").starts_with("Cannot"), "{end:?}");
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(mover.answer_stripes(StripesQuestion::End { job }), StripesReply::Ended);
        assert_eq!(mover.answer_stripes(look), StripesReply::Unknown);
    }
    let tree = rig.at(0).tree.clone();
    assert_eq!(tree.resolve(&Caller::root(), b"/wide/f").unwrap().size_bytes, 2 * MIB);
}
