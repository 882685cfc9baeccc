//! Network namespaces as machines, joined by a switch that is a namespace too: links between any two
//! of them can be cut, one way or both, and the link of each can be made slow. Nothing of it reaches
//! the network of the machine that runs the tests: no interface, route or rule is made there.
//!
//! Needs root, iproute2 and iptables; a bridge and tbf in the kernel. Used by `tests/tests/system/shared_links.rs`.

use crate::procs;
use crate::served::Host;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

/// Machines on one switch.
pub struct Machines {
    name: String,
    net: String,
    count: usize,
    _number: NetNumber,
}

/// Numbers of networks that the tests of this machine share, those of several runs of them too.
const NETS: u32 = 250;

/// A number from 0 to [`NETS`] that no other test has meanwhile. Numbers made of a process's own would meet: tests start
/// thousands of processes.
pub struct NetNumber {
    number: u32,
    /// Locked. The lock goes with the last process that has the file open, however it ends.
    _lock: File,
}

impl NetNumber {
    /// Takes the first free number of the networks of this kind.
    pub fn take(kind: &str) -> NetNumber {
        let dir = std::env::temp_dir().join(format!("forebay-test-nets-{kind}"));
        std::fs::create_dir_all(&dir).unwrap();
        for number in 0..NETS {
            let lock = File::create(dir.join(number.to_string())).unwrap();
            // SAFETY: the descriptor is open.
            if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return NetNumber { number, _lock: lock };
            }
        }
        panic!("all {NETS} networks of {} are in use", dir.display());
    }

    /// The number.
    pub fn get(&self) -> u32 {
        self.number
    }
}

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
        let taken = NetNumber::take("machines");
        let number = taken.get();
        let (name, net) = (format!("fbn{number}"), format!("10.214.{number}"));
        let machines = Machines { name, net, count, _number: taken };
        // What a test that was killed has left.
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
