//! Room on flash: how much is kept free, when clean data goes, whether a kernel may write by itself, and when a writer
//! that waits gets an error. All in bytes, but for the files.

use crate::Moment;
use crate::changed::{self, Change};
use std::time::Duration;

/// Least that is evicted at a time, so that not every write has to.
pub const EVICT_MIN_BYTES: u64 = 8 << 20;
/// Part of the capacity that is kept free for maps and for writes by kernels.
pub const RESERVE_SHARE: u64 = 64;
/// Part of the capacity that must be free or clean for a kernel to get a file for writing.
pub const HEADROOM_SHARE: u64 = 4;
/// Parts of the capacity (one in so many) between which room is kept while kernels write files themselves,
/// which wait for nobody: when less is free clean data goes, until more is. The least: see [`Ahead`].
pub const LOW_SHARE: u64 = 8;
/// Pauses between two looks at the room while kernels write: what the fastest flash could write
/// meanwhile is a small part of what is kept.
pub const LOOK_LEAST: Duration = Duration::from_millis(5);
/// The longest.
pub const LOOK_MOST: Duration = Duration::from_millis(100);
/// So late whoever looks may come all at once, without having been late before, where kernels were seen to write: what they
/// write meanwhile is kept free, up to a part of the capacity ([`Ahead`]). A kernel that writes asks nobody, so no more
/// than what is free when a stall begins can be promised.
pub const STALL_HELD: Duration = Duration::from_secs(5);
/// So long files that are opened for writing are served, and wait for room, after one of a kernel has outrun who looks
/// ([`Ahead::is_outrun`]).
pub const OUTRUN_FOR: Duration = Duration::from_secs(10);
/// The fastest flash, for that.
const FLASH_BYTES_PER_S: u64 = 8 << 30;
/// Part of the capacity that may be written between two looks at the space.
const CREDIT_SHARE: u64 = 128;
/// How often in a row a writer sees that nothing can drain, before it gets an error.
pub const HOPELESS_LOOKS: u32 = 20;
/// So long nothing is filled in that flash had no room for.
pub const FILLS_PAUSE: Duration = Duration::from_secs(2);

/// Bytes of the capacity that are kept free.
pub fn reserve_bytes(capacity_bytes: u64) -> u64 {
    let share = if changed::is(Change::Room) { 2 } else { RESERVE_SHARE };
    capacity_bytes / share
}

/// Bytes that may be given away: what is free, less the reserve and what fills were promised.
pub fn free_bytes(used_bytes: u64, capacity_bytes: u64, promised_bytes: u64) -> u64 {
    let kept = reserve_bytes(capacity_bytes) + promised_bytes;
    capacity_bytes.saturating_sub(used_bytes).saturating_sub(kept)
}

/// Bytes that must be free or clean for a kernel to get a file for writing.
pub fn headroom_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes / HEADROOM_SHARE
}

/// Whether a kernel may get a file for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Headroom {
    /// It may.
    Free,
    /// It may, once so much is free: clean data goes now, since nobody waits for it later.
    Evict(u64),
    /// It may not: its writes are served, and wait.
    None,
}

/// Whether enough is free or clean that a kernel may write without asking.
pub fn headroom(free_bytes: u64, clean_bytes: u64, capacity_bytes: u64) -> Headroom {
    let wanted = headroom_bytes(capacity_bytes);
    match free_bytes {
        free if free >= wanted => Headroom::Free,
        free if free + clean_bytes >= wanted => Headroom::Evict(wanted),
        _ => Headroom::None,
    }
}

/// True if writers would have to wait soon: for bytes, or for files (all but those that are dirty are free, or can go).
pub fn is_tight(
    (free_bytes, clean_bytes, capacity_bytes): (u64, u64, u64),
    (files, dirty_files): (u64, u64),
) -> bool {
    free_bytes + clean_bytes < headroom_bytes(capacity_bytes)
        || files.saturating_sub(dirty_files) < files / HEADROOM_SHARE
}

/// How much is to be evicted for a write of so many bytes; `None` if enough is free.
pub fn to_evict(bytes: u64, free_bytes: u64) -> Option<u64> {
    (free_bytes < bytes).then(|| (bytes - free_bytes).max(EVICT_MIN_BYTES))
}

/// Bytes that may be written before the space is looked at again, with so much free after a write.
pub fn credit_bytes(left_bytes: u64, capacity_bytes: u64) -> u64 {
    left_bytes.min(capacity_bytes / CREDIT_SHARE) / 2
}

