//! Tests of comms without I/O: both ends, in pieces of any size, and with peers
//! of every kind.

use crate::support::{Random, vector};
use daskwire::comm::{
    Agreement, Closed, Comm, CommError, CommOptions, DriveError, HANDSHAKE_LEN, HandshakeRole,
    outgoing_len,
};
use daskwire::frame::{EncodeError, FrameError, FrameErrorKind, Prefix, encode_prelude};
use daskwire::handshake::Handshake;
use daskwire::message::Layout;
use daskwire::{BufferTooSmall, Error, ErrorKind};

type End<'b> = Comm<'b, 4>;

/// Moves up to `max_len` bytes from one end to the other, in the way that `pushes`
/// says. Returns whether any were moved.
fn carry(from: &mut End<'_>, to: &mut End<'_>, max_len: usize, pushes: bool) -> bool {
    if from.unsent().is_empty() || to.has_message() {
        return false;
    }
    let count = if pushes {
        let len = from.unsent().len().min(max_len);
        let mut bytes = &from.unsent()[..len];
        to.push(&mut bytes).unwrap();
        len - bytes.len()
    } else {
        let space = to.space().unwrap();
        assert!(!space.is_empty());
        let count = space.len().min(max_len).min(from.unsent().len());
        space[..count].copy_from_slice(&from.unsent()[..count]);
        to.received(count).unwrap();
        count
    };
    from.sent(count);
    count != 0
}

// PROTOCOL HANDSHAKE-1, FRAME-13
#[test]
fn both_ends_exchange_messages_in_pieces_of_any_size() {
    let messages: [&[&[u8]]; 4] = [
        &[b"\x81\xa2op\xa4ping"],
        &[b"\x90", b"", b"header", b""],
        &[b"", b""],
        &[b"\xc0"],
    ];
    let classic = CommOptions::LISTENER
        .with_role(HandshakeRole::SendFirst(Layout::Classic))
        .with_prefix(Prefix::None);
    let roles = [
        (
            CommOptions::CONNECTOR,
            CommOptions::LISTENER,
            Layout::Modern,
        ),
        (CommOptions::LISTENER, CommOptions::LISTENER, Layout::Modern),
        (CommOptions::CONNECTOR, classic, Layout::Classic),
    ];
    let mut random = Random(7);
    for (ours, theirs, layout) in roles {
        for max_len in (1..40).chain([1000]) {
            let mut buffers = [[0xa5; 200]; 4];
            let [a, b, c, d] = &mut buffers;
            let mut client = End::new(ours, a, b).unwrap();
            let mut server = End::new(theirs, c, d).unwrap();
            assert_eq!(client.send(messages[0]), Err(CommError::NotOpen));
            assert!(client.take_message().is_none());
            let (mut sent, mut replied, mut received) = (0, 0, 0);
            while received < messages.len() {
                if client.is_open() && sent < messages.len() && client.send(messages[sent]).is_ok()
                {
                    sent += 1;
                }
                if let Some((frames, reply)) = server.take_message() {
                    assert_eq!(*frames, *messages[replied]);
                    // The frames are still there.
                    reply.send(&frames).unwrap();
                    replied += 1;
                }
                let pushes = random.below(2) == 0;
                let up = carry(&mut client, &mut server, max_len, pushes);
                let down = carry(&mut server, &mut client, max_len, pushes);
                if let Some((frames, _)) = client.take_message() {
                    assert_eq!(*frames, *messages[received]);
                    received += 1;
                } else {
                    assert!(up || down || server.has_message() || sent < messages.len());
                }
            }
            for end in [&mut client, &mut server] {
                let agreement = end.agreement().unwrap();
                assert_eq!(agreement.layout, layout);
                assert_eq!(agreement.prefix, theirs.prefix);
                assert_eq!(end.end(), Ok(()));
            }
        }
    }
}

#[test]
fn recorded_handshakes_are_understood() {
    for (name, layout, prefix) in [
        ("modern-nosplit-2026.8.0", Layout::Modern, Prefix::U64),
        ("classic-2.30.1", Layout::Classic, Prefix::None),
    ] {
        let theirs = vector(&format!("{name}/handshake")).bytes;
        let (mut incoming, mut outgoing) = ([0; HANDSHAKE_LEN], [0; HANDSHAKE_LEN]);
        let options = CommOptions::CONNECTOR.with_handshake(Handshake::new(Some("lz4")));
        let mut comm = End::new(options, &mut incoming, &mut outgoing).unwrap();
        assert_eq!(comm.unsent(), b"");
        assert_eq!(comm.push(&mut &theirs[..]), Ok(false));
        let Agreement {
            layout: found,
            prefix: with,
            ..
        } = comm.agreement().unwrap();
        assert_eq!((found, with), (layout, prefix));
        assert!(!comm.unsent().is_empty());
        // A listener refuses the other prefix, and stays refusing.
        let (mut incoming, mut outgoing) = ([0; HANDSHAKE_LEN], [0; HANDSHAKE_LEN]);
        let mut comm = End::new(CommOptions::LISTENER, &mut incoming, &mut outgoing).unwrap();
        let pushed = comm.push(&mut &theirs[..]);
        if prefix == Prefix::None {
            let error = CommError::Prefix { peer: prefix };
            assert_eq!(pushed, Err(error));
            assert!(!error.is_caller_fault());
            has_failed(&mut comm);
        } else {
            assert_eq!(pushed, Ok(false));
            assert!(comm.is_open());
        }
    }
}

