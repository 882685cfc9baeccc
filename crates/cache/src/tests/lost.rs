//! Flash that somebody cleans: data that is gone and not on the PFS is reported as lost, by file, and never drained as
//! something else; what the PFS has is fetched again.

use super::super::map::BLOCK_BYTES;
use super::*;
use forebay_proto::SetAttr;
use forebay_proto::cache::Keep;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Where a file's data (0) or its map is on flash.
fn object(rig: &Rig, cache: &Running, name: &str, part: u32) -> PathBuf {
    let ino = cache.fs.parts.nodes.get(cache.lookup(name).unwrap()).unwrap().file.unwrap().ino;
    let wanted = format!("{:016x}.{part}", ino.0);
    let fans = std::fs::read_dir(rig.base.path().join("store/data")).unwrap();
    let mut paths = fans.map(|fan| fan.unwrap().path().join(&wanted));
    paths.find(|path| path.exists()).expect("its object")
}

fn take_away(rig: &Rig, cache: &Running, name: &str) {
    std::fs::remove_file(object(rig, cache, name, 0)).unwrap();
}

/// By a kernel, and closed.
fn write_by_kernel(cache: &Running, name: &str, data: &[u8]) {
    let handle = cache.open(name, libc::O_CREAT | libc::O_RDWR, true).unwrap();
    handle.local.as_ref().unwrap().write_all_at(data, 0).unwrap();
}

fn xattr(cache: &Running, name: &str, which: &str) -> Result<String> {
    let ino = if name.is_empty() { Ino::ROOT } else { cache.lookup(name)? };
    let value = cache.fs.getxattr(ino, format!("user.forebay.{which}").as_bytes())?;
    Ok(String::from_utf8(value).unwrap())
}

/// It is told as lost by every way to ask, is read by nobody, and does not drain.
fn must_be_lost(rig: &Rig, cache: &Running, name: &str, on_pfs: &[u8]) {
    let told = cache.state_of(name).unwrap();
    assert_eq!((told.state.as_str(), told.grade.as_str()), ("failed", "lost"), "{told:?}");
    assert!(told.error.as_ref().unwrap().what.contains("lost"), "{told:?}");
    assert_eq!(xattr(cache, name, "state").unwrap(), "failed");
    assert!(xattr(cache, name, "error").unwrap().starts_with("EIO lost"));
    assert_eq!(xattr(cache, name, "grade").unwrap(), "lost");
    assert_eq!(xattr(cache, "", "state").unwrap(), "failed");
    assert!(xattr(cache, "", "error").unwrap().starts_with("EIO lost"));
    assert_eq!(cache.read(name), Err(Errno::EIO), "{name}");
    assert_eq!(cache.open(name, libc::O_RDWR, true).err(), Some(Errno::EIO), "{name}");
    let state = cache.flush(name);
    assert_eq!((state.files, state.failed), (1, 1), "{state:?}");
    assert_eq!(state.problems[0].grade, "lost", "{state:?}");
    assert_eq!(cache.state("/").worst(), "failed");
    assert!(!cache.fs.may_be_destroyed());
    assert!(rig.read_pfs(name) == on_pfs, "{name}: nothing of it drains");
}

#[test]
fn dirty_data_that_is_gone_from_flash_is_lost_and_never_drained() {
    let rig = Rig::new(64 * MIB);
    rig.put("old", &pattern(1, 500_000));
    let cache = rig.open();
    cache.write("new", 0, &pattern(2, 3 * BLOCK + 5));
    cache.write("old", 200_000, b"ours");
    cache.write("small", 0, b"a few bytes");
    write_by_kernel(&cache, "kernel", &pattern(3, 400_000));
    cache.write("other", 0, &pattern(4, 300_000));
    let names = ["new", "old", "small", "kernel"];
    let open = cache.open("new", libc::O_RDWR, false).unwrap();
    names.iter().for_each(|name| take_away(&rig, &cache, name));
    assert_eq!(open.read_all(), Err(Errno::EIO), "what is open already");
    let on_pfs = |name| if name == "old" { pattern(1, 500_000) } else { Vec::new() };
    names.iter().for_each(|name| must_be_lost(&rig, &cache, name, &on_pfs(*name)));
    assert_eq!(open.write(0, b"more"), Err(Errno::EIO), "nothing is acknowledged any more");
    assert_eq!(cache.fs.fsync(open.ino, false), Err(Errno::EIO));
    drop(open);
    // The others are what they were.
    let state = cache.flush("/");
    assert_eq!((state.files, state.failed), (4, 4), "{state:?}");
    assert!(rig.read_pfs("other") == pattern(4, 300_000));
    cache.crash();
    // It stays so, whatever a start made of what was missing.
    let cache = rig.open();
    names.iter().for_each(|name| must_be_lost(&rig, &cache, name, &on_pfs(*name)));
    cache.crash();
}

