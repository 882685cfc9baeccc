//! Telling the kernel what changed behind the mount. One thread per mount sends all
//! notifications and holds nothing while it does: dropping a name takes the lock of its
//! directory, which a request that we have not answered yet may hold for long.
//!
//! Changes wait in two sets, so that many changes of one thing are one notification. When a set
//! is full (*overflow*), both are emptied and everything is dropped instead: all names by one
//! INC_EPOCH, and attributes and pages of each open file (of others the kernel asks again when
//! it looks their names up). Kernels before 6.16 have no INC_EPOCH; on those the TTLs are at
//! most 1 s ([`crate::lifetime`]), and an overflow heals by itself.
//!
//! Recalls ([`Notify::names_recalled`], [`Notify::attr_recalled`]) are sent by the thread that
//! asks for them: neither waits in the kernel for a lock that a request holds.

use crate::abi;
use crate::connection::Connection;
use crate::device::{Device, ECONNABORTED};
use crate::handles::DIR_NODE;
use crate::lifetime::AnswersUnderWay;
use crate::moves::Moves;
use crate::stood_on::StoodOn;
use forebay_proto::{Errno, Ino, Notify};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Most names waiting.
const MAX_NAMES: usize = 1 << 16;
/// Most inodes waiting.
const MAX_INODES: usize = 1 << 16;
/// Inodes in one message that lets go of them.
const PRUNE_AT_ONCE: usize = 256;
/// A file that was closed is in use for a moment after its RELEASE.
const LET_GO_AFTER: Duration = Duration::from_millis(50);
/// How long the kernel keeps a name in the directory of handles that nobody uses: whoever asked for the inode has it by then.
pub(crate) const NAME_STAYS: Duration = Duration::from_secs(3);
/// A thread whose answer the kernel has runs by then, mostly.
const TELL_AGAIN_AFTER: Duration = Duration::from_millis(20);
/// Longest wait for the kernel to hear: a notification of a name waits for a request in its
/// directory.
const HEAR_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the thread that tells the kernel to have told of other inodes and names: each may wait for a request.
const TELL_MAX: Duration = Duration::from_millis(200);
/// Longest wait for that thread to run, on busy processors.
const RUN_MAX: Duration = Duration::from_secs(1);
/// So often it is looked whether that thread runs or sleeps, when it is in the kernel for longer than it may be.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Waiting {
    names: HashSet<(Ino, Box<[u8]>)>,
    inodes: HashSet<Ino>,
    /// To be let go of if unused, each from that moment on.
    unused: VecDeque<(Instant, Ino)>,
    /// Attributes to be dropped once more, each from that moment on.
    again: VecDeque<(Instant, Ino)>,
    /// Nodes whose names in the directory of handles go, each from that moment on.
    handles: VecDeque<(Instant, Ino)>,
    overflow: bool,
    stop: bool,
    /// Counts the batches taken; the one under way is the last.
    taken: u64,
    /// Batches of which the kernel is being told the last thing, or has been.
    last_thing: u64,
    /// Batches that the kernel has heard.
    heard: u64,
    /// Since when the kernel is being told what it is being told now.
    telling_since: Option<Instant>,
    /// The thread that tells, for [`sleeps`]; `None` before it runs.
    teller: Option<i32>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.inodes.is_empty() && !self.overflow
    }

    /// Takes out what is due by now.
    fn due(&mut self) -> Due {
        let now = Instant::now();
        Due {
            unused: take_due(&mut self.unused, now),
            again: take_due(&mut self.again, now),
            handles: take_due(&mut self.handles, now),
        }
    }

    /// When something will be due.
    fn next_due(&self) -> Option<Instant> {
        let of = |list: &VecDeque<(Instant, Ino)>| list.front().map(|(from, _)| *from);
        [&self.unused, &self.again, &self.handles].into_iter().filter_map(of).min()
    }

    fn overflow(&mut self) {
        self.names.clear();
        self.inodes.clear();
        self.overflow = true;
    }
}

