//! The greeting of a connection (format and proofs: [`forebay_proto::net::auth`]).
//!
//! Who accepts decides by its [`Gate`] which secret a key stands for and who may come in; until
//! the proof has been checked nothing else is read, and everything has a time limit. With the
//! greeting both ends have keys for what they seal ([`crate::seal`]).

use crate::link::{Link, LinkError};
use crate::munge;
use crate::random;
use crate::seal::Share;
use forebay_proto::net::auth::{
    Accepted, End, Hello, Key, PROOF_BYTES, Proof, Purpose, Refusal, Secret, Welcome,
};
use forebay_proto::net::frame::Kind;
use serde::Serialize;
use std::io::ErrorKind;
use std::time::Duration;

/// Longest wait for one frame of the greeting.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest frame of a greeting.
pub const GREETING_BYTES: u32 = 16 << 10;

/// What a client shows.
#[derive(Clone, Debug)]
pub enum Credential {
    /// It knows the secret of a key.
    Secret(Key, Secret),
    /// The kernel tells who it is (Unix socket).
    Peer,
    /// MUNGE tells who it is: makes a credential that carries the given text.
    Munge(fn(&str) -> Result<String, String>),
}

impl Credential {
    fn key(&self) -> Key {
        match self {
            Credential::Secret(key, _) => key.clone(),
            Credential::Peer => Key::Peer,
            Credential::Munge(_) => Key::Munge,
        }
    }
}

/// Who accepts: which secrets there are, and who gets in without one.
pub trait Gate {
    /// The secret that a key stands for; or why there is none.
    fn secret(&self, key: &Key) -> Result<Secret, Refusal>;
    /// Reads a MUNGE credential, which must carry `text`, and after it the secret of this connection.
    fn munge(&self, credential: &str, text: &str) -> Result<Vouched, Refusal> {
        let refuse = |why: String| Refusal { errno: libc::EACCES, why, hint: None };
        let decoded = munge::decode(credential).map_err(refuse)?;
        let secret = decoded.text.strip_prefix(text).and_then(Secret::from_hex);
        let other = || refuse("the MUNGE credential was made for another connection".into());
        Ok(Vouched { uid: decoded.uid, gid: decoded.gid, secret: secret.ok_or_else(other)? })
    }
}

/// What a MUNGE credential says.
#[derive(Clone, Debug)]
pub struct Vouched {
    /// Who made it.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Made for this connection by who connected; only who can read the credential knows it.
    pub secret: Secret,
}

/// The text that a MUNGE credential carries, before a secret: both nonces and the server's identity.
fn munge_text(hello: &Hello, welcome: &Welcome) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("forebay {} {} {:032x}", hex(&hello.nonce), hex(&welcome.nonce), welcome.server)
}

fn own_error(why: String) -> LinkError {
    LinkError::Refused(Refusal { errno: libc::EACCES, why, hint: None })
}

fn agree(
    link: &mut Link,
    share: Share,
    end: End,
    hello: &Hello,
    welcome: &Welcome,
) -> Result<(), LinkError> {
    let seals = share.agree(end, &hello.nonce, &welcome.nonce);
    link.set_seals(seals.ok_or_else(|| own_error("its nonce is no X25519 public key".into()))?);
    Ok(())
}

/// Sends a frame of the greeting. Where the server has closed already, the refusal that it may have left
/// says why, and a broken pipe would not.
fn say<T: Serialize>(link: &mut Link, kind: Kind, body: &T) -> Result<(), LinkError> {
    match link.send(kind, 0, body, &[], None) {
        Err(LinkError::Io(error))
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            match link.receive(&mut Vec::new()) {
                Err(LinkError::Refused(refusal)) => Err(LinkError::Refused(refusal)),
                _ => Err(LinkError::Io(error)),
            }
        }
        sent => sent,
    }
}

/// The client's part. Returns what the server said of itself.
pub fn connect(
    link: &mut Link,
    program: &str,
    purpose: Purpose,
    credential: &Credential,
) -> Result<Welcome, LinkError> {
    connect_within(link, program, purpose, credential, HANDSHAKE_TIMEOUT)
}