#[test]
fn dirty_data_that_went_while_no_server_ran_is_found_at_the_start() {
    let rig = Rig::new(64 * MIB);
    let cache = rig.open();
    cache.write("small", 0, b"a few bytes");
    cache.write("sums", 0, &pattern(1, 2 * BLOCK));
    cache.write("map", 0, &pattern(2, 2 * BLOCK));
    cache.write("cut", 0, &pattern(3, 2 * BLOCK));
    write_by_kernel(&cache, "kernel", &pattern(4, 400_000));
    rig.put("clean", &pattern(5, 300_000));
    assert_eq!(cache.read("clean").unwrap(), pattern(5, 300_000));
    let names = ["small", "sums", "map", "cut", "kernel"];
    let gone = ["small", "sums", "kernel", "clean"].map(|name| object(&rig, &cache, name, 0));
    let map = object(&rig, &cache, "map", forebay_store::objects::COMPANION);
    let cut = object(&rig, &cache, "cut", 0);
    cache.crash();
    gone.iter().chain([&map]).for_each(|path| std::fs::remove_file(path).unwrap());
    std::fs::File::options().write(true).open(cut).unwrap().set_len(BLOCK_BYTES + 7).unwrap();
    let cache = rig.open();
    assert_eq!(cache.state("/").failed, 5, "at once: {:?}", cache.state("/"));
    names.iter().for_each(|name| must_be_lost(&rig, &cache, name, b""));
    assert!(cache.read("clean").unwrap() == pattern(5, 300_000), "no zeros");
    cache.crash();
}

#[test]
fn what_is_lost_is_ended_by_a_decision_a_removal_or_content_from_nothing() {
    let rig = Rig::new(64 * MIB);
    for name in ["theirs", "removed", "truncated", "anew"] {
        rig.put(name, &pattern(1, 300_000));
    }
    let cache = rig.open();
    for name in ["theirs", "removed", "truncated", "anew"] {
        cache.write(name, 100_000, b"ours");
        take_away(&rig, &cache, name);
    }
    let resolve = |keep| cache.fs.resolve(&Caller::root(), b"/theirs", keep).map(|_| ());
    assert_eq!(resolve(Keep::Ours), Err(Errno::ENODATA));
    assert_eq!(resolve(Keep::Both), Err(Errno::ENODATA));
    assert_eq!(resolve(Keep::Theirs), Ok(()));
    assert!(cache.read("theirs").unwrap() == pattern(1, 300_000));
    assert_eq!(cache.state_of("theirs").unwrap().state, "clean");

    assert_eq!(cache.state_of("removed").unwrap().grade, "lost");
    cache.fs.unlink(&Caller::root(), Ino::ROOT, b"removed").unwrap();
    assert_eq!(cache.lookup("removed"), Err(Errno::ENOENT));

    // A part of what was there cannot be given back.
    let ino = cache.lookup("truncated").unwrap();
    let resize = |size| {
        let change = SetAttr { size_bytes: Some(size), ..Default::default() };
        cache.fs.setattr(&Caller::root(), ino, &change).map(|attr| attr.size_bytes)
    };
    assert_eq!(resize(100), Err(Errno::EIO));
    assert_eq!(resize(0), Ok(0));
    cache.write("truncated", 0, b"new");
    let handle = cache.open("anew", libc::O_RDWR | libc::O_TRUNC, true).unwrap();
    handle.write(0, &pattern(2, 200_000)).unwrap();
    drop(handle);
    for name in ["truncated", "anew"] {
        assert_eq!(cache.state_of(name).unwrap().state, "dirty");
    }
    assert!(cache.read("anew").unwrap() == pattern(2, 200_000));
    assert!(cache.flush("/").is_durable(), "{:?}", cache.state("/"));
    assert_eq!(rig.read_pfs("truncated"), b"new");
    assert!(rig.read_pfs("anew") == pattern(2, 200_000));
    assert!(cache.fs.may_be_destroyed());
    cache.crash();
}

