//! How the executable is linked.
//!
//! Tests start that of debug builds thousands of times, for commands that take some milliseconds. At an address that is known when it is
//! linked it starts without the 80,000 relocations of one that can lie anywhere, each page of which is copied for each
//! process. Release builds are left as they are.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    if is("PROFILE", "debug") && is("CARGO_CFG_TARGET_OS", "linux") {
        println!("cargo::rustc-link-arg-bin=forebay=-no-pie");
    }
}
