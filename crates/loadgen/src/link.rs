//! What a link between two nodes does: the time of a turn of one byte, and bytes a second in one direction, over TCP as the servers use it.
//!
//! Invariants: an end that serves answers one measurement after the other, and holds no more than a piece in memory. Both ends end
//! when the other one goes. What is measured without another end is the loopback of this node, and is called that.
//! Caller: the command line's `forebay bench machine`.

use crate::shared::now_ns;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Turns of one byte; the figure is their median.
const TURNS: usize = 1_000;
/// Bytes that are sent in each direction, and in one piece.
const BYTES: u64 = 512 << 20;
const PIECE: usize = 1 << 20;
/// Longest pause of the other end.
const PATIENCE: Duration = Duration::from_secs(30);
/// First byte of a part of the measurement.
const TURN: u8 = b't';
const SEND: u8 = b's';
const FETCH: u8 = b'f';

/// A link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Median seconds of a turn.
    pub round_trip_s: f64,
    /// Bytes a second to the other end.
    pub send_bytes_per_s: f64,
    /// Bytes a second from it.
    pub fetch_bytes_per_s: f64,
    /// It was the loopback.
    pub loopback: bool,
}

impl Link {
    /// The slower direction.
    pub fn rate(&self) -> f64 {
        self.send_bytes_per_s.min(self.fetch_bytes_per_s)
    }
}

/// Measures the way to another node on which [`serve`] runs.
///
/// # Errors
/// It is not reached, or goes away.
pub fn measure(address: &str) -> io::Result<Link> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let stream = TcpStream::connect(&addresses[..])?;
    let loopback = stream.peer_addr()?.ip().is_loopback();
    measured(&stream, loopback, BYTES)
}

/// Measures the loopback.
///
/// # Errors
/// It cannot be used.
pub fn measure_loopback() -> io::Result<Link> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Ok((stream, _)) = listener.accept() {
                // The other end tells if this one fails.
                let _ = answer(&stream);
            }
        });
        measured(&TcpStream::connect(address)?, true, BYTES)
    })
}

fn measured(mut stream: &TcpStream, loopback: bool, bytes: u64) -> io::Result<Link> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let start = now_ns();
        stream.write_all(&[TURN])?;
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        turns.push(now_ns() - start);
    }
    turns.sort_unstable();
    let mut piece = vec![0x5a_u8; PIECE];
    let start = begin(stream, SEND, bytes)?;
    let mut left = bytes;
    while left > 0 {
        let length = left.min(PIECE as u64) as usize;
        stream.write_all(&piece[..length])?;
        left -= length as u64;
    }
    // The other end has all of it.
    stream.read_exact(&mut [0])?;
    let sent_ns = now_ns() - start;
    let start = begin(stream, FETCH, bytes)?;
    let mut left = bytes;
    while left > 0 {
        let length = left.min(PIECE as u64) as usize;
        stream.read_exact(&mut piece[..length])?;
        left -= length as u64;
    }
    let fetched_ns = now_ns() - start;
    let rate = |ns: u64| bytes as f64 * 1e9 / ns.max(1) as f64;
    Ok(Link {
        round_trip_s: turns[TURNS / 2] as f64 / 1e9,
        send_bytes_per_s: rate(sent_ns),
        fetch_bytes_per_s: rate(fetched_ns),
        loopback,
    })
}

/// Begins a part; when that was.
fn begin(mut stream: &TcpStream, kind: u8, bytes: u64) -> io::Result<u64> {
    let mut head = vec![kind];
    head.extend_from_slice(&bytes.to_le_bytes());
    let start = now_ns();
    stream.write_all(&head)?;
    Ok(start)
}

/// The other end: answers who comes, one after the other; `told` hears where it listens.
///
/// # Errors
/// It cannot listen there.
pub fn serve(address: &str, told: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    told(listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept()?;
        // Who measured has gone, or tells by itself.
        let _ = answer(&stream);
    }
}

fn answer(mut stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut piece = vec![0xa5_u8; PIECE];
    let mut kind = [0];
    while stream.read(&mut kind)? == 1 {
        if kind == [TURN] {
            stream.write_all(&kind)?;
            continue;
        }
        let mut length = [0; 8];
        stream.read_exact(&mut length)?;
        let mut left = u64::from_le_bytes(length);
        while left > 0 {
            let next = left.min(PIECE as u64) as usize;
            match kind {
                [SEND] => stream.read_exact(&mut piece[..next])?,
                [FETCH] => stream.write_all(&piece[..next])?,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
            left -= next as u64;
        }
        if kind == [SEND] {
            stream.write_all(&kind)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_measured_both_ways_and_the_loopback_is_called_that() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("its address");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (stream, _) = listener.accept().expect("somebody comes");
                answer(&stream).expect("it goes in good order");
            });
            let stream = TcpStream::connect(address).expect("somebody listens");
            let link = measured(&stream, true, 3 << 20).expect("measured");
            assert!(link.loopback && link.round_trip_s > 0.0 && link.round_trip_s < 1.0);
            assert!(link.rate() > 1e6 && link.rate() <= link.send_bytes_per_s);
        });
        assert!(measure("127.0.0.1:1").is_err(), "nobody listens there");
    }
}
