//! Waiting lines: where requests wait for a device, link or server.
//!
//! A line in which the first comes first needs no event of its own: when a request arrives, the time at which it will
//! leave is known. A line whose requests share the rate does: each arrival changes when the others leave.

use crate::TimeNs;
use std::collections::VecDeque;

/// One or several equal servers; the first that came is served first. Sums of times that no u64 holds stay at its greatest.
#[derive(Clone, Debug)]
pub struct Line {
    /// When the server of [`Line::serve`] is free; with several, each server's time.
    free_ns: TimeNs,
    more: Vec<TimeNs>,
    /// Of what was told by [`Line::serve_ahead`] and is not over: from when to when a server works, in the order of the begins.
    ahead: VecDeque<(TimeNs, TimeNs)>,
    /// Time that servers worked, together.
    pub busy_ns: u64,
    /// Time that requests waited before they were served, together.
    pub waited_ns: u64,
    /// Requests.
    pub served: u64,
}

impl Line {
    /// A line before `servers` servers; at least one.
    pub fn new(servers: u32) -> Line {
        let more = vec![0; servers.saturating_sub(1) as usize];
        Line { free_ns: 0, more, ahead: VecDeque::new(), busy_ns: 0, waited_ns: 0, served: 0 }
    }

    /// A request comes at `now_ns` and needs a server for `service_ns`. Requests come in the order of their times.
    /// Returns when it leaves.
    #[inline]
    pub fn serve(&mut self, now_ns: TimeNs, service_ns: u64) -> TimeNs {
        let mut earliest = self.free_ns;
        let mut which = None;
        for (index, &free_ns) in self.more.iter().enumerate() {
            if free_ns < earliest {
                (earliest, which) = (free_ns, Some(index));
            }
        }
        let start_ns = earliest.max(now_ns);
        let leaves_ns = start_ns.saturating_add(service_ns);
        match which {
            None => self.free_ns = leaves_ns,
            Some(index) => self.more[index] = leaves_ns,
        }
        self.busy_ns = self.busy_ns.saturating_add(service_ns);
        self.waited_ns = self.waited_ns.saturating_add(start_ns - now_ns);
        self.served += 1;
        leaves_ns
    }

    /// A request is told at `now_ns` that comes at `comes_ns` or then: [`Line::serve`] of a line all of whose requests are
    /// told before they come, in the order in which they do.
    #[inline]
    pub fn serve_ahead(&mut self, now_ns: TimeNs, comes_ns: TimeNs, service_ns: u64) -> TimeNs {
        let leaves_ns = self.serve(comes_ns, service_ns);
        let starts_ns = leaves_ns - service_ns.min(leaves_ns);
        while self.ahead.front().is_some_and(|(_, until_ns)| *until_ns <= now_ns) {
            self.ahead.pop_front();
        }
        match self.ahead.back_mut() {
            // One after the other without a pause: as one.
            Some((_, until_ns)) if *until_ns == starts_ns => *until_ns = leaves_ns,
            _ => self.ahead.push_back((starts_ns, leaves_ns)),
        }
        leaves_ns
    }

    /// Time that servers worked until `now_ns`, together: without what they have taken on for later.
    pub fn worked_ns(&self, now_ns: TimeNs) -> u64 {
        if !self.ahead.is_empty() {
            let parts = self.ahead.iter();
            let later = parts.map(|&(from, until)| until.saturating_sub(from.max(now_ns)));
            return self.busy_ns.saturating_sub(later.fold(0, u64::saturating_add));
        }
        let later = |free_ns: TimeNs| free_ns.saturating_sub(now_ns);
        let more = self.more.iter().map(|&free| later(free));
        self.busy_ns.saturating_sub(more.fold(later(self.free_ns), u64::saturating_add))
    }

    /// Servers.
    pub fn servers(&self) -> u32 {
        self.more.len() as u32 + 1
    }
}

/// One server that all present requests share in equal parts.
///
/// Source: the usual device of a virtual time that runs at 1/n of real time while n requests are present; a request
/// leaves when virtual time has grown by its service. Virtual time is kept in units of 2^-20 ns.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// (virtual time of the end, order of arrival, name), earliest first.
    present: std::collections::BTreeSet<(u128, u64, u64)>,
    virtual_time: u128,
    at_ns: TimeNs,
    arrivals: u64,
    /// Time that the server worked.
    pub busy_ns: u64,
}

