//! `forebay buffer lost`: the paths that a buffer has lost with servers that are gone for good. Page by
//! page, each printed as it comes, so that any number of paths takes no more memory.

use crate::args::BufferLostArgs;
use crate::failure::{EXIT_OK, Outcome, visible};
use crate::servers::Server;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest};
use forebay_proto::net::lost::{Lost, LostPath};
use std::io::{BufWriter, Write};

/// Runs the command.
pub fn run(args: &BufferLostArgs) -> Outcome {
    let mut server = Server::connect(&args.at, Some(&args.name))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let (mut data, mut names, mut unseen) = (0u64, 0u64, 0u64);
    let mut from = None;
    loop {
        let request = LedgerRequest::Lost { name: args.name.clone(), from };
        let LedgerReply::Lost(page) = server.ask(&request)? else {
            return Err(server.unexpected().into());
        };
        for path in &page.paths {
            match path.lost {
                Lost::Data => data += 1,
                Lost::Names => names += 1,
                Lost::Unseen => unseen += 1,
            }
            write_path(&mut out, path, args.json)?;
        }
        out.flush()?;
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    if !args.json {
        eprintln!("{}", summary(data, names, unseen));
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

fn summary(data: u64, names: u64, unseen: u64) -> String {
    let mut text = match (data, names) {
        (0, 0) => "nothing is lost".to_string(),
        (files, 0) => format!("lost: {files} files"),
        (0, dirs) => format!("lost: {dirs} directories with all below them"),
        (files, dirs) => {
            format!("lost: {files} files, and {dirs} directories with all below them")
        }
    };
    if unseen > 0 {
        text += &format!("; {unseen} directories may not be looked into by you");
    }
    text
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
        assert_eq!(line(true), "{\"path\":\"/a\\nb\",\"lost\":\"data\"}\n");
        assert_eq!(summary(2, 0, 1), "lost: 2 files; 1 directories may not be looked into by you");
        assert_eq!(summary(0, 0, 0), "nothing is lost");
    }
}
