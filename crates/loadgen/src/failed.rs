//! What a process of a run failed at, in parts: what it did, on which path, why. They go as one text through the memory
//! that ranks share, and to other nodes; here it is made and taken apart.
//! Callers: `ior`, `replay`, `log`, `far`; the command line's `forebay bench`.

use std::io;
use std::path::Path;

/// Between the parts. In a path it would be shown as a mark.
const BETWEEN: char = '\u{1f}';

/// The parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed<'t> {
    /// What was tried, and by which rank; empty if the text does not say.
    pub what: &'t str,
    /// On which path.
    pub path: Option<&'t Path>,
    /// The system's number of the error.
    pub errno: Option<i32>,
    /// Why it failed.
    pub why: &'t str,
}

/// The text of a call that the system refused.
pub(crate) fn said(what: &str, path: &Path, error: &io::Error) -> String {
    let errno = error.raw_os_error().unwrap_or(0);
    text(what, path, errno, &error.to_string())
}

/// The text of what cannot be used, for a reason in words.
pub(crate) fn because(what: &str, path: &Path, why: &str) -> String {
    text(what, path, 0, why)
}

fn text(what: &str, path: &Path, errno: i32, why: &str) -> String {
    let path = path.display().to_string().replace(BETWEEN, "\u{fffd}");
    format!("{what}{BETWEEN}{path}{BETWEEN}{errno}{BETWEEN}{why}")
}

/// Takes a text apart. One without parts is all reason.
pub fn parts(text: &str) -> Failed<'_> {
    let mut each = text.splitn(4, BETWEEN);
    match (each.next(), each.next(), each.next(), each.next()) {
        (Some(what), Some(path), Some(errno), Some(why)) => Failed {
            what,
            path: Some(Path::new(path)),
            errno: errno.parse().ok().filter(|errno| *errno != 0),
            why,
        },
        _ => Failed { what: "", path: None, errno: None, why: text },
    }
}

/// As a person reads it.
pub(crate) fn plain(text: &str) -> String {
    match parts(text) {
        Failed { what, path: Some(path), why, .. } => format!("{what} {}: {why}", path.display()),
        // It may have been cut in the middle.
        _ => text.replace(BETWEEN, " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_comes_apart_as_it_was_made() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        let told = format!("rank 3: {}", said("write 9 bytes at 0 of", Path::new("d/f: 1"), &full));
        let found = parts(&told);
        assert_eq!(
            (found.what, found.errno),
            ("rank 3: write 9 bytes at 0 of", Some(libc::ENOSPC))
        );
        assert_eq!(found.path, Some(Path::new("d/f: 1")));
        assert!(found.why.starts_with("No space left"), "{found:?}");
        assert!(plain(&told).starts_with("rank 3: write 9 bytes at 0 of d/f: 1: No space left"));
        let words = because("read", Path::new("a\u{1f}b"), "it has no number");
        assert_eq!(plain(&words), "read a\u{fffd}b: it has no number");
        assert_eq!(parts(&words).errno, None);
    }

    #[test]
    fn what_has_no_parts_is_all_reason() {
        let told = "rank 1 was killed by signal 9";
        assert_eq!(parts(told), Failed { what: "", path: None, errno: None, why: told });
        assert_eq!(plain(told), told);
        let whole = because("open", Path::new("f"), "no");
        assert_eq!(plain(&whole[..7]), "open f ", "cut");
    }
}
