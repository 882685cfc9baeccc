//! Sessions over a cache, without sockets: what a mount is given whose kernel is not believed, and what a
//! mount finds again whose session had ended.

use super::tests::{attaching, facts};
use super::*;
use crate::{Server, ServerOptions};
use forebay_cache::{CacheOptions, When};
use forebay_proto::api::{CreateArgs, rename_flags};
use forebay_proto::control::{PathBytes, StoreKind, Verify};
use forebay_proto::net::ledger::AccessMode;
use forebay_proto::net::session::{LockCall, LockKind, LockSpec, Reclaim, SlotId};
use forebay_proto::net::{Answer, Attempt, Call, GivenBack, Request};
use forebay_proto::{Cookie, FileKind};
use forebay_store::flash::{Store, StoreKey, StoreOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const USER: u32 = 4242;
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_WRONLY as u32;

struct Rig {
    dir: tempfile::TempDir,
    _server: Arc<Server>,
    sessions: Arc<Sessions>,
}

/// A mount: its session, and how many calls it made.
struct Mount<'a> {
    rig: &'a Rig,
    session: Arc<Session>,
    made: std::cell::Cell<u32>,
}

fn user() -> Option<Caller> {
    Some(Caller { uid: USER, gid: USER, groups: vec![USER], ..Caller::default() })
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o755);
        let (flash, pfs) = (dir.path().join("flash"), dir.path().join("pfs"));
        std::fs::create_dir(&flash).unwrap();
        std::fs::create_dir(&pfs).unwrap();
        let store = Store::find_or_create(&StoreOptions {
            flash: std::fs::canonicalize(flash).unwrap(),
            key: StoreKey::Mount { mount_point: PathBytes::Text("/b".into()) },
            capacity_bytes: 64 << 20,
            kind: Some(StoreKind::Directory),
            shared: false,
        })
        .unwrap();
        let cache = CacheOptions {
            pfs,
            ttl: Duration::ZERO,
            writes_by_kernel: true,
            policy: When::End.into(),
            verify: Verify::Cache,
            rate_bytes_per_s: 0,
            served: Some(ShardId(0)),
        };
        let options = ServerOptions { cache: Some(cache), ..ServerOptions::default() };
        let server = Server::open(store.clone(), options).unwrap();
        let cached = CacheFacts { access: AccessMode::Striped, ttl_ms: 0 };
        let facts = facts(&store, Some(cached));
        let cache = server.cache().cloned();
        let clients = store.dir().join("clients");
        let sessions =
            Sessions::new(Arc::clone(server.namespace()), cache, facts, clients).unwrap();
        Rig { dir, _server: server, sessions }
    }

    fn pfs(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("pfs").join(name)
    }

    fn put(&self, name: &str, text: &str, bits: u32) {
        std::fs::write(self.pfs(name), text).unwrap();
        mode(&self.pfs(name), bits);
    }

    fn attach(&self, client: u64, acts_as: Option<Caller>, holds: &[Ino]) -> Mount<'_> {
        let (session, _) = self.sessions.attach(attaching(client), acts_as).unwrap();
        let mount = Mount { rig: self, session, made: Default::default() };
        let references = holds.iter().map(|ino| (*ino, 1)).collect();
        let reclaim = Reclaim { references, last: true, ..Reclaim::default() };
        assert!(matches!(mount.call(Call::Reclaim(reclaim)).answer, Answer::Reclaimed { .. }));
        mount
    }
}

