//! Waiting lines: where requests wait for a device, link or server.
//!
//! A line in which the first comes first needs no event of its own: when a request arrives, the time at which it will
//! leave is known. A line whose requests share the rate does: each arrival changes when the others leave.

use crate::TimeNs;

/// One or several equal servers; the first that came is served first. Sums of times that no u64 holds stay at its greatest.
#[derive(Clone, Debug)]
pub struct Line {
    /// When the server of [`Line::serve`] is free; with several, each server's time.
    free_ns: TimeNs,
    more: Vec<TimeNs>,
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
        Line { free_ns: 0, more, busy_ns: 0, waited_ns: 0, served: 0 }
    }

    /// A request comes at `now_ns` and needs a server for `service_ns`. Requests come in the order of their times, and may
    /// be told before they come.
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

    /// Time that servers worked until `now_ns`: without what they have taken on for later. Of a line that was told of
    /// requests before they come it may miss what lies before a pause of these.
    pub fn worked_ns(&self, now_ns: TimeNs) -> u64 {
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
