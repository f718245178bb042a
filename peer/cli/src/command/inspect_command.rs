//! `daskwire inspect`: messages of recorded streams and of captures.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::format::{bytes, count};
use crate::inspect::capture::{Capture, Conversation, Direction, Time, is_capture};
use crate::inspect::{InspectErrorKind, Inspector, Options, Recorded};
use clap::Args;
use daskwire::frame::{FrameErrorKind, Prefix};
use serde_json::Value as Json;

use crate::command::arguments::{LayoutChoice, PrefixChoice, name, read};
use crate::command::failure::{Failure, Result};
use crate::command::terminal;
use crate::printable;

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The recording, or a capture of traffic in the format pcap or pcapng, or - for
    /// standard input
    file: PathBuf,
    /// Print one JSON document per message
    #[arg(long)]
    json: bool,
    /// Decompress and merge payloads, and show the resulting frames
    #[arg(long)]
    payloads: bool,
    /// Show all bytes: frames as hex, or in base64 with --json, which `encode`
    /// reads
    #[arg(long)]
    data: bool,
    /// Only messages with this op, alone or in a batch; may be given several times
    #[arg(long)]
    op: Vec<String>,
    /// Of a capture, only messages from this end: HOST:PORT, HOST or :PORT
    #[arg(long, value_name = "END")]
    from: Option<End>,
    /// Of a capture, only messages to this end: HOST:PORT, HOST or :PORT
    #[arg(long, value_name = "END")]
    to: Option<End>,
    /// The prefix of the frames
    #[arg(long, value_enum, default_value = "auto")]
    prefix: PrefixChoice,
    /// The layout of messages
    #[arg(long, value_enum, default_value = "auto")]
    layout: LayoutChoice,
    /// Keep __Set__ and __Enum__ maps as maps, as releases before 2020.12.0 do
    #[arg(long)]
    plain_maps: bool,
}

/// A filter for one end of connections, by host and port.
#[derive(Clone, Copy, Debug)]
struct End {
    host: Option<IpAddr>,
    port: Option<u16>,
}

impl std::str::FromStr for End {
    type Err = String;

    fn from_str(end: &str) -> Result<Self, String> {
        let end = end.strip_prefix("tcp://").unwrap_or(end);
        if let Ok(end) = end.parse::<SocketAddr>() {
            return Ok(Self {
                host: Some(end.ip()),
                port: Some(end.port()),
            });
        }
        let port = end.strip_prefix(':').map(str::parse);
        let host = end.trim_start_matches('[').trim_end_matches(']').parse();
        match (port, host) {
            (Some(Ok(port)), _) => Ok(Self {
                host: None,
                port: Some(port),
            }),
            (None, Ok(host)) => Ok(Self {
                host: Some(host),
                port: None,
            }),
            _ => Err("expected HOST:PORT, HOST or :PORT, with an IP address as HOST".to_owned()),
        }
    }
}

impl End {
    fn includes(self, end: SocketAddr) -> bool {
        self.host.is_none_or(|host| host == end.ip())
            && self.port.is_none_or(|port| port == end.port())
    }
}

impl Inspect {
    fn options(&self) -> Options {
        let mut options = Options {
            prefix: self.prefix.get(),
            layout: self.layout.get(),
            payloads: self.payloads,
            data: self.data,
            ..Options::default()
        };
        options.reading.sets_and_enums = !self.plain_maps;
        options
    }

    const fn has_filter(&self) -> bool {
        !self.op.is_empty() || self.has_ends()
    }

