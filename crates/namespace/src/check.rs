//! Offline check that records and objects fit each other (`forebay check`).

use forebay_proto::attr::FileKind;
use forebay_proto::{Ino, Result};
use forebay_store::metadata::NamespaceStore;
use forebay_store::objects::{COMPANION, Objects};
use forebay_store::record::inode_flags;
use std::collections::HashSet;
use std::path::Path;

/// One line for each problem. After an unclean end (`clean` false) objects without a record and
/// records whose object was never fsynced are expected: the next mount puts them right, so they
/// are no problem.
pub fn check_objects(store: &dyn NamespaceStore, data: &Path, clean: bool) -> Result<Vec<String>> {
    let objects = Objects::open(data, true, false, None)?;
    let mut problems = Vec::new();
    let mut found: HashSet<Ino> = HashSet::new();
    let mut shard = None;
    store.for_each_inode(&mut |ino, _| {
        shard = Some(ino.shard());
        false
    })?;
    objects.for_each(&mut |id, _| {
        // An object of a file of another server: only that one has its record.
        if shard != Some(id.ino.shard()) {
            return;
        }
        match store.inode(id.ino) {
            Ok(Some(r)) if r.layout.is_striped() => {}
            Ok(Some(r))
                if id.stripe == COMPANION
                    && (r.has(inode_flags::HAS_OBJECT) || id.ino == Ino::ROOT) => {}
            Ok(Some(r)) if r.has(inode_flags::HAS_OBJECT) && id.stripe == 0 => {
                found.insert(id.ino);
            }
            Ok(_) if clean => problems.push(format!("object of inode {} has no record", id.ino)),
            Ok(_) => {}
            Err(e) => problems.push(format!("inode {}: {e}", id.ino)),
        }
    })?;
    store.for_each_inode(&mut |ino, record| {
        let expected = record.kind() == FileKind::File && record.has(inode_flags::HAS_OBJECT);
        if clean && expected && !found.contains(&ino) {
            problems.push(format!("inode {ino} has lost its object"));
        }
        true
    })?;
    Ok(problems)
}
