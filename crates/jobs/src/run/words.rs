//! Words of commands: how paths stand in them, what they said last, and how a command that a user gave as one text is cut into
//! words: as a shell does it, without what a
//! shell would put in. Blanks end a word; '...' and "..." hold one together; \ takes the next character as
//! it is (in "..." only \" and \\). Used for `--launch`, by [`super::nodes`] and by the command line.

use std::fs;
use std::path::Path;

/// The words of a command; an error for a quote that does not end.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    // None between words: '' is a word, too.
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '\\') => match rest.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err(r"it ends with a \".into()),
            },
            (Some('"'), '\\') if matches!(rest.peek(), Some('"' | '\\')) => {
                word.get_or_insert_default().extend(rest.next());
            }
            (None, _) if c.is_whitespace() => all.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(open) => Err(format!("a {open} in it does not end")),
        None => {
            all.extend(word);
            Ok(all)
        }
    }
}

/// Longest message of a command that is shown, in bytes from its end.
const MAX_MESSAGE_BYTES: usize = 4_096;

/// A path as a shell takes it.
pub fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What a command said last, into the file `said`.
pub(super) fn reason(said: &Path) -> Option<String> {
    last_words(&fs::read(said).ok()?, MAX_MESSAGE_BYTES)
}

/// The end of what a `forebay` command printed, at most `most_bytes` of it: its lines as one, without the command's own name
/// before them. `None` if it said nothing.
pub fn last_words(said: &[u8], most_bytes: usize) -> Option<String> {
    let text = String::from_utf8_lossy(&said[said.len().saturating_sub(most_bytes)..]);
    let lines = text.lines().map(|line| line.trim().trim_start_matches("forebay: "));
    let mut lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    // A server that fails to start says so, and the command that started it repeats it.
    lines.dedup();
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_cut_as_a_shell_cuts_it() {
        let cut = |text: &str| words(text).unwrap();
        assert_eq!(cut(" ssh  -o BatchMode=yes {host} "), ["ssh", "-o", "BatchMode=yes", "{host}"]);
        assert_eq!(
            cut("unshare --uts sh -c 'hostname {host}; exec sh'"),
            ["unshare", "--uts", "sh", "-c", "hostname {host}; exec sh"]
        );
        assert_eq!(cut(r#"a"b c"'d "e' "" \'\ f "\"\\\n""#), ["ab cd \"e", "", "' f", "\"\\\\n"]);
        assert_eq!(cut("  "), [""; 0]);
        for (text, why) in [("sh -c 'x", "'"), ("a \"b", "\""), ("a \\", "\\")] {
            assert!(words(text).unwrap_err().contains(why), "{text}");
        }
    }
}