/// The same, waiting so long for each of the server's answers.
pub fn connect_within(
    link: &mut Link,
    program: &str,
    purpose: Purpose,
    credential: &Credential,
    limit: Duration,
) -> Result<Welcome, LinkError> {
    link.set_timeouts(Some(limit), Some(limit))?;
    let share = Share::new()?;
    let nonce = share.public;
    let hello = Hello { program: program.into(), purpose, key: credential.key(), nonce };
    say(link, Kind::Hello, &hello)?;
    let welcome: Welcome = link.receive_as(Kind::Welcome)?;
    let nothing = Proof { proof: [0; PROOF_BYTES], credential: None };
    let (proof, known) = match credential {
        Credential::Secret(_, secret) => {
            let proof = secret.prove(End::Client, &hello, &welcome);
            let stranger = "the server does not know the secret: it is another one";
            (Proof { proof, ..nothing }, Some((secret.clone(), stranger)))
        }
        Credential::Peer => (nothing, None),
        Credential::Munge(make) => {
            let secret = Secret::from_bytes(random::bytes()?);
            let text = format!("{} {}", munge_text(&hello, &welcome), secret.to_hex());
            let made = make(&text).map_err(own_error)?;
            let stranger = "the server cannot read the MUNGE credential: it is another one";
            (Proof { credential: Some(made), ..nothing }, Some((secret, stranger)))
        }
    };
    say(link, Kind::Proof, &proof)?;
    let accepted: Accepted = link.receive_as(Kind::Accepted)?;
    if let Some((secret, stranger)) = known
        && !secret.accepts(End::Server, &hello, &welcome, &accepted.proof)
    {
        return Err(own_error(stranger.into()));
    }
    agree(link, share, End::Client, &hello, &welcome)?;
    Ok(welcome)
}

/// What an accepted client said of itself, proven where its key has a secret.
#[derive(Clone, Debug)]
pub struct Greeted {
    /// What for.
    pub purpose: Purpose,
    /// As whom.
    pub key: Key,
    /// With [`Key::Munge`], the user and group that the gate found.
    pub user: Option<(u32, u32)>,
}

/// The server's part. A client that is refused is told why.
pub fn accept(
    link: &mut Link,
    program: &str,
    server: u128,
    incarnation: u64,
    gate: &dyn Gate,
) -> Result<Greeted, LinkError> {
    link.set_timeouts(Some(HANDSHAKE_TIMEOUT), Some(HANDSHAKE_TIMEOUT))?;
    link.set_body_limit(GREETING_BYTES);
    let greeted = greet(link, program, server, incarnation, gate);
    link.set_body_limit(u32::MAX);
    match greeted {
        Err(LinkError::Refused(refusal)) => {
            link.refuse(&refusal);
            Err(LinkError::Refused(refusal))
        }
        Err(LinkError::Frame(error)) => {
            let refusal = Refusal { errno: libc::EPROTO, why: error.to_string(), hint: None };
            link.refuse(&refusal);
            Err(LinkError::Frame(error))
        }
        other => other,
    }
}

