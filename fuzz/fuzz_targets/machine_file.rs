//! A machine file of the simulator, and a short simulation on what it describes. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_sim::fuzzed::machine_file(data));
