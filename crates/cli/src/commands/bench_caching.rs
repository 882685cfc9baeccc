//! `forebay bench suite CACHE --suite dw-caching`: after a write into a cache that drains later, the buffer has all of it and the
//! PFS 0 bytes; then it drains, and the PFS has all of it and the buffer owes nothing. Both sides are looked at all the
//! time; the result is a table, a figure over time, and an exit code.
//!
//! Of a file that drains, both sides have bytes: the buffer owes all of it until the PFS has it whole. So at each look both
//! sides together have what was written, or more.
//!
//! Invariants: all happens in one new directory of the cache, which is removed at the end; its policy is `never` until the
//! drain is asked for. What the PFS has is what its own `stat` says, not what the cache says.

use super::bench_common::{OwnDir, WorkloadFile, drawn_seed, named, processes};
use crate::args_compare::SuiteArgs;
use crate::failure::{EXIT_FAILED, EXIT_OK, Outcome, Usage, at, print_json};
use forebay_client::Control;
use forebay_plot_page::{Axis, Chart, Page, Series, Shape, Unit};
use forebay_proto::cache::{CacheRequest, TreeState};
use forebay_proto::control::{ControlError, PathBytes};
use forebay_proto::size::format_bytes as shown;
use forebay_workload::language::Workload;
use forebay_workload::patterns::suites;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two looks at both sides.
const LOOK: Duration = Duration::from_millis(20);
/// Most looks that are kept: every other one goes when there are more.
const LOOKS_MAX: usize = 4_096;
/// When the files of a directory drain.
const DRAIN: &str = "user.forebay.drain";

/// A look at both sides.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    at_s: f64,
    /// Bytes that the PFS has, of the directory.
    pfs_bytes: u64,
    /// Bytes of the files of which the PFS does not have all.
    buffer_bytes: u64,
}

impl Look {
    /// The buffer is asked first: what it owes no more then, the PFS has. The other way round what drains in between is nowhere.
    fn at_both<E>(
        begun: Instant,
        buffer: impl FnOnce() -> Result<u64, E>,
        pfs: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Look, E> {
        let buffer_bytes = buffer()?;
        // An answer may take a while.
        let at_s = begun.elapsed().as_secs_f64();
        Ok(Look { at_s, pfs_bytes: pfs()?, buffer_bytes })
    }
}

/// Both sides of a directory of a cache.
struct Sides {
    control: Mutex<Control>,
    in_buffer: PathBytes,
    on_pfs: PathBuf,
    begun: Instant,
    looks: Mutex<Vec<Look>>,
}

impl Sides {
    fn state(&self) -> Result<TreeState, ControlError> {
        let mut control = self.control.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        control.cache_tree(CacheRequest::State { path: self.in_buffer.clone() })
    }

    fn look(&self) -> anyhow::Result<Look> {
        let owed = || anyhow::Ok(self.state()?.dirty_bytes);
        let look = Look::at_both(self.begun, owed, || bytes_below(&self.on_pfs))?;
        let mut looks = self.looks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        looks.push(look);
        if looks.len() > LOOKS_MAX {
            let mut keep = false;
            looks.retain(|_| {
                keep = !keep;
                keep
            });
        }
        Ok(look)
    }

    /// Looks on and on beside some work.
    fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    // A look that fails is one point less; the last ones are made again, and told.
                    let _ = self.look();
                    std::thread::sleep(LOOK);
                }
            });
            let done = work();
            over.store(true, Ordering::Release);
            done
        })
    }
}

/// Bytes of all files below a directory; of those that go meanwhile none.
fn bytes_below(dir: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(one) = waiting.pop() {
        let entries = match std::fs::read_dir(&one) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(at("list", &one))?,
        };
        for entry in entries.filter_map(Result::ok) {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => waiting.push(entry.path()),
                // What lies there, not what a size promises.
                Ok(meta) => sum += meta.len().min(meta.blocks() * 512),
                Err(_) => {}
            }
        }
    }
    Ok(sum)
}

fn shown_rate(bytes_per_s: f64) -> String {
    format!("{}/s", shown(bytes_per_s as u64))
}

/// What came of a number of processes.
struct Row {
    tasks: u32,
    bytes: u64,
    write_s: f64,
    raw_s: f64,
    drain_s: f64,
    before: Look,
    after: Look,
    looks: Vec<Look>,
    drain_from_s: f64,
}

impl Row {
    /// The PFS had nothing, and the buffer all, and then the other way round.
    fn holds(&self) -> bool {
        self.before.pfs_bytes == 0
            && self.before.buffer_bytes == self.bytes
            && self.after.pfs_bytes >= self.bytes
            && self.after.buffer_bytes == 0
    }
}

