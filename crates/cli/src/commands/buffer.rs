//! `forebay buffer create|list|status|extend|destroy`: buffers of a server, for any node. `lost` is in
//! `buffer_lost`.

use super::cached::Cached;
use super::{cache, pool};
use crate::args::{
    AccessArg, BufferCommand, BufferCreateArgs, BufferDestroyArgs, BufferExtendArgs,
    BufferListArgs, BufferStatusArgs, CacheHowArgs, ConsistencyArg, LayoutArg, ServerArgs, TypeArg,
    WritesArg,
};
use crate::failure::{EXIT_OK, Outcome, Usage, print_json, visible};
use crate::json;
use crate::secrets;
use crate::servers::{self, Server};
use forebay_client::WaitFor;
use forebay_proto::at_risk;
use forebay_proto::control::{ControlError, PathBytes, PlanStatus, StoreKind};
use forebay_proto::layout::Logs;
use forebay_proto::net::ledger::{
    AccessMode, BufferName, BufferPart, BufferSpec, BufferState, BufferType, CacheSpec,
    LedgerReply, LedgerRequest, MountedClient, PartState, ServedBuffer, Token,
};
use forebay_proto::size::format_bytes;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most mounts that are listed.
const CLIENTS_SHOWN: usize = 100;
/// Attempts to get an answer to a creation.
const CREATE_TRIES: u32 = 3;
/// Pause between two of them.
const CREATE_PAUSE: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(args: BufferCommand) -> Outcome {
    match args {
        BufferCommand::Create(args) => create(&args),
        BufferCommand::List(args) => list(&args),
        BufferCommand::Status(args) => status(&args),
        BufferCommand::Lost(args) => super::buffer_lost::run(&args),
        BufferCommand::Extend(args) => extend(&args),
        BufferCommand::Destroy(args) => destroy(&args),
    }
}

impl From<AccessArg> for AccessMode {
    fn from(access: AccessArg) -> AccessMode {
        match access {
            AccessArg::Striped => AccessMode::Striped,
            AccessArg::Private => AccessMode::Private,
            AccessArg::Ldbalance => AccessMode::Ldbalance,
        }
    }
}

fn create(args: &BufferCreateArgs) -> Outcome {
    let token = match &args.token {
        Some(token) => Token(token.clone()),
        None => forebay_net::random::token()?,
    };
    let spec = BufferSpec {
        name: args.name.clone(),
        capacity_bytes: args.capacity,
        buffer_type: args.kind.into(),
        access: args.access.into(),
        servers: args.servers,
        store_kind: args.store.map(Into::into),
        log: logs(args)?,
        cache: cache_spec(args)?,
    };
    // Before the buffer is made: it must be possible to keep its secret.
    let path = secrets::buffer_path(&args.name)?;
    let (buffer, secret) = ask_until_answered(&args.at, &token, &spec)?;
    if let Err(error) = secrets::keep_buffer(&args.name, &secret) {
        let (name, at) = (&args.name, servers::flag(&args.at));
        let kept =
            format!("the buffer was made; `forebay buffer destroy {name} {at}` removes it again");
        return Err(error.hint(&kept).into());
    }
    if args.json {
        let mut made = json::buffer(&buffer)?;
        made["secret_file"] = json!(PathBytes::new(path.as_os_str().as_bytes()));
        print_json(&made)?;
        return Ok(EXIT_OK);
    }
    println!(
        "buffer {}: {}, {}{}, secret in {}",
        args.name,
        format_bytes(buffer.capacity_bytes),
        kind_name(buffer.store_kind),
        volatile(&buffer),
        visible(&path.display().to_string()),
    );
    Ok(EXIT_OK)
}

impl From<TypeArg> for BufferType {
    fn from(kind: TypeArg) -> BufferType {
        match kind {
            TypeArg::Scratch | TypeArg::Log => BufferType::Scratch,
            TypeArg::Cache => BufferType::Cache,
        }
    }
}

