//! Calls of the mounts of one buffer: how many of each kind, the bytes that went each way, errors.
//! Reads and writes that a kernel does itself (passthrough) are no calls: nobody sees them.

use forebay_proto::Errno;
use forebay_proto::count::{ErrnoCounts, STRIPES, stripe};
use forebay_proto::latency::{Latency, LatencyCounts};
use forebay_proto::metrics::{BufferMetrics, Counts};
use forebay_proto::net::{Answer, Call};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

macro_rules! kinds {
    ($($kind:ident $name:literal: $calls:pat,)*) => {
        /// Kinds of calls.
        #[derive(Clone, Copy, PartialEq, Eq)]
        enum Kind { Other, $($kind,)* }

        /// Their names, in the same order.
        const KINDS: &[&str] = &["other", $($name,)*];

        fn kind_of(call: &Call<'_>) -> Kind {
            match call {
                $($calls => Kind::$kind,)*
                #[allow(unreachable_patterns, reason = "calls to come are counted too")]
                _ => Kind::Other,
            }
        }
    };
}

kinds! {
    Session "session": Call::Attach(_) | Call::Join { .. } | Call::Renew | Call::Reclaim(_)
        | Call::Detach | Call::Places,
    Lookup "lookup": Call::Lookup { .. },
    Take "take": Call::Take { .. } | Call::TakeAll(_),
    Forget "forget": Call::Forget(_),
    Getattr "getattr": Call::Getattr(_),
    Setattr "setattr": Call::Setattr { .. },
    Readlink "readlink": Call::Readlink(_),
    Mknod "mknod": Call::Mknod { .. },
    Mkdir "mkdir": Call::Mkdir { .. },
    Symlink "symlink": Call::Symlink { .. },
    Link "link": Call::Link { .. },
    Unlink "unlink": Call::Unlink { .. },
    Rmdir "rmdir": Call::Rmdir { .. },
    Rename "rename": Call::Rename { .. },
    Create "create": Call::Create { .. },
    Tmpfile "tmpfile": Call::Tmpfile { .. },
    Open "open": Call::Open { .. },
    Release "release": Call::Release(_),
    Read "read": Call::Read { .. } | Call::ReadObject { .. },
    Write "write": Call::Write { .. } | Call::WriteObject { .. },
    Fsync "fsync": Call::Fsync { .. } | Call::SyncObject { .. },
    Log "log": Call::LogBegin { .. } | Call::LogOpen { .. } | Call::LogPublish { .. } | Call::LogMap { .. },
    Fsyncdir "fsyncdir": Call::Fsyncdir(_),
    Fallocate "fallocate": Call::Fallocate { .. },
    Seek "seek": Call::Seek { .. },
    CopyRange "copy_file_range": Call::CopyRange { .. },
    List "readdir": Call::List { .. } | Call::DirLimit(_),
    Getxattr "getxattr": Call::Getxattr { .. },
    Listxattr "listxattr": Call::Listxattr(_),
    Setxattr "setxattr": Call::Setxattr { .. },
    Removexattr "removexattr": Call::Removexattr { .. },
    Lock "lock": Call::Lock(_),
    Statfs "statfs": Call::Statfs,
    SyncAll "sync_all": Call::SyncAll,
}