#[test]
fn a_buffer_without_room_for_our_handshake_is_refused_at_once() {
    for options in [CommOptions::LISTENER, CommOptions::CONNECTOR] {
        let (mut incoming, mut outgoing) = ([0; HANDSHAKE_LEN], [0; 60]);
        let refused = End::new(options, &mut incoming, &mut outgoing).map(|_| ());
        let Err(CommError::Encode(EncodeError::BufferTooSmall(short))) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(short.available, 60);
        // That is enough.
        let mut outgoing = vec![0; short.needed];
        let comm = End::new(options, &mut incoming, &mut outgoing).unwrap();
        assert!(comm.unsent().len() <= short.needed);
    }
}

#[test]
fn a_stream_may_end_only_between_messages() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    for len in 0..theirs.len() {
        for is_open in [false, true] {
            let (mut incoming, mut outgoing) = ([0; HANDSHAKE_LEN], [0; HANDSHAKE_LEN]);
            let mut comm = End::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
            if is_open {
                comm.push(&mut &theirs[..]).unwrap();
            }
            comm.push(&mut &theirs[..len]).unwrap();
            if is_open && len == 0 {
                assert_eq!(comm.end(), Ok(()));
                comm.send(&[b"it can still send"]).unwrap();
                continue;
            }
            let error = comm.end().unwrap_err();
            let is_before = error == CommError::Closed(Closed::BeforeHandshake);
            assert_eq!(is_before, !is_open && len < 8, "{error}");
            assert!(
                is_before
                    || matches!(error, CommError::Closed(Closed::WithinMessage(error))
                        if matches!(error.kind, FrameErrorKind::Truncated { .. }))
            );
            has_failed(&mut comm);
        }
    }
}

#[test]
fn buffer_errors_have_the_needed_length_and_can_be_retried() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    let (mut incoming, mut outgoing, mut larger) = ([0; 64], [0; 100], [0; 300]);
    let mut comm = End::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
    comm.push(&mut &theirs[..]).unwrap();
    // A frame that is larger than the buffer.
    let mut message = Vec::from(*b"\x3c\x01\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0");
    message.extend([7; 300]);
    let mut input = &message[..];
    let error = comm.push(&mut input).unwrap_err();
    assert!(error.is_caller_fault());
    assert_eq!(Error::from(error).needed(), Some(300));
    assert_eq!(Error::from(error).kind(), ErrorKind::Invalid);
    assert_eq!(input.len(), 300);
    assert_eq!(comm.space().map(|_| ()), Err(error));
    comm.set_incoming(&mut larger).unwrap();
    assert_eq!(comm.push(&mut input), Ok(true));
    // It has to be taken before the next one.
    assert_eq!(comm.space().map(|_| ()), Err(CommError::MessageWaiting));
    let mut next = &message[..];
    assert_eq!(comm.push(&mut next), Ok(true));
    assert_eq!(next.len(), message.len());
    assert_eq!(*comm.take_message().unwrap().0, [&message[24..]]);
    assert!(comm.take_message().is_none());
    // Within a message the buffer stays, once a part of a frame has arrived.
    comm.push(&mut &message[..24]).unwrap();
    comm.space().unwrap();
    let (mut another, mut other) = ([0; 400], [0; 400]);
    comm.set_incoming(&mut another).unwrap();
    comm.push(&mut &message[24..40]).unwrap();
    assert_eq!(
        comm.set_incoming(&mut other),
        Err(CommError::MessageWaiting)
    );

    // The outgoing buffer is full, and free again once bytes were sent.
    let (frame, sent) = ([1; 20], comm.unsent().len());
    let needed = outgoing_len(1, frame.len());
    comm.sent(sent - 30);
    let available = 100 - 30;
    comm.send(&[&frame]).unwrap();
    let short = BufferTooSmall {
        needed,
        available: available - needed,
    };
    let error = comm.send(&[&frame]).unwrap_err();
    assert_eq!(error, CommError::Encode(EncodeError::BufferTooSmall(short)));
    let bytes = comm.unsent().to_vec();
    let message = &bytes[bytes.len() - needed..];
    comm.sent(60);
    comm.send(&[&frame]).unwrap();
    assert_eq!(comm.unsent(), [&bytes[60..], message].concat());
    // Without frames it is no message.
    let error = comm.send(&[]).unwrap_err();
    assert_eq!(error, CommError::Encode(EncodeError::NoFrames));
}

