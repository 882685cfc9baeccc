//! Which calls on names wait for calls of other processes, so that a replay keeps their order whatever its pauses are.
//!
//! A trace does not say who waited for whom. But a name cannot be used before it was made, nor removed before others have used it,
//! nor made anew before it was removed. So a call waits for the last such call of each other process that had *ended when it
//! began*: calls that overlapped may come in either order. Each wait is for something that began earlier, so they never wait
//! in a circle.
//!
//! Invariants: pure; nothing is waited for twice. Called by the export of workloads.

use forebay_workload::language::operations::{Kind, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

/// What happened to a name so far.
#[derive(Default)]
struct Name {
    made: Option<Call>,
    gone: Option<Call>,
    /// The last call of each process, on it and on names below it.
    used: HashMap<usize, Call>,
    below: HashMap<usize, Call>,
}

/// The waits of each process. `parent` of a name is the directory above it that has a name itself.
pub(crate) fn order(processes: &[Vec<Timed>], parent: &[Option<u32>]) -> Vec<Waits> {
    let mut order = Order {
        parent,
        names: HashMap::new(),
        known: HashMap::new(),
        waits: processes.iter().map(|_| Waits::default()).collect(),
    };
    if processes.len() < 2 {
        return order.waits;
    }
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
    for (call, record) in calls {
        order.add(call, &record);
    }
    order.waits
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

struct Order<'a> {
    parent: &'a [Option<u32>],
    names: HashMap<u32, Name>,
    /// Of a process: up to which operation of another it has waited for.
    known: HashMap<(usize, usize), usize>,
    waits: Vec<Waits>,
}

impl Order<'_> {
    fn add(&mut self, call: Call, record: &Record) {
        let removes = matches!(record.kind, Kind::Unlink | Kind::Rmdir | Kind::Rename);
        let makes = matches!(record.kind, Kind::Mkdir | Kind::Create)
            || (record.kind == Kind::Open && record.flags != 0);
        self.comes(call, record.file, removes);
        self.notes(call, record.file, makes, removes);
        if record.kind == Kind::Rename {
            if let Ok(target) = u32::try_from(record.length) {
                self.comes(call, target, true);
                self.notes(call, target, true, false);
            }
        }
    }

    /// What a call on a name comes after.
    fn comes(&mut self, call: Call, name: u32, removes: bool) {
        let mut after: Vec<Call> = Vec::new();
        if let Some(name) = self.names.get(&name) {
            after.extend(name.made);
            after.extend(name.gone);
            if removes {
                after.extend(name.used.values());
                after.extend(name.below.values());
            }
        }
        for above in self.above(name) {
            after.extend(self.names.get(&above).and_then(|name| name.made));
        }
        for other in after {
            self.waits_for(call, other);
        }
    }

    fn waits_for(&mut self, call: Call, other: Call) {
        if other.process == call.process || other.end_s > call.start_s {
            return;
        }
        let known = self.known.entry((call.process, other.process)).or_insert(0);
        // Numbers of operations from 1.
        if *known > other.number {
            return;
        }
        *known = other.number + 1;
        self.waits[other.process].told.insert(other.number);
        let of = (other.process as u32, other.number);
        self.waits[call.process].before.entry(call.number).or_default().push(of);
    }

    /// Takes down what a call did to a name.
    fn notes(&mut self, call: Call, name: u32, makes: bool, removes: bool) {
        let this = self.names.entry(name).or_default();
        if removes {
            *this = Name { gone: Some(call), ..Name::default() };
        } else {
            if makes && this.made.is_none() {
                this.made = Some(call);
            }
            this.used.insert(call.process, call);
        }
        for above in self.above(name) {
            self.names.entry(above).or_default().below.insert(call.process, call);
        }
    }

    /// The directories above a name.
    fn above(&self, name: u32) -> Vec<u32> {
        let up = |name: &u32| self.parent.get(*name as usize).copied().flatten();
        std::iter::successors(up(&name), up).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: u32 = 0;
    const FILE: u32 = 1;

    fn call(start_s: f64, end_s: f64, kind: Kind, file: u32) -> Timed {
        (start_s, end_s, Record { file, ..Record::new(kind) })
    }

    /// Before which operation, and for whom.
    type Found = Vec<(usize, Vec<(u32, usize)>)>;

    fn waits(processes: &[Vec<Timed>]) -> Vec<Found> {
        let of = |one: Waits| one.before.into_iter().collect();
        order(processes, &[None, Some(DIR)]).into_iter().map(of).collect()
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
    fn calls_that_overlap_and_calls_of_one_process_wait_for_nobody() {
        let one = vec![call(0.0, 2.0, Kind::Mkdir, DIR), call(3.0, 4.0, Kind::Rmdir, DIR)];
        assert!(waits(std::slice::from_ref(&one))[0].is_empty());
        let beside = vec![call(1.0, 2.5, Kind::Stat, DIR), call(3.5, 5.0, Kind::Stat, DIR)];
        assert_eq!(waits(&[one, beside]), [vec![(1, vec![(1, 0)])], vec![]]);
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
}
