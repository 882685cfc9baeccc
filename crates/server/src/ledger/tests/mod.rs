//! The ledger in one process: what is given, to whom, and what is refused. `kill` kills it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod kill;
mod pool;
mod pool_kill;
mod take_over;
mod take_over_kill;

use super::record::LedgerFile;
use super::*;
use forebay_proto::Caller;
use forebay_proto::control::{
    Direction, PathBytes, PlanState, StageKind, StageOptions, StageSpec, StoreKind, Verify,
};
use forebay_proto::net::ledger::{
    AccessMode, BufferSpec, BufferState, BufferType, LedgerReply, LedgerRequest, MountedClient,
    ServedBuffer as Shown, Token,
};
use forebay_store::flash::Store;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn options(flash: &Path, capacity_bytes: u64) -> LedgerOptions {
    LedgerOptions {
        flash: fs::canonicalize(flash).unwrap(),
        capacity_bytes,
        granularity_bytes: GRANULARITY_BYTES,
        server: ServerOptions::default(),
        key: Secret::from_bytes([7; 32]),
    }
}

fn open(flash: &Path) -> Arc<Ledger> {
    Ledger::open(options(flash, 128 * MIB)).unwrap()
}

fn root() -> Identity {
    Identity::Superuser(Caller::root())
}

fn user(uid: u32) -> Identity {
    Identity::User(Caller { uid, gid: uid, groups: vec![uid], ..Caller::default() })
}

fn name(text: &str) -> BufferName {
    text.parse().unwrap()
}

fn spec(text: &str, capacity_bytes: u64, kind: StoreKind) -> BufferSpec {
    BufferSpec {
        name: name(text),
        capacity_bytes,
        buffer_type: BufferType::Scratch,
        access: AccessMode::Striped,
        servers: 1,
        store_kind: Some(kind),
        log: forebay_proto::layout::Logs::Off,
        cache: None,
    }
}

