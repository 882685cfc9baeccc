//! Which calls on names wait for calls of other processes, so that a replay keeps their order whatever its pauses are.
//!
//! A trace does not say who waited for whom, but it has only calls that succeeded. So each time that a name was there has an order: what made
//! it, what used it (calls on names below it, too), what removed it, and then what made it anew. A call waits for what it comes after
//! in that order, also where the stamps overlap: a look that found a name came before the removal, whenever both began.
//! Calls that need no such order, as two that make a file if it is not there, wait only for what had *ended when they began*.
//!
//! Nobody waits in a circle, whatever the stamps are: all calls are brought into one row that keeps the order of each process, the
//! call that began first before others, and each call behind what it comes after. If no call can be next (stamps of clocks that
//! differ, names that something untraced made), the one that began first is, and does not wait. A wait always is for a call that
//! is before its own in that row.
//!
//! Invariants: pure; nothing is waited for twice. Called by the export of workloads.

use forebay_workload::language::operations::{Kind, Record};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};

/// How far the stamps of two processes of a node may be apart: each has looked at the clock itself, and may have stood still meanwhile.
const CLOCKS_S: f64 = 0.001;

/// The waits of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Before the operation of this number: for these operations of these processes.
    pub(crate) before: BTreeMap<usize, Vec<(u32, usize)>>,
    /// Operations that others wait for.
    pub(crate) told: BTreeSet<usize>,
}

impl Waits {
    /// How many of the operations that others wait for have come when that one is over.
    pub(crate) fn signals(&self, operation: usize) -> u64 {
        self.told.range(..=operation).count() as u64
    }
}

/// An operation, with its begin and end in seconds.
type Timed = (f64, f64, Record);

/// A call of a process.
#[derive(Clone, Copy)]
struct Call {
    start_s: f64,
    end_s: f64,
    process: usize,
    number: usize,
}

impl Call {
    /// Whether it had ended when the other one began.
    fn ended_before(&self, other: &Call) -> bool {
        self.end_s <= other.start_s
    }
}

/// Numbers of two calls: the second one comes after the first one.
type After = (u32, u32);

/// What a call does with a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Makes it, which fails if it is there.
    Makes,
    /// Makes it if it is not there.
    Ensures,
    /// Puts something else there, by a rename: who used it before saw what was there before.
    Replaces,
    /// Needs it, or a name below it.
    Uses,
    /// Removes it.
    Removes,
}

impl Role {
    fn of(record: &Record) -> Role {
        match record.kind {
            Kind::Mkdir | Kind::Create => Role::Makes,
            Kind::Open if record.flags != 0 => Role::Ensures,
            Kind::Rename if u64::from(record.file) == record.length => Role::Uses,
            Kind::Unlink | Kind::Rmdir | Kind::Rename => Role::Removes,
            _ => Role::Uses,
        }
    }

    /// Whether the name is there afterwards, and need not be before.
    fn is_maker(self) -> bool {
        matches!(self, Role::Makes | Role::Ensures | Role::Replaces)
    }
}

/// The waits of each process. `parent` of a name is the directory above it that has a name itself.
pub(crate) fn order(processes: &[Vec<Timed>], parent: &[Option<u32>]) -> Vec<Waits> {
    let mut waits: Vec<Waits> = processes.iter().map(|_| Waits::default()).collect();
    if processes.len() < 2 {
        return waits;
    }
    let (calls, records) = calls_on_names(processes);
    let mut after: Vec<After> = Vec::new();
    for touches in by_name(&records, parent).values() {
        Story::of(&calls, touches).tell(touches, &mut after);
    }
    let call = |at: u32| calls[at as usize];
    let mut after = without_circles(&calls, after);
    // Of the calls of one process that a call comes after, the last one is enough.
    after.sort_unstable_by_key(|&(from, to)| (to, call(from).process, Reverse(from)));
    // Of a process: up to which operation of another it has waited for, in numbers from 1.
    let mut known: HashMap<(usize, usize), usize> = HashMap::new();
    for (from, to) in after {
        let (other, this) = (call(from), call(to));
        let known = known.entry((this.process, other.process)).or_insert(0);
        if *known > other.number {
            continue;
        }
        *known = other.number + 1;
        waits[other.process].told.insert(other.number);
        let of = (other.process as u32, other.number);
        waits[this.process].before.entry(this.number).or_default().push(of);
    }
    waits
}

