//! Calls of the mounts of one buffer: how many of each kind, the bytes that went each way, errors.
//! Reads and writes that a kernel does itself (passthrough) are no calls: nobody sees them.

use super::ErrnoCounts;
use super::count::{STRIPES, stripe};
use forebay_proto::Errno;
use forebay_proto::metrics::{CallCount, ErrorSource};
use forebay_proto::net::{Answer, Call};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    kinds: [AtomicU64; KINDS.len()],
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
            kinds: std::array::from_fn(|_| zero()),
            read_bytes: zero(),
            written_bytes: zero(),
        };
        CallCounts { stripes: std::array::from_fn(stripe), errors: ErrnoCounts::default() }
    }
}

impl CallCounts {
    /// A call was answered. `given_bytes` of payload came with it, `got_bytes` went back.
    pub fn count(&self, call: &Call<'_>, answer: &Answer, given_bytes: usize, got_bytes: usize) {
        let stripe = &self.stripes[stripe()];
        let kind = kind_of(call);
        stripe.kinds[kind as usize].fetch_add(1, Relaxed);
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

    /// Calls by kind, those that were made.
    pub fn kinds(&self) -> Vec<CallCount> {
        let all = KINDS.iter().enumerate();
        all.map(|(index, kind)| CallCount {
            kind: (*kind).to_string(),
            count: self.sum(|stripe| &stripe.kinds[index]),
        })
        .filter(|call| call.count > 0)
        .collect()
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> (u64, u64) {
        (self.sum(|stripe| &stripe.read_bytes), self.sum(|stripe| &stripe.written_bytes))
    }

    /// Calls that failed.
    pub fn errors(&self) -> Vec<forebay_proto::metrics::ErrorCount> {
        self.errors.sum(ErrorSource::Calls)
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
                        counts.count(&read(), &Answer::Data, 0, 10);
                        counts.count(&read(), &failed, 0, 10);
                    }
                });
            }
        });
        let threads = 3 * STRIPES as u64;
        let told: Vec<_> = counts.kinds().iter().map(|c| (c.kind.clone(), c.count)).collect();
        assert_eq!(told, [("read".to_string(), threads * 2_000)]);
        assert_eq!(counts.bytes(), (threads * 10_000, 0));
        assert_eq!(counts.errors()[0].count, threads * 1_000);
    }

    /// Measured by hand: `cargo test --release -p forebay-server -- --ignored what_counting_costs`.
    #[test]
    #[ignore = "a measurement"]
    fn what_counting_costs() {
        let counts = CallCounts::default();
        let started = Instant::now();
        for _ in 0..10_000_000 {
            counts.count(std::hint::black_box(&read()), &Answer::Data, 0, 4096);
        }
        println!("{} ns a call", started.elapsed().as_nanos() / 10_000_000);
    }
}
