//! A server for jobs, and nodes for them: processes with a mount namespace, a host name, and
//! directories of their own, and where it matters a network of their own. Used by the tests beside it.

use super::place::{Place, signal, until};
use forebay_tests::buffer::{alive, binary};
use forebay_tests::machines::Machines;
use forebay_tests::procs;
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A place with a server.
pub struct Site {
    /// Networks of this node, of the other nodes, and of the servers beside the first.
    machines: Option<Machines>,
    pub place: Place,
    pub tcp: String,
    /// Process of the server; 0: none.
    pub pid: Cell<i32>,
    nodes: Vec<Child>,
    /// Servers that joined the first: their processes, and where they listen.
    members: Vec<(i32, String)>,
}

impl Site {
    /// With a server and as many nodes as named, `n1` and so on.
    pub fn new(nodes: usize) -> Site {
        Site::with(nodes, 1, None)
    }

    /// The same with so many servers, and a network namespace for this node with the first server, for
    /// each other node, and for each other server: all that is said goes by TCP between them.
    pub fn on_machines(nodes: usize, servers: usize) -> Site {
        Site::with(nodes, servers, Some(Machines::new(nodes + servers)))
    }

    fn with(nodes: usize, servers: usize, machines: Option<Machines>) -> Site {
        let place = Place::new();
        fs::create_dir_all(place.base.join("server")).unwrap();
        let mut site = Site {
            machines,
            place,
            tcp: String::new(),
            pid: Cell::new(0),
            nodes: Vec::new(),
            members: Vec::new(),
        };
        site.tcp = site.any_port(0);
        site.tcp = site.start_server();
        for number in 1..=nodes {
            site.start_node(&format!("n{number}"), number);
        }
        site.write_launcher();
        for number in 1..servers {
            let member = site.join(number, &site.any_port(nodes + number));
            site.members.push(member);
        }
        site
    }

    /// With so many servers, all on this node.
    pub fn of_servers(servers: usize) -> Site {
        Site::with(0, servers, None)
    }

    /// Starts a server that joins the first: its process, and where it listens.
    fn join(&self, number: usize, listen: &str) -> (i32, String) {
        let flash = self.place.base.join(format!("server{number}"));
        fs::create_dir_all(&flash).unwrap();
        let machine = self.nodes.len() + number;
        let mut command = self.forebay_on(machine, &["serve", "--background", "--json"]);
        command.arg("--flash").arg(&flash).args(["--capacity", "1GiB"]);
        command.args(["--listen", listen, "--join", &self.tcp]);
        // It plays another node.
        command.arg("--no-own-socket");
        let said: Value = serde_json::from_str(procs::run(&mut command).trim()).unwrap();
        let address = said["addresses"][0].as_str().unwrap().to_string();
        (said["pid"].as_i64().unwrap() as i32, address)
    }

    /// The process of a server that joined the first; from 1 on.
    pub fn member(&self, number: usize) -> i32 {
        self.members[number - 1].0
    }

    /// Where it listens.
    pub fn member_address(&self, number: usize) -> String {
        self.members[number - 1].1.clone()
    }

    /// Starts such a server again that was killed.
    pub fn start_member(&mut self, number: usize) {
        let member = self.join(number, &self.members[number - 1].1);
        self.members[number - 1] = member;
    }

    /// Where something on a machine may listen.
    fn any_port(&self, machine: usize) -> String {
        match &self.machines {
            Some(machines) => format!("{}:0", machines.address(machine)),
            None => "127.0.0.1:0".into(),
        }
    }

    /// A program on a machine.
    fn on(&self, machine: usize, program: &str) -> Command {
        let Some(machines) = &self.machines else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", machines.name(machine))).arg(program);
        command
    }

    pub fn unix(&self) -> String {
        format!("unix:{}", self.place.base.join("sock").display())
    }

    pub fn forebay(&self, args: &[&str]) -> Command {
        self.forebay_on(0, args)
    }