const PER_NS: u128 = 1 << 20;

impl Shared {
    fn advance(&mut self, now_ns: TimeNs) {
        let passed_ns = now_ns.saturating_sub(self.at_ns);
        if !self.present.is_empty() {
            self.virtual_time += u128::from(passed_ns) * PER_NS / self.present.len() as u128;
            self.busy_ns += passed_ns;
        }
        self.at_ns = now_ns;
    }

    /// A request named `name` comes and needs `service_ns` of the server alone. Returns when the next request
    /// leaves, if no other comes before: the caller schedules [`Shared::leave`] for then.
    pub fn arrive(&mut self, now_ns: TimeNs, service_ns: u64, name: u64) -> TimeNs {
        self.advance(now_ns);
        let ends = self.virtual_time + u128::from(service_ns) * PER_NS;
        self.present.insert((ends, self.arrivals, name));
        self.arrivals += 1;
        self.next_ns().unwrap_or(now_ns)
    }

    /// When the next request leaves.
    pub fn next_ns(&self) -> Option<TimeNs> {
        let (ends, ..) = self.present.first()?;
        let left = ends.saturating_sub(self.virtual_time) * self.present.len() as u128;
        Some(self.at_ns.saturating_add(u64::try_from(left.div_ceil(PER_NS)).unwrap_or(u64::MAX)))
    }

    /// At a time that [`Shared::arrive`] or [`Shared::next_ns`] gave: the request that leaves, or None if the time is
    /// an old one, because others came since.
    pub fn leave(&mut self, now_ns: TimeNs) -> Option<u64> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.advance(now_ns);
        let (.., name) = self.present.pop_first()?;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_served_first_by_the_server_that_is_free_first() {
        let mut line = Line::new(2);
        assert_eq!(line.serve(0, 10), 10);
        assert_eq!(line.serve(0, 4), 4);
        assert_eq!(line.serve(1, 5), 9, "the second server is free at 4");
        assert_eq!(line.worked_ns(1), 2, "both have worked for 1");
        assert_eq!(line.worked_ns(9), 18);
        assert_eq!(line.serve(20, 1), 21);
        assert_eq!((line.busy_ns, line.waited_ns, line.served), (20, 3, 4));
    }

    #[test]
    fn a_line_that_is_told_ahead_has_worked_what_lies_behind() {
        let mut line = Line::new(1);
        // Told at 0: three that come at 10, 12 and 30. Then at 33 one that comes at 40.
        assert_eq!(line.serve_ahead(0, 10, 5), 15);
        assert_eq!(line.serve_ahead(0, 12, 5), 20, "it waits for the first");
        assert_eq!(line.serve_ahead(0, 30, 5), 35);
        let worked = |line: &Line, at: &[u64]| -> Vec<u64> {
            at.iter().map(|&now_ns| line.worked_ns(now_ns)).collect()
        };
        assert_eq!(worked(&line, &[0, 10, 13, 20, 29, 31, 35]), [0, 0, 3, 10, 10, 11, 15]);
        assert_eq!(line.serve_ahead(33, 40, 5), 45);
        assert_eq!(worked(&line, &[33, 35, 40, 42, 45]), [13, 15, 15, 17, 20]);
    }

    #[test]
    fn times_beyond_all_bounds_stay_at_the_greatest() {
        let mut line = Line::new(2);
        for _ in 0..4 {
            assert_eq!(line.serve(0, u64::MAX), u64::MAX);
        }
        assert_eq!((line.busy_ns, line.waited_ns), (u64::MAX, u64::MAX));
        assert_eq!(line.worked_ns(1), 0);
    }

    #[test]
    fn who_is_alone_has_all_and_two_have_half_each() {
        let mut shared = Shared::default();
        assert_eq!(shared.arrive(0, 100, 1), 100);
        // 50 of the first are done; the other 50 take 100 beside the second.
        assert_eq!(shared.arrive(50, 200, 2), 150);
        assert_eq!(shared.leave(100), None, "that was before the second came");
        assert_eq!(shared.leave(150), Some(1));
        // The second has 150 left, alone.
        assert_eq!(shared.next_ns(), Some(300));
        assert_eq!(shared.leave(300), Some(2));
        assert_eq!((shared.leave(301), shared.busy_ns), (None, 300));
    }
}
