//! A server of a buffer that is gone for good: `forebay buffer lost` lists exactly the paths that answer
//! EIO, everything else is whole and can be changed, and the buffer can be destroyed.
#![allow(clippy::unwrap_used)]

use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::{env_u64, long};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time until a mount has heard that a server is gone.
const HEARD: Duration = Duration::from_secs(10);

/// A server whose part is not the root's, and which does not keep the pool; and that part.
fn victim(served: &Served) -> (usize, u64) {
    let parts = served.status()["parts"].clone();
    let parts = parts.as_array().unwrap();
    let shard_of = |at: usize| {
        let id = served.server_id(at);
        parts.iter().find(|part| part["server"] == id.as_str()).unwrap()["shard"].as_u64().unwrap()
    };
    (1..3).map(|at| (at, shard_of(at))).find(|(_, shard)| *shard != 0).unwrap()
}

fn set(path: &Path, name: &str, value: &str) {
    let name = format!("user.forebay.{name}");
    let path = path.as_os_str().as_encoded_bytes();
    forebay_tests::sys::setxattr(path, &name, value.as_bytes(), 0).unwrap();
}

/// What was made: path below the root, and the content of files.
type Made = BTreeMap<String, Option<Vec<u8>>>;

/// Directories in directories, files, links and striped files, all over the servers.
fn fill(root: &Path) -> Made {
    let mut made = Made::new();
    for top in 0..6 {
        let dirs = [format!("d{top}"), format!("d{top}/e"), format!("d{top}/e/f")];
        for dir in &dirs {
            fs::create_dir(root.join(dir)).unwrap();
            set(&root.join(dir), "placement", "spread");
            made.insert(dir.clone(), None);
            for file in 0..8 {
                let (path, data) = (format!("{dir}/file.{file}"), vec![file as u8; 3000 + file]);
                fs::write(root.join(&path), &data).unwrap();
                made.insert(path, Some(data));
            }
            symlink("somewhere", root.join(dir).join("link")).unwrap();
            made.insert(format!("{dir}/link"), None);
        }
        // Another name for a file, in another directory.
        let (one, other) = (format!("d{top}/file.1"), format!("d{top}/e/second"));
        fs::hard_link(root.join(&one), root.join(&other)).unwrap();
        made.insert(other, made[&one].clone());
        let striped = format!("d{top}/striped");
        fs::create_dir(root.join(&striped)).unwrap();
        set(&root.join(&striped), "stripe_size_bytes", "65536");
        set(&root.join(&striped), "stripe_count", "2");
        made.insert(striped.clone(), None);
        for file in 0..4 {
            let (path, data) = (format!("{striped}/s.{file}"), vec![7 + file as u8; 300_000]);
            fs::write(root.join(&path), &data).unwrap();
            made.insert(path, Some(data));
        }
    }
    made
}

/// True if the path answers EIO; anything but that and what was made fails.
fn is_lost(root: &Path, path: &str, content: &Option<Vec<u8>>) -> bool {
    let full = root.join(path);
    let looked = fs::symlink_metadata(&full).and_then(|meta| match content {
        Some(_) => fs::read(&full).map(Some),
        None if meta.is_dir() => fs::read_dir(&full).map(|_| None),
        None => fs::read_link(&full).map(|_| None),
    });
    match looked {
        Ok(data) => {
            assert!(data == *content, "{path} has other bytes");
            false
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{path}: {error}");
            true
        }
    }
}

/// The list, as path and what is lost.
fn listed(served: &Served) -> BTreeMap<String, String> {
    let (ok, said) = served.ask(0, &["buffer", "lost", "shared", "--json"]);
    assert!(ok, "{said}");
    said.lines()
        .map(|line| {
            let one: serde_json::Value = serde_json::from_str(line).unwrap();
            (one["path"].as_str().unwrap().into(), one["lost_kind"].as_str().unwrap().into())
        })
        .collect()
}