    const fn has_ends(&self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// Whether a message, given as its document, passes `--op`. Adds its ops to `ops`.
    fn has_op(&self, document: &Json, ops: &mut BTreeSet<String>) -> bool {
        let messages = match document.get("message") {
            Some(Json::Array(batch)) => &batch[..],
            Some(body) => core::slice::from_ref(body),
            None => &[],
        };
        let mut is_wanted = false;
        for op in messages
            .iter()
            .filter_map(|message| message.get("op")?.as_str())
        {
            is_wanted |= self.op.iter().any(|wanted| wanted == op);
            if !ops.contains(op) {
                ops.insert(op.to_owned());
            }
        }
        is_wanted
    }

    /// The output for a message; `None` if it is filtered out.
    fn output<'a>(
        &self,
        inspector: &mut Inspector<'a>,
        message: &Recorded<'a>,
        ops: &mut BTreeSet<String>,
        first: impl Fn(&mut serde_json::Map<String, Json>),
    ) -> Result<Option<String>, crate::inspect::InspectError> {
        if !self.json && self.op.is_empty() {
            return inspector.text(message).map(Some);
        }
        let document = inspector.json(message)?;
        if !self.op.is_empty() && !self.has_op(&document, ops) {
            return Ok(None);
        }
        if !self.json {
            return inspector.text(message).map(Some);
        }
        let mut extended = serde_json::Map::new();
        first(&mut extended);
        if let Json::Object(document) = document {
            extended.extend(document);
        }
        Ok(Some(printable::json(&Json::Object(extended)) + "\n"))
    }
}

/// Prints messages until the reader closes the pipe.
struct Printer {
    out: terminal::Escaping<std::io::BufWriter<std::io::StdoutLock<'static>>>,
    is_first: bool,
    /// The ops of the messages that were compared with `--op`.
    ops: BTreeSet<String>,
}

impl Printer {
    /// Returns whether more can be printed.
    fn print(&mut self, output: &str) -> Result<bool> {
        self.is_first = false;
        match self
            .out
            .write_all(output.as_bytes())
            .and_then(|()| self.out.flush())
        {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(format!("standard output: {error}").into()),
        }
    }

    /// The separator between two messages as text: an empty line.
    const fn gap(&self) -> &'static str {
        if self.is_first { "" } else { "\n" }
    }
}

pub(crate) fn run(arguments: &Inspect) -> Result {
    let file = read(&arguments.file)?;
    let mut printer = Printer {
        out: terminal::stdout(),
        is_first: true,
        ops: BTreeSet::new(),
    };
    if is_capture(&file) {
        capture(arguments, &file, &mut printer)?;
    } else if arguments.has_ends() {
        return Err(Failure::usage(format_args!(
            "{}: --from and --to are for captures: a recorded stream has no addresses",
            name(&arguments.file)
        )));
    } else {
        stream(arguments, &file, &mut printer)?;
    }
    if printer.is_first && arguments.has_filter() {
        terminal::note(no_match(&printer.ops, arguments.has_ends()));
    }
    Ok(())
}

/// The message that no message passes the filters, with the ops of those that were
/// compared.
fn no_match(ops: &BTreeSet<String>, has_ends: bool) -> String {
    let mut names: Vec<&str> = ops.iter().map(String::as_str).collect();
    if names.len() > MAX_OPS {
        names.truncate(MAX_OPS);
        names.push("…");
    }
    match (&names[..], has_ends) {
        ([], _) => "no message matches".to_owned(),
        (_, true) => format!(
            "no message matches; the ops from and to these ends are: {}",
            names.join(", ")
        ),
        (_, false) => format!(
            "no message matches; the ops in this file are: {}",
            names.join(", ")
        ),
    }
}

/// Shows the messages of a recorded stream.
fn stream(arguments: &Inspect, stream: &[u8], printer: &mut Printer) -> Result {
    let name = name(&arguments.file);
    let mut inspector = Inspector::new(stream, arguments.options());
    // The guess is reported once, together with the first message or error.
    let guess = inspector.guessed().then(|| match inspector.prefix() {
        Prefix::None => "without a leading length (--prefix none)",
        Prefix::U64 => "with a leading length (--prefix u64)",
    });
    let mut is_first = true;
    loop {
        let next = inspector.next_message().and_then(|message| {
            let Some(message) = message else {
                return Ok(None);
            };
            let output = arguments.output(&mut inspector, &message, &mut printer.ops, |_| {});
            output.map(Some)
        });
        let output = match (next, guess) {
            (Ok(Some(output)), _) => output,
            (Ok(None), _) => return Ok(()),
            (Err(error), taken) if is_first => {
                let error = match (what(stream), taken) {
                    (Some(what), _) => format!("{name}: {what}: {error}"),
                    (None, Some(taken)) => {
                        format!("{name}: {error}; read {taken}, which is a guess")
                    }
                    (None, None) => format!("{name}: {error}"),
                };
                return Err(error.into());
            }
            (Err(error), _) => return Err(format!("{name}: {error}").into()),
        };
        if let (true, Some(taken)) = (is_first, guess) {
            terminal::note(format_args!(
                "{name} is ambiguous; read as a stream {taken}"
            ));
        }
        is_first = false;
        if let Some(output) = output {
            let gap = if arguments.json { "" } else { printer.gap() };
            if !printer.print(&format!("{gap}{output}"))? {
                return Ok(());
            }
        }
    }
}

