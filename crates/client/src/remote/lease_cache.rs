//! What this mount may believe without asking, as far as it was leased: names of directories and
//! attributes of inodes.
//!
//! The kernel caches names and attributes for as long as [`LeaseCache::names_ttl`] and [`LeaseCache::attr_ttl`] say: never beyond the end of
//! the session's lease, so the kernel stops by itself if this process does.
//! A lease counts only if no recall was handled between the question and the answer that brought
//! it ([`Mark`]): the recall may have been for that very lease.

use super::dirs::{ChangedDirs, Changing};
use forebay_proto::net::session::MOVED_BUSY_MAX;
use forebay_proto::{Attr, Ino, Notify};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most directories and most inodes kept. What does not fit is asked each time.
const MAX_KEPT: usize = 1 << 18;

/// Longest wait of a recall for pages to go.
const PAGES_MAX: Duration = Duration::from_millis(20);

/// How many recalls had been handled when a question was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark(u64);

/// Most names of directories that this mount made. Beyond, absent names are asked for.
const MAX_OWN_NAMES: usize = 1 << 20;

/// What is leased, and what is known by that.
#[derive(Default)]
struct LeasedItems {
    recalls: u64,
    names: HashSet<Ino>,
    attrs: HashSet<Ino>,
    /// Attributes that answers to changes brought along.
    changed: ChangedDirs,
    /// Directories that were empty when their names were leased, with all names (their hashes)
    /// that were since put there, or tried: what is not among them is not there. In a leased
    /// directory only this mount puts names.
    own: HashMap<Ino, HashSet<u64>>,
    own_names: usize,
    /// Counts the ends of sessions after which the kernel could not drop its names at once, and those of them whose names it
    /// does not believe any more.
    stayed: u64,
    over: u64,
}

impl LeasedItems {
    fn drop_names(&mut self, dir: Ino) {
        self.names.remove(&dir);
        if let Some(names) = self.own.remove(&dir) {
            self.own_names -= names.len();
        }
    }
}

/// The leases of one session.
pub(super) struct LeaseCache {
    state: Mutex<LeasedItems>,
    hasher: RandomState,
    notify: RwLock<Option<Arc<dyn Notify>>>,
    /// The kernel can drop all names at once.
    can_keep_names: AtomicBool,
    begun: Instant,
    /// End of the session's lease, in milliseconds after `begun`.
    lease_end_ms: AtomicU64,
    /// Nothing is believed longer than this: a cache's PFS may change beside it.
    longest_ms: AtomicU64,
}

impl LeaseCache {
    pub(super) fn new() -> LeaseCache {
        LeaseCache {
            state: Mutex::default(),
            hasher: RandomState::new(),
            notify: RwLock::default(),
            can_keep_names: AtomicBool::new(false),
            begun: Instant::now(),
            lease_end_ms: AtomicU64::new(0),
            longest_ms: AtomicU64::new(u64::MAX),
        }
    }

