//! What is checked of a [`World`] after each recovery: names, inodes and links agree over all shards, and
//! nothing is left to do.

use super::{SHARDS, World, as_server};
use forebay_proto::net::Call;
use forebay_proto::{FileKind, Ino};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

impl World {
    /// Finishes everything, then looks at all that there is, on all shards.
    pub fn check(&self) {
        for _ in 0..3 {
            for shard in 0..SHARDS {
                let namespace = self.namespace(shard);
                let shards = namespace.shards.as_ref().unwrap();
                as_server(shard, || namespace.finish_round(shards)).unwrap().unwrap();
            }
        }
        for shard in 0..SHARDS {
            // The client goes on: no last answer keeps an inode.
            self.done(shard, Call::Forget(Vec::new())).unwrap();
            self.wait_reclaimed(shard);
        }
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut dirs = vec![Ino::ROOT];
        while let Some(dir) = dirs.pop() {
            let mut subdirs = 0;
            for (name, (ino, kind)) in self.entries(dir) {
                let record = self.namespace(ino.shard().0).inode(ino);
                let record = record.unwrap_or_else(|e| panic!("{dir}/{name} {ino}: {e}"));
                assert_eq!(record.kind(), kind, "{dir}/{name}");
                if kind == FileKind::Dir {
                    assert_eq!(record.parent, dir, "{name}");
                    subdirs += 1;
                    dirs.push(ino);
                }
                *names.entry(ino).or_default() += 1;
            }
            assert_eq!(self.nlink(dir), 2 + subdirs, "{dir}");
        }
        for shard in 0..SHARDS {
            let namespace = self.namespace(shard);
            namespace
                .store
                .for_each_inode(&mut |ino, record| {
                    let have = names.get(&ino).copied().unwrap_or(0);
                    match record.kind() {
                        FileKind::Dir if ino == Ino::ROOT => {}
                        FileKind::Dir => assert_eq!(have, 1, "directory {ino}"),
                        _ => assert_eq!(record.nlink, have, "{ino}"),
                    }
                    true
                })
                .unwrap();
            let state = namespace.shards.as_ref().unwrap().state.lock();
            assert!(state.intents.is_empty() && state.prepared.is_empty());
            assert!(state.working.is_empty() && state.unsettled.is_empty());
            drop(state);
            assert!(namespace.shards.as_ref().unwrap().holds().is_empty());
        }
    }

    /// Waits until all that has no name is gone: nobody holds any of it.
    fn wait_reclaimed(&self, shard: u16) {
        let namespace = self.namespace(shard);
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let mut left = Vec::new();
            let mut look = |ino, record: crate::namespace::record::InodeRecord| {
                left.extend((record.nlink == 0).then_some(ino));
                true
            };
            namespace.store.for_each_inode(&mut look).unwrap();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left without a name: {left:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