#[test]
fn data_that_is_cut_on_flash_is_lost_also_while_it_drains() {
    let mut rig = Rig::new(64 * MIB);
    rig.options.rate_bytes_per_s = 8 * MIB;
    let cache = rig.open();
    let cut = |name: &str, size| {
        let path = object(&rig, &cache, name, 0);
        std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
    };
    cache.write("small", 0, b"a few bytes");
    cache.write("sums", 0, &pattern(1, 2 * BLOCK));
    write_by_kernel(&cache, "kernel", &pattern(2, 400_000));
    for (name, size) in [("small", 0), ("sums", BLOCK_BYTES), ("kernel", 399_999)] {
        cut(name, size);
        must_be_lost(&rig, &cache, name, b"");
    }
    write_by_kernel(&cache, "draining", &pattern(3, 16 << 20));
    cache.fs.flush(&Caller::root(), b"/draining").unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while cache.state_of("draining").unwrap().drained_bytes < 4 << 20 {
        assert!(Instant::now() < until, "{:?}", cache.state_of("draining"));
        std::thread::sleep(Duration::from_millis(2));
    }
    cut("draining", 5 << 20);
    must_be_lost(&rig, &cache, "draining", b"");
    assert_eq!(std::fs::read_dir(rig.pfs("")).unwrap().count(), 4, "nothing of ours is left");
    cache.crash();
}

#[test]
fn clean_data_that_is_gone_from_flash_is_fetched_again() {
    let rig = Rig::new(64 * MIB);
    let data = pattern(1, 3 * BLOCK + 77);
    let names = ["gone", "cut", "open", "kernel"];
    names.iter().for_each(|name| rig.put(name, &data));
    let cache = rig.open();
    names.iter().for_each(|name| assert!(cache.read(name).unwrap() == data));
    let open = cache.open("open", libc::O_RDONLY, false).unwrap();
    let kernel = cache.open("kernel", libc::O_RDONLY, true).unwrap();
    assert!(kernel.local.is_some());
    names.iter().filter(|name| **name != "cut").for_each(|name| take_away(&rig, &cache, name));
    let path = object(&rig, &cache, "cut", 0);
    std::fs::File::options().write(true).open(path).unwrap().set_len(1_000).unwrap();
    assert!(open.read_all().unwrap() == data && kernel.read_all().unwrap() == data);
    for name in names {
        assert_eq!(cache.state_of(name).unwrap().state, "clean", "{name}");
        assert!(cache.read(name).unwrap() == data, "{name}");
    }
    // So it is with the directories of all objects gone.
    let data_dir = rig.base.path().join("store/data");
    for fan in std::fs::read_dir(data_dir).unwrap() {
        std::fs::remove_dir_all(fan.unwrap().path()).unwrap();
    }
    names.iter().for_each(|name| assert!(cache.read(name).unwrap() == data, "{name}"));
    // It is written and drained as ever.
    drop((open, kernel));
    cache.write("gone", 70_000, b"ours");
    assert!(cache.flush("/").is_durable());
    assert_eq!(&rig.read_pfs("gone")[70_000..70_004], b"ours");
    cache.crash();
}

/// A drain reads a file that stays open for its checksums, and the program cuts it meanwhile.
#[test]
fn an_open_file_that_is_cut_while_its_checksums_are_made_is_not_lost() {
    const SIZE: usize = 24 << 20;
    let rig = Rig::new(128 * MIB);
    let before = pattern(1, SIZE);
    let after = pattern(2, 3 * BLOCK);
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    for round in 0..12 {
        let cache = rig.open();
        let name = format!("f{round}");
        rig.put(&name, &before);
        assert!(cache.read(&name).unwrap() == before);
        // A busy machine reads past what is still being fetched, and a kernel gets only what is all here.
        cache.fs.warm(&Caller::root(), format!("/{name}").as_bytes()).unwrap();
        let open = cache.open(&name, libc::O_RDWR, true).unwrap();
        open.local.as_ref().unwrap().write_all_at(b"new", 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| cache.fs.flush(&Caller::root(), format!("/{name}").as_bytes()));
            std::thread::sleep(Duration::from_micros(500 * round));
            cache.fs.setattr(&Caller::root(), open.ino, &cut).unwrap();
            open.write(0, &after).unwrap();
        });
        drop(open);
        // As a kill leaves it.
        cache.crash();
        let cache = rig.open();
        assert!(cache.read(&name).is_ok_and(|now| now == after), "round {round}");
        assert!(cache.flush(&format!("/{name}")).is_durable());
        assert!(rig.read_pfs(&name) == after, "round {round}");
        cache.fs.invalidate(&Caller::root(), format!("/{name}").as_bytes()).unwrap();
        std::fs::remove_file(rig.pfs(&name)).unwrap();
        cache.crash();
    }
}
