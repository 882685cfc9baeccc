//! Compares the real file system with the model: the touched inodes after every step, the whole
//! tree now and then. Runs in the driver's thread, as root.

use super::data::Data;
use super::drive::{self, Driver};
use super::op::{Answer, RawPath};
use super::state::{Id, Model, Node, ROOT, Stamp};
use crate::sys::{self, Stat};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// Files up to this size are read whole; of longer ones what was written and around it.
const READ_WHOLE_BYTES: u64 = 1 << 20;

/// Real inode numbers by the model's.
#[derive(Default)]
pub struct Inos(BTreeMap<Id, u64>);

type Check = Result<(), String>;

/// Compares all that the last operation touched.
pub fn touched(model: &mut Model, driver: &Driver, inos: &mut Inos) -> Check {
    let paths = model.paths();
    for id in model.touched.clone() {
        one(model, driver, inos, id, paths.get(&id))?;
    }
    Ok(())
}

/// Compares the whole tree and every open file.
pub fn all(model: &mut Model, driver: &Driver, inos: &mut Inos) -> Check {
    inos.0.retain(|id, _| model.inodes.contains_key(id));
    let paths = model.paths();
    let ids: Vec<Id> = model.inodes.keys().copied().collect();
    for id in ids {
        let path = paths.get(&id);
        one(model, driver, inos, id, path)?;
        if let Some(path) = path {
            rest(model, driver, id, path).map_err(|why| format!("{path:?}: {why}"))?;
        }
    }
    let mut seen = inos.0.values().collect::<Vec<_>>();
    seen.sort();
    if seen.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("two inodes have the same number".into());
    }
    // Other names of the same inode lead to the same inode.
    for (path, id) in every_name(model) {
        let real = sys::lstat(driver.at(&path)).map_err(|e| format!("{path:?}: lstat: {e:?}"))?;
        if Some(&real.ino) != inos.0.get(&id) {
            return Err(format!("{path:?}: leads to another inode"));
        }
    }
    Ok(())
}

fn every_name(model: &Model) -> Vec<(RawPath, Id)> {
    let paths = model.paths();
    let mut names = Vec::new();
    for (&id, path) in paths.iter().filter(|(id, _)| model.get(**id).is_dir()) {
        for (name, &child) in model.entries(id) {
            let mut full = path.0.clone();
            full.push(b'/');
            full.extend_from_slice(name);
            names.push((RawPath(full), child));
        }
    }
    names
}

fn one(
    model: &mut Model,
    driver: &Driver,
    inos: &mut Inos,
    id: Id,
    path: Option<&RawPath>,
) -> Check {
    if let Some(path) = path {
        let real = sys::lstat(driver.at(path)).map_err(|e| format!("{path:?}: lstat: {e:?}"))?;
        attributes(model, inos, id, &real).map_err(|why| format!("{path:?}: {why}"))?;
        if let Node::File(data) = &model.get(id).node {
            let flags = libc::O_RDONLY | libc::O_NOATIME;
            let fd = sys::open(driver.at(path), flags, 0)
                .map_err(|e| format!("{path:?}: open: {e:?}"))?;
            content(data, &fd).map_err(|why| format!("{path:?}: {why}"))?;
        }
    }
    for (slot, open) in model.slots.clone().into_iter().enumerate() {
        let Some(open) = open.filter(|open| open.id == id) else { continue };
        if driver.elsewhere[slot] {
            continue;
        }
        let fd = driver.files[slot].as_ref().ok_or("a file is open in the model alone")?;
        let at = |why: String| format!("open file in slot {slot}: {why}");
        let real = sys::fstat(fd).map_err(|e| at(format!("fstat: {e:?}")))?;
        attributes(model, inos, id, &real).map_err(at)?;
        if let (Node::File(data), true) = (&model.get(id).node, open.readable()) {
            content(data, fd).map_err(at)?;
        }
    }
    Ok(())
}

