//! Lines of the journals of plans and of event records. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzed::journal_lines(data));
