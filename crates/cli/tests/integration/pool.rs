//! Several `forebay serve` as one pool, as users run them: joined over TCP and by socket, buffers
//! over several, servers killed and started again, one gone for good.

use crate::common::pool::Pool;
use crate::common::{failure, must_be_root, text, wait_for};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn servers_that_are_killed_are_waited_for_and_come_back() {
    let mut pool = Pool::new(&["256MiB", "256MiB", "256MiB"]);
    let made = pool.json(2, &["buffer", "create", "wide", "--capacity", "90MiB", "--servers", "0"]);
    let parts = made["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 3, "{made}");
    assert_eq!(made["capacity_bytes"], 96 << 20);
    let shown = pool.done(1, &["pool", "status"]);
    assert!(shown.contains("leader") && shown.matches("member").count() == 2, "{shown}");
    let described = pool.done(0, &["buffer", "status", "wide"]);
    assert!(described.contains("shard 2"), "{described}");

    // A member.
    pool.kill(1);
    let told = pool.json(2, &["buffer", "status", "wide"]);
    assert_eq!(told["state"], "degraded");
    assert!(told["why"].as_str().unwrap().contains("does not answer"), "{told}");
    let refused = pool.ask(0, &["buffer", "destroy", "wide"]);
    assert!(failure(&refused, 1).contains("does not answer"), "{}", failure(&refused, 1));
    pool.start(1, None);
    wait_for("the member's return", || pool.state(0, "wide") == "ready");

    // The leader: the others serve on, and say what is missing.
    pool.kill(0);
    let refused = pool.ask(1, &["buffer", "list"]);
    assert!(
        failure(&refused, 1).contains("keeps the ledger of the pool"),
        "{}",
        failure(&refused, 1)
    );
    pool.start(0, None);
    wait_for("the leader's return", || pool.ask(1, &["buffer", "list"]).status.success());
    wait_for("the whole pool", || pool.state(2, "wide") == "ready");
    pool.done(2, &["buffer", "extend", "wide", "--capacity", "100MiB"]);
    pool.done(1, &["buffer", "destroy", "wide"]);
    for at in 0..3 {
        assert!(pool.stores(at).is_empty(), "server {at} has something left");
    }
}

#[test]
fn a_server_gone_for_good_is_given_up() {
    let mut pool = Pool::new(&["128MiB", "128MiB"]);
    pool.done(0, &["buffer", "create", "wide", "--capacity", "32MiB"]);
    let gone = pool.servers[1].id.clone();
    let refused = pool.ask(0, &["pool", "forget", &gone]);
    assert!(failure(&refused, 1).contains("it answers"), "{}", failure(&refused, 1));
    pool.kill(1);
    pool.done(0, &["pool", "forget", &gone]);
    let shown = pool.done(0, &["buffer", "status", "wide"]);
    assert!(shown.contains("degraded") && shown.contains("lost on"), "{shown}");
    assert!(pool.done(0, &["pool", "status"]).contains("lost"));
    pool.start(1, None);
    wait_for("the end of its parts", || pool.stores(1).is_empty());
    pool.done(0, &["buffer", "destroy", "wide"]);
    wait_for("a member of another name", || {
        let told = pool.json(0, &["pool", "status"]);
        let servers = told["servers"].as_array().unwrap();
        servers.len() == 2
            && servers.iter().all(|s| s["server"] != gone.as_str() && s["alive"] == true)
    });
    pool.done(1, &["buffer", "create", "next", "--capacity", "32MiB", "--servers", "2"]);
}

/// The server of a buffer answers and the leader of its pool does not: the state has the figures, and says who could not be asked.
#[test]
fn the_state_of_a_buffer_has_its_figures_while_the_leader_of_the_pool_is_stopped() {
    must_be_root();
    let pool = Pool::new(&["64MiB", "256MiB"]);
    // Only the other server has the room.
    pool.done(1, &["buffer", "create", "there", "--capacity", "128MiB", "--servers", "1"]);
    let mnt = pool.rig.mnt.clone();
    let point = mnt.to_str().unwrap();
    pool.done(1, &["mount", "--buffer", "there", point]);
    fs::write(mnt.join("f"), vec![1; 5 << 20]).unwrap();
    let leader = pool.servers[0].child.as_ref().unwrap().id();
    let signal = |signal: i32| {
        // SAFETY: kill only sends a signal, to the server that this test started.
        assert_eq!(unsafe { libc::kill(leader as i32, signal) }, 0);
    };
    let ask = |arguments: &[&str]| text(&pool.command(arguments).output().unwrap().stdout);
    signal(libc::SIGSTOP);
    let (told, shown) = (ask(&["status", "--json", point]), ask(&["status", point]));
    let listed = ask(&["status"]);
    signal(libc::SIGCONT);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told["server_error"].is_null(), "{told}");
    let not_asked = told["not_asked"].as_str().unwrap_or_default();
    assert!(not_asked.contains(&format!("`kill -CONT {leader}`")), "{told}");
    assert_eq!(told["capacity_bytes"], 128 << 20, "{told}");
    assert!(told["used_bytes"].as_u64().is_some_and(|used| used >= 5 << 20), "{told}");
    assert!(shown.contains("not asked   server ") && shown.contains(" used ("), "{shown}");
    assert!(!shown.contains("NO ANSWER"), "{shown}");
    let line = listed.lines().find(|line| line.contains(point)).unwrap_or_default();
    assert!(line.starts_with("live") && line.contains(" used"), "{listed}");
}

