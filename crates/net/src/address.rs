//! Where a server listens: `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const UNIX_PREFIX: &str = "unix:";

/// An address. TCP hosts are looked up at each connection, so that they may move.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ServerAddress {
    /// Host name or address, and port.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Port; 0 only to listen on any.
        port: u16,
    },
    /// Path of a socket, absolute.
    Unix(PathBuf),
}

/// Why a text is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no address of a server: {why}; write HOST:PORT or unix:/absolute/path")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<ServerAddress, AddressError> {
        let fail = |why| Err(AddressError { text: text.into(), why });
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            return match path.starts_with('/') {
                true => Ok(ServerAddress::Unix(path.into())),
                false => fail("the path is not absolute"),
            };
        }
        let Some((host, port)) = text.rsplit_once(':') else { return fail("it has no port") };
        let Ok(port) = port.parse() else { return fail("the port is not a number up to 65535") };
        let bare = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(inner) => inner,
            None if host.contains(':') => return fail("an IPv6 address needs brackets"),
            None => host,
        };
        if bare.is_empty() || bare.contains(|c: char| c.is_whitespace() || c == '/') {
            return fail("it has no host");
        }
        Ok(ServerAddress::Tcp { host: bare.into(), port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerAddress::Tcp { host, port } => write!(f, "{host}:{port}"),
            ServerAddress::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl TryFrom<String> for ServerAddress {
    type Error = AddressError;

    fn try_from(text: String) -> Result<ServerAddress, AddressError> {
        text.parse()
    }
}

impl From<ServerAddress> for String {
    fn from(address: ServerAddress) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["node7:4242", "10.0.0.1:1", "[::1]:80", "unix:/run/x y.sock"] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_addresses_say_what_is_missing() {
        for (text, why) in [
            ("node7", "port"),
            ("node7:x", "port"),
            ("node7:99999", "port"),
            (":80", "host"),
            ("::1:80", "brackets"),
            ("unix:run/x", "absolute"),
            ("a b:1", "host"),
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