/// What had to wait for its moment.
#[derive(Default, PartialEq, Eq, Debug)]
struct Due {
    unused: Vec<Ino>,
    again: Vec<Ino>,
    handles: Vec<Ino>,
}

impl Due {
    fn is_empty(&self) -> bool {
        self.unused.is_empty() && self.again.is_empty() && self.handles.is_empty()
    }
}

fn take_due(list: &mut VecDeque<(Instant, Ino)>, now: Instant) -> Vec<Ino> {
    let count = list.iter().take_while(|(from, _)| *from <= now).count();
    list.drain(..count).map(|(_, ino)| ino).collect()
}

/// Where changes are queued.
pub(crate) struct Notifier {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    was_heard: Condvar,
    device: Arc<Device>,
    has_epoch: bool,
    has_prune: bool,
    answers: AnswersUnderWay,
    stood_on: Arc<StoodOn>,
    moves: Arc<Moves>,
}

impl Notify for Notifier {
    fn entry_changed(&self, parent: Ino, name: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.overflow {
            return;
        }
        waiting.names.insert((parent, name.into()));
        if waiting.names.len() > MAX_NAMES {
            waiting.overflow();
        }
        self.wake.notify_one();
    }

    fn inode_changed(&self, ino: Ino) {
        let mut waiting = self.waiting.lock();
        if waiting.overflow {
            return;
        }
        waiting.inodes.insert(ino);
        if waiting.inodes.len() > MAX_INODES {
            waiting.overflow();
        }
        self.wake.notify_one();
    }

    /// First it is noted: lookups wait until the kernel has heard.
    fn dir_moved(&self, parent: Ino, name: &[u8]) {
        self.moves.told(parent, name);
        self.entry_changed(parent, name);
    }

    /// The kernel compares a name's epoch, which is that of the moment when it asked, with the
    /// mount's; INC_EPOCH counts the mount's up, and takes no lock.
    fn names_recalled(&self) -> bool {
        if !self.has_epoch {
            return false;
        }
        match drop_names(&self.device, &self.answers, &self.stood_on) {
            Ok(()) => true,
            Err(error) if MOUNT_IS_GOING.contains(&error) => true,
            Err(error) => {
                tracing::warn!(%error, "the kernel would not drop all names from its cache");
                false
            }
        }
    }

    fn names_stay(&self) -> bool {
        self.has_epoch && self.stood_on.is_now()
    }

    /// First, answers under way that may still say that the attributes can be believed reach
    /// the kernel: later ones have asked the file system after the recall.
    ///
    /// Not known to the kernel may be known in a moment: it has the answer that brings the inode, but the
    /// thread that asked takes it in when it runs next. Then no name that was asked for before now is believed, so
    /// that each use of it asks anew, and a file that was opened by such a name is told of a little later.
    fn attr_recalled(&self, ino: Ino) {
        self.answers.wait();
        let told = invalidate_attributes(&self.device, &mut Vec::new(), ino);
        if told == Err(Errno::ENOENT) {
            self.names_recalled();
            self.tell_again(ino);
        }
        report(told, "attributes");
        self.inode_changed(ino);
        self.not_kept(ino);
    }

    fn not_kept(&self, ino: Ino) {
        if !self.has_prune {
            return;
        }
        let mut waiting = self.waiting.lock();
        // One that is left out waits for the kernel to need its memory.
        if waiting.unused.len() < MAX_INODES {
            waiting.unused.push_back((Instant::now() + LET_GO_AFTER, ino));
            self.wake.notify_one();
        }
    }

    fn wait_heard(&self) {
        if !self.heard_within(HEAR_MAX, HEAR_MAX) {
            tracing::warn!("the kernel has not heard yet of names that changed");
        }
    }

    /// A notification of an inode makes the kernel ignore sizes in answers to what it asked before; SEEK_END and
    /// reads near the end then go by the size that it knew. So it must not come after what changed the file returned:
    /// `longest` is how long it may take, not how long the thread that sends it may wait for a processor.
    fn wait_heard_within(&self, longest: Duration) {
        self.heard_within(longest, longest.max(TELL_MAX));
    }
}

