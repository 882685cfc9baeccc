//! A rank that shares no memory with rank 0: it asks rank 0, by a connection, for what other ranks read in shared memory.
//! Here are the messages and the far rank's side; `far_host` is rank 0's.
//!
//! Invariant: stamps of a rank on another host are moved by what its clock differs, found by the quickest of [`CLOCK_TRIES`]
//! questions. Callers: `shared` and `replay::board` (the rank's questions), `far_host`.

use crate::clocks::now_ns;
use crate::mpi::{Stopped, World};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest wait for a rank to connect, and for rank 0 to be reached.
pub(crate) const CONNECT: Duration = Duration::from_secs(60);
/// Questions by which a clock is compared.
const CLOCK_TRIES: u32 = 16;
/// Largest message: results of a run, in JSON.
const MESSAGE_MAX: usize = 1 << 30;

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

pub(crate) fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    stream.write_all(&bytes)
}

pub(crate) fn hear<T: DeserializeOwned>(mut stream: &TcpStream) -> io::Result<T> {
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
pub(crate) struct Place {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) word: String,
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
    /// Connects: all ranks but 0 call this together with `Host::open`.
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

    /// Tells rank 0 that so many bytes are moved. False if the run was stopped or rank 0 has gone; `None` if a thread that told it
    /// has panicked.
    pub(crate) fn beat(&self, bytes: u64) -> Option<bool> {
        let stream = self.beats.lock().ok()?;
        let heard = send(&stream, &Ask::Beat { bytes }).and_then(|()| hear(&stream));
        Some(matches!(heard, Ok(Told::Number(0))))
    }

    /// Which rank it is.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
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
