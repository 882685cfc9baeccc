//! A buffer that is a cache of Forebay (`buffer.rules = "forebay"`): which file drains and when, what is admitted, what is
//! evicted. Each decision is made by `forebay_policy`, the code that the server asks; here are only the facts of simulated time
//! that it is given, and what its answers mean for simulated requests.
//!
//! Invariants: a file is listed while storage does not have all of it; at most [`WORKERS`] files drain at once; what is on flash
//! and the reserve together never exceed the capacity.
//! Callers: `buffers`, which has the rules of each buffer; `traffic`, which sends what they say.

use forebay_policy::Moment;
use forebay_policy::due::{CacheFacts, Costly, Due, FileFacts, KernelFile, due};
use forebay_policy::eviction::{Eviction, SEGMENT_BYTES};
use forebay_policy::queue::{DrainQueue, Next, WORKERS, WRITTEN_MEANWHILE};
use forebay_policy::room;
use forebay_policy::watermarks::{LOOK, Watermarks};
use forebay_policy::when::{IDLE_DEFAULT, Policy, Watermark, When};
use forebay_sim_engine::TimeNs;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Requests of a file's drain that are under way: one is read from flash while another one is written.
pub(super) const PIPELINE: u32 = 2;

/// What was written in one request and is to drain in one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) bytes: u64,
    pub(super) operations: u32,
    pub(super) process: u32,
    pub(super) job: u32,
    pub(super) server: u32,
    pub(super) file: u64,
    pub(super) offset: u64,
    pub(super) checkpoint: u32,
}

/// A file of which storage does not have everything.
struct Dirty {
    last_write: Moment,
    chunks: VecDeque<Chunk>,
    /// What a worker has taken on of it.
    taken: VecDeque<Chunk>,
    under_way: u32,
    /// Its worker has just begun with it.
    is_new_to_worker: bool,
    /// Offsets and bytes that storage has: they are clean when it has the whole file.
    sent: Vec<(u64, u64)>,
}

/// What a buffer knows, as a server's cache knows it.
pub(super) struct Rules {
    policy: Policy,
    capacity_bytes: u64,
    /// By the files' numbers: of those that are due at once the one that was made first is the first.
    queue: DrainQueue<u64, u64>,
    /// Numbers of files, as they were made: a server's are the inodes.
    numbers: BTreeMap<u64, u64>,
    dirty: BTreeMap<u64, Dirty>,
    /// Processes that have a file open.
    opens: BTreeMap<u64, u32>,
    /// Files that workers have.
    workers: usize,
    marks: Watermarks,
    next_look: Moment,
    is_pressed: bool,
    last_write: Moment,
    clean: Eviction<u64>,
    /// Clean and dirty bytes of segments.
    segments: BTreeMap<(u64, u64), [u64; 2]>,
    clean_bytes: u64,
    /// The earliest time at which an event looks again.
    armed_ns: Option<TimeNs>,
}

/// What is to be done by the rules.
pub(super) enum Turn {
    /// To ask once more.
    Again,
    /// A worker has taken on this file, and begins with it.
    Drains(u64),
    /// Nothing; with a time, not before that.
    Waits(Option<Moment>),
}

/// What is left to decide when a request of a drain has ended.
pub(super) struct Sent {
    /// Bytes that storage has now with the whole of their file.
    pub(super) clean_bytes: u64,
    /// Files of which storage does not have everything.
    files: u64,
}

/// The only fact that simulated files have for what costs something to find.
struct Facts(Moment);

impl Costly for Facts {
    fn kernel_file(&mut self) -> Option<KernelFile> {
        None
    }

    fn last_foreground_write(&mut self) -> Option<Moment> {
        Some(self.0)
    }
}

/// Simulated time as the rules take it.
pub(super) fn moment(now_ns: TimeNs) -> Moment {
    Moment::default() + Duration::from_nanos(now_ns)
}

pub(super) fn ns_of(moment: Moment) -> TimeNs {
    u64::try_from(moment.since(Moment::default()).as_nanos()).unwrap_or(u64::MAX)
}

