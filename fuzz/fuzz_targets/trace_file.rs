//! The trace of one process. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_trace_format::fuzzed::trace_file(data));
