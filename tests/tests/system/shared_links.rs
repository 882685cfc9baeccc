//! Two servers and their mounts on machines of their own (network namespaces), with links that are
//! slow or cut: between the servers, between a mount and one server or both, one way and both ways, for
//! less and for more than a lease and than a mount's patience. Nothing that was answered is lost,
//! nothing is done twice, what is over both servers ends decided on both, the others go on, and what
//! comes back shows nothing old.
#![allow(clippy::unwrap_used)]

use crate::standstill::Standstill;
use forebay_tests::machines::Machines;
use forebay_tests::procs::{self, Child, Shared};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::sys::{self, Errno};
use forebay_tests::worker::Worker;
use forebay_tests::{long, seed};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const NEW_FILE: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
/// What may come on top of a time limit on a busy machine.
const SLACK: Duration = Duration::from_secs(8);
/// A call that has nothing to do with what is cut.
const AT_ONCE: Duration = Duration::from_secs(3);
/// How soon servers that hear each other again have undone what was prepared and not decided.
const UNDONE: Duration = Duration::from_secs(15);
/// How long a mount waits for a server, unless told otherwise (`client::PATIENCE`).
const PATIENCE: Duration = Duration::from_secs(60);
/// Of mounts that are told otherwise, longer than a short lease.
const IMPATIENT_S: u32 = 8;
/// Of [`Options::short_lease`]: a session's lease; longest that nothing fails although a server is away; and a cut
/// that is longer than anything waits.
const SHORT_LEASE: Duration = Duration::from_secs(4);
const SHORT_PATIENCE: Duration = Duration::from_secs(10);
const LONG_CUT: Duration = Duration::from_secs(22);
/// The machines of mount 0 and of mount 1.
const ONE: usize = 2;
const FAR: usize = 3;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    assert!(start.elapsed() < limit, "{what} took {:?}", start.elapsed());
    result
}

/// Servers on machines 0 and 1, mounts on two others. The servers go before their machines.
fn served() -> (Machines, Served) {
    served_by(Options::over(2, Store::Tmpfs))
}

fn served_by(options: Options) -> (Machines, Served) {
    let machines = Machines::new(4);
    let hosts = machines.hosts(2);
    let options = Options { hosts, ..options };
    let served = Served::with(options, &[]);
    for at in [ONE, FAR] {
        served.mount(Via::Namespace(machines.name(at), served.tcp()));
    }
    (machines, served)
}

/// Stops the workers of a scope, also when the test fails: the scope would wait for them.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A directory whose inode and files are on one server, and new directories in it too.
fn dir_on(served: &Served, wanted: u64, stem: &str) -> String {
    for n in 0..64 {
        let name = format!("{stem}{n}");
        let path = served.path(0, &name);
        sys::mkdir(&path, 0o755).unwrap();
        if sys::stat(&path).unwrap().ino >> 48 == wanted {
            sys::setxattr(&path, "user.forebay.placement", b"directory", 0).unwrap();
            return name;
        }
        sys::rmdir(&path).unwrap();
    }
    panic!("no name lies on server {wanted}");
}

fn is_there(served: &Served, at: usize, name: &str) -> bool {
    match sys::stat(served.path(at, name)) {
        Ok(_) => true,
        Err(Errno(libc::ENOENT)) => false,
        Err(error) => panic!("{name}: {error:?}"),
    }
}

/// An operation over both servers, with a number, and how its outcome is told from the names.
#[derive(Clone, Copy, Debug)]
enum Over {
    Rename,
    Link,
    Mkdir,
}

/// Directories on shard 0 and 1.
struct Pair {
    zero: String,
    one: String,
}

impl Over {
    fn prepare(self, served: &Served, pair: &Pair, number: u64) {
        if matches!(self, Over::Rename | Over::Link) {
            let path = served.path(0, format!("{}/{self:?}{number}", pair.zero));
            let fd = sys::open(path, NEW_FILE, 0o644).unwrap();
            sys::write(&fd, &number.to_le_bytes()).unwrap();
        }
    }

    fn names(self, pair: &Pair, number: u64) -> (String, String) {
        let new = match self {
            Over::Mkdir => format!("{}/spread/{self:?}{number}", pair.one),
            _ => format!("{}/{self:?}{number}", pair.one),
        };
        (format!("{}/{self:?}{number}", pair.zero), new)
    }

