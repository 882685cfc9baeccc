//! Paths as messages and records carry them. All that has a path on a socket or in a file uses this.

use serde::{Deserialize, Serialize};

/// Path bytes that need not be UTF-8: JSON carries them as text where they are UTF-8 and as an
/// array of numbers where they are not.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathBytes {
    /// UTF-8.
    Text(String),
    /// Anything.
    Bytes(Vec<u8>),
}

impl PathBytes {
    /// From raw bytes.
    pub fn new(bytes: &[u8]) -> PathBytes {
        match std::str::from_utf8(bytes) {
            Ok(text) => PathBytes::Text(text.to_string()),
            Err(_) => PathBytes::Bytes(bytes.to_vec()),
        }
    }
    /// No path.
    pub fn none() -> PathBytes {
        PathBytes::Text(String::new())
    }
    /// A path of a buffer as its users see it, behind the buffer's prefix.
    pub fn in_buffer(prefix: &[u8], path: &[u8]) -> PathBytes {
        let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
        let path = if path.is_empty() { b"/" } else { path };
        PathBytes::new(&[prefix, path].concat())
    }
    /// As a shell takes it for one word.
    pub fn shell_word(&self) -> String {
        let text = self.to_string();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
        match !text.is_empty() && text.chars().all(plain) {
            true => text,
            false => format!("'{}'", text.replace('\'', r"'\''")),
        }
    }
    /// The raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            PathBytes::Text(text) => text.as_bytes(),
            PathBytes::Bytes(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for PathBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl std::fmt::Display for PathBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_a_buffer_show_whose_they_are() {
        let shown = |prefix: &str, path: &str| {
            PathBytes::in_buffer(prefix.as_bytes(), path.as_bytes()).to_string()
        };
        assert_eq!(shown("/mnt/b", "/sec"), "/mnt/b/sec");
        assert_eq!(shown("/mnt/b/", "/"), "/mnt/b/");
        assert_eq!(shown("", "/a"), "/a");
        assert_eq!(shown("job7:", "/a"), "job7:/a");
    }

    #[test]
    fn paths_in_hints_are_one_word_of_a_shell() {
        let word = |path: &str| PathBytes::new(path.as_bytes()).shell_word();
        assert_eq!(word("/mnt/fb"), "/mnt/fb");
        assert_eq!(word("run7:"), "run7:");
        assert_eq!(word("/mnt/my b'x"), r"'/mnt/my b'\''x'");
        assert_eq!(word(""), "''");
    }

    #[test]
    fn paths_need_not_be_utf8() {
        for raw in [&b"/a b\n"[..], &b"/\xff\xfe"[..]] {
            let json = serde_json::to_string(&PathBytes::new(raw)).unwrap();
            let back: PathBytes = serde_json::from_str(&json).unwrap();
            assert_eq!(back.as_bytes(), raw);
        }
    }
}
