//! `forebay bench netcdf` by the real parallel netCDF library: its files are netCDF files that other programs read, with the content
//! and the ranges of bytes that the series of blocks has; and where there is no library, that is said.
#![allow(clippy::unwrap_used)]

use super::bench_mpi::{good, json, launched, limited, mpirun, place};
use forebay_tests::buffer::binary;
use forebay_tests::procs;
use forebay_trace_format::{Class, Item, Op, Process};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Four ranks on "two nodes", three time steps of 8 x 6 x 5 integers.
const SHAPE: [&str; 6] = ["-n", "2", "-p", "2", "-d", "3:8:6:5"];
const STEPS: u64 = 3;
const BYTES: u64 = 3 * 8 * 6 * 5 * 4;

/// The directory that a run has left in another one.
fn left_in(dir: &Path) -> PathBuf {
    let mut found = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let one = found.next().unwrap();
    assert!(found.next().is_none(), "{}", dir.display());
    one
}

/// The series of blocks, by POSIX calls of processes of its own: its file, and the log of each process.
fn blocks(dir: &Path, more: &[&str]) -> (PathBuf, PathBuf) {
    let (to, log) = (dir.join("blocks"), dir.join("blocks.log"));
    std::fs::create_dir(&to).unwrap();
    let mut bench = limited(binary());
    bench.args(["bench", "netcdf"]).args(SHAPE).args(more);
    bench.args(["--calls", "blocks", "--seed", "5", "--keep", "--json", "--log"]).arg(&log);
    procs::run(bench.arg(&to));
    (left_in(&to), log)
}

/// What each rank moved of the data of a file whose name ends so: reads or writes, by offset and length, in their order.
pub(crate) fn moved(trace: &Path, name: &str, class: Class) -> Vec<Vec<(u64, u64)>> {
    let mut ranks: HashMap<i32, Vec<(u64, u64)>> = HashMap::new();
    for entry in std::fs::read_dir(trace).unwrap() {
        let path = entry.unwrap().path();
        let Ok(process) = Process::open(&path) else { continue };
        let Some(rank) = process.header.rank else { continue };
        let (mut names, mut calls) = (HashMap::new(), Vec::new());
        process
            .each(|item| match item {
                Item::Name { id, name, .. } => {
                    names.insert(id, String::from_utf8_lossy(name).into_owned());
                }
                Item::Event(event) if event.op.class() == class && event.op != Op::Fsync => {
                    calls.push((event.file, event.offset, event.result));
                }
                _ => {}
            })
            .unwrap();
        let mine = ranks.entry(rank as i32).or_default();
        for (file, offset, result) in calls {
            let is_it = names.get(&file).is_some_and(|known| known.ends_with(name));
            if let (true, Some(offset), true) = (is_it, offset, result > 0) {
                mine.push((offset, result as u64));
            }
        }
    }
    let mut ranks: Vec<(i32, Vec<(u64, u64)>)> = ranks.into_iter().collect();
    ranks.sort();
    ranks.into_iter().map(|(_, calls)| calls).collect()
}

/// Where the variable begins in the file, by h5py; its bytes go into `to`.
fn opened_by_h5py(file: &Path, to: &Path) -> Value {
    const PROGRAM: &str = "
import sys, json, h5py
file = h5py.File(sys.argv[1], 'r')
data = file['data']
open(sys.argv[2], 'wb').write(data[...].tobytes())
print(json.dumps({'shape': data.shape, 'type': str(data.dtype), 'offset': data.id.get_offset(), 'chunks': data.chunks}))
";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-I", "-c", PROGRAM]).arg(file).arg(to);
    serde_json::from_str(&procs::run(&mut python)).unwrap()
}

/// Each kind of access and layout makes a netCDF file with the same content; each rank makes one call for each time step.
#[test]
fn the_netcdf_library_makes_files_that_others_read() {
    let place = place();
    let dir = place.path();
    let (wanted, _) = blocks(dir, &[]);
    let wanted = std::fs::read(wanted.join("variable.nc")).unwrap();
    assert_eq!(wanted.len() as u64, BYTES);
    for (name, more) in [
        ("independent", &["-t", "ind", "--sync"][..]),
        ("collective", &["-t", "coll"][..]),
        ("chunked", &["-t", "coll", "-c", "auto"][..]),
        // Made before, by one rank.
        ("read", &["-t", "coll", "-r"][..]),
    ] {
        std::fs::create_dir(dir.join(name)).unwrap();
        let mut args = vec!["netcdf", "--calls", "netcdf", "--seed", "5", "--verify", "--keep"];
        args.extend(SHAPE);
        args.extend(more);
        args.extend(["--json", name]);
        let told = json(dir, 4, &args);
        assert_eq!(told["differences"], 0, "{name}: {told}");
        let notes = told["notes"].to_string();
        assert!(notes.contains("netCDF 4.") && notes.contains("on Open MPI"), "{notes}");
        for phase in told["phases"].as_array().unwrap() {
            let (class, bytes) = match phase["phase"].as_str() {
                Some("write") => (1, "written_bytes"),
                _ => (0, "read_bytes"),
            };
            assert_eq!(phase[bytes], BYTES, "{name}: {phase}");
            for rank in phase["ranks"].as_array().unwrap() {
                assert_eq!(rank["calls"][class], STEPS, "{name}: {phase}");
            }
        }
        let file = left_in(&dir.join(name)).join("variable.nc");
        let head = procs::run(Command::new("ncdump").arg("-h").arg(&file));
        for line in ["time = 3 ;", "dim_3 = 5 ;", "int data(time, dim_1, dim_2, dim_3) ;"] {
            assert!(head.contains(line), "{name}: {head}");
        }
        let found = opened_by_h5py(&file, &dir.join("content"));
        assert_eq!(found["shape"], serde_json::json!([3, 8, 6, 5]), "{name}");
        let chunks = match name {
            "chunked" => serde_json::json!([1, 4, 3, 5]),
            _ => Value::Null,
        };
        assert_eq!(found["chunks"], chunks, "{name}");
        assert!(std::fs::read(dir.join("content")).unwrap() == wanted, "{name}");
    }
}