    fn run(self, served: &Served, at: usize, pair: &Pair, number: u64) -> Result<(), Errno> {
        let (old, new) = self.names(pair, number);
        let (old, new) = (served.path(at, old), served.path(at, new));
        match self {
            Over::Rename => sys::rename2(old, new, libc::RENAME_NOREPLACE),
            Over::Link => sys::link(old, new),
            Over::Mkdir => sys::mkdir(new, 0o755),
        }
    }

    /// Done as answered; after an error done or not, but decided.
    fn check(
        self,
        served: &Served,
        at: usize,
        pair: &Pair,
        number: u64,
        answer: Result<(), Errno>,
    ) {
        let (old, new) = self.names(pair, number);
        let done = is_there(served, at, &new);
        let told = format!("mount {at}: {self:?} {number} answered {answer:?}, done: {done}");
        if answer.is_ok() {
            assert!(done, "{told}");
        }
        match self {
            Over::Rename => assert_eq!(is_there(served, at, &old), !done, "{told}"),
            Over::Link => {
                // A link that was prepared, and whose answer was lost, is counted until that is undone.
                let start = Instant::now();
                loop {
                    let links = sys::stat(served.path(at, &old)).unwrap().nlink;
                    if links == 1 + u64::from(done) {
                        break;
                    }
                    assert!(start.elapsed() < UNDONE, "{told}, {links} links");
                    std::thread::sleep(ms(50));
                }
            }
            Over::Mkdir => {}
        }
        if done && !matches!(self, Over::Mkdir) {
            let bytes = std::fs::read(sys::path(served.path(at, &new))).unwrap();
            assert_eq!(bytes, number.to_le_bytes(), "{told}");
        }
    }
}

/// Longest that operations over both servers take to go on when the servers reach each other again: the kernel sends what was not
/// acknowledged again only after a pause as long as the one before.
const GOES_ON: Duration = Duration::from_secs(30);

/// Cuts the servers from each other, in these ways, for so long, while operations over both are made.
fn servers_cut(ways: &[(usize, usize)], cut: Duration) {
    let (machines, served) = served_by(Options::over(2, Store::Tmpfs).short_lease());
    let pair = Pair { zero: dir_on(&served, 0, "zero"), one: dir_on(&served, 1, "one") };
    sys::mkdir(served.path(0, format!("{}/spread", pair.one)), 0o755).unwrap();
    let spread = served.path(0, format!("{}/spread", pair.one));
    sys::setxattr(spread, "user.forebay.placement", b"spread", 0).unwrap();
    let own = [dir_on(&served, 0, "own"), dir_on(&served, 1, "own")];
    // With the server's own patience for another server over, operations fail; until then none.
    let may_fail = cut > SHORT_PATIENCE;
    let stop = AtomicBool::new(false);
    let still = Standstill::watch();
    let kinds = [Over::Rename, Over::Link, Over::Mkdir];
    const PREPARED: u64 = 400;
    // Calls of each kind that were begun after the cut and answered well, and ends of workers.
    let (healed, goes_on) = (AtomicBool::new(false), [const { AtomicBool::new(false) }; 3]);
    kinds.iter().for_each(|kind| (0..PREPARED).for_each(|n| kind.prepare(&served, &pair, n)));
    let answers: Vec<Vec<Result<(), Errno>>> = std::thread::scope(|scope| {
        let work = |kind: Over, well| {
            let (served, pair, stop, healed) = (&served, &pair, &stop, &healed);
            move || {
                let mut answers = Vec::new();
                while !stop.load(SeqCst) && (answers.len() as u64) < PREPARED {
                    let number = answers.len() as u64;
                    let at = (number % 2) as usize;
                    let is_healed = healed.load(SeqCst);
                    let answer = kind.run(served, at, pair, number);
                    if is_healed && answer.is_ok() {
                        AtomicBool::store(well, true, SeqCst);
                    }
                    answers.push(answer);
                    std::thread::sleep(ms(10));
                }
                AtomicBool::store(well, true, SeqCst);
                answers
            }
        };
        let workers =
            std::array::from_fn::<_, 3, _>(|at| scope.spawn(work(kinds[at], &goes_on[at])));
        let stopped = Stop(&stop);
        std::thread::sleep(ms(500));
        ways.iter().for_each(|(from, to)| machines.cut_way(*from, *to));
        // What is on one server goes on all the time, whichever mount asks.
        let start = Instant::now();
        let (mut number, mut longest) = (0, Duration::ZERO);
        while start.elapsed() < cut {
            number += 1;
            for (at, dir) in [(0, &own[0]), (1, &own[1]), (1, &own[0]), (0, &own[1])] {
                let name = |n: u64| served.path(at, format!("{dir}/{at}.{n}"));
                let (begun, stood_before) = (Instant::now(), still.so_far());
                let fd = sys::open(name(number), NEW_FILE, 0o644).unwrap();
                let opened = begun.elapsed();
                assert_eq!(sys::write(&fd, b"on one server"), Ok(13));
                let written = begun.elapsed();
                drop(fd);
                let closed = begun.elapsed();
                sys::rename(name(number), name(0)).unwrap();
                let (took, stood) = (begun.elapsed(), still.so_far() - stood_before);
                longest = longest.max(took);
                assert!(
                    took.saturating_sub(stood) < AT_ONCE,
                    "calls that need one server: open, write, close, rename in {dir} by mount {at} ended after {opened:?}, \
                     {written:?}, {closed:?}, {took:?}, {:?} after the cut; the machine stood still for {stood:?} of it",
                    start.elapsed(),
                );
            }
            std::thread::sleep(ms(200));
        }
        eprintln!("{number} rounds of calls that need one server, the longest took {longest:?}");
        ways.iter().for_each(|(from, to)| machines.heal_way(*from, *to));
        healed.store(true, SeqCst);
        let limit = Instant::now() + GOES_ON;
        while Instant::now() < limit && !goes_on.iter().all(|kind| kind.load(SeqCst)) {
            std::thread::sleep(ms(10));
        }
        std::thread::sleep(ms(500));
        drop(stopped);
        workers.map(|worker| worker.join().unwrap()).into()
    });
    for (kind, answers) in kinds.iter().zip(&answers) {
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        eprintln!("{kind:?}: {} answers, {failed} failed", answers.len());
        assert!(may_fail || failed == 0, "{kind:?}: {answers:?}");
        // It may have been done; or the other server could not be reached, and it was not.
        let told = |e: &Errno| [libc::ETIMEDOUT, libc::EHOSTUNREACH].contains(&e.0);
        assert!(answers.iter().all(|a| a.as_ref().err().is_none_or(told)), "{answers:?}");
        assert!(answers.len() > 5 && answers.last().unwrap().is_ok(), "{kind:?}: it goes on");
    }
    for at in 0..2 {
        for (kind, answers) in kinds.iter().zip(&answers) {
            let numbers = (0..).zip(answers);
            numbers.for_each(|(number, answer)| kind.check(&served, at, &pair, number, *answer));
        }
    }
}

