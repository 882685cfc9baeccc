//! `dwstat`: the tables that users of DataWarp know, and `scontrol show bbstat`.
//! Caller: the front.

use super::answers::{self, Answers, Pool};
use super::refusal::{Done, Refusal};
use super::session::{Session, SessionKind, Sessions};
use forebay_proto::size::format_bytes;

/// The tables, in the order of `most` and `all`.
const TABLES: [&str; 5] = ["pools", "sessions", "instances", "configurations", "nodes"];
/// What `dwstat` without words shows.
const MOST: usize = 4;

/// The tables of a site.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    sessions: &'a Sessions,
    answers: Answers<'a>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(sessions: &'a Sessions, answers: Answers<'a>) -> Tables<'a> {
        Tables { sessions, answers }
    }

    /// The tables that the words name; of no word: most of them.
    ///
    /// # Errors
    /// If a word names no table, or the servers of the pools have never answered.
    pub fn text(&self, words: &[String]) -> Done {
        let wanted = wanted(words)?;
        let sessions = self.sessions.list()?;
        let mut text = Vec::new();
        for table in wanted {
            let rows = match table {
                "pools" => pool_rows(&self.pools()?),
                "sessions" => session_rows(&sessions),
                "instances" => instance_rows(&sessions),
                "configurations" => configuration_rows(&sessions),
                _ => node_rows(&sessions),
            };
            text.push(laid_out(&rows));
        }
        Ok(text.join("\n\n"))
    }

    fn pools(&self) -> Result<Vec<Pool>, Refusal> {
        // Where the servers do not answer, what they said last is better than nothing.
        if self.answers.pools().is_err() && self.answers.last_pools().is_empty() {
            return Err(Refusal::new("the servers of the pools do not answer"));
        }
        Ok(self.answers.last_pools())
    }
}

/// The tables that the words name, in the order of the words.
fn wanted(words: &[String]) -> Result<Vec<&str>, Refusal> {
    let mut wanted = Vec::new();
    // Whether numbers have units is not a choice here.
    let words = words.iter().filter(|word| !matches!(word.as_str(), "-H" | "-b" | "--no-heading"));
    for word in words {
        match word.as_str() {
            "most" => wanted.extend(&TABLES[..MOST]),
            "all" => wanted.extend(&TABLES),
            table if TABLES.contains(&table) => wanted.push(table),
            other => {
                let known = TABLES.join(", ");
                return Err(Refusal::new(&format!(
                    "{other:?} is no table (expected most, all, {known})"
                )));
            }
        }
    }
    if wanted.is_empty() {
        wanted.extend(&TABLES[..MOST]);
    }
    Ok(wanted)
}

fn pool_rows(pools: &[Pool]) -> Vec<Vec<String>> {
    let head = ["pool", "units", "quantity", "free", "gran"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    rows.extend(pools.iter().map(|pool| {
        vec![
            pool.id.clone(),
            pool.units.clone(),
            format_bytes(pool.total_bytes()),
            format_bytes(pool.granularity.saturating_mul(pool.free)),
            format_bytes(pool.granularity),
        ]
    }));
    rows
}

/// `C` created, `A` active (mounted), `P` persistent, `D` to be destroyed, in five places.
fn state(session: &Session) -> String {
    let mounted = session.nodes.iter().any(|node| node.mounted);
    let made = session.made || session.buffer.is_none();
    let persistent = session.kind == SessionKind::Persistent;
    let flag = |on: bool, letter: char| if on { letter } else { '-' };
    [flag(made, 'C'), flag(mounted, 'A'), flag(persistent, 'P'), '-', '-'].iter().collect()
}

fn session_rows(sessions: &[Session]) -> Vec<Vec<String>> {
    let head = ["sess", "state", "token", "creator", "owner", "created", "expiration", "nodes"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    rows.extend(sessions.iter().map(|session| {
        let creator = match session.kind {
            SessionKind::Job => "SLURM",
            SessionKind::Persistent => "CLI",
        };
        vec![
            answers::id(session).to_string(),
            state(session),
            session.token.to_string(),
            creator.into(),
            session.uid.to_string(),
            session.created_s.to_string(),
            "never".into(),
            session.nodes.len().to_string(),
        ]
    }));
    rows
}

fn with_buffer(sessions: &[Session]) -> impl Iterator<Item = (&Session, String)> {
    sessions.iter().filter_map(|session| Some((session, session.buffer.as_ref()?.to_string())))
}

fn instance_rows(sessions: &[Session]) -> Vec<Vec<String>> {
    let head = ["inst", "state", "sess", "bytes", "pool", "label", "public"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    rows.extend(with_buffer(sessions).map(|(session, buffer)| {
        vec![
            answers::id(session).to_string(),
            state(session),
            answers::id(session).to_string(),
            format_bytes(session.capacity_bytes),
            session.pool.clone(),
            buffer,
            (session.kind == SessionKind::Persistent).to_string(),
        ]
    }));
    // Swap space lies on the nodes, in no pool.
    rows.extend(sessions.iter().filter(|session| session.swap_bytes_per_node() > 0).map(
        |session| {
            let nodes = session.nodes.iter().filter(|node| node.mounted).count() as u64;
            vec![
                answers::id(session).to_string(),
                state(session),
                answers::id(session).to_string(),
                format_bytes(session.swap_bytes_per_node().saturating_mul(nodes)),
                "-".into(),
                format!("swap of {} on {nodes} nodes", format_bytes(session.swap_bytes_per_node())),
                false.to_string(),
            ]
        },
    ));
    rows
}

fn configuration_rows(sessions: &[Session]) -> Vec<Vec<String>> {
    let head = ["conf", "state", "inst", "type", "activs"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    rows.extend(with_buffer(sessions).map(|(session, _)| {
        let active = session.nodes.iter().filter(|node| node.mounted).count();
        vec![
            answers::id(session).to_string(),
            state(session),
            answers::id(session).to_string(),
            if session.is_cache() { "cache" } else { "scratch" }.into(),
            active.to_string(),
        ]
    }));
    rows
}

fn node_rows(sessions: &[Session]) -> Vec<Vec<String>> {
    let mut rows = vec![["node", "sess", "mounted"].map(str::to_string).to_vec()];
    for session in sessions {
        rows.extend(session.nodes.iter().map(|node| {
            vec![node.name.clone(), answers::id(session).to_string(), node.mounted.to_string()]
        }));
    }
    rows
}

/// Columns as wide as their widest cell.
fn laid_out(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join(" ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
