//! The log of a namespace: segments, records, changes. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzed::log_record(data));