impl Notifier {
    /// Attributes of what the kernel may have taken in meanwhile are dropped a little later.
    fn tell_again(&self, ino: Ino) {
        let mut waiting = self.waiting.lock();
        match waiting.again.len() < MAX_INODES {
            true => waiting.again.push_back((Instant::now() + TELL_AGAIN_AFTER, ino)),
            false => waiting.overflow(),
        }
        self.wake.notify_one();
    }

    /// The kernel is told of a name in the directory of handles, and is to forget it a little later.
    pub(crate) fn name_goes(&self, node: u64) {
        let mut waiting = self.waiting.lock();
        // One that is left out waits for the kernel to need its memory.
        if waiting.handles.len() < MAX_INODES {
            waiting.handles.push_back((Instant::now() + NAME_STAYS, Ino(node)));
            self.wake.notify_one();
        }
    }

    /// True when the kernel has heard all that waits now. False if the thread that tells it sleeps in the kernel: after
    /// `told_max` for something else, or after `longest` for the last of it. One that waits for a processor is waited for,
    /// up to [`RUN_MAX`]. A notification that has slept for `told_max` already, while others waited for it, is given no more
    /// than `longest`: else each recall would wait for it anew, one after the other.
    fn heard_within(&self, longest: Duration, told_max: Duration) -> bool {
        let begun = Instant::now();
        let end = begun + told_max.max(RUN_MAX);
        let mut waiting = self.waiting.lock();
        let batch = waiting.taken + u64::from(!waiting.is_empty());
        let mut late_from = begun + told_max;
        let mut is_being_told = false;
        while waiting.heard < batch && !waiting.stop {
            let now = Instant::now();
            if !is_being_told && waiting.last_thing >= batch {
                is_being_told = true;
                late_from = late_from.min(now + longest);
            }
            let stuck_from = waiting.telling_since.map(|since| since + told_max);
            let late =
                stuck_from.map_or(late_from, |from| late_from.min(from.max(begun + longest)));
            if now >= end || (now >= late && waiting.teller.is_none_or(sleeps)) {
                return false;
            }
            let look = late.max(now + LOOK_PAUSE).min(end);
            self.was_heard.wait_until(&mut waiting, look);
        }
        true
    }

    /// A notification begins.
    fn begins_to_tell(&self) {
        self.waiting.lock().telling_since = Some(Instant::now());
    }

    /// The rest of the batch that was taken is one notification.
    fn last_thing(&self) {
        let mut waiting = self.waiting.lock();
        waiting.last_thing = waiting.taken;
        drop(waiting);
        self.was_heard.notify_all();
    }
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// True if a thread of this process waits in the kernel for something else than a processor (proc(5): a state other than R).
pub(crate) fn sleeps(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().split_whitespace().next();
    state != Some("R")
}

/// `NotifyInvalInodeOut::off`: no pages.
const ATTRIBUTES_ONLY: i64 = -1;

impl Notifier {
    pub(crate) fn new(cx: &Connection) -> Notifier {
        Notifier {
            waiting: Mutex::new(Waiting::default()),
            wake: Condvar::new(),
            was_heard: Condvar::new(),
            device: Arc::clone(&cx.device),
            has_epoch: cx.agreed.minor >= abi::MINOR_INC_EPOCH,
            has_prune: cx.agreed.minor >= abi::MINOR_PRUNE,
            answers: cx.lifetimes.answers_under_way(),
            stood_on: cx.lifetimes.stood_on(),
            moves: Arc::clone(&cx.moves),
        }
    }

    /// Lets the thread end; what still waits concerns nobody.
    pub(crate) fn stop(&self) {
        self.waiting.lock().stop = true;
        self.wake.notify_one();
        self.was_heard.notify_all();
    }

