//! Captures of network traffic: the TCP conversations in a pcap or pcapng file.
//!
//! The segments of each direction are put in order: repeated ones are dropped, and
//! early ones wait until the gap before them is filled. Waiting segments are slices of
//! the file, so that memory is bounded by its size.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use pcap_parser::nom::Err as Nom;
use pcap_parser::pcapng::{Block, parse_block_be, parse_block_le};
use pcap_parser::{Linktype, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};

/// Whether a file starts with the magic number of pcap or pcapng.
pub fn is_capture(file: &[u8]) -> bool {
    matches!(
        file,
        [0xd4, 0xc3, 0xb2, 0xa1, ..]
            | [0x4d, 0x3c, 0xb2, 0xa1, ..]
            | [0xa1, 0xb2, 0xc3, 0xd4, ..]
            | [0xa1, 0xb2, 0x3c, 0x4d, ..]
            | [0x0a, 0x0d, 0x0d, 0x0a, ..]
    )
}

/// The TCP conversations of a capture, in the order of their first packets.
///
/// A damaged file yields the conversations up to the damage.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Capture<'a> {
    /// The conversations.
    pub conversations: Vec<Conversation<'a>>,
    /// Number of packets that were left out because they are not TCP over IP.
    pub other_count: usize,
    /// Number of IP fragments, which are left out.
    pub fragment_count: usize,
    /// The damage of the file.
    pub error: Option<CaptureError>,
}

impl<'a> Capture<'a> {
    /// Reads a capture and follows its conversations.
    pub fn parse(file: &'a [u8]) -> Self {
        let mut capture = Self::default();
        let mut by_ends = HashMap::new();
        for packet in Packets::new(file) {
            match packet {
                Ok(packet) => capture.add(&packet, &mut by_ends),
                Err(error) => {
                    capture.error = Some(error);
                    break;
                }
            }
        }
        capture
    }

    fn add(&mut self, packet: &Packet<'a>, by_ends: &mut HashMap<[SocketAddr; 2], usize>) {
        let segment = match Segment::of_packet(packet) {
            Ok(segment) => segment,
            Err(NoSegment::Fragment) => return self.fragment_count += 1,
            Err(NoSegment::Other) => return self.other_count += 1,
        };
        let mut ends = [segment.from, segment.to];
        ends.sort_unstable();
        let known = by_ends.get(&ends).copied();
        let known = known.filter(|&index| {
            let conversation = self.conversations.get(index);
            // A later connection may reuse the ports.
            conversation.is_some_and(|conversation| !conversation.is_followed_by(&segment))
        });
        let index = known.unwrap_or_else(|| {
            // A segment with SYN and ACK is sent by the server.
            let is_client = !(segment.is_syn && segment.is_ack);
            let (client, server) = if is_client {
                (segment.from, segment.to)
            } else {
                (segment.to, segment.from)
            };
            self.conversations.push(Conversation {
                client,
                server,
                start: packet.time,
                sent: Direction::default(),
                received: Direction::default(),
            });
            let index = self.conversations.len() - 1;
            by_ends.insert(ends, index);
            index
        });
        if let Some(conversation) = self.conversations.get_mut(index) {
            let direction = if segment.from == conversation.client {
                &mut conversation.sent
            } else {
                &mut conversation.received
            };
            direction.add(&segment, packet.time);
        }
    }
}

/// A TCP connection in a capture.
#[derive(Debug)]
#[non_exhaustive]
pub struct Conversation<'a> {
    /// The end that connected; the sender of the first captured packet if the opening of
    /// the connection was not captured.
    pub client: SocketAddr,
    /// The other end.
    pub server: SocketAddr,
    /// The time of the first packet.
    pub start: Time,
    /// The bytes from the client to the server.
    pub sent: Direction<'a>,
    /// The bytes from the server to the client.
    pub received: Direction<'a>,
}

