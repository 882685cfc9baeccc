//! A random test against a reference: what each file holds, whatever is evicted, drained, killed.
//!
//! `FOREBAY_SEED` replays one run, `FOREBAY_CACHE_MODEL_S` makes it longer (default: a few
//! seconds). After each crash all that was acknowledged is there; at the end the PFS has it.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const FILE_MAX: u64 = 3 * MIB;
const CAPACITY: u64 = 12 * MIB;

struct Model {
    files: BTreeMap<&'static str, Vec<u8>>,
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn write_model(file: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset as usize..end].copy_from_slice(data);
}

/// One step; what it did.
fn step(rig: &Rig, cache: &Running, model: &mut Model, rng: &mut StdRng) -> String {
    let name = NAMES[rng.random_range(0..NAMES.len())];
    let root = Caller::root();
    match rng.random_range(0..100) {
        0..35 => {
            let by_kernel = rng.random_bool(0.3);
            let offset = rng.random_range(0..FILE_MAX / 2);
            let length = match rng.random_range(0..3) {
                0 => rng.random_range(1..5_000),
                1 => rng.random_range(1..400_000),
                _ => 256 << 10,
            };
            let data = pattern(rng.random(), length);
            let handle = cache.open(name, libc::O_RDWR | libc::O_CREAT, by_kernel).unwrap();
            let local = handle.local.is_some();
            handle.write(offset, &data).unwrap();
            drop(handle);
            write_model(model.files.entry(name).or_default(), offset, &data);
            format!("write {name} {offset}+{length} by kernel {local}")
        }
        35..55 => {
            let got = cache.read(name);
            match model.files.get(name) {
                Some(wanted) => {
                    let got = got.unwrap();
                    assert_eq!(got.len(), wanted.len(), "size of {name}");
                    let differs = got.iter().zip(wanted).position(|(g, w)| g != w);
                    assert_eq!(differs, None, "{name} differs there");
                }
                None => assert_eq!(got, Err(Errno::ENOENT)),
            }
            format!("read {name}")
        }
        55..63 => {
            let Some(file) = model.files.get_mut(name) else { return "nothing".into() };
            let size = rng.random_range(0..FILE_MAX);
            let change = forebay_proto::SetAttr { size_bytes: Some(size), ..Default::default() };
            cache.fs.setattr(&root, cache.lookup(name).unwrap(), &change).unwrap();
            file.resize(size as usize, 0);
            format!("truncate {name} {size}")
        }
        63..68 => {
            if model.files.remove(name).is_some() {
                cache.fs.unlink(&root, Ino::ROOT, name.as_bytes()).unwrap();
            }
            format!("unlink {name}")
        }
        68..73 => {
            let to = NAMES[rng.random_range(0..NAMES.len())];
            if let Some(file) = model.files.get(name).cloned()
                && to != name
            {
                let (from, to) = (name.as_bytes(), to.as_bytes());
                cache.fs.rename(&root, Ino::ROOT, from, Ino::ROOT, to, 0).unwrap();
                model.files.remove(name);
                model
                    .files
                    .insert(NAMES[NAMES.iter().position(|n| n.as_bytes() == to).unwrap()], file);
            }
            format!("rename {name} {to}")
        }
        73..80 => {
            cache.fs.flush(&root, b"/").unwrap();
            "start a drain".into()
        }
        80..86 => {
            let state = cache.flush("/");
            assert!(state.is_durable(), "{state:?}");
            must_be_on_pfs(rig, model);
            "drain all".into()
        }
        86..91 => {
            let clean =
                model.files.contains_key(name) && cache.state(&format!("/{name}")).is_durable();
            if clean {
                let data = pattern(rng.random(), rng.random_range(0..500_000));
                std::fs::write(rig.pfs(name), &data).unwrap();
                model.files.insert(name, data);
            }
            format!("somebody else writes {name}: {clean}")
        }
        91..95 => {
            if model.files.contains_key(name) {
                // Busy where it is dirty.
                let _ = cache.fs.invalidate(&root, format!("/{name}").as_bytes());
            }
            format!("invalidate {name}")
        }
        _ => {
            let Some(file) = model.files.get_mut(name) else { return "nothing".into() };
            let handle = cache.open(name, libc::O_RDWR | libc::O_TRUNC, rng.random()).unwrap();
            file.clear();
            let data = pattern(rng.random(), rng.random_range(0..200_000));
            handle.write(0, &data).unwrap();
            write_model(file, 0, &data);
            format!("write {name} anew")
        }
    }
}

fn must_be_on_pfs(rig: &Rig, model: &Model) {
    for (name, wanted) in &model.files {
        assert!(rig.read_pfs(name) == *wanted, "{name} is another one on the PFS");
    }
    let there = std::fs::read_dir(rig.base.path().join("pfs")).unwrap().count();
    assert_eq!(there, model.files.len(), "nothing else is on the PFS");
}

#[test]
fn cache_is_what_the_model_says() {
    let seconds = number("FOREBAY_CACHE_MODEL_S", 8);
    let seed = number("FOREBAY_SEED", rand::random::<u32>().into());
    eprintln!("replay with FOREBAY_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rig = Rig::new(CAPACITY);
    let mut model = Model { files: BTreeMap::new() };
    let mut steps = 0;
    while Instant::now() < until {
        rig.options.policy = match rng.random_range(0..3) {
            0 => Policy::Close,
            1 => Policy::Idle(Duration::from_secs(1)),
            _ => Policy::End,
        };
        let cache = rig.open();
        for _ in 0..rng.random_range(1..60) {
            let did = step(&rig, &cache, &mut model, &mut rng);
            steps += 1;
            if std::env::var_os("FOREBAY_SHOW_STEPS").is_some() {
                eprintln!("{steps}: {did}");
            }
        }
        cache.crash();
    }
    let cache = rig.open();
    assert!(cache.flush("/").is_durable());
    must_be_on_pfs(&rig, &model);
    let (used, capacity) = cache.names.space().unwrap();
    assert!(used <= capacity);
    cache.crash();
    eprintln!("{steps} steps");
}