/// Two lines of a cache for the heads of counters that a thread adds to.
#[repr(align(128))]
struct Stripe {
    kinds: [LatencyCounts; KINDS.len()],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// Counters of the calls on one buffer.
pub struct CallCounts {
    stripes: [Stripe; STRIPES],
    errors: ErrnoCounts,
}

impl Default for CallCounts {
    fn default() -> CallCounts {
        let zero = || AtomicU64::new(0);
        let stripe = |_| Stripe {
            kinds: std::array::from_fn(|_| LatencyCounts::default()),
            read_bytes: zero(),
            written_bytes: zero(),
        };
        CallCounts { stripes: std::array::from_fn(stripe), errors: ErrnoCounts::default() }
    }
}

impl CallCounts {
    /// A call was answered after so long. `given_bytes` of payload came with it, `got_bytes` went back.
    pub fn count(
        &self,
        call: &Call<'_>,
        answer: &Answer,
        took: Duration,
        (given_bytes, got_bytes): (usize, usize),
    ) {
        let stripe = &self.stripes[stripe()];
        let kind = kind_of(call);
        stripe.kinds[kind as usize].note(took);
        if let Answer::Failed(errno) = answer {
            return self.errors.count(Errno(*errno));
        }
        match kind {
            Kind::Read => drop(stripe.read_bytes.fetch_add(got_bytes as u64, Relaxed)),
            Kind::Write => {
                // A disk that is full takes a part.
                let taken = match answer {
                    Answer::Count(count) => *count,
                    _ => given_bytes as u64,
                };
                stripe.written_bytes.fetch_add(taken, Relaxed);
            }
            _ => {}
        }
    }

    fn sum(&self, of: impl Fn(&Stripe) -> &AtomicU64) -> u64 {
        self.stripes.iter().map(|stripe| of(stripe).load(Relaxed)).sum()
    }

    /// Calls that were made, by kind, and how long they took.
    fn kinds(&self) -> (Counts, BTreeMap<String, Latency>) {
        let mut latency = BTreeMap::new();
        for (index, kind) in KINDS.iter().enumerate() {
            let mut sum = Latency::default();
            self.stripes.iter().for_each(|stripe| stripe.kinds[index].add_to(&mut sum));
            if sum.count() > 0 {
                latency.insert((*kind).to_string(), sum);
            }
        }
        (latency.iter().map(|(kind, sum)| (kind.clone(), sum.count())).collect(), latency)
    }

    /// Bytes read and written.
    fn bytes(&self) -> (u64, u64) {
        (self.sum(|stripe| &stripe.read_bytes), self.sum(|stripe| &stripe.written_bytes))
    }

    /// All of it into the figures of the buffer.
    pub fn fill(&self, told: &mut BufferMetrics) {
        (told.calls, told.latency) = self.kinds();
        (told.read_bytes, told.written_bytes) = self.bytes();
        self.errors.sum().for_each(|(errno, count)| told.answered(errno, count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Ino;
    use std::time::Instant;

    fn read() -> Call<'static> {
        Call::Read { ino: Ino::ROOT, offset: 0, bytes: 4096 }
    }

    #[test]
    fn calls_of_many_threads_are_all_counted() {
        let counts = CallCounts::default();
        let failed = Answer::failed(Errno::EIO);
        std::thread::scope(|scope| {
            for _ in 0..3 * STRIPES {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        counts.count(&read(), &Answer::Data, Duration::from_micros(5), (0, 10));
                        counts.count(&read(), &failed, Duration::from_secs(1), (0, 10));
                    }
                });
            }
        });
        let threads = 3 * STRIPES as u64;
        let mut told = BufferMetrics::default();
        counts.fill(&mut told);
        assert_eq!(told.calls, [("read".to_string(), threads * 2_000)].into());
        assert_eq!((told.read_bytes, told.written_bytes), (threads * 10_000, 0));
        assert_eq!(told.error_counts.calls, [("EIO".to_string(), threads * 1_000)].into());
        let took = &told.latency["read"];
        assert_eq!((took.buckets[1], took.buckets[11]), (threads * 1_000, threads * 1_000));
    }

    /// Measured by hand: `cargo test --release -p forebay-server -- --ignored what_counting_costs`.
    #[test]
    #[ignore = "a measurement"]
    fn what_counting_costs() {
        let counts = CallCounts::default();
        let started = Instant::now();
        for _ in 0..10_000_000 {
            let began = Instant::now();
            counts.count(std::hint::black_box(&read()), &Answer::Data, began.elapsed(), (0, 4096));
        }
        println!("{} ns a call", started.elapsed().as_nanos() / 10_000_000);
    }
}
