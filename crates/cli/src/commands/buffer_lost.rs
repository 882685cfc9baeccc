//! `forebay buffer lost`: the paths that a buffer has lost with servers that are gone for good. Page by
//! page, each printed as it comes, so that any number of paths takes no more memory.

use crate::args::BufferLostArgs;
use crate::failure::{EXIT_OK, Outcome, visible};
use crate::servers::Server;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::lost::{Lost, LostPath};
use forebay_proto::size::files_text;
use std::io::{BufWriter, Write};

/// Runs the command.
pub fn run(args: &BufferLostArgs) -> Outcome {
    let mut server = Server::connect(&args.at, Some(&args.name))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut sum = Sum::default();
    let mut from = None;
    loop {
        let request = LedgerRequest::Lost { name: args.name.clone(), from };
        let LedgerReply::Lost(page) = server.ask(&request)? else {
            return Err(server.unexpected().into());
        };
        for path in &page.paths {
            match path.lost {
                Lost::Data => sum.data += 1,
                Lost::Names => sum.names += 1,
                Lost::Path => sum.paths += 1,
                Lost::Unseen => sum.unseen += 1,
            }
            write_path(&mut out, path, args.json)?;
        }
        out.flush()?;
        sum.links += page.links;
        sum.names_seen += page.names_seen;
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    if !args.json {
        eprintln!("{}", sum.in_words());
    }
    Ok(EXIT_OK)
}

fn write_path(out: &mut impl Write, path: &LostPath, json: bool) -> anyhow::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, path)?;
        return Ok(out.write_all(b"\n")?);
    }
    Ok(writeln!(out, "{:<6} {}", path.lost.name(), visible(&path.path.to_string()))?)
}

/// What the list had.
#[derive(Default)]
struct Sum {
    data: u64,
    names: u64,
    paths: u64,
    unseen: u64,
    /// Names that the files on the servers that are left have, and how many of them were found.
    links: u64,
    names_seen: u64,
}

impl Sum {
    fn in_words(&self) -> String {
        let mut text = match (self.data, self.names) {
            (0, 0) if self.paths == 0 => "nothing is lost".to_string(),
            (0, 0) => "lost: no files and no directories".to_string(),
            (files, 0) => format!("lost: {}", files_text(files)),
            (0, dirs) => format!("lost: {}", lost_text(dirs)),
            (files, dirs) => format!("lost: {}, and {}", files_text(files), lost_text(dirs)),
        };
        if self.paths > 0 {
            text += &format!(
                "; {} that are there cannot be reached: below ?NUMBER, a directory whose own name is lost",
                self.paths
            );
        }
        let nameless = self.links.saturating_sub(self.names_seen);
        if self.unseen > 0 {
            text += &format!("; you may not look into {}", directories_text(self.unseen));
        } else if nameless > 0 {
            text += &format!(
                "; {nameless} more names of files whose data is there were in lost directories, and are unknown"
            );
        }
        if self.names > 0 {
            text += "; other content of those directories, on the lost servers, is unknown";
        }
        text
    }
}

/// `1 directory`, `2 directories`.
fn directories_text(count: u64) -> String {
    format!("{count} {}", if count == 1 { "directory" } else { "directories" })
}

fn lost_text(dirs: u64) -> String {
    format!(
        "{} with the names in {}",
        directories_text(dirs),
        if dirs == 1 { "it" } else { "them" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::control::PathBytes;

    #[test]
    fn paths_are_one_a_line() {
        let path = LostPath { path: PathBytes::new(b"/a\nb"), lost: Lost::Data };
        let line = |json| {
            let mut out = Vec::new();
            write_path(&mut out, &path, json).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(line(false), "data   /a\\nb\n");
        assert_eq!(line(true), "{\"path\":\"/a\\nb\",\"lost_kind\":\"data\"}\n");
        let sum = Sum { data: 2, unseen: 1, links: 9, ..Sum::default() };
        assert_eq!(sum.in_words(), "lost: 2 files; you may not look into 1 directory");
        assert_eq!(Sum::default().in_words(), "nothing is lost");
        let sum = Sum { names: 1, paths: 4, links: 7, names_seen: 5, ..Sum::default() };
        let words = sum.in_words();
        assert!(
            words.contains("1 directory with the names in it")
                && words.contains("4 that are there"),
            "{words}"
        );
        assert!(words.contains("2 more names"), "{words}");
    }
}
