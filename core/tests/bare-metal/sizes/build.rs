//! Writes the message `task-finished` in the formats of the other codecs.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

#[path = "src/minicbor_message.rs"]
mod minicbor_message;
#[path = "src/postcard_message.rs"]
mod postcard_message;

/// The message of `core/benches/messages/task-finished.msgpack` without its
/// empty map.
macro_rules! message {
    ($types:ident) => {
        $types::TaskFinished {
            key: "load-5c0a87c5-a843-45ab-87ab-7d42bb6d01f5",
            run_id: 0,
            nbytes: 8000,
            pickled_type: PICKLED_TYPE,
            typename: "numpy.ndarray",
            thread: 0x7f61_141f_d6c0,
            startstops: [$types::StartStop {
                action: "compute",
                start: f64::from_bits(0x41da_c041_4f56_ed3f),
                stop: f64::from_bits(0x41da_c041_4f56_f4dc),
            }],
            op: "task-finished",
            stimulus_id: "task-finished-1795228989.354326",
            status: "OK",
        }
    };
}

const PICKLED_TYPE: &[u8] =
    b"\x80\x05\x95\x15\0\0\0\0\0\0\0\x8c\x05numpy\x94\x8c\x07ndarray\x94\x93\x94.";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src");
    let folder = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let written = postcard::to_allocvec_cobs(&message!(postcard_message))?;
    fs::write(folder.join("postcard.bin"), written)?;
    let written = minicbor::to_vec(message!(minicbor_message))?;
    fs::write(folder.join("minicbor.bin"), written)?;
    Ok(())
}