/// True for a write that could not be done even if half of the capacity were free: it does not wait.
pub fn is_too_large(bytes: u64, capacity_bytes: u64) -> bool {
    bytes > capacity_bytes / 2
}

/// What is to be done about the room while kernels write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keep {
    /// Clean data that goes now; `None` while enough is free.
    pub evict_bytes: Option<u64>,
    /// What is clean is not enough: drains are asked for.
    pub press: bool,
}

/// What is to be done, with so much free and clean, so that kernels meet a full flash only when all there is dirty. `low`
/// is [`Ahead::low_bytes`].
pub fn keep(free_bytes: u64, clean_bytes: u64, low: u64, capacity_bytes: u64) -> Keep {
    if free_bytes >= low {
        return Keep::default();
    }
    let high = low + capacity_bytes / LOW_SHARE;
    Keep { evict_bytes: Some(high - free_bytes), press: free_bytes + clean_bytes < low }
}

/// How fast kernels write, and how late whoever looks after their room comes to it: what they may have written by then is
/// kept free. Both are the most that was seen, and fade over [`FADE_OVER`]. Lateness counts as [`STALL_HELD`] at least: the
/// first stall is seen only when it is over.
///
/// Held are so stalls of `STALL_HELD` at a rate that was seen at two looks, as long as what is written meanwhile and in
/// [`LOOK_MOST`] is no more than half of the capacity (else stalls in which half of it is written); before that, stalls in which
/// no more is written than is free at the open of a file, a quarter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    bytes_per_s: f64,
    late: Duration,
    /// When the last look was over, how much was free then, and the pause after it.
    last: Option<(Moment, u64, Duration)>,
    /// Until then what was seen has faded.
    faded: Option<Moment>,
    /// When kernels began to have files for writing.
    begun: Option<Moment>,
    /// That was longer ago than [`FADE_OVER`]: what they have not written by now they will not write at once.
    is_old: bool,
    /// What was written until the last look, if that came too late; else 0.
    written_late: u64,
}

/// See [`Ahead`].
const FADE_OVER: Duration = Duration::from_secs(10);
/// Most of the capacity (one part in so many) that is kept free, whatever the rate.
const AHEAD_MOST_SHARE: u64 = 2;
/// A look that comes so late, beside its pause, is late by a stall and not by a busy processor.
const LATE_LEAST: Duration = LOOK_MOST;

impl Ahead {
    /// A look begins, with so much free.
    pub fn looks(&mut self, now: Moment, free_bytes: u64) {
        self.fade(now);
        let begun = *self.begun.get_or_insert(now);
        self.is_old = now.since(begun) >= FADE_OVER;
        self.written_late = 0;
        let Some((then, left, pause)) = self.last.take() else { return };
        let took = now.since(then);
        let written = left.saturating_sub(free_bytes);
        // Of a moment no rate can be told.
        if took >= LOOK_LEAST / 2 {
            self.bytes_per_s = self.bytes_per_s.max(written as f64 / took.as_secs_f64());
        }
        let late = took.saturating_sub(pause);
        if late >= LATE_LEAST {
            self.written_late = written;
        }
        self.late = self.late.max(late);
    }

    /// At a look: true if kernels were faster than their room can be looked after. They met a full flash, or would in a stall
    /// twice as long as the last one although as much is kept free as ever is; and there is clean data, for which a writer
    /// that is served could have waited.
    pub fn is_outrun(&self, free_bytes: u64, clean_bytes: u64, capacity_bytes: u64) -> bool {
        let most = capacity_bytes / AHEAD_MOST_SHARE;
        clean_bytes > 0 && (free_bytes == 0 || self.written_late > most / 2)
    }

    /// By time and not by looks: those come as fast as room is scarce.
    fn fade(&mut self, now: Moment) {
        let Some(before) = self.faded.replace(now) else { return };
        let gone = now.since(before).as_secs_f64() / FADE_OVER.as_secs_f64();
        let stays = (1.0 - gone).max(0.0);
        self.bytes_per_s *= stays;
        self.late = self.late.mul_f64(stays);
    }

    /// The look that began then is over; the next one comes after a pause.
    pub fn looked(&mut self, begun: Moment, now: Moment, free_bytes: u64, pause: Duration) {
        self.late = self.late.max(now.since(begun));
        self.last = Some((now, free_bytes, pause));
    }

    /// How late the last look came at the worst lately, or how long it took.
    pub fn late(&self) -> Duration {
        self.late
    }