impl Conversation<'_> {
    /// Whether a segment opens a new conversation between the same ends.
    fn is_followed_by(&self, segment: &Segment<'_>) -> bool {
        let direction = if segment.from == self.client {
            &self.sent
        } else {
            &self.received
        };
        let first = segment.sequence.wrapping_add(1);
        segment.is_syn
            && !segment.is_ack
            && direction.next.is_some()
            && direction.first != Some(first)
    }
}

/// One direction of a conversation.
#[derive(Debug, Default)]
pub struct Direction<'a> {
    /// The sequence number of the first byte.
    first: Option<u32>,
    /// The sequence number of the byte after those in `pieces`.
    next: Option<u32>,
    /// Whether the stream starts at the opening of the connection.
    pub is_whole: bool,
    /// The length of `pieces`.
    len: u64,
    /// The stream, without gaps.
    pieces: Vec<Piece<'a>>,
    /// Segments after a gap, by their offsets in the stream.
    early: BTreeMap<u64, Piece<'a>>,
}

/// A part of a stream.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    time: Time,
    data: &'a [u8],
}

impl<'a> Direction<'a> {
    fn add(&mut self, segment: &Segment<'a>, time: Time) {
        // A SYN takes the sequence number before that of the first byte.
        let sequence = segment.sequence.wrapping_add(u32::from(segment.is_syn));
        if segment.is_syn && self.first.is_none() {
            self.is_whole = true;
        }
        if segment.data.is_empty() && !segment.is_syn {
            return;
        }
        self.first.get_or_insert(sequence);
        let next = *self.next.get_or_insert(sequence);
        // Sequence numbers wrap around: the smaller distance is the right one.
        let distance = i64::from(sequence.wrapping_sub(next).cast_signed());
        let mut piece = Piece {
            time,
            data: segment.data,
        };
        let start = match u64::try_from(distance) {
            Ok(gap) => self.len.saturating_add(gap),
            Err(_) => {
                let known = usize::try_from(distance.unsigned_abs()).unwrap_or(usize::MAX);
                piece.data = piece.data.get(known..).unwrap_or_default();
                self.len
            }
        };
        if piece.data.is_empty() {
            return;
        }
        let place = self.early.entry(start).or_insert(piece);
        if place.data.len() < piece.data.len() {
            *place = piece;
        }
        while let Some(entry) = self.early.first_entry()
            && *entry.key() <= self.len
        {
            let (start, mut piece) = entry.remove_entry();
            // The bytes are only available once the gap before them is filled.
            piece.time = piece.time.max(time);
            let known = usize::try_from(self.len - start).unwrap_or(usize::MAX);
            piece.data = piece.data.get(known..).unwrap_or_default();
            if !piece.data.is_empty() {
                self.len += piece.data.len() as u64;
                #[expect(clippy::cast_possible_truncation, reason = "numbers wrap around")]
                let len = piece.data.len() as u32;
                self.next = self.next.map(|next| next.wrapping_add(len));
                self.pieces.push(piece);
            }
        }
    }

    /// The bytes up to the first gap.
    pub fn bytes(&self) -> Vec<u8> {
        let pieces = self.pieces.iter().map(|piece| piece.data);
        pieces.collect::<Vec<_>>().concat()
    }

    /// The offsets at which segments begin.
    pub fn starts(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().scan(0, |end, piece| {
            let start = *end;
            *end += piece.data.len();
            Some(start)
        })
    }

    /// Returns a [`Clock`] for the bytes of this direction.
    pub fn clock(&self) -> Clock<'_, 'a> {
        Clock {
            pieces: self.pieces.iter(),
            end: 0,
            time: Time::default(),
        }
    }

    /// The number of bytes that are missing from the capture after [`bytes`](Self::bytes),
    /// and the number of bytes captured after that gap.
    pub fn gap(&self) -> Option<(u64, usize)> {
        let (start, _) = self.early.first_key_value()?;
        let after = self.early.values().map(|piece| piece.data.len()).sum();
        Some((start - self.len, after))
    }
}