    fn forebay_on(&self, machine: usize, args: &[&str]) -> Command {
        let mut command = self.on(machine, "env");
        command.arg("--default-signal").arg(binary()).args(args).current_dir(&self.place.base);
        command.env("FOREBAY_CONFIG_DIR", self.place.base.join("config"));
        command.env("FOREBAY_FLASH", self.place.flash()).env_remove("FOREBAY_SERVER");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the server (again); its address.
    pub fn start_server(&self) -> String {
        let mut command = self.forebay(&["serve", "--background", "--json", "--flash"]);
        command.arg(self.place.base.join("server")).args(["--capacity", "1GiB"]);
        command.args(["--listen", &self.tcp, "--listen", &self.unix()]);
        let said: Value = serde_json::from_str(procs::run(&mut command).trim()).unwrap();
        self.pid.set(said["pid"].as_i64().unwrap() as i32);
        said["addresses"][0].as_str().unwrap().to_string()
    }

    pub fn kill_server(&self) {
        let pid = self.pid.replace(0);
        signal(pid, libc::SIGKILL);
        until("the server is gone", || !alive(pid));
    }

    /// A node: a process that others join. Its flash directory and its list of mounts are its own,
    /// the PFS and the executable are those of all.
    fn start_node(&mut self, name: &str, machine: usize) {
        let ready = self.place.base.join(format!("{name}.ready"));
        let script = format!(
            // What others have mounted is not to be held here.
            "for p in $(awk '/fuse.forebay|forebay-/ {{print $5}}' /proc/self/mountinfo | tac); do \
             umount -l \"$p\"; done\nhostname {name} && mount -t tmpfs -o mode=755 node {flash} && mkdir -p /run/forebay && \
             mount -t tmpfs -o mode=755 node /run/forebay && echo > {ready} && exec sleep 600",
            flash = self.place.flash().display(),
            ready = ready.display(),
        );
        let mut command = self.on(machine, "unshare");
        command.args(["--mount", "--propagation", "slave", "--uts", "sh", "-c", &script]);
        self.nodes.push(command.stdin(Stdio::null()).spawn().unwrap());
        until("the node is up", || ready.exists());
    }

    pub fn launcher(&self) -> PathBuf {
        self.place.base.join("on-node")
    }

    /// What a site has as `ssh`: `on-node NAME COMMAND...`. A node with a file NAME.away does not
    /// answer.
    fn write_launcher(&self) {
        let mut cases = String::new();
        for (at, node) in self.nodes.iter().enumerate() {
            cases += &format!("n{}) pid={};;\n", at + 1, node.id());
        }
        let text = format!(
            "#!/bin/sh\nif [ -e {base}/$1.away ]; then echo $1: no route to host >&2; exit 255; fi\n\
             case $1 in\n{cases}*) echo no node $1 >&2; exit 255;;\nesac\nshift\n\
             exec nsenter --target $pid --mount --uts --net env FOREBAY_CONFIG_DIR=/none \"$@\"\n",
            base = self.place.base.display()
        );
        fs::write(self.launcher(), text).unwrap();
        procs::run(Command::new("chmod").arg("+x").arg(self.launcher()));
    }

    /// The launch command, for `--launch` and for scripts.
    pub fn launch(&self) -> String {
        format!("{} {{host}}", self.launcher().display())
    }

    /// Starts `forebay run` with the server over TCP; `on`: the other nodes.
    pub fn start(&self, script: &std::path::Path, on: &str, args: &[&str]) -> Child {
        self.start_at(&self.tcp, script, on, args)
    }

    pub fn start_at(
        &self,
        server: &str,
        script: &std::path::Path,
        on: &str,
        args: &[&str],
    ) -> Child {
        let mut command = self.forebay(&["run", "--json", "--store", "directory"]);
        command.args(["--server", server]);
        if !on.is_empty() {
            command.args(["--on", on, "--launch", &self.launch()]);
        }
        command.args(args).arg(script).spawn().unwrap()
    }

    pub fn resume(&self, record: &str) -> Child {
        self.forebay(&["run", "--json", "--resume", record]).spawn().unwrap()
    }

    pub fn discard(&self, record: &str) -> Child {
        self.forebay(&["run", "--json", "--discard", record]).spawn().unwrap()
    }

    /// The records of jobs that are there.
    pub fn records(&self) -> Vec<PathBuf> {
        let dirs = fs::read_dir(self.place.flash().join("forebay-jobs-0"));
        let found = dirs.into_iter().flatten().map(|entry| entry.unwrap().path().join("job.json"));
        found.filter(|path| path.exists()).collect()
    }

    /// Names of the buffers that the server has.
    pub fn buffers(&self) -> Vec<String> {
        let said =
            procs::run(&mut self.forebay(&["buffer", "list", "--json", "--server", &self.unix()]));
        let list: Value = serde_json::from_str(said.trim()).unwrap();
        let names = list["buffers"].as_array().unwrap().iter();
        names.map(|buffer| buffer["buffer"].as_str().unwrap().to_string()).collect()
    }

    /// What is left of jobs on node `number`: mounts, directories.
    pub fn left_on_node(&self, number: usize) -> String {
        let pid = self.nodes[number - 1].id().to_string();
        let script = format!(
            "grep -c '{base}.* fuse.forebay' /proc/self/mountinfo; find {} -mindepth 1",
            self.place.flash().display(),
            base = self.place.base.display(),
        );
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, "--mount", "sh", "-c", &script]);
        procs::try_run(&mut command).1.trim().to_string()
    }

    /// Nothing of a job is left: buffer, secret, mounts, records.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert_eq!(self.buffers(), Vec::<String>::new());
        let secrets = fs::read_dir(self.place.base.join("config/buffers"));
        assert_eq!(secrets.map_or(0, Iterator::count), 0, "secrets are left");
        for number in 1..=self.nodes.len() {
            assert_eq!(self.left_on_node(number), "0", "on node {number}");
        }
        self.place.assert_clean();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            // The mounts of its namespace end with it; what serves them ends then.
            let pid = node.id().to_string();
            let script = "for p in $(awk '/fuse.forebay/ {print $5}' /proc/self/mountinfo); do umount -l $p; done";
            let args = ["--target", &pid, "--mount", "sh", "-c", script];
            let _ = Command::new("nsenter").args(args).status();
            let _ = node.kill();
            let _ = node.wait();
        }
        for point in self.place.mounts() {
            let _ = self.forebay(&["umount", "--force"]).arg(&point).output();
        }
        for (pid, _) in self.members.drain(..) {
            signal(pid, libc::SIGKILL);
            until("the member is gone", || !alive(pid));
        }
        if self.pid.get() != 0 {
            signal(self.pid.get(), libc::SIGKILL);
            until("the server is gone", || !alive(self.pid.get()));
        }
    }
}
