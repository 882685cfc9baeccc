//! The two paths of a stage line: one in the buffer, one on the PFS.
//!
//! The buffer's side begins literally with `$DW_JOB_STRIPED` or `$DW_JOB_PRIVATE`: it is told
//! apart by that text, and no shell runs. Paths are bytes in any encoding, but for control
//! characters. Called by [`crate::directive`].

use crate::request::{AccessMode, Dialect};
use forebay_proto::control::PathBytes;

/// Longest path, in bytes, as the kernel has it (PATH_MAX without the NUL).
const MAX_PATH_BYTES: usize = 4_095;

/// Longest name in a path, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// What is wrong with a path, and what was expected.
pub(crate) type Fault = (String, String);

fn fault<T>(what: &str, expected: &str) -> Result<T, Fault> {
    Err((what.to_string(), expected.to_string()))
}

/// Why `forebay run` has none.
pub(crate) const NO_PERSISTENT: &str = "persistent buffers need a scheduler";

/// The buffer's side of a stage.
pub(crate) struct BufferSide {
    /// Namespace.
    pub(crate) mode: AccessMode,
    /// The persistent buffer that it lies in, if it is not the job's own.
    pub(crate) persistent: Option<String>,
    /// Path from that namespace's root.
    pub(crate) path: PathBytes,
}

/// Reads the buffer's side: its namespace and the path from that namespace's root.
pub(crate) fn buffer_side(value: &[u8], dialect: Dialect) -> Result<BufferSide, Fault> {
    const EXPECTED: &str = "$DW_JOB_STRIPED/PATH or $DW_JOB_PRIVATE/PATH, literally";
    common(value)?;
    if let Some(rest) = value.strip_prefix(b"$DW_PERSISTENT_STRIPED_")
        && dialect == Dialect::Scheduler
    {
        let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
        let name = String::from_utf8_lossy(&rest[..end]).into_owned();
        let path = normalize(&rest[end..])?;
        return Ok(BufferSide { mode: AccessMode::Striped, persistent: Some(name), path });
    }
    if value.starts_with(b"$DW_PERSISTENT_") {
        return match dialect {
            Dialect::Run => fault(NO_PERSISTENT, "$DW_JOB_STRIPED/PATH or $DW_JOB_PRIVATE/PATH"),
            Dialect::Scheduler => fault(
                "a persistent buffer is striped",
                "$DW_PERSISTENT_STRIPED_NAME/PATH, literally",
            ),
        };
    }
    for mode in [AccessMode::Striped, AccessMode::Private] {
        let Some(rest) =
            value.strip_prefix(b"$").and_then(|v| v.strip_prefix(mode.variable().as_bytes()))
        else {
            continue;
        };
        if !rest.is_empty() && rest[0] != b'/' {
            return fault("the variable's name does not end there", EXPECTED);
        }
        return Ok(BufferSide { mode, persistent: None, path: normalize(rest)? });
    }
    if value.starts_with(b"${") || value.starts_with(b"$(") {
        return fault("no shell reads this line", EXPECTED);
    }
    fault("this side lies in the buffer and does not begin with its variable", EXPECTED)
}

/// Reads the PFS's side.
pub(crate) fn pfs_side(value: &[u8]) -> Result<PathBytes, Fault> {
    const EXPECTED: &str = "an absolute path on the parallel file system, without variables";
    common(value)?;
    if value.starts_with(b"$DW_") {
        return fault("both sides of the copy lie in the buffer", EXPECTED);
    }
    if value.contains(&b'$') {
        return fault("no variable is replaced on this side", EXPECTED);
    }
    if value[0] != b'/' {
        return fault("the path is not absolute", EXPECTED);
    }
    normalize(value)
}

/// Rules of both sides.
fn common(value: &[u8]) -> Result<(), Fault> {
    const LIST: &str = "a path without blanks; for names with blanks, stage their directory, or \
                        use type=list with one path a line";
    if value.is_empty() {
        return fault("the path is empty", "a path");
    }
    if matches!(value[0], b'"' | b'\'') {
        return fault("quotes have no meaning in a directive", LIST);
    }
    if value.contains(&b'\\') {
        return fault("a backslash has no meaning inside a word", LIST);
    }
    if let Some(&byte) = value.iter().find(|b| b.is_ascii_control()) {
        return fault(&format!("the path holds the control character 0x{byte:02x}"), LIST);
    }
    if let Some(at) = value.iter().position(|&b| b == b'%')
        && value.get(at + 1).is_some_and(|next| b"%AadjUux".contains(next))
    {
        return fault(
            "%-patterns are replaced by a scheduler only",
            "a path without % and one of the letters A a d j u x after it",
        );
    }
    if value.len() > MAX_PATH_BYTES {
        return fault("the path is too long", "at most 4095 bytes");
    }
    Ok(())
}

/// Drops doubled and trailing slashes and `.`; refuses `..`.
fn normalize(path: &[u8]) -> Result<PathBytes, Fault> {
    let mut clean = Vec::with_capacity(path.len());
    for name in path.split(|&b| b == b'/') {
        match name {
            b"" | b"." => continue,
            b".." => return fault("the path holds ..", "a path without .."),
            name if name.len() > MAX_NAME_BYTES => {
                return fault("a name in the path is too long", "names of at most 255 bytes");
            }
            name => {
                clean.push(b'/');
                clean.extend_from_slice(name);
            }
        }
    }
    if clean.is_empty() {
        clean.push(b'/');
    }
    Ok(PathBytes::new(&clean))
}
