//! The C interfaces, by C programs compiled against include/forebay.h and include/datawarp.h, on real mounts.
#![allow(clippy::unwrap_used)]

use forebay_testkit::buffer::{Buffer, Kind};
use forebay_testkit::procs::run;
use forebay_testkit::programs;
use forebay_testkit::served::{Options, Served, Store, Via};
use std::path::{Path, PathBuf};
use std::process::Command;

fn compile(into: &Path) -> PathBuf {
    compile_with(into, "program.c", "forebay")
}

/// Compiles a program of these tests, linked with the library under one of its names.
fn compile_with(into: &Path, source: &str, name: &str) -> PathBuf {
    const FLAGS: [&str; 4] = ["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-pedantic", "-pthread"];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    programs::compile(&source, into, name, &FLAGS)
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

/// What it puts off to the end of its job is done when the buffer ends, with the content of then.
#[test]
fn a_program_for_datawarp_stages_and_its_deferred_stages_are_done_at_the_end() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile_with(scratch.path(), "datawarp.c", "datawarp");
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    let pfs = scratch.path().join("pfs");
    std::fs::create_dir(&pfs).unwrap();
    let said = run(Command::new(&program).arg(buffer.root()).arg(&pfs));
    assert_eq!(said.trim(), "all as it should be");
    assert!(!pfs.join("late").exists());
    // A kill of the server releases nothing.
    buffer.kill_and_restart();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!pfs.join("late").exists());
    buffer.umount(&[]).unwrap();
    assert_eq!(std::fs::read(pfs.join("late")).unwrap(), b"two");
    assert!(!pfs.join("never").exists());
}

/// A file of a cache is on the PFS when the call has returned, though the program has it open.
#[test]
fn a_program_for_datawarp_waits_until_a_file_of_its_cache_is_on_the_pfs() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile_with(scratch.path(), "datawarp.c", "datawarp");
    let served = Served::with(Options::cache(Store::Directory, &[]), &[Via::Tcp]);
    let mut command = Command::new(&program);
    let said = run(command.arg(served.root(0)).arg(served.pfs("")).arg("cache"));
    assert_eq!(said.trim(), "all as it should be");
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

#[test]
fn a_c_program_uses_files_beside_the_kernel() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile_with(scratch.path(), "files.c", "forebay");
    let buffer = Buffer::mount(Kind::Tmpfs, 64 << 20);
    run(Command::new(&program).arg(buffer.root()));
    assert_eq!(std::fs::read_dir(buffer.root()).unwrap().count(), 0);
}

#[test]
fn a_c_program_uses_files_where_only_the_kernel_can() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile_with(scratch.path(), "files.c", "forebay");
    let plain = tempfile::tempdir().unwrap();
    run(Command::new(&program).arg(plain.path()));
    let served = Served::new(Store::Directory, &[Via::Tcp]);
    run(Command::new(&program).arg(served.root(0)));
}

/// The memory of files, on each kind of store, served, and where there is no buffer.
#[test]
fn a_c_program_loads_and_stores() {
    let scratch = tempfile::tempdir().unwrap();
    let program = compile_with(scratch.path(), "memory.c", "forebay");
    let works = |dir: &Path, volatile: &str| {
        let said = run(Command::new(&program).arg(dir).arg(volatile));
        assert_eq!(said.trim(), "all as it should be", "in {}", dir.display());
    };
    let plain = tempfile::tempdir_in("/dev/shm").unwrap();
    works(plain.path(), "volatile");
    works(&Buffer::mount(Kind::Tmpfs, 64 << 20).root(), "volatile");
    works(&Buffer::mount(Kind::Xfs, 400 << 20).root(), "kept");
    works(&Buffer::mount(Kind::Served, 64 << 20).root(), "kept");
    let served = Served::new(Store::Tmpfs, &[Via::Tcp]);
    works(&served.root(0), "volatile");
}
