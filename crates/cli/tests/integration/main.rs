//! The tests of the commands' own behaviour, as one program: arguments, output, errors, JSON, and the servers that
//! commands start. What needs more than one mount or a whole job is in `tests/`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on panics")]

mod bench_replay;
mod common;
mod control;
mod dashboard;
mod errors;
mod forms;
mod hooks;
mod json;
mod limits;
mod munge;
mod plans;
mod pool;
mod serve;
mod sim;
mod site;
mod staging_pool;
mod stripe;
mod users;
mod watch;
