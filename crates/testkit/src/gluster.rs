//! A GlusterFS: one server with one brick, and its FUSE client, to be the PFS of a test.
//!
//! The daemons run without systemd, in a network and a mount namespace of their own, so that they
//! need no network, meet no other GlusterFS of the machine, and leave nothing in /run and
//! /var/log. The brick is an XFS on a loop device, as GlusterFS asks for. Invariant: dropped, all of
//! them are gone; processes are ended by the numbers that they were started with.

use crate::procs::{LET_GO, run, try_run, try_run_for};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The server's address, in its own network. GlusterFS refuses loopback addresses.
const ADDRESS: &str = "10.77.0.1";
/// Size of the brick: what mkfs.xfs needs at least is 300 MiB.
const BRICK_BYTES: u64 = 1 << 30;
/// How long a command, or a start, may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The file system, mounted.
pub struct Gluster {
    base: PathBuf,
    server: Option<Child>,
    client: Option<Child>,
}

impl Gluster {
    /// Starts it with all its files below the new directory `base`.
    pub fn start(base: &Path) -> Gluster {
        for part in ["work", "run", "brick", "mnt"] {
            std::fs::create_dir_all(base.join(part)).unwrap();
        }
        let mut gluster = Gluster { base: base.to_path_buf(), server: None, client: None };
        gluster.make_brick();
        gluster.start_server();
        let brick = format!("{ADDRESS}:{}", gluster.brick().display());
        gluster.ask(&["volume", "create", "pfs", &brick, "force"]);
        gluster.ask(&["volume", "start", "pfs"]);
        gluster.mount();
        gluster
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.base.join("mnt")
    }

    /// The server's own directory of files, with GlusterFS's `.glusterfs` in it.
    pub fn brick(&self) -> PathBuf {
        self.base.join("brick/files")
    }

    fn make_brick(&self) {
        let image = self.base.join("brick.img");
        std::fs::File::create(&image).unwrap().set_len(BRICK_BYTES).unwrap();
        run(Command::new("mkfs.xfs").arg("-q").arg(&image));
        let point = self.base.join("brick");
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(point));
        std::fs::create_dir(self.brick()).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.base.join("run/glusterd.sock")
    }

    fn start_server(&mut self) {
        let base = self.base.display();
        let volume = self.base.join("glusterd.vol");
        let text = format!(
            "volume management\n type mgmt/glusterd\n option working-directory {base}/work\n \
             option run-directory {base}/run\n option glusterd-sockfile {base}/run/glusterd.sock\n \
             option transport-type socket\n option transport.socket.bind-address {ADDRESS}\n \
             option ping-timeout 0\n option event-threads 1\nend-volume\n"
        );
        std::fs::write(&volume, text).unwrap();
        let script = format!(
            "{LET_GO}set -e; ip link set lo up; ip addr add {ADDRESS}/32 dev lo; \
             for dir in /var/log/glusterfs /run/gluster; do mkdir -p $dir; \
             mount -t tmpfs tmpfs $dir; done; mkdir -p /var/log/glusterfs/bricks; \
             exec glusterd -N -f {0} -l {base}/run/glusterd.log -p {base}/run/glusterd.pid",
            volume.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private", "sh", "-c"]).arg(script);
        command.env("KEEP", &self.base);
        self.server = Some(command.stdin(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        while !self.try_ask(&["volume", "list"]).0 {
            assert!(start.elapsed() < LIMIT, "glusterd does not answer:\n{}", self.log("glusterd"));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self, of: &str) -> String {
        let path = self.base.join(format!("run/{of}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    fn try_ask(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new("gluster");
        command.arg("--mode=script").arg(format!("--glusterd-sock={}", self.socket().display()));
        command.arg(format!("--log-file={}", self.base.join("run/cli.log").display()));
        try_run_for(command.args(args), LIMIT)
    }

    fn ask(&self, args: &[&str]) {
        let (ok, said) = self.try_ask(args);
        assert!(ok, "gluster {args:?}: {said}\n{}", self.log("glusterd"));
    }

    fn mount(&mut self) {
        let server = self.server.as_ref().unwrap().id();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{server}/ns/net"));
        command.args(["glusterfs", "--no-daemon", "-s", ADDRESS, "--volfile-id", "pfs", "-l"]);
        command.arg(self.base.join("run/client.log")).arg(self.path());
        self.client = Some(command.stdin(Stdio::null()).spawn().unwrap());
        let start = Instant::now();
        while !try_run(Command::new("mountpoint").arg("-q").arg(self.path())).0 {
            assert!(start.elapsed() < LIMIT, "it is not mounted:\n{}", self.log("client"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends a process that we started.
fn end(child: Option<Child>) {
    let Some(mut child) = child else { return };
    // An end of its own first, and it is waited for in any case.
    let _ = child.kill();
    let _ = child.wait();
}

impl Drop for Gluster {
    fn drop(&mut self) {
        let _ = try_run(Command::new("umount").arg(self.path()));
        let _ = try_run(Command::new("umount").args(["-q", "-l"]).arg(self.path()));
        end(self.client.take());
        // The brick's daemon is the server's child, and would outlive it.
        let _ = self.try_ask(&["volume", "stop", "pfs", "force"]);
        end(self.server.take());
        let brick = self.base.join("brick");
        if !try_run(Command::new("umount").arg(&brick)).0 {
            let _ = try_run(Command::new("umount").args(["-q", "-l"]).arg(&brick));
        }
        let _ = std::fs::remove_dir_all(&self.base);
    }
}