/// All calls that go by names, the one that began first before the others.
fn calls_on_names(processes: &[Vec<Timed>]) -> (Vec<Call>, Vec<Record>) {
    let mut calls: Vec<(Call, Record)> = Vec::new();
    for (process, operations) in processes.iter().enumerate() {
        let mut open = HashSet::new();
        for (number, (start_s, end_s, record)) in operations.iter().enumerate() {
            if needs_name(record, &mut open) {
                let call = Call { start_s: *start_s, end_s: *end_s, process, number };
                calls.push((call, *record));
            }
        }
    }
    calls.sort_by(|(a, _), (b, _)| {
        a.start_s.total_cmp(&b.start_s).then((a.process, a.number).cmp(&(b.process, b.number)))
    });
    calls.into_iter().unzip()
}

/// Whether the call goes by the name: of transfers only the first of a file that was not opened.
fn needs_name(record: &Record, open: &mut HashSet<u32>) -> bool {
    match record.kind {
        Kind::Open => {
            open.insert(record.file);
            true
        }
        Kind::Close => {
            open.remove(&record.file);
            false
        }
        Kind::Read | Kind::Write | Kind::Fsync | Kind::Fdatasync => open.insert(record.file),
        Kind::Mkdir | Kind::Rmdir | Kind::Create | Kind::Stat | Kind::Unlink => true,
        Kind::Readdir | Kind::Rename | Kind::Truncate => true,
        _ => false,
    }
}

/// What was done with each name: numbers of calls, rising.
fn by_name(records: &[Record], parent: &[Option<u32>]) -> BTreeMap<u32, Vec<(u32, Role)>> {
    let mut names: BTreeMap<u32, Vec<(u32, Role)>> = BTreeMap::new();
    let mut touch = |name: u32, at: u32, role: Role| {
        let of = names.entry(name).or_default();
        // Both names of a rename may be below this one.
        if of.last().is_none_or(|last| last.0 != at) {
            of.push((at, role));
        }
    };
    for (at, record) in records.iter().enumerate() {
        let (at, role) = (at as u32, Role::of(record));
        let renamed = record.kind == Kind::Rename && role == Role::Removes;
        let target = u32::try_from(record.length).ok().filter(|_| renamed);
        touch(record.file, at, role);
        if let Some(target) = target {
            touch(target, at, Role::Replaces);
        }
        for name in std::iter::once(record.file).chain(target) {
            let up = |name: &u32| parent.get(*name as usize).copied().flatten();
            for above in std::iter::successors(up(&name), up) {
                touch(above, at, Role::Uses);
            }
        }
    }
    names
}

/// A stretch of the trace in which a name was there.
#[derive(Default)]
struct Life {
    /// What made it, and what put something else there: the one that ended first before the others.
    makers: Vec<u32>,
    /// The call that made it when it was not there.
    made_by: Option<u32>,
    removed_by: Option<u32>,
    /// The last call of each process.
    last: BTreeMap<usize, u32>,
    /// For what each process has waited last.
    waited: HashMap<usize, u32>,
    /// Calls of each process that no rename onto the name has waited for.
    seen: BTreeMap<usize, Vec<u32>>,
}

/// What makes and what removes a name, in the order of each process. Places are in the order of ends.
struct Turns {
    by_end: Vec<(u32, Role)>,
    /// Of each one the next one of the same process.
    next: Vec<Option<usize>>,
    /// Those that no call of the same process is before.
    makers: BTreeSet<usize>,
    removers: BTreeSet<usize>,
}

impl Turns {
    fn of(calls: &[Call], touches: &[(u32, Role)]) -> Turns {
        let call = |at: u32| &calls[at as usize];
        let turns = touches.iter().copied().filter(|one| one.1 != Role::Uses);
        let mut by_end: Vec<(u32, Role)> = turns.collect();
        by_end.sort_by(|a, b| call(a.0).end_s.total_cmp(&call(b.0).end_s).then(a.0.cmp(&b.0)));
        let mut in_order: Vec<usize> = (0..by_end.len()).collect();
        in_order.sort_unstable_by_key(|place| by_end[*place].0);
        let next = vec![None; by_end.len()];
        let mut this = Turns { by_end, next, makers: BTreeSet::new(), removers: BTreeSet::new() };
        let mut last: HashMap<usize, usize> = HashMap::new();
        for place in in_order {
            let process = call(this.by_end[place].0).process;
            match last.insert(process, place) {
                Some(before) => this.next[before] = Some(place),
                None => this.may_come(place),
            }
        }
        this
    }