/// Runs it.
pub fn suite(args: &SuiteArgs) -> Outcome {
    if args.how.threads {
        return Err(Usage("--threads: this suite has threads of its own".into()).into());
    }
    let mut rows = Vec::new();
    for tasks in &args.tasks {
        rows.push(row(args, *tasks)?);
    }
    if let Some(file) = &args.html {
        std::fs::write(file, page(args, &rows).html()).map_err(at("write", file))?;
    }
    if args.how.json {
        print_json(&as_json(args, &rows))?;
    } else {
        print!("{}", table(&rows));
    }
    match rows.iter().find(|row| !row.holds()) {
        None => Ok(EXIT_OK),
        Some(row) => {
            eprintln!(
                "forebay bench: {} processes: after the write the PFS has {} and the buffer {} of {}; after the drain the PFS has {} and the buffer still owes {}",
                row.tasks,
                shown(row.before.pfs_bytes),
                shown(row.before.buffer_bytes),
                shown(row.bytes),
                shown(row.after.pfs_bytes),
                shown(row.after.buffer_bytes)
            );
            Ok(EXIT_FAILED)
        }
    }
}

fn row(args: &SuiteArgs, tasks: u32) -> anyhow::Result<Row> {
    let workload = suites::caching(args.how.seed.unwrap_or_else(drawn_seed), tasks, args.bytes)
        .map_err(|refused| Usage(refused.to_string()))?;
    let raw_dir = OwnDir::make(&args.raw, false)?;
    let (raw_s, _) = write(&workload, raw_dir.path())?;
    raw_dir.remove()?;
    let own = OwnDir::make(&args.dir, false)?;
    let no_cache = |error: ControlError| error.hint("it must lie in a mounted cache");
    let (control, place) = Control::connect_path(own.path()).map_err(no_cache)?;
    let on_pfs = args.raw.join(own.path().file_name().unwrap_or_default());
    if !on_pfs.is_dir() {
        let why = format!(
            "it is not the directory of the PFS that {} shows: nothing of what is made in one is in the other",
            args.dir.display()
        );
        let told = ControlError::new("use --raw", Some(&args.raw), &why);
        return Err(told.hint("name the one that the cache shows").into());
    }
    let sides = Sides {
        control: Mutex::new(control),
        in_buffer: PathBytes::new(place.path_in_buffer.as_os_str().as_bytes()),
        on_pfs,
        begun: Instant::now(),
        looks: Mutex::default(),
    };
    sides.state().map_err(no_cache)?;
    policy(own.path(), "never")?;
    let (write_s, bytes) = sides.beside(|| write(&workload, own.path()))?;
    let before = sides.look()?;
    let drain_from_s = sides.begun.elapsed().as_secs_f64();
    let drained = sides.beside(|| drain(&sides));
    let drain_s = sides.begun.elapsed().as_secs_f64() - drain_from_s;
    drained?;
    let after = sides.look()?;
    policy(own.path(), "idle")?;
    let looks = sides.looks.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    own.remove()?;
    Ok(Row { tasks, bytes, write_s, raw_s, drain_s, before, after, looks, drain_from_s })
}

/// Writes by another process of this program, so that this one may have threads that look on; seconds and bytes.
fn write(workload: &Workload, dir: &Path) -> anyhow::Result<(f64, u64)> {
    let file = WorkloadFile::make(workload)?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(["bench", "run", "--json", "--keep", "--no-cache-look"]).arg(file.path()).arg(dir);
    command.env(forebay_loadgen::mpi::VARIABLE, "off");
    let output = command
        .output()
        .map_err(|error| ControlError::io("start forebay bench run", None, &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(ControlError::new("write in", Some(dir), said.trim()).into());
    }
    let strange = |why: &str| ControlError::new("read what forebay bench run said", None, why);
    let told: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| strange(&error.to_string()))?;
    let phases = told["phases"].as_array().ok_or_else(|| strange("it said nothing of phases"))?;
    let sum = |key: &str| phases.iter().filter_map(|phase| phase[key].as_f64()).sum::<f64>();
    Ok((sum("time_s"), sum("written_bytes") as u64))
}

fn policy(dir: &Path, policy: &str) -> anyhow::Result<()> {
    use rustix::fs::XattrFlags;
    rustix::fs::setxattr(dir, DRAIN, policy.as_bytes(), XattrFlags::empty())
        .map_err(|error| at(&format!("set {DRAIN} to {policy} of"), dir)(error.into()).into())
}

