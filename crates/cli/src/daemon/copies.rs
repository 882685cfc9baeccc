//! What keeps a mount from ending after it was unmounted: its copies. They are bind mounts of it here, and what processes in
//! mount namespaces of their own have of it, as /proc shows them. The kernel ends a FUSE session with the last copy.
//!
//! Invariant: nothing here asks the mount itself, which may hang, nor reads what waits for another process (`forebay_net::look`).
//! Called by `ending`.

use forebay_client::mountinfo::{self, MountEntry};
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most processes and mount points that are named.
const MAX_NAMED: usize = 5;

/// Said when nobody is seen who has a copy.
const NOBODY_SEEN: &str = "who has it cannot be seen: a process in a mount namespace of its own, one with a file of it \
                           open, or a request that is not answered yet";
/// Where the kernel shows FUSE sessions, by the minor number of their device.
const SESSIONS: &str = "/sys/fs/fuse/connections";

/// A mount, told apart from others on the same point and from its copies.
#[derive(Clone, Copy, Debug)]
struct MountId {
    /// The kernel's number of it.
    id: u64,
    /// The device of its files.
    device: u64,
}

/// Finds the copies of one mount.
#[derive(Clone, Debug)]
pub struct Copies {
    /// `None` if the table of mounts did not have it: then no copy is seen.
    mount: Option<MountId>,
    /// Where the kernel shows the session, if it does.
    session: Option<Arc<Session>>,
}

/// The directory in which the kernel shows one FUSE session.
///
/// Held open, not looked up: the kernel gives the number of a device to the next mount as soon as a session is over, and that is
/// somebody else's.
#[derive(Debug)]
struct Session(OwnedFd);

/// Who has copies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Holders {
    /// Mount points in this process's namespace.
    points: Vec<PathBuf>,
    /// Processes, `123 (sleep)`, of other namespaces.
    processes: Vec<String>,
}

/// Where changes of the mounts go to, of the place that the mount lies on.
struct Place {
    /// Number of the group of mounts that each change goes to; `None` if to none.
    peers: Option<String>,
    device: u64,
    /// Path of the mount point in the file system there.
    path: PathBuf,
}

impl Copies {
    /// Of the mount on `point` whose store is in `store_dir`.
    pub fn of(point: &Path, store_dir: &Path) -> Copies {
        let table = mountinfo::read().unwrap_or_default();
        let is_it =
            |e: &&MountEntry| e.point == point && e.store_dir().as_deref() == Some(store_dir);
        let entry = table.iter().rev().find(is_it);
        let mount = entry.map(|entry| MountId { id: entry.id, device: entry.device });
        let shown = |mount: MountId| {
            let number = rustix::fs::minor(mount.device).to_string();
            Session::shown_at(&Path::new(SESSIONS).join(number)).map(Arc::new)
        };
        Copies { mount, session: mount.and_then(shown) }
    }

    /// False if the mount itself is no longer in this process's namespace.
    pub fn is_mounted(&self) -> bool {
        let (Some(mount), Ok(table)) = (self.mount, mountinfo::read()) else { return true };
        own(mount, &table).is_some()
    }

    /// After it was unmounted: whether there are copies that are seen.
    pub fn are_seen(&self) -> bool {
        self.seen(|_, _| true) != Holders::default()
    }

    /// The same: who has copies now, in words; `None` if the kernel has none any more.
    pub fn describe(&self) -> Option<String> {
        let seen = self.seen(|_, _| true).text();
        seen.or_else(|| (!self.is_over()).then(|| NOBODY_SEEN.into()))
    }

    /// Before it is unmounted: who has copies that surely stay then, in words. Others may go with it, since mounts follow
    /// one another.
    pub fn that_stay(&self) -> Option<String> {
        let mount = self.mount?;
        let table = mountinfo::read().ok()?;
        let place = place_of(own(mount, &table)?, &table);
        let stays = |copy: &MountEntry, table: &[MountEntry]| {
            copy.id != mount.id && place.as_ref().is_some_and(|place| stays(copy, table, place))
        };
        self.seen(stays).text()
    }

    /// Ends the session for all who have copies, as umount(2) does by force. Its owner and root may, where the kernel shows
    /// the sessions; elsewhere it ends with this process.
    pub fn abort(&self) {
        let Some(session) = &self.session else { return };
        if let Err(error) = session.abort() {
            tracing::info!(%error, "the mount's session is not aborted, but left with the process");
        }
    }