    /// From now on nothing is believed longer than so many milliseconds.
    pub(super) fn set_longest(&self, ms: u64) {
        self.longest_ms.store(ms, Ordering::Release);
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Acquire))
    }

    /// Who drops what the kernel has cached.
    pub(super) fn set_notify(&self, notify: Arc<dyn Notify>) {
        self.can_keep_names.store(notify.names_recalled(), Ordering::Release);
        *self.notify.write() = Some(notify);
    }

    /// The session was heard at `sent` or later: its lease ends so long after it.
    pub(super) fn renewed(&self, sent: Instant, lease: Duration) {
        let end = sent.saturating_duration_since(self.begun) + lease;
        self.lease_end_ms.fetch_max(end.as_millis() as u64, Ordering::AcqRel);
    }

    /// What is left of the lease.
    pub(super) fn lease_left(&self) -> Duration {
        let end = Duration::from_millis(self.lease_end_ms.load(Ordering::Acquire));
        end.saturating_sub(self.begun.elapsed())
    }

    /// When the last question that was answered was sent.
    pub(super) fn heard_at(&self, lease: Duration) -> Instant {
        let end = Duration::from_millis(self.lease_end_ms.load(Ordering::Acquire));
        self.begun + end.saturating_sub(lease)
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.state.lock().recalls)
    }

    /// An answer to a question sent at `mark` brought a lease on the names of a directory.
    pub(super) fn keep_names(&self, dir: Ino, mark: Mark) {
        let mut state = self.state.lock();
        if state.recalls == mark.0 && state.names.len() < MAX_KEPT {
            state.names.insert(dir);
        }
    }

    /// The same for a directory that has no names yet.
    pub(super) fn keep_empty(&self, dir: Ino, mark: Mark) {
        self.keep_names(dir, mark);
        let mut state = self.state.lock();
        if state.names.contains(&dir) {
            state.own.insert(dir, HashSet::new());
        }
    }

    /// This mount is about to put a name there.
    pub(super) fn puts(&self, dir: Ino, name: &[u8]) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(names) = state.own.get_mut(&dir) else { return };
        if state.own_names >= MAX_OWN_NAMES {
            let gone = names.len();
            state.own.remove(&dir);
            state.own_names -= gone;
        } else if names.insert(self.hash(name)) {
            state.own_names += 1;
        }
    }

    /// True if the name is not there, without asking.
    pub(super) fn is_absent(&self, dir: Ino, name: &[u8]) -> bool {
        let state = self.state.lock();
        state.own.get(&dir).is_some_and(|names| !names.contains(&self.hash(name)))
            && !self.lease_left().is_zero()
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    /// The same for attributes.
    pub(super) fn keep_attr(&self, ino: Ino, mark: Mark) {
        let mut state = self.state.lock();
        if state.recalls == mark.0 && state.attrs.len() < MAX_KEPT {
            state.attrs.insert(ino);
        }
    }

    pub(super) fn names_ttl(&self, dir: Ino) -> Duration {
        if !self.can_keep_names.load(Ordering::Acquire) || !self.state.lock().names.contains(&dir) {
            return Duration::ZERO;
        }
        self.lease_left().min(self.longest())
    }

    pub(super) fn attr_ttl(&self, ino: Ino) -> Duration {
        match self.state.lock().attrs.contains(&ino) {
            true => self.lease_left().min(self.longest()),
            false => Duration::ZERO,
        }
    }

    /// A call that changes names of these directories, or their attributes, begins.
    pub(super) fn begin(&self, dirs: [Option<Ino>; 2], others_too: bool) -> Option<Changing> {
        (dirs != [None; 2]).then(|| self.state.lock().changed.begin(dirs, others_too))
    }

    /// It is over, whatever came of it; `brought` are attributes that came with its answer.
    pub(super) fn end(
        &self,
        changing: Option<Changing>,
        brought: Option<([Option<Attr>; 2], Mark)>,
    ) {
        let Some(changing) = changing else { return };
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now = match brought {
            Some((dirs, mark)) if state.recalls == mark.0 && state.attrs.len() < MAX_KEPT => dirs,
            _ => [None; 2],
        };
        state.attrs.extend(now.iter().flatten().map(|attr| attr.ino));
        state.changed.end(changing, now);
    }

    /// Attributes of a directory that this mount changed last, once: they are what its kernel asks
    /// for next.
    pub(super) fn take_changed(&self, dir: Ino) -> Option<Attr> {
        let mut state = self.state.lock();
        let attr = state.changed.take(dir)?;
        (state.attrs.contains(&dir) && !self.lease_left().is_zero()).then_some(attr)
    }

    /// Something was changed that attributes of any directory may show.
    pub(super) fn changed_any(&self) {
        self.state.lock().changed.clear();
    }

    /// The kernel dropped the inode.
    pub(super) fn forgotten(&self, ino: Ino) {
        let mut state = self.state.lock();
        state.drop_names(ino);
        state.attrs.remove(&ino);
        state.changed.forget(ino);
    }

    /// A file was closed. One that is not leased may have been removed by another mount.
    pub(super) fn closed(&self, ino: Ino) {
        if !self.attr_ttl(ino).is_zero() {
            return;
        }
        if let Some(notify) = self.notify.read().clone() {
            notify.not_kept(ino);
        }
    }

    /// These are not leased any more. When it returns, the kernel asks again.
    pub(super) fn recalled(&self, names: &[Ino], attrs: &[Ino]) {
        {
            let mut state = self.state.lock();
            state.recalls += 1;
            for dir in names {
                state.drop_names(*dir);
            }
            for ino in attrs {
                state.attrs.remove(ino);
                state.changed.forget(*ino);
            }
        }
        let Some(notify) = self.notify.read().clone() else { return };
        if !names.is_empty() {
            notify.names_recalled();
        }
        for &ino in attrs {
            notify.attr_recalled(ino);
        }
        // Longer only if a request that waits for somebody else holds pages.
        if !attrs.is_empty() {
            notify.wait_heard_within(PAGES_MAX);
        }
    }

    /// The kernel is to ask for each name that it has, leased or not.
    pub(super) fn ask_for_names(&self) {
        if let Some(notify) = self.notify.read().clone() {
            notify.names_recalled();
        }
    }

    /// These names were removed or replaced elsewhere: the kernel lets go what they led to.
    pub(super) fn gone(&self, names: &[(Ino, Vec<u8>)]) {
        let Some(notify) = self.notify.read().clone() else { return };
        for (dir, name) in names {
            notify.entry_changed(*dir, name);
        }
    }

    /// Directories that had these names are elsewhere now: when it returns, the kernel does not have them there any
    /// more, unless a request holds their old directory. Then lookups that find a directory wait for it for a while.
    pub(super) fn moved(&self, names: &[(Ino, Vec<u8>)]) {
        if names.is_empty() {
            return;
        }
        let Some(notify) = self.notify.read().clone() else { return };
        for (dir, name) in names {
            notify.dir_moved(*dir, name);
        }
        notify.wait_heard_within(MOVED_BUSY_MAX);
    }

    /// Nothing is leased any more: the session is over. True if the kernel believes names all the same, as others stand on
    /// them, until [`LeaseCache::names_are_over`] has returned.
    #[must_use]
    pub(super) fn all_recalled(&self) -> bool {
        let (mut names, attrs): (Vec<Ino>, Vec<Ino>) = {
            let mut state = self.state.lock();
            state.recalls += 1;
            state.own.clear();
            state.own_names = 0;
            state.changed.clear();
            (state.names.drain().collect(), state.attrs.drain().collect())
        };
        self.lease_end_ms.store(0, Ordering::Release);
        let notify = self.notify.read().clone();
        if !names.is_empty() && notify.is_some_and(|notify| notify.names_stay()) {
            self.state.lock().stayed += 1;
            names.clear();
        }
        self.recalled(&names, &attrs);
        let state = self.state.lock();
        state.stayed > state.over
    }

    /// Waits until the kernel believes no name that was leased in a session that is over: for up to a lease.
    pub(super) fn names_are_over(&self) {
        let stayed = self.state.lock().stayed;
        self.ask_for_names();
        let mut state = self.state.lock();
        state.over = state.over.max(stayed);
    }

    /// When the session's lease ends, by this mount's clock.
    pub(super) fn lease_end(&self) -> Instant {
        self.begun + Duration::from_millis(self.lease_end_ms.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::attr::Timestamp;

    /// Others stand on names of it.
    #[derive(Default)]
    struct StoodOn(Kernel);

    impl Notify for StoodOn {
        fn entry_changed(&self, _: Ino, _: &[u8]) {}
        fn inode_changed(&self, _: Ino) {}
        fn names_recalled(&self) -> bool {
            self.0.names_recalled()
        }
        fn names_stay(&self) -> bool {
            true
        }
        fn attr_recalled(&self, ino: Ino) {
            self.0.attr_recalled(ino);
        }
    }

    #[derive(Default)]
    struct Kernel(Mutex<(u32, Vec<Ino>)>);

    impl Notify for Kernel {
        fn entry_changed(&self, _: Ino, _: &[u8]) {}
        fn inode_changed(&self, _: Ino) {}
        fn names_recalled(&self) -> bool {
            self.0.lock().0 += 1;
            true
        }
        fn attr_recalled(&self, ino: Ino) {
            self.0.lock().1.push(ino);
        }
    }

    fn kept() -> (LeaseCache, Arc<Kernel>) {
        let (kept, kernel) = (LeaseCache::new(), Arc::new(Kernel::default()));
        kept.set_notify(Arc::clone(&kernel) as Arc<dyn Notify>);
        kept.renewed(Instant::now(), Duration::from_secs(10));
        (kept, kernel)
    }

    #[test]
    fn leased_things_are_kept_until_recalled() {
        let (kept, kernel) = kept();
        let mark = kept.mark();
        kept.keep_names(Ino(5), mark);
        kept.keep_attr(Ino(6), mark);
        assert!(kept.names_ttl(Ino(5)) > Duration::from_secs(9));
        assert!(kept.attr_ttl(Ino(6)) <= Duration::from_secs(10));
        assert_eq!(kept.attr_ttl(Ino(5)), Duration::ZERO);
        kept.recalled(&[Ino(5)], &[Ino(6)]);
        assert_eq!((kept.names_ttl(Ino(5)), kept.attr_ttl(Ino(6))), Default::default());
        assert_eq!(kernel.0.lock().1, [Ino(6)]);
    }

    type Told = Vec<(Ino, Vec<u8>)>;

    /// What the kernel was told of moves, and how long it was waited for.
    #[derive(Default)]
    struct Moves(Mutex<(Told, Vec<Duration>)>);

    impl Notify for Moves {
        fn entry_changed(&self, _: Ino, _: &[u8]) {}
        fn inode_changed(&self, _: Ino) {}
        fn dir_moved(&self, parent: Ino, name: &[u8]) {
            self.0.lock().0.push((parent, name.to_vec()));
        }
        fn wait_heard_within(&self, longest: Duration) {
            self.0.lock().1.push(longest);
        }
    }

    #[test]
    fn the_kernel_is_told_of_moves_as_such_and_waited_for_less_long_than_the_server_waits() {
        let (kept, kernel) = (LeaseCache::new(), Arc::new(Moves::default()));
        kept.set_notify(Arc::clone(&kernel) as Arc<dyn Notify>);
        kept.moved(&[]);
        let names = vec![(Ino(5), b"d".to_vec()), (Ino(6), b"e".to_vec())];
        kept.moved(&names);
        let (told, waits) = std::mem::take(&mut *kernel.0.lock());
        assert_eq!((told, waits.len()), (names, 1));
        assert!(waits[0] < forebay_proto::net::session::MOVED_MAX);
    }

    #[test]
    fn an_answer_that_a_recall_overtook_brings_no_lease() {
        let (kept, _) = kept();
        let mark = kept.mark();
        kept.recalled(&[Ino(5)], &[]);
        kept.keep_names(Ino(5), mark);
        assert_eq!(kept.names_ttl(Ino(5)), Duration::ZERO);
    }

    #[test]
    fn in_a_directory_of_ones_own_absent_names_need_no_question() {
        let (kept, _) = kept();
        assert!(!kept.is_absent(Ino(5), b"x"));
        kept.keep_empty(Ino(5), kept.mark());
        assert!(kept.is_absent(Ino(5), b"x"));
        kept.puts(Ino(5), b"x");
        assert!(!kept.is_absent(Ino(5), b"x") && kept.is_absent(Ino(5), b"y"));
        kept.recalled(&[Ino(5)], &[]);
        assert!(!kept.is_absent(Ino(5), b"y"), "somebody else may put it there");
        let mark = kept.mark();
        kept.recalled(&[], &[]);
        kept.keep_empty(Ino(6), mark);
        assert!(!kept.is_absent(Ino(6), b"y"));
    }

    fn dir_with_links(nlink: u32) -> Attr {
        let at = Timestamp::default();
        Attr {
            ino: Ino(5),
            size_bytes: 0,
            blocks_512: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            mode: 0o40755,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize_bytes: 4096,
        }
    }

    #[test]
    fn what_a_change_brought_is_given_once_and_never_after_another_change() {
        let (kept, _) = kept();
        let dir = [Some(Ino(5)), None];
        let brought = |links| [Some(dir_with_links(links)), None];
        let one = kept.begin(dir, false);
        kept.end(one, Some((brought(2), kept.mark())));
        assert_eq!(kept.take_changed(Ino(5)).map(|attr| attr.nlink), Some(2));
        assert_eq!(kept.take_changed(Ino(5)), None, "the kernel keeps it now");
        assert!(!kept.attr_ttl(Ino(5)).is_zero(), "they came with a lease");

        // Two at a time: which one was made first is not known.
        let (one, two) = (kept.begin(dir, false), kept.begin(dir, false));
        kept.end(two, Some((brought(3), kept.mark())));
        kept.end(one, Some((brought(4), kept.mark())));
        assert_eq!(kept.take_changed(Ino(5)), None);
        let (one, two) = (kept.begin(dir, false), kept.begin(dir, false));
        kept.end(one, Some((brought(3), kept.mark())));
        kept.end(two, Some((brought(4), kept.mark())));
        assert_eq!(kept.take_changed(Ino(5)), None);

        let one = kept.begin(dir, false);
        kept.end(one, Some((brought(5), kept.mark())));
        let failed = kept.begin(dir, false);
        assert_eq!(kept.take_changed(Ino(5)), None, "it is being changed");
        kept.end(failed, None);
        assert_eq!(kept.take_changed(Ino(5)), None);
    }

    #[test]
    fn what_a_change_brought_ends_with_its_lease() {
        let (kept, _) = kept();
        let dir = [Some(Ino(5)), None];
        let brought = [Some(dir_with_links(2)), None];
        for recalled_before in [true, false] {
            let (one, mark) = (kept.begin(dir, false), kept.mark());
            if recalled_before {
                kept.recalled(&[], &[Ino(5)]);
            }
            kept.end(one, Some((brought, mark)));
            if !recalled_before {
                kept.recalled(&[], &[Ino(5)]);
            }
            assert_eq!(kept.take_changed(Ino(5)), None);
        }
        let one = kept.begin(dir, false);
        kept.end(one, Some((brought, kept.mark())));
        let rename = kept.begin([Some(Ino(6)), None], true);
        kept.end(rename, None);
        assert_eq!(kept.take_changed(Ino(5)), None, "it may be what was renamed");
        let one = kept.begin(dir, false);
        kept.end(one, Some((brought, kept.mark())));
        kept.changed_any();
        assert_eq!(kept.take_changed(Ino(5)), None, "it was renamed at another server");
        let rename = kept.begin(dir, true);
        kept.end(rename, Some((brought, kept.mark())));
        assert!(kept.take_changed(Ino(5)).is_some());
        let one = kept.begin(dir, false);
        kept.end(one, Some((brought, kept.mark())));
        assert!(!kept.all_recalled());
        assert_eq!(kept.take_changed(Ino(5)), None);
    }

    #[test]
    fn names_on_which_others_stand_are_believed_until_they_are_over() {
        let (kept, kernel) = (LeaseCache::new(), Arc::new(StoodOn::default()));
        kept.set_notify(Arc::clone(&kernel) as Arc<dyn Notify>);
        kept.renewed(Instant::now(), Duration::from_secs(10));
        assert!(kept.lease_end() > Instant::now() + Duration::from_secs(9));
        assert!(!kept.all_recalled(), "there are none");
        let told = || kernel.0.0.lock().clone();
        let before = told().0;
        kept.keep_names(Ino(5), kept.mark());
        kept.keep_attr(Ino(7), kept.mark());
        assert!(kept.all_recalled());
        assert_eq!(told(), (before, vec![Ino(7)]), "attributes are dropped at once, names are not");
        assert_eq!(kept.names_ttl(Ino(5)), Duration::ZERO);
        assert!(kept.all_recalled(), "a session that could not be made changes nothing of it");
        kept.names_are_over();
        assert_eq!(told().0, before + 1);
        assert!(!kept.all_recalled());
    }

    #[test]
    fn nothing_is_kept_beyond_the_lease_and_after_it() {
        let (kept, kernel) = kept();
        kept.keep_names(Ino(5), kept.mark());
        kept.keep_attr(Ino(7), kept.mark());
        assert!(!kept.all_recalled(), "the kernel can drop all names");
        assert_eq!(kept.names_ttl(Ino(5)), Duration::ZERO);
        assert_eq!(kernel.0.lock().1, [Ino(7)]);
        kept.keep_names(Ino(5), kept.mark());
        assert_eq!(kept.names_ttl(Ino(5)), Duration::ZERO, "no lease of the session is left");
        let late = Instant::now() - Duration::from_secs(9);
        kept.renewed(late.max(kept.begun), Duration::from_millis(1));
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(kept.names_ttl(Ino(5)), Duration::ZERO);
    }
}
