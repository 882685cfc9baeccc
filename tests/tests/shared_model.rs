//! Random operations on several mounts of one buffer agree with the reference model after every
//! step, seen from every mount; also while the server and mounts are killed with -9.
#![allow(clippy::unwrap_used)]

use forebay_tests::model::{SharedPlan, run_shared};
use forebay_tests::served::{Options, Served, Store, Via};
use forebay_tests::{env_u64, long, seed};

fn steps(short: u64) -> u64 {
    env_u64("FOREBAY_STEPS", if long() { 50 * short } else { short })
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
