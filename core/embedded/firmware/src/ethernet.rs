//! The Ethernet controller of the chip, as a device of smoltcp, without
//! interrupts.

use smoltcp::phy::{self, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::register::Register;

// SAFETY: the registers in the manual of the LM3S6965, chapters 5 (system
// control) and 15 (Ethernet controller).
mod at {
    use super::Register;

    pub const CLOCK_OF_ETHERNET: Register = unsafe { Register::at(0x400f_e108) };
    pub const RECEIVE_CONTROL: Register = unsafe { Register::at(0x4004_8008) };
    pub const TRANSMIT_CONTROL: Register = unsafe { Register::at(0x4004_800c) };
    pub const DATA: Register = unsafe { Register::at(0x4004_8010) };
    pub const ADDRESS_LOW: Register = unsafe { Register::at(0x4004_8014) };
    pub const ADDRESS_HIGH: Register = unsafe { Register::at(0x4004_8018) };
    pub const PACKET_COUNT: Register = unsafe { Register::at(0x4004_8034) };
    pub const TRANSMIT: Register = unsafe { Register::at(0x4004_8038) };
}

/// The clocks of the controller and of its physical layer.
const CLOCKS: u32 = 1 << 28 | 1 << 30;

/// Receive, and drop frames with a wrong checksum.
const RECEIVE: u32 = 1 | 1 << 3;

/// Empties the queue of received frames.
const RESET_QUEUE: u32 = 1 << 4;

/// Transmit with padding and checksums, full duplex.
const TRANSMIT: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 4;

/// The maximum length of a frame: its header and 1500 bytes of data.
const FRAME_LEN: usize = HEADER_LEN + 1500;

/// The length of the header of a frame.
const HEADER_LEN: usize = 14;

/// The length of the checksum after a frame.
const CHECKSUM_LEN: usize = 4;

/// The length of the length field before a frame.
const LENGTH_LEN: usize = 2;

/// The controller, with space for one frame in each direction.
pub struct Ethernet {
    received: [u8; FRAME_LEN],
    sent: [u8; FRAME_LEN],
}

impl Ethernet {
    /// Starts the controller with a hardware address.
    pub fn start([a, b, c, d, e, f]: [u8; 6]) -> Self {
        at::CLOCK_OF_ETHERNET.set(CLOCKS);
        // The clocks need three ticks to start, which reading a register takes.
        at::CLOCK_OF_ETHERNET.read();
        at::ADDRESS_LOW.write(u32::from_le_bytes([a, b, c, d]));
        at::ADDRESS_HIGH.write(u32::from_le_bytes([e, f, 0, 0]));
        at::RECEIVE_CONTROL.write(RESET_QUEUE);
        at::RECEIVE_CONTROL.write(RECEIVE);
        at::TRANSMIT_CONTROL.write(TRANSMIT);
        Self {
            received: [0; FRAME_LEN],
            sent: [0; FRAME_LEN],
        }
    }

    /// Takes a frame from the queue and returns its length; 0 for a frame that
    /// is too long, which is dropped.
    ///
    /// The queue consists of words. They contain the total length in two bytes,
    /// including these, the frame and its checksum.
    fn take(&mut self) -> usize {
        let [low, high, first @ ..] = at::DATA.read().to_le_bytes();
        let whole = usize::from(u16::from_le_bytes([low, high]));
        let len = whole.saturating_sub(LENGTH_LEN + CHECKSUM_LEN);
        let mut space = self.received.iter_mut();
        let mut put = |byte: u8| {
            if let Some(place) = space.next() {
                *place = byte;
            }
        };
        first.into_iter().for_each(&mut put);
        for _ in 1..whole.div_ceil(4) {
            at::DATA.read().to_le_bytes().into_iter().for_each(&mut put);
        }
        if len > FRAME_LEN { 0 } else { len }
    }
}

/// Sends a frame. The length before it is that of its data.
fn send(frame: &[u8]) {
    let len = frame.len().saturating_sub(HEADER_LEN);
    let [low, high, ..] = len.to_le_bytes();
    let mut bytes = [low, high].into_iter().chain(frame.iter().copied());
    for _ in 0..frame.len().saturating_add(LENGTH_LEN).div_ceil(4) {
        let mut word = [0; 4];
        for (place, byte) in word.iter_mut().zip(&mut bytes) {
            *place = byte;
        }
        at::DATA.write(u32::from_le_bytes(word));
    }
    at::TRANSMIT.write(1);
    // Wait until the controller has accepted the frame.
    while at::TRANSMIT.read() & 1 != 0 {}
}

/// A received frame.
pub struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Space for a frame to send.
pub struct Space<'a>(&'a mut [u8]);

impl phy::TxToken for Space<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        // Not longer than the maximum below.
        let frame = self.0.get_mut(..len).unwrap_or_default();
        let result = write(frame);
        send(frame);
        result
    }
}

impl phy::Device for Ethernet {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Space<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Space<'_>)> {
        if at::PACKET_COUNT.read() == 0 {
            return None;
        }
        let len = self.take();
        let frame = self.received.get(..len).unwrap_or_default();
        Some((Received(frame), Space(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Space<'_>> {
        Some(Space(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_LEN;
        capabilities
    }
}