#[test]
fn messages_are_queued_in_parts() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    let frames: [&[u8]; 3] = [b"body", b"", &[7; 500]];
    let lengths = frames.iter().map(|frame| frame.len() as u64);
    let mut whole = vec![0; 16 + 8 * 3];
    encode_prelude(Prefix::U64, lengths.clone(), &mut whole).unwrap();
    whole.extend(frames.concat());
    let (mut incoming, mut outgoing) = ([0; 128], [0; 128]);
    let mut comm = End::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
    assert_eq!(comm.outgoing().append(b"before the handshake"), 0);
    comm.push(&mut &theirs[..]).unwrap();
    comm.sent(comm.unsent().len());
    let (outgoing, mut sent) = (comm.outgoing(), Vec::new());
    outgoing.begin(lengths).unwrap();
    let mut data = &frames.concat()[..];
    while !data.is_empty() {
        let count = outgoing.append(data);
        data = &data[count..];
        if !data.is_empty() {
            // Nothing else is sent within a message.
            assert!(outgoing.body_space().is_empty());
            assert!(outgoing.send(&[b"\xc0"]).is_err());
        }
        let unsent = outgoing.unsent();
        sent.extend_from_slice(&unsent[..unsent.len().div_ceil(2)]);
        outgoing.sent(unsent.len().div_ceil(2));
    }
    assert_eq!(outgoing.append(b"after the end"), 0);
    sent.extend_from_slice(outgoing.unsent());
    outgoing.sent(usize::MAX);
    assert_eq!(sent, whole);
    // A message of one frame, written in place.
    let space = outgoing.body_space();
    assert_eq!(space.len(), 128 - 24);
    space[..2].copy_from_slice(b"\xc0\xc1");
    assert!(outgoing.send_written(105).is_err());
    outgoing.send_written(2).unwrap();
    assert_eq!(outgoing.unsent().len(), 26);
    assert!(outgoing.unsent().ends_with(b"\x02\0\0\0\0\0\0\0\xc0\xc1"));
    // A comm that has failed appends nothing, also within a message.
    outgoing.begin([100].into_iter()).unwrap();
    comm.push(&mut &[0xff; 24][..]).unwrap_err();
    assert_eq!(comm.outgoing().append(b"more"), 0);
    has_failed(&mut comm);
}

/// A stream that moves one byte at a time, and is interrupted each second time.
struct Interrupted {
    arriving: Vec<u8>,
    sent: Vec<u8>,
    operations: usize,
}

impl Interrupted {
    fn operate(&mut self) -> Result<(), &'static str> {
        self.operations += 1;
        match self.operations % 2 {
            0 => Err("interrupted"),
            _ => Ok(()),
        }
    }

    fn read(&mut self, space: &mut [u8]) -> Result<usize, &'static str> {
        self.operate()?;
        if self.arriving.is_empty() {
            return Ok(0);
        }
        space[0] = self.arriving.remove(0);
        Ok(1)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        self.operate()?;
        self.sent.push(bytes[0]);
        Ok(1)
    }
}

#[test]
fn a_comm_is_driven_over_a_stream_that_is_interrupted() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    let mut message = b"\x12\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x91\xc0".to_vec();
    for (options, cut) in [(CommOptions::CONNECTOR, 0), (CommOptions::LISTENER, 1)] {
        message.truncate(message.len() - cut);
        let mut stream = Interrupted {
            arriving: [&theirs[..], &message].concat(),
            sent: Vec::new(),
            operations: 0,
        };
        let (mut incoming, mut outgoing) = ([0; 128], [0; 256]);
        let mut comm = End::new(options, &mut incoming, &mut outgoing).unwrap();
        let run = |comm: &mut End<'_>, stream: &mut Interrupted| loop {
            match comm.drive(stream, Interrupted::read, Interrupted::write) {
                Err(DriveError::Io(error)) => assert_eq!(error, "interrupted"),
                outcome => break outcome,
            }
        };
        assert_eq!(run(&mut comm, &mut stream), Ok(true));
        assert!(comm.is_open());
        if cut == 0 {
            assert!(!comm.has_message());
            comm.send(&[b"queued"]).unwrap();
            assert_eq!(run(&mut comm, &mut stream), Ok(true));
            assert!(stream.sent.ends_with(b"queued"));
            assert_eq!(*comm.take_message().unwrap().0, [b"\x91\xc0"]);
            assert_eq!(run(&mut comm, &mut stream), Ok(false));
        } else {
            let error = run(&mut comm, &mut stream).unwrap_err();
            let is_within = matches!(
                error,
                DriveError::Comm(CommError::Closed(Closed::WithinMessage(_)))
            );
            assert!(is_within, "{error}");
        }
    }
    let (mut incoming, mut outgoing) = ([0; 128], [0; 256]);
    let mut comm = End::new(CommOptions::LISTENER, &mut incoming, &mut outgoing).unwrap();
    let nothing = comm.drive(&mut (), |_, _| Ok::<_, ()>(0), |_, _| Ok(0));
    assert_eq!(nothing, Err(DriveError::WriteZero));
}

