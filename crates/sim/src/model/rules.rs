//! A buffer that is a cache of Forebay (`buffer.rules = "forebay"`): which file drains and when, what is admitted, what is
//! evicted. Each decision is made by `forebay_policy`, the code that the server asks; here are only the facts of simulated time
//! that it is given, and what its answers mean for simulated requests.
//!
//! Invariants: a file is listed while storage does not have all of it; at most [`WORKERS`] files drain at once; what is on flash
//! and the reserve together never exceed the capacity.
//! Caller: `buffers`.

use super::outcome::{Decided, Decision};
use super::{Event, Request, Sim};
use crate::machine::DrainWhen;
use forebay_policy::Moment;
use forebay_policy::due::{CacheFacts, Costly, Due, FileFacts, KernelFile, due};
use forebay_policy::eviction::{Eviction, SEGMENT_BYTES};
use forebay_policy::queue::{DrainQueue, Next, WORKERS, WRITTEN_MEANWHILE};
use forebay_policy::room;
use forebay_policy::watermarks::{LOOK, Watermarks};
use forebay_policy::when::{IDLE_DEFAULT, Policy, Watermark, When};
use forebay_sim_engine::TimeNs;
use forebay_sim_engine::queue::Queue;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Requests of a file's drain that are under way: one is read from flash while another one is written.
const PIPELINE: u32 = 2;

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

fn ns_of(moment: Moment) -> TimeNs {
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
    pub(super) fn is_clean(&mut self, key: u64, offset: u64, bytes: u64, was_dirty: bool) {
        self.change_segments(key, offset, bytes, |segment, _, part| {
            segment[0] += part;
            segment[1] = segment[1].saturating_sub(if was_dirty { part } else { 0 });
        });
        self.clean_bytes += bytes;
        self.clean.came(key, offset, bytes);
    }
}

