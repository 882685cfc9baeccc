//! What the process of a store says that uses it and is in no table of mounts: of a mount that was unmounted it is whom that waits
//! for. `forebay status` asks all of them at once, so that those which answer late are waited for together.

use forebay_client::{Control, may_have_ended};
use forebay_proto::control::BufferStatus;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for the greeting and the answer. The process looks through all mount tables of its node for that, which takes
/// some seconds on a busy machine.
const WAIT: Duration = Duration::from_secs(8);

/// What it says.
pub(super) enum Said {
    /// It was unmounted; its state, and what it waits for.
    Ending(Box<BufferStatus>, String),
    /// It is no such mount, or tells this user nothing.
    Nothing,
    /// It does not answer, and why.
    Silent(String),
    /// Nobody is there, or not any more.
    Ended,
}

/// Asks the process of a store.
pub(super) fn ask(store_dir: &Path) -> Said {
    let until = Instant::now().checked_add(WAIT);
    let control = Control::connect_store_limited(store_dir, until, WAIT);
    match control.and_then(|mut control| control.buffer_status()) {
        Ok(status) => match &status.ending {
            Some(waits_for) => {
                let why = format!("unmounted, and waits for its last copy: {waits_for}");
                Said::Ending(Box::new(status), why)
            }
            None => Said::Nothing,
        },
        Err(error) if may_have_ended(&error) => Said::Ended,
        Err(error) if error.errno == Some(libc::ETIMEDOUT) => Said::Silent(error.why),
        Err(_) => Said::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::super::at_once::at_once;
    use super::*;
    use forebay_client::frame::{read_message, write_message};
    use forebay_proto::control::{
        Hello, PathBytes, Reply, Request, SOCKET_NAME, StoreKind, Welcome,
    };
    use forebay_proto::version::CONTROL_PROTOCOL;
    use std::os::unix::net::UnixListener;

    /// Longer than one of many that are asked is waited for elsewhere.
    const LATE: Duration = Duration::from_millis(2_500);

    fn state(ending: Option<&str>) -> BufferStatus {
        BufferStatus {
            uuid: String::new(),
            buffer_type: "scratch".into(),
            buffer: None,
            server: None,
            server_error: None,
            not_asked: None,
            mount_point: PathBytes::new(b"/m"),
            store: PathBytes::new(b"/f/s"),
            store_kind: StoreKind::Tmpfs,
            volatile: true,
            fast_path: false,
            fast_path_reason: None,
            capacity_bytes: 1,
            used_bytes: 0,
            inodes: 0,
            pid: 7,
            http: None,
            uptime_s: 0,
            log_file: None,
            cache: None,
            ending: ending.map(Into::into),
            requests: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn a_mount_that_is_ending_is_heard_on_a_busy_machine() {
        let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let serve = |dir: &Path, ending: Option<&'static str>| {
            let listener = UnixListener::bind(dir.join(SOCKET_NAME)).unwrap();
            std::thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let _hello: Hello = read_message(&stream).unwrap().unwrap();
                let welcome = Welcome { protocol: CONTROL_PROTOCOL, program: "9.9".into() };
                write_message(&stream, &welcome).unwrap();
                let _asked: Request = read_message(&stream).unwrap().unwrap();
                std::thread::sleep(LATE);
                write_message(&stream, &Reply::Buffer(state(ending))).unwrap();
            })
        };
        // Of the last one nobody is there.
        let served = [serve(dirs[0].path(), Some("a copy")), serve(dirs[1].path(), None)];
        let begun = Instant::now();
        let said = at_once(dirs.iter().collect(), |dir: &tempfile::TempDir| ask(dir.path()));
        assert!(begun.elapsed() < LATE * 2, "at once: {:?}", begun.elapsed());
        let why = "unmounted, and waits for its last copy: a copy";
        assert!(matches!(&said[0], Said::Ending(status, said) if status.pid == 7 && said == why));
        assert!(matches!((&said[1], &said[2]), (Said::Nothing, Said::Ended)));
        served.into_iter().for_each(|server| server.join().unwrap());
    }
}
