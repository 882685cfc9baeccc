//! Secret files: where they are, who may read them, what is in them.
//!
//! One directory for a user's secrets: `$FOREBAY_CONFIG_DIR`; else `/etc/forebay` for root; else
//! `$XDG_CONFIG_HOME/forebay`; else `~/.config/forebay`. In it `server.key`, the key of the
//! user's servers, made by the first `forebay serve`, and `buffers/NAME.secret`, written by
//! `forebay buffer create`. A file says whose secret it holds: `server HEX` or
//! `buffer NAME HEX`. Directories have mode 0700 and files 0600; files that others may read are
//! refused.

use forebay_net::ServerAddress;
use forebay_net::handshake::Credential;
use forebay_net::munge;
use forebay_proto::control::ControlError;
use forebay_proto::net::auth::{Key, Secret};
use forebay_proto::net::ledger::BufferName;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of the servers' key.
const SERVER_KEY_NAME: &str = "server.key";
/// Directory of buffers' secrets.
const BUFFERS_NAME: &str = "buffers";
/// Longest secret file.
const MAX_FILE_BYTES: u64 = 4096;
/// Attempts to make the key, if others make and remove it at the same moment.
const MAX_TRIES: u32 = 16;

/// The directory of this user's secrets.
pub fn directory() -> Result<PathBuf, ControlError> {
    let root = rustix::process::geteuid().is_root();
    directory_of(root, |name| std::env::var_os(name))
}

fn directory_of(
    root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<PathBuf, ControlError> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("FOREBAY_CONFIG_DIR") {
        return Ok(dir);
    }
    if root {
        return Ok(PathBuf::from("/etc/forebay"));
    }
    set("XDG_CONFIG_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".config")))
        .map(|dir| dir.join("forebay"))
        .ok_or_else(|| {
            let why = "neither $FOREBAY_CONFIG_DIR nor $XDG_CONFIG_HOME nor $HOME is set";
            ControlError::new("find the directory of secrets", None, why)
                .hint("name the file with --secret-file")
        })
}

/// Where the servers' key is, unless a file was named.
pub fn server_key_path(given: Option<&Path>) -> Result<PathBuf, ControlError> {
    match given {
        Some(path) => Ok(path.to_path_buf()),
        None => Ok(directory()?.join(SERVER_KEY_NAME)),
    }
}

/// Where a buffer's secret is.
pub fn buffer_path(name: &BufferName) -> Result<PathBuf, ControlError> {
    Ok(directory()?.join(BUFFERS_NAME).join(format!("{name}.secret")))
}

/// Reads a secret file; `None` if there is none.
pub fn read(path: &Path) -> Result<Option<(Key, Secret)>, ControlError> {
    let what = "read the secret file";
    let failed = |error: &std::io::Error| ControlError::io(what, Some(path), error);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    let meta = file.metadata().map_err(|error| failed(&error))?;
    let refuse = |why: &str, hint: &str| {
        Err(ControlError::new(what, Some(path), why).errno(libc::EPERM).hint(hint))
    };
    if !meta.is_file() {
        return refuse("it is not a file", "name a secret file");
    }
    if meta.mode() & 0o077 != 0 {
        let why = format!("others may use it (mode {:04o})", meta.mode() & 0o7777);
        let hint = "whoever has read it knows the secret; if nobody has, chmod 600 it";
        return refuse(&why, hint);
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me && me != 0 {
        return refuse(&format!("it belongs to user {}", meta.uid()), "use a file of your own");
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| failed(&error))?;
    match parse(&text) {
        Some(found) => Ok(Some(found)),
        None => refuse(
            "it holds no secret",
            "it must be `server HEX` or `buffer NAME HEX`, as `forebay serve` and `forebay buffer create` write it",
        ),
    }
}

fn parse(text: &str) -> Option<(Key, Secret)> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["server", hex] => Some((Key::Server, Secret::from_hex(hex)?)),
        ["buffer", name, hex] => {
            let name: BufferName = name.parse().ok()?;
            Some((Key::Buffer(name.to_string()), Secret::from_hex(hex)?))
        }
        _ => None,
    }
}

/// The servers' key, made if there is none. Two servers that start at once get the same.
pub fn server_key(path: &Path) -> Result<Secret, ControlError> {
    for _ in 0..MAX_TRIES {
        match read(path)? {
            Some((Key::Server, secret)) => return Ok(secret),
            Some((key, _)) => {
                let why = format!("it holds the secret of {key}, not of a server");
                return Err(ControlError::new("use the server's key", Some(path), &why)
                    .errno(libc::EINVAL)
                    .hint("name another file with --secret-file"));
            }
            None => (),
        }
        let bytes = forebay_net::random::bytes()
            .map_err(|error| ControlError::io("make the server's key", Some(path), &error))?;
        let secret = Secret::from_bytes(bytes);
        write(path, &format!("server {}\n", secret.to_hex()), false)?;
    }
    let why = "it disappears as soon as it is made";
    Err(ControlError::new("make the server's key", Some(path), why))
}

/// Which file is to be copied so that this node has the key of the pool that the server at `join` is of.
pub fn where_the_key_is(join: Option<&ServerAddress>, here: &Path) -> String {
    let from = match join {
        Some(ServerAddress::Tcp { host, .. }) => format!("{host}:"),
        Some(ServerAddress::Unix(_)) => String::new(),
        None => "another server's node: ".to_string(),
    };
    format!(
        "copy {from}/etc/forebay/{SERVER_KEY_NAME} (or the key file that the server there printed when it started) to {}, with \
         mode 0600; --secret-file names another file",
        here.display()
    )
}