#[test]
fn our_handshake_needs_room() {
    let (mut incoming, mut outgoing) = ([0; 128], [0; 20]);
    let error = End::new(CommOptions::LISTENER, &mut incoming, &mut outgoing).unwrap_err();
    let needed = Error::from(error).needed().unwrap();
    assert!(needed <= HANDSHAKE_LEN as u64);
    let mut outgoing = vec![0; needed as usize];
    let comm = End::new(CommOptions::LISTENER, &mut incoming, &mut outgoing).unwrap();
    assert_eq!(comm.unsent().len() as u64, needed);
}

#[test]
fn invalid_messages_are_final() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    let (mut incoming, mut outgoing) = ([0; 128], [0; 128]);
    let mut comm = End::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
    comm.push(&mut &theirs[..]).unwrap();
    let error = comm.push(&mut &[0xff; 24][..]).unwrap_err();
    assert!(!error.is_caller_fault() && !Error::from(error).is_caller_fault());
    assert_eq!(Error::from(error).kind(), ErrorKind::Protocol);
    has_failed(&mut comm);
    // A message instead of a handshake.
    let request = vector("modern-nosplit-2026.8.0/docs-status-ok").bytes;
    let (mut incoming, mut outgoing) = ([0; 128], [0; 128]);
    let mut comm = End::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
    let error = comm.push(&mut &request[..]).unwrap_err();
    assert!(matches!(error, CommError::Handshake(_)), "{error}");
    assert!(!error.to_string().is_empty());
    has_failed(&mut comm);
}

/// Checks that a final error stays, in both directions.
fn has_failed(comm: &mut End<'_>) {
    let earlier = CommError::Closed(Closed::AfterError);
    assert_eq!(comm.push(&mut &b"more"[..]), Err(earlier));
    assert_eq!(comm.space().map(|_| ()), Err(earlier));
    assert_eq!(comm.received(1), Err(earlier));
    assert_eq!(comm.end(), Err(earlier));
    assert_eq!(comm.send(&[b"\xc0"]), Err(earlier));
    assert!(!comm.is_open() && !comm.has_message());
    assert_eq!(comm.unsent(), b"");
}

#[test]
fn a_comm_that_has_failed_sends_nothing_more() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    for options in [CommOptions::LISTENER, CommOptions::CONNECTOR] {
        let (mut incoming, mut outgoing) = ([0; 128], [0; 256]);
        let mut comm = End::new(options, &mut incoming, &mut outgoing).unwrap();
        comm.push(&mut &theirs[..]).unwrap();
        comm.send(&[b"queued before the error"]).unwrap();
        assert!(!comm.unsent().is_empty());
        comm.push(&mut &[0xff; 24][..]).unwrap_err();
        has_failed(&mut comm);
    }
}

#[test]
fn more_frames_than_the_comm_has_room_for_are_the_fault_of_the_peer() {
    let theirs = vector("modern-nosplit-2026.8.0/handshake").bytes;
    let (mut incoming, mut outgoing) = ([0; 128], [0; 128]);
    let mut comm = End::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
    comm.push(&mut &theirs[..]).unwrap();
    let words = [48_u64, 5, 0, 0, 0, 0, 0].map(u64::to_le_bytes);
    let error = comm.push(&mut words.as_flattened()).unwrap_err();
    let kind = FrameErrorKind::TooManyFrames { count: 5, limit: 4 };
    let at = 8;
    assert_eq!(error, CommError::Frame(FrameError { at, kind }));
    assert!(!error.is_caller_fault());
    has_failed(&mut comm);

    // The handshake of the classic layout has two.
    let theirs = vector("classic-2.30.1/handshake").bytes;
    let (mut incoming, mut outgoing) = ([0; 128], [0; 128]);
    let mut comm: Comm<'_, 1> =
        Comm::new(CommOptions::CONNECTOR, &mut incoming, &mut outgoing).unwrap();
    let error = comm.push(&mut &theirs[..]).unwrap_err();
    let kind = FrameErrorKind::TooManyFrames { count: 2, limit: 1 };
    let at = 0;
    assert_eq!(error, CommError::Frame(FrameError { at, kind }));
    assert!(!error.is_caller_fault());
}