/// Asks for the drain, and waits for its end.
fn drain(sides: &Sides) -> anyhow::Result<()> {
    {
        let mut control = sides.control.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        control.cache_tree(CacheRequest::Flush { path: sides.in_buffer.clone() })?;
    }
    loop {
        let state = sides.state()?;
        if state.is_durable() {
            return Ok(());
        }
        if state.failed + state.conflicts > 0 {
            let told = ControlError::new("drain", Some(&sides.on_pfs), "a file failed");
            return Err(told.hint("`forebay status` of it in the cache says why").into());
        }
        std::thread::sleep(LOOK);
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:>5} {:>10} {:>26} {:>26} {:>13} {:>13} {:>13}  {}\n",
        "procs",
        "written",
        "PFS, buffer after write",
        "PFS, buffer after drain",
        "into cache",
        "into PFS",
        "drain",
        ""
    );
    for row in rows {
        let pair = |look: &Look| format!("{}, {}", shown(look.pfs_bytes), shown(look.buffer_bytes));
        let rate = |seconds: f64| shown_rate(row.bytes as f64 / seconds.max(1e-9));
        text.push_str(&format!(
            "{:>5} {:>10} {:>26} {:>26} {:>13} {:>13} {:>13}  {}\n",
            row.tasks,
            shown(row.bytes),
            pair(&row.before),
            pair(&row.after),
            rate(row.write_s),
            rate(row.raw_s),
            rate(row.drain_s),
            if row.holds() { "as it should be" } else { "NOT as it should be" }
        ));
    }
    text
}

fn as_json(args: &SuiteArgs, rows: &[Row]) -> serde_json::Value {
    let look = |look: &Look| json!({ "at_s": look.at_s, "pfs_bytes": look.pfs_bytes, "buffer_bytes": look.buffer_bytes });
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            json!({
                "processes": row.tasks,
                "bytes": row.bytes,
                "write_s": row.write_s,
                "raw_write_s": row.raw_s,
                "drain_s": row.drain_s,
                "after_write": look(&row.before),
                "after_drain": look(&row.after),
                "holds": row.holds(),
                "looks": row.looks.iter().map(look).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "Version": env!("CARGO_PKG_VERSION"),
        "suite": "dw-caching",
        "cache": args.dir.display().to_string(),
        "pfs": args.raw.display().to_string(),
        "rows": rows,
    })
}

fn page(args: &SuiteArgs, rows: &[Row]) -> Page {
    let mut page = Page::new("Where the bytes are after a cached write");
    let [cache, pfs] = [&args.dir, &args.raw].map(|dir| named(dir));
    page.fact(format!("cache {cache}, PFS {pfs}"));
    for row in rows {
        let section = page.section(format!("{}, {}", processes(row.tasks), shown(row.bytes)));
        let mut chart = Chart::new(
            "Bytes on the PFS, and bytes of files that it does not have whole",
            Axis::new("time", Unit::Seconds),
            Axis::new("size", Unit::Bytes),
        );
        let points = |value: fn(&Look) -> u64| {
            row.looks.iter().map(|look| (look.at_s, value(look) as f64)).collect()
        };
        let on_pfs = points(|look| look.pfs_bytes);
        let in_buffer = points(|look| look.buffer_bytes);
        chart
            .series
            .push(Series::line("owed by the buffer", in_buffer).shape(Shape::Area).colour(0));
        chart.series.push(Series::line("on the PFS", on_pfs).shape(Shape::Area).colour(1));
        let drain = forebay_plot_page::Mark {
            at: row.drain_from_s,
            text: "drain begins".into(),
            colour: None,
        };
        chart.marks.push(drain);
        chart.note = format!(
            "After the write the PFS has {}, the buffer owes {}; after the drain {} and {}. The buffer owes all of a file until the PFS has it whole, so both have bytes of one that drains. Into the cache at {}, into the PFS itself at {}, drained at {}.",
            shown(row.before.pfs_bytes),
            shown(row.before.buffer_bytes),
            shown(row.after.pfs_bytes),
            shown(row.after.buffer_bytes),
            shown_rate(row.bytes as f64 / row.write_s.max(1e-9)),
            shown_rate(row.bytes as f64 / row.raw_s.max(1e-9)),
            shown_rate(row.bytes as f64 / row.drain_s.max(1e-9))
        );
        section.chart(chart);
    }
    page.footer("Made by forebay bench suite --suite dw-caching. docs/BENCH.md.");
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// All of it drains between the two questions of a look.
    #[test]
    fn what_drains_during_a_look_is_not_lost_to_it() -> Result<(), ()> {
        let drained = Cell::new(false);
        let asked = |has: bool| -> Result<u64, ()> { Ok(if has { 7 } else { 0 }) };
        let buffer = || {
            let owes = !drained.replace(true);
            asked(owes)
        };
        let pfs = || {
            let has = drained.replace(true);
            asked(has)
        };
        let look = Look::at_both(Instant::now(), buffer, pfs)?;
        assert_eq!((look.buffer_bytes, look.pfs_bytes), (7, 7));
        Ok(())
    }
}