/// Compares attributes, and takes what is there as what must be there from now on.
fn attributes(model: &mut Model, inos: &mut Inos, id: Id, real: &Stat) -> Check {
    let (_, now) = sys::now();
    let inode = model.get(id);
    let (size, device) = match &inode.node {
        Node::File(data) => (Some(data.size()), None),
        Node::Symlink(target) => (Some(target.len() as u64), None),
        Node::Special(_, device) => (None, Some(*device)),
        Node::Dir(_) => (None, None),
    };
    let same = [
        ("mode", u64::from(inode.type_bits() | inode.mode), u64::from(real.mode)),
        ("uid", inode.uid.into(), real.uid.into()),
        ("gid", inode.gid.into(), real.gid.into()),
        ("link count", model.nlink(id), real.nlink),
        ("size", size.unwrap_or(real.size), real.size),
        ("device", device.unwrap_or(real.rdev), real.rdev),
        ("inode number", inos.0.get(&id).copied().unwrap_or(real.ino), real.ino),
    ];
    for (what, wanted, got) in same {
        if wanted != got {
            let octal =
                if what == "mode" { format!(" ({wanted:o}, {got:o})") } else { String::new() };
            return Err(format!("{what} is {got}, must be {wanted}{octal}"));
        }
    }
    inos.0.insert(id, real.ino);
    let times = [("mtime", inode.mtime, real.mtime), ("ctime", inode.ctime, real.ctime)];
    for (what, wanted, got) in times {
        if !wanted.allows(got, now) {
            return Err(format!("{what} is {got:?}, must be {wanted:?} (now {now:?})"));
        }
    }
    if let Some(wanted) = inode.atime {
        if !wanted.allows(real.atime, now) {
            return Err(format!("atime is {:?}, must be {wanted:?}", real.atime));
        }
    }
    let settle = |old: Stamp, got| match old {
        Stamp::Loose(_, since) if id != ROOT => Stamp::Loose(got, since),
        _ => Stamp::Exactly(got),
    };
    let inode = model.get_mut(id);
    // The checks themselves read from here on.
    inode.atime = None;
    inode.mtime = settle(inode.mtime, real.mtime);
    inode.ctime = settle(inode.ctime, real.ctime);
    Ok(())
}

fn content(data: &Data, fd: &OwnedFd) -> Check {
    let ranges = if data.size() <= READ_WHOLE_BYTES {
        vec![(0, data.size() + 1)]
    } else {
        data.interesting()
    };
    for (from, to) in ranges {
        let length = (to - from) as usize;
        let real = sys::pread(fd, from, length).map_err(|e| format!("pread: {e:?}"))?;
        let wanted = data.read(from, length);
        if real != wanted {
            let at = real.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            return Err(format!(
                "content differs at {} (of {}): got {:x?} ({} bytes), must be {:x?} ({} bytes)",
                from + at as u64,
                data.size(),
                &real[at..real.len().min(at + 8)],
                real.len(),
                &wanted[at..wanted.len().min(at + 8)],
                wanted.len(),
            ));
        }
    }
    Ok(())
}

/// What only a check of the whole tree compares: names, link targets, xattrs.
fn rest(model: &Model, driver: &Driver, id: Id, path: &RawPath) -> Check {
    let path = &driver.at(path);
    let inode = model.get(id);
    match &inode.node {
        Node::Dir(entries) => {
            let real = sys::list(path).map_err(|e| format!("list: {e:?}"))?;
            let wanted: Vec<(Vec<u8>, u8)> = entries
                .iter()
                .map(|(name, child)| (name.clone(), (model.get(*child).type_bits() >> 12) as u8))
                .collect();
            let real = drive::names(real);
            if real != wanted {
                let shown = (Answer::Names(real), Answer::Names(wanted));
                return Err(format!("names are {:?}, must be {:?}", shown.0, shown.1));
            }
        }
        Node::Symlink(target) => {
            let real = sys::readlink(path).map_err(|e| format!("readlink: {e:?}"))?;
            if &real != target {
                return Err(format!("leads to {:?}", RawPath(real)));
            }
        }
        _ => {}
    }
    let names = sys::listxattr(path).map_err(|e| format!("listxattr: {e:?}"))?;
    let names = drive::user_only(names);
    if !names.iter().eq(inode.xattrs.keys()) {
        return Err(format!("xattrs are {names:?}, must be {:?}", inode.xattrs.keys()));
    }
    for (name, value) in &inode.xattrs {
        let real = sys::getxattr(path, name).map_err(|e| format!("{name}: {e:?}"))?;
        if &real != value {
            return Err(format!("{name} has another value"));
        }
    }
    Ok(())
}