    fn may_come(&mut self, place: usize) {
        let removes = self.by_end[place].1 == Role::Removes;
        let these = if removes { &mut self.removers } else { &mut self.makers };
        these.insert(place);
    }

    /// Takes the first one that removes the name, or that makes it.
    fn take(&mut self, makes: bool) -> Option<(u32, Role)> {
        let these = if makes { &mut self.makers } else { &mut self.removers };
        let place = these.pop_first()?;
        if let Some(next) = self.next[place] {
            self.may_come(next);
        }
        Some(self.by_end[place])
    }
}

/// What happened to a name.
struct Story<'a> {
    calls: &'a [Call],
    /// One more than there are removals.
    lives: Vec<Life>,
    /// Of each removal, which ends the life of its number: from when on it may have been, and when it surely was. Both rise.
    begun_s: Vec<f64>,
    over_s: Vec<f64>,
    /// In which life a call makes or removes the name.
    place: HashMap<u32, usize>,
}

impl<'a> Story<'a> {
    /// Finds the lives of a name: what makes it and what removes it take turns.
    fn of(calls: &'a [Call], touches: &[(u32, Role)]) -> Story<'a> {
        let call = |at: u32| &calls[at as usize];
        // It was there before the run if something had found it when the first one began that makes it.
        let (mut made_s, mut found_s) = (f64::INFINITY, f64::INFINITY);
        for (at, role) in touches {
            match role.is_maker() {
                true => made_s = made_s.min(call(*at).start_s),
                false => found_s = found_s.min(call(*at).end_s),
            }
        }
        let mut is_there = found_s <= made_s;
        let mut story = Story {
            calls,
            lives: Vec::new(),
            begun_s: Vec::new(),
            over_s: Vec::new(),
            place: HashMap::new(),
        };
        let mut turns = Turns::of(calls, touches);
        let mut life = Life::default();
        loop {
            let mut makers = turns.makers.iter().map(|place| turns.by_end[*place]);
            let (maker, other) = (makers.next(), makers.next());
            let remover = turns.removers.first().map(|place| turns.by_end[*place].0);
            is_there = match (maker, remover) {
                (Some(maker), Some(remover)) => {
                    let other = other.map(|one| one.0);
                    story.makes_first(maker, remover, (is_there, other), touches)
                }
                (maker, _) => maker.is_some(),
            };
            let Some((at, role)) = turns.take(is_there) else { break };
            story.place.insert(at, story.lives.len());
            if role == Role::Removes {
                life.removed_by = Some(at);
                story.lives.push(std::mem::take(&mut life));
                continue;
            }
            if life.makers.is_empty() && role == Role::Makes {
                life.made_by = Some(at);
            }
            // What would have made it waits for what did, and nobody for that.
            if life.makers.is_empty() || role != Role::Ensures {
                life.makers.push(at);
            }
        }
        story.lives.push(life);
        story.finish();
        story
    }

    /// Sorts what made each life, and finds when each removal was: after those before it and after what made what it removed, and before
    /// those after it and before what made the name anew.
    fn finish(&mut self) {
        let calls = self.calls;
        let call = |at: u32| &calls[at as usize];
        for life in &mut self.lives {
            life.makers.sort_by(|a, b| call(*a).end_s.total_cmp(&call(*b).end_s).then(a.cmp(b)));
        }
        let mut begun_s = f64::NEG_INFINITY;
        for life in &self.lives {
            let Some(remover) = life.removed_by else { continue };
            let from = life.made_by.into_iter().chain([remover]);
            begun_s = from.map(|one| call(one).start_s).fold(begun_s, f64::max);
            self.begun_s.push(begun_s);
        }
        let mut over_s = f64::INFINITY;
        for life in self.lives.iter().rev() {
            if let Some(remover) = life.removed_by {
                over_s = over_s.min(call(remover).end_s);
                self.over_s.push(over_s);
            }
            over_s = life.made_by.map_or(over_s, |one| over_s.min(call(one).end_s));
        }
        self.over_s.reverse();
    }

    fn call(&self, at: u32) -> &'a Call {
        &self.calls[at as usize]
    }

