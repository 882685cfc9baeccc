//! What a server says to a client before it is known. Run by `make fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_server::fuzzed::greeting_client(data));
