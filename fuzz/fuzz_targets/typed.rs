#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| daskwire_fuzz::typed(input));
