//! Network namespaces as machines, joined by a switch that is a namespace too: links between any two
//! of them can be cut, one way or both, and the link of each can be made slow. Nothing of it reaches
//! the network of the machine that runs the tests: no interface, route or rule is made there.
//!
//! Needs root, iproute2 and iptables; a bridge and tbf in the kernel. Used by `tests/tests/shared_links.rs`.

use crate::procs;
use crate::served::Host;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Machines on one switch.
pub struct Machines {
    name: String,
    net: String,
    count: usize,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Numbers of networks that processes of this suite share.
const NETS: u32 = 250;

fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

fn run(line: &str) {
    procs::run(&mut command(line));
}

impl Machines {
    /// So many machines, each reaching each.
    pub fn new(count: usize) -> Machines {
        let number = (std::process::id() * 7 + COUNT.fetch_add(1, Ordering::Relaxed)) % NETS;
        let machines =
            Machines { name: format!("fbn{number}"), net: format!("10.214.{number}"), count };
        machines.clear();
        let switch = machines.switch();
        run(&format!("ip netns add {switch}"));
        run(&format!("ip -n {switch} link add br0 type bridge"));
        run(&format!("ip -n {switch} link set br0 up"));
        for at in 0..count {
            let name = machines.name(at);
            run(&format!("ip netns add {name}"));
            run(&format!("ip -n {name} link add eth0 type veth peer name p{at} netns {switch}"));
            run(&format!("ip -n {switch} link set p{at} master br0 up"));
            run(&format!("ip -n {name} addr add {}/24 dev eth0", machines.address(at)));
            run(&format!("ip -n {name} link set lo up"));
            run(&format!("ip -n {name} link set eth0 up"));
        }
        machines
    }

    fn switch(&self) -> String {
        format!("{}sw", self.name)
    }

    /// The namespace of a machine.
    pub fn name(&self, at: usize) -> String {
        format!("{}m{at}", self.name)
    }

    /// The address of a machine.
    pub fn address(&self, at: usize) -> String {
        format!("{}.{}", self.net, at + 1)
    }

    /// The first machines, as hosts of servers.
    pub fn hosts(&self, count: usize) -> Vec<Host> {
        (0..count).map(|at| Host::Namespace(self.name(at), self.address(at))).collect()
    }

    /// What `from` sends to `to` is lost, until it is healed.
    pub fn cut_way(&self, from: usize, to: usize) {
        self.rule("-A", from, to);
    }

    /// What was cut is whole again.
    pub fn heal_way(&self, from: usize, to: usize) {
        self.rule("-D", from, to);
    }

    /// Neither hears the other.
    pub fn cut(&self, a: usize, b: usize) {
        self.cut_way(a, b);
        self.cut_way(b, a);
    }

    /// They hear each other again.
    pub fn heal(&self, a: usize, b: usize) {
        self.heal_way(a, b);
        self.heal_way(b, a);
    }

    fn rule(&self, how: &str, from: usize, to: usize) {
        let (name, source) = (self.name(to), self.address(from));
        run(&format!("ip netns exec {name} iptables -w {how} INPUT -s {source} -j DROP"));
    }

    /// A machine sends and gets no more than so many Mbit/s from now on.
    pub fn slow(&self, at: usize, mbit: u32) {
        // A burst smaller than a segment of a veth, which has no packets of its wire's size, would
        // stop the link.
        let limit = format!("root tbf rate {mbit}mbit burst 128kb latency 200ms");
        run(&format!("ip netns exec {} tc qdisc add dev eth0 {limit}", self.name(at)));
        run(&format!("ip netns exec {} tc qdisc add dev p{at} {limit}", self.switch()));
    }

    fn clear(&self) {
        let mut names: Vec<String> = (0..self.count).map(|at| self.name(at)).collect();
        names.push(self.switch());
        for name in names {
            let _ = procs::try_run(&mut command(&format!("ip netns del {name}")));
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.clear();
    }
}