    /// What there is to tell, now and of what had to wait; `None` after
    /// [`Notifier::stop`].
    fn next(&self) -> Option<(Waiting, Due)> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.stop {
                return None;
            }
            let due = waiting.due();
            if !waiting.is_empty() || !due.is_empty() {
                let (unused, again) =
                    (std::mem::take(&mut waiting.unused), std::mem::take(&mut waiting.again));
                let handles = std::mem::take(&mut waiting.handles);
                let taken = waiting.taken + 1;
                let (last_thing, heard) = (waiting.last_thing, waiting.heard);
                let teller = waiting.teller;
                let left = Waiting {
                    unused,
                    again,
                    handles,
                    taken,
                    last_thing,
                    heard,
                    teller,
                    ..Waiting::default()
                };
                let batch = std::mem::replace(&mut *waiting, left);
                return Some((batch, due));
            }
            match waiting.next_due() {
                Some(from) => drop(self.wake.wait_until(&mut waiting, from)),
                None => self.wake.wait(&mut waiting),
            }
        }
    }

    /// What the thread does until [`Notifier::stop`].
    pub(crate) fn run(&self, cx: &Connection) {
        let mut message = Vec::new();
        self.waiting.lock().teller = Some(this_thread());
        self.moves.told_by(this_thread());
        while let Some((batch, due)) = self.next() {
            for ino in due.again {
                self.begins_to_tell();
                report(invalidate_attributes(&cx.device, &mut message, ino), "attributes");
            }
            for node in due.handles {
                let name = node.0.to_string();
                self.begins_to_tell();
                let gone =
                    invalidate_entry(&cx.device, &mut message, Ino(DIR_NODE), name.as_bytes());
                report(gone, "a name of a handle");
            }
            self.begins_to_tell();
            report(let_go(&cx.device, &mut message, &due.unused), "unused inodes");
            if batch.overflow {
                drop_everything(cx, &mut message);
                self.moves.forget();
            } else {
                self.tell(&batch, &mut message);
            }
            let mut waiting = self.waiting.lock();
            waiting.heard += 1;
            waiting.telling_since = None;
            drop(waiting);
            self.was_heard.notify_all();
        }
    }

    fn tell(&self, batch: &Waiting, message: &mut Vec<u8>) {
        for (parent, name) in &batch.names {
            self.begins_to_tell();
            report(invalidate_entry(&self.device, message, *parent, name), "a name");
        }
        self.moves.heard(batch.names.iter());
        for (at, &ino) in batch.inodes.iter().enumerate() {
            if at + 1 == batch.inodes.len() {
                self.last_thing();
            }
            self.begins_to_tell();
            report(invalidate_inode(&self.device, message, ino), "an inode");
        }
    }
}

/// What notifications meet at the end of a mount: then the kernel believes nothing any more.
const MOUNT_IS_GOING: [Errno; 4] = [Errno::ENODEV, Errno::ENOTCONN, Errno::EPERM, ECONNABORTED];

/// ENOENT and ENOTDIR: the kernel does not know it, so it caches nothing of it.
fn report(result: Result<(), Errno>, what: &str) {
    const NOT_KNOWN: [Errno; 2] = [Errno::ENOENT, Errno::ENOTDIR];
    if let Err(error) = result {
        if !NOT_KNOWN.contains(&error) && !MOUNT_IS_GOING.contains(&error) {
            tracing::warn!(%error, "the kernel would not drop {what} from its cache");
        }
    }
}

/// No name is believed any more without asking when this returns. Where other mounts stand on names, waits for the end of
/// their lifetimes.
fn drop_names(device: &Device, answers: &AnswersUnderWay, stood_on: &StoodOn) -> Result<(), Errno> {
    match stood_on.outlasts(|| answers.wait()) {
        true => Ok(()),
        false => send(device, &mut Vec::new(), abi::NOTIFY_INC_EPOCH, &[]),
    }
}

fn drop_names_of(cx: &Connection) -> Result<(), Errno> {
    drop_names(&cx.device, &cx.lifetimes.answers_under_way(), &cx.lifetimes.stood_on())
}

fn drop_everything(cx: &Connection, message: &mut Vec<u8>) {
    tracing::warn!("too many changes at once behind the mount: dropping all cached names");
    if cx.agreed.minor >= abi::MINOR_INC_EPOCH {
        report(drop_names_of(cx), "all names");
    }
    for ino in cx.opens.open_inodes() {
        report(invalidate_inode(&cx.device, message, ino), "an inode");
    }
}

