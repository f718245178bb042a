#![cfg_attr(fuzzing, no_main)]
daskwire_fuzz::target!(daskwire_fuzz_peer::killed_scheduler);