fn create_as(
    ledger: &Ledger,
    who: &Identity,
    token: &str,
    spec: BufferSpec,
) -> Result<(Shown, String), ControlError> {
    match ledger.answer(who, LedgerRequest::Create { token: Token(token.into()), spec }) {
        LedgerReply::Created { buffer, secret } => Ok((*buffer, secret)),
        LedgerReply::Error(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

fn create(ledger: &Ledger, text: &str, capacity_bytes: u64) -> Result<Shown, ControlError> {
    let spec = spec(text, capacity_bytes, StoreKind::Directory);
    create_as(ledger, &root(), &format!("token-{text}"), spec).map(|(shown, _)| shown)
}

fn destroy(ledger: &Ledger, text: &str, force: bool) -> Result<(), ControlError> {
    ask(ledger, &root(), LedgerRequest::Destroy { name: name(text), force, discard: false })
        .map(drop)
}

fn ask(
    ledger: &Ledger,
    who: &Identity,
    request: LedgerRequest,
) -> Result<LedgerReply, ControlError> {
    match ledger.answer(who, request) {
        LedgerReply::Error(error) => Err(error),
        reply => Ok(reply),
    }
}

fn status(ledger: &Ledger, who: &Identity, text: &str) -> Result<Shown, ControlError> {
    match ask(ledger, who, LedgerRequest::Status { name: name(text) })? {
        LedgerReply::Buffer(shown) => Ok(*shown),
        other => panic!("{other:?}"),
    }
}

fn list(ledger: &Ledger, who: &Identity) -> Vec<String> {
    match ask(ledger, who, LedgerRequest::List).unwrap() {
        LedgerReply::Buffers(all) => all.iter().map(|b| b.spec.name.to_string()).collect(),
        other => panic!("{other:?}"),
    }
}

fn reserved(ledger: &Ledger) -> u64 {
    ledger.servers.status(GRANULARITY_BYTES).servers[0].reserved_bytes
}

#[track_caller]
fn fails<T>(result: Result<T, ControlError>, errno: i32, said: &str) {
    let Err(error) = result else { panic!("it was done: {said}") };
    assert_eq!(error.errno, Some(errno), "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn a_buffer_is_made_found_again_and_destroyed() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    let (id, made) = (ledger.server_id(), create(&ledger, "a", 20 * MIB).unwrap());
    assert_eq!((made.state, made.capacity_bytes), (BufferState::Ready, 32 * MIB));
    assert_eq!(made.servers, [id.to_string()]);
    assert_eq!(create(&ledger, "a", 20 * MIB).unwrap().uuid, made.uuid, "twice is once");
    fails(create(&ledger, "a", 21 * MIB), libc::EEXIST, "something else");
    let other = create_as(&ledger, &root(), "other", spec("a", 20 * MIB, StoreKind::Directory));
    fails(other, libc::EEXIST, "of this name already");
    assert_eq!(reserved(&ledger), 32 * MIB);

    fails(Ledger::open(options(flash.path(), 128 * MIB)).map(drop), libc::EBUSY, "in use");
    let first = ledger.incarnation();
    ledger.close().unwrap();
    fails(create(&ledger, "b", MIB), libc::ESHUTDOWN, "ending");
    drop(ledger);

    let ledger = open(flash.path());
    assert_eq!(ledger.server_id(), id);
    assert!(ledger.incarnation() > first);
    let found = status(&ledger, &root(), "a").unwrap();
    assert_eq!((found.uuid, found.state), (made.uuid, BufferState::Ready));
    assert!(ledger.buffer(&name("a")).unwrap().server.recovery() == Default::default());
    destroy(&ledger, "a", false).unwrap();
    destroy(&ledger, "a", false).unwrap();
    assert!(ledger.buffer(&name("a")).is_none() && reserved(&ledger) == 0);
    fails(status(&ledger, &root(), "a"), libc::ENOENT, "none of this name");
    let left: Vec<_> =
        fs::read_dir(flash.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [DIR_NAME]);
}

/// A round, or an answer to another server, that is still under way.
#[test]
fn nothing_is_put_on_record_after_the_end() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    let dir = flash.path().join(DIR_NAME);
    let change = || {
        let mut kept = ledger.record.lock();
        ledger.record.commit_freeing(&mut kept, |file| file.epoch += 1)
    };
    change().unwrap();
    ledger.close().unwrap();
    let last = LedgerFile::load(&dir).unwrap();
    fails(change(), libc::ESHUTDOWN, "ending");
    assert_eq!(LedgerFile::load(&dir).unwrap(), last);
    assert_eq!(ledger.record.lock().epoch, last.epoch);
}

#[test]
fn no_more_is_given_than_there_is() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    create(&ledger, "a", 100 * MIB).unwrap();
    let message = create(&ledger, "b", 17 * MIB).unwrap_err();
    assert_eq!(message.errno, Some(libc::ENOSPC));
    let text = message.to_string();
    assert!(text.contains("33554432") && text.contains("16777216"), "{text}");
    create(&ledger, "b", 16 * MIB).unwrap();
    let extend = |capacity_bytes| {
        ask(&ledger, &root(), LedgerRequest::Extend { name: name("b"), capacity_bytes })
    };
    fails(extend(17 * MIB), libc::ENOSPC, "the pool has 0 bytes");
    destroy(&ledger, "a", false).unwrap();
    extend(30 * MIB).unwrap();
    extend(32 * MIB).unwrap();
    fails(extend(16 * MIB), libc::EINVAL, "only grows");
    assert_eq!(reserved(&ledger), 32 * MIB);
    assert_eq!(status(&ledger, &root(), "b").unwrap().capacity_bytes, 32 * MIB);
    let served = ledger.buffer(&name("b")).unwrap();
    assert_eq!(served.server.namespace().space().unwrap(), (0, 32 * MIB));
    for bad in [0, u64::MAX, 1 << 63] {
        fails(create(&ledger, "c", bad), libc::EINVAL, "no capacity");
    }
    assert!(create(&ledger, "c", 1 << 62).unwrap_err().errno == Some(libc::ENOSPC));
}

#[test]
fn a_failed_creation_leaves_nothing() {
    // On a disk: there is no tmpfs there.
    let flash = tempfile::tempdir().unwrap();
    let ledger = open(flash.path());
    let tmpfs = spec("a", 16 * MIB, StoreKind::Tmpfs);
    let error = create_as(&ledger, &root(), "t", tmpfs).unwrap_err();
    assert!(error.to_string().contains("needs FLASH on tmpfs"), "{error}");
    assert_eq!((reserved(&ledger), list(&ledger, &root()).len()), (0, 0));
    assert_eq!(fs::read_dir(flash.path()).unwrap().count(), 1);
    let mut wide = spec("a", 16 * MIB, StoreKind::Directory);
    wide.servers = 2;
    fails(create_as(&ledger, &root(), "t", wide), libc::EINVAL, "the pool has 1");
    create(&ledger, "a", 16 * MIB).unwrap();
}

#[test]
fn everyone_has_their_own_and_nobody_else_s() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    let (ann, bob) = (user(4001), user(4002));
    let make = |who: &Identity, text: &str| {
        create_as(&ledger, who, &format!("t-{text}"), spec(text, MIB, StoreKind::Directory))
    };
    let (made, secret) = make(&ann, "ann").unwrap();
    assert_eq!(made.owner_uid, 4001);
    make(&bob, "bob").unwrap();
    assert_eq!(list(&ledger, &ann), ["ann"]);
    assert_eq!(list(&ledger, &root()), ["ann", "bob"]);
    fails(make(&bob, "ann"), libc::EEXIST, "of this name already");
    fails(status(&ledger, &bob, "ann"), libc::EPERM, "another user");
    let destroy = |who: &Identity| {
        ask(&ledger, who, LedgerRequest::Destroy { name: name("ann"), force: true, discard: false })
    };
    fails(destroy(&bob), libc::EPERM, "another user");
    let extend = LedgerRequest::Extend { name: name("ann"), capacity_bytes: 32 * MIB };
    fails(ask(&ledger, &bob, extend.clone()), libc::EPERM, "another user");
    fails(ask(&ledger, &bob, LedgerRequest::StageList { name: name("ann") }), libc::EPERM, "user");

    // Who knows the secret is the owner, of this buffer only.
    let served = ledger.buffer(&name("ann")).unwrap();
    assert_eq!(served.secret.to_hex(), secret);
    let holder = Identity::Holder(name("ann"));
    assert_eq!(list(&ledger, &holder), ["ann"]);
    fails(status(&ledger, &holder, "bob"), libc::EPERM, "another user");
    fails(make(&holder, "new"), libc::EPERM, "that buffer only");
    ask(&ledger, &holder, extend).unwrap();
    drop(served);
    destroy(&holder).unwrap();
    // The root directory is the owner's.
    let root_attr = ledger
        .buffer(&name("bob"))
        .unwrap()
        .server
        .namespace()
        .attrs()
        .of(forebay_proto::Ino::ROOT)
        .unwrap();
    assert_eq!((root_attr.uid, root_attr.gid), (4002, 4002));
}

#[test]
fn one_user_cannot_have_all_buffers() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    {
        let ledger = open(flash.path());
        create_as(&ledger, &user(4001), "t", spec("x", MIB, StoreKind::Directory)).unwrap();
        ledger.close().unwrap();
    }
    // So many real ones would take minutes: the record is what is counted.
    let dir = flash.path().join(DIR_NAME);
    let mut file = LedgerFile::load(&dir).unwrap();
    for number in 1..MAX_BUFFERS_PER_USER {
        let mut copy = file.buffers[0].clone();
        copy.spec.name = name(&format!("x{number}"));
        copy.uuid = format!("{number:032x}");
        copy.token = Token(number.to_string());
        let mut part = file.parts[0].clone();
        part.spec.name = copy.spec.name.clone();
        part.spec.uuid = copy.uuid.clone();
        part.spec.capacity_bytes = 0;
        file.buffers.push(copy);
        file.parts.push(part);
    }
    file.save(&dir).unwrap();
    let ledger = open(flash.path());
    let make = |uid| create_as(&ledger, &user(uid), "new", spec("y", MIB, StoreKind::Directory));
    fails(make(4001), libc::EDQUOT, "the most of one user");
    make(4002).unwrap();
    // Those whose store is gone say so, and can be destroyed: by force, for the flash may come back.
    let gone = status(&ledger, &root(), "x1").unwrap();
    assert_eq!(gone.state, BufferState::Degraded);
    assert!(gone.why.unwrap().contains("not on flash any more"));
    fails(destroy(&ledger, "x1", false), libc::EBUSY, "not on flash any more");
    destroy(&ledger, "x1", true).unwrap();
}