/// A17: the series of blocks that is moved without the library is the one that the library moves, byte range by byte range, beside
/// where the variable begins in the file.
#[test]
fn the_series_of_blocks_is_that_of_the_library() {
    let place = place();
    let dir = place.path();
    let (_, log) = blocks(dir, &[]);
    std::fs::create_dir(dir.join("by")).unwrap();
    let trace = dir.join("t");
    let mut traced = launched(dir, 4, &[]);
    traced.arg(binary()).args(["trace", "-q", "--no-buffers", "-o"]).arg(&trace).arg("--");
    traced.arg(binary()).args(["bench", "netcdf"]).args(SHAPE);
    let output =
        traced.args(["--calls", "netcdf", "--seed", "5", "--keep", "by"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = left_in(&dir.join("by")).join("variable.nc");
    let begin = opened_by_h5py(&file, &dir.join("content"))["offset"].as_u64().unwrap();
    for class in [Class::Write, Class::Read] {
        let of_blocks = moved(&log, "/variable.nc", class);
        let of_library: Vec<Vec<(u64, u64)>> = moved(&trace, "variable.nc", class)
            .into_iter()
            .map(|calls| {
                // The file's own structures lie before and behind; it is filled to its size at once when it is made.
                let data = begin..begin + BYTES;
                let inside = |(at, len): &(u64, u64)| data.contains(at) && at + len <= data.end;
                calls.into_iter().filter(inside).map(|(at, len)| (at - begin, len)).collect()
            })
            .collect();
        assert_eq!(of_blocks.len(), 4, "{class:?}");
        assert_eq!(of_library, of_blocks, "{class:?}");
    }
}

/// Where there is no library, the blocks are moved and a note says why; who insists on it is told what is missing.
#[test]
fn what_cannot_be_moved_by_a_netcdf_library_is_said() {
    let place = place();
    let dir = place.path();
    let mut args = vec!["netcdf", "--verify", "--json"];
    args.extend(SHAPE);
    args.push(".");
    let mut without = mpirun(dir, 4, &[("FOREBAY_NETCDF", "off")], &args);
    let told: Value = serde_json::from_str(&procs::run(&mut without)).unwrap();
    let notes = told["notes"].to_string();
    assert!(notes.contains("no netCDF library: FOREBAY_NETCDF is off"), "{notes}");
    assert!(notes.contains("MPI-IO by Open MPI"), "{notes}");
    assert_eq!(told["differences"], 0, "{told}");
    args.extend(["--calls", "netcdf"]);
    for (library, why) in [
        ("off", "FOREBAY_NETCDF is off"),
        ("/no/libnetcdf.so", "cannot open shared object file"),
        ("libc.so.6", "libc.so.6 was built without MPI"),
    ] {
        let output = mpirun(dir, 4, &[("FOREBAY_NETCDF", library)], &args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{library}");
        assert!(said.contains("no netCDF library: ") && said.contains(why), "{library}: {said}");
    }
    let output = limited(binary()).arg("bench").args(&args).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("start it by mpirun or srun"), "{said}");
    // What a workload file asks of the library and it cannot do is refused with its line.
    std::fs::write(
        dir.join("blocks.toml"),
        "workload = 1\n[[file]]\nname = \"v\"\npath = \"v.nc\"\ninterface = \"netcdf\"\n[[job]]\n[[job.phase]]\nsteps = [{ write = \"v\", block = \"1MiB\" }]\n",
    )
    .unwrap();
    let output = limited(binary())
        .args(["bench", "run", "blocks.toml", "."])
        .current_dir(dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("blocks of a file of netCDF") && said.contains("array"), "{said}");
    // A file by each process, and its workload file written down and replayed.
    let own = ["netcdf", "-n", "2", "-p", "1", "-d", "3:8:6:5", "-F", "--workload-to", "own.toml"];
    procs::run(limited(binary()).arg("bench").args(own).current_dir(dir));
    let (out, _) = good(dir, 2, &["run", "own.toml", ".", "--json"]);
    let told: Value = serde_json::from_str(&out).unwrap();
    assert!(told["notes"].to_string().contains("netCDF 4."), "{told}");
    assert_eq!(told["phases"][0]["written_bytes"], BYTES, "{told}");
}
