//! From the bytes of a script to directives: which lines count, and how they continue.
//!
//! The rules, which are those of Slurm's own reader where it has one, and a refusal where Slurm
//! would silently pass over a line (docs/JOBS.md, "Which lines count"):
//! * Directives stand in the leading block: the lines up to the first that is neither empty nor
//!   starts with `#`. A `#DW` line after that is refused, because Slurm would not see it.
//! * A directive starts in the first column with the word `#DW`.
//! * A trailing ` \` continues it on the next line, which starts with `#DW` again.
//! * Words are divided by blanks and tabs. There is no quoting and no expansion.
//!
//! Invariant: no input makes the reader panic or take more than linear time.

use crate::directive::{self, Directive, Word};
use crate::problem::{Problems, Refused, printable_bytes};
pub use crate::request::Dialect;
use crate::request::{JobRequest, Note};

/// Longest script that is read, in bytes. Slurm's own default limit is 4 MiB.
pub const MAX_SCRIPT_BYTES: usize = 64 << 20;

/// Most directives in one script.
pub const MAX_DIRECTIVES: usize = 4_096;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Reads a script for `forebay run`. `name` is what error messages call it.
///
/// # Errors
/// Everything that is wrong with its directives, up to a bound.
pub fn parse(name: &str, script: &[u8]) -> Result<JobRequest, Refused> {
    parse_for(Dialect::Run, name, script)
}

/// Reads a script.
///
/// # Errors
/// Everything that is wrong with its directives, up to a bound.
pub fn parse_for(dialect: Dialect, name: &str, script: &[u8]) -> Result<JobRequest, Refused> {
    // Slurm hands hooks the script with a NUL byte after it.
    let script = script.strip_suffix(b"\0").unwrap_or(script);
    let lines: Vec<&[u8]> = script.split(|&byte| byte == b'\n').collect();
    let mut problems = Problems::new(&lines);
    if script.len() > MAX_SCRIPT_BYTES {
        let what = format!("the script has {} bytes", script.len());
        problems.add(0, 0, 0, what, format!("at most {MAX_SCRIPT_BYTES}"));
        return Err(problems.into_refused(name));
    }
    let mut notes = Vec::new();
    let interpreter = read_interpreter(lines[0], &mut problems, &mut notes);
    if lines[0].starts_with(BYTE_ORDER_MARK) || lines[0].starts_with(ELF_MAGIC) {
        // Anything said about further lines would be a consequence of this.
        return Err(problems.into_refused(name));
    }
    let directives = scan(&lines, dialect, &mut problems);
    let request = directive::interpret(dialect, &directives, interpreter, notes, &mut problems);
    match request {
        Some(request) if problems.is_empty() => Ok(request),
        _ => {
            if problems.is_empty() {
                // interpret() says why it returns nothing; this is the last guard.
                problems.add(0, 0, 0, "the script was not understood", "#DW lines");
            }
            Err(problems.into_refused(name))
        }
    }
}

/// The `#!` line.
fn read_interpreter(
    first: &[u8],
    problems: &mut Problems<'_>,
    notes: &mut Vec<Note>,
) -> Option<String> {
    if first.starts_with(BYTE_ORDER_MARK) {
        problems.add(
            0,
            0,
            3,
            "the script starts with a byte order mark",
            "#! as the first two bytes (remove the mark: sed -i '1s/^\\xef\\xbb\\xbf//' SCRIPT)",
        );
        return None;
    }
    if first.starts_with(ELF_MAGIC) {
        problems.add(0, 0, 0, "this is a program, not a script", "a text that starts with #!");
        return None;
    }
    let Some(rest) = first.strip_prefix(b"#!") else {
        notes.push(Note {
            line: 1,
            text: "no #! line: /bin/sh will run the script (Slurm would refuse it)".into(),
        });
        return None;
    };
    let rest = rest.strip_suffix(b"\r").unwrap_or(rest).trim_ascii();
    if rest.is_empty() {
        problems.add(0, 0, 2, "#! names no interpreter", "#!/bin/sh or another program's path");
        return None;
    }
    Some(printable_bytes(rest))
}

/// What a line is, seen from its beginning.
enum LineKind {
    Blank,
    Directive,
    Comment,
    Command,
}

/// True if the line begins with `word` and the word ends there.
fn begins_with_word(line: &[u8], word: &[u8]) -> bool {
    line.strip_prefix(word).is_some_and(|rest| rest.first().is_none_or(|b| is_blank(*b)))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r')
}