#[test]
fn servers_cut_from_each_other_for_a_moment_lose_and_double_nothing() {
    servers_cut(&[(0, 1), (1, 0)], Duration::from_secs(4));
}

#[test]
fn servers_cut_from_each_other_longer_than_a_lease_lose_and_double_nothing() {
    servers_cut(&[(0, 1), (1, 0)], SHORT_LEASE + Duration::from_secs(4));
}

#[test]
fn servers_of_which_one_is_not_heard_lose_and_double_nothing() {
    servers_cut(&[(0, 1)], SHORT_LEASE + Duration::from_secs(2));
}

#[test]
fn servers_cut_from_each_other_longer_than_their_patience_decide_what_they_were_asked() {
    servers_cut(&[(0, 1), (1, 0)], LONG_CUT);
}

/// A mount is cut from one of the servers, for less than a lease and then for more.
#[test]
fn a_mount_cut_from_one_server_goes_on_with_the_other() {
    let (machines, served) = served_by(Options::over(2, Store::Tmpfs).short_lease());
    let cut = served.server_of_part(1);
    let (kept, lost) = (dir_on(&served, 0, "kept"), dir_on(&served, 1, "lost"));
    let far = |name: &str| served.path(1, name);
    let put = |at: usize, name: &str, bytes: &str| {
        std::fs::write(sys::path(served.path(at, name)), bytes).unwrap();
    };
    put(1, &format!("{lost}/file"), "old");
    put(1, &format!("{lost}/gone"), "old");
    let appends = libc::O_APPEND | libc::O_CREAT | libc::O_WRONLY;
    let log = sys::open(far(&format!("{lost}/log")), appends, 0o644).unwrap();
    for (turn, time) in [ms(2_000), SHORT_LEASE + ms(3_000)].into_iter().enumerate() {
        for name in ["file", "gone", "absent"] {
            let _ = sys::stat(far(&format!("{lost}/{name}")));
        }
        sys::list(far(&lost)).unwrap();
        machines.cut(FAR, cut);
        let start = Instant::now();
        let waiting = Child::spawn("far", || {
            assert_eq!(sys::write(&log, format!("{turn}").as_bytes()), Ok(1));
            sys::mkdir(far(&format!("{lost}/new{turn}")), 0o755).unwrap();
            // It could not know of what was changed meanwhile, and has not guessed.
            if turn == 1 {
                let size = sys::stat(far(&format!("{lost}/file"))).unwrap().size;
                assert_eq!(size, 5, "it shows a replaced file");
                let gone = sys::stat(far(&format!("{lost}/gone"))).map(drop);
                assert_eq!(gone, Err(Errno(libc::ENOENT)), "it shows a removed file");
            }
        });
        // The others are not held up for longer than the lease, the far mount not at all elsewhere.
        if turn == 1 {
            within(SHORT_LEASE + SLACK, "changes of what the far mount has cached", || {
                put(0, &format!("{lost}/other"), "fresh");
                let (from, to) = (format!("{lost}/other"), format!("{lost}/file"));
                sys::rename(served.path(0, from), served.path(0, to)).unwrap();
                sys::unlink(served.path(0, format!("{lost}/gone"))).unwrap();
            });
        }
        let mut number = 0;
        while start.elapsed() < time {
            number += 1;
            within(AT_ONCE, "a call at the other server", || {
                put(1, &format!("{kept}/{turn}.{number}"), "on the other server");
            });
            std::thread::sleep(ms(100));
        }
        assert!(number > 5 && !waiting.ended(), "it cannot have been done");
        machines.heal(FAR, cut);
        waiting.wait(Duration::from_secs(30)).unwrap();
    }
    assert_eq!(std::fs::read(sys::path(served.path(0, format!("{lost}/log")))).unwrap(), b"01");
    for turn in 0..2 {
        assert!(is_there(&served, 0, &format!("{lost}/new{turn}")));
    }
}