/// Reports when the bytes of a direction arrived, in the order of the stream.
#[derive(Debug)]
pub struct Clock<'d, 'a> {
    pieces: core::slice::Iter<'d, Piece<'a>>,
    end: u64,
    time: Time,
}

impl Clock<'_, '_> {
    /// The time at which all bytes before `end` had arrived. `end` must not decrease
    /// between calls.
    pub fn arrival(&mut self, end: u64) -> Time {
        while self.end < end
            && let Some(piece) = self.pieces.next()
        {
            self.end += piece.data.len() as u64;
            self.time = self.time.max(piece.time);
        }
        self.time
    }
}

/// The time of a packet, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The time in seconds since 1970.
    #[expect(clippy::cast_precision_loss, reason = "for display")]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The seconds since an earlier time.
    pub fn since(self, earlier: Self) -> f64 {
        Self(self.0.saturating_sub(earlier.0)).seconds()
    }
}

/// Formats as `2026-11-22 17:07:06.123456 UTC`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
        // Days of years that begin in March, so that a leap day is the last one.
        let days = seconds / 86_400 + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
        let year = 400 * era + year + u64::from(month <= 2);
        let (second, micros) = (seconds % 60, nanoseconds / 1000);
        write!(
            f,
            "{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{second:02}.{micros:06} UTC"
        )
    }
}

/// Damage of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureError {
    /// The offset of the faulty record in the file.
    pub offset: usize,
    /// The fault.
    pub kind: CaptureErrorKind,
}

/// The kind of a [`CaptureError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureErrorKind {
    /// The file has the magic number of neither format, or its header is incomplete.
    Header,
    /// The file ends within a record.
    Truncated,
    /// A record does not have the structure of its type.
    Record,
    /// A packet names an interface that was not described.
    Interface {
        /// The number of the interface.
        index: u32,
    },
    /// The packets have a link type that is not supported.
    LinkType {
        /// Its number, as in the registry of tcpdump.
        number: i32,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record at byte {}: ", self.offset)?;
        match self.kind {
            CaptureErrorKind::Header => f.write_str("not the header of a pcap or pcapng file"),
            CaptureErrorKind::Truncated => f.write_str("the file ends within it"),
            CaptureErrorKind::Record => f.write_str("it is malformed"),
            CaptureErrorKind::Interface { index } => {
                write!(f, "it names the interface {index}, which is not described")
            }
            CaptureErrorKind::LinkType { number } => {
                write!(f, "packets of the link type {number} cannot be read")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

/// A captured packet.
struct Packet<'a> {
    time: Time,
    link: Link,
    data: &'a [u8],
}

/// The header with which packets begin.
#[derive(Clone, Copy)]
enum Link {
    Ethernet,
    /// An IP header after this number of bytes.
    Ip(usize),
    /// A header of Linux with the type of the packet at `kind`.
    Linux {
        kind: usize,
        len: usize,
    },
}

impl Link {
    const fn of(kind: Linktype) -> Option<Self> {
        Some(match kind {
            Linktype::ETHERNET => Self::Ethernet,
            Linktype::NULL | Linktype::LOOP => Self::Ip(4),
            Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Self::Ip(0),
            // The number of raw packets in files of some systems.
            Linktype(12 | 14) => Self::Ip(0),
            Linktype::LINUX_SLL => Self::Linux { kind: 14, len: 16 },
            Linktype::LINUX_SLL2 => Self::Linux { kind: 0, len: 20 },
            _ => return None,
        })
    }

    fn slice(self, data: &[u8]) -> Option<LaxSlicedPacket<'_>> {
        match self {
            Self::Ethernet => LaxSlicedPacket::from_ethernet(data).ok(),
            Self::Ip(start) => LaxSlicedPacket::from_ip(data.get(start..)?).ok(),
            Self::Linux { kind, len } => {
                let kind = u16::from_be_bytes(*data.get(kind..)?.first_chunk()?);
                let packet = data.get(len..)?;
                Some(LaxSlicedPacket::from_ether_type(EtherType(kind), packet))
            }
        }
    }
}

/// Reads the packets of a file.
struct Packets<'a> {
    file: &'a [u8],
    rest: &'a [u8],
    format: Option<Format>,
}

