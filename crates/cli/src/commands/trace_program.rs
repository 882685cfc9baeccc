//! Why a program cannot be recorded, found from its file: the loader does not preload into it. Called by
//! `forebay trace` before it runs one, and to explain a trace that stayed empty.

use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How many `#!` lines are followed.
const INTERPRETERS_MAX: usize = 4;
/// Most program headers that are looked at.
const PROGRAM_HEADERS_MAX: u16 = 256;
const PT_INTERP: u32 = 3;

/// What keeps a program from being recorded.
#[derive(Debug, PartialEq, Eq)]
pub struct Unseen {
    /// In words.
    pub why: String,
    /// Preloading would break it, so it runs without.
    pub harmful: bool,
}

/// The file that a command names, as execvp(3) finds it.
pub fn find(command: &OsStr) -> Option<PathBuf> {
    if command.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(command));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|dir| dir.join(command)).find(|file| {
        file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    })
}

/// Why the program in this file is not recorded; `None` if nothing speaks against it.
pub fn unseen(file: &Path) -> Option<Unseen> {
    let mut file = file.to_path_buf();
    for _ in 0..INTERPRETERS_MAX {
        let mut opened = File::open(&file).ok()?;
        let meta = opened.metadata().ok()?;
        let mut head = Vec::new();
        opened.by_ref().take(256).read_to_end(&mut head).ok()?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let mut words = line.split(|byte| *byte == b' ' || *byte == b'\t');
            let first = words.find(|word| !word.is_empty())?;
            file = PathBuf::from(OsStr::from_bytes(first));
            continue;
        }
        let name = file.display();
        if meta.mode() & 0o6000 != 0 && rights_differ(&meta) {
            let why =
                format!("{name} is a set-user-id program: the loader preloads nothing into it");
            return Some(Unseen { why, harmful: false });
        }
        if has_capabilities(&file) {
            let why = format!("{name} has file capabilities: the loader preloads nothing into it");
            return Some(Unseen { why, harmful: false });
        }
        return elf(&opened, &head, &name.to_string());
    }
    None
}

/// A set-user-id file of the caller's own changes nothing.
fn rights_differ(meta: &std::fs::Metadata) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (meta.mode() & 0o4000 != 0 && meta.uid() != uid.as_raw())
        || (meta.mode() & 0o2000 != 0 && meta.gid() != gid.as_raw())
}

fn has_capabilities(file: &Path) -> bool {
    let Ok(fd) = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut value = [0_u8; 64];
    rustix::fs::fgetxattr(fd, "security.capability", &mut value).is_ok()
}

fn elf(file: &File, head: &[u8], name: &str) -> Option<Unseen> {
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let other = |what: &str| {
        let why = format!("{name} is a program {what}, and the preloaded library is not");
        Some(Unseen { why, harmful: true })
    };
    if head.get(4) != Some(&2) {
        return other("of 32 bits");
    }
    let machine = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    if half(18) != Some(machine) {
        return other("for another processor");
    }
    let table = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?);
    let (size, count) = (half(54)?, half(56)?.min(PROGRAM_HEADERS_MAX));
    for at in 0..u64::from(count) {
        let mut entry = [0; 56];
        let offset = table.checked_add(at * u64::from(size))?;
        file.read_exact_at(&mut entry, offset).ok()?;
        if u32::from_le_bytes(entry[..4].try_into().ok()?) == PT_INTERP {
            let offset = u64::from_le_bytes(entry[8..16].try_into().ok()?);
            let mut loader = [0; 64];
            let count = file.read_at(&mut loader, offset).ok()?;
            let musl = loader[..count].windows(7).any(|word| word == b"ld-musl");
            return musl.then(|| Unseen {
                why: format!("{name} uses musl, and the preloaded library needs glibc"),
                harmful: true,
            });
        }
    }
    let why =
        format!("{name} is statically linked: there is no loader that could preload anything");
    Some(Unseen { why, harmful: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_cannot_be_recorded_are_told_from_those_that_can() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0);
        elf[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        let found = unseen(&put("static", &elf)).unwrap();
        assert!(found.why.contains("statically linked") && !found.harmful, "{found:?}");
        elf[4] = 1;
        assert!(unseen(&put("small", &elf)).unwrap().why.contains("32 bits"));
        let script = format!("#! {} -x\necho\n", dir.path().join("static").display());
        assert!(unseen(&put("script", script.as_bytes())).unwrap().why.contains("static is st"));
        assert_eq!(unseen(Path::new("/bin/sh")), None);
        assert_eq!(unseen(&put("text", b"echo\n")), None);
        assert_eq!(find(OsStr::new("no-such-program-at-all")), None);
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
    }
}
