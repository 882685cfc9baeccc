//! The body of a frame, as each message that there is. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzed::message(data));
