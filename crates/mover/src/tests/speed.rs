//! Speed against `cp -a` with fsync and `rsync -a --fsync`, interleaved. Run by hand, in a
//! release build, with the directory to work in (its file system is both PFS and buffer):
//! `FOREBAY_SPEED_DIR=/some/dir cargo test --release --features failpoints -p forebay-mover speed -- --ignored --nocapture`

use super::support::{Site, noise};
use crate::MoverOptions;
use forebay_proto::control::Verify;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Size of the big file in bytes.
const BIG_BYTES: usize = 512 << 20;
/// Number of small files, of about 8 KiB.
const SMALL_FILES: u64 = 10_000;
/// Fewer of them, for a slow disk.
const SMALL_FILES_VARIABLE: &str = "FOREBAY_SPEED_FILES";
/// Interleaved rounds.
const ROUNDS: usize = 6;

fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

fn shell(command: &str) {
    assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn base(name: &str) -> PathBuf {
    let dir = std::env::var("FOREBAY_SPEED_DIR").map_or_else(|_| std::env::temp_dir(), Into::into);
    let dir = Path::new(&dir).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("pfs")).unwrap();
    dir
}

/// A way to copy, with its name.
type Way<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// Runs all ways in turn and prints medians, and their ratio to the first.
fn compare(ways: &mut [Way<'_>], between: impl Fn()) {
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..ROUNDS {
        for turn in 0..times.len() {
            // Each way comes at each place of a round: what one leaves behind (a busy disk, freed
            // memory) meets all.
            let which = (round + turn) % times.len();
            between();
            times[which].push(timed(&mut ways[which].1));
        }
    }
    let first = median(times[0].clone());
    for ((name, _), times) in ways.iter().zip(times) {
        let median = median(times);
        println!("{name}: {median:.3} s, speed {:.2} of the first", first / median);
    }
}

#[test]
#[ignore = "a measurement"]
fn big_file_speed() {
    let dir = base("mover-speed-big");
    let site = Site::open(&dir, MoverOptions::default());
    std::fs::write(site.buffer("big"), noise(BIG_BYTES, 1)).unwrap();
    shell("sync");
    let (from, to) = (site.buffer("big"), site.pfs("out"));
    let out = |verify: Verify| {
        let mut spec = site.stage_out("/big", "out");
        spec.verify = verify;
        site.must(spec);
    };
    let copy = format!(
        "cp -a {} {to}/../raw && sync {to}/../raw",
        from.display(),
        to = dir.join("pfs").display()
    );
    compare(
        &mut [
            ("cp -a and fsync", Box::new(|| shell(&copy))),
            ("stage, verified: cache", Box::new(|| out(Verify::Cache))),
            ("stage, verified: medium", Box::new(|| out(Verify::Medium))),
        ],
        || {
            let _ = std::fs::remove_file(&to);
            let _ = std::fs::remove_file(dir.join("pfs/raw"));
        },
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
#[ignore = "a measurement"]
fn small_files_speed() {
    let dir = base("mover-speed-small");
    let site = Site::open(&dir, MoverOptions::default());
    for sub in 0..10 {
        std::fs::create_dir_all(site.buffer(&format!("small/{sub}"))).unwrap();
    }
    let count = std::env::var(SMALL_FILES_VARIABLE).ok().and_then(|text| text.parse().ok());
    for number in 0..count.unwrap_or(SMALL_FILES) {
        let path = site.buffer(&format!("small/{}/{number}", number % 10));
        std::fs::write(path, noise(4096 + (number * 13 % 8192) as usize, number)).unwrap();
    }
    shell("sync");
    let from = site.buffer("small").display().to_string();
    let raw = dir.join("raw").display().to_string();
    let rsync = format!("rsync -a --fsync {from}/ {raw}/");
    let copy = format!("cp -a {from} {raw} && find {raw} -type f -print0 | xargs -0 sync");
    compare(
        &mut [
            ("rsync -a --fsync", Box::new(|| shell(&rsync))),
            ("cp -a, then fsync of each", Box::new(|| shell(&copy))),
            (
                "stage, verified: cache",
                Box::new(|| drop(site.must(site.stage_out("/small", "out")))),
            ),
        ],
        || {
            let _ = std::fs::remove_dir_all(site.pfs("out"));
            let _ = std::fs::remove_dir_all(&raw);
        },
    );
    std::fs::remove_dir_all(dir).unwrap();
}
