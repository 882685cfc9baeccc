//! A power cut of the node: of the log all is there that was synced, of objects what their file system had written down.
//! Here a server is killed, and what was never fsynced of an object is taken from it.

use super::kill::options;
use super::*;
use forebay_failpoint::kill::{KILL_ONLY, run_killed};
use forebay_proto::SetAttr;

const CHILD_BASE: &str = "FOREBAY_TEST_POWERCUT_BASE";
const CHILD_SIZE: &str = "FOREBAY_TEST_POWERCUT_SIZE";
const CHILD: &str = "tests::powercut::child_that_resizes";
const CAPACITY: u64 = 16 * MIB;
/// What the PFS has of the file, of which nothing is here.
const ON_PFS_BYTES: usize = 936_914;
/// A whole block that is written.
const WRITTEN_AT: usize = 5 * (128 << 10);
const WRITTEN_BYTES: usize = 128 << 10;

fn open_durable(base: &Path) -> Running {
    open_store(&base.join("store"), (CAPACITY, MAP_BYTES), options(base), None, false)
}

/// The server that is killed in a drain: it has synced the record, and nobody the data.
#[test]
fn child_that_resizes() {
    let Ok(base) = std::env::var(CHILD_BASE) else { return };
    let size_bytes = std::env::var(CHILD_SIZE).unwrap().parse().unwrap();
    let cache = open_durable(Path::new(&base));
    cache.write("f", WRITTEN_AT as u64, &pattern(2, WRITTEN_BYTES));
    let ino = cache.lookup("f").unwrap();
    let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
    cache.fs.setattr(&Caller::root(), ino, &change).unwrap();
    assert!(cache.flush("/").is_durable());
    cache.crash();
}

/// The only object with data goes, or is as it was made: empty.
fn take_what_was_not_fsynced(base: &Path, is_gone: bool) {
    let fans = std::fs::read_dir(base.join("store/data")).unwrap();
    let objects: Vec<PathBuf> = fans
        .flat_map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap())
        .map(|object| object.unwrap().path())
        .filter(|path| path.extension().is_some_and(|part| part == "0"))
        .collect();
    assert_eq!(objects.len(), 1, "{objects:?}");
    match is_gone {
        true => std::fs::remove_file(&objects[0]).unwrap(),
        false => {
            let object = std::fs::File::options().write(true).open(&objects[0]).unwrap();
            object.set_len(0).unwrap();
        }
    }
}

fn boot_again(base: &Path) {
    let config = base.join("store").join(CONFIG_NAME);
    let text = std::fs::read(&config).unwrap();
    let mut told: serde_json::Value = serde_json::from_slice(&text).unwrap();
    told["boot_id"] = "another boot".into();
    std::fs::write(&config, serde_json::to_vec(&told).unwrap()).unwrap();
}

/// The file was all on the PFS, and made anew on flash to be written. A drain in place has synced that it was resized.
#[test]
fn a_power_cut_in_the_drain_of_a_file_that_was_resized_leaves_what_the_pfs_has() {
    let on_record = "a drain in place is on record";
    let is_written = "dirty data is on the PFS";
    let (shorter, longer) = (709_437, 1_200_000);
    let cases = [
        (on_record, shorter, true),
        (is_written, shorter, false),
        (on_record, longer, false),
        (is_written, longer, true),
    ];
    let on_pfs = pattern(1, ON_PFS_BYTES);
    for (step, size, is_gone) in cases {
        let rig = Rig::new(CAPACITY);
        let base = rig.base.path();
        rig.put("f", &on_pfs);
        let told_size = size.to_string();
        let variables = [
            (CHILD_BASE, base.to_str().unwrap()),
            (CHILD_SIZE, told_size.as_str()),
            (KILL_ONLY, step),
        ];
        let killed = run_killed(CHILD, &variables, 1);
        assert_eq!(killed.as_deref(), Some(step));
        take_what_was_not_fsynced(base, is_gone);
        boot_again(base);
        let when = format!("{step}, {size} bytes, gone: {is_gone}");
        let mut wanted = rig.read_pfs("f");
        wanted.truncate(size.min(ON_PFS_BYTES));
        assert!(wanted.starts_with(&on_pfs[..WRITTEN_AT]), "{when}: the drain has lost it");
        let cache = open_durable(base);
        let now = cache.read("f").unwrap();
        assert_eq!(now.len(), wanted.len(), "{when}");
        assert!(now == wanted, "{when}: other bytes than the PFS has");
        let state = cache.flush("/");
        assert!(state.is_durable(), "{when}: {state:?}");
        assert!(rig.read_pfs("f") == wanted, "{when}: what the PFS had was drained over");
        cache.crash();
    }
}