enum Format {
    Pcap {
        link: Link,
        is_big_endian: bool,
        /// Length in nanoseconds of the unit in which fractions of seconds are given.
        unit: u64,
    },
    PcapNg {
        is_big_endian: bool,
        interfaces: Vec<Interface>,
    },
    /// After an error.
    Ended,
}

#[derive(Clone, Copy)]
struct Interface {
    /// The link type in the file. An unknown one is an error only if it has packets.
    kind: Linktype,
    /// The number of time units in a second; a power of 2 or 10.
    resolution: u128,
    /// Seconds added to each time.
    offset: i64,
}

impl<'a> Packets<'a> {
    const fn new(file: &'a [u8]) -> Self {
        Self {
            file,
            rest: file,
            format: None,
        }
    }

    fn offset(&self) -> usize {
        self.file.len() - self.rest.len()
    }

    fn header(&mut self) -> Result<Format, CaptureErrorKind> {
        if self.file.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
            return Ok(Format::PcapNg {
                is_big_endian: false,
                interfaces: Vec::new(),
            });
        }
        let (rest, header) = parse_pcap_header(self.rest).map_err(|_| CaptureErrorKind::Header)?;
        // The upper bits may give the length of the frame checksum.
        let kind = Linktype(header.network.0 & 0x0fff_ffff);
        let number = kind.0;
        let link = Link::of(kind).ok_or(CaptureErrorKind::LinkType { number })?;
        self.rest = rest;
        Ok(Format::Pcap {
            link,
            is_big_endian: header.is_bigendian(),
            unit: if header.is_nanosecond_precision() {
                1
            } else {
                1000
            },
        })
    }

    fn next_packet(&mut self) -> Result<Option<Packet<'a>>, CaptureErrorKind> {
        if self.format.is_none() {
            self.format = Some(self.header()?);
        }
        while !self.rest.is_empty() {
            let is_section = self.rest.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]);
            match &mut self.format {
                Some(Format::Pcap {
                    link,
                    is_big_endian,
                    unit,
                }) => {
                    let parse = match is_big_endian {
                        true => parse_pcap_frame_be,
                        false => parse_pcap_frame,
                    };
                    let (rest, frame) = parse(self.rest).map_err(fault)?;
                    self.rest = rest;
                    let fraction = u64::from(frame.ts_usec).saturating_mul(*unit);
                    return Ok(Some(Packet {
                        time: Time(u64::from(frame.ts_sec) * 1_000_000_000 + fraction),
                        link: *link,
                        data: frame.data,
                    }));
                }
                Some(Format::PcapNg {
                    is_big_endian,
                    interfaces,
                }) => {
                    if is_section {
                        // A section header gives the byte order of its blocks.
                        let order = self.rest.get(8..12).unwrap_or_default();
                        *is_big_endian = order == [0x1a, 0x2b, 0x3c, 0x4d];
                        interfaces.clear();
                    }
                    let length = self
                        .rest
                        .get(4..8)
                        .and_then(|length| length.try_into().ok());
                    let length = length.map(|length| match is_big_endian {
                        true => u32::from_be_bytes(length),
                        false => u32::from_le_bytes(length),
                    });
                    // pcap-parser subtracts the length of an empty block without a check.
                    if length.is_some_and(|length| length < 12) {
                        return Err(CaptureErrorKind::Record);
                    }
                    let parse = match is_big_endian {
                        true => parse_block_be,
                        false => parse_block_le,
                    };
                    let (rest, block) = parse(self.rest).map_err(fault)?;
                    // A block of length 0 would be read forever.
                    if rest.len() >= self.rest.len() {
                        return Err(CaptureErrorKind::Record);
                    }
                    let packet = of_block(&block, interfaces)?;
                    self.rest = rest;
                    if packet.is_some() {
                        return Ok(packet);
                    }
                }
                Some(Format::Ended) | None => return Ok(None),
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<Packet<'a>, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        let packet = self.next_packet();
        let offset = self.offset();
        packet
            .inspect_err(|_| self.format = Some(Format::Ended))
            .map_err(|kind| CaptureError { offset, kind })
            .transpose()
    }
}

