//! The Python package on real mounts, and its checkpoint writer with real torch.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, binary};
use forebay_tests::pfs::Air;
use forebay_tests::procs::{self, try_run_for};
use forebay_tests::site::{self, Site, stormy_as};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest that one of the programs may take; importing torch takes seconds by itself.
const LIMIT: Duration = Duration::from_secs(280);

fn run_python(python: &Path, program: &str, capacity: u64) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let library = binary().with_file_name("libforebay.so");
    assert!(library.exists(), "no {}: `make build` builds it", library.display());
    let buffer = Buffer::mount(Kind::Tmpfs, capacity);
    let pfs = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command
        .arg("-W")
        .arg("ignore")
        .arg(package.join("tests").join(program))
        .arg(buffer.root())
        .arg(pfs.path())
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("FOREBAY_LIB", library);
    let (ok, said) = try_run_for(&mut command, LIMIT);
    assert!(ok, "{program} failed: {said}");
    println!("{said}");
    // What is left on the PFS are trees and manifests, no directory of a commit under way.
    let names = procs::run(Command::new("ls").arg("-A").arg(pfs.path()));
    assert!(!names.lines().any(|name| name.starts_with('.')), "left over: {names}");
}

#[test]
fn the_python_package_on_a_mount() {
    run_python(Path::new("python3"), "test_forebay.py", 64 << 20);
}

#[test]
fn files_as_memory_from_python() {
    run_python(Path::new("python3"), "test_memory.py", 64 << 20);
}

fn on_a_cache(site: &Site, class: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let library = binary().with_file_name("libforebay.so");
    let mut command = Command::new("python3");
    command.arg(package.join("tests/test_cache.py"));
    command.arg(site.mnt("")).arg(site.pfs("")).arg(class);
    command.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
    let (ok, said) = try_run_for(command.env("FOREBAY_LIB", library), LIMIT);
    assert!(ok, "{said}");
}

forebay_tests::on_both_kinds!(the_python_package_on_a_cache);

fn the_python_package_on_a_cache(kind: site::Kind) {
    let site = Site::mounted_as(kind, 64 << 20, &["--drain", "end"]);
    on_a_cache(&site, "Cache");
    let (ok, said) = site.umount(&[]);
    assert!(ok, "{said}");
    let (site, pfs) = stormy_as(kind, &["--drain", "end"]);
    pfs.weather.after(0, Air::Foul(libc::ENOSPC));
    on_a_cache(&site, "Failing");
    pfs.weather.set(Air::Fair);
    site.must_be_durable();
}

#[test]
fn checkpoints_of_real_torch() {
    let named = std::env::var_os("FOREBAY_TORCH_PYTHON").map(PathBuf::from);
    let beside = binary().parent().unwrap().join("../torch-venv/bin/python");
    let python = named.unwrap_or(beside);
    let hint = "scripts/torch-venv target/torch-venv makes it";
    assert!(python.exists(), "no {}: {hint}", python.display());
    run_python(&python, "test_torch.py", 512 << 20);
}
