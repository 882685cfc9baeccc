//! C programs, compiled against the headers of this repository and linked with the library that is tested.
//!
//! Callers: tests of the C interfaces, and of the examples in C.

use crate::buffer::binary;
use crate::procs::run;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program into a directory, linked with libforebay under a name, such as `datawarp`; no warning is let pass.
pub fn compile(source: &Path, into: &Path, library: &str, flags: &[&str]) -> PathBuf {
    let built = binary().with_file_name("libforebay.so");
    assert!(built.exists(), "no {built:?}: make build makes it");
    // Programs ask for the library by its SONAME; an installation has a link of that name.
    symlink(&built, into.join("libforebay.so.0")).unwrap();
    symlink(&built, into.join(format!("lib{library}.so"))).unwrap();
    let program = into.join("program");
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror"]).args(flags);
    gcc.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../libforebay/include"));
    gcc.arg(source).arg("-o").arg(&program).arg("-L").arg(into).arg(format!("-l{library}"));
    run(gcc.arg(format!("-Wl,-rpath,{}", into.display())));
    program
}