impl Mount<'_> {
    fn call(&self, call: Call<'_>) -> Reply {
        self.call_with(call, b"")
    }

    fn call_with(&self, call: Call<'_>, payload: &[u8]) -> Reply {
        self.request(Caller::root(), call, payload)
    }

    /// As the kernel of this mount asks for the user.
    fn call_of_user(&self, call: Call<'_>) -> Answer {
        self.request(user().unwrap(), call, b"").answer
    }

    fn request(&self, caller: Caller, call: Call<'_>, payload: &[u8]) -> Reply {
        self.made.set(self.made.get() + 1);
        let request = Request {
            session: self.session.id(),
            slot: SlotId(0),
            slot_seq: self.made.get(),
            attempt: Attempt::default(),
            cpu: None,
            given_back: GivenBack::default(),
            caller,
            call,
        };
        self.rig.sessions.call(&self.session, &request, payload, &mut Vec::new(), true)
    }

    /// An attempt in slot 1, by a mount that has heard the answers up to one of them.
    fn attempt(&self, (number, heard): (u64, u64), call: &Call<'_>) -> Answer {
        let request = Request {
            session: self.session.id(),
            slot: SlotId(1),
            slot_seq: 0,
            attempt: Attempt { number, heard },
            cpu: None,
            given_back: GivenBack::default(),
            caller: Caller::root(),
            call: call.clone(),
        };
        self.rig.sessions.call(&self.session, &request, b"", &mut Vec::new(), true).answer
    }

    fn lookup(&self, parent: Ino, name: &str) -> Result<Ino> {
        match self.call(Call::Lookup { parent, name: name.as_bytes() }).answer {
            Answer::Entry { attr, .. } => Ok(attr.attr.ino),
            Answer::Absent { .. } => Err(Errno::ENOENT),
            other => failed(other),
        }
    }

    fn getattr(&self, ino: Ino) -> Result<u32> {
        match self.call(Call::Getattr(ino)).answer {
            Answer::Attr(kept) => Ok(kept.attr.nlink),
            other => failed(other),
        }
    }

    /// True if the object came with the answer.
    fn open(&self, ino: Ino, open_flags: u32) -> Result<bool> {
        let reply = self.call(Call::Open { ino, open_flags, kill_suid: false, want_local: true });
        match reply.answer {
            Answer::Opened { local } => {
                assert_eq!(local, reply.file.is_some());
                Ok(local)
            }
            other => failed(other),
        }
    }

    fn write(&self, ino: Ino) -> Result<u64> {
        let call = Call::Write { ino, offset: 0, append: false, kill_suid: false, sync: false };
        match self.call_with(call, b"x").answer {
            Answer::Count(count) => Ok(count),
            other => failed(other),
        }
    }

    /// How many entries a directory has, and how many of them came with attributes.
    fn list(&self, ino: Ino) -> Result<(usize, usize)> {
        let limit = Cookie(u64::MAX);
        let call = Call::List { ino, after: Cookie(0), limit, max_bytes: 1 << 16, plus: true };
        match self.call(call).answer {
            Answer::Listing { entries, .. } => {
                let told = entries.iter().filter(|entry| entry.attr.is_some()).count();
                Ok((entries.len(), told))
            }
            other => failed(other),
        }
    }

    fn lock(&self, ino: Ino) -> Result<()> {
        let spec = LockSpec {
            ino,
            kind: LockKind::Posix,
            owner: 1,
            pid: 1,
            start: 0,
            end: u64::MAX,
            exclusive: true,
        };
        match self.call(Call::Lock(LockCall::Set { spec, wait: None })).answer {
            Answer::Lock(_) => Ok(()),
            other => failed(other),
        }
    }
}

