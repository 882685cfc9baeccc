//! Traces with planted faults: each is found, by its name, as the first finding. And traces that are bad,
//! empty, or of clocks that differ.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use forebay_trace_format::Op;
use forebay_trace_format::layout::{self, NO_OFFSET, header};
use forebay_trace_format::write::{Who, Writer};
use forebay_trace_report::{BufferFile, BufferKind, BufferSeen, BufferStep, StallSeen};
use forebay_trace_report::{Options, Report, report, text};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const MIB: u64 = 1 << 20;
/// A second, in ns.
const S: u64 = 1_000_000_000;

fn normal(random: &mut StdRng) -> f64 {
    let angle = std::f64::consts::TAU * random.random::<f64>();
    (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt() * angle.cos()
}

/// A trace in a directory of its own.
struct Planted {
    dir: tempfile::TempDir,
    random: StdRng,
}

/// One rank: its writer and its clock.
struct Rank {
    writer: Writer,
    now: u64,
}

impl Planted {
    fn new(seed: u64) -> Planted {
        Planted { dir: tempfile::tempdir().unwrap(), random: StdRng::seed_from_u64(seed) }
    }

    fn rank(&self, rank: i32, ranks: i32, file: &str) -> Rank {
        let who = Who {
            host: "node1".into(),
            pid: 1_000 + rank as u32,
            rank,
            ranks,
            exe: "/home/me/app".into(),
        };
        let mut writer = Writer::new(&who, 1_700_000_000 * S);
        writer.name(1, 0, file.as_bytes());
        writer.regular(1, 8, 9);
        Rank { writer, now: S / 100 }
    }

    /// A duration with some spread, in ns.
    fn about(&mut self, ns: f64) -> u64 {
        (ns * (0.15 * normal(&mut self.random)).exp()) as u64
    }

    fn put(&self, name: &str, rank: Rank) {
        std::fs::write(self.dir.path().join(name), rank.writer.finish()).unwrap();
    }

    fn report(&self) -> Report {
        report(&[self.dir.path().to_path_buf()], Options::default()).unwrap()
    }

    /// The first finding must be this one.
    fn finds(&self, id: &str) -> Report {
        let report = self.report();
        let shown = text(&report);
        assert_eq!(report.findings.first().map(|first| first.id), Some(id), "{shown}");
        assert!(shown.contains(&report.findings[0].title) && shown.contains("Try: "), "{shown}");
        serde_json::to_string(&report).unwrap();
        report
    }
}

impl Rank {
    fn call(&mut self, op: Op, offset: u64, bytes: u64, duration: u64) {
        let result = if op.moves_data() { bytes as i64 } else { 0 };
        self.writer.call(op, 1, offset, bytes, result, self.now, duration);
        self.now += duration + 1_000;
    }
}

/// 16 ranks, each with a file of its own, each 200 writes of 1 MiB.
fn writers(planted: &mut Planted, mut duration: impl FnMut(&mut Planted, i32, u64) -> u64) {
    for number in 0..16 {
        let mut rank = planted.rank(number, 16, &format!("/pfs/out.{number}"));
        for at in 0..200 {
            let took = duration(planted, number, at);
            rank.call(Op::Pwrite, at * MIB, MIB, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
}

#[test]
fn an_orderly_run_has_no_finding() {
    let mut planted = Planted::new(1);
    writers(&mut planted, |planted, _, _| planted.about(5e6));
    let report = planted.report();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((report.tasks, report.processes, report.events), (16, 16, 3_200));
    assert_eq!(report.totals.written_bytes, 3_200 * MIB);
    let group = &report.groups[0];
    assert_eq!((group.call, group.size, group.count), ("pwrite", "to 1 MiB", 3_200));
    assert_eq!(group.modes.len(), 1, "{:?}", group.modes);
    let slowest = group.slowest.unwrap();
    let ratio = slowest.measured_s / slowest.predicted_s;
    assert!((0.9..1.1).contains(&ratio), "{slowest:?}");
    assert!((report.progress.last().unwrap().share - 1.0).abs() < 1e-6);
}

#[test]
fn a_slow_rank_is_named() {
    let mut planted = Planted::new(2);
    writers(&mut planted, |planted, rank, _| planted.about(if rank == 11 { 2e7 } else { 5e6 }));
    let report = planted.finds("slow-task");
    assert!(report.findings[0].evidence.contains("task 11"), "{:?}", report.findings[0]);
    assert_eq!(report.rates.unwrap().slowest_task, 11);
    let slowest = report.groups[0].slowest.unwrap();
    assert!(slowest.measured_s > 1.5 * slowest.predicted_s, "{slowest:?}");
}

/// No task gets faster than the mean one by splitting.
fn splits_stay_above_the_mean_task(report: &Report) {
    for group in report.groups.iter().filter(|group| !group.split.is_empty()) {
        let slowest = group.slowest.unwrap();
        let mean_s = group.sum_s / slowest.tasks as f64;
        for split in &group.split {
            assert!(split.ratio * slowest.measured_s > 0.999 * mean_s, "{split:?} {slowest:?}");
            assert!(split.ratio <= 1.0, "{split:?}");
        }
    }
}

#[test]
fn splitting_transfers_is_said_to_help_where_calls_are_slow_by_chance() {
    let told = |slow: f64| {
        let mut planted = Planted::new(31);
        for number in 0..64 {
            let mut rank = planted.rank(number, 64, &format!("/pfs/out.{number}"));
            let times = if number < 8 { slow } else { 1.0 };
            for at in 0..9 {
                let chance = -(1.0 - planted.random.random::<f64>()).ln();
                rank.call(Op::Pwrite, at * MIB, MIB, (5e6 * times * chance) as u64);
            }
            planted.put(&format!("n.{number}.1.fbt"), rank);
        }
        let report = planted.report();
        splits_stay_above_the_mean_task(&report);
        (text(&report), report.groups[0].own_share)
    };
    // Of one call each it would be a third of now.
    let (shown, own) = told(1.0);
    assert!(shown.contains("each transfer in 8 parts: slowest"), "{shown}");
    assert!(shown.contains("if calls are independent") && own < 0.3, "{own} {shown}");
    let (shown, own) = told(10.0);
    assert!(shown.contains("splitting transfers helps little (in 8 parts: slowest"), "{shown}");
    assert!(!shown.contains("each transfer in 8 parts") && own > 0.5, "{own} {shown}");
}

#[test]
fn one_in_a_thousand_that_stalls_is_named() {
    let mut planted = Planted::new(3);
    writers(&mut planted, |planted, rank, at| match (rank as u64 * 200 + at) % 1_000 {
        500 => 4 * S,
        _ => planted.about(5e6),
    });
    planted.finds("rare-stalls");
}

#[test]
fn misaligned_writes_to_a_shared_file_are_named() {
    let mut planted = Planted::new(4);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, "/pfs/shared");
        for at in 0..400 {
            let took = planted.about(3e6);
            rank.call(Op::Pwrite, (at * 8 + number as u64) * 47_008, 47_008, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.finds("misaligned");
    assert!(report.findings.iter().any(|finding| finding.id == "strided"));
}

#[test]
fn a_lock_convoy_is_named() {
    let mut planted = Planted::new(5);
    // 16 writers of one file, of which one writes at a time.
    let mut ranks: Vec<Rank> = (0..16).map(|at| planted.rank(at, 16, "/pfs/shared")).collect();
    let mut free = S / 100;
    for at in 0..100_u64 {
        for (number, rank) in ranks.iter_mut().enumerate() {
            let begin = rank.now;
            free = free.max(begin) + planted.about(1e6);
            rank.call(Op::Pwrite, (at * 16 + number as u64) * MIB, MIB, free - begin);
        }
    }
    for (number, rank) in ranks.into_iter().enumerate() {
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    planted.finds("lock-convoy");
}

/// The trace begins when all wait already, so no write of it is alone: not the fastest one either. The lock goes to who waits longest, or
/// to anybody.
#[test]
fn a_lock_convoy_in_which_no_write_was_alone_is_named() {
    for (seed, writers, in_order) in
        [(31, 16, true), (32, 16, false), (33, 4, true), (34, 64, true)]
    {
        let mut planted = Planted::new(seed);
        let mut ranks: Vec<Rank> =
            (0..writers).map(|at| planted.rank(at, writers, "/pfs/shared")).collect();
        let mut free = S / 100 + writers as u64 * 1_000_000;
        for at in 0..100 * writers as u64 {
            let next = match in_order {
                true => at as usize % ranks.len(),
                false => planted.random.random_range(0..ranks.len()),
            };
            free += planted.about(1e6);
            let begin = ranks[next].now;
            ranks[next].call(Op::Pwrite, at * MIB, MIB, free - begin);
        }
        for (number, rank) in ranks.into_iter().enumerate() {
            planted.put(&format!("n.{number}.1.fbt"), rank);
        }
        let report = planted.finds("lock-convoy");
        let evidence = &report.findings[0].evidence;
        // By chance somebody gets the lock again at once.
        let how = if in_order {
            "they ended one after the other, one every"
        } else {
            "times the fastest"
        };
        assert!(evidence.contains(how), "{evidence}");
        assert!(report.findings[0].share > 0.7, "{:?}", report.findings[0]);
    }
}

/// Writers of one file that do not wait for each other, begun together or spread evenly, with little spread or much.
#[test]
fn writers_of_one_file_that_go_on_by_themselves_are_no_lock_convoy() {
    for (seed, spread) in [(41, 0.003), (42, 0.03), (43, 0.3)] {
        for evenly in [false, true] {
            let mut planted = Planted::new(seed);
            for number in 0..16 {
                let mut rank = planted.rank(number, 16, "/pfs/shared");
                rank.now += if evenly { number as u64 * 1_000_000 } else { 0 };
                for at in 0..100_u64 {
                    let took = 1.6e7 * (spread * normal(&mut planted.random)).exp();
                    rank.call(Op::Pwrite, (at * 16 + number as u64) * MIB, MIB, took as u64);
                }
                planted.put(&format!("n.{number}.1.fbt"), rank);
            }
            let found = planted.report().findings;
            assert!(
                found.iter().all(|one| one.id != "lock-convoy"),
                "{spread} {evenly}: {found:?}"
            );
        }
    }
}

#[test]
fn read_ahead_that_thrashes_in_strided_reads_is_named() {
    // As MADbench's phase W on a file system that took strides for sequences: late reads are slow.
    let mut planted = Planted::new(6);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, &format!("/pfs/data_{number}"));
        for at in 0..200_u64 {
            let took = planted.about(if at >= 140 && at % 2 == 0 { 3e8 } else { 1e7 });
            rank.call(Op::Pread, at * 80 * MIB, 4 * MIB, took);
            let took = planted.about(1e7);
            rank.call(Op::Pwrite, at * 80 * MIB, 4 * MIB, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.finds("read-ahead");
    let reads = report.groups.iter().find(|group| group.call == "pread").unwrap();
    assert_eq!(reads.modes.len(), 2, "{:?}", reads.modes);
}

#[test]
fn small_transfers_syncs_truncations_and_metadata_are_named() {
    let mut planted = Planted::new(7);
    let mut rank = planted.rank(0, 1, "/pfs/meta");
    for at in 0..2_000 {
        let took = planted.about(1e6);
        rank.call(Op::Pwrite, at * 2_048, 2_048, took);
    }
    planted.put("n.0.1.fbt", rank);
    planted.finds("small");

    // As HDF5 did in Chombo.
    for (seed, op, id) in
        [(8, Op::Fsync, "sync-per-write"), (9, Op::Ftruncate, "truncate-per-write")]
    {
        let mut planted = Planted::new(seed);
        let mut rank = planted.rank(0, 1, "/pfs/plot.h5");
        for at in 0..500 {
            let took = planted.about(2e6);
            rank.call(Op::Pwrite, at * MIB, MIB, took);
            let took = planted.about(9e6);
            rank.call(op, if op == Op::Fsync { NO_OFFSET } else { (at + 1) * MIB }, 0, took);
        }
        planted.put("n.0.1.fbt", rank);
        planted.finds(id);
    }

    let mut planted = Planted::new(10);
    let mut rank = planted.rank(0, 1, "/pfs/tiny");
    for at in 0..1_000 {
        for op in [Op::Open, Op::Stat, Op::Close] {
            let took = planted.about(1e6);
            rank.call(op, NO_OFFSET, 0, took);
        }
        if at % 10 == 0 {
            rank.call(Op::Pread, 0, 100_000, 100_000);
        }
    }
    planted.put("n.0.1.fbt", rank);
    planted.finds("metadata-storm");
}

#[test]
fn reads_that_wait_for_the_pfs_behind_a_buffer_are_named() {
    let mut planted = Planted::new(30);
    let mut rank = planted.rank(0, 1, "/mnt/fb/in");
    let who = Who { host: "node1".into(), pid: 900, rank: -1, ranks: -1, exe: "/mnt/fb".into() };
    let mut buffer = Writer::new(&who, 1_700_000_000 * S);
    buffer.of_buffer(0, 1_700_000_000 * S);
    buffer.name(1, 0, b"in");
    // The first half was not on flash.
    for at in 0..200 {
        let (op, ns) = if at < 100 { (Op::BufferMiss, 2e7) } else { (Op::BufferHit, 1e6) };
        let (took, now) = (planted.about(ns), rank.now);
        buffer.call(op, 1, at * MIB, MIB, MIB as i64, now, took - took / 10);
        if op == Op::BufferMiss {
            buffer.call(Op::BufferFill, 1, at * MIB, MIB, MIB as i64, now, took / 2);
        }
        rank.call(Op::Pread, at * MIB, MIB, took);
    }
    planted.put("n.0.1.fbt", rank);
    std::fs::write(planted.dir.path().join("n.900.1.fbt"), buffer.finish()).unwrap();
    let report = planted.finds("buffer-miss");
    let evidence = &report.findings[0].evidence;
    let wanted = "100 reads of /mnt/fb wanted 100.0 MiB that were not on flash";
    assert!(evidence.starts_with(wanted), "{evidence}");
    assert!(evidence.contains("100 reads were hits"), "{evidence}");
    assert_eq!((report.processes, report.buffers.len()), (1, 1));
    assert_eq!(report.buffers[0].files[0].misses, 100, "{:?}", report.buffers[0].files);
}

#[test]
fn a_buffer_on_which_the_run_has_no_files_is_not_told_of() {
    let mut planted = Planted::new(31);
    // Others read through three mounts of this node; the run has files below one of them, and of the device of another.
    let mut rank = planted.rank(0, 1, "/mnt/own/in");
    rank.writer.name(77, 0, b"/link/in");
    rank.writer.regular(77, 9, 4);
    for at in 0..100 {
        let took = planted.about(1e6);
        rank.call(Op::Pread, at * MIB, MIB, took);
    }
    let buffer = |pid: u32, exe: &str, device: u64| {
        let who = Who { host: "node1".into(), pid, rank: -1, ranks: -1, exe: exe.into() };
        let mut buffer = Writer::new(&who, 1_700_000_000 * S);
        buffer.of_buffer(0, 1_700_000_000 * S);
        buffer.name(1, 0, exe.split(" at server ").next().unwrap().as_bytes());
        buffer.regular(2, device, 4);
        buffer.name(2, 1, b"in");
        for at in 0..100 {
            buffer.call(Op::BufferMiss, 2, at * MIB, MIB, MIB as i64, S + at * S / 50, S / 50);
        }
        std::fs::write(planted.dir.path().join(format!("n.{pid}.1.fbt")), buffer.finish()).unwrap();
    };
    buffer(900, "/mnt/own", 7);
    buffer(901, "/mnt/own at server 1", 7);
    buffer(902, "/mnt/ow", 11);
    buffer(903, "/mnt/else", 9);
    buffer(904, "/mnt/other", 10);
    planted.put("n.0.1.fbt", rank);
    let report = planted.report();
    let mut names: Vec<&str> = report.buffers.iter().map(|seen| seen.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["/mnt/else", "/mnt/own", "/mnt/own at server 1"]);
    let of_others =
        |evidence: &str| evidence.contains("/mnt/other") || evidence.contains("/mnt/ow ");
    let findings = &report.findings;
    assert!(findings.iter().any(|finding| finding.id == "buffer-miss"), "{findings:?}");
    assert!(!findings.iter().any(|finding| of_others(&finding.evidence)), "{findings:?}");
}

#[test]
fn the_story_of_gcrm_comes_out_records_not_aligned_and_metadata_of_one_task() {
    // 10,240 tasks there, 64 here: each writes records of 1.6 MB to one HDF5 file, on no boundary; task 0 writes records below
    // 3 KB for the file's own books between.
    let mut planted = Planted::new(20);
    for number in 0..64 {
        let mut rank = planted.rank(number, 64, "/pfs/gcrm.h5");
        for at in 0..20 {
            let took = planted.about(4e8);
            rank.call(
                Op::Pwrite,
                2_048 + (at * 64 + number as u64) * 1_638_400,
                1_638_400 - 64,
                took,
            );
            if number == 0 {
                for entry in 0..6 {
                    let took = planted.about(4e7);
                    rank.call(Op::Pwrite, at * 300_000 + entry * 2_832, 2_832, took);
                }
            }
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.report();
    let ids: Vec<&str> = report.findings.iter().map(|finding| finding.id).collect();
    assert_eq!(ids.first(), Some(&"misaligned"), "{}", text(&report));
    let alone = report.findings.iter().find(|finding| finding.id == "slow-task").unwrap();
    assert!(alone.evidence.contains("alone it made 120 calls of pwrite to 4 KiB"), "{alone:?}");
    let advice = report.findings.iter().map(|finding| finding.advice.as_str()).collect::<String>();
    for word in ["H5Pset_alignment", "aggregate on one task per node", "few large writes"] {
        assert!(advice.contains(word), "{word}: {advice}");
    }
    let buffer = report.advice.unwrap();
    assert_eq!((buffer.buffer, buffer.access), ("log", "striped"), "{buffer:?}");
}

/// A call that moves no bytes has no class of size, and no gap in its place.
#[test]
fn what_one_task_does_alone_is_told_without_a_size_if_it_has_none() {
    let mut planted = Planted::new(23);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, "/pfs/books.h5");
        for at in 0..20 {
            let took = planted.about(4e7);
            rank.call(Op::Pwrite, (at * 8 + number as u64) * MIB, MIB, took);
            for _ in 0..if number == 0 { 6 } else { 0 } {
                let took = planted.about(4e7);
                rank.call(Op::Fsync, NO_OFFSET, 0, took);
            }
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.report();
    let alone = report.findings.iter().find(|finding| finding.id == "slow-task").unwrap();
    assert!(alone.evidence.contains("alone it made 120 calls of fsync, "), "{alone:?}");
}

#[test]
fn the_story_of_madbench_comes_out_late_strided_reads_are_slow() {
    // Phases S (writes), W (reads one bin ahead, and writes) and C (reads), of 16 tasks with 8 bins each, in a shared file;
    // by a stride that read-ahead took for a sequence, reads of the late half of W are slow.
    let (tasks, bins, slot) = (16_i32, 16_u64, 4 * MIB);
    let mut planted = Planted::new(21);
    for number in 0..tasks {
        let mut rank = planted.rank(number, tasks, "/pfs/files/data");
        let place = |bin: u64| (bin * tasks as u64 + number as u64) * slot;
        for bin in 0..bins {
            let took = planted.about(5e7);
            rank.call(Op::Pwrite, place(bin), slot - 4096, took);
        }
        rank.now = 20 * S;
        for bin in 0..bins {
            let took = planted.about(if bin >= bins / 2 { 2e9 } else { 5e7 });
            rank.call(Op::Pread, place(bin), slot - 4096, took);
            let took = planted.about(5e7);
            rank.call(Op::Pwrite, place(bin), slot - 4096, took);
        }
        rank.now = 100 * S;
        for bin in 0..bins {
            let took = planted.about(5e7);
            rank.call(Op::Pread, place(bin), slot - 4096, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.finds("read-ahead");
    // S, W and C, with the operations that the formula gives: N bins of writes, of reads and writes, of reads.
    assert_eq!(report.phases.len(), 3, "{:?}", report.phases);
    let kinds: Vec<&str> = report.phases.iter().map(|phase| phase.kind).collect();
    assert_eq!(kinds, ["write", "read and write", "read"]);
    let count = |call: &str, phase: usize| -> u64 {
        let of = report.groups.iter().filter(|group| group.call == call && group.phase == phase);
        of.map(|group| group.count).sum()
    };
    let all = tasks as u64 * bins;
    assert_eq!([count("pwrite", 0), count("pread", 0)], [all, 0]);
    assert_eq!([count("pwrite", 1), count("pread", 1)], [all, all]);
    assert_eq!([count("pwrite", 2), count("pread", 2)], [0, all]);
    // The slow mode is one of W only.
    let modes = |phase: usize| {
        let of =
            |group: &&forebay_trace_report::Group| group.call == "pread" && group.phase == phase;
        report.groups.iter().find(of).unwrap().modes.len()
    };
    assert_eq!([modes(1), modes(2)], [2, 1]);
}

#[test]
fn the_story_of_chombo_comes_out_truncations_and_syncs_of_hdf5() {
    let mut planted = Planted::new(22);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, "/pfs/plot.h5");
        for at in 0..100 {
            let took = planted.about(1e7);
            rank.call(Op::Pwrite, (at * 8 + number as u64) * MIB, MIB, took);
            let took = planted.about(1.2e7);
            rank.call(Op::Ftruncate, (at + 1) * 8 * MIB, 0, took);
            let took = planted.about(1e7);
            rank.call(Op::Fsync, NO_OFFSET, 0, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.report();
    let ids: Vec<&str> = report.findings.iter().map(|finding| finding.id).take(2).collect();
    assert_eq!(ids, ["truncate-per-write", "sync-per-write"], "{}", text(&report));
    // Syncs and truncations do not make a dump a phase of metadata.
    assert!(report.phases.iter().all(|phase| phase.kind == "write"), "{:?}", report.phases);
}

#[test]
fn the_trace_that_ships_with_the_demo_says_what_the_guide_says() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/slow-job");
    let of = |name: &str| report(&[place.join(name)], Options::default()).unwrap();
    let (before, after) = (of("before"), of("after"));
    let ids =
        |report: &Report| report.findings.iter().map(|finding| finding.id).collect::<Vec<_>>();
    splits_stay_above_the_mean_task(&before);
    splits_stay_above_the_mean_task(&after);
    assert_eq!(ids(&before)[..2], ["sync-per-write", "slow-task"], "{}", text(&before));
    assert_eq!((before.totals.writes, before.totals.syncs), (1_500, 1_516));
    assert_eq!((before.ranks, before.tasks), (true, 4));
    assert!(!ids(&after).contains(&"sync-per-write"), "{}", text(&after));
    assert_eq!((after.totals.writes, after.totals.syncs), (364, 16));
    let buffers = [&before, &after].map(|report| report.advice.as_ref().unwrap().buffer);
    assert_eq!(buffers, ["log", "scratch"]);
    assert!(after.totals.all_s() < 0.5 * before.totals.all_s());
}

/// docs/how-to/slow-io.md shows parts of the report of that trace: word by word what the report prints.
#[test]
fn the_guide_shows_what_the_report_prints() {
    let guide = include_str!("../../../docs/how-to/slow-io.md");
    let shown = guide.split("```\n").find(|block| block.starts_with("TIME IN CALLS")).unwrap();
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/slow-job");
    let of = |name: &str| report(&[place.join(name)], Options::default()).unwrap();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let printed = words(&text(&of("before")));
    let (times, findings) = shown.split_once("\n\n").unwrap();
    // Rows in which nothing happens are left out there; long lines are broken.
    for part in times.lines().chain([findings]) {
        assert!(printed.contains(&words(part)), "{part}: {printed}");
    }
    let after_ms = 1e3 * of("after").totals.all_s();
    assert!(guide.contains(&format!("{after_ms:.0} ms in calls")), "{after_ms} ms");
}

#[test]
fn the_buffer_that_a_run_asks_for_is_named_with_its_evidence() {
    let advice = |planted: &Planted| {
        let report = planted.report();
        let shown = text(&report);
        let advice = report.advice.clone().unwrap();
        assert!(
            shown.contains(&format!("BUFFER THAT THIS RUN ASKS FOR: {}", advice.buffer)),
            "{shown}"
        );
        advice
    };
    // Checkpoints of 2 GiB every 100 s, a file for each task: scratch, whole files, and a drain of 2 GiB in the pauses.
    let mut planted = Planted::new(23);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, &format!("/pfs/ckpt.{number}"));
        for burst in 0..6_u64 {
            rank.now = S / 100 + burst * 100 * S;
            for at in 0..64 {
                let took = planted.about(1e8);
                rank.call(Op::Pwrite, at * 4 * MIB, 4 * MIB, took);
            }
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let scratch = advice(&planted);
    assert_eq!((scratch.buffer, scratch.stripe_bytes), ("scratch", None), "{scratch:?}");
    // The same files are written again: what lies there is one checkpoint.
    assert_eq!(scratch.capacity_bytes, 2 << 30);
    let drain = scratch.drain_bytes_per_s.unwrap() / (2_u64 << 30) as f64;
    assert!((drain * 93.5 - 1.0).abs() < 0.05, "{scratch:?}");
    let bursts = planted.report().bursts;
    assert_eq!(
        (bursts.rows.len(), bursts.rows[0].count, bursts.rows[0].burst_bytes),
        (1, 6, 2 << 30)
    );

    // One input file that each of 8 tasks reads whole: a cache that holds it once.
    let mut planted = Planted::new(24);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, "/pfs/table");
        for at in 0..200 {
            let took = planted.about(1e7);
            rank.call(Op::Pread, at * MIB, MIB, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let cache = advice(&planted);
    assert_eq!((cache.buffer, cache.capacity_bytes), ("cache", 200 * MIB), "{cache:?}");
    assert!(cache.evidence.iter().any(|text| text.contains("each byte 8.0 times")), "{cache:?}");

    // A large file that 8 tasks write in aligned regions: scratch in stripes of a transfer.
    let mut planted = Planted::new(25);
    for number in 0..8 {
        let mut rank = planted.rank(number, 8, "/pfs/shared");
        for at in 0..100 {
            let took = planted.about(1e7);
            rank.call(Op::Pwrite, (number as u64 * 100 + at) * 2 * MIB, 2 * MIB, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let striped = advice(&planted);
    assert_eq!((striped.buffer, striped.access), ("scratch", "striped"), "{striped:?}");
    assert_eq!(striped.stripe_bytes, Some(2 * MIB));

    // Hardly any I/O: none.
    let mut planted = Planted::new(26);
    let mut rank = planted.rank(0, 1, "/pfs/log");
    for at in 0..200 {
        rank.now = at * 10 * S;
        let took = planted.about(1e6);
        rank.call(Op::Pwrite, at * 100, 100, took);
    }
    planted.put("n.0.1.fbt", rank);
    assert_eq!(advice(&planted).buffer, "none");
    let report = planted.report();
    assert_eq!(report.findings[0].id, "small");
    assert!(text(&report).contains("hardly matters"), "{}", text(&report));
}

#[test]
fn curves_histograms_and_the_field_of_tasks_add_up() {
    let mut planted = Planted::new(27);
    writers(&mut planted, |planted, _, _| planted.about(5e6));
    let report = planted.report();
    let group = &report.groups[0];
    assert_eq!(group.histogram.iter().map(|(_, count)| count).sum::<u64>(), group.count);
    // The field has all time in calls, of 16 rows.
    let lanes = &report.lanes;
    assert_eq!((lanes.rows.len(), lanes.cells.len()), (16, 16));
    let cells: f64 = lanes.cells.iter().flatten().flatten().map(|share| f64::from(*share)).sum();
    let ratio = cells * lanes.step_s / report.totals.all_s();
    assert!((ratio - 1.0).abs() < 0.01, "{ratio}");
    // The curve of intensity has all bytes.
    let width = report.intensity[1].at_s - report.intensity[0].at_s;
    let bytes: f64 = report.intensity.iter().map(|step| step.written_bytes_per_s * width).sum();
    assert!((bytes / report.totals.written_bytes as f64 - 1.0).abs() < 0.01, "{bytes}");
    assert_eq!((report.tasks_done.len(), report.task_rates.len()), (16, 16));
    assert!((report.tasks_done[15].share - 1.0).abs() < 1e-9);
    assert!(report.task_rates.windows(2).all(|pair| pair[0] <= pair[1]));
}

#[test]
fn harmonics_phases_and_the_period_are_seen() {
    let mut planted = Planted::new(11);
    for number in 0..4 {
        let mut rank = planted.rank(number, 4, &format!("/pfs/ckpt.{number}"));
        // Ten bursts, one every ten seconds; one, two or four share a node's link.
        for burst in 0..10_u64 {
            rank.now = S / 100 + burst * 10 * S;
            for at in 0..240_u64 {
                let sharers = [1.0, 1.0, 1.0, 2.0, 2.0, 4.0][at as usize % 6];
                let spread = (0.05 * normal(&mut planted.random)).exp();
                let took = (1e7 * sharers * spread) as u64;
                rank.call(Op::Pwrite, (burst * 240 + at) * MIB, MIB, took);
            }
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let report = planted.report();
    let period = report.period.unwrap();
    assert!((period.period_s / 10.0 - 1.0).abs() < 0.02, "{period:?}");
    assert_eq!(report.phases.len(), 10, "{:?}", report.phases);
    assert!(report.phases.iter().all(|phase| phase.kind == "write"));
    let modes = &report.groups[0].modes;
    let meanings: Vec<&str> = modes.iter().map(|mode| mode.meaning.as_str()).collect();
    assert_eq!(modes.len(), 3, "{modes:?}");
    assert!(meanings[1].contains("2 share") && meanings[2].contains("4 share"), "{meanings:?}");
}

/// Keys of all objects in a document.
fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                into.insert(key.clone());
                keys(value, into);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, into)),
        _ => {}
    }
}

/// A buffer of which everything was seen.
fn a_buffer() -> BufferSeen {
    let kind = BufferKind::default();
    BufferSeen {
        name: "/mnt/fb".into(),
        host: "node1".into(),
        events: 1,
        lost: 0,
        hits: kind,
        misses: kind,
        fills: kind,
        drains: kind,
        evictions: kind,
        absorbed: kind,
        kernel_opens: 0,
        stalls: vec![StallSeen { id: "room", why: "room", count: 1, time_s: 1.0, longest_s: 1.0 }],
        files: vec![BufferFile::default()],
        over_time: vec![BufferStep::default()],
    }
}

/// Scripts read the report by docs/TRACING.md: it has each key, and each finding that these runs have.
#[test]
fn the_description_of_the_json_has_each_key() {
    let description = include_str!("../../../docs/TRACING.md");
    let (_, rest) = description.split_once("### As JSON").unwrap();
    let (section, _) = rest.split_once("\n### ").unwrap();
    let mut planted = Planted::new(29);
    writers(&mut planted, |planted, rank, _| planted.about(if rank == 11 { 2e7 } else { 5e6 }));
    let mut slow = planted.report();
    slow.buffers.push(a_buffer());
    let mut found = BTreeSet::new();
    keys(&serde_json::to_value(&slow).unwrap(), &mut found);
    assert!(found.len() > 90 && found.contains("measured_s") && found.contains("idle_s"));
    // What may be null in such a report, and is an object.
    found.extend(["period_s", "confidence", "ratio", "parts"].map(String::from));
    for key in found {
        let named = [format!("`{key}`"), format!("`{key}[]`")];
        assert!(named.iter().any(|name| section.contains(name)), "{key} is not described");
    }
    for finding in &slow.findings {
        assert!(section.contains(&format!("`{}`", finding.id)), "{} is not named", finding.id);
    }
}

#[test]
fn short_bursts_that_come_a_little_early_or_late_have_a_period() {
    let mut planted = Planted::new(28);
    let mut rank = planted.rank(0, 1, "/pfs/log");
    for burst in 0..12_u64 {
        rank.now = S / 100 + burst * (3 * S / 10) + planted.about(5e6);
        for at in 0..100 {
            let took = planted.about(2e4);
            rank.call(Op::Pwrite, (burst * 100 + at) * 5_000, 5_000, took);
        }
    }
    planted.put("n.0.1.fbt", rank);
    let period = planted.report().period.unwrap();
    assert!((period.period_s / 0.3 - 1.0).abs() < 0.03, "{period:?}");
}

#[test]
fn a_bad_trace_gives_an_error_or_a_report_that_says_what_is_missing() {
    let refused =
        |path: &Path| report(&[path.to_path_buf()], Options::default()).unwrap_err().to_string();
    assert!(refused(Path::new("/no/such/trace")).contains("cannot read /no/such/trace"));
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(dir.path()).contains("no trace in"));
    let foreign = dir.path().join("x.fbt");
    std::fs::write(&foreign, b"something else").unwrap();
    assert!(refused(dir.path()).contains("is not a trace"), "{}", refused(dir.path()));

    let mut planted = Planted::new(12);
    writers(&mut planted, |planted, _, _| planted.about(5e6));
    // One file cut, one foreign, one that found no room, one of calls that were lost.
    let place = |name: &str| planted.dir.path().join(name);
    let whole = std::fs::read(place("n.3.1.fbt")).unwrap();
    std::fs::write(place("n.3.1.fbt"), &whole[..layout::BLOCK_BYTES + 3_200]).unwrap();
    std::fs::write(place("n.4.1.fbt"), b"#!/bin/sh").unwrap();
    std::fs::write(place("n.5.1.fbt"), vec![0; 1 << 20]).unwrap();
    let mut lossy = std::fs::read(place("n.6.1.fbt")).unwrap();
    lossy[header::LOST] = 77;
    lossy[header::ENDED] = 0;
    std::fs::write(place("n.6.1.fbt"), lossy).unwrap();
    let found = planted.report();
    let problems = found.problems.join("\n");
    for part in [
        "n.3.1.fbt: block 1 has only",
        "n.4.1.fbt: it is not a trace",
        "never finished",
        "77 calls",
    ] {
        assert!(problems.contains(part), "{problems}");
    }
    assert_eq!((found.processes, found.killed, found.lost), (14, 1, 77));
    assert!(text(&found).contains("INCOMPLETE: "));

    // A process that did nothing.
    let planted = Planted::new(13);
    planted.put("n.0.1.fbt", planted.rank(0, 1, "/pfs/a"));
    let found = planted.report();
    assert_eq!((found.events, found.phases.len(), found.span_s), (0, 0, 0.0));
    text(&found);
}

/// The host's clock was set by an hour between the begins of two processes: told, and no time of the report is an hour off.
#[test]
fn a_clock_that_was_set_meanwhile_is_told_and_moves_nothing() {
    let mut planted = Planted::new(16);
    writers(&mut planted, |planted, _, _| planted.about(5e6));
    let before = planted.report();
    for (number, hour_s) in [(7, 3_600), (9, -3_600)] {
        let path = planted.dir.path().join(format!("n.{number}.1.fbt"));
        let mut bytes = std::fs::read(&path).unwrap();
        let place = header::ANCHOR + 16..header::ANCHOR + 24;
        let real = u64::from_le_bytes(bytes[place.clone()].try_into().unwrap());
        let set = real.saturating_add_signed(hour_s * S as i64);
        bytes[place].copy_from_slice(&set.to_le_bytes());
        std::fs::write(path, bytes).unwrap();
    }
    let found = planted.report();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    let problems = found.notes.join("\n");
    for part in
        ["the clock of node1 was set by 3600.0 s", "the clock of node1 was set by -3600.0 s"]
    {
        assert!(problems.contains(part), "{problems}");
    }
    assert_eq!((found.events, found.span_s), (before.events, before.span_s));
    assert_eq!(found.phases.len(), before.phases.len());
}

/// The first look at the clocks of a process was so much later.
fn look_later(bytes: &mut [u8], ns: u64) {
    for at in [header::ANCHOR, header::ANCHOR + 8, header::ANCHOR + 16] {
        let was = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        bytes[at..at + 8].copy_from_slice(&(was + ns).to_le_bytes());
    }
}

/// Records that lie before the first look at the clock of their process cannot be right: told, and shown at the begin.
#[test]
fn calls_before_the_first_look_at_a_clock_are_told() {
    let mut planted = Planted::new(17);
    writers(&mut planted, |planted, _, _| planted.about(5e6));
    assert!(planted.report().notes.is_empty(), "{:?}", planted.report().notes);
    // The clock of one process was first looked at 3 s after the others', so all of its calls but the later ones lie before.
    let path = planted.dir.path().join("n.7.1.fbt");
    let mut bytes = std::fs::read(&path).unwrap();
    look_later(&mut bytes, 3 * S);
    std::fs::write(&path, bytes).unwrap();
    let found = planted.report();
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
    assert!(found.notes[0].contains("n.7.1.fbt: 200 calls begin before"), "{:?}", found.notes);
    assert!(found.notes[0].contains("the earliest by 2.990 s"), "{:?}", found.notes);
    assert!(text(&found).contains("before the first moment at which its clock is known"));

    // Alone it begins with its clock: what is before that stands at the begin.
    let alone = report(&[path], Options::default()).unwrap();
    assert!(alone.notes[0].contains("shown there"), "{:?}", alone.notes);

    // A child whose first call waited long for a pipe, and made the file when that had returned, is in order.
    let planted = Planted::new(18);
    planted.put("n.0.1.fbt", planted.rank(0, 2, "/pfs/a"));
    let mut child = planted.rank(1, 2, "/pfs/a");
    child.call(Op::Read, 0, 10, 5 * S);
    let path = planted.dir.path().join("n.1.1.fbt");
    planted.put("n.1.1.fbt", child);
    let mut bytes = std::fs::read(&path).unwrap();
    look_later(&mut bytes, 5 * S + S / 50);
    std::fs::write(&path, bytes).unwrap();
    assert!(planted.report().notes.is_empty(), "{:?}", planted.report().notes);
}

/// The clock of a second host is an hour ahead of the first one's.
#[test]
fn hosts_whose_clocks_are_an_hour_apart_are_told() {
    for (hour_s, told) in [(3_600, true), (20, false)] {
        let mut planted = Planted::new(19);
        for number in 0..4 {
            let mut rank = planted.rank(number, 4, "/pfs/shared");
            for at in 0..100 {
                let took = planted.about(5e6);
                rank.call(Op::Pwrite, at * MIB, MIB, took);
            }
            planted.put(&format!("n.{number}.1.fbt"), rank);
        }
        for number in 2..4 {
            let path = planted.dir.path().join(format!("n.{number}.1.fbt"));
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[header::HOST + 4] = b'2';
            let place = header::ANCHOR + 16..header::ANCHOR + 24;
            let real = u64::from_le_bytes(bytes[place.clone()].try_into().unwrap()) + hour_s * S;
            bytes[place].copy_from_slice(&real.to_le_bytes());
            std::fs::write(path, bytes).unwrap();
        }
        let found = planted.report();
        assert_eq!((found.hosts, found.problems.len()), (2, 0), "{:?}", found.problems);
        let notes = found.notes.join("\n");
        let part = "the processes of node2 begin 3600.0 s after those of node1";
        assert_eq!(notes.contains(part), told, "{notes}");
        assert_eq!(found.notes.is_empty(), !told, "{notes}");
    }
}

#[test]
fn a_million_calls_are_reported_in_time_and_4096_ranks_in_bounds() {
    let mut planted = Planted::new(14);
    for number in 0..4 {
        let mut rank = planted.rank(number, 4, &format!("/pfs/f{number}"));
        for at in 0..250_000 {
            let took = planted.about(2e4);
            rank.call(Op::Pwrite, at * 4096, 4096, took);
        }
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let begun = std::time::Instant::now();
    let found = planted.report();
    assert_eq!(found.events, 1_000_000);
    // 3 s are promised of an optimised build on a quiet machine: this tells a collapse.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    eprintln!("a million calls: {:?}", begun.elapsed());

    let mut planted = Planted::new(15);
    for number in 0..4096 {
        let mut rank = planted.rank(number, 4096, "/pfs/all");
        let took = planted.about(1e7);
        rank.call(Op::Pwrite, number as u64 * MIB, MIB, took);
        planted.put(&format!("n.{number}.1.fbt"), rank);
    }
    let found = planted.report();
    assert_eq!((found.tasks, found.events), (4096, 4096));
    assert_eq!(found.files[0].processes, 4096);
}