    /// Whether the kernel shows that the session has ended: its device's number may be another mount's by now.
    fn is_over(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.goes_on())
    }

    /// Who has copies of which `counts` says so, told the copy and the table that it is in.
    fn seen(&self, counts: impl Fn(&MountEntry, &[MountEntry]) -> bool) -> Holders {
        let Some(mount) = self.mount else { return Holders::default() };
        let is_copy = |entry: &MountEntry, table: &[MountEntry]| {
            entry.device == mount.device && counts(entry, table)
        };
        let here = mountinfo::read().unwrap_or_default();
        let copies = here.iter().filter(|entry| is_copy(entry, &here));
        let points = copies.map(|entry| entry.point.clone()).collect();
        // One with another root may be in this namespace: what it sees was seen here.
        let is_ours = |entry: &MountEntry| here.iter().any(|our| our.id == entry.id);
        let is_theirs =
            |entry: &MountEntry, table: &[MountEntry]| is_copy(entry, table) && !is_ours(entry);
        let has_copy = |pid| {
            mountinfo::read_of(pid).map(|table| table.iter().any(|entry| is_theirs(entry, &table)))
        };
        let seen = Holders { points, processes: elsewhere(has_copy) };
        // Asked last: while it goes on, nobody else has its number.
        if self.is_over() { Holders::default() } else { seen }
    }
}

