//! Each kind of operation, over each combination of shards, with a server killed at each point.

use super::world::{SHARDS, World};
use forebay_proto::api::rename_flags::{EXCHANGE, WHITEOUT};
use forebay_proto::{Errno, FileKind, Ino, Result};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

pub(super) type Listed = BTreeMap<String, (Ino, FileKind)>;

/// A rename from directory `a` to directory `b`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rename {
    /// Shard of what is moved.
    pub(super) moved: u16,
    pub(super) dirs: bool,
    /// Shard of what has the new name.
    pub(super) target: Option<u16>,
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Create(u16),
    Symlink(u16),
    Mkdir(u16),
    Unlink { at: u16, links: u32 },
    Rmdir(u16),
    Link(u16),
    Rename(Rename),
}

/// Two directories, `a` on its shard and `b` on its own, and what is in them before and after.
pub(super) struct Case<'a> {
    world: &'a World,
    op: Op,
    pub(super) a: Ino,
    pub(super) b: Ino,
    pub(super) before: (Listed, Listed),
    made: String,
}

impl Case<'_> {
    pub(super) fn prepare(world: &World, op: Op, (a, b): (u16, u16), n: u32) -> Case<'_> {
        let (a, _) = world.dir_on(Ino::ROOT, a, &format!("a{n}"));
        let (b, _) = world.dir_on(Ino::ROOT, b, &format!("b{n}"));
        let mut made = "new".to_string();
        match op {
            Op::Create(_) | Op::Symlink(_) => {}
            Op::Mkdir(at) => {
                // A name that leads there.
                made = world.dir_on(b, at, "new").1;
                world.rmdir(b, &made).unwrap();
            }
            Op::Unlink { at, links } => {
                let ino = world.create(b, "old", at).unwrap();
                for n in 1..links {
                    world.link(ino, a, &format!("l{n}")).unwrap();
                }
            }
            Op::Rmdir(at) => made = world.dir_on(b, at, "old").1,
            Op::Link(at) => {
                world.create(a, "old", at).unwrap();
            }
            Op::Rename(rename) => {
                let put = |dir, at, name: &str| match rename.dirs {
                    false => {
                        world.create(dir, name, at).unwrap();
                        name.to_string()
                    }
                    true => world.dir_on(dir, at, name).1,
                };
                let source = put(a, rename.moved, "old");
                if rename.dirs {
                    let moved = world.entries(a)[&source].0;
                    world.create(moved, "inside", rename.moved).unwrap();
                }
                world.rename((a, &source), (a, "old"), 0).unwrap();
                if let Some(at) = rename.target {
                    let target = put(b, at, "new");
                    world.rename((b, &target), (b, "new"), 0).unwrap();
                }
            }
        }
        let before = (world.entries(a), world.entries(b));
        Case { world, op, a, b, before, made }
    }

    pub(super) fn run(&self) -> Result<()> {
        let (world, a, b) = (self.world, self.a, self.b);
        match self.op {
            Op::Create(at) => world.create(b, "new", at).map(drop),
            Op::Symlink(at) => world.symlink(b, "new", at).map(drop),
            Op::Mkdir(_) => world.mkdir(b, &self.made).map(drop),
            Op::Unlink { .. } => world.unlink(b, "old"),
            Op::Rmdir(_) => world.rmdir(b, &self.made),
            Op::Link(_) => world.link(self.before.0["old"].0, b, "new").map(drop),
            Op::Rename(rename) => world.rename((a, "old"), (b, "new"), rename.flags),
        }
    }

    fn now(&self) -> (Listed, Listed) {
        (self.world.entries(self.a), self.world.entries(self.b))
    }

    fn must_be_done(&self, told: &str) {
        let (mut a, mut b) = self.before.clone();
        let now = self.now();
        match self.op {
            Op::Create(_) | Op::Symlink(_) | Op::Mkdir(_) => {
                let made = now.1.get(&self.made).unwrap_or_else(|| panic!("{told}: not made"));
                b.insert(self.made.clone(), *made);
            }
            Op::Unlink { .. } => drop(b.remove("old")),
            Op::Rmdir(_) => drop(b.remove(&self.made)),
            Op::Link(_) => drop(b.insert("new".into(), a["old"])),
            Op::Rename(rename) => {
                let moved = a.remove("old").unwrap();
                let replaced = b.insert("new".into(), moved);
                if let (EXCHANGE, Some(replaced)) = (rename.flags, replaced) {
                    a.insert("old".into(), replaced);
                }
                if rename.flags == WHITEOUT {
                    let left = now.0.get("old").unwrap_or_else(|| panic!("{told}: no whiteout"));
                    assert_eq!(left.1, FileKind::CharDev, "{told}");
                    a.insert("old".into(), *left);
                }
                if rename.dirs {
                    assert!(self.world.entries(moved.0).contains_key("inside"), "{told}");
                }
            }
        }
        assert_eq!(now, (a, b), "{told}");
        if let Op::Unlink { links, .. } = self.op
            && links > 1
        {
            let (ino, _) = self.before.1["old"];
            assert_eq!(self.world.nlink(ino), links - 1, "{told}");
        }
    }
}

