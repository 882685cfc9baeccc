//! What is checked of a [`World`] after each recovery: names, inodes and links agree over all shards, and
//! nothing is left to do.

use super::{SHARDS, World, as_server};
use forebay_namespace::testing::Unfinished;
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
                as_server(shard, || namespace.testing().finish_round()).unwrap().unwrap();
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
                let record = self.namespace(ino.shard().0).store().inode(ino).unwrap();
                let record = record.unwrap_or_else(|| panic!("{dir}/{name} {ino}: no such inode"));
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
                .store()
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
            assert_eq!(namespace.testing().unfinished(), Unfinished::default());
        }
    }

    /// Waits until all that has no name is gone: nobody holds any of it.
    fn wait_reclaimed(&self, shard: u16) {
        let namespace = self.namespace(shard);
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let mut left = Vec::new();
            let mut look = |ino, record: forebay_store::record::InodeRecord| {
                left.extend((record.nlink == 0).then_some(ino));
                true
            };
            namespace.store().for_each_inode(&mut look).unwrap();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "left without a name: {left:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