/// How new files are written.
fn logs(args: &BufferCreateArgs) -> anyhow::Result<Logs> {
    let layout = if args.kind == TypeArg::Log { LayoutArg::Log } else { args.layout };
    match (layout, args.consistency, args.kind) {
        (LayoutArg::Log, _, TypeArg::Cache) => {
            Err(Usage("files of a cache have no layout: --layout log is for --type scratch".into())
                .into())
        }
        (LayoutArg::Plain, Some(_), _) => {
            Err(Usage("--consistency is for files in logs: give --type log too".into()).into())
        }
        (LayoutArg::Plain, None, _) => Ok(Logs::Off),
        (LayoutArg::Log, Some(ConsistencyArg::Strict), _) => Ok(Logs::Strict),
        (LayoutArg::Log, _, _) => Ok(Logs::Commit),
    }
}

/// What a cache is to show.
fn cache_spec(args: &BufferCreateArgs) -> anyhow::Result<Option<CacheSpec>> {
    match (args.kind, &args.pfs) {
        (TypeArg::Scratch | TypeArg::Log, None) => Ok(None),
        (TypeArg::Scratch | TypeArg::Log, Some(_)) => {
            Err(Usage("--pfs is what a cache shows: give --type cache".into()).into())
        }
        (TypeArg::Cache, None) => {
            Err(Usage("what is it to cache? Give --pfs PFSDIR".into()).into())
        }
        (TypeArg::Cache, Some(pfs)) => Ok(Some(how(pfs, &args.how))),
    }
}

/// How a directory of the PFS is to be cached.
pub fn how(pfs: &Path, how: &CacheHowArgs) -> CacheSpec {
    CacheSpec {
        pfs: PathBytes::new(pfs.as_os_str().as_bytes()),
        ttl_ms: (how.pfs_ttl * 1000.0) as u64,
        writes_by_kernel: how.writes == WritesArg::Auto,
        policy: how.drain.to_string(),
        verify: how.verify.into(),
        rate_bytes_per_s: how.drain_rate.unwrap_or(0),
    }
}