fn greet(
    link: &mut Link,
    program: &str,
    server: u128,
    incarnation: u64,
    gate: &dyn Gate,
) -> Result<Greeted, LinkError> {
    let hello: Hello = link.receive_as(Kind::Hello)?;
    let share = Share::new()?;
    let nonce = share.public;
    let welcome = Welcome { program: program.into(), server, incarnation, nonce };
    link.send(Kind::Welcome, 0, &welcome, &[], None)?;
    let proof: Proof = link.receive_as(Kind::Proof)?;
    let mut answer = [0; PROOF_BYTES];
    let mut user = None;
    match &hello.key {
        Key::Peer if link.stream().is_unix() => {}
        Key::Peer => {
            return Err(LinkError::Refused(Refusal {
                errno: libc::EACCES,
                why: "over TCP a secret is needed".into(),
                hint: Some("give --secret-file, or connect by the server's Unix socket".into()),
            }));
        }
        Key::Munge => {
            let credential = proof.credential.as_deref().unwrap_or_default();
            let text = munge_text(&hello, &welcome);
            let vouched = gate.munge(credential, &text).map_err(LinkError::Refused)?;
            user = Some((vouched.uid, vouched.gid));
            answer = vouched.secret.prove(End::Server, &hello, &welcome);
        }
        key => {
            // An unknown buffer and a wrong secret look the same from outside.
            let refused = || {
                LinkError::Refused(Refusal {
                    errno: libc::EACCES,
                    why: format!("the secret for {key} is not the right one"),
                    hint: Some(
                        "use the secret file that `forebay buffer create` or `forebay serve` wrote"
                            .into(),
                    ),
                })
            };
            let secret = gate.secret(key).map_err(|_| refused())?;
            if !secret.accepts(End::Client, &hello, &welcome, &proof.proof) {
                return Err(refused());
            }
            answer = secret.prove(End::Server, &hello, &welcome);
        }
    }
    agree(link, share, End::Server, &hello, &welcome)?;
    link.send(Kind::Accepted, 0, &Accepted { proof: answer }, &[], None)?;
    Ok(Greeted { purpose: hello.purpose, key: hello.key, user })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stream;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    struct OneSecret(Secret);

    impl Gate for OneSecret {
        fn secret(&self, key: &Key) -> Result<Secret, Refusal> {
            match key {
                Key::Buffer(name) if name == "known" => Ok(self.0.clone()),
                _ => Err(Refusal { errno: libc::ENOENT, why: "unknown".into(), hint: None }),
            }
        }

        fn munge(&self, credential: &str, text: &str) -> Result<Vouched, Refusal> {
            let carried = credential.strip_prefix("MUNGE:").and_then(|all| all.strip_prefix(text));
            match carried.and_then(Secret::from_hex) {
                Some(secret) => Ok(Vouched { uid: 1000, gid: 100, secret }),
                None => Err(Refusal { errno: libc::EACCES, why: "forged".into(), hint: None }),
            }
        }
    }

    /// Lets everybody in, and cannot read what MUNGE wrote.
    struct Stranger;

    impl Gate for Stranger {
        fn secret(&self, _: &Key) -> Result<Secret, Refusal> {
            Ok(Secret::from_bytes([1; 32]))
        }

        fn munge(&self, _: &str, _: &str) -> Result<Vouched, Refusal> {
            Ok(Vouched { uid: 0, gid: 0, secret: Secret::from_bytes([1; 32]) })
        }
    }

    fn unix_pair() -> (Link, Link) {
        let (a, b) = UnixStream::pair().unwrap();
        (Link::new(Stream::Unix(a)), Link::new(Stream::Unix(b)))
    }

    fn tcp_pair() -> (Link, Link) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let b = listener.accept().unwrap().0;
        (Link::new(Stream::from_tcp(a).unwrap()), Link::new(Stream::from_tcp(b).unwrap()))
    }

    fn greet_over(
        (mut client, mut server): (Link, Link),
        credential: Credential,
    ) -> (Result<Welcome, LinkError>, Result<Greeted, LinkError>) {
        let gate = OneSecret(Secret::from_bytes([7; 32]));
        let accepting = std::thread::spawn(move || accept(&mut server, "s", 9, 3, &gate));
        let connected = connect(&mut client, "c", Purpose::Calls, &credential);
        (connected, accepting.join().unwrap())
    }

    #[test]
    fn who_knows_the_secret_gets_in() {
        let key = Key::Buffer("known".into());
        let credential = Credential::Secret(key.clone(), Secret::from_bytes([7; 32]));
        let (welcome, greeted) = greet_over(tcp_pair(), credential);
        assert_eq!((welcome.unwrap().incarnation, greeted.unwrap().key), (3, key));
    }

    #[test]
    fn a_wrong_secret_and_an_unknown_buffer_look_the_same() {
        let mut words = Vec::new();
        for (name, byte) in [("known", 8), ("other", 7)] {
            let key = Key::Buffer(name.into());
            let credential = Credential::Secret(key, Secret::from_bytes([byte; 32]));
            let (welcome, greeted) = greet_over(tcp_pair(), credential);
            assert!(matches!(greeted, Err(LinkError::Refused(_))));
            words.push(welcome.unwrap_err().to_string().replace(name, "X"));
        }
        assert_eq!(words[0], words[1]);
    }

    #[test]
    fn the_kernel_vouches_on_a_unix_socket_only() {
        let (welcome, _) = greet_over(unix_pair(), Credential::Peer);
        assert!(welcome.is_ok());
        let (welcome, greeted) = greet_over(tcp_pair(), Credential::Peer);
        assert!(welcome.unwrap_err().to_string().contains("secret is needed"));
        assert!(greeted.is_err());
    }

    #[test]
    fn a_refusal_is_heard_from_who_has_closed_already() {
        for (mut client, mut server) in [unix_pair(), tcp_pair()] {
            let why = "full".to_string();
            server.refuse(&Refusal { errno: libc::EAGAIN, why, hint: None });
            drop(server);
            let told = connect(&mut client, "c", Purpose::Calls, &Credential::Peer);
            assert!(matches!(&told, Err(LinkError::Refused(r)) if r.why == "full"), "{told:?}");
        }
    }

    #[test]
    fn little_is_taken_from_who_has_not_said_who_it_is() {
        let (mut client, mut server) = tcp_pair();
        let gate = OneSecret(Secret::from_bytes([7; 32]));
        let accepting = std::thread::spawn(move || accept(&mut server, "s", 9, 3, &gate));
        client.send(Kind::Hello, 0, &"x".repeat(100_000), &[], None).unwrap();
        let told = client.receive_as::<Welcome>(Kind::Welcome).unwrap_err().to_string();
        assert!(told.contains("longer than"), "{told}");
        assert!(accepting.join().unwrap().is_err());
    }

    #[test]
    fn who_was_greeted_can_seal_and_nobody_between_can_open() {
        let (mut client, mut server) = tcp_pair();
        let gate = OneSecret(Secret::from_bytes([7; 32]));
        let accepting = std::thread::spawn(move || {
            accept(&mut server, "s", 9, 3, &gate).unwrap();
            let (id, asked): (u64, String) = server.receive_json(Kind::Ledger).unwrap();
            server.send_json(Kind::LedgerReply, id, &format!("{asked}!")).unwrap();
        });
        let key = Key::Buffer("known".into());
        let credential = Credential::Secret(key, Secret::from_bytes([7; 32]));
        connect(&mut client, "c", Purpose::Ledger, &credential).unwrap();
        client.send_json(Kind::Ledger, 4, &"hello").unwrap();
        let told: (u64, String) = client.receive_json(Kind::LedgerReply).unwrap();
        assert_eq!(told, (4, "hello!".into()));
        accepting.join().unwrap();
    }

    #[test]
    fn without_a_greeting_nothing_is_sealed() {
        let (mut a, mut b) = unix_pair();
        assert!(a.send_json(Kind::Ledger, 1, &"x").is_err());
        a.send(Kind::Ledger, 1, &"x", &[], None).unwrap();
        assert!(b.receive_json::<String>(Kind::Ledger).is_err());
    }

    /// Passes a greeting on, but with its own nonces, to know the keys of both ends.
    fn pass_on_with_other_nonces(client_side: &mut Link, server_side: &mut Link) {
        let (to_server, to_client) = (Share::new().unwrap(), Share::new().unwrap());
        let hello: Hello = client_side.receive_as(Kind::Hello).unwrap();
        let hello = Hello { nonce: to_server.public, ..hello };
        server_side.send(Kind::Hello, 0, &hello, &[], None).unwrap();
        let welcome: Welcome = server_side.receive_as(Kind::Welcome).unwrap();
        let welcome = Welcome { nonce: to_client.public, ..welcome };
        client_side.send(Kind::Welcome, 0, &welcome, &[], None).unwrap();
        let proof: Proof = client_side.receive_as(Kind::Proof).unwrap();
        server_side.send(Kind::Proof, 0, &proof, &[], None).unwrap();
        let end = server_side.receive_as::<Accepted>(Kind::Accepted);
        assert!(matches!(end, Err(LinkError::Refused(_))), "{end:?}");
    }

    #[test]
    fn who_puts_nonces_of_its_own_between_is_refused() {
        let key = Key::Buffer("known".into());
        for credential in [
            Credential::Secret(key, Secret::from_bytes([7; 32])),
            Credential::Munge(|text| Ok(format!("MUNGE:{text}"))),
        ] {
            let (mut client, mut client_side) = tcp_pair();
            let (mut server_side, mut server) = tcp_pair();
            let gate = OneSecret(Secret::from_bytes([7; 32]));
            let accepting = std::thread::spawn(move || accept(&mut server, "s", 9, 3, &gate));
            let between = std::thread::spawn(move || {
                pass_on_with_other_nonces(&mut client_side, &mut server_side);
            });
            assert!(connect(&mut client, "c", Purpose::Ledger, &credential).is_err());
            between.join().unwrap();
            assert!(accepting.join().unwrap().is_err());
        }
    }

    #[test]
    fn a_server_that_cannot_read_the_credential_is_not_believed() {
        let (mut client, mut server) = tcp_pair();
        let accepting = std::thread::spawn(move || accept(&mut server, "s", 9, 3, &Stranger));
        let credential = Credential::Munge(|text| Ok(format!("MUNGE:{text}")));
        let connected = connect(&mut client, "c", Purpose::Ledger, &credential);
        let told = connected.unwrap_err().to_string();
        assert!(told.contains("cannot read the MUNGE credential"), "{told}");
        assert!(accepting.join().unwrap().is_ok(), "it would have let everybody in");
    }

    #[test]
    fn munge_credentials_fit_one_connection() {
        let (welcome, greeted) =
            greet_over(tcp_pair(), Credential::Munge(|text| Ok(format!("MUNGE:{text}"))));
        assert!(welcome.is_ok() && greeted.unwrap().user == Some((1000, 100)));
        let (welcome, _) =
            greet_over(tcp_pair(), Credential::Munge(|_| Ok("MUNGE:recorded".into())));
        assert!(welcome.is_err());
    }
}