fn failed<T>(answer: Answer) -> Result<T> {
    match answer {
        Answer::Failed(errno) => Err(Errno(errno)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mount_that_is_not_believed_gets_no_object_and_reaches_nothing_by_its_number() {
    assert!(rustix::process::geteuid().is_root(), "only root can act as others");
    let rig = Rig::new();
    mode(&rig.pfs(""), 0o755);
    rig.put("readable", "for all to read", 0o644);
    std::fs::create_dir(rig.pfs("closed")).unwrap();
    rig.put("closed/inside", "for whom the directory is open", 0o666);
    mode(&rig.pfs("closed"), 0o700);
    std::fs::create_dir(rig.pfs("listed")).unwrap();
    rig.put("listed/f", "by name only", 0o644);
    mode(&rig.pfs("listed"), 0o744);

    let root = rig.attach(1, None, &[]);
    let readable = root.lookup(Ino::ROOT, "readable").unwrap();
    assert_eq!(root.open(readable, READ), Ok(true), "root's kernel gets the object");
    let closed = root.lookup(Ino::ROOT, "closed").unwrap();
    let inside = root.lookup(closed, "inside").unwrap();
    assert_eq!(root.list(root.lookup(Ino::ROOT, "listed").unwrap()), Ok((3, 1)));

    // What a program of the user's may say, that claims to hold what root looked up.
    let theirs = rig.attach(2, user(), &[readable, closed, inside]);
    assert_eq!(theirs.getattr(readable), Ok(1), "its name leads the user there");
    assert_eq!(theirs.getattr(inside), Err(Errno::ESTALE));
    assert_eq!(theirs.open(inside, READ), Err(Errno::ESTALE));
    assert_eq!(theirs.lock(inside), Err(Errno::ESTALE));
    assert_eq!(theirs.lookup(closed, "inside"), Err(Errno::EACCES));
    assert_eq!(theirs.open(readable, READ), Ok(false), "whoever has the object can write it");
    assert_eq!(theirs.write(readable), Err(Errno::EBADF));
    assert_eq!(theirs.open(readable, WRITE), Err(Errno::EACCES));
    assert_eq!(theirs.lock(readable), Ok(()));
    let listed = theirs.lookup(Ino::ROOT, "listed").unwrap();
    assert_eq!(theirs.list(listed), Ok((3, 0)), "names, as `ls` shows them");
    assert_eq!(std::fs::read(rig.pfs("readable")).unwrap(), b"for all to read");

    // A removed file has no name that could say who may have it.
    let kept = root.lookup(Ino::ROOT, "readable").unwrap();
    root.call(Call::Unlink { parent: Ino::ROOT, name: b"readable" });
    assert_eq!(root.getattr(kept), Ok(0));
    assert_eq!(rig.attach(3, user(), &[kept]).getattr(kept), Err(Errno::ESTALE));
    rig.sessions.close();
}

#[test]
fn an_open_of_a_cached_file_counts_once_whose_answer_was_lost() {
    let rig = Rig::new();
    rig.put("f", "content", 0o644);
    let mount = rig.attach(1, None, &[]);
    let ino = mount.lookup(Ino::ROOT, "f").unwrap();
    let opens = || mount.session.opens().count(ino);
    let closes = [(true, Call::Release(vec![(ino, 1)])), (false, Call::Close(vec![(ino, 1)]))];
    for (at, (local, close)) in closes.into_iter().enumerate() {
        let last = 3 * at as u64;
        let open = Call::Open { ino, open_flags: READ, kill_suid: false, want_local: local };
        for attempt in [(last + 1, last), (last + 2, last)] {
            assert_eq!(mount.attempt(attempt, &open), Answer::Opened { local });
            assert_eq!(opens(), 1, "attempt {attempt:?}");
        }
        mount.attempt((last + 3, last + 2), &Call::Renew);
        assert_eq!(opens(), 1, "the second answer was heard");
        mount.call(close);
        assert_eq!(opens(), 0, "its one close is the last, and it may drain");
    }
    rig.sessions.close();
}

#[test]
fn a_mount_whose_session_had_ended_finds_what_has_a_name_and_nothing_else() {
    let rig = Rig::new();
    std::fs::create_dir(rig.pfs("d")).unwrap();
    for name in ["d/f", "d/moves", "d/goes"] {
        rig.put(name, name, 0o644);
    }
    let (here, away) = (rig.attach(1, None, &[]), rig.attach(2, None, &[]));
    let dir = away.lookup(Ino::ROOT, "d").unwrap();
    let all = ["f", "moves", "goes"].map(|name| away.lookup(dir, name).unwrap());
    assert_eq!(away.open(all[0], READ), Ok(true));
    rig.sessions.teardown.end(&away.session, "its lease is over");
    assert!(matches!(away.call(Call::Getattr(all[0])).answer, Answer::SessionOver));
    // Nobody holds any of it now. Names change, and the PFS gives an old number to a new file.
    let dir_here = here.lookup(Ino::ROOT, "d").unwrap();
    assert_eq!(dir_here, dir);
    let moves = Call::Rename {
        parent: dir,
        name: b"moves",
        new_parent: Ino::ROOT,
        new_name: b"moved",
        flags: 0,
    };
    assert!(matches!(here.call(moves).answer, Answer::Done));
    here.call(Call::Unlink { parent: dir, name: b"goes" });
    for n in 0..20 {
        let name = format!("new{n}");
        rig.put(&format!("d/{name}"), "", 0o644);
        assert_ne!(here.lookup(dir, &name), Ok(all[2]), "somebody may come back with this number");
    }
    here.call(Call::Forget(vec![(dir, 1)]));

    let holds = [dir, all[0], all[1], all[2]];
    let back = rig.attach(2, None, &holds);
    assert_eq!((back.getattr(dir), back.getattr(all[0])), (Ok(2), Ok(1)));
    assert_eq!(back.getattr(all[1]), Ok(1), "under its new name");
    assert_eq!(back.getattr(all[2]), Err(Errno::ESTALE), "it is gone");
    assert_eq!(back.open(all[0], READ), Ok(true));
    // Who says that it will not come back is not waited for.
    back.call(Call::Detach);
    here.call(Call::Forget(vec![(all[1], 1)]));
    let late = rig.attach(2, None, &[all[0]]);
    assert_eq!(late.getattr(all[0]), Err(Errno::ESTALE));
    rig.sessions.close();
}

/// A mount tells of closes when no other call waits, and of references that it gives back with the next one.
#[test]
fn a_number_means_no_other_file_before_its_last_close_is_heard_of() {
    let rig = Rig::new();
    let mount = rig.attach(1, None, &[]);
    let args = forebay_proto::api::CreateArgs { mode: 0o644, umask: 0 };
    let create = |name: &str| {
        let name = name.as_bytes();
        let call = Call::Create { parent: Ino::ROOT, name, args, want_local: false, near: None };
        match mount.call(call).answer {
            Answer::Created { attr, .. } => attr.attr.ino,
            other => panic!("{other:?}"),
        }
    };
    let old = create("old");
    mount.call(Call::Unlink { parent: Ino::ROOT, name: b"old" });
    mount.call(Call::Forget(vec![(old, 1)]));
    // A PFS that gives numbers out again gives this one now.
    let new: Vec<Ino> = (0..20).map(|n| create(&format!("new{n}"))).collect();
    assert!(!new.contains(&old));
    mount.call(Call::Close(vec![(old, 1)]));
    for ino in new {
        assert_eq!(mount.write(ino), Ok(1));
    }
    assert_eq!(mount.getattr(old), Err(Errno::ESTALE), "nothing holds it any more");
    rig.sessions.close();
}

/// The directories of an overlay on the PFS, the work directory of mode 0 and the upper one: the upper one is the user's, the
/// others are of `owner`. In the upper one is a file of root's, as a whiteout is mostly.
fn lay_out_overlay(rig: &Rig, mount: &Mount<'_>, owner: u32) -> [Ino; 2] {
    mode(&rig.pfs(""), 0o755);
    for (dir, owner) in [("o", owner), ("o/upper", USER), ("o/work", owner), ("o/work/work", owner)]
    {
        std::fs::create_dir(rig.pfs(dir)).unwrap();
        mode(&rig.pfs(dir), 0o755);
        std::os::unix::fs::chown(rig.pfs(dir), Some(owner), Some(owner)).unwrap();
    }
    rig.put("o/upper/gone", "", 0o600);
    mode(&rig.pfs("o/work/work"), 0);
    let o = mount.lookup(Ino::ROOT, "o").unwrap();
    let above = mount.lookup(o, "work").unwrap();
    [mount.lookup(above, "work").unwrap(), mount.lookup(o, "upper").unwrap()]
}

fn make_file(mount: &Mount<'_>, parent: Ino, name: &[u8]) -> Answer {
    let args = CreateArgs { mode: 0o644, umask: 0 };
    let kind = FileKind::File;
    mount.call_of_user(Call::Mknod { parent, name, kind, args, rdev: 0, near: None })
}

/// What an overlay asks for when a user makes a file over a whiteout.
fn makes_over_a_whiteout(rig: &Rig, mount: &Mount<'_>, [work, upper]: [Ino; 2]) {
    let name: &[u8] = b"#1";
    let absent = mount.call_of_user(Call::Lookup { parent: work, name });
    assert!(matches!(absent, Answer::Absent { .. }), "{absent:?}");
    let made = make_file(mount, work, name);
    assert!(matches!(made, Answer::Entry { .. }), "{made:?}");
    let (new_name, flags) = (&b"gone"[..], rename_flags::EXCHANGE);
    let exchange = Call::Rename { parent: work, name, new_parent: upper, new_name, flags };
    let exchanged = mount.call_of_user(exchange);
    assert!(matches!(exchanged, Answer::Done), "{exchanged:?}");
    let removed = mount.call_of_user(Call::Unlink { parent: work, name });
    assert!(matches!(removed, Answer::Done), "{removed:?}");
    let there = std::fs::metadata(rig.pfs("o/upper/gone")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&there), USER);
    assert!(!rig.pfs("o/work/work/#1").exists());
}

#[test]
fn what_a_kernel_asks_for_a_user_in_roots_overlay_is_done_on_a_served_cache() {
    assert!(rustix::process::geteuid().is_root(), "only root can act as others");
    let rig = Rig::new();
    let mount = rig.attach(1, None, &[]);
    let dirs = lay_out_overlay(&rig, &mount, 0);
    // As Podman has it: what is above the upper directory is root's alone.
    mode(&rig.pfs("o"), 0o700);
    makes_over_a_whiteout(&rig, &mount, dirs);
    // A program that asks the server itself has the user's rights on the PFS.
    let theirs = rig.attach(2, user(), &[]);
    let o = theirs.lookup(Ino::ROOT, "o").unwrap();
    assert_eq!(theirs.lookup(o, "upper"), Err(Errno::EACCES));
    rig.sessions.close();
}

#[test]
fn the_work_directory_of_a_users_own_overlay_is_for_what_is_the_users() {
    assert!(rustix::process::geteuid().is_root(), "only root can act as others");
    let rig = Rig::new();
    let mount = rig.attach(1, None, &[]);
    let [work, upper] = lay_out_overlay(&rig, &mount, USER);
    makes_over_a_whiteout(&rig, &mount, [work, upper]);
    let args = CreateArgs { mode: 0o600, umask: 0 };
    let nameless = mount.call_of_user(Call::Tmpfile { parent: work, args, want_local: false });
    assert!(matches!(nameless, Answer::Created { .. }), "{nameless:?}");

    // The overlay looks whether there are such attributes.
    let name: &[u8] = b"user.overlay.opaque";
    let set = Call::Setxattr { ino: work, name, flags: 0, kill_sgid: false };
    let set = mount.call_of_user(set);
    assert!(matches!(set, Answer::Done), "{set:?}");

    // What the PFS does not let the user change stays as it is.
    std::fs::create_dir(rig.pfs("roots")).unwrap();
    mode(&rig.pfs("roots"), 0o755);
    let roots = mount.lookup(Ino::ROOT, "roots").unwrap();
    let name: &[u8] = b"#2";
    let made = make_file(&mount, work, name);
    assert!(matches!(made, Answer::Entry { .. }), "{made:?}");
    let rename = Call::Rename { parent: work, name, new_parent: roots, new_name: name, flags: 0 };
    assert_eq!(failed::<()>(mount.call_of_user(rename)), Err(Errno::EACCES));
    assert!(!rig.pfs("roots/#2").exists());
    let theirs = rig.attach(2, user(), &[]);
    let o = theirs.lookup(Ino::ROOT, "o").unwrap();
    let above = theirs.lookup(o, "work").unwrap();
    let work = theirs.lookup(above, "work").unwrap();
    assert_eq!(theirs.lookup(work, "#2"), Err(Errno::EACCES));
    rig.sessions.close();
}