/// The key of a request's file: the same in all jobs, unless its path has the job's name.
pub(super) fn file_key(request_file: u64, job: u32) -> u64 {
    request_file ^ u64::from(job) << 48
}

impl Rules {
    /// Of a buffer of this capacity.
    pub(super) fn new(policy: Policy, capacity_bytes: u64) -> Rules {
        Rules {
            policy,
            capacity_bytes,
            queue: DrainQueue::default(),
            numbers: BTreeMap::new(),
            dirty: BTreeMap::new(),
            opens: BTreeMap::new(),
            workers: 0,
            marks: Watermarks::default(),
            next_look: moment(0) + LOOK,
            is_pressed: false,
            last_write: moment(0),
            clean: Eviction::new(capacity_bytes),
            segments: BTreeMap::new(),
            clean_bytes: 0,
            armed_ns: None,
        }
    }

    /// The number of a file, which it gets when it is first seen.
    fn number(&mut self, key: u64) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry(key).or_insert(next)
    }

    fn watermarks(&self) -> Vec<Watermark> {
        self.policy.watermark.into_iter().collect()
    }

    pub(super) fn clean_bytes(&self) -> u64 {
        self.clean_bytes
    }

    /// Everything is lost; what had not begun to drain is told, and how many bytes storage has of files that are not whole
    /// there.
    pub(super) fn lose(&mut self) -> (Vec<Chunk>, u64) {
        let (mut lost, mut sent_bytes) = (Vec::new(), 0);
        for (key, mut file) in std::mem::take(&mut self.dirty) {
            let number = self.number(key);
            lost.extend(file.chunks.drain(..));
            lost.extend(file.taken.drain(..));
            sent_bytes += file.sent.drain(..).map(|(_, bytes)| bytes).sum::<u64>();
            // A worker ends with what is under way.
            match file.under_way {
                0 => drop(self.queue.remove(number)),
                _ => drop(self.dirty.insert(key, file)),
            }
        }
        self.clean = Eviction::new(self.capacity_bytes);
        (self.segments, self.clean_bytes) = (BTreeMap::new(), 0);
        (lost, sent_bytes)
    }

    /// Whether a part of a file is here; a read of it is a use. What is here of a segment is taken to be its begin.
    pub(super) fn has(&mut self, key: u64, offset: u64, bytes: u64) -> bool {
        let segment = self.segments.get(&(key, offset / SEGMENT_BYTES));
        let wanted = (offset % SEGMENT_BYTES + bytes).min(SEGMENT_BYTES);
        let has = segment.is_some_and(|[clean, dirty]| clean + dirty >= wanted);
        if has {
            self.clean.used(key, offset);
        }
        has
    }

    fn change_segments(
        &mut self,
        key: u64,
        offset: u64,
        bytes: u64,
        change: impl Fn(&mut [u64; 2], u64, u64),
    ) {
        let mut at = offset;
        while at < offset + bytes {
            let number = at / SEGMENT_BYTES;
            let end = ((number + 1) * SEGMENT_BYTES).min(offset + bytes);
            let segment = self.segments.entry((key, number)).or_default();
            change(segment, at % SEGMENT_BYTES, end - at);
            if *segment == [0, 0] {
                self.segments.remove(&(key, number));
            }
            at = end;
        }
    }

    /// Clean bytes of the segments of a range.
    fn clean_in(&self, key: u64, offset: u64, bytes: u64) -> u64 {
        let last = (offset + bytes.max(1) - 1) / SEGMENT_BYTES;
        let range = (key, offset / SEGMENT_BYTES)..=(key, last);
        self.segments.range(range).map(|(_, [clean, _])| clean).sum()
    }

    /// Clean data came, or dirty data became clean.
    fn is_clean(&mut self, key: u64, offset: u64, bytes: u64, was_dirty: bool) {
        self.change_segments(key, offset, bytes, |segment, _, part| {
            segment[0] += part;
            segment[1] = segment[1].saturating_sub(if was_dirty { part } else { 0 });
        });
        self.clean_bytes += bytes;
        self.clean.came(key, offset, bytes);
    }

    /// What a read brought from storage stays.
    pub(super) fn fill(&mut self, key: u64, offset: u64, bytes: u64) {
        self.is_clean(key, offset, bytes, false);
    }

    /// A write to a file is on flash.
    pub(super) fn written(&mut self, chunk: Chunk, now: Moment) {
        let key = file_key(chunk.file, chunk.job);
        self.last_write = now;
        // What is written again is not clean any more.
        let before = self.clean_in(key, chunk.offset, chunk.bytes);
        self.change_segments(key, chunk.offset, chunk.bytes, |segment, begin, part| {
            let again = (segment[0] + segment[1]).saturating_sub(begin).min(part);
            segment[0] -= segment[0].min(again);
            segment[1] += part;
        });
        self.clean_bytes -= before - self.clean_in(key, chunk.offset, chunk.bytes);
        let number = self.number(key);
        let file = self.dirty.entry(key).or_insert_with(|| {
            self.queue.add(number, key, now + IDLE_DEFAULT, now);
            Dirty {
                last_write: now,
                chunks: VecDeque::new(),
                taken: VecDeque::new(),
                under_way: 0,
                is_new_to_worker: false,
                sent: Vec::new(),
            }
        });
        file.last_write = now;
        file.chunks.push_back(chunk);
    }

    /// A process opens a file for a step that writes, or closes it at the step's end: its policy may want it then. True if the
    /// last one has closed it.
    pub(super) fn opens(&mut self, key: u64, opens: bool, now: Moment) -> bool {
        let number = self.number(key);
        let count = self.opens.entry(key).or_default();
        if opens {
            *count += 1;
            return false;
        }
        *count = count.saturating_sub(1);
        let is_last = *count == 0;
        if is_last {
            self.opens.remove(&key);
            self.queue.set_due(number, now);
        }
        is_last
    }

    /// No job is left: everything drains, whatever its policy says.
    pub(super) fn ask_for_all(&mut self, now: Moment) {
        let keys: Vec<u64> = self.dirty.keys().copied().collect();
        for key in keys {
            let number = self.number(key);
            self.queue.ask(number, now);
        }
    }

    /// Drops clean data, if possible of so many bytes; `tell` gets the file of each segment that goes. False if none may go.
    pub(super) fn evict(&mut self, wanted: u64, mut tell: impl FnMut(u64)) -> bool {
        let chosen = self.clean.choose(wanted);
        let is_any = !chosen.is_empty();
        for (key, number) in chosen {
            let Some(segment) = self.segments.get_mut(&(key, number)) else { continue };
            let gone = std::mem::take(&mut segment[0]);
            if segment[1] == 0 {
                self.segments.remove(&(key, number));
            }
            self.clean_bytes -= gone;
            tell(key);
        }
        is_any
    }

    /// A write waits for room: drains are asked for.
    pub(super) fn press(&mut self, now: Moment) {
        if !std::mem::replace(&mut self.is_pressed, true) {
            self.queue.look_again(now);
        }
    }

    /// What a worker that is free does next. `undrained_bytes` have not begun to drain, of a buffer of `room_bytes`.
    pub(super) fn turn(&mut self, now: Moment, undrained_bytes: u64, room_bytes: u64) -> Turn {
        if self.workers >= WORKERS {
            return Turn::Waits(None);
        }
        let set = self.watermarks();
        // Without a dirty file there is nothing that a look could bring.
        let look = (!set.is_empty() && !self.queue.is_empty()).then_some(self.next_look);
        match self.queue.next(now, look) {
            Next::Look => {
                self.next_look = now + LOOK;
                if self.marks.begin_look(&set, now)
                    && self.marks.looked(&set, undrained_bytes, room_bytes, (now, Duration::ZERO))
                {
                    self.queue.look_again(now);
                }
                Turn::Again
            }
            Next::File { file: key, asked, since } => match self.takes(key, (asked, since), now) {
                Some(bytes) => {
                    self.workers += 1;
                    self.marks.drains(&set, bytes, room_bytes);
                    Turn::Drains(key)
                }
                None => Turn::Again,
            },
            Next::Wait(until) => {
                // What is never drained by itself is not looked at for ever.
                let waits = self.policy.when != When::Never && !self.queue.is_empty();
                Turn::Waits(until.filter(|_| waits))
            }
        }
    }

    /// A worker takes on what there is of a file, if its policy lets it; bytes.
    fn takes(&mut self, key: u64, (asked, since): (bool, Moment), now: Moment) -> Option<u64> {
        let over = self.policy.watermark.is_some_and(|mark| self.marks.is_over(mark));
        let number = self.number(key);
        let Some(file) = self.dirty.get_mut(&key) else {
            self.queue.remove(number);
            return None;
        };
        let facts = FileFacts {
            since,
            last_write: file.last_write,
            opens: self.opens.get(&key).copied().unwrap_or(0).into(),
            kernel_writes: false,
            needs_decision: false,
        };
        let cache = CacheFacts { is_pressed: self.is_pressed, is_over_watermark: over };
        let mut costly = Facts(self.last_write);
        if !asked && let Due::At(later) = due(&self.policy, &facts, cache, now, &mut costly) {
            self.queue.put_back(number, later, false, now);
            return None;
        }
        file.taken = std::mem::take(&mut file.chunks);
        if file.taken.is_empty() {
            self.dirty.remove(&key);
            self.queue.remove(number);
            return None;
        }
        let bytes = file.taken.iter().map(|chunk| chunk.bytes).sum();
        file.is_new_to_worker = true;
        Some(bytes)
    }

    /// Whether an event is to look again then: none looks earlier.
    pub(super) fn arms(&mut self, until_ns: TimeNs) -> bool {
        let is_first = self.armed_ns.is_none_or(|armed_ns| until_ns < armed_ns);
        if is_first {
            self.armed_ns = Some(until_ns);
        }
        is_first
    }

    /// An event that looks again has come.
    pub(super) fn has_come(&mut self, now_ns: TimeNs) {
        if self.armed_ns.is_some_and(|armed_ns| armed_ns <= now_ns) {
            self.armed_ns = None;
        }
    }

    /// The next request of a file that a worker has, and whether it is the first one of it.
    pub(super) fn next_chunk(&mut self, key: u64) -> Option<(Chunk, bool)> {
        let file = self.dirty.get_mut(&key)?;
        let chunk = file.taken.pop_front()?;
        file.under_way += 1;
        Some((chunk, std::mem::take(&mut file.is_new_to_worker)))
    }

    /// A request of a file's drain has ended; `came`: storage has these bytes at this offset.
    pub(super) fn ended(&mut self, key: u64, came: Option<(u64, u64)>, now: Moment) -> Sent {
        let number = self.number(key);
        let mut whole = Vec::new();
        if let Some(file) = self.dirty.get_mut(&key) {
            file.under_way -= 1;
            file.sent.extend(came);
            if file.under_way == 0 && file.taken.is_empty() {
                whole = std::mem::take(&mut file.sent);
                self.workers -= 1;
                if file.chunks.is_empty() {
                    self.dirty.remove(&key);
                    self.queue.remove(number);
                } else {
                    // As the server does with what was written meanwhile.
                    self.queue.dirty_since(number, now);
                    self.queue.put_back(number, now + WRITTEN_MEANWHILE, false, now);
                }
            }
        }
        for &(offset, bytes) in &whole {
            self.is_clean(key, offset, bytes, true);
        }
        let clean_bytes = whole.iter().map(|(_, bytes)| bytes).sum();
        Sent { clean_bytes, files: self.dirty.len() as u64 }
    }

    /// Whether writes wait no more for what was sent, or for what is clean: `used_bytes` of `room_bytes` are on flash.
    pub(super) fn eases(
        &mut self,
        sent: &Sent,
        used_bytes: u64,
        room_bytes: u64,
        has_waiting: bool,
    ) {
        let free = room::free_bytes(used_bytes, room_bytes, 0);
        if self.is_pressed
            && !room::is_tight((free, self.clean_bytes, room_bytes), (u64::MAX, sent.files))
            && !has_waiting
        {
            self.is_pressed = false;
        }
    }
}
