//! Messages of the Python processes of a worker.

use crate::message::Message;
use daskwire_fuzz::budget::{Budget, Linear};
use daskwire_python::read_from_python;

use crate::input::Choices;
use crate::messages::{self, round_trip};

/// Maximum number of pieces, so that the buffer of a socket has space for all of them.
const MAX_PIECES: usize = 64;

/// The budget for reading the messages. The memory for a table and for inline frames, at most
/// 1 MiB each, is reserved before they arrive.
const BUDGET: Budget = Budget {
    memory_len: Linear {
        base: 3 << 20,
        ..messages::BUDGET.memory_len
    },
    allocated_len: Linear {
        base: 4 << 20,
        ..messages::BUDGET.allocated_len
    },
    ..messages::BUDGET
};

/// Checks that messages with frames inline and in shared memory round-trip, and are the same
/// however the process writes them.
///
/// The input: the number of files and their contents, then pieces that the process writes,
/// each after the number of the files that it sends with the piece.
pub(crate) fn python_messages(input: &[u8]) {
    let mut choices = Choices(input);
    let files: Vec<&[u8]> = (0..choices.below(4)).map(|_| piece(&mut choices)).collect();
    let mut pieces = Vec::new();
    while !choices.is_empty() && pieces.len() < MAX_PIECES {
        let file_count = choices.below(4);
        pieces.push((file_count, piece(&mut choices)));
    }
    let read = BUDGET.check(input.len(), || read_from_python(&files, &pieces));
    read.iter().for_each(round_trip);
    if pieces.iter().all(|(file_count, _)| *file_count == 0) {
        let pieces: Vec<&[u8]> = pieces.iter().map(|(_, piece)| *piece).collect();
        let whole = read_from_python(&[], &[(0, &pieces.concat())]);
        // Compared as bytes: NaN is not equal to itself.
        let [whole, read] = [whole, read].map(|messages| {
            let encoded = messages.iter().map(Message::encode);
            encoded.collect::<Vec<_>>()
        });
        assert_eq!(whole, read, "the pieces matter");
    }
}

/// At most 1023 bytes after their length.
fn piece<'a>(choices: &mut Choices<'a>) -> &'a [u8] {
    let len = choices.u16() & 0x3ff;
    choices.bytes(len.into())
}
