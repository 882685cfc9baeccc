//! Random bytes of the kernel, for nonces, secrets, keys and identities.

use forebay_proto::net::ledger::Token;
use std::io;

/// Fills an array.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut out = [0u8; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut out[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(out)
}

/// A random number of 64 bits, never 0.
pub fn nonzero_u64() -> io::Result<u64> {
    loop {
        let number = u64::from_le_bytes(bytes()?);
        if number != 0 {
            return Ok(number);
        }
    }
}

/// A random number of 128 bits.
pub fn u128() -> io::Result<u128> {
    Ok(u128::from_le_bytes(bytes()?))
}

/// A token for a request that may have to be sent again.
pub fn token() -> io::Result<Token> {
    Ok(Token(format!("{:032x}", u128()?)))
}