fn fault<E>(error: Nom<E>) -> CaptureErrorKind {
    match error {
        Nom::Incomplete(_) => CaptureErrorKind::Truncated,
        _ => CaptureErrorKind::Record,
    }
}

/// The packet in a block of a pcapng file; `None` for blocks without a packet.
fn of_block<'a>(
    block: &Block<'a>,
    interfaces: &mut Vec<Interface>,
) -> Result<Option<Packet<'a>>, CaptureErrorKind> {
    let (index, time, data, len) = match block {
        Block::InterfaceDescription(interface) => {
            let exponent = u32::from(interface.if_tsresol & 0x7f);
            let base: u128 = if interface.if_tsresol & 0x80 == 0 {
                10
            } else {
                2
            };
            let resolution = base.checked_pow(exponent);
            interfaces.push(Interface {
                kind: interface.linktype,
                resolution: resolution.ok_or(CaptureErrorKind::Record)?,
                offset: interface.if_tsoffset,
            });
            return Ok(None);
        }
        Block::EnhancedPacket(packet) => {
            let time = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
            (packet.if_id, time, packet.data, packet.caplen)
        }
        // A simple packet has no time. Its length may exceed what was captured.
        Block::SimplePacket(packet) => (0, 0, packet.data, packet.origlen),
        _ => return Ok(None),
    };
    let interface = usize::try_from(index)
        .ok()
        .and_then(|at| interfaces.get(at));
    let interface = interface.ok_or(CaptureErrorKind::Interface { index })?;
    let number = interface.kind.0;
    let link = Link::of(interface.kind).ok_or(CaptureErrorKind::LinkType { number })?;
    // The product is below 2^64 * 10^9, so nothing overflows.
    let time = u128::from(time) * 1_000_000_000 / interface.resolution;
    let offset = i128::from(interface.offset) * 1_000_000_000;
    let time = i128::try_from(time)
        .unwrap_or(i128::MAX)
        .saturating_add(offset);
    // Without padding.
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(data.len());
    Ok(Some(Packet {
        time: Time(u64::try_from(time.max(0)).unwrap_or(u64::MAX)),
        link,
        data: data.get(..len).unwrap_or_default(),
    }))
}

/// A TCP segment.
struct Segment<'a> {
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    is_syn: bool,
    is_ack: bool,
    data: &'a [u8],
}

enum NoSegment {
    Fragment,
    Other,
}

impl<'a> Segment<'a> {
    fn of_packet(packet: &Packet<'a>) -> Result<Self, NoSegment> {
        let sliced = packet.link.slice(packet.data).ok_or(NoSegment::Other)?;
        let (from, to): (IpAddr, IpAddr) = match &sliced.net {
            Some(LaxNetSlice::Ipv4(ip)) if !ip.is_payload_fragmented() => {
                let header = ip.header();
                (
                    header.source_addr().into(),
                    header.destination_addr().into(),
                )
            }
            Some(LaxNetSlice::Ipv6(ip)) if !ip.is_payload_fragmented() => {
                let header = ip.header();
                (
                    header.source_addr().into(),
                    header.destination_addr().into(),
                )
            }
            Some(LaxNetSlice::Ipv4(_) | LaxNetSlice::Ipv6(_)) => return Err(NoSegment::Fragment),
            _ => return Err(NoSegment::Other),
        };
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
            return Err(NoSegment::Other);
        };
        Ok(Self {
            from: SocketAddr::new(from, tcp.source_port()),
            to: SocketAddr::new(to, tcp.destination_port()),
            sequence: tcp.sequence_number(),
            is_syn: tcp.syn(),
            is_ack: tcp.ack(),
            data: tcp.payload(),
        })
    }
}
