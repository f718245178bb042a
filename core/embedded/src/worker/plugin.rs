//! The plugin of the scheduler that keeps the tasks and the data of others away from this
//! worker.

use core::time::Duration;

use super::{Phase, TIMEOUT, Worker};
use crate::link::str_field;

/// The source in Python, compressed by zlib: that of the worker in `daskwire-peer`.
const SOURCE: &[u8] = include_bytes!("scheduler_plugin.zlib");

/// A function in Python that calls `install` of the source.
const INSTALL: &str = "lambda source, dask_scheduler: \
    (lambda names: (exec(__import__('zlib').decompress(source), names), \
    names['install'](dask_scheduler))[1])({})";

// Pickles of protocol 4: the function, by an `eval`, and a tuple with the source. A length
// follows each start.
const FUNCTION_START: &[u8] = b"\x80\x04cbuiltins\neval\nX";
const FUNCTION_END: &[u8] = b"\x85R.";
const SOURCE_START: &[u8] = b"\x80\x04B";
const SOURCE_END: &[u8] = b"\x85.";

/// The length of the length of a string in a pickle.
const LEN_LEN: usize = 4;

const FUNCTION_LEN: usize = FUNCTION_START.len() + LEN_LEN + INSTALL.len() + FUNCTION_END.len();
const SOURCE_LEN: usize = SOURCE_START.len() + LEN_LEN + SOURCE.len() + SOURCE_END.len();

/// The parts of the request to install the plugin, `run_function` with the two pickles.
const PARTS: [&[u8]; 12] = [
    b"\x86\xa2op\xacrun_function\xa5reply\xc3\xa4wait\xc3\xa6kwargs\xc0\xa8function\xc5",
    &len_u16(FUNCTION_LEN),
    FUNCTION_START,
    &len_u32(INSTALL.len()),
    INSTALL.as_bytes(),
    FUNCTION_END,
    b"\xa4args\xc5",
    &len_u16(SOURCE_LEN),
    SOURCE_START,
    &len_u32(SOURCE.len()),
    SOURCE,
    SOURCE_END,
];

#[allow(clippy::cast_possible_truncation, reason = "the source is short")]
const fn len_u16(len: usize) -> [u8; 2] {
    (len as u16).to_be_bytes()
}

#[allow(clippy::cast_possible_truncation, reason = "the source is short")]
const fn len_u32(len: usize) -> [u8; 4] {
    (len as u32).to_le_bytes()
}

/// Whether the scheduler has the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plugin {
    /// It will be asked to install it; this has failed so often.
    Wanted {
        failures: u8,
    },
    Installed,
    /// It does not install plugins.
    Refused,
}

/// The number of attempts to install the plugin, after which the worker registers without
/// it. A reply that is too long to be received is an error with its traceback.
const MAX_ATTEMPTS: u8 = 3;

impl Plugin {
    pub(super) const FIRST: Self = Self::Wanted { failures: 0 };

    /// The state after the connections have been lost in a phase: the next scheduler may be
    /// another one.
    pub(super) const fn after(self, phase: Phase) -> Self {
        match (self, phase) {
            (Self::Wanted { failures }, Phase::Installing { .. }) => {
                let failures = failures.saturating_add(1);
                if failures == MAX_ATTEMPTS {
                    Self::Refused
                } else {
                    Self::Wanted { failures }
                }
            }
            (Self::Installed, _) | (_, Phase::Running) => Self::FIRST,
            (before, _) => before,
        }
    }
}

impl<const KEYS: usize, const DATA: usize, const PEERS: usize> Worker<'_, KEYS, DATA, PEERS> {
    /// Asks the scheduler to install the plugin. `sent` is the number of bytes of the
    /// request that are sent; `None` before its prelude.
    pub(super) fn install_plugin(&mut self, deadline: Duration, sent: Option<usize>) {
        let len = PARTS
            .iter()
            .fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        // A reply before the end of the request waits.
        if self.requests.has_message() && sent == Some(len) {
            let is_installed = self
                .requests
                .incoming
                .message(|reply| str_field(reply.reader(), "status") == Some("OK"));
            self.requests.incoming.discard_message();
            self.plugin = match is_installed {
                Some(true) => Plugin::Installed,
                _ => Plugin::Refused,
            };
            self.phase = Phase::Versions {
                deadline: self.now.saturating_add(TIMEOUT),
                is_requested: false,
            };
            return;
        }
        if !self.requests.is_open() {
            return;
        }
        let outgoing = &mut self.requests.outgoing;
        let sent = match sent {
            None if !outgoing.send_prelude(core::iter::once(len as u64)) => return,
            sent => sent.unwrap_or_default(),
        };
        let mut start = 0_usize;
        let mut now_sent = sent;
        for part in PARTS {
            let rest = part.get(now_sent.saturating_sub(start)..);
            start = start.saturating_add(part.len());
            let rest = rest.unwrap_or_default();
            let count = outgoing.append(rest);
            now_sent = now_sent.saturating_add(count);
            if count < rest.len() {
                break;
            }
        }
        self.phase = Phase::Installing {
            deadline,
            sent: Some(now_sent),
        };
    }
}