#[test]
fn flash_that_vanishes_under_a_server_is_told() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    create(&ledger, "a", MIB).unwrap();
    create(&ledger, "b", MIB).unwrap();
    assert_eq!(status(&ledger, &root(), "a").unwrap().state, BufferState::Ready);
    let store = ledger.buffer(&name("a")).unwrap().server.store().dir().to_path_buf();
    for part in fs::read_dir(store).unwrap() {
        let _ = fs::remove_dir_all(part.unwrap().path());
    }
    let told = status(&ledger, &root(), "a").unwrap();
    assert_eq!(told.state, BufferState::Degraded);
    let why = told.why.unwrap();
    assert!(why.contains("is gone") && why.contains("nothing can be changed"), "{why}");
    assert_eq!(status(&ledger, &root(), "b").unwrap().state, BufferState::Ready);
    fails(destroy(&ledger, "a", false), libc::EBUSY, "nothing can be changed any more");
    destroy(&ledger, "a", true).unwrap();
    assert!(status(&ledger, &root(), "a").is_err());
}

struct Mounts(AtomicBool);

impl BufferUser for Mounts {
    fn clients(&self) -> Vec<MountedClient> {
        let client = MountedClient { host: "node7".into(), pid: 42, silent_s: 0.0 };
        if self.0.load(Ordering::SeqCst) { vec![client] } else { Vec::new() }
    }
    fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_mounted_buffer_is_destroyed_only_by_force() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    create(&ledger, "a", MIB).unwrap();
    let served = ledger.buffer(&name("a")).unwrap();
    let make = |_: &ServedBuffer| Ok::<_, ()>(Arc::new(Mounts(AtomicBool::new(true))));
    assert!(served.user::<Mounts, _>(|_| Err("not yet")).is_err());
    let mounts = served.user(make).unwrap().unwrap();
    assert!(Arc::ptr_eq(&mounts, &served.user(make).unwrap().unwrap()), "made once");
    drop(served);
    assert_eq!(status(&ledger, &root(), "a").unwrap().clients[0].host, "node7");
    fails(destroy(&ledger, "a", false), libc::EBUSY, "node7 (process 42)");
    assert_eq!(status(&ledger, &root(), "a").unwrap().state, BufferState::Ready);
    destroy(&ledger, "a", true).unwrap();
    assert!(mounts.clients().is_empty(), "its mounts were not ended");
    assert_eq!(reserved(&ledger), 0);
}

