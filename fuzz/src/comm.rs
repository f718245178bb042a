//! A comm without I/O: any bytes of the peer, in pieces of any size.

use daskwire::Limits;
use daskwire::comm::{Closed, Comm, CommError, CommOptions, HANDSHAKE_LEN, HandshakeRole};
use daskwire::frame::{EncodeError, FrameErrorKind, FramedMessage, Prefix};
use daskwire::handshake::Handshake;
use daskwire::message::Layout;

use super::LIMITS;

/// The maximum number of frames of a message, and the sizes of the second buffer
/// for received messages and of the buffer for replies, in bytes. Some inputs
/// exceed each.
const FRAMES: usize = 8;
const INCOMING_LEN: usize = 1 << 10;
const OUTGOING_LEN: usize = 512;

/// Checks that pieces of any size, pushed or written to the space, give the same
/// messages, replies and error as the whole stream; that the messages are those
/// that [`FramedMessage`] finds; that a message which is too long for a buffer
/// arrives in a larger one; and that an error of the peer is final.
///
/// The input: options, the length of a script, the script, and the bytes of the
/// peer.
pub(crate) fn comm(input: &[u8]) {
    let [choice, script_len, rest @ ..] = input else {
        return;
    };
    let Some((script, stream)) = rest.split_at_checked((*script_len).into()) else {
        return;
    };
    let options = CommOptions::LISTENER
        .with_role(match choice & 3 {
            0 => HandshakeRole::SendFirst(Layout::Modern),
            1 => HandshakeRole::SendFirst(Layout::Classic),
            _ => HandshakeRole::WaitForPeer,
        })
        .with_prefix(match choice & 4 {
            0 => Prefix::U64,
            _ => Prefix::None,
        })
        .with_handshake(Handshake::new(Some("lz4")))
        .with_limits(LIMITS);
    let whole = drive(options, &[], stream);
    let pieces = drive(options, script, stream);
    check(&options, &pieces, stream);
    check(&options, &whole, stream);
    // What was queued before an error is sent only if there was time for it.
    let (short, long) = match whole.sent.len() < pieces.sent.len() {
        true => (&whole.sent, &pieces.sent),
        false => (&pieces.sent, &whole.sent),
    };
    assert!(long.starts_with(short) && (whole.has_failed() || short.len() == long.len()));
    let sent = Vec::new();
    assert_eq!(
        Outcome { sent, ..pieces },
        Outcome {
            sent: Vec::new(),
            ..whole
        }
    );
}

/// The outcome of a stream in a comm.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Its prefix, its layout, and all of it as text.
    agreement: Option<(Prefix, Layout, String)>,
    messages: Vec<Vec<Vec<u8>>>,
    /// The messages that had a reply.
    replied: Vec<usize>,
    sent: Vec<u8>,
    end: Result<(), CommError>,
}

impl Outcome {
    /// Whether the end is an error of the peer, after which nothing is sent.
    fn has_failed(&self) -> bool {
        self.end.is_err_and(|error| !error.is_caller_fault())
    }
}

/// Passes a stream to a comm in the pieces of `script`, and sends each message
/// back. An empty script passes everything at once.
fn drive(options: CommOptions<'static>, script: &[u8], stream: &[u8]) -> Outcome {
    let (mut first, mut second) = ([0xa5; HANDSHAKE_LEN], [0x5a; INCOMING_LEN]);
    let mut larger = Some(&mut second);
    let mut outgoing = [0; OUTGOING_LEN];
    let comm = Comm::<FRAMES>::new(options, &mut first, &mut outgoing);
    let mut comm = comm.expect("our handshake fits");
    let mut script = script.iter().cycle();
    let mut outcome = Outcome {
        agreement: None,
        messages: Vec::new(),
        replied: Vec::new(),
        sent: Vec::new(),
        end: Ok(()),
    };
    let mut rest = stream;
    while !rest.is_empty() {
        let step = script.next().copied();
        let len = step.map_or(usize::MAX, |step| usize::from(step & 0x1f) + 1);
        let (mut piece, _) = rest.split_at(len.min(rest.len()));
        let before = piece.len();
        let fed = if step.is_some_and(|step| step & 0x20 != 0) {
            write(&mut comm, &mut piece)
        } else {
            comm.push(&mut piece).map(|_| ())
        };
        rest = &rest[before - piece.len()..];
        if step.is_some_and(|step| step & 0x40 != 0) {
            send(&mut comm, &mut outcome.sent);
        }
        match fed {
            Ok(()) => {}
            Err(CommError::Frame(error))
                if matches!(error.kind, FrameErrorKind::NoBuffer { .. }) && larger.is_some() =>
            {
                let larger = larger.take().expect("it is there");
                comm.set_incoming(larger).expect("nothing of it is stored");
            }
            Err(error) => {
                outcome.end = Err(error);
                break;
            }
        }
        reply(&mut comm, &mut outcome);
    }
    let end = match outcome.end {
        Ok(()) => comm.end(),
        Err(error) => {
            if error.is_caller_fault() {
                // A buffer that is too small.
                assert_eq!(comm.space().map(|_| ()), Err(error));
            } else {
                let earlier = Err(CommError::Closed(Closed::AfterError));
                assert_eq!(comm.space().map(|_| ()), earlier);
                assert_eq!(comm.end(), earlier);
                assert_eq!(comm.received(1), earlier);
                assert_eq!(comm.send(&[b"more"]), earlier);
                assert!(!comm.is_open() && comm.take_message().is_none());
                assert!(
                    comm.unsent().is_empty(),
                    "a comm that has failed sends more"
                );
            }
            Err(error)
        }
    };
    send(&mut comm, &mut outcome.sent);
    let agreement = comm.agreement();
    Outcome {
        agreement: agreement.map(|it| (it.prefix, it.layout, format!("{it:?}"))),
        end,
        ..outcome
    }
}