impl Session {
    fn shown_at(dir: &Path) -> Option<Session> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, dir, flags, Mode::empty()).ok().map(Session)
    }

    fn open(&self, name: &str, flags: OFlags) -> std::io::Result<File> {
        Ok(openat(&self.0, name, flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    /// The number of its requests can be read as long as there is a session.
    fn goes_on(&self) -> bool {
        let read = |mut file: File| file.read(&mut [0; 1]);
        self.open("waiting", OFlags::RDONLY).and_then(read).is_ok_and(|length| length > 0)
    }

    /// Ends it; nothing happens to any other one if it has ended.
    fn abort(&self) -> std::io::Result<()> {
        self.open("abort", OFlags::WRONLY)?.write_all(b"1")
    }
}

/// Processes of other namespaces of which this is true, asked once for each namespace.
fn elsewhere(has_copy: impl Fn(u32) -> Option<bool>) -> Vec<String> {
    let Some(ours) = mountinfo::own_namespace() else { return Vec::new() };
    let mut known: HashMap<u64, bool> = HashMap::new();
    let mut found = Vec::new();
    let mut pids: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    for pid in pids {
        let theirs = mountinfo::namespace_of(pid);
        let Some(theirs) = theirs.filter(|theirs| *theirs != ours) else { continue };
        let has = match known.get(&theirs) {
            Some(has) => *has,
            None => {
                // One that has ended just now tells nothing of its namespace.
                let Some(has) = has_copy(pid) else { continue };
                known.insert(theirs, has);
                has
            }
        };
        if has {
            let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.push(format!("{pid} ({})", program.trim()));
        }
    }
    found
}

/// The mount itself.
fn own(mount: MountId, table: &[MountEntry]) -> Option<&MountEntry> {
    table.iter().find(|entry| entry.id == mount.id && entry.device == mount.device)
}

/// What a mount lies on; `None` if the table does not have that.
fn place_of(entry: &MountEntry, table: &[MountEntry]) -> Option<Place> {
    let below = table.iter().find(|below| below.id == entry.parent_id && below.id != entry.id)?;
    let path = below.root.join(entry.point.strip_prefix(&below.point).ok()?);
    let peers = below.propagation.split(' ').find_map(|tag| tag.strip_prefix("shared:"));
    Some(Place { peers: peers.map(Into::into), device: below.device, path })
}

/// Whether a copy stays when the mount at `place` is unmounted. Those in the same place of a peer, or of one that follows it,
/// go with it (mount_namespaces(7)); whom one follows that follows others is not looked up.
fn stays(copy: &MountEntry, table: &[MountEntry], place: &Place) -> bool {
    let Some(peers) = &place.peers else { return true };
    let Some(of_copy) = place_of(copy, table) else { return false };
    let below = table.iter().find(|below| below.id == copy.parent_id);
    let follows = below.is_some_and(|below| below.propagation.contains("master:"));
    let is_peer = of_copy.peers.as_ref() == Some(peers);
    let same_place = of_copy.device == place.device && of_copy.path == place.path;
    !(same_place && (follows || is_peer))
}

impl Holders {
    fn text(&self) -> Option<String> {
        let mut parts = Vec::new();
        if !self.points.is_empty() {
            let points = self.points.iter().map(|point| point.display().to_string());
            parts.push(format!("it is mounted on {} as well", list(points.collect())));
        }
        match &self.processes[..] {
            [] => {}
            [one] => parts.push(format!(
                "process {one} has the buffer mounted in a mount namespace of its own"
            )),
            all => parts.push(format!(
                "processes {} have the buffer mounted in mount namespaces of their own",
                list(all.to_vec())
            )),
        }
        (!parts.is_empty()).then(|| parts.join(", and "))
    }
}

fn list(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64, parent_id: u64, device: u64, point: &str, propagation: &str) -> MountEntry {
        MountEntry {
            id,
            parent_id,
            device,
            root: "/".into(),
            point: point.into(),
            options: "rw".into(),
            propagation: propagation.into(),
            kind: Vec::new(),
            source: Vec::new(),
            super_options: String::new(),
        }
    }

    #[test]
    fn a_copy_stays_unless_its_place_follows_that_of_the_mount() {
        let ours = |propagation: &str| {
            let table = [entry(1, 0, 8, "/", propagation), entry(2, 1, 9, "/m", "")];
            place_of(&table[1], &table).unwrap()
        };
        let theirs = |propagation: &str, at: &str| {
            [entry(11, 10, 8, "/", propagation), entry(12, 11, 9, at, "")]
        };
        let stays = |place: &Place, table: [MountEntry; 2]| stays(&table[1], &table, place);
        let (private, shared) = (ours(""), ours("shared:1"));
        assert!(stays(&private, theirs("", "/m")));
        assert!(stays(&private, theirs("master:1", "/m")), "of another mount");
        assert!(stays(&shared, theirs("", "/m")));
        assert!(stays(&shared, theirs("shared:7", "/m")));
        assert!(stays(&shared, theirs("shared:1", "/b")), "a bind mount in another place");
        assert!(!stays(&shared, theirs("shared:1", "/m")));
        assert!(!stays(&shared, theirs("master:1", "/m")));
        assert!(!stays(&shared, theirs("shared:7 master:1", "/m")));
    }

    #[test]
    fn holders_are_named_and_the_others_counted() {
        let text = |points: &[&str], count: usize| {
            let processes = (1..=count).map(|pid| format!("{pid} (sh)")).collect();
            Holders { points: points.iter().map(Into::into).collect(), processes }.text()
        };
        assert_eq!(text(&[], 0), None);
        let one = "process 1 (sh) has the buffer mounted in a mount namespace of its own";
        assert_eq!(text(&[], 1).unwrap(), one);
        assert_eq!(text(&["/b"], 1).unwrap(), format!("it is mounted on /b as well, and {one}"));
        assert!(text(&[], 7).unwrap().starts_with("processes 1 (sh), 2 (sh), 3 (sh), 4 (sh), "));
        assert!(text(&[], 7).unwrap().contains("5 (sh) and 2 more have"));
    }

    #[test]
    fn who_gets_the_number_of_a_session_that_is_over_is_left_alone() {
        let sessions = tempfile::tempdir().unwrap();
        let dir = sessions.path().join("44");
        let begin = || {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("waiting"), "0\n").unwrap();
            fs::write(dir.join("abort"), "").unwrap();
        };
        let aborted = || fs::read_to_string(dir.join("abort")).unwrap();
        begin();
        let session = Session::shown_at(&dir).unwrap();
        assert!(session.goes_on());
        session.abort().unwrap();
        assert_eq!(aborted(), "1");
        fs::remove_dir_all(&dir).unwrap();
        begin();
        assert!(!session.goes_on() && session.abort().is_err());
        assert_eq!(aborted(), "");
        let other = Session::shown_at(&dir).unwrap();
        let mount = Some(MountId { id: 1, device: 44 });
        assert!(other.goes_on() && Copies { mount, session: Some(session.into()) }.is_over());
    }

    #[test]
    fn a_mount_that_is_not_in_the_table_has_no_copies() {
        let copies = Copies::of(Path::new("/no/mount"), Path::new("/no/store"));
        assert!(copies.is_mounted() && !copies.are_seen());
        assert_eq!((copies.that_stay(), copies.describe().as_deref()), (None, Some(NOBODY_SEEN)));
    }
}