/// Shows the conversations of a capture.
fn capture(arguments: &Inspect, file: &[u8], printer: &mut Printer) -> Result {
    let name = name(&arguments.file);
    let capture = Capture::parse(file);
    let mut faults = 0;
    for (index, conversation) in capture.conversations.iter().enumerate() {
        match show(arguments, index + 1, conversation, printer)? {
            Some(count) => faults += count,
            None => return Ok(()),
        }
    }
    if capture.fragment_count > 0 {
        terminal::note(format_args!(
            "{name}: {} left out",
            count(capture.fragment_count, "IP fragment")
        ));
    }
    if let Some(error) = capture.error {
        return Err(format!("{name}: {error}").into());
    }
    if capture.conversations.is_empty() {
        return Err(format!(
            "{name}: the capture has no TCP packets ({} of other kinds)",
            capture.other_count
        )
        .into());
    }
    match faults {
        0 => Ok(()),
        _ => Err(format!(
            "{name}: {} in the streams, see above",
            count(faults, "fault")
        )
        .into()),
    }
}

/// Shows a conversation. Returns the number of faults; `None` if the reader has closed
/// the pipe.
fn show(
    arguments: &Inspect,
    number: usize,
    conversation: &Conversation<'_>,
    printer: &mut Printer,
) -> Result<Option<usize>> {
    let (client, server) = (conversation.client, conversation.server);
    let directions = [
        (&conversation.sent, client, server),
        (&conversation.received, server, client),
    ];
    let is_wanted = |from, to| {
        arguments.from.is_none_or(|end| end.includes(from))
            && arguments.to.is_none_or(|end| end.includes(to))
    };
    let data = directions.map(|(direction, ..)| direction.bytes());
    let mut entries = Vec::new();
    let mut endings = Vec::new();
    let mut faults = 0;
    for ((direction, from, to), data) in directions.into_iter().zip(&data) {
        if !is_wanted(from, to) {
            continue;
        }
        let mut stream = Stream::read(direction, data, arguments);
        for (time, message) in core::mem::take(&mut stream.messages) {
            let first = |document: &mut serde_json::Map<String, Json>| {
                document.insert("conversation".into(), number.into());
                document.insert("time".into(), time.seconds().into());
                document.insert("from".into(), from.to_string().into());
                document.insert("to".into(), to.to_string().into());
            };
            match arguments.output(&mut stream.inspector, &message, &mut printer.ops, first) {
                Ok(None) => {}
                Ok(Some(output)) if arguments.json => entries.push((time, output)),
                Ok(Some(output)) => {
                    let after = time.since(conversation.start);
                    entries.push((
                        time,
                        format!("\n{from} → {to} after {after:.6} s\n{output}"),
                    ));
                }
                Err(error) => {
                    faults += 1;
                    endings.push(format!("{from} → {to}: {error}"));
                }
            }
        }
        faults += usize::from(stream.is_faulty);
        let ending = stream.ending.into_iter();
        endings.extend(ending.map(|ending| format!("{from} → {to}: {ending}")));
    }
    // A stable sort keeps the order of segments with equal times.
    entries.sort_by_key(|(time, _)| *time);
    if arguments.json || (arguments.has_filter() && entries.is_empty()) {
        for (_, document) in &entries {
            if !printer.print(document)? {
                return Ok(None);
            }
        }
        for ending in endings {
            terminal::note(ending);
        }
        return Ok(Some(faults));
    }
    let mut output = format!(
        "{}conversation {number}: {client} → {server}, {}, {} there, {} back, {}\n",
        printer.gap(),
        conversation.start,
        bytes(data[0].len() as u64),
        bytes(data[1].len() as u64),
        count(entries.len(), "message"),
    );
    for (_, message) in entries {
        output.push_str(&message);
        if !printer.print(&core::mem::take(&mut output))? {
            return Ok(None);
        }
    }
    for ending in endings {
        let _ = write!(output, "\n{ending}\n");
    }
    Ok(printer.print(&output)?.then_some(faults))
}