    /// Whether a call that makes the name comes before one that removes it. `next` is another one that may make it.
    fn makes_first(
        &self,
        (maker, role): (u32, Role),
        remover: u32,
        (is_there, next): (bool, Option<u32>),
        touches: &[(u32, Role)],
    ) -> bool {
        let (makes, removes) = (self.call(maker), self.call(remover));
        let (before, behind) = (makes.ended_before(removes), removes.ended_before(makes));
        if before || behind || makes.process == removes.process {
            return if before == behind { maker < remover } else { before };
        }
        if !is_there {
            return true;
        }
        if role == Role::Makes {
            return false;
        }
        // It may have been there for this one. But if it is needed after the removal, and nothing else makes it before that, this one did.
        let later = touches.partition_point(|one| self.call(one.0).start_s < removes.end_s);
        let needed = touches.get(later).is_some_and(|one| !one.1.is_maker());
        let other = next.is_some_and(|next| self.call(next).start_s < removes.end_s);
        !needed || other
    }

    /// In which life a call found the name.
    fn found_in(&self, at: u32) -> usize {
        let call = self.call(at);
        let first = self.over_s.partition_point(|over_s| *over_s <= call.start_s);
        let last = self.begun_s.partition_point(|begun_s| *begun_s <= call.end_s).max(first);
        // The first that made it in a life that began by then.
        let maker = |life: usize| self.lives[life].makers.first().map(|one| self.call(*one));
        let possible =
            |life: usize| life == 0 || maker(life).is_some_and(|made| made.start_s <= call.end_s);
        if !possible(first) {
            if let Some(later) = (first + 1..=last).find(|life| possible(*life)) {
                return later;
            }
            // Nothing has made it anew. A removal that seems to be over by less than the clocks may differ came after the call.
            let close = |life: &usize| self.over_s[*life] > call.start_s - CLOCKS_S;
            let mut before = (0..first).rev().take_while(close);
            return before.find(|life| possible(*life)).unwrap_or(first);
        }
        // It may have found the old one or the new one: the new one if it was made while the call ran, after a removal had begun.
        let is_new = |life: &usize| {
            let begun = self.begun_s[*life - 1] <= call.start_s;
            begun && maker(*life).is_some_and(|made| made.end_s <= call.end_s)
        };
        (first + 1..=last).rev().find(is_new).unwrap_or(first)
    }

    /// What comes after what.
    fn tell(mut self, touches: &[(u32, Role)], after: &mut Vec<After>) {
        let replaced = touches.iter().any(|one| one.1 == Role::Replaces);
        // In which life a process is at least: it cannot find what it has removed itself.
        let mut reached: HashMap<usize, usize> = HashMap::new();
        for &(at, role) in touches {
            let process = self.call(at).process;
            let reached = reached.entry(process).or_insert(0);
            let life = match self.place.get(&at) {
                Some(life) => *life,
                None => self.found_in(at).max(*reached),
            };
            *reached = (*reached).max(life + usize::from(role == Role::Removes));
            if role == Role::Removes {
                continue;
            }
            self.comes(at, role, life, after);
            let this = &mut self.lives[life];
            this.last.insert(process, at);
            if role == Role::Replaces {
                let new = &self.calls[at as usize];
                for (_, seen) in this.seen.iter_mut().filter(|(other, _)| **other != process) {
                    let ended =
                        seen.partition_point(|one| self.calls[*one as usize].ended_before(new));
                    after.extend(seen.drain(..ended).next_back().map(|one| (one, at)));
                }
            }
            if replaced {
                this.seen.entry(process).or_default().push(at);
            }
        }
        for (number, life) in self.lives.iter().enumerate() {
            let Some(remover) = life.removed_by else { continue };
            let own = self.call(remover).process;
            let others = life.last.iter().filter(|(process, _)| **process != own);
            after.extend(others.map(|(_, last)| (*last, remover)));
            // What was made anew by something untraced.
            let before = number.checked_sub(1).and_then(|before| self.lives[before].removed_by);
            let before = before.filter(|_| life.makers.is_empty());
            after.extend(before.and_then(|before| self.ended(before, remover)));
        }
    }

