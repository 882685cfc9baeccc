//! Something between that breaks connections: a TCP proxy which passes frames on, and ends each
//! connection in the middle of a frame that chance chooses, by a seed. What it has passed on of a broken
//! connection may be anything from nothing to all of the last frame, in either direction.
//!
//! Used by the model over several servers.

use forebay_proto::net::frame::{FrameHeader, HEADER_BYTES, PAYLOAD_SUM_BYTES};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// A connection breaks after so many frames of one direction at most.
const MOST_FRAMES: u64 = 300;

#[derive(Debug)]
struct Shared {
    target: Mutex<Option<String>>,
    breaks: AtomicBool,
    broken: AtomicU64,
    rng: Mutex<StdRng>,
}

/// The proxy; its threads end with the connections they serve.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens; passes nothing on before it knows where to.
    pub fn new(seed: u64) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            target: Mutex::new(None),
            breaks: AtomicBool::new(false),
            broken: AtomicU64::new(0),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                serve(client, &accepting);
            }
        });
        Proxy { address, shared }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it leads.
    pub fn leads_to(&self, target: String) {
        *self.shared.target.lock().unwrap() = Some(target);
    }

    /// From now on it breaks connections, or does not. Those that are there go on as they began.
    pub fn breaks(&self, breaks: bool) {
        self.shared.breaks.store(breaks, SeqCst);
    }

    /// Connections that it has broken.
    pub fn broken(&self) -> u64 {
        self.shared.broken.load(SeqCst)
    }
}

fn serve(client: TcpStream, shared: &Arc<Shared>) {
    let Some(target) = shared.target.lock().unwrap().clone() else { return };
    let Ok(server) = TcpStream::connect(target) else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    for (from, to) in [(&client, &server), (&server, &client)] {
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        let shared = Arc::clone(shared);
        let limit = shared.rng.lock().unwrap().random_range(1..MOST_FRAMES);
        std::thread::spawn(move || {
            pump(&from, &to, &shared, limit);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// Passes frames on until the connection ends, or is to break.
fn pump(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared, limit: u64) {
    let mut passed = 0;
    loop {
        let mut header = [0; HEADER_BYTES];
        if from.read_exact(&mut header).is_err() {
            return;
        }
        let rest = match FrameHeader::parse(&header) {
            Ok(header) => bytes_after(&header),
            Err(error) => {
                eprintln!("the proxy understands no frame: {error}");
                return;
            }
        };
        let mut frame = header.to_vec();
        frame.resize(HEADER_BYTES + rest, 0);
        if from.read_exact(&mut frame[HEADER_BYTES..]).is_err() {
            return;
        }
        passed += 1;
        if passed >= limit && shared.breaks.load(SeqCst) {
            let keep = shared.rng.lock().unwrap().random_range(0..=frame.len());
            let _ = to.write_all(&frame[..keep]);
            shared.broken.fetch_add(1, SeqCst);
            return;
        }
        if to.write_all(&frame).is_err() {
            return;
        }
    }
}

/// Body, payload and the payload's checksum.
fn bytes_after(header: &FrameHeader) -> usize {
    let payload = header.payload_bytes as usize;
    let sum = if payload == 0 { 0 } else { PAYLOAD_SUM_BYTES };
    header.body_bytes as usize + payload + sum
}
