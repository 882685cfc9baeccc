//! A workload file. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_workload::fuzzed::workload_file(data));