#[test]
fn files_are_staged_without_a_mount() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let pfs = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    let who = Identity::of_server_key();
    let made = spec("a", 16 * MIB, StoreKind::Directory);
    create_as(&ledger, &who, "t", made).unwrap();
    fs::write(pfs.path().join("in"), vec![7; 100_000]).unwrap();
    let run = |direction, file: &str| {
        let path = pfs.path().join(file);
        let spec = StageSpec {
            direction,
            kind: StageKind::Auto,
            pfs_path: PathBytes::new(path.as_os_str().as_encoded_bytes()),
            buffer_path: PathBytes::new(b"/file"),
            verify: Verify::Cache,
            rate_bytes_per_s: 0,
            keep_going: true,
            retries: 0,
            seen_at: None,
            commit: None,
            options: StageOptions::default(),
        };
        let started =
            ask(&ledger, &who, LedgerRequest::StageStart { name: name("a"), spec, token: None });
        let LedgerReply::Plan(mut plan) = started.unwrap() else { panic!("no plan") };
        while !plan.state.is_final() {
            std::thread::sleep(Duration::from_millis(5));
            let asked = LedgerRequest::StageStatus { name: name("a"), plan: plan.plan };
            let LedgerReply::Plan(now) = ask(&ledger, &who, asked).unwrap() else { panic!() };
            plan = now;
        }
        assert_eq!(plan.state, PlanState::Done, "{:?}", plan.errors);
    };
    run(Direction::In, "in");
    let asked = LedgerRequest::FileStatus { name: name("a"), path: PathBytes::new(b"/file") };
    let LedgerReply::File(file) = ask(&ledger, &who, asked).unwrap() else { panic!() };
    assert_eq!(file.size_bytes, 100_000);
    run(Direction::Out, "out");
    assert_eq!(fs::read(pfs.path().join("out")).unwrap(), vec![7; 100_000]);
    let LedgerReply::Plans(plans) =
        ask(&ledger, &Identity::Holder(name("a")), LedgerRequest::StageList { name: name("a") })
            .unwrap()
    else {
        panic!()
    };
    assert_eq!(plans.len(), 2, "the holder of the secret is the owner");
}