/// A mount is cut from both servers for longer than it is patient: errors and no old data, the
/// others go on, it can be unmounted; one that is not works again afterwards.
#[test]
fn a_mount_cut_from_both_servers_gives_errors_after_its_patience_and_comes_off() {
    let options = Options { patience_s: Some(IMPATIENT_S), ..Options::over(2, Store::Tmpfs) };
    let (machines, served) = served_by(options.short_lease());
    let patience = Duration::from_secs(IMPATIENT_S.into());
    let again = served.mount(Via::Namespace(machines.name(FAR), served.tcp()));
    let dirs = [dir_on(&served, 0, "zero"), dir_on(&served, 1, "one")];
    for dir in &dirs {
        std::fs::write(sys::path(served.path(1, format!("{dir}/f"))), "old").unwrap();
        assert_eq!(sys::stat(served.path(again, format!("{dir}/f"))).unwrap().size, 3);
    }
    machines.cut(FAR, 0);
    machines.cut(FAR, 1);
    std::thread::scope(|scope| {
        for at in [1, again] {
            for dir in &dirs {
                let served = &served;
                scope.spawn(move || {
                    let begun = Instant::now();
                    within(patience + SHORT_LEASE + SLACK, "the first call", || {
                        let made = sys::mkdir(served.path(at, format!("{dir}/new")), 0o755);
                        assert_eq!(made, Err(Errno(libc::ETIMEDOUT)), "mount {at}, {dir}");
                    });
                    assert!(begun.elapsed() > patience / 2, "it did not wait");
                });
            }
        }
        within(SHORT_LEASE + SLACK, "the other mount goes on", || {
            for dir in &dirs {
                std::fs::write(sys::path(served.path(0, format!("{dir}/f"))), "fresh").unwrap();
            }
        });
    });
    for (at, dir) in [1, again].into_iter().flat_map(|at| dirs.iter().map(move |dir| (at, dir))) {
        within(AT_ONCE, "calls after it", || {
            let looked = sys::stat(served.path(at, format!("{dir}/f"))).map(drop);
            assert_eq!(looked, Err(Errno(libc::ETIMEDOUT)), "mount {at}, {dir}");
        });
    }
    within(Duration::from_secs(20), "forebay umount", || served.umount(1, &[]).unwrap());
    machines.heal(FAR, 0);
    machines.heal(FAR, 1);
    within(SLACK, "the mount that stayed comes back", || {
        for dir in &dirs {
            while sys::stat(served.path(again, format!("{dir}/f"))).is_err() {
                std::thread::sleep(ms(50));
            }
            let bytes = std::fs::read(sys::path(served.path(again, format!("{dir}/f")))).unwrap();
            assert_eq!(bytes, b"fresh");
            assert!(!is_there(&served, again, &format!("{dir}/new")));
        }
    });
    served.mount_again(1);
    assert_eq!(sys::stat(served.path(1, format!("{}/f", dirs[0]))).unwrap().size, 5);
}