/// How many points there are at which a server could be killed.
fn killed_everywhere(op: Op, shards: (u16, u16)) -> u32 {
    let world = World::new();
    for at in 0.. {
        let case = Case::prepare(&world, op, shards, at);
        let told = format!("{op:?} between {shards:?}, killed at {at}");
        let fired = world.kill_at(at);
        let done = case.run();
        world.recover();
        match done {
            Ok(()) => {}
            Err(Errno::ETIMEDOUT | Errno::EHOSTUNREACH) if fired.load(Ordering::Relaxed) => {
                world.check();
                assert_eq!(case.now(), case.before, "{told}: it failed, and left something");
                case.run().unwrap_or_else(|errno| panic!("{told}: again: {errno}"));
            }
            Err(errno) => panic!("{told}: {errno}"),
        }
        case.must_be_done(&told);
        world.check();
        if !fired.load(Ordering::Relaxed) {
            world.close();
            return at;
        }
    }
    unreachable!()
}

#[test]
fn what_is_made_elsewhere_is_made_once_wherever_a_server_is_killed() {
    // Asked to prepare, recalled, object, prepared, and the decision.
    assert!(killed_everywhere(Op::Create(1), (0, 0)) >= 6);
    assert!(killed_everywhere(Op::Create(0), (0, 2)) >= 6);
    assert!(killed_everywhere(Op::Symlink(2), (0, 1)) >= 6);
    assert!(killed_everywhere(Op::Mkdir(1), (0, 0)) >= 6);
    assert!(killed_everywhere(Op::Mkdir(0), (0, 2)) >= 6);
}

#[test]
fn what_is_removed_elsewhere_is_removed_once_wherever_a_server_is_killed() {
    for (at, b) in [(1, 0), (0, 2), (2, 1)] {
        assert!(killed_everywhere(Op::Unlink { at, links: 1 }, (0, b)) >= 4);
        assert!(killed_everywhere(Op::Unlink { at, links: 2 }, (at, b)) >= 4);
        assert!(killed_everywhere(Op::Rmdir(at), (0, b)) >= 7);
    }
}

#[test]
fn links_over_shards_are_made_once_wherever_a_server_is_killed() {
    for (at, shards) in [(1, (1, 0)), (0, (1, 2)), (2, (0, 1))] {
        assert!(killed_everywhere(Op::Link(at), shards) >= 5);
    }
}

#[test]
fn files_are_renamed_once_wherever_a_server_is_killed() {
    for (a, b) in [(1, 0), (0, 2), (0, 0)] {
        for moved in 0..SHARDS {
            let target = [None, Some(0), Some(1), Some(2)][usize::from((moved + a + b) % 4)];
            let flags = if target.is_some() && moved == 1 { EXCHANGE } else { 0 };
            let rename = Rename { moved, dirs: false, target, flags };
            killed_everywhere(Op::Rename(rename), (a, b));
        }
    }
}

#[test]
fn files_are_exchanged_once_wherever_a_server_is_killed() {
    for (moved, target) in [(0, 1), (1, 2), (2, 2)] {
        let rename = Rename { moved, dirs: false, target: Some(target), flags: EXCHANGE };
        assert!(killed_everywhere(Op::Rename(rename), (1, 0)) >= 7);
    }
}

#[test]
fn a_rename_leaves_its_whiteout_once_wherever_a_server_is_killed() {
    for (dirs, moved, target, shards) in [
        (false, 0, None, (1, 0)),
        (false, 1, Some(2), (1, 0)),
        (false, 2, None, (0, 0)),
        (true, 1, None, (0, 1)),
        (true, 2, Some(1), (2, 0)),
    ] {
        let rename = Rename { moved, dirs, target, flags: WHITEOUT };
        assert!(killed_everywhere(Op::Rename(rename), shards) >= 4);
    }
}

#[test]
fn directories_are_renamed_once_wherever_a_server_is_killed() {
    for (a, b) in [(1, 0), (0, 1), (2, 1), (1, 1)] {
        for moved in 0..SHARDS {
            let target = [None, Some(0), Some(1), Some(2)][usize::from((moved + a) % 4)];
            let flags = if target.is_some() && moved == 2 { EXCHANGE } else { 0 };
            let rename = Rename { moved, dirs: true, target, flags };
            killed_everywhere(Op::Rename(rename), (a, b));
        }
    }
}