#[test]
fn many_who_ask_for_the_same_get_the_same() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    let made: Vec<String> = std::thread::scope(|scope| {
        let asking: Vec<_> =
            (0..8).map(|_| scope.spawn(|| create(&ledger, "a", MIB).unwrap().uuid)).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|uuid| *uuid == made[0]), "{made:?}");
    let results: Vec<bool> = std::thread::scope(|scope| {
        let make = |number: u64| {
            let kind = StoreKind::Directory;
            let (token, text) = (number.to_string(), format!("b{number}"));
            create_as(&ledger, &root(), &token, spec(&text, 48 * MIB, kind)).is_ok()
        };
        let asking: Vec<_> = (0..6).map(|n| scope.spawn(move || make(n))).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|made| **made).count(), 2, "only two fit");
    assert_eq!(reserved(&ledger), (16 + 96) * MIB);
}

/// The store that a buffer has on flash.
fn store_of(flash: &Path, uuid: &str) -> Option<forebay_store::flash::StoreRecord> {
    let found = flash::list(flash).unwrap();
    found.into_iter().filter_map(|store| store.record.ok()).find(|record| record.uuid == uuid)
}

#[test]
fn an_extension_that_flash_refuses_changes_nothing() {
    // On a disk: it has something on it.
    let flash = tempfile::tempdir().unwrap();
    let stat = rustix::fs::statvfs(flash.path()).unwrap();
    // More than is free, though not more than the file system has.
    let all_bytes = stat.f_blocks * stat.f_frsize;
    let ledger = Ledger::open(options(flash.path(), all_bytes)).unwrap();
    let made = create(&ledger, "a", MIB).unwrap();
    // Nearly all: other tests free some space meanwhile.
    let capacity_bytes = (all_bytes / GRANULARITY_BYTES - 1) * GRANULARITY_BYTES;
    assert!(
        capacity_bytes > stat.f_bavail * stat.f_frsize + GRANULARITY_BYTES,
        "this test needs a file system with something on it"
    );
    let extend = LedgerRequest::Extend { name: name("a"), capacity_bytes };
    fails(ask(&ledger, &root(), extend), libc::ENOSPC, "are free");
    assert_eq!(reserved(&ledger), GRANULARITY_BYTES);
    assert_eq!(store_of(flash.path(), &made.uuid).unwrap().capacity_bytes, GRANULARITY_BYTES);
}

#[test]
fn a_buffer_is_destroyed_on_full_flash() {
    assert!(rustix::process::geteuid().is_root(), "this test needs root");
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let flash = dir.path().join("flash");
    fs::create_dir(&flash).unwrap();
    mount("small", &flash, "tmpfs", MountFlags::empty(), Some(c"size=48m,mode=700")).unwrap();
    let done = std::panic::catch_unwind(|| {
        let small = LedgerOptions { granularity_bytes: MIB, ..options(&flash, 16 * MIB) };
        let ledger = Ledger::open(small).unwrap();
        create(&ledger, "a", MIB).unwrap();
        let mut filler = fs::File::create(flash.join("filler")).unwrap();
        while std::io::Write::write(&mut filler, &[1; 4096]).is_ok() {}
        fails(create(&ledger, "b", MIB), libc::ENOSPC, "");
        assert!(std::io::Write::write(&mut filler, &[1]).is_err(), "the reserve was given up");
        destroy(&ledger, "a", false).unwrap();
        assert_eq!(reserved(&ledger), 0);
        ledger.close().unwrap();
    });
    unmount(&flash, UnmountFlags::DETACH).unwrap();
    done.unwrap();
}

#[test]
fn an_unknown_store_is_left_alone() {
    let flash = tempfile::tempdir_in("/dev/shm").unwrap();
    let ledger = open(flash.path());
    let made = create(&ledger, "a", MIB).unwrap();
    ledger.close().unwrap();
    drop(ledger);
    fs::remove_file(flash.path().join(DIR_NAME).join("ledger.json")).unwrap();
    let ledger = open(flash.path());
    assert!(list(&ledger, &root()).is_empty());
    let found = store_of(flash.path(), &made.uuid).expect("it was removed");
    assert!(Store::find(&options(flash.path(), MIB).flash, &found.key).unwrap().is_some());
}
