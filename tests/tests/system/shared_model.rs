//! Random operations on several mounts of one buffer agree with the reference model after every
//! step, seen from every mount; also while the server and mounts are killed with -9.
#![allow(clippy::unwrap_used)]

use forebay_tests::model::{SharedPlan, run_shared};
use forebay_tests::proxy::Proxy;
use forebay_tests::served::{Host, Options, Served, Store, Via};
use forebay_tests::{env_u64, long, random_steps, seed};
use std::sync::Arc;

fn steps(short: u64) -> u64 {
    env_u64("FOREBAY_STEPS", if long() { 50 * short } else { random_steps(short) })
}

fn plan(name: &str, steps_short: u64) -> SharedPlan {
    SharedPlan {
        seed: seed(name),
        steps: steps(steps_short),
        whole_every: 400,
        kill_server_every: 0,
        kill_mount_every: 0,
    }
}

#[test]
fn two_mounts_agree_with_the_model() {
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Local]);
    run_shared(&served, plan("two_mounts_agree_with_the_model", 2_500));
}

#[test]
fn two_mounts_over_tcp_agree_with_the_model() {
    let served = Served::new(Store::Directory, &[Via::Tcp, Via::Tcp]);
    run_shared(&served, plan("two_mounts_over_tcp_agree_with_the_model", 2_000));
}

#[test]
fn three_mounts_by_socket_and_tcp_agree_with_the_model() {
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Tcp, Via::Local]);
    run_shared(&served, plan("three_mounts_by_socket_and_tcp_agree_with_the_model", 2_000));
}

#[test]
fn mounts_agree_with_the_model_over_kills_of_the_server() {
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Tcp]);
    let plan = plan("mounts_agree_with_the_model_over_kills_of_the_server", 1_500);
    run_shared(&served, SharedPlan { kill_server_every: 150, ..plan });
}

#[test]
fn mounts_agree_with_the_model_over_kills_of_mounts() {
    let served = Served::new(Store::Tmpfs, &[Via::Local, Via::Tcp, Via::Local]);
    let plan = plan("mounts_agree_with_the_model_over_kills_of_mounts", 1_000);
    run_shared(&served, SharedPlan { kill_mount_every: 350, kill_server_every: 225, ..plan });
}

#[test]
fn mounts_of_two_servers_agree_with_the_model_over_kills() {
    let options = Options::over(2, Store::Tmpfs);
    let served = Served::with(options, &[Via::Local, Via::Tcp]);
    let plan = plan("mounts_of_two_servers_agree_with_the_model_over_kills", 1_500);
    run_shared(&served, SharedPlan { kill_server_every: 150, ..plan });
}

#[test]
fn mounts_of_three_servers_agree_with_the_model_over_kills_of_servers_and_mounts() {
    let options = Options::over(3, Store::Directory);
    let served = Served::with(options, &[Via::Local, Via::Tcp, Via::Local]);
    let name = "mounts_of_three_servers_agree_with_the_model_over_kills_of_servers_and_mounts";
    let plan = SharedPlan { kill_mount_every: 350, kill_server_every: 150, ..plan(name, 1_000) };
    run_shared(&served, plan);
}

/// Connections of mounts and of servers to each other break in the middle of any frame: calls are
/// made again, and each is done once.
#[test]
fn mounts_of_two_servers_agree_with_the_model_over_connections_that_break() {
    let name = "mounts_of_two_servers_agree_with_the_model_over_connections_that_break";
    let plan = plan(name, 1_800);
    let proxies = [1, 2].map(|n| Arc::new(Proxy::new(plan.seed ^ n)));
    let hosts = proxies.iter().map(|proxy| Host::Behind(Arc::clone(proxy))).collect();
    let served = Served::with(Options { hosts, ..Options::over(2, Store::Tmpfs) }, &[]);
    for _ in 0..2 {
        served.mount(Via::At(proxies[0].address().into()));
    }
    proxies.iter().for_each(|proxy| proxy.breaks(true));
    run_shared(&served, plan);
    proxies.iter().for_each(|proxy| proxy.breaks(false));
    let broken: Vec<u64> = proxies.iter().map(|proxy| proxy.broken()).collect();
    // Where chance puts nearly all directories on one server, the other is asked little: so not
    // many of each, but many of both, and of each some.
    let enough = broken.iter().sum::<u64>() > 50 && broken.iter().all(|count| *count > 0);
    assert!(enough, "connections broken: {broken:?}");
}
