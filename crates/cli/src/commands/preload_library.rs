//! The libraries that `forebay exec` and `forebay trace` preload: where they are, and the environment that names them.

use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A library's file: beside the executable, or where it is installed.
pub fn find(library: &str) -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe().context("find this executable")?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let places = [
        beside.join(library),
        beside.join("../lib/forebay").join(library),
        beside.join("../lib").join(library),
    ];
    let Some(found) = places.iter().find(|path| path.is_file()) else {
        bail!(
            "{library} is missing: looked for it at {}; `make build` makes it, `make install` installs it",
            places.map(|path| path.display().to_string()).join(", ")
        );
    };
    let found =
        std::fs::canonicalize(found).with_context(|| format!("find {}", found.display()))?;
    if found.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        bail!(
            "{}: the loader cannot preload a file with a blank or colon in its path; install Forebay elsewhere",
            found.display()
        );
    }
    Ok(found)
}

/// This program's environment, without the variables that `leaves_out`; with the library first among what is
/// preloaded, if one is given.
pub fn environment(library: Option<&Path>, leaves_out: impl Fn(&[u8]) -> bool) -> Vec<OsString> {
    let mut environment = Vec::new();
    let mut preloads = library.map(|library| library.as_os_str().to_os_string());
    for (name, value) in std::env::vars_os() {
        match &mut preloads {
            Some(preloads) if name == "LD_PRELOAD" => {
                if !value.is_empty() {
                    preloads.push(":");
                    preloads.push(value);
                }
            }
            _ if leaves_out(name.as_bytes()) => {}
            _ => environment.push(variable(&name, &value)),
        }
    }
    environment.extend(preloads.map(|preloads| variable(OsStr::new("LD_PRELOAD"), &preloads)));
    environment
}

/// `NAME=value`.
pub fn variable(name: &OsStr, value: &OsStr) -> OsString {
    let mut both = name.as_bytes().to_vec();
    both.push(b'=');
    both.extend_from_slice(value.as_bytes());
    OsString::from_vec(both)
}
