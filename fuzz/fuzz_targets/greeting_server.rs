//! What a client says to a server before it is known. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzed::greeting_server(data));