/// Keeps a buffer's secret.
pub fn keep_buffer(name: &BufferName, secret: &str) -> Result<PathBuf, ControlError> {
    let path = buffer_path(name)?;
    write(&path, &format!("buffer {name} {secret}\n"), true)?;
    Ok(path)
}

/// Text of the file with a buffer's secret; `None` if there is none.
pub fn buffer_text(name: &BufferName) -> Result<Option<String>, ControlError> {
    let found = read(&buffer_path(name)?)?;
    Ok(found.map(|(_, secret)| format!("buffer {name} {}\n", secret.to_hex())))
}

/// Forgets a buffer's secret; there may be none.
pub fn forget_buffer(name: &BufferName) -> Result<(), ControlError> {
    let path = buffer_path(name)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(ControlError::io("remove the secret file", Some(&path), &error))
        }
        _ => Ok(()),
    }
}

/// Writes a file whole, mode 0600. Without `replace` one that is there stays as it is.
fn write(path: &Path, text: &str, replace: bool) -> Result<(), ControlError> {
    let what = "write the secret file";
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| ControlError::io("make the directory of secrets", Some(dir), &error))?;
    let tmp = dir.join(format!(".secret-{}.tmp", std::process::id()));
    let failed = |error: std::io::Error| ControlError::io(what, Some(path), &error);
    let written = (|| {
        // What a killed process of the same number left is ours to replace.
        match fs::remove_file(&tmp) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&tmp)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        if replace {
            fs::rename(&tmp, path)?;
        } else {
            match fs::hard_link(&tmp, path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => fs::remove_file(&tmp)?,
            }
        }
        File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        // It may never have been made.
        let _ = fs::remove_file(&tmp);
    }
    written.map_err(failed)
}

/// What to show a server. On its Unix socket the kernel tells who asks; else a secret is needed:
/// the file that was named, the secret of the buffer in question, or the servers' key. Without
/// one, MUNGE tells who asks, where the site has it.
pub fn credential(
    unix: bool,
    given: Option<&Path>,
    buffer: Option<&BufferName>,
) -> Result<Credential, ControlError> {
    if let Some(path) = given {
        let found = read(path)?.ok_or_else(|| {
            ControlError::new("read the secret file", Some(path), "there is none")
                .errno(libc::ENOENT)
        })?;
        if let (Key::Buffer(of), Some(name)) = (&found.0, buffer) {
            if of != name.as_str() {
                let why = format!("it is the secret of buffer {of}, not of {name}");
                return Err(
                    ControlError::new("use the secret file", Some(path), &why).errno(libc::EINVAL)
                );
            }
        }
        return Ok(Credential::Secret(found.0, found.1));
    }
    if unix {
        return Ok(Credential::Peer);
    }
    let mut looked = Vec::new();
    if let Some(name) = buffer {
        looked.push(buffer_path(name)?);
    }
    looked.push(server_key_path(None)?);
    for path in &looked {
        if let Some((key, secret)) = read(path)? {
            return Ok(Credential::Secret(key, secret));
        }
    }
    if munge::is_there() {
        return Ok(Credential::Munge(munge::encode));
    }
    let places: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    let why = format!("over TCP a secret is needed, and there is no {}", places.join(" and no "));
    Err(ControlError::new("ask the server", None, &why).errno(libc::EACCES).hint(
        "copy the file from where the buffer or the server was made, or name it with --secret-file",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn there_is_one_rule_for_the_directory() {
        let set = |names: &'static [(&'static str, &'static str)]| {
            move |name: &str| {
                names.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            }
        };
        let of = |root, names| directory_of(root, set(names)).unwrap();
        let all = &[("FOREBAY_CONFIG_DIR", "/c"), ("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(of(true, all), Path::new("/c"));
        assert_eq!(of(true, &all[1..]), Path::new("/etc/forebay"));
        assert_eq!(of(false, &all[1..]), Path::new("/x/forebay"));
        assert_eq!(of(false, &all[2..]), Path::new("/h/.config/forebay"));
        assert!(directory_of(false, |_| None).is_err());
    }

    #[test]
    fn the_servers_key_is_made_once_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/server.key");
        let made = server_key(&path).unwrap();
        assert_eq!(server_key(&path).unwrap(), made);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn files_that_others_may_read_are_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server.key");
        server_key(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("chmod 600"), "{message}");
        }
    }

    #[test]
    fn a_file_says_whose_secret_it_is() {
        let hex = "ab".repeat(32);
        let (key, secret) = parse(&format!("buffer run.1 {hex}\n")).unwrap();
        assert_eq!((key, secret.to_hex()), (Key::Buffer("run.1".into()), hex.clone()));
        assert_eq!(parse(&format!("server {hex}")).unwrap().0, Key::Server);
        for bad in [hex.clone(), format!("buffer ../x {hex}"), "server ab".into(), String::new()] {
            assert!(parse(&bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_secret_of_another_buffer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.secret");
        write(&path, &format!("buffer a {}\n", "ab".repeat(32)), true).unwrap();
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert!(credential(false, Some(&path), Some(&a)).is_ok());
        let message = credential(false, Some(&path), Some(&b)).unwrap_err().to_string();
        assert!(message.contains("of buffer a, not of b"), "{message}");
    }
}