/// Divides a script into directives.
fn scan(lines: &[&[u8]], dialect: Dialect, problems: &mut Problems<'_>) -> Vec<Directive> {
    let mut directives: Vec<Directive> = Vec::new();
    let mut block_end: Option<usize> = None;
    // Line whose trailing `\` waits for its continuation.
    let mut continues: Option<usize> = None;
    let mut crlf_seen = false;
    for (number, &line) in lines.iter().enumerate() {
        if number == 0 && line.starts_with(b"#!") {
            crlf_seen = report_crlf(number, line, crlf_seen, problems);
            continue;
        }
        if let Some(end) = block_end {
            report_late(number, line, end, problems);
            continue;
        }
        let kind = classify(number, line, dialect, problems);
        if let (Some(from), false) = (continues, matches!(kind, LineKind::Directive)) {
            let end = lines[from].trim_ascii_end().len();
            problems.add(
                from,
                end - 1,
                1,
                "the line is continued, but the next one is no #DW line",
                "a next line that starts with #DW, or no \\ here",
            );
            continues = None;
        }
        match kind {
            LineKind::Blank | LineKind::Comment => {}
            LineKind::Command => block_end = Some(number),
            LineKind::Directive => {
                crlf_seen = report_crlf(number, line, crlf_seen, problems);
                let (words, more) = split_words(number, line, problems);
                if directives.len() == MAX_DIRECTIVES && continues.is_none() {
                    let what = format!("more than {MAX_DIRECTIVES} directives");
                    problems.add(number, 0, 3, what, "fewer: stage directories or lists");
                    return directives;
                }
                let is_bb = line.starts_with(b"#BB");
                match directives.last_mut() {
                    Some(last) if continues.is_some() => {
                        if last.is_bb != is_bb {
                            let what = "a line of another kind continues the directive";
                            let expected = if last.is_bb { "#BB" } else { "#DW" };
                            problems.add(number, 0, 3, what, expected);
                        }
                        last.words.extend(words);
                    }
                    _ => directives.push(Directive { line: number, is_bb, words }),
                }
                continues = more.then_some(number);
            }
        }
    }
    if let Some(from) = continues {
        let end = lines[from].trim_ascii_end().len();
        problems.add(
            from,
            end - 1,
            1,
            "the line is continued, but the script ends",
            "a next line that starts with #DW, or no \\ here",
        );
    }
    directives
}

/// Reports the first line that ends in CR LF: neither the kernel (`#!`) nor a shell takes it.
fn report_crlf(number: usize, line: &[u8], seen: bool, problems: &mut Problems<'_>) -> bool {
    if seen || !line.ends_with(b"\r") {
        return seen;
    }
    problems.add(
        number,
        line.len() - 1,
        1,
        "the line ends in CR LF, as on DOS",
        "LF alone (sed -i 's/\\r$//' SCRIPT)",
    );
    true
}

/// Refuses a directive after the leading block.
fn report_late(number: usize, line: &[u8], end: usize, problems: &mut Problems<'_>) {
    if begins_with_word(line, b"#DW") || begins_with_word(line, b"#BB") {
        let what = format!("a directive after the first command, which is line {}", end + 1);
        problems.add(
            number,
            0,
            3,
            what,
            "all directives above the first line that does not start with # (a scheduler reads \
             no further; in a here-document do not begin the line with it)",
        );
    }
}

/// Tells what a line of the leading block is, and refuses what only looks like a directive.
fn classify(number: usize, line: &[u8], dialect: Dialect, problems: &mut Problems<'_>) -> LineKind {
    let body = line.trim_ascii_start();
    if body.is_empty() {
        return LineKind::Blank;
    }
    let indent = line.len() - body.len();
    let word_len = body.iter().position(|b| is_blank(*b)).unwrap_or(body.len());
    let word = &body[..word_len];
    if indent > 0 && (word == b"#DW" || word == b"#BB") {
        problems.add(number, indent, word_len, "the directive is indented", "# in column 1");
        return LineKind::Comment;
    }
    if line[0] != b'#' {
        return LineKind::Command;
    }
    match word {
        b"#DW" => return LineKind::Directive,
        b"#BB" if dialect == Dialect::Scheduler => return LineKind::Directive,
        b"#BB" => {
            problems.add(
                number,
                0,
                3,
                "#BB lines (persistent buffers) need a scheduler",
                "#DW jobdw type=scratch, a buffer that lives as long as the job",
            );
            return LineKind::Comment;
        }
        b"#BB_LUA" => {
            problems.add(number, 0, word_len, "#BB_LUA is another system's directive", "#DW");
            return LineKind::Comment;
        }
        _ => {}
    }
    if word.starts_with(b"#DW") {
        let what = format!("{:?} is no directive", printable_bytes(word));
        problems.add(number, 0, word_len, what, "#DW and a blank");
    } else if word.eq_ignore_ascii_case(b"#DW") {
        let next = body[word_len..].trim_ascii_start();
        let next = &next[..next.iter().position(|b| is_blank(*b)).unwrap_or(next.len())];
        if directive::is_command(next) {
            problems.add(number, 0, word_len, "the directive is not in capitals", "#DW");
        }
    }
    LineKind::Comment
}

/// Splits what follows `#DW` into words; true if the directive goes on in the next line.
fn split_words(number: usize, line: &[u8], problems: &mut Problems<'_>) -> (Vec<Word>, bool) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let trimmed = line.trim_ascii_end();
    let (body, more) = match trimmed.strip_suffix(b"\\") {
        Some(body) => (body, true),
        None => (line, false),
    };
    if more && trimmed.len() < line.len() {
        problems.add(
            number,
            body.len(),
            1,
            "a blank follows the \\ that is to continue the line",
            "the end of the line right after \\",
        );
    } else if more && body.last().is_some_and(|b| !is_blank(*b)) {
        problems.add(
            number,
            body.len(),
            1,
            "no blank before the \\ that continues the line",
            "a blank before it: a word cannot go on in the next line",
        );
    }
    let mut words = Vec::new();
    let mut at = b"#DW".len();
    while at < body.len() {
        if is_blank(body[at]) {
            at += 1;
            continue;
        }
        let len = body[at..].iter().position(|b| is_blank(*b)).unwrap_or(body.len() - at);
        words.push(Word { line: number, start: at, bytes: body[at..at + len].to_vec() });
        at += len;
    }
    (words, more)
}