/// Drops the name, not only its lifetime: if the file is gone, the kernel's reference to it
/// must go too, or its space would not come back.
fn invalidate_entry(
    device: &Device,
    message: &mut Vec<u8>,
    parent: Ino,
    name: &[u8],
) -> Result<(), Errno> {
    let parent = device.root().node_of(parent);
    let out = abi::NotifyInvalEntryOut { parent, namelen: name.len() as u32, flags: 0 };
    send(device, message, abi::NOTIFY_INVAL_ENTRY, &[out.as_bytes(), name, b"\0"])
}

/// Drops attributes and no pages.
fn invalidate_attributes(device: &Device, message: &mut Vec<u8>, ino: Ino) -> Result<(), Errno> {
    let out =
        abi::NotifyInvalInodeOut { ino: device.root().node_of(ino), off: ATTRIBUTES_ONLY, len: 0 };
    send(device, message, abi::NOTIFY_INVAL_INODE, &[out.as_bytes()])
}

/// These may have been changed by a request whose caller was told that it failed: the kernel believes nothing of them, nor
/// any name, before it has asked.
pub(crate) fn changed_unseen(cx: &Connection, inodes: [Option<Ino>; 2]) {
    if cx.agreed.minor >= abi::MINOR_INC_EPOCH {
        report(drop_names_of(cx), "all names");
    }
    inodes.into_iter().flatten().for_each(|ino| attributes_unknown(&cx.device, ino));
}

/// The kernel asks for attributes of an inode before it believes any; of one that it does not know there are none.
pub(crate) fn attributes_unknown(device: &Device, ino: Ino) {
    report(invalidate_attributes(device, &mut Vec::new(), ino), "attributes");
}

/// Drops attributes and all pages.
fn invalidate_inode(device: &Device, message: &mut Vec<u8>, ino: Ino) -> Result<(), Errno> {
    let out = abi::NotifyInvalInodeOut { ino: device.root().node_of(ino), off: 0, len: 0 };
    send(device, message, abi::NOTIFY_INVAL_INODE, &[out.as_bytes()])
}

/// Drops inodes that nothing uses, with their names.
fn let_go(device: &Device, message: &mut Vec<u8>, inodes: &[Ino]) -> Result<(), Errno> {
    for some in inodes.chunks(PRUNE_AT_ONCE) {
        let out = abi::NotifyPruneOut { count: some.len() as u32, padding: 0, spare: 0 };
        let list: Vec<u8> =
            some.iter().flat_map(|ino| device.root().node_of(*ino).to_ne_bytes()).collect();
        send(device, message, abi::NOTIFY_PRUNE, &[out.as_bytes(), &list])?;
    }
    Ok(())
}