/// The part of it that has paths from the root.
fn reachable(served: &Served) -> BTreeMap<String, String> {
    listed(served).into_iter().filter(|(path, _)| path.starts_with('/')).collect()
}

fn wait_until_heard(root: &Path, made: &Made) {
    // Before that, what needs the server waits for it.
    let begun = Instant::now();
    while !made.iter().any(|(path, content)| is_lost(root, path, content)) {
        assert!(begun.elapsed() < HEARD, "nothing is lost");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn exactly_what_answers_eio_is_listed_and_the_rest_goes_on() {
    let served = Served::with(Options::over(3, Store::Directory), &[Via::Tcp]);
    let root = served.root(0);
    let made = fill(&root);
    let (ok, said) = served.ask(0, &["buffer", "lost", "shared"]);
    assert!(ok && said.contains("nothing is lost"), "{said}");
    served.lose_server(victim(&served).0);
    wait_until_heard(&root, &made);

    let lost: BTreeSet<&String> = made
        .iter()
        .filter(|(path, content)| is_lost(&root, path, content))
        .map(|(p, _)| p)
        .collect();
    // What is below a lost directory is not told of one by one: nobody knows it any more, but for a
    // kernel that may have kept names of it.
    let above = |path: &str| Path::new(path).parent().unwrap().to_str().unwrap().to_string();
    let below_lost = |path: &str| {
        Path::new(path)
            .ancestors()
            .skip(1)
            .any(|dir| lost.iter().any(|lost| Path::new(lost) == dir))
    };
    let is_left = |path: &String| !lost.contains(path) && !below_lost(path);
    let expected: BTreeMap<String, String> = lost
        .iter()
        .filter(|path| !below_lost(path))
        .map(|path| {
            let names = made[*path].is_none() && !path.ends_with("/link");
            (format!("/{path}"), if names { "names" } else { "data" }.to_string())
        })
        .collect();
    assert_eq!(reachable(&served), expected);
    let kinds: BTreeSet<&str> = expected.values().map(String::as_str).collect();
    assert_eq!(kinds, BTreeSet::from(["data", "names"]), "the test lost too little");
    assert!(lost.len() < made.len() / 2 + made.len() / 3, "the test lost too much");

    // Directories that are left: listed whole, and usable.
    let mut dirs = made
        .iter()
        .filter(|(path, content)| content.is_none() && !path.ends_with("/link") && is_left(path));
    for (dir, _) in dirs.by_ref() {
        let names: BTreeSet<String> = fs::read_dir(root.join(dir))
            .unwrap()
            .map(|entry| format!("{dir}/{}", entry.unwrap().file_name().to_str().unwrap()))
            .collect();
        let was: BTreeSet<String> =
            made.keys().filter(|path| above(path) == *dir).cloned().collect();
        assert_eq!(names, was, "in {dir}");
        for new in 0..6 {
            let path = root.join(dir).join(format!("new.{new}"));
            fs::write(&path, vec![new; 200_000]).unwrap();
            assert_eq!(fs::read(&path).unwrap(), vec![new; 200_000]);
            fs::rename(&path, root.join(format!("moved-{}-{new}", dir.replace('/', "-")))).unwrap();
        }
        fs::create_dir(root.join(dir).join("new")).unwrap();
        fs::rename(root.join(dir).join("new"), root.join(dir.replace('/', "-") + "-new")).unwrap();
    }
    for (path, content) in made.iter().filter(|(path, c)| c.is_some() && is_left(path)) {
        let full = root.join(path);
        fs::rename(&full, full.with_extension("renamed")).unwrap();
        assert_eq!(fs::read(full.with_extension("renamed")).ok(), *content);
        fs::remove_file(full.with_extension("renamed")).unwrap();
    }
    assert_eq!(reachable(&served), expected, "changes of the rest change nothing of it");

    served.umount(0, &["--force"]).unwrap();
    let (ok, said) = served.ask(0, &["buffer", "destroy", "shared"]);
    assert!(ok, "{said}");
    let (_, said) = served.ask(0, &["buffer", "list", "--json"]);
    assert!(said.contains("\"buffers\":[]"), "{said}");
}

/// Makes the buffer anew until its first part is not at the server that keeps the pool: buffers on one
/// server take room where there is the most.
fn first_part_away_from_the_leader(served: &Served) -> usize {
    for n in 0..6 {
        let at = served.server_of_part(0);
        if at != 0 {
            return at;
        }
        let room = format!("{}MiB", 16 << n);
        for arguments in [
            &["buffer", "destroy", "shared"][..],
            &["buffer", "create", &format!("room{n}"), "--capacity", &room, "--servers", "1"],
            &["buffer", "create", "shared", "--capacity", "512MiB", "--servers", "3"],
        ] {
            let store = ["--store", "directory"];
            let more = if arguments[1] == "create" { &store[..] } else { &[] };
            let (ok, said) = served.ask(0, &[arguments, more].concat());
            assert!(ok, "{said}");
        }
    }
    panic!("the first part is always at the leader");
}

/// What is to be listed when shard 0 is lost, and how many names of what is there nobody knows.
fn left_by_number(root: &Path, made: &Made) -> (BTreeMap<String, String>, u64) {
    let ino = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().ino();
    let shard = |path: &str| ino(path) >> 48;
    let is_dir = |path: &str| made[path].is_none() && !path.ends_with("/link");
    let has_objects_there = |path: &str| {
        let full = root.join(path);
        let on = forebay_tests::sys::getxattr(
            full.as_os_str().as_encoded_bytes(),
            "user.forebay.servers",
        );
        on.unwrap().split(|byte| *byte == b',').any(|server| server == b"0")
    };
    // Parents come first.
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut expected = BTreeMap::from([("/".to_string(), "names".to_string())]);
    let mut nameless = 0;
    for (path, content) in made {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let here = shard(path) != 0;
        let shown = match known.get(above) {
            Some(above) => format!("{above}/{name}"),
            None if is_dir(path) && here => format!("?{}", ino(path)),
            None => {
                nameless += u64::from(here);
                continue;
            }
        };
        let lost_data = !here || (content.is_some() && has_objects_there(path));
        let what = match (is_dir(path), here, lost_data) {
            (true, true, _) => "path",
            (true, false, _) => "names",
            (false, _, true) => "data",
            (false, _, false) => "path",
        };
        if is_dir(path) && here {
            known.insert(path.clone(), shown.clone());
        }
        expected.insert(shown, what.to_string());
    }
    (expected, nameless)
}

#[test]
fn with_the_first_part_lost_what_is_left_is_listed_by_number() {
    let served = Served::with(Options::over(3, Store::Directory), &[]);
    let victim = first_part_away_from_the_leader(&served);
    let root = served.root(served.mount(Via::Tcp));
    let mut made = fill(&root);
    // Names in a directory that will be lost, of files that will not.
    set(&root, "placement", "spread");
    for n in 0..12 {
        let path = format!("top.{n}");
        fs::write(root.join(&path), b"there").unwrap();
        made.insert(path, Some(b"there".to_vec()));
    }
    let (expected, nameless) = left_by_number(&root, &made);
    assert!(nameless > 5, "the test lost too few names");
    assert!(expected.values().filter(|what| *what == "path").count() > 20, "{expected:?}");
    // A file whose name was made in the last moment, and of which its own server has not heard yet that it
    // is decided, goes with its name. A start hears of all.
    for survivor in (0..3).filter(|at| *at != victim) {
        served.kill_and_restart_server_at(survivor);
    }
    served.lose_server(victim);
    assert_eq!(listed(&served), expected);
    let (ok, said) = served.ask(0, &["buffer", "lost", "shared"]);
    assert!(ok && said.contains(&format!("{nameless} more names")), "{nameless}: {said}");
    served.umount(0, &["--force"]).unwrap();
}

#[test]
fn a_long_list_comes_in_pages() {
    let files = env_u64("FOREBAY_LOST_FILES", if long() { 100_000 } else { 3_000 });
    let served = Served::with(Options::over(3, Store::Directory), &[Via::Tcp]);
    let root = served.root(0);
    let (victim, part) = victim(&served);
    // A directory that is left, its files dealt out over all three.
    let on_victim = |dir: &String| {
        fs::create_dir(root.join(dir)).unwrap();
        let path = root.join(dir);
        let on = forebay_tests::sys::getxattr(
            path.as_os_str().as_encoded_bytes(),
            "user.forebay.servers",
        );
        on.unwrap() == part.to_string().as_bytes()
    };
    let dir = (0..20).map(|n| format!("in.{n}")).find(|dir| !on_victim(dir)).unwrap();
    let dir = root.join(dir);
    set(&dir, "placement", "spread");
    for file in 0..files {
        fs::write(dir.join(format!("f.{file}")), b"x").unwrap();
    }
    let third = files / 3;
    served.lose_server(victim);
    let begun = Instant::now();
    let list = listed(&served);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    // A third of them: sequence-numbered names spread evenly.
    let files = list.values().filter(|what| *what == "data").count() as u64;
    assert!((third - 1..=third + 1).contains(&files), "{files} of {third}");
    served.umount(0, &["--force"]).unwrap();
}

/// Names of lost files, links and directories are made free in each way.
#[test]
fn names_of_what_is_lost_can_be_removed_renamed_and_replaced() {
    let served = Served::with(Options::over(3, Store::Directory), &[Via::Tcp, Via::Tcp]);
    let root = served.root(0);
    let made = fill(&root);
    let (gone, _) = victim(&served);
    served.lose_server(gone);
    wait_until_heard(&root, &made);
    wait_until_heard(&served.root(1), &made);

    let listed_before = reachable(&served);
    // Those in directories that are not lost themselves; the deepest first.
    let mut there: Vec<&String> =
        made.keys().filter(|path| listed_before.contains_key(&format!("/{path}"))).collect();
    there.reverse();
    let mut anew = Made::new();
    for (i, path) in there.iter().enumerate() {
        let (full, content) = (root.join(path), &made[*path]);
        let is_dir = content.is_none() && !path.ends_with("link");
        let free = || match is_dir {
            true => fs::remove_dir(&full),
            false => fs::remove_file(&full),
        };
        match i % 3 {
            0 => free().unwrap_or_else(|error| panic!("removing {path}: {error}")),
            1 => {
                // Replaced from the other mount.
                let other = served.root(1);
                let fresh = other.join(format!("fresh.{i}"));
                match is_dir {
                    true => fs::create_dir(&fresh).unwrap(),
                    false => fs::write(&fresh, b"anew").unwrap(),
                }
                fs::rename(&fresh, other.join(path))
                    .unwrap_or_else(|error| panic!("replacing {path}: {error}"));
                anew.insert((*path).clone(), (!is_dir).then(|| b"anew".to_vec()));
            }
            _ => {
                // A kernel asks for the rights of a directory before it moves it elsewhere.
                let aside = full.with_file_name(format!("aside.{i}"));
                fs::rename(&full, &aside).unwrap_or_else(|error| panic!("{path} aside: {error}"));
                assert_eq!(fs::read(&aside).unwrap_err().raw_os_error(), Some(libc::EIO));
                fs::write(&full, b"anew").unwrap();
                anew.insert((*path).clone(), Some(b"anew".to_vec()));
            }
        }
    }
    assert!(there.len() >= 6, "{there:?}");
    let check = || {
        for path in &there {
            match anew.get(*path) {
                Some(content) => assert!(!is_lost(&root, path, content), "{path} is not usable"),
                None => assert!(!root.join(path).try_exists().unwrap(), "{path} is still there"),
            }
        }
        let left: Vec<String> = reachable(&served).into_keys().collect();
        assert!(left.iter().all(|path| path.contains("/aside.")), "{left:?}");
    };
    check();
    (0..3).filter(|at| *at != gone).for_each(|at| served.kill_and_restart_server_at(at));
    check();
}
