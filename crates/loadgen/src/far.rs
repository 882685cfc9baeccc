//! Ranks that share no memory with rank 0: they ask it, by a connection, for what other ranks read in shared memory. The board
//! and the slots are in rank 0's process; a thread there does for each far rank what that rank asks for, by the
//! same code as the ranks beside it use.
//!
//! Invariants: only who has heard the run's word from rank 0, by MPI, is answered. A rank whose connection ends without a
//! farewell has failed, and stops the run. A far rank hears of a stop within [`BEAT`]. Stamps of a rank on another host
//! are moved by what its clock differs, found by the quickest of [`CLOCK_TRIES`] questions.
//! Callers: `ior`, `replay` (both sides), `shared` and `replay::board` (the rank's questions).

use crate::mpi::World;
use crate::shared::{Shared, Stopped, now_ns};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often a far rank says how much it has moved, and hears whether the run was stopped.
const BEAT: Duration = Duration::from_millis(100);
/// Longest wait for a rank to connect, and for rank 0 to be reached.
const CONNECT: Duration = Duration::from_secs(60);
/// How long ranks may take to end after a stop.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions by which a clock is compared.
const CLOCK_TRIES: u32 = 16;
/// Largest message: results of a run, in JSON.
const MESSAGE_MAX: usize = 1 << 30;
/// Bytes of the word that shows that a connection comes from a rank.
const WORD_BYTES: usize = 32;

/// What a far rank asks.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Who it is. The first message.
    Hello { word: String, rank: u32, beats: bool },
    /// The clock of rank 0.
    Clock,
    /// So many bytes are moved; is the run stopped?
    Beat { bytes: u64 },
    /// It failed.
    Fail { message: String },
    /// It has ended in good order.
    Bye,
    /// All ranks and the coordinator meet. With what the rank measured, at the end of a phase.
    Everybody { slot: Vec<u64> },
    /// All ranks meet.
    Ranks,
    /// The most transfers of any rank.
    MostTransfers { own: u64 },
    /// What a rank's last write phase has written.
    Written { rank: u32 },
    /// Members of a set meet.
    Meet { set: usize },
    /// The most of a set.
    Most { set: usize, own: u64 },
    /// Waits for a turn.
    BeginTurn { place: (u32, u32, u32), turns: u32, position: u32 },
    /// Ends it.
    EndTurn { place: (u32, u32, u32), position: u32 },
    /// Counts an event.
    Signal { event: u32, count: u64 },
    /// Waits for one.
    WaitFor { event: u32, count: u64 },
    /// Waits for the jobs before this one.
    WaitForJobs { job: u32 },
    /// Has ended its job.
    EndJob { job: u32 },
    /// Did this in a repetition of a phase.
    Put { job: u32, phase: (u32, u32), process: u32, record: Vec<u64> },
    /// Took so long: bucket and number.
    Latency { job: u32, phase: u32, class: usize, counts: Vec<(usize, u64)> },
    /// Has ended a repetition; is it the last?
    EndRound { job: u32, phase: (u32, u32), parties: u32 },
    /// Saw this of the page cache.
    Cache { job: u32, phase: (u32, u32), after: bool, words: [u64; 4] },
    /// All that was measured, when all ranks have ended.
    Results,
}

/// What it hears.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Done,
    Stopped,
    Number(u64),
    /// Cells that are not 0, with their places.
    Cells(Vec<(usize, u64)>),
}

fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes)
}