/// Copies the start of a piece to the space of a comm.
fn write(comm: &mut Comm<'_, FRAMES>, piece: &mut &[u8]) -> Result<(), CommError> {
    let space = comm.space()?;
    assert!(!space.is_empty(), "a comm that needs bytes has space");
    let (now, later) = piece.split_at(space.len().min(piece.len()));
    space[..now.len()].copy_from_slice(now);
    *piece = later;
    comm.received(now.len())
}

/// Takes the received message, if any, and sends it back if it fits.
fn reply(comm: &mut Comm<'_, FRAMES>, outcome: &mut Outcome) {
    assert!(!comm.has_message() || comm.is_open());
    // Before the reply, so that the room for it does not depend on the pieces.
    if comm.has_message() {
        let space = comm.space().map(|_| ());
        assert_eq!(space, Err(CommError::MessageWaiting));
        send(comm, &mut outcome.sent);
    }
    let Some((frames, outgoing)) = comm.take_message() else {
        return;
    };
    match outgoing.send(&frames) {
        Ok(()) => outcome.replied.push(outcome.messages.len()),
        Err(error) => {
            let is_short = matches!(error, CommError::Encode(EncodeError::BufferTooSmall(_)));
            assert!(is_short, "{error}");
            assert!(outgoing.unsent().is_empty(), "part of a message was queued");
        }
    }
    let frames = frames.iter().map(|frame| frame.to_vec()).collect();
    outcome.messages.push(frames);
    assert!(!comm.has_message(), "a message is taken once");
}

fn send(comm: &mut Comm<'_, FRAMES>, sent: &mut Vec<u8>) {
    // In two parts.
    for count in [comm.unsent().len() / 2, usize::MAX] {
        let count = count.min(comm.unsent().len());
        sent.extend_from_slice(&comm.unsent()[..count]);
        comm.sent(count);
    }
    assert!(comm.unsent().is_empty());
}

/// Compares the outcome with the messages of the stream, and parses the sent
/// bytes.
fn check(options: &CommOptions<'_>, outcome: &Outcome, stream: &[u8]) {
    let initiates = matches!(options.role, HandshakeRole::SendFirst(_));
    let Some((prefix, theirs_layout, _)) = outcome.agreement else {
        assert!(outcome.messages.is_empty());
        assert!(initiates || outcome.sent.is_empty());
        assert!(!initiates || outcome.has_failed() || !outcome.sent.is_empty());
        return;
    };
    assert!(!initiates || prefix == options.prefix);
    let limits = Limits::HANDSHAKE;
    let theirs = FramedMessage::parse(stream, prefix, &limits);
    let mut rest = theirs.expect("a handshake was read").rest;
    for message in &outcome.messages {
        let framed = FramedMessage::parse(rest, prefix, &LIMITS);
        let framed = framed.expect("a message was read");
        assert_eq!(frames(&framed), *message);
        rest = framed.rest;
    }
    if outcome.has_failed() && outcome.sent.is_empty() {
        return;
    }
    // The sent bytes are a handshake, and the messages with a reply.
    let ours = FramedMessage::parse(&outcome.sent, prefix, &limits);
    let ours = ours.expect("a handshake was sent");
    let handshake = frames(&ours);
    let (parsed, layout) = Handshake::from_frames(&handshake, &limits).expect("it is ours");
    assert_eq!(parsed, options.handshake);
    match options.role {
        HandshakeRole::SendFirst(ours) => assert_eq!(layout, ours),
        HandshakeRole::WaitForPeer => assert_eq!(layout, theirs_layout),
    }
    let mut rest = ours.rest;
    for index in &outcome.replied {
        if outcome.has_failed() && rest.is_empty() {
            return;
        }
        let framed = FramedMessage::parse(rest, prefix, &LIMITS);
        let framed = framed.expect("a message was sent");
        assert_eq!(frames(&framed), outcome.messages[*index]);
        rest = framed.rest;
    }
    assert!(rest.is_empty(), "something else was sent");
}

fn frames(framed: &FramedMessage<'_>) -> Vec<Vec<u8>> {
    let mut slots = vec![&[][..]; framed.prelude.frame_count()];
    let frames = framed.prelude.split(framed.frames, &mut slots);
    let frames = frames.expect("all are there");
    frames.iter().map(|frame| frame.to_vec()).collect()
}
