//! A file of operations beside a workload file. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_workload::fuzzed::operations_file(data));