/// The messages of one direction of a conversation.
struct Stream<'a> {
    inspector: Inspector<'a>,
    messages: Vec<(Time, Recorded<'a>)>,
    /// The reason why the messages end, unless the stream ends after a message.
    ending: Option<String>,
    /// Whether `ending` is a fault of the sender, not of the capture.
    is_faulty: bool,
}

/// Maximum number of ops that a message for the user lists.
const MAX_OPS: usize = 30;

/// Maximum number of segments that are tried as the start of a message.
const MAX_TRIED: usize = 64;

impl<'a> Stream<'a> {
    fn read(direction: &Direction<'_>, data: &'a [u8], arguments: &Inspect) -> Self {
        let options = arguments.options();
        // A capture may begin within a message.
        let is_start = |start: &usize| {
            let Some(rest) = data.get(*start..) else {
                return false;
            };
            let mut inspector = Inspector::new(rest, options.clone());
            let message = inspector.next_message();
            message.is_ok_and(|message| {
                message.is_some_and(|message| inspector.json(&message).is_ok())
            })
        };
        let start = if direction.is_whole {
            0
        } else {
            direction
                .starts()
                .take(MAX_TRIED)
                .find(is_start)
                .unwrap_or(0)
        };
        let mut stream = Self {
            inspector: Inspector::new(data.get(start..).unwrap_or_default(), options),
            messages: Vec::new(),
            ending: None,
            is_faulty: false,
        };
        if data.is_empty() {
            return stream;
        }
        let mut clock = direction.clock();
        let outcome = loop {
            match stream.inspector.next_message() {
                Ok(Some(message)) => {
                    let end = start as u64 + message.offset + message.len;
                    stream.messages.push((clock.arrival(end), message));
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let gap = direction.gap().map(|(missing, after)| {
            format!(
                "{} not captured, which {} follow",
                bytes(missing),
                bytes(after as u64)
            )
        });
        let is_cut = outcome.as_ref().is_some_and(|error| {
            matches!(error.kind, InspectErrorKind::Frame(error)
                if matches!(error.kind, FrameErrorKind::Truncated { .. }))
        });
        stream.ending = match (outcome, gap) {
            (Some(error), _) if stream.messages.is_empty() && !is_cut => {
                let what = what(data).unwrap_or("no messages of Dask");
                Some(format!("{what}: {error}"))
            }
            (None, gap) => gap,
            (Some(_), Some(gap)) if is_cut => Some(gap),
            (Some(error), _) => {
                stream.is_faulty = !is_cut;
                Some(error.to_string())
            }
        };
        if start > 0 {
            let skipped = format!(
                "the first {} belong to an earlier message",
                bytes(start as u64)
            );
            stream.ending = Some(match stream.ending {
                Some(ending) => format!("{skipped}; {ending}"),
                None => skipped,
            });
        }
        stream
    }
}

/// Recognizes TLS and HTTP by the first bytes of a stream without messages.
fn what(data: &[u8]) -> Option<&'static str> {
    let methods: [&[u8]; 5] = [b"HTTP/", b"GET ", b"POST ", b"HEAD ", b"PUT "];
    match data {
        [0x15 | 0x16, 3, 1..=4, ..] => Some("encrypted by TLS"),
        _ if methods.iter().any(|method| data.starts_with(method)) => Some("HTTP"),
        _ => None,
    }
}