    /// Kernels have stopped to write. What was seen of them is for the next file, too.
    pub fn rests(&mut self) {
        *self = Ahead { last: None, begun: None, is_old: false, written_late: 0, ..*self };
    }

    /// Below this clean data goes.
    pub fn low_bytes(&self, capacity_bytes: u64) -> u64 {
        // The next look may be as late once more, and what goes then takes as long.
        let unseen = LOOK_MOST + self.late + self.late.max(STALL_HELD);
        let written = (self.bytes_per_s * unseen.as_secs_f64()) as u64;
        let least = match self.is_old {
            true => capacity_bytes / LOW_SHARE,
            false => headroom_bytes(capacity_bytes),
        };
        written.clamp(least, capacity_bytes / AHEAD_MOST_SHARE)
    }
}

/// How long until the room is looked at again.
pub fn look_pause(free_bytes: u64, capacity_bytes: u64) -> Duration {
    let spare = free_bytes.saturating_sub(capacity_bytes / LOW_SHARE / 2);
    let until_scarce = Duration::from_secs_f64(spare as f64 / FLASH_BYTES_PER_S as f64);
    until_scarce.clamp(LOOK_LEAST, LOOK_MOST)
}

/// What somebody who waits for room has met so far.
#[derive(Clone, Copy, Default, Debug)]
pub struct Waiter {
    short: u32,
    hopeless: u32,
}

impl Waiter {
    /// Flash had no room in spite of the count. True the first time: others may have been faster, so it tries again.
    pub fn met_short(&mut self) -> bool {
        self.short += 1;
        self.short == 1
    }

    /// It has looked whether anything can drain. False if it is to give up: nothing could at [`HOPELESS_LOOKS`] looks in
    /// a row. A drain that has just ended, a fetch or another writer gives back in a moment what it has taken.
    pub fn goes_on(&mut self, is_hopeless: bool) -> bool {
        self.hopeless = if is_hopeless { self.hopeless + 1 } else { 0 };
        self.hopeless < HOPELESS_LOOKS
    }
}

/// Fills that found no room in spite of the count.
#[derive(Clone, Copy, Default, Debug)]
pub struct ShortFills(Option<(Moment, u32)>);

impl ShortFills {
    /// One more. True if it is not the first in a row.
    pub fn one_more(&mut self, now: Moment) -> bool {
        let lately = self.0.filter(|(last, _)| now.since(*last) < FILLS_PAUSE * 2);
        let in_a_row = lately.map_or(0, |(_, count)| count);
        self.0 = Some((now, in_a_row + 1));
        in_a_row > 0
    }