/// Links are cut at random while programs on both mounts go on: none gets an error, and each call
/// was done once.
#[test]
fn programs_on_links_that_are_cut_at_random_see_each_call_done_once() {
    let seed = seed("programs_on_links_that_are_cut_at_random_see_each_call_done_once");
    let (machines, served) = served_by(Options::over(2, Store::Tmpfs).short_lease());
    let done = Shared::new(3);
    let (served, done) = (&served, &done);
    let workers: Vec<Child> = (0..2)
        .map(|at| {
            Child::spawn("worker", move || {
                let mut worker = Worker::new(served, at, seed);
                while done[2].load(SeqCst) == 0 {
                    worker.step();
                    done[at].fetch_add(1, SeqCst);
                }
                worker.verify();
            })
        })
        .collect();
    let mut rng = StdRng::seed_from_u64(seed);
    let pairs = [(0, 1), (ONE, 0), (ONE, 1), (FAR, 0), (FAR, 1)];
    for turn in 0..if long() { 60 } else { 6 } {
        let before: Vec<u64> = (0..2).map(|at| done[at].load(SeqCst)).collect();
        let start = Instant::now();
        while (0..2).any(|at| done[at].load(SeqCst) < before[at] + 10) {
            assert!(!workers.iter().any(Child::ended), "a call failed (see below)");
            assert!(start.elapsed() < PATIENCE, "a worker hangs after {turn} cuts");
            std::thread::sleep(ms(5));
        }
        let mut cut: Vec<(usize, usize)> = Vec::new();
        for (a, b) in pairs {
            match rng.random_range(0..8) {
                0 => cut.push((a, b)),
                1 => cut.push((b, a)),
                2 => cut.extend([(a, b), (b, a)]),
                _ => {}
            }
        }
        cut.iter().for_each(|(from, to)| machines.cut_way(*from, *to));
        let short = ms(rng.random_range(100..2_000));
        let time = if turn == 3 { SHORT_LEASE + ms(2_000) } else { short };
        std::thread::sleep(time);
        cut.iter().for_each(|(from, to)| machines.heal_way(*from, *to));
    }
    std::thread::sleep(ms(500));
    done[2].store(1, SeqCst);
    procs::all(workers);
}

/// Over a slow link data is slow and right, and nobody else is held up.
#[test]
fn a_slow_link_slows_nobody_but_its_own_machine() {
    const BYTES: usize = 12 << 20;
    const MBIT: u32 = 40;
    let (machines, served) = served();
    sys::mkdir(served.path(0, "s"), 0o755).unwrap();
    sys::setxattr(served.path(0, "s"), "user.forebay.stripe_count", b"all", 0).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 31 / 7) as u8).collect();
    machines.slow(FAR, MBIT);
    let stop = AtomicBool::new(false);
    let longest = std::thread::scope(|scope| {
        let near = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            for number in 0.. {
                if stop.load(SeqCst) {
                    return longest;
                }
                let start = Instant::now();
                let name = format!("n{number}");
                std::fs::write(sys::path(served.path(0, &name)), vec![1; 100_000]).unwrap();
                sys::rename(served.path(0, &name), served.path(0, "n")).unwrap();
                assert_eq!(sys::stat(served.path(0, "n")).unwrap().size, 100_000);
                longest = longest.max(start.elapsed());
            }
            longest
        });
        let stopped = Stop(&stop);
        for name in ["s/striped", "whole"] {
            let start = Instant::now();
            std::fs::write(sys::path(served.path(1, name)), &bytes).unwrap();
            let fastest = Duration::from_secs_f64(BYTES as f64 * 8.0 / f64::from(MBIT) / 1e6);
            assert!(start.elapsed() > fastest / 2, "{:?}: the link is not slow", start.elapsed());
            assert!(start.elapsed() < fastest * 6, "{:?}", start.elapsed());
            assert!(std::fs::read(sys::path(served.path(0, name))).unwrap() == bytes, "{name}");
        }
        drop(stopped);
        near.join().unwrap()
    });
    assert!(longest < AT_ONCE, "a call of the other mount took {longest:?}");
    assert!(std::fs::read(sys::path(served.path(1, "s/striped"))).unwrap() == bytes);
}