fn send(device: &Device, message: &mut Vec<u8>, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
    let body: usize = parts.iter().map(|p| p.len()).sum();
    let head =
        abi::OutHeader { len: (size_of::<abi::OutHeader>() + body) as u32, error: code, unique: 0 };
    message.clear();
    message.extend_from_slice(head.as_bytes());
    parts.iter().for_each(|p| message.extend_from_slice(p));
    device.send(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notifier() -> Notifier {
        let file = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        Notifier {
            waiting: Mutex::new(Waiting::default()),
            wake: Condvar::new(),
            was_heard: Condvar::new(),
            device: Arc::new(Device::new(file.into())),
            has_epoch: false,
            has_prune: true,
            answers: AnswersUnderWay::default(),
            stood_on: Arc::new(StoodOn::new(None)),
            moves: Arc::default(),
        }
    }

    #[test]
    fn an_old_kernel_cannot_recall_names() {
        assert!(!notifier().names_recalled());
        assert!(Notifier { has_epoch: true, ..notifier() }.names_recalled());
    }

    #[test]
    fn many_changes_of_one_thing_are_one() {
        let n = notifier();
        for _ in 0..3 {
            n.entry_changed(Ino(1), b"a");
            n.inode_changed(Ino(5));
        }
        let (batch, _) = n.next().unwrap();
        assert_eq!((batch.names.len(), batch.inodes.len(), batch.overflow), (1, 1, false));
    }

    #[test]
    fn what_is_not_kept_is_let_go_of_a_moment_later() {
        let n = notifier();
        let begun = Instant::now();
        n.not_kept(Ino(5));
        n.inode_changed(Ino(6));
        let (batch, due) = n.next().unwrap();
        assert!(batch.inodes.contains(&Ino(6)) && due.is_empty(), "changes do not wait for it");
        let (batch, due) = n.next().unwrap();
        assert!(batch.is_empty() && begun.elapsed() >= LET_GO_AFTER);
        assert_eq!(due, Due { unused: vec![Ino(5)], ..Due::default() });
        Notifier { has_prune: false, ..notifier() }.not_kept(Ino(5));
    }

    #[test]
    fn a_notification_that_waits_for_a_processor_is_waited_for_and_one_that_waits_for_pages_is_not()
    {
        const SHORT: Duration = Duration::from_millis(20);
        const LONG: Duration = Duration::from_secs(60);
        let n = notifier();
        // The thread that tells runs late, then is quick.
        n.inode_changed(Ino(5));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(5 * SHORT);
                n.next().unwrap();
                n.last_thing();
                n.waiting.lock().heard += 1;
                n.was_heard.notify_all();
            });
            assert!(n.heard_within(SHORT, LONG));
        });
        // It is in the kernel, which waits for pages.
        n.inode_changed(Ino(6));
        n.next().unwrap();
        n.last_thing();
        let begun = Instant::now();
        assert!(!n.heard_within(SHORT, LONG) && begun.elapsed() < LONG);
    }

    #[test]
    fn a_notification_that_is_stuck_is_waited_for_once_and_not_by_each_recall() {
        const SHORT: Duration = Duration::from_millis(10);
        const LONG: Duration = Duration::from_secs(60);
        let n = notifier();
        n.entry_changed(Ino(1), b"a");
        n.next().unwrap();
        // A request has held the directory of that name for so long.
        n.waiting.lock().telling_since = Instant::now().checked_sub(LONG);
        n.inode_changed(Ino(5));
        let begun = Instant::now();
        assert!(!n.heard_within(SHORT, LONG));
        assert!((SHORT..LONG).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        // The next one has just begun.
        n.begins_to_tell();
        let begun = Instant::now();
        assert!(!n.heard_within(SHORT, 5 * SHORT) && begun.elapsed() >= 5 * SHORT);
    }

    #[test]
    fn a_thread_that_runs_has_not_told_the_kernel_yet() {
        const SHORT: Duration = Duration::from_millis(10);
        const LONG: Duration = Duration::from_secs(60);
        let n = notifier();
        n.inode_changed(Ino(5));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                n.waiting.lock().teller = Some(this_thread());
                n.next().unwrap();
                n.last_thing();
                let begun = Instant::now();
                while begun.elapsed() < 20 * SHORT {
                    std::hint::spin_loop();
                }
                n.waiting.lock().heard += 1;
                n.was_heard.notify_all();
            });
            assert!(n.heard_within(SHORT, LONG));
        });
        // One that sleeps is in the kernel.
        n.inode_changed(Ino(6));
        let (sleeps, awake) = std::sync::mpsc::channel::<()>();
        let n = &n;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                n.waiting.lock().teller = Some(this_thread());
                n.next().unwrap();
                n.last_thing();
                assert!(awake.recv().is_err());
            });
            assert!(!n.heard_within(SHORT, LONG));
            drop(sleeps);
        });
    }

    #[test]
    fn too_many_changes_become_one() {
        let n = notifier();
        n.entry_changed(Ino(1), b"a");
        for i in 0..=MAX_INODES as u64 {
            n.inode_changed(Ino(i));
        }
        n.inode_changed(Ino(5));
        let (batch, _) = n.next().unwrap();
        assert!(batch.overflow && batch.names.is_empty() && batch.inodes.is_empty());
        n.inode_changed(Ino(5));
        assert!(!n.next().unwrap().0.overflow);
        n.stop();
        assert!(n.next().is_none());
    }
}