fn hear<T: DeserializeOwned>(mut stream: &TcpStream) -> io::Result<T> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let length = u32::from_le_bytes(head) as usize;
    if length > MESSAGE_MAX {
        return Err(io::Error::other("a message that is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// What rank 0 tells the others by MPI.
#[derive(Serialize, Deserialize)]
struct Place {
    addresses: Vec<SocketAddr>,
    word: String,
}

/// Rank 0's side: where the others connect.
pub(crate) struct Host {
    listener: TcpListener,
    word: String,
}

impl Host {
    /// Listens, and tells the others where: all ranks call this or [`Far::join`] together.
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

/// A far rank's side.
#[derive(Debug)]
pub(crate) struct Far {
    calls: Mutex<TcpStream>,
    beats: Mutex<TcpStream>,
    /// What this clock is behind that of rank 0.
    behind_ns: i64,
    rank: u32,
}

impl Far {
    /// Connects: all ranks but 0 call this together with [`Host::open`].
    pub(crate) fn join(world: &World) -> Result<Far, String> {
        let told = world.of_rank_0(Ok(Vec::new()))?;
        let place: Place = serde_json::from_slice(&told).map_err(|error| error.to_string())?;
        let addresses: Vec<SocketAddr> = place
            .addresses
            .into_iter()
            .filter(|address| world.is_beside_rank_0() == address.ip().is_loopback())
            .collect();
        let connect = |beats| -> Result<TcpStream, String> {
            let stream = reach(&addresses)?;
            let hello = Ask::Hello { word: place.word.clone(), rank: world.rank(), beats };
            send(&stream, &hello).map_err(|error| format!("reach rank 0: {error}"))?;
            Ok(stream)
        };
        let (calls, beats) = (connect(false)?, connect(true)?);
        let mut far =
            Far { calls: calls.into(), beats: beats.into(), behind_ns: 0, rank: world.rank() };
        if !world.is_beside_rank_0() {
            far.behind_ns = far.compare_clocks()?;
        }
        Ok(far)
    }

    fn compare_clocks(&self) -> Result<i64, String> {
        let mut best = (u64::MAX, 0);
        for _ in 0..CLOCK_TRIES {
            let before = now_ns();
            let Ok(Told::Number(theirs)) = self.ask(&Ask::Clock) else {
                return Err("rank 0 has gone".into());
            };
            let took = now_ns() - before;
            if took < best.0 {
                best = (took, theirs as i64 - (before + took / 2) as i64);
            }
        }
        Ok(best.1)
    }

    /// A moment of rank 0's clock, by this one's.
    pub(crate) fn at_rank_0(&self, ns: u64) -> u64 {
        if ns == 0 { 0 } else { ns.saturating_add_signed(self.behind_ns) }
    }

    /// A moment of this clock, by rank 0's.
    pub(crate) fn here(&self, ns: u64) -> u64 {
        if ns == 0 { 0 } else { ns.saturating_add_signed(-self.behind_ns) }
    }

    /// Asks. Where rank 0 has gone, the run is over.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Told, Stopped> {
        let Ok(stream) = self.calls.lock() else { return Err(Stopped) };
        match send(&stream, ask).and_then(|()| hear(&stream)) {
            Ok(Told::Stopped) | Err(_) => Err(Stopped),
            Ok(told) => Ok(told),
        }
    }

    /// The same, of a number.
    pub(crate) fn number(&self, ask: &Ask) -> Result<u64, Stopped> {
        match self.ask(ask)? {
            Told::Number(number) => Ok(number),
            _ => Err(Stopped),
        }
    }

    /// Runs a far rank: `work`, beside it a thread that tells how far it is and hears of a stop; then the farewell.
    pub(crate) fn run(&self, shared: &Shared, work: impl FnOnce() -> Result<(), String>) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    std::thread::sleep(BEAT);
                    let bytes = shared.slot(self.rank).bytes();
                    let Ok(stream) = self.beats.lock() else { return };
                    let heard = send(&stream, &Ask::Beat { bytes }).and_then(|()| hear(&stream));
                    if !matches!(heard, Ok(Told::Number(0))) {
                        shared.stop();
                        return;
                    }
                }
            });
            if let Err(message) = work() {
                // The reason is told by rank 0; without it, it has gone.
                let _ = self.ask(&Ask::Fail { message });
            }
            over.store(true, Ordering::Release);
        });
    }

    /// Takes leave: after it nothing is asked.
    pub(crate) fn farewell(&self) {
        let _ = self.ask(&Ask::Bye);
    }
}

fn reach(addresses: &[SocketAddr]) -> Result<TcpStream, String> {
    let begun = Instant::now();
    let mut failed = "it has told no address".to_string();
    loop {
        for address in addresses {
            match TcpStream::connect_timeout(address, Duration::from_secs(2)) {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => failed = format!("{address}: {error}"),
            }
        }
        if begun.elapsed() > CONNECT / 4 {
            return Err(format!("reach rank 0: {failed}"));
        }
    }
}
