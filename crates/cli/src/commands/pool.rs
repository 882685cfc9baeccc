//! `forebay pool status|forget|leader`: the servers that serve buffers together.

use crate::args::{PoolCommand, PoolForgetArgs, PoolLeaderArgs, PoolStatusArgs};
use crate::failure::{EXIT_OK, Outcome, print_json, visible};
use crate::json;
use crate::servers::Server;
use forebay_proto::net::ledger::{LedgerReply, LedgerRequest, PoolStatus, ServerStatus};
use forebay_proto::size::format_bytes;
use serde_json::json;

/// Runs the command.
pub fn run(args: PoolCommand) -> Outcome {
    match args {
        PoolCommand::Status(args) => status(&args),
        PoolCommand::Forget(args) => forget(&args),
        PoolCommand::Leader(args) => take_over(&args),
    }
}

fn status(args: &PoolStatusArgs) -> Outcome {
    let pool = Server::connect(&args.at, None)?.pool()?;
    match args.json {
        true => print_json(&json::pool(&pool)?)?,
        false => print!("{}", table(&pool)),
    }
    Ok(EXIT_OK)
}

fn forget(args: &PoolForgetArgs) -> Outcome {
    let mut server = Server::connect(&args.at, None)?;
    match server.ask(&LedgerRequest::Forget { server: args.id })? {
        LedgerReply::Ok => (),
        _ => return Err(server.unexpected().into()),
    }
    if args.json {
        print_json(&json!({ "server": args.id, "state": "lost" }))?;
    }
    Ok(EXIT_OK)
}

fn take_over(args: &PoolLeaderArgs) -> Outcome {
    let mut server = Server::connect(&args.at, None)?;
    match server.ask(&LedgerRequest::TakeOver { without: args.without.clone() })? {
        LedgerReply::Ok => (),
        _ => return Err(server.unexpected().into()),
    }
    if args.json {
        let pool = server.pool()?;
        let leader = pool.servers.iter().find(|server| server.leader);
        print_json(&json!({ "server": leader.map(|server| &server.id), "state": "leader" }))?;
    }
    Ok(EXIT_OK)
}

fn state(server: &ServerStatus) -> &'static str {
    match server {
        ServerStatus { lost: true, .. } => "lost",
        ServerStatus { alive: false, .. } => "does not answer",
        ServerStatus { leader: true, .. } => "leader",
        _ => "member",
    }
}

fn free(server: &ServerStatus) -> String {
    match server.alive {
        true => format_bytes(server.capacity_bytes.saturating_sub(server.reserved_bytes)),
        false => "-".into(),
    }
}

fn table(pool: &PoolStatus) -> String {
    let mut text = format!(
        "{:<32}  {:<15}  {:>9}  {:>9}  HOST, ADDRESSES\n",
        "SERVER", "STATE", "FREE", "CAPACITY"
    );
    for server in &pool.servers {
        text += &format!(
            "{}  {:<15}  {:>9}  {:>9}  {}\n",
            server.id,
            state(server),
            free(server),
            format_bytes(server.capacity_bytes),
            visible(&format!("{}, {}", server.host, server.addresses.join(", "))),
        );
    }
    for server in &pool.servers {
        if let Some(why) = &server.why {
            let at = server.addresses.join(", ");
            text += &visible(&format!("server {at} on {} does not answer: {why}", server.host));
            text += "\n";
        }
    }
    text
}

/// One line for each server, below a list of buffers.
pub fn lines(pool: &PoolStatus) -> String {
    let mut text = String::new();
    for server in &pool.servers {
        let free = server.capacity_bytes.saturating_sub(server.reserved_bytes);
        let room = match (server.lost, server.alive) {
            (true, _) => "lost".to_string(),
            (false, false) => match &server.why {
                Some(why) => format!("does not answer: {why}"),
                None => "does not answer".to_string(),
            },
            (false, true) => {
                let (free, all) = (format_bytes(free), format_bytes(server.capacity_bytes));
                format!("{free} of {all} free")
            }
        };
        let at = server.addresses.join(", ");
        text += &visible(&format!("server {at} on {}: {room}", server.host));
        text += "\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_shown_with_their_state() {
        let server = |digit: &str, alive, leader, lost| ServerStatus {
            id: digit.repeat(32),
            addresses: vec![format!("node{digit}:4242")],
            host: format!("node{digit}"),
            alive,
            leader,
            lost,
            why: None,
            capacity_bytes: 16 << 30,
            reserved_bytes: 4 << 30,
        };
        let pool = PoolStatus {
            granularity_bytes: 16 << 20,
            servers: vec![
                server("1", true, true, false),
                server("2", true, false, false),
                server("3", false, false, false),
                server("4", false, false, true),
            ],
        };
        insta::assert_snapshot!(table(&pool) + &lines(&pool));
    }

    #[test]
    fn a_server_that_does_not_answer_is_told_with_the_reason() {
        let why = "its process 7 is stopped (`kill -CONT 7` lets it go on)";
        let silent = ServerStatus {
            id: "3".repeat(32),
            addresses: vec!["node3:4242".into()],
            host: "node3".into(),
            alive: false,
            leader: false,
            lost: false,
            why: Some(why.into()),
            capacity_bytes: 16 << 30,
            reserved_bytes: 0,
        };
        let pool = PoolStatus { granularity_bytes: 16 << 20, servers: vec![silent] };
        let shown = table(&pool);
        assert_eq!(
            shown.lines().last().unwrap(),
            format!("server node3:4242 on node3 does not answer: {why}")
        );
        assert_eq!(lines(&pool), format!("server node3:4242 on node3: does not answer: {why}\n"));
    }
}