/// Without the answer there is no secret: a connection that breaks is made anew, and the same
/// token gives the same buffer.
pub fn ask_until_answered(
    at: &ServerArgs,
    token: &Token,
    spec: &BufferSpec,
) -> anyhow::Result<(Box<ServedBuffer>, String)> {
    let mut tries = 1;
    loop {
        let mut server = Server::connect(at, None)?;
        let request = LedgerRequest::Create { token: token.clone(), spec: spec.clone() };
        match server.ask(&request) {
            Ok(LedgerReply::Created { buffer, secret }) => return Ok((buffer, secret)),
            Ok(_) => return Err(server.unexpected().into()),
            Err(error) if no_answer(error.errno) => {
                if tries == CREATE_TRIES {
                    let hint = format!(
                        "the buffer may have been made: the same command with --token {} gives it",
                        token.0
                    );
                    return Err(error.hint(&hint).into());
                }
                tries += 1;
                std::thread::sleep(CREATE_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The connection was lost while the server worked.
fn no_answer(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT))
}

fn list(args: &BufferListArgs) -> Outcome {
    let mut server = Server::connect(&args.at, None)?;
    let LedgerReply::Buffers(buffers) = server.ask(&LedgerRequest::List)? else {
        return Err(server.unexpected().into());
    };
    let pool = server.pool()?;
    if args.json {
        let buffers: Vec<_> = buffers.iter().map(json::buffer).collect::<Result<_, _>>()?;
        print_json(&json!({ "buffers": buffers, "pool": json::pool(&pool)? }))?;
        return Ok(EXIT_OK);
    }
    print!("{}", table(&buffers));
    print!("{}", pool::lines(&pool));
    Ok(EXIT_OK)
}

fn status(args: &BufferStatusArgs) -> Outcome {
    let mut server = Server::connect(&args.at, Some(&args.name))?;
    let buffer = server.buffer(&LedgerRequest::Status { name: args.name.clone() })?;
    match args.json {
        true => print_json(&json::buffer(&buffer)?)?,
        false => print!("{}", describe(&buffer)),
    }
    Ok(EXIT_OK)
}

fn extend(args: &BufferExtendArgs) -> Outcome {
    let mut server = Server::connect(&args.at, Some(&args.name))?;
    let buffer = server.buffer(&LedgerRequest::Extend {
        name: args.name.clone(),
        capacity_bytes: args.capacity,
    })?;
    match args.json {
        true => print_json(&json::buffer(&buffer)?)?,
        false => println!("buffer {}: {}", args.name, format_bytes(buffer.capacity_bytes)),
    }
    Ok(EXIT_OK)
}

fn destroy(args: &BufferDestroyArgs) -> Outcome {
    let mut server = Server::connect(&args.at, Some(&args.name))?;
    if !args.discard_dirty && is_cache(&mut server, &args.name)? {
        drain_first(&args.name, args)?;
    }
    if !args.force {
        must_lose_nothing(&mut server, args)?;
    }
    let request = LedgerRequest::Destroy {
        name: args.name.clone(),
        force: args.force,
        discard: args.discard_dirty,
    };
    match server.ask(&request)? {
        LedgerReply::Ok => (),
        _ => return Err(server.unexpected().into()),
    }
    secrets::forget_buffer(&args.name)?;
    if args.json {
        print_json(&json!({ "buffer": args.name, "state": "destroyed" }))?;
    }
    Ok(EXIT_OK)
}

/// Refused by name are plans that have not ended, and failed ones whose results may be in the buffer only.
fn must_lose_nothing(server: &mut Server, args: &BufferDestroyArgs) -> Result<(), ControlError> {
    let name = &args.name;
    // A buffer that is not served, or is not there, has its own answer to the destruction.
    let Ok(LedgerReply::Plans(plans)) =
        server.ask(&LedgerRequest::StageList { name: name.clone() })
    else {
        return Ok(());
    };
    let flags = format!("--buffer {name}: {}", servers::flag(&args.at));
    let refused = |plans: &[&PlanStatus], errno, hint: &str| {
        let numbers = at_risk::numbers(plans);
        let error = ControlError::new("destroy the buffer", None, &at_risk::describe_all(plans));
        let hint = hint.replace("{plans}", &format!("{numbers} {flags}"));
        Err(error.errno(errno).hint(&hint))
    };
    let unfinished = at_risk::unfinished(&plans);
    if !unfinished.is_empty() {
        let hint = "wait for it: `forebay stage wait {plans}`, or give it up: `forebay stage cancel {plans}`; \
                    --force loses what is not copied";
        return refused(&unfinished, libc::EBUSY, hint);
    }
    let failed = at_risk::failed(&plans, |path| {
        let request = LedgerRequest::FileStatus { name: name.clone(), path: path.clone() };
        server.ask(&request).err().and_then(|error| error.errno) != Some(libc::ENOENT)
    });
    match failed.first() {
        None => Ok(()),
        Some(first) => {
            let hint = "the PFS may not have it, and the buffer would go with it. `forebay stage status {plans}` tells \
                        why; stage it out again; --force loses it";
            let hint = hint.replace("{plans}", &format!("{} {flags}", first.plan));
            refused(&failed, libc::EIO, &hint)
        }
    }
}

/// A buffer that is not there is none.
fn is_cache(server: &mut Server, name: &BufferName) -> anyhow::Result<bool> {
    match server.buffer(&LedgerRequest::Status { name: name.clone() }) {
        Ok(buffer) => Ok(buffer.spec.cache.is_some() && buffer.state == BufferState::Ready),
        Err(error) if error.errno == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// What only the buffer has goes to the PFS, with progress.
fn drain_first(name: &BufferName, args: &BufferDestroyArgs) -> anyhow::Result<()> {
    let root = PathBuf::from(format!("{name}:/"));
    let Some((mut cached, path)) = Cached::named(&root, &args.at)? else { return Ok(()) };
    let waited = cache::drain(&mut cached, &path, None, (WaitFor::Clean, true), args.json)?;
    cache::done(&waited.state, &root, "destroy").map_err(|error| {
        let hint = error.hint.clone().unwrap_or_default();
        error.hint(&format!("{hint}; --discard-dirty loses it"))
    })?;
    Ok(())
}

fn kind_name(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::Tmpfs => "tmpfs",
        StoreKind::LoopXfs => "XFS image",
        StoreKind::Directory => "directory",
    }
}

fn state_name(state: BufferState) -> &'static str {
    match state {
        BufferState::Creating => "creating",
        BufferState::Ready => "ready",
        BufferState::Destroying => "destroying",
        BufferState::Degraded => "degraded",
    }
}

fn volatile(buffer: &ServedBuffer) -> &'static str {
    if buffer.volatile { " (volatile)" } else { "" }
}

fn table(buffers: &[ServedBuffer]) -> String {
    let head = ["NAME", "STATE", "CAPACITY", "USED", "STORE", "OWNER", "MOUNTS"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(buffers.iter().map(|buffer| {
        [
            buffer.spec.name.to_string(),
            state_name(buffer.state).into(),
            format_bytes(buffer.capacity_bytes),
            used_text(buffer),
            kind_name(buffer.store_kind).into(),
            buffer.owner_uid.to_string(),
            buffer.mounts.to_string(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 7] = std::array::from_fn(width);
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
        })
        .collect()
}

/// What is used, as far as its servers tell.
fn used_text(buffer: &ServedBuffer) -> String {
    let used = format_bytes(buffer.used_bytes);
    if buffer.is_partial() { format!("at least {used}") } else { used }
}

pub(super) fn describe(buffer: &ServedBuffer) -> String {
    let capacity = format_bytes(buffer.capacity_bytes);
    let percent = 100.0 * buffer.used_bytes as f64 / buffer.capacity_bytes.max(1) as f64;
    let access = match buffer.spec.access {
        AccessMode::Striped => "striped",
        AccessMode::Private => "private",
        AccessMode::Ldbalance => "ldbalance",
    };
    let kind = match buffer.spec.buffer_type {
        BufferType::Scratch => "scratch",
        BufferType::Cache => "cache",
    };
    let warning = match buffer.volatile {
        true => ", volatile: lost at a power cut or restart of the server's node",
        false => "",
    };
    let mut lines = vec![
        format!("buffer      {} ({kind}, {access})", buffer.spec.name),
        format!("state       {}", state_name(buffer.state)),
        format!("store       {}{warning}", kind_name(buffer.store_kind)),
        match buffer.is_partial() {
            true => format!("capacity    {capacity}, {} used", used_text(buffer)),
            false => format!(
                "capacity    {capacity}, {} used ({percent:.1} %), {} inodes",
                used_text(buffer),
                buffer.inodes
            ),
        },
        format!("owner       user {}", buffer.owner_uid),
    ];
    if let Some(cache) = &buffer.spec.cache {
        lines.push(format!("pfs         {}", visible(&cache.pfs.to_string())));
        lines.push(format!("drain       {}", visible(&cache.policy)));
    }
    match &buffer.parts[..] {
        [_, _, ..] => lines.extend(buffer.parts.iter().map(part_text)),
        _ => lines.push(format!("servers     {}", buffer.servers.join(", "))),
    }
    if let Some(why) = &buffer.why {
        lines.insert(2, format!("why         {}", visible(why)));
    }
    if buffer.clients.is_empty() {
        lines.push("mounts      none".into());
    }
    let (shown, more) = buffer.clients.split_at(buffer.clients.len().min(CLIENTS_SHOWN));
    for (number, client) in shown.iter().enumerate() {
        let label = if number == 0 { "mounts" } else { "" };
        lines.push(format!("{label:<11} {}", client_text(client)));
    }
    let more = (buffer.mounts as usize).max(shown.len() + more.len()) - shown.len();
    if more > 0 {
        lines.push(format!("            and {more} more"));
    }
    lines.push(format!("uuid        {}", buffer.uuid));
    lines.join("\n") + "\n"
}

fn part_text(part: &BufferPart) -> String {
    let state = match part.state {
        PartState::Ready => "ready",
        PartState::Away => "does not answer",
        PartState::Faulty => "faulty",
        PartState::Lost => "lost",
    };
    let used = match part.is_told() {
        true => format!(", {} used", format_bytes(part.used_bytes)),
        false => String::new(),
    };
    let capacity = format_bytes(part.capacity_bytes);
    let host = visible(&part.host);
    format!("shard {:<5} {state} on {host}: {capacity}{used}, server {}", part.shard.0, part.server)
}

fn client_text(client: &MountedClient) -> String {
    // Clients renew all the time: a short silence means nothing.
    let silent = match client.silent_s {
        s if s >= 5.0 => format!(", silent for {s:.0} s"),
        _ => String::new(),
    };
    format!("{} (process {}){silent}", visible(&client.host), client.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::net::ledger::{PoolStatus, ServerStatus};
    use forebay_proto::{ServerId, ShardId};

    fn sample(name: &str) -> ServedBuffer {
        let client = |host: &str, silent_s| MountedClient { host: host.into(), pid: 77, silent_s };
        ServedBuffer {
            spec: BufferSpec {
                name: name.parse().unwrap(),
                capacity_bytes: 4 << 30,
                buffer_type: BufferType::Scratch,
                access: AccessMode::Striped,
                servers: 1,
                store_kind: None,
                log: Logs::Off,
                cache: None,
            },
            uuid: "0123456789abcdef0123456789abcdef".into(),
            state: BufferState::Ready,
            why: None,
            owner_uid: 1000,
            capacity_bytes: 4 << 30,
            used_bytes: 1 << 30,
            inodes: 12,
            store_kind: StoreKind::Tmpfs,
            volatile: true,
            servers: vec!["f".repeat(32)],
            parts: Vec::new(),
            mounts: 2,
            clients: vec![client("node1", 0.2), client("node2", 9.4)],
            created_s: 0,
        }
    }

    #[test]
    fn a_buffer_is_described() {
        insta::assert_snapshot!(describe(&sample("run.7")));
    }

    #[test]
    fn the_parts_of_a_buffer_are_described() {
        let part = |shard, host: &str, state| BufferPart {
            shard: ShardId(shard),
            server: ServerId(7 + u128::from(shard)),
            host: host.into(),
            state,
            why: None,
            capacity_bytes: 2 << 30,
            used_bytes: 1 << 30,
        };
        let mut buffer = sample("wide");
        buffer.state = BufferState::Degraded;
        buffer.why = Some("shard 1 on node8: its server does not answer".into());
        buffer.parts = vec![part(0, "node7", PartState::Ready), part(1, "node8", PartState::Away)];
        insta::assert_snapshot!(describe(&buffer));
        // What nobody tells is no number.
        buffer.parts[1].used_bytes = 0;
        let told = json::buffer(&buffer).unwrap();
        assert_eq!(told["parts"][0]["used_bytes"], 1 << 30);
        assert!(told["parts"][1]["used_bytes"].is_null(), "{told}");
        assert_eq!(told["parts"][1]["capacity_bytes"].as_u64(), Some(2 << 30));
        assert!(told["used_bytes"].is_null(), "{told}");
        assert_eq!(told["used_at_least_bytes"], 1 << 30);
        buffer.parts[1].state = PartState::Ready;
        let told = json::buffer(&buffer).unwrap();
        assert_eq!(told["parts"][1]["used_bytes"], 0);
    }

    #[test]
    fn buffers_are_listed_with_what_is_free() {
        let mut gone = sample("a-longer-name");
        gone.state = BufferState::Degraded;
        gone.clients.clear();
        gone.mounts = 0;
        let pool = PoolStatus {
            granularity_bytes: 16 << 20,
            servers: vec![ServerStatus {
                id: "f".repeat(32),
                addresses: vec!["node9:4242".into()],
                host: "node9".into(),
                alive: true,
                leader: true,
                lost: false,
                why: None,
                capacity_bytes: 16 << 30,
                reserved_bytes: 8 << 30,
            }],
        };
        let text = table(&[sample("run.7"), gone]) + &pool::lines(&pool);
        insta::assert_snapshot!(text);
    }
}