#[test]
fn a_leader_gone_for_good_is_replaced_and_what_it_had_is_listed() {
    must_be_root();
    // The least room: the leader has the last part, not the root's.
    let mut pool = Pool::new(&["64MiB", "128MiB", "128MiB"]);
    let create = ["buffer", "create", "wide", "--capacity", "90MiB", "--servers", "3"];
    pool.done(0, &[&create[..], &["--store", "directory"]].concat());
    let mnt = pool.rig.mnt.clone();
    pool.done(1, &["mount", "--buffer", "wide", mnt.to_str().unwrap()]);
    let mut files = Vec::new();
    for number in 0..40 {
        let dir = mnt.join(format!("d{number}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), vec![number; 1000]).unwrap();
        files.push(dir.join("f"));
    }
    let old = pool.servers[0].id.clone();
    let early = pool.ask(1, &["pool", "leader", "--take-over"]);
    assert!(failure(&early, 1).contains("answers"), "{}", failure(&early, 1));
    pool.kill(0);
    fs::remove_dir_all(pool.flash(0)).unwrap();
    fs::create_dir(pool.flash(0)).unwrap();
    let refused = pool.ask(2, &["buffer", "list"]);
    let said = failure(&refused, 1);
    assert!(said.contains("forebay pool leader --take-over"), "{said}");
    let told = pool.json(1, &["pool", "leader", "--take-over"]);
    assert_eq!(told["server"], pool.servers[1].id.as_str());

    assert_eq!(pool.state(2, "wide"), "degraded");
    let shown = pool.json(2, &["pool", "status"]);
    let state = |id: &str| {
        let servers = shown["servers"].as_array().unwrap();
        servers.iter().find(|s| s["server"] == id).cloned().unwrap()
    };
    assert_eq!(
        (state(&old)["given_up"].clone(), state(&old)["leader"].clone()),
        (true.into(), false.into())
    );
    // At once: what it had answers EIO, and is what is listed; the rest is whole.
    let lost: Vec<&PathBuf> = files
        .iter()
        .enumerate()
        .filter(|(number, path)| match fs::read(path) {
            Ok(data) => {
                assert_eq!(data, vec![*number as u8; 1000]);
                false
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{}", path.display());
                true
            }
        })
        .map(|(_, path)| path)
        .collect();
    assert!(!lost.is_empty() && lost.len() < files.len(), "{} of {}", lost.len(), files.len());
    let listed = pool.done(2, &["buffer", "lost", "wide", "--json"]);
    for path in &files {
        let dir = format!("\"/{}\"", path.parent().unwrap().file_name().unwrap().to_str().unwrap());
        let file = dir.replace('"', "") + "/f";
        let is_listed = listed.contains(&dir) || listed.contains(&format!("\"{file}\""));
        assert_eq!(is_listed, lost.contains(&path), "{file}: {listed}");
    }

    // Another server in its place, by way of a member; then all goes on.
    pool.servers[0].tcp = "127.0.0.1:0".into();
    let join = pool.servers[2].tcp.clone();
    pool.start(0, Some(&join));
    let ended = pool.command(&["umount", "--force", mnt.to_str().unwrap()]).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    pool.done(2, &["buffer", "destroy", "wide"]);
    assert!((0..3).all(|at| pool.stores(at).is_empty()));
    pool.done(0, &["buffer", "create", "next", "--capacity", "90MiB", "--servers", "3"]);
    // A leader is a server like any other: this one is started again as it was, as a member.
    pool.kill(1);
    pool.start(1, Some(&format!("127.0.0.1:{}", 1)));
    wait_for("the whole pool", || pool.state(2, "next") == "ready");
    pool.done(2, &["buffer", "destroy", "next"]);
}

#[test]
fn a_mount_may_name_any_server() {
    must_be_root();
    // The buffer goes to the server with the most room; the mount names the other one.
    let pool = Pool::new(&["64MiB", "256MiB"]);
    let made = pool.json(0, &["buffer", "create", "b", "--capacity", "32MiB", "--servers", "1"]);
    assert_eq!(made["parts"][0]["server"], pool.servers[1].id.as_str());
    let mnt = pool.rig.mnt.to_str().unwrap();
    pool.done(0, &["mount", "--buffer", "b", mnt]);
    fs::write(pool.rig.mnt.join("file"), "data").unwrap();
    pool.done(1, &["stage", "out", "b:/file", pool.rig.base().join("x").to_str().unwrap()]);
    pool.done(0, &["stage", "out", "b:/file", pool.rig.base().join("y").to_str().unwrap()]);
    assert_eq!(fs::read(pool.rig.base().join("y")).unwrap(), b"data");
    let ended = pool.command(&["umount", mnt]).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    pool.done(0, &["buffer", "destroy", "b"]);
}

#[test]
fn another_key_or_another_pool_is_refused() {
    let pool = Pool::new(&["64MiB", "64MiB"]);
    let flash = pool.rig.base().join("other");
    fs::create_dir(&flash).unwrap();
    let serve = |more: &[&str]| {
        let mut command = pool.command(&["serve", "--capacity", "32MiB", "--listen"]);
        command.arg("127.0.0.1:0").args(["--json", "--flash"]).arg(&flash).args(more);
        command.output().unwrap()
    };
    let key = pool.rig.base().join("other.key");
    let with_key = ["--secret-file", key.to_str().unwrap(), "--join", &pool.servers[0].tcp];
    // No key yet: which file to copy from where, and none is made.
    let none = failure(&serve(&with_key), 1);
    assert!(none.contains("copy 127.0.0.1:/etc/forebay/server.key"), "{none}");
    assert!(none.contains(key.to_str().unwrap()) && !key.exists(), "{none}");
    // Nor is one made where a member is started again without --join, and its key is gone.
    let lost = pool
        .command(&["serve", "--capacity", "64MiB", "--listen", "127.0.0.1:0", "--flash"])
        .arg(pool.flash(1))
        .args(["--secret-file", key.to_str().unwrap()])
        .output();
    let lost = failure(&lost.unwrap(), 1);
    assert!(lost.contains("member of a pool") && !key.exists(), "{lost}");
    fs::write(&key, format!("server {}\n", "ab".repeat(32))).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let other = failure(&serve(&with_key), 1);
    assert!(other.contains("not the right one") && other.contains("server.key"), "{other}");
    let nobody = serve(&["--join", "127.0.0.1:1"]);
    assert!(failure(&nobody, 1).contains("join the pool"), "{}", failure(&nobody, 1));
}

#[test]
fn a_mount_by_socket_reaches_servers_of_other_nodes() {
    must_be_root();
    // Only the leader has a socket; the other server is reached by TCP, with the buffer's secret.
    let mut pool = Pool::new(&["128MiB"]);
    pool.kill(0);
    let socket = format!("unix:{}", pool.rig.base().join("sock").display());
    pool.start_on(0, &["--listen", &socket], None);
    let join = pool.servers[0].tcp.clone();
    pool.add("128MiB", Some(&join));
    pool.done(0, &["buffer", "create", "b", "--capacity", "64MiB", "--servers", "2"]);
    let mnt = pool.rig.mnt.clone();
    let mount = ["mount", "--buffer", "b", "--server", &socket, mnt.to_str().unwrap()];
    let mounted = pool.command(&mount).output().unwrap();
    assert!(mounted.status.success(), "{}", text(&mounted.stderr));
    for number in 0..40 {
        fs::create_dir(mnt.join(format!("d{number}"))).unwrap();
        fs::write(mnt.join(format!("d{number}/f")), vec![7; 1000]).unwrap();
    }
    let used =
        |at: usize| pool.json(0, &["buffer", "status", "b"])["parts"][at]["used_bytes"].as_u64();
    assert!(used(0) > Some(0) && used(1) > Some(0), "{:?} {:?}", used(0), used(1));
    assert_eq!(pool.json(1, &["buffer", "status", "b"])["mounts"], 1);
    let ended = pool.command(&["umount", mnt.to_str().unwrap()]).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    pool.done(1, &["buffer", "destroy", "b"]);
}

#[test]
fn each_node_has_its_own_names_on_shared_capacity() {
    must_be_root();
    let pool = Pool::new(&["128MiB", "128MiB"]);
    pool.done(
        0,
        &["buffer", "create", "p", "--capacity", "64MiB", "--access", "private", "--servers", "2"],
    );
    let (here, there) = (pool.rig.mnt.clone(), pool.rig.base().join("there"));
    fs::create_dir(&there).unwrap();
    pool.done(1, &["mount", "--buffer", "p", here.to_str().unwrap()]);
    // Another node: a machine is told by its host name.
    let other = format!(
        "hostname other-node && exec {} mount --buffer p --server {} {}",
        crate::common::program(),
        pool.servers[0].tcp,
        there.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--uts", "sh", "-c", &other]);
    let output = command.env("FOREBAY_CONFIG_DIR", pool.rig.base().join("config")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));

    fs::create_dir_all(here.join("dir/sub")).unwrap();
    fs::write(here.join("dir/file"), "of this node").unwrap();
    fs::write(here.join("same"), vec![1; 20 << 20]).unwrap();
    assert_eq!(fs::read_dir(&there).unwrap().count(), 0, "it shows another node's names");
    fs::write(there.join("same"), "of the other node").unwrap();
    fs::rename(there.join("same"), there.join("moved")).unwrap();
    assert_eq!(fs::read(there.join("moved")).unwrap(), b"of the other node");
    assert_eq!(fs::metadata(here.join("same")).unwrap().len(), 20 << 20);
    assert_eq!(fs::read(here.join("dir/sub/../file")).unwrap(), b"of this node");
    let names = |at: &PathBuf| {
        let mut all: Vec<_> =
            fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        all.sort();
        all
    };
    assert_eq!(names(&here), ["dir", "same"]);
    // One capacity.
    let free = |at: &PathBuf| {
        let stat = rustix::fs::statvfs(at).unwrap();
        (stat.f_bavail * stat.f_frsize) >> 20
    };
    assert_eq!(free(&here), free(&there));
    assert!(free(&there) <= 44, "{} MiB are free", free(&there));
    // Staging reaches each node's names.
    let out = pool.rig.base().join("out");
    pool.done(0, &["stage", "out", "p:/other-node/moved", out.to_str().unwrap()]);
    assert_eq!(fs::read(&out).unwrap(), b"of the other node");
    pool.done(0, &["stage", "in", out.to_str().unwrap(), "p:/other-node/in"]);
    assert_eq!(fs::read(there.join("in")).unwrap(), b"of the other node");
    for at in [&here, &there] {
        let ended = pool.command(&["umount", at.to_str().unwrap()]).output().unwrap();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
    }
    // What a node has is there when it mounts again.
    pool.done(0, &["mount", "--buffer", "p", here.to_str().unwrap()]);
    assert_eq!(names(&here), ["dir", "same"]);
    let ended = pool.command(&["umount", here.to_str().unwrap()]).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    pool.done(0, &["buffer", "destroy", "p"]);
}
