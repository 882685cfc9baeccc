//! Rank 0's side of ranks that share no memory with it. The board and the slots are in rank 0's process; a thread there does for
//! each far rank what that rank asks for, by the same code as the ranks beside it use. And how a far rank runs, beside its
//! questions.
//!
//! Invariants: only who has heard the run's word from rank 0, by MPI, is answered. A rank whose connection ends without a
//! farewell has failed, and stops the run. A far rank hears of a stop within [`BEAT`].
//! Callers: `ior`, `replay` (both sides).

use crate::far::{Ask, CONNECT, Far, Place, Told, hear, send};
use crate::mpi::World;
use crate::shared::{Shared, now_ns};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often a far rank says how much it has moved, and hears whether the run was stopped.
const BEAT: Duration = Duration::from_millis(100);
/// How long ranks may take to end after a stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of the word that shows that a connection comes from a rank.
const WORD_BYTES: usize = 32;

/// Rank 0's side: where the others connect.
pub(crate) struct Host {
    listener: TcpListener,
    word: String,
}

impl Host {
    /// Listens, and tells the others where: all ranks call this or `Far::join` together.
    pub(crate) fn open(world: &World) -> Result<Host, String> {
        let opened = Host::listen();
        let place = opened.as_ref().map_err(Clone::clone).and_then(|host| {
            let port = host.listener.local_addr().map_err(|error| error.to_string())?.port();
            let addresses = own_addresses().into_iter().map(|ip| SocketAddr::new(ip, port));
            let place = Place { addresses: addresses.collect(), word: host.word.clone() };
            serde_json::to_vec(&place).map_err(|error| error.to_string())
        });
        world.of_rank_0(place)?;
        opened
    }

    fn listen() -> Result<Host, String> {
        let said = |error: io::Error| format!("listen for the other ranks: {error}");
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(said)?;
        listener.set_nonblocking(true).map_err(said)?;
        let mut word = [0_u8; WORD_BYTES];
        rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| said(error.into()))?;
        let word = word.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Host { listener, word })
    }

    /// Serves the far ranks until all of them have ended, while `work` runs as rank 0 and `coordinate` beside it, which must end
    /// when the run is stopped; `answer` does what a rank asks for.
    pub(crate) fn serve<T>(
        &self,
        world: &World,
        shared: &Shared,
        answer: &(dyn Fn(u32, Ask) -> Told + Sync),
        work: impl FnOnce() -> Result<(), String> + Send,
        coordinate: impl FnOnce() -> T,
    ) -> T {
        // Ranks that have not ended: the far ones, and this one.
        let left = AtomicU32::new(world.size());
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (left, over) = (&left, &over);
            scope.spawn(move || {
                if let Err(why) = work() {
                    shared.slot(0).fail(&why);
                    shared.stop();
                }
                left.fetch_sub(1, Ordering::AcqRel);
            });
            scope.spawn(move || {
                let begun = Instant::now();
                let mut met = 0;
                // Two connections of each rank.
                while met < 2 * (world.size() - 1) && !over.load(Ordering::Acquire) {
                    match self.listener.accept() {
                        Ok((stream, _)) => {
                            met += 1;
                            scope.spawn(move || self.serve_one(&stream, shared, answer, left));
                        }
                        Err(_) if begun.elapsed() > CONNECT => {
                            shared.slot(0).fail("not all ranks have connected to rank 0");
                            shared.stop();
                            return;
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
            });
            let outcome = coordinate();
            // Those that still work have their time; one that hangs ends with all: in a call that all ranks have to make
            // together, it would wait for ever for one that has failed.
            let mut stopped_since = None;
            while left.load(Ordering::Acquire) > 0 {
                if shared.is_stopped() {
                    let since = *stopped_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > PATIENCE {
                        // Its reason may be that of those who failed before it.
                        let why = crate::ranks::why_ranks_failed(shared);
                        let why = why.unwrap_or_else(|| "a rank does not end".into());
                        eprintln!("forebay: {}", crate::failed::plain(&why));
                        world.abort();
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            over.store(true, Ordering::Release);
            outcome
        })
    }

    fn serve_one(
        &self,
        stream: &TcpStream,
        shared: &Shared,
        answer: &(dyn Fn(u32, Ask) -> Told + Sync),
        left: &AtomicU32,
    ) {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_nonblocking(false);
        let Ok(Ask::Hello { word, rank, beats }) = hear(stream) else { return };
        if word != self.word || rank >= shared.ranks() {
            return;
        }
        let mut ended = false;
        while let Ok(ask) = hear::<Ask>(stream) {
            let told = match ask {
                Ask::Clock => Told::Number(now_ns()),
                Ask::Beat { bytes } => {
                    shared.slot(rank).moved_so_far(bytes);
                    Told::Number(shared.is_stopped().into())
                }
                Ask::Fail { message } => {
                    shared.slot(rank).fail(&message);
                    shared.stop();
                    Told::Done
                }
                Ask::Bye => {
                    ended = true;
                    Told::Done
                }
                ask => answer(rank, ask),
            };
            if send(stream, &told).is_err() || ended {
                break;
            }
        }
        if beats {
            return;
        }
        if !ended {
            shared.slot(rank).fail("its connection to rank 0 ended before it did");
            shared.stop();
        }
        left.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Addresses of this host, the loopback first, for ranks beside this one.
fn own_addresses() -> Vec<IpAddr> {
    let mut found = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the list is the kernel's; it is read once and freed.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return found;
        }
        let mut at = list;
        while let Some(one) = at.as_ref() {
            if !one.ifa_addr.is_null() && i32::from((*one.ifa_addr).sa_family) == libc::AF_INET {
                let address = *one.ifa_addr.cast::<libc::sockaddr_in>();
                let ip = IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)));
                if !ip.is_loopback() {
                    found.push(ip);
                }
            }
            at = one.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found
}

/// Runs a far rank: `work`, beside it a thread that tells how far it is and hears of a stop; then the farewell.
pub(crate) fn run(far: &Far, shared: &Shared, work: impl FnOnce() -> Result<(), String>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(BEAT);
                match far.beat(shared.slot(far.rank()).bytes()) {
                    Some(true) => {}
                    Some(false) => {
                        shared.stop();
                        return;
                    }
                    None => return,
                }
            }
        });
        if let Err(message) = work() {
            // The reason is told by rank 0; without it, it has gone.
            let _ = far.ask(&Ask::Fail { message });
        }
        over.store(true, Ordering::Release);
    });
}