impl Sim<'_> {
    /// What a read brought from storage stays, where there is room for it.
    pub(super) fn fill(&mut self, request: &Request) {
        let at = request.place.buffer as usize;
        if self.has_rules() && self.room_by_rules(at, request.bytes) {
            let key = file_key(request.file, request.job);
            if let Some(rules) = self.rules(at) {
                rules.is_clean(key, request.offset, request.bytes, false);
            }
        }
    }

    fn rules(&mut self, at: usize) -> Option<&mut Rules> {
        self.buffers.rules(at)
    }

    fn decide(&mut self, what: Decided, key: u64, at: usize) {
        if self.options.decisions {
            let at_s = self.now_ns as f64 / 1e9;
            let file = self.program.file_name((key >> 32) as u32, key as u32);
            self.decisions.push(Decision { at_s, what, file, buffer: at as u32 });
        }
    }

    /// A file begins at this buffer.
    pub(super) fn decide_place(&mut self, key: u64, at: u32) {
        self.decide(Decided::Place, key, at as usize);
    }

    /// A write to a file is on flash.
    pub(super) fn list_dirty(&mut self, at: usize, chunk: Chunk) {
        let now = moment(self.now_ns);
        let key = file_key(chunk.file, chunk.job);
        let Some(rules) = self.rules(at) else { return };
        rules.last_write = now;
        // What is written again is not clean any more.
        let before = rules.clean_in(key, chunk.offset, chunk.bytes);
        rules.change_segments(key, chunk.offset, chunk.bytes, |segment, begin, part| {
            let again = (segment[0] + segment[1]).saturating_sub(begin).min(part);
            segment[0] -= segment[0].min(again);
            segment[1] += part;
        });
        rules.clean_bytes -= before - rules.clean_in(key, chunk.offset, chunk.bytes);
        let number = rules.number(key);
        let file = rules.dirty.entry(key).or_insert_with(|| {
            rules.queue.add(number, key, now + IDLE_DEFAULT, now);
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

    /// A process opens a file for a step that writes, or closes it at the step's end: its policy may want it then.
    pub(super) fn file_opens(&mut self, at: usize, key: u64, opens: bool) {
        let now = moment(self.now_ns);
        let Some(rules) = self.rules(at) else { return };
        let number = rules.number(key);
        let count = rules.opens.entry(key).or_default();
        if opens {
            *count += 1;
            return;
        }
        *count = count.saturating_sub(1);
        if *count == 0 {
            rules.opens.remove(&key);
            rules.queue.set_due(number, now);
            self.pump_by_rules(at);
        }
    }

    /// No job is left: everything drains, whatever its policy says.
    pub(super) fn ask_for_all(&mut self, at: usize) {
        let now = moment(self.now_ns);
        let Some(rules) = self.rules(at) else { return };
        let keys: Vec<u64> = rules.dirty.keys().copied().collect();
        for key in keys {
            let number = rules.number(key);
            rules.queue.ask(number, now);
        }
    }

    /// Whether there is room for so many bytes, when clean data has gone that may.
    pub(super) fn room_by_rules(&mut self, at: usize, bytes: u64) -> bool {
        loop {
            let (used, capacity) = self.buffers.used(at);
            let free = room::free_bytes(used, capacity, 0);
            let Some(wanted) = room::to_evict(bytes, free) else { return true };
            let Some(rules) = self.rules(at) else { return true };
            let chosen = rules.clean.choose(wanted);
            if chosen.is_empty() {
                return false;
            }
            for (key, number) in chosen {
                let Some(rules) = self.rules(at) else { return true };
                let Some(segment) = rules.segments.get_mut(&(key, number)) else { continue };
                let gone = std::mem::take(&mut segment[0]);
                if segment[1] == 0 {
                    rules.segments.remove(&(key, number));
                }
                rules.clean_bytes -= gone;
                self.decide(Decided::Evict, key, at);
            }
        }
    }

    /// A write waits for room: drains are asked for.
    pub(super) fn press(&mut self, at: usize) {
        let now = moment(self.now_ns);
        let Some(rules) = self.rules(at) else { return };
        if !std::mem::replace(&mut rules.is_pressed, true) {
            rules.queue.look_again(now);
        }
        self.pump_by_rules(at);
    }

    /// Workers that are free take what is due.
    pub(super) fn pump_by_rules(&mut self, at: usize) {
        let now = moment(self.now_ns);
        loop {
            let (_, capacity) = self.buffers.used(at);
            let undrained = self.buffers.undrained_bytes(at);
            let Some(rules) = self.rules(at) else { return };
            if rules.workers >= WORKERS {
                return;
            }
            let set = rules.watermarks();
            // Without a dirty file there is nothing that a look could bring.
            let look = (!set.is_empty() && !rules.queue.is_empty()).then_some(rules.next_look);
            match rules.queue.next(now, look) {
                Next::Look => {
                    rules.next_look = now + LOOK;
                    if rules.marks.begin_look(&set, now)
                        && rules.marks.looked(&set, undrained, capacity, (now, Duration::ZERO))
                    {
                        rules.queue.look_again(now);
                    }
                }
                Next::File { file: key, asked, since } => {
                    let over = rules.policy.watermark.is_some_and(|mark| rules.marks.is_over(mark));
                    let number = rules.number(key);
                    let Some(file) = rules.dirty.get_mut(&key) else {
                        rules.queue.remove(number);
                        continue;
                    };
                    let facts = FileFacts {
                        since,
                        last_write: file.last_write,
                        opens: rules.opens.get(&key).copied().unwrap_or(0).into(),
                        kernel_writes: false,
                        needs_decision: false,
                    };
                    let cache =
                        CacheFacts { is_pressed: rules.is_pressed, is_over_watermark: over };
                    let mut costly = Facts(rules.last_write);
                    if !asked
                        && let Due::At(later) = due(&rules.policy, &facts, cache, now, &mut costly)
                    {
                        rules.queue.put_back(number, later, false, now);
                        continue;
                    }
                    file.taken = std::mem::take(&mut file.chunks);
                    if file.taken.is_empty() {
                        rules.dirty.remove(&key);
                        rules.queue.remove(number);
                        continue;
                    }
                    let bytes = file.taken.iter().map(|chunk| chunk.bytes).sum();
                    file.is_new_to_worker = true;
                    rules.workers += 1;
                    rules.marks.drains(&set, bytes, capacity);
                    self.decide(Decided::Drain, key, at);
                    for _ in 0..PIPELINE {
                        self.drain_next(at, key);
                    }
                }
                Next::Wait(until) => {
                    // What is never drained by itself is not looked at for ever.
                    let waits = rules.policy.when != When::Never && !rules.queue.is_empty();
                    let Some(until) = until.filter(|_| waits) else { return };
                    let until_ns = ns_of(until).max(self.now_ns + 1);
                    let Some(rules) = self.rules(at) else { return };
                    if rules.armed_ns.is_none_or(|armed_ns| until_ns < armed_ns) {
                        rules.armed_ns = Some(until_ns);
                        self.queue.push(until_ns, Event::Pump(at as u32));
                    }
                    return;
                }
            }
        }
    }

    /// An event that looks again has come.
    pub(super) fn look_again_by_rules(&mut self, at: usize) {
        let now_ns = self.now_ns;
        let Some(rules) = self.rules(at) else { return };
        if rules.armed_ns.is_some_and(|armed_ns| armed_ns <= now_ns) {
            rules.armed_ns = None;
        }
        self.pump_by_rules(at);
    }

    /// The next request of a file that a worker has; its pace may let it begin later.
    fn drain_next(&mut self, at: usize, key: u64) {
        let Some(settings) = &self.machine.buffer else { return };
        let Some(rules) = self.rules(at) else { return };
        let Some(file) = rules.dirty.get_mut(&key) else { return };
        let Some(chunk) = file.taken.pop_front() else { return };
        file.under_way += 1;
        // What a file takes besides its bytes is taken before its first ones.
        let per_file_ns = match std::mem::take(&mut file.is_new_to_worker) {
            true => (settings.drain.per_file_s * 1e9) as u64,
            false => 0,
        };
        let ready_ns = self.now_ns + per_file_ns;
        let begins_ns = match settings.drain.limit_bytes_per_s {
            None => ready_ns,
            Some(limit) => {
                let ready = moment(ready_ns);
                ns_of(self.buffers.pace(at, chunk.bytes, limit, ready)).max(ready_ns)
            }
        };
        let index = self.drain_request(at, settings.attach, &chunk);
        match begins_ns > self.now_ns {
            true => self.queue.push(begins_ns, Event::Hop(index)),
            false => self.hop(index),
        }
    }

    /// A request of a drain has ended, well or because its buffer was lost.
    /// `came`: storage has it.
    pub(super) fn drained_by_rules(&mut self, request: &Request, came: bool) {
        let at = request.place.buffer as usize;
        let now = moment(self.now_ns);
        let key = file_key(request.file, request.job);
        self.drain_next(at, key);
        let Some(rules) = self.rules(at) else { return };
        let number = rules.number(key);
        let mut whole = Vec::new();
        if let Some(file) = rules.dirty.get_mut(&key) {
            file.under_way -= 1;
            if came {
                file.sent.push((request.offset, request.bytes));
            }
            if file.under_way == 0 && file.taken.is_empty() {
                whole = std::mem::take(&mut file.sent);
                rules.workers -= 1;
                if file.chunks.is_empty() {
                    rules.dirty.remove(&key);
                    rules.queue.remove(number);
                } else {
                    // As the server does with what was written meanwhile.
                    rules.queue.dirty_since(number, now);
                    rules.queue.put_back(number, now + WRITTEN_MEANWHILE, false, now);
                }
            }
        }
        for &(offset, bytes) in &whole {
            rules.is_clean(key, offset, bytes, true);
        }
        let files = rules.dirty.len() as u64;
        self.is_on_storage(at, whole.iter().map(|(_, bytes)| bytes).sum());
        let (used, capacity) = self.buffers.used(at);
        let Some(rules) = self.rules(at) else { return };
        let free = room::free_bytes(used, capacity, 0);
        if rules.is_pressed
            && !room::is_tight((free, rules.clean_bytes, capacity), (u64::MAX, files))
            && !self.buffers.has_waiting(at)
            && let Some(rules) = self.rules(at)
        {
            rules.is_pressed = false;
        }
        self.pump_by_rules(at);
    }

    /// Whether the machine's buffers are Forebay's: its code says where files go.
    pub(super) fn has_placement(&self) -> bool {
        self.machine.buffer.as_ref().is_some_and(|buffer| buffer.forebay)
    }

    /// Whether it also says when they drain, and what is let in and goes: of buffers that write back.
    pub(super) fn has_rules(&self) -> bool {
        self.machine.buffer.as_ref().is_some_and(|b| matches!(b.drain.when, DrainWhen::Policy(_)))
    }
}
