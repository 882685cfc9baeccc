//! Traces of which bits were flipped and ends were cut: the report and each export end with a result, or with an error that names the
//! file; nothing panics, and nothing takes long.

use forebay_trace_export::{Format, export};
use forebay_trace_format::layout::{self, NO_OFFSET};
use forebay_trace_format::{Op, Who, Writer};
use forebay_trace_report::{Options, Run, html, report, text};
use std::path::{Path, PathBuf};

/// Damaged traces that are tried; with `FOREBAY_LONG=1` a hundred times as many, and `FOREBAY_SEED=N` tries one.
const TRIES: u64 = 50;
/// Longest that one may take, in seconds: a thousand times what it takes.
const LIMIT_S: u64 = 60;
const FORMATS: [Format; 7] = [
    Format::Chrome,
    Format::IorCsv,
    Format::Fio,
    Format::Ftio,
    Format::Darshan,
    Format::Parquet,
    Format::Workload,
];

/// A generator that needs no crate; the numbers are Knuth's.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % bound
    }
}

/// The file of a rank that does some of everything.
fn rank(number: i32) -> Vec<u8> {
    let (host, exe) = ("node1".into(), "/home/me/app".into());
    let who = Who { host, pid: 1_000 + number as u32, rank: number, ranks: 3, exe };
    let mut writer = Writer::new(&who, 1_700_000_000_000_000_000);
    writer.name(1, 0, b"/pfs/shared");
    writer.regular(1, 8, 9);
    writer.name(2, 0, format!("/pfs/out.{number}").as_bytes());
    writer.regular(2, 8, 10 + number as u64);
    writer.name(3, 2, b"below/it");
    let mut now = 1_000_000;
    for at in 0..40_u64 {
        for (op, file, offset, bytes) in [
            (Op::Open, 2, NO_OFFSET, 0),
            (Op::Pwrite, 1, (at * 3 + number as u64) * 47_008, 47_008),
            (Op::Pread, 2, at * 4096, 4096),
            (Op::Fsync, 1, NO_OFFSET, 0),
            (Op::Ftruncate, 2, at * 100, 0),
            (Op::RenameTarget, 3, NO_OFFSET, 0),
            (Op::Stat, 3, NO_OFFSET, 0),
            (Op::Close, 2, NO_OFFSET, 0),
        ] {
            writer.call(op, file, offset, bytes, bytes as i64, now, 1_000 + at * 10);
            now += 5_000;
        }
    }
    writer.finish()
}

/// Flips some bits where something stands, and sometimes cuts the end off.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let records = bytes.len().min(layout::BLOCK_BYTES + 12_000) - layout::BLOCK_BYTES;
    for _ in 0..1 + random.below(6) {
        let at = match random.below(4) {
            0 => random.below(layout::HEADER_USED_BYTES),
            _ => layout::BLOCK_BYTES + random.below(records),
        };
        bytes[at] ^= 1 << random.below(8);
    }
    if random.below(3) == 0 {
        bytes.truncate(random.below(bytes.len()));
    }
}

/// Whether a report came out that misses something.
fn tried(trace: &Path, to: &Path, what: &str) -> bool {
    let begun = std::time::Instant::now();
    let places = [trace.to_path_buf()];
    let named = |error: String| {
        assert!(error.contains(trace.to_str().unwrap()), "{what}: {error}");
    };
    let partial = match report(&places, Options::default()) {
        Ok(report) => {
            text(&report);
            serde_json::to_string(&report).unwrap();
            html(&[Run { name: "t", report: &report }]);
            report.problems.iter().any(|problem| problem.contains(".fbt"))
        }
        Err(error) => {
            named(error.to_string());
            false
        }
    };
    for format in FORMATS {
        let name: PathBuf = to.join(format!("{format:?}"));
        match export(&places, Options::default(), format, &name) {
            Ok(_) if format.is_directory() => std::fs::remove_dir_all(&name).unwrap(),
            Ok(_) => std::fs::remove_file(&name).unwrap(),
            Err(forebay_trace_export::ExportError::Nothing(_)) => {}
            Err(error) => named(error.to_string()),
        }
        assert!(!name.exists(), "{what}: {format:?} left something");
    }
    assert!(begun.elapsed().as_secs() < LIMIT_S, "{what}: {:?}", begun.elapsed());
    partial
}

#[test]
fn damaged_traces_are_reported_and_exported_or_refused_by_name() {
    let base = tempfile::tempdir_in("/dev/shm").unwrap();
    let (trace, to) = (base.path().join("t"), base.path().join("to"));
    std::fs::create_dir(&trace).unwrap();
    std::fs::create_dir(&to).unwrap();
    let whole = [0, 1, 2].map(rank);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let tries = if number("FOREBAY_LONG") == Some(1) { 100 * TRIES } else { TRIES };
    let seeds = number("FOREBAY_SEED").map_or(0..tries, |seed| seed..seed + 1);
    let (mut partial, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        let mut random = Random(seed);
        for (number, bytes) in whole.iter().enumerate() {
            let mut bytes = bytes.clone();
            if number == 0 || random.below(4) == 0 {
                damage(&mut bytes, &mut random);
            }
            std::fs::write(trace.join(format!("n.{number}.1.fbt")), bytes).unwrap();
        }
        partial += u64::from(tried(&trace, &to, &format!("FOREBAY_SEED={seed}")));
    }
    eprintln!("{partial} of {count} reports say that a file of the trace is damaged");
    assert!(count < TRIES || partial > count / 5, "{partial} of {count}");
    // Every file is damaged beyond reading.
    for number in 0..3 {
        std::fs::write(trace.join(format!("n.{number}.1.fbt")), &whole[0][8..]).unwrap();
    }
    let refused = report(std::slice::from_ref(&trace), Options::default()).unwrap_err().to_string();
    assert!(refused.contains(trace.to_str().unwrap()), "{refused}");
}