    /// False while what is read from the PFS could not be kept: then no more is read than somebody asks for.
    pub fn takes_fills(&self, now: Moment) -> bool {
        self.0.is_none_or(|(last, in_a_row)| in_a_row < 2 || now.since(last) >= FILLS_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_is_promised_and_reserved_is_not_given_away() {
        assert_eq!(free_bytes(0, 64 * GIB, 0), 63 * GIB);
        assert_eq!(free_bytes(60 * GIB, 64 * GIB, GIB), 2 * GIB);
        assert_eq!(free_bytes(64 * GIB, 64 * GIB, GIB), 0);
        assert_eq!(to_evict(GIB, GIB), None);
        assert_eq!(to_evict(GIB, GIB - 1), Some(EVICT_MIN_BYTES), "not for every write");
        assert_eq!(to_evict(GIB, 0), Some(GIB));
        assert!(credit_bytes(64 * GIB, 64 * GIB) <= reserve_bytes(64 * GIB));
    }

    #[test]
    fn a_kernel_gets_a_file_only_where_it_will_find_room() {
        assert_eq!(headroom(16 * GIB, 0, 64 * GIB), Headroom::Free);
        assert_eq!(headroom(10 * GIB, 6 * GIB, 64 * GIB), Headroom::Evict(16 * GIB));
        assert_eq!(headroom(10 * GIB, 5 * GIB, 64 * GIB), Headroom::None);
        assert!(is_tight((10 * GIB, 5 * GIB, 64 * GIB), (1_000, 0)));
        assert!(!is_tight((10 * GIB, 6 * GIB, 64 * GIB), (1_000, 700)));
        assert!(is_tight((64 * GIB, 0, 64 * GIB), (1_000, 800)), "files run out");
    }

    #[test]
    fn room_is_kept_for_kernels_before_they_can_have_used_it() {
        let low = 8 * GIB;
        assert_eq!(keep(8 * GIB, 0, low, 64 * GIB), Keep::default());
        let some = Keep { evict_bytes: Some(9 * GIB), press: false };
        assert_eq!(keep(7 * GIB, 20 * GIB, low, 64 * GIB), some);
        assert!(keep(7 * GIB, 0, low, 64 * GIB).press);
        for free in [0, GIB, 4 * GIB, 5 * GIB, 8 * GIB, 64 * GIB] {
            let pause = look_pause(free, 64 * GIB);
            assert!((LOOK_LEAST..=LOOK_MOST).contains(&pause));
            let written = (pause.as_secs_f64() * FLASH_BYTES_PER_S as f64) as u64;
            assert!(free < 4 * GIB || written <= free, "{free}: {pause:?}");
        }
    }

    /// A kernel writes at a steady rate into a flash that is full of clean data, and whoever looks after it is so late at the
    /// first look, the second and so on. True if all that was clean has gone before the kernel met a full flash.
    fn writes_to_the_end(
        capacity: u64,
        bytes_per_s: u64,
        late: impl Fn(u32) -> Duration,
        takes: Duration,
    ) -> bool {
        let (mut ahead, mut now) = (Ahead::default(), Moment::from_ms(0));
        let (mut dirty, mut free) = (0, headroom_bytes(capacity));
        let mut pause = LOOK_LEAST;
        let mut passes = |time: Duration, now: &mut Moment, free: &mut u64| {
            let written = (time.as_secs_f64() * bytes_per_s as f64) as u64;
            *now = *now + time;
            dirty += written.min(*free);
            *free -= written.min(*free);
            (*free, dirty)
        };
        for look in 0.. {
            let (left, dirty) = passes(pause + late(look), &mut now, &mut free);
            let clean = capacity - dirty - left;
            if left == 0 || clean == 0 {
                return clean == 0;
            }
            let begun = now;
            ahead.looks(now, free);
            let keep = keep(free, clean, ahead.low_bytes(capacity), capacity);
            let (left, _) = passes(takes, &mut now, &mut free);
            free = left + keep.evict_bytes.unwrap_or(0).min(clean);
            pause = look_pause(free, capacity);
            ahead.looked(begun, now, free, pause);
        }
        unreachable!("it ends when nothing is left that is clean");
    }

    #[test]
    fn room_follows_the_rate_of_who_writes_and_the_lateness_of_who_looks() {
        let (quarter_gib, mb) = (GIB / 4, 1_000_000);
        for (rate, late_ms, takes_ms) in [
            (200 * mb, 0, 5),
            (200 * mb, 120, 30),
            (300 * mb, 90, 40),
            (200 * mb, 200, 20),
            (2_000 * mb, 2, 10),
        ] {
            let (late, takes) = (Duration::from_millis(late_ms), Duration::from_millis(takes_ms));
            let ended = writes_to_the_end(quarter_gib, rate, |_| late, takes);
            assert!(ended, "{rate} bytes/s, {late_ms} ms late, {takes_ms} ms for a look");
        }
        // What is more than half the capacity in the time that nobody looks cannot be kept.
        assert!(!writes_to_the_end(
            quarter_gib,
            2_000 * mb,
            |_| Duration::from_millis(200),
            LOOK_LEAST
        ));
    }

    #[test]
    fn a_first_stall_is_held_whenever_it_comes() {
        let (mb, takes) = (1_000_000, LOOK_LEAST);
        let ends = |bytes_per_s: u64, stall: Duration, at: u32| {
            let late = |look: u32| if look == at { stall } else { Duration::ZERO };
            writes_to_the_end(8 * GIB, bytes_per_s, late, takes)
        };
        // Of who writes faster, as long as half of the capacity lasts.
        let short = Duration::from_millis(1_500);
        for at in 2..26 {
            assert!(ends(700 * mb, STALL_HELD, at), "before look {at}");
            assert!(ends(2_000 * mb, short, at), "a fast one, before look {at}");
        }
        // While nothing is known of the rate: what is free at the open.
        for at in [0, 1] {
            assert!(ends(400 * mb, STALL_HELD, at), "before look {at}");
            assert!(ends(700 * mb, Duration::from_millis(2_800), at), "before look {at}");
        }
        assert!(!ends(2_000 * mb, STALL_HELD, 2), "more than there is room for");
    }

    #[test]
    fn who_outran_their_room_is_served_only_where_a_stall_shows_it_and_clean_data_is_there() {
        let at = Moment::from_ms;
        let after = |written: u64, took_ms: i64| {
            let mut ahead = Ahead::default();
            ahead.looked(at(0), at(0), GIB / 2, LOOK_MOST);
            ahead.looks(at(took_ms), GIB / 2 - written);
            ahead
        };
        let is_outrun = |ahead: Ahead| ahead.is_outrun(GIB / 8, GIB / 8, GIB);
        assert!(!is_outrun(after(GIB / 3, 100)), "fast, and the look came in time");
        assert!(!is_outrun(after(GIB / 8, 2_000)), "a stall that could be twice as long");
        let outrun = after(GIB / 3, 2_000);
        assert!(is_outrun(outrun));
        assert!(!outrun.is_outrun(GIB / 8, 0, GIB), "nothing could go");
        assert!(after(0, 100).is_outrun(0, GIB / 8, GIB), "they met a full flash");
        let mut later = outrun;
        later.looked(at(2_000), at(2_000), GIB / 2, LOOK_MOST);
        later.looks(at(2_100), GIB / 2);
        assert!(!is_outrun(later), "the last look came in time");
    }

    #[test]
    fn who_has_not_written_yet_has_the_room_of_an_open_for_a_while() {
        let (mut ahead, at) = (Ahead::default(), Moment::from_ms);
        assert_eq!(ahead.low_bytes(GIB), headroom_bytes(GIB));
        for look in 0..100 {
            ahead.looks(at(100 * look), GIB / 2);
            assert_eq!(ahead.low_bytes(GIB), headroom_bytes(GIB), "look {look}");
            ahead.looked(at(100 * look), at(100 * look), GIB / 2, LOOK_MOST);
        }
        ahead.looks(at(10_100), GIB / 2);
        assert_eq!(ahead.low_bytes(GIB), GIB / LOW_SHARE);
    }

    #[test]
    fn the_rate_that_was_seen_is_for_the_next_file_too() {
        let (mut ahead, at, capacity) = (Ahead::default(), Moment::from_ms, 6 * GIB);
        ahead.looked(at(0), at(0), GIB, LOOK_MOST);
        ahead.looks(at(0), GIB);
        ahead.looked(at(0), at(0), GIB, LOOK_MOST);
        ahead.looks(at(100), GIB - 40_000_000);
        let low = ahead.low_bytes(capacity);
        assert!((2_030_000_000..2_050_000_000).contains(&low), "{low}: 5.1 s of 400 MB/s");
        ahead.rests();
        ahead.looks(at(1_000), GIB);
        let next = ahead.low_bytes(capacity);
        assert!(next > headroom_bytes(capacity) && next < low, "{next}");
        ahead.rests();
        ahead.looks(at(60_000), GIB);
        assert_eq!(ahead.low_bytes(capacity), headroom_bytes(capacity), "long ago");
    }

    #[test]
    fn what_was_seen_of_a_burst_fades() {
        let (mut ahead, at) = (Ahead::default(), Moment::from_ms);
        ahead.looked(at(0), at(0), GIB, LOOK_LEAST);
        ahead.looks(at(500), GIB / 2);
        let most = ahead.low_bytes(4 * GIB);
        assert!(most > GIB, "{most}");
        for n in 0..400 {
            ahead.looked(at(500 + 100 * n), at(500 + 100 * n), GIB, LOOK_MOST);
            ahead.looks(at(600 + 100 * n), GIB);
        }
        assert_eq!(ahead.low_bytes(4 * GIB), 4 * GIB / LOW_SHARE);
    }

    #[test]
    fn a_writer_gives_up_only_when_nothing_can_drain_for_long() {
        let mut waiter = Waiter::default();
        assert!(waiter.met_short() && !waiter.met_short());
        assert!((1..HOPELESS_LOOKS).all(|_| waiter.goes_on(true)));
        assert!(waiter.goes_on(false));
        assert!((1..HOPELESS_LOOKS).all(|_| waiter.goes_on(true)));
        assert!(!waiter.goes_on(true));
    }

    #[test]
    fn fills_pause_after_two_in_a_row_had_no_room() {
        let (mut short, at) = (ShortFills::default(), Moment::from_ms);
        assert!(short.takes_fills(at(0)));
        assert!(!short.one_more(at(0)));
        assert!(short.takes_fills(at(1)));
        assert!(short.one_more(at(1_000)));
        assert!(!short.takes_fills(at(2_999)) && short.takes_fills(at(3_000)));
        assert!(!short.one_more(at(20_000)), "long ago");
    }
}
