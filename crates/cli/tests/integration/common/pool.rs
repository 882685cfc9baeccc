//! Several `forebay serve` as one pool, for tests: joined over TCP, each killed and started again.

use super::{Flash, Rig, text};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// One server of the pool.
pub struct Server {
    pub child: Option<Child>,
    pub tcp: String,
    pub id: String,
    /// What it printed when it was up.
    pub up: Value,
    capacity: &'static str,
}

/// A pool, ended with its test. Server 0 is the leader.
pub struct Pool {
    pub rig: Rig,
    pub servers: Vec<Server>,
}

impl Pool {
    /// Servers that give so much; each joins at the one before it.
    pub fn new(capacities: &[&'static str]) -> Pool {
        let mut pool = Pool { rig: Rig::new(Flash::Memory), servers: Vec::new() };
        for capacity in capacities {
            let join = pool.servers.last().map(|server| server.tcp.clone());
            pool.add(capacity, join.as_deref());
        }
        pool
    }

    /// Another server; `join` is where it joins.
    pub fn add(&mut self, capacity: &'static str, join: Option<&str>) {
        let at = self.servers.len();
        fs::create_dir(self.flash(at)).unwrap();
        let tcp = "127.0.0.1:0".to_string();
        self.servers.push(Server {
            child: None,
            tcp,
            id: String::new(),
            up: Value::Null,
            capacity,
        });
        self.start(at, join);
    }

    pub fn flash(&self, at: usize) -> PathBuf {
        self.rig.base().join(format!("flash{at}"))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(super::program());
        command
            .args(arguments)
            .env("FOREBAY_CONFIG_DIR", self.rig.base().join("config"))
            .env_remove("FOREBAY_SERVER")
            .env_remove("FOREBAY_FLASH")
            .env_remove("TMPDIR");
        command
    }

    pub fn start(&mut self, at: usize, join: Option<&str>) {
        self.start_on(at, &[], join);
    }

    /// The same with more arguments.
    pub fn start_on(&mut self, at: usize, more: &[&str], join: Option<&str>) {
        let (flash, tcp) = (self.flash(at), self.servers[at].tcp.clone());
        let mut command = self.command(&["serve", "--json", "--listen", &tcp, "--flash"]);
        command.arg(flash).args(["--capacity", self.servers[at].capacity]);
        command.args(more).args(join.iter().flat_map(|address| ["--join", *address]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let server = &mut self.servers[at];
        server.child = Some(child);
        let up: Value = serde_json::from_str(&line).expect("it did not say where it listens");
        server.tcp = up["addresses"][0].as_str().unwrap().to_string();
        server.id = up["server"].as_str().unwrap().to_string();
        server.up = up;
    }

    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.servers[at].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn ask(&self, at: usize, arguments: &[&str]) -> Output {
        let mut all = arguments.to_vec();
        all.extend(["--server", &self.servers[at].tcp]);
        self.command(&all).output().unwrap()
    }

    #[track_caller]
    pub fn done(&self, at: usize, arguments: &[&str]) -> String {
        let output = self.ask(at, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    pub fn json(&self, at: usize, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        serde_json::from_str(&self.done(at, &all)).unwrap()
    }

    pub fn state(&self, at: usize, name: &str) -> String {
        self.json(at, &["buffer", "status", name])["state"].as_str().unwrap().to_string()
    }

    /// The stores that a server has.
    pub fn stores(&self, at: usize) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.flash(at)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.join("store.json").exists()).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for at in 0..self.servers.len() {
            self.kill(at);
            for store in self.stores(at) {
                let _ = forebay_store::flash::Store::discard_dir(&store);
            }
        }
    }
}
