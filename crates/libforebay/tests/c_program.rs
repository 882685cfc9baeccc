//! The C interface, by a C program compiled against include/forebay.h, on real mounts.
#![allow(clippy::unwrap_used)]

use forebay_tests::buffer::{Buffer, Kind, binary};
use forebay_tests::procs::run;
use forebay_tests::served::{Served, Store, Via};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `make build` put libforebay.so: beside the executable that is tested.
fn library_dir() -> PathBuf {
    let dir = binary().parent().unwrap().to_path_buf();
    assert!(dir.join("libforebay.so").exists(), "no libforebay.so in {dir:?}");
    dir
}

fn compile(into: &Path) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (library, program) = (library_dir(), into.join("program"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    gcc.arg("-I").arg(here.join("include")).arg(here.join("tests/program.c"));
    gcc.arg("-o").arg(&program).arg("-L").arg(&library).args(["-lforebay", "-pthread"]);
    run(gcc.arg(format!("-Wl,-rpath,{}", library.display())));
    program
}

#[test]
fn a_c_program_asks_waits_and_commits() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile(scratch.path());
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let pfs = scratch.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    run(Command::new(&program).arg(buffer.root()).arg(&pfs));
    assert_eq!(std::fs::read(pfs.join("ckpt/data")).unwrap(), b"123456789");
}

#[test]
fn a_c_program_on_a_served_buffer() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile(scratch.path());
    let served = Served::new(Store::Directory, &[Via::Tcp]);
    let pfs = scratch.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    run(Command::new(&program).arg(served.root(0)).arg(&pfs));
    assert_eq!(std::fs::read(pfs.join("ckpt/data")).unwrap(), b"123456789");
}
