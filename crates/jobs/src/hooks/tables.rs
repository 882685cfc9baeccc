//! `dwstat`: the tables that users of DataWarp know, and `scontrol show bbstat`.

use super::session::{Session, SessionKind};
use super::{Done, Hooks, Refusal, answers};
use forebay_proto::size::format_bytes;

/// The tables, in the order of `most` and `all`.
const TABLES: [&str; 5] = ["pools", "sessions", "instances", "configurations", "nodes"];
/// What `dwstat` without words shows.
const MOST: usize = 4;

impl Hooks<'_> {
    /// The tables that the words name; of no word: most of them.
    pub fn tables(&self, words: &[String]) -> Done {
        let words: Vec<&str> = words
            .iter()
            .map(String::as_str)
            // Whether numbers have units is not a choice here.
            .filter(|word| !matches!(*word, "-H" | "-b" | "--no-heading"))
            .collect();
        let mut wanted = Vec::new();
        for word in &words {
            match *word {
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
        let sessions = self.sessions.list()?;
        let mut text = Vec::new();
        for table in wanted {
            let rows = match table {
                "pools" => self.pool_rows()?,
                "sessions" => session_rows(&sessions),
                "instances" => instance_rows(&sessions),
                "configurations" => configuration_rows(&sessions),
                _ => node_rows(&sessions),
            };
            text.push(laid_out(&rows));
        }
        Ok(text.join("\n\n"))
    }

    fn pool_rows(&self) -> Result<Vec<Vec<String>>, Refusal> {
        let head = ["pool", "units", "quantity", "free", "gran"];
        let mut rows = vec![head.map(str::to_string).to_vec()];
        // Where the servers do not answer, what they said last is better than nothing.
        if self.pools().is_err() && answers::last_pools(self.sessions.dir()).is_empty() {
            return Err(Refusal::new("the servers of the pools do not answer"));
        }
        for pool in answers::last_pools(self.sessions.dir()) {
            rows.push(vec![
                pool.id.clone(),
                pool.units.clone(),
                format_bytes(pool.total_bytes()),
                format_bytes(pool.granularity.saturating_mul(pool.free)),
                format_bytes(pool.granularity),
            ]);
        }
        Ok(rows)
    }
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
