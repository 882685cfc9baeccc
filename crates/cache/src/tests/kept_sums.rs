//! Of a file that a kernel changes only the changed blocks drain, also where everybody had forgotten it, as the kernel of a mount of
//! a server does after each drain; and never fewer than those.

use super::*;

const LIMIT: Duration = Duration::from_secs(20);
const FILE_BYTES: u64 = 4 * MIB;

/// A file that a kernel wrote, and that has drained.
fn drained_file(cache: &Running) -> Vec<u8> {
    let data = pattern(1, FILE_BYTES as usize);
    let handle = cache.open("f", libc::O_RDWR | libc::O_CREAT, true).unwrap();
    assert!(handle.local.is_some());
    handle.write(0, &data).unwrap();
    drop(handle);
    assert!(cache.flush("/").is_durable());
    data
}

/// The kernel forgets the file, and what is in memory of it goes. Its inode on flash.
fn forget(cache: &Running) -> Ino {
    let number = cache.lookup("f").unwrap();
    let file = cache.fs.parts.nodes.get(number).unwrap().file;
    let ino = file.map(|file| file.ino).expect("it is in nobody's memory");
    let until = Instant::now() + LIMIT;
    while cache.fs.stack.records.sums.is_in_memory(ino) {
        assert!(Instant::now() < until, "somebody holds it");
        cache.fs.forget(number, 1);
        std::thread::sleep(Duration::from_millis(1));
    }
    ino
}

/// A kernel writes a MiB, at that one, and it drains. How many bytes did.
fn drained_after_write(cache: &Running, (wanted, at): (&mut [u8], usize), seed: u64) -> u64 {
    let piece = pattern(seed, MIB as usize);
    wanted[at * piece.len()..][..piece.len()].copy_from_slice(&piece);
    let drained = || cache.fs.parts.counters.bytes()[4];
    let before = drained();
    let handle = cache.open("f", libc::O_RDWR, true).unwrap();
    assert!(handle.local.is_some());
    handle.write(at as u64 * MIB, &piece).unwrap();
    drop(handle);
    assert!(cache.flush("/").is_durable());
    drained() - before
}

#[test]
fn of_a_file_that_everybody_forgot_only_what_is_changed_drains() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let mut wanted = drained_file(&cache);
    for (round, at) in [0, 3, 1, 1].into_iter().enumerate() {
        forget(&cache);
        let drained = drained_after_write(&cache, (&mut wanted, at), 10 + round as u64);
        assert_eq!(drained, MIB, "round {round}");
        assert!(rig.read_pfs("f") == wanted, "round {round}");
    }
    // Forgotten while it was opened and nothing written, and twice.
    for _ in 0..2 {
        drop(cache.open("f", libc::O_RDWR, true).unwrap());
        assert!(cache.flush("/").is_durable());
        forget(&cache);
    }
    assert_eq!(drained_after_write(&cache, (&mut wanted, 2), 20), MIB);
    // Somebody else has written it on the PFS: what was known is of no use, and what comes from there is known.
    forget(&cache);
    wanted = pattern(30, FILE_BYTES as usize);
    rig.put("f", &wanted);
    // Else it could count as too young to be known, and be fetched again.
    std::thread::sleep(Duration::from_millis(500));
    assert!(cache.read("f").unwrap() == wanted);
    forget(&cache);
    assert_eq!(drained_after_write(&cache, (&mut wanted, 0), 31), MIB);
    assert!(rig.read_pfs("f") == wanted);
    cache.crash();
}

#[test]
fn what_nothing_is_known_of_any_more_drains_whole_and_right() {
    let rig = Rig::new(64 * MIB);
    let mut cache = rig.open();
    let mut wanted = drained_file(&cache);
    // More files were forgotten since than are kept, or the server has begun anew.
    for (round, with_a_kill) in [false, true, false].into_iter().enumerate() {
        if with_a_kill {
            cache.crash();
            cache = rig.open();
        } else {
            forget(&cache);
            cache.fs.stack.records.sums.crowd_out();
        }
        let seed = 40 + round as u64;
        assert_eq!(drained_after_write(&cache, (&mut wanted, round), seed), FILE_BYTES);
        assert!(rig.read_pfs("f") == wanted, "round {round}");
        // It is known again.
        forget(&cache);
        assert_eq!(drained_after_write(&cache, (&mut wanted, 3), seed + 10), MIB);
        assert!(rig.read_pfs("f") == wanted, "round {round}");
    }
    cache.crash();
}

/// As the kernel of a mount that is not heard any more may do.
#[test]
fn what_somebody_wrote_into_a_file_that_is_in_nobodys_memory_is_not_taken_for_drained() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    let mut wanted = drained_file(&cache);
    let ino = forget(&cache);
    // Else its times could be those that it has.
    std::thread::sleep(Duration::from_millis(25));
    let object = cache.fs.parts.flash.open(ino).unwrap();
    object.write_all_at(b"unheard", 2 * MIB).unwrap();
    drop(object);
    wanted[2 * MIB as usize..][..7].copy_from_slice(b"unheard");
    let drained = drained_after_write(&cache, (&mut wanted, 0), 50);
    assert_eq!(drained, FILE_BYTES, "nothing of it is as it was known");
    assert!(rig.read_pfs("f") == wanted);
    cache.crash();
}