    /// What makes or uses the name comes after what made it, or after what removed it before.
    fn comes(&mut self, at: u32, role: Role, life: usize, after: &mut Vec<After>) {
        let call = self.call(at);
        let makers = &self.lives[life].makers;
        let ended = makers.partition_point(|one| self.call(*one).ended_before(call));
        let mut from = makers[..ended].iter().rev().find(|one| **one != at).copied();
        if from.is_none() && role == Role::Uses {
            let begun = |one: &u32| self.call(*one).start_s <= call.end_s;
            from = makers.first().copied().filter(begun);
        }
        if from.is_none() {
            let before = life.checked_sub(1).and_then(|before| self.lives[before].removed_by);
            from = before.filter(|one| role != Role::Uses || self.call(*one).ended_before(call));
        }
        let Some(from) = from.filter(|from| self.call(*from).process != call.process) else {
            return;
        };
        if self.lives[life].waited.insert(call.process, from) != Some(from) {
            after.push((from, at));
        }
    }

    /// That a call comes after another one of another process which had ended when it began.
    fn ended(&self, from: u32, to: u32) -> Option<After> {
        let (one, other) = (self.call(from), self.call(to));
        (one.process != other.process && one.ended_before(other)).then_some((from, to))
    }
}

/// Brings all calls into one row, and leaves out what goes against it.
fn without_circles(calls: &[Call], mut after: Vec<After>) -> Vec<After> {
    after.sort_unstable();
    after.dedup();
    // Where the ones that come after a call begin, and for how many each one waits.
    let mut begins = vec![0_usize; calls.len() + 1];
    let mut unmet = vec![0_u32; calls.len()];
    for (from, to) in &after {
        begins[*from as usize + 1] += 1;
        unmet[*to as usize] += 1;
    }
    let mut sum = 0;
    for begin in &mut begins {
        sum += *begin;
        *begin = sum;
    }
    // The next call of the same process; the first ones of all processes.
    let mut next: Vec<Option<u32>> = vec![None; calls.len()];
    let mut last: HashMap<usize, usize> = HashMap::new();
    let mut ready: BinaryHeap<Reverse<u32>> = BinaryHeap::new();
    let mut blocked: BTreeSet<u32> = BTreeSet::new();
    for (at, call) in calls.iter().enumerate() {
        match last.insert(call.process, at) {
            Some(before) => next[before] = Some(at as u32),
            None if unmet[at] == 0 => ready.push(Reverse(at as u32)),
            None => drop(blocked.insert(at as u32)),
        }
    }
    let mut row = vec![0_usize; calls.len()];
    for place in 0..calls.len() {
        // If all wait for others, the one that began first does not.
        let first = ready.pop().map(|Reverse(at)| at).or_else(|| blocked.pop_first());
        let Some(at) = first.map(|at| at as usize) else { break };
        row[at] = place;
        for (_, to) in &after[begins[at]..begins[at + 1]] {
            let left = &mut unmet[*to as usize];
            *left = left.saturating_sub(1);
            if *left == 0 && blocked.remove(to) {
                ready.push(Reverse(*to));
            }
        }
        match next[at] {
            Some(next) if unmet[next as usize] == 0 => ready.push(Reverse(next)),
            Some(next) => drop(blocked.insert(next)),
            None => {}
        }
    }
    after.retain(|(from, to)| row[*from as usize] < row[*to as usize]);
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: u32 = 0;
    const FILE: u32 = 1;

    fn call(start_s: f64, end_s: f64, kind: Kind, file: u32) -> Timed {
        (start_s, end_s, Record { file, ..Record::new(kind) })
    }

    fn opened(file: u32) -> Record {
        Record { file, flags: 1, ..Record::new(Kind::Open) }
    }

    /// Before which operation, and for whom.
    type Found = Vec<(usize, Vec<(u32, usize)>)>;

    fn listed(found: Vec<Waits>) -> Vec<Found> {
        found.into_iter().map(|one| one.before.into_iter().collect()).collect()
    }

    fn waits(processes: &[Vec<Timed>]) -> Vec<Found> {
        listed(order(processes, &[None, Some(DIR)]))
    }

    #[test]
    fn a_name_is_made_used_and_removed_in_the_order_of_the_trace() {
        let maker = vec![
            call(0.0, 1.0, Kind::Mkdir, DIR),
            call(2.0, 3.0, Kind::Create, FILE),
            call(8.0, 9.0, Kind::Unlink, FILE),
            call(9.0, 10.0, Kind::Rmdir, DIR),
            call(12.0, 13.0, Kind::Mkdir, DIR),
        ];
        let user = vec![call(4.0, 5.0, Kind::Stat, FILE), call(6.0, 7.0, Kind::Stat, FILE)];
        let late = vec![call(10.5, 11.0, Kind::Stat, DIR), call(14.0, 15.0, Kind::Stat, DIR)];
        assert_eq!(
            waits(&[maker, user, late]),
            [
                // The removal comes after the last look, and the new directory after nothing but the maker's own removal.
                vec![(2, vec![(1, 1)])],
                // It was made, and its directory before it, which is known by that.
                vec![(0, vec![(0, 1)])],
                vec![(0, vec![(0, 3)]), (1, vec![(0, 4)])],
            ]
        );
    }

    #[test]
    fn calls_of_one_process_wait_for_nobody() {
        let one = vec![call(0.0, 2.0, Kind::Mkdir, DIR), call(3.0, 4.0, Kind::Rmdir, DIR)];
        assert!(waits(std::slice::from_ref(&one))[0].is_empty());
        // Nor do those that need no order: of two that make a file if it is not there, a look waits for the one that surely did.
        let opens = |start_s, end_s| vec![(start_s, end_s, opened(FILE))];
        let look = vec![call(3.0, 4.0, Kind::Stat, FILE)];
        assert_eq!(
            waits(&[opens(0.0, 5.0), opens(1.0, 2.0), look]),
            [vec![], vec![], vec![(0, vec![(1, 0)])]]
        );
    }

    #[test]
    fn a_call_that_found_a_name_is_before_its_removal_and_after_what_made_it_whatever_the_stamps() {
        let one = vec![call(0.0, 2.0, Kind::Mkdir, DIR), call(3.0, 4.0, Kind::Rmdir, DIR)];
        let (made, removed): (Found, Found) = (vec![(0, vec![(0, 0)])], vec![(1, vec![(1, 1)])]);
        // The first look overlaps with the making, the second one with the removal, and that one is not the last that had ended.
        for last_s in [(2.5, 5.0), (3.5, 3.6), (3.9, 8.0), (4.0004, 4.0005)] {
            let beside =
                vec![call(1.0, 2.2, Kind::Stat, DIR), call(last_s.0, last_s.1, Kind::Stat, DIR)];
            assert_eq!(
                waits(&[one.clone(), beside]),
                [removed.clone(), made.clone()],
                "{last_s:?}"
            );
        }
        // All kinds of calls that need a name, and those that need it for one below it.
        let kinds =
            [Kind::Stat, Kind::Readdir, Kind::Open, Kind::Truncate, Kind::Read, Kind::Write];
        for kind in kinds {
            let beside = vec![call(1.0, 2.2, kind, DIR), call(2.9, 5.0, Kind::Stat, DIR)];
            assert_eq!(waits(&[one.clone(), beside]), [removed.clone(), made.clone()], "{kind:?}");
        }
        for kind in [Kind::Create, Kind::Mkdir] {
            let beside = vec![call(1.0, 2.2, kind, FILE), call(2.9, 5.0, Kind::Unlink, FILE)];
            assert_eq!(waits(&[one.clone(), beside]), [removed.clone(), made.clone()], "{kind:?}");
        }
    }

    #[test]
    fn a_directory_that_another_process_empties_is_removed_after_its_owners_last_look() {
        let (inner, file) = (1, 2);
        let owner = vec![
            call(0.0, 1.0, Kind::Mkdir, DIR),
            call(1.0, 2.0, Kind::Mkdir, inner),
            (3.0, 4.0, opened(file)),
            call(5.0, 6.0, Kind::Stat, inner),
            call(7.0, 9.5, Kind::Stat, inner),
            call(10.0, 11.0, Kind::Rmdir, DIR),
        ];
        let other = vec![call(6.0, 6.5, Kind::Unlink, file), call(8.0, 9.0, Kind::Rmdir, inner)];
        let found = order(&[owner, other], &[None, Some(DIR), Some(inner)]);
        assert_eq!(
            listed(found),
            [vec![(5, vec![(1, 1)])], vec![(0, vec![(0, 2)]), (1, vec![(0, 4)])]]
        );
    }

    #[test]
    fn a_name_that_is_made_anew_while_it_is_removed_is_removed_first() {
        let removes = vec![call(0.0, 10.0, Kind::Rmdir, DIR)];
        let makes = vec![call(5.0, 7.0, Kind::Mkdir, DIR)];
        let looks = vec![call(-2.0, -1.0, Kind::Stat, DIR), call(8.0, 9.0, Kind::Stat, DIR)];
        assert_eq!(
            waits(&[removes, makes, looks]),
            [vec![(0, vec![(2, 0)])], vec![(0, vec![(0, 0)])], vec![(1, vec![(1, 0)])]]
        );
    }

    #[test]
    fn a_lock_goes_from_process_to_process_in_the_order_of_the_trace() {
        // The first one stood still when it had removed the lock, until the second one had removed it, too.
        let first = vec![call(0.0, 1.0, Kind::Mkdir, DIR), call(4.0, 9.0, Kind::Rmdir, DIR)];
        let second = vec![call(5.5, 7.0, Kind::Mkdir, DIR), call(7.5, 8.5, Kind::Rmdir, DIR)];
        let third = vec![call(8.0, 12.0, Kind::Mkdir, DIR), call(13.0, 14.0, Kind::Rmdir, DIR)];
        assert_eq!(
            waits(&[first, second, third]),
            [vec![], vec![(0, vec![(0, 1)])], vec![(0, vec![(1, 1)])]]
        );
    }

    #[test]
    fn an_open_beside_a_removal_made_the_file_anew_if_it_was_there_afterwards() {
        let owner = vec![(0.0, 1.0, opened(FILE)), call(5.0, 8.0, Kind::Unlink, FILE)];
        let opens = vec![(6.0, 7.0, opened(FILE))];
        assert_eq!(
            waits(&[owner.clone(), opens.clone()]),
            [vec![(1, vec![(1, 0)])], vec![(0, vec![(0, 0)])]]
        );
        let looks = vec![call(9.0, 10.0, Kind::Stat, FILE)];
        assert_eq!(
            waits(&[owner, opens, looks]),
            [vec![], vec![(0, vec![(0, 1)])], vec![(0, vec![(1, 0)])]]
        );
    }

    #[test]
    fn a_rename_onto_a_name_comes_between_what_saw_the_old_file_and_the_new_one() {
        let (from, onto) = (0_u32, 1_u32);
        let rename = Record { file: from, length: u64::from(onto), ..Record::new(Kind::Rename) };
        let renames = vec![(0.0, 1.0, opened(from)), (2.0, 3.0, rename)];
        let looks = vec![call(-1.0, 0.5, Kind::Stat, onto), call(4.0, 5.0, Kind::Stat, onto)];
        let found = order(&[renames, looks], &[None, None]);
        assert_eq!(listed(found), [vec![(1, vec![(1, 0)])], vec![(1, vec![(0, 1)])]]);
    }

    #[test]
    fn a_directory_is_removed_after_what_others_did_in_it() {
        let owner = vec![call(0.0, 1.0, Kind::Mkdir, DIR), call(9.0, 10.0, Kind::Rmdir, DIR)];
        let guest = vec![call(2.0, 3.0, Kind::Create, FILE), call(4.0, 5.0, Kind::Unlink, FILE)];
        let found = order(&[owner, guest], &[None, Some(DIR)]);
        assert_eq!(found[0].before.get(&1), Some(&vec![(1, 1)]));
        assert_eq!((found[0].signals(0), found[0].signals(1)), (1, 1));
        assert_eq!((found[1].signals(0), found[1].signals(1)), (0, 1));
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % bound as u64) as usize
        }
    }

    /// Plays all calls in some order that the waits allow.
    fn plays(
        processes: &[Vec<Timed>],
        found: &[Waits],
        random: &mut Random,
        mut call: impl FnMut(&Record),
    ) {
        let mut next = vec![0_usize; processes.len()];
        loop {
            let mut free: Vec<usize> = Vec::new();
            let mut left = 0;
            for (process, calls) in processes.iter().enumerate() {
                if next[process] == calls.len() {
                    continue;
                }
                left += 1;
                let mut waits = found[process].before.get(&next[process]).into_iter().flatten();
                if waits.all(|(other, number)| next[*other as usize] > *number) {
                    free.push(process);
                }
            }
            if left == 0 {
                return;
            }
            assert!(!free.is_empty(), "all wait for others: {next:?} of {processes:?}");
            let process = free[random.below(free.len())];
            call(&processes[process][next[process]].2);
            next[process] += 1;
        }
    }

    const TREE: [Option<u32>; 6] = [None, Some(0), Some(1), Some(0), Some(3), Some(1)];

    fn is_empty(name: usize, there: impl Fn(usize) -> bool) -> bool {
        !(0..TREE.len()).any(|one| TREE[one] == Some(name as u32) && there(one))
    }

    /// What three processes did with directories that are made and removed once, with stamps that overlap.
    fn run_of_three(random: &mut Random) -> Vec<Vec<Timed>> {
        const NEVER: u8 = 0;
        const THERE: u8 = 1;
        const GONE: u8 = 2;
        let mut processes: Vec<Vec<Timed>> = vec![Vec::new(); 3];
        let mut state = [NEVER; TREE.len()];
        for moment in 1..=80 {
            let (moment_s, name) = (f64::from(moment), random.below(TREE.len()));
            let has_parent = TREE[name].is_none_or(|above| state[above as usize] == THERE);
            let empty = is_empty(name, |one| state[one] == THERE);
            let kind = match state[name] {
                NEVER if has_parent => Kind::Mkdir,
                THERE if empty && random.below(4) == 0 => Kind::Rmdir,
                THERE => Kind::Stat,
                _ => continue,
            };
            state[name] = if kind == Kind::Rmdir { GONE } else { THERE };
            let process = &mut processes[random.below(3)];
            let mut start_s = moment_s - random.below(50) as f64 / 10.0;
            if let Some(last) = process.last_mut() {
                last.1 = last.1.min(moment_s);
                start_s = start_s.max(last.1);
            }
            let end_s = moment_s + random.below(50) as f64 / 10.0;
            process.push(call(start_s, end_s, kind, name as u32));
        }
        processes
    }

    #[test]
    fn each_call_finds_what_it_found_in_the_trace_in_each_order_that_the_waits_allow() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..300 {
            let processes = run_of_three(&mut random);
            let found = order(&processes, &TREE);
            let mut there = [false; TREE.len()];
            plays(&processes, &found, &mut random, |record| {
                let name = record.file as usize;
                let has_parent = TREE[name].is_none_or(|above| there[above as usize]);
                let empty = is_empty(name, |one| there[one]);
                let may = match record.kind {
                    Kind::Mkdir => has_parent && !there[name],
                    Kind::Rmdir => there[name] && empty,
                    _ => there[name],
                };
                assert!(may, "{record:?} in {processes:?}, {found:?}");
                there[name] = record.kind != Kind::Rmdir;
            });
        }
    }

    #[test]
    fn nobody_waits_in_a_circle_whatever_the_stamps_are() {
        const KINDS: [Kind; 11] = [
            Kind::Mkdir,
            Kind::Rmdir,
            Kind::Create,
            Kind::Unlink,
            Kind::Rename,
            Kind::Rename,
            Kind::Open,
            Kind::Stat,
            Kind::Truncate,
            Kind::Write,
            Kind::Close,
        ];
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        for _ in 0..300 {
            let mut processes: Vec<Vec<Timed>> = vec![Vec::new(); 4];
            for process in &mut processes {
                let mut start_s = 0.0;
                for _ in 0..random.below(30) {
                    start_s += random.below(4) as f64;
                    let record = Record {
                        file: random.below(TREE.len()) as u32,
                        length: random.below(TREE.len()) as u64,
                        flags: random.below(2) as u8,
                        ..Record::new(KINDS[random.below(KINDS.len())])
                    };
                    process.push((start_s, start_s + random.below(9) as f64, record));
                }
            }
            let found = order(&processes, &TREE);
            let (mut played, calls) = (0, processes.iter().map(Vec::len).sum::<usize>());
            plays(&processes, &found, &mut random, |_| played += 1);
            assert_eq!(played, calls);
        }
    }
}
