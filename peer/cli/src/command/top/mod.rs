//! `daskwire top`: a live view of a cluster on a terminal.

#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal as _, Write as _, stdout};
use std::time::Duration;

use clap::Args;
use console::measure_text_width;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::PrintStyledContent;
use crossterm::terminal::{self, ClearType};
use crossterm::{cursor, execute, queue};
use daskwire_comm::Address;
use daskwire_peer::client::ClientOptions;
use tokio::sync::mpsc;

use crate::command::cluster_command::{SchedulerArguments, leave, message};
use crate::command::connect::{address, connect};
use crate::command::failure::{Failure, Result};
use crate::command::snapshot::Snapshot;
use crate::command::worker_command::quantity;
use view::{Key, View};

#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    scheduler: SchedulerArguments,
    /// Time between two requests to the scheduler, at least 0.1s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

fn interval(input: &str) -> Result<Duration, String> {
    let interval = quantity::duration(input)?;
    let is_valid = (0.1..=3600.0).contains(&interval.as_secs_f64());
    is_valid
        .then_some(interval)
        .ok_or_else(|| "expected 0.1 to 3600 seconds".to_owned())
}

/// An update of the view.
enum Update {
    Snapshot(Box<Snapshot>),
    /// The connection failed, for this reason.
    Failed(String),
    Key(Key),
    /// The terminal was resized, or must be redrawn for another reason.
    Redraw,
    Quit,
}

/// Maximum number of updates that wait for the terminal.
const QUEUE: usize = 64;

/// Timeout of a request, after which the scheduler is considered unreachable.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn top(arguments: &Top) -> Result {
    if !stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is not a terminal; use `daskwire ps` to print the state once",
        ));
    }
    let scheduler = address(&arguments.scheduler.scheduler)?;
    let mut options = arguments
        .scheduler
        .options(&scheduler, ClientOptions::default())?;
    // Failures are displayed, and `watch` connects again.
    options.comm.connect_retry = false;
    // A wrong address is an error. Only a lost connection is made again.
    let client = arguments.scheduler.connect().await?;
    leave(client).await;
    let stop = crate::command::runtime::stop_requested()?;
    let screen = Screen::enter().map_err(|error| format!("cannot use the terminal: {error}"))?;
    let (sender, mut updates) = mpsc::channel(QUEUE);
    let keys = sender.clone();
    std::thread::spawn(move || read_keys(&keys));
    let watching = watch(&scheduler, &options, arguments.interval, &sender);
    let drawing = async {
        let mut view = View::default();
        loop {
            screen.draw(&view)?;
            match updates.recv().await {
                None | Some(Update::Quit) => return Ok(()),
                Some(Update::Snapshot(snapshot)) => {
                    view.failure = None;
                    view.snapshot = Some(*snapshot);
                }
                Some(Update::Failed(failure)) => view.failure = Some(failure),
                Some(Update::Key(key)) => view.press(key),
                Some(Update::Redraw) => {}
            }
        }
    };
    let outcome: io::Result<()> = tokio::select! {
        outcome = drawing => outcome,
        () = stop => Ok(()),
        () = watching => Ok(()),
    };
    Ok(outcome.map_err(|error| format!("the terminal: {error}"))?)
}

/// The terminal while the view is on it, which is restored when this is dropped.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        // Otherwise the message of a panic would disappear with the alternate screen.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }

    fn draw(&self, view: &View) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let lines = view.draw(width.into(), height.into());
        let mut frame = Vec::new();
        queue!(frame, terminal::BeginSynchronizedUpdate)?;
        for (y, line) in (0..height).zip(lines) {
            queue!(frame, cursor::MoveTo(0, y))?;
            let mut left = usize::from(width);
            for span in line {
                left = left.saturating_sub(measure_text_width(span.content()));
                queue!(frame, PrintStyledContent(span))?;
            }
            // After a character in the last column, this would clear that character.
            if left > 0 {
                queue!(frame, terminal::Clear(ClearType::UntilNewLine))?;
            }
        }
        queue!(frame, terminal::EndSynchronizedUpdate)?;
        let mut stdout = stdout().lock();
        stdout.write_all(&frame)?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, but only once, because leaving the alternate screen again would
/// move the cursor.
fn restore() {
    if terminal::is_raw_mode_enabled().is_ok_and(|is_raw| is_raw) {
        // There is nothing else to try when this fails.
        let _ = terminal::disable_raw_mode();
        let _ = execute!(stdout(), terminal::LeaveAlternateScreen, cursor::Show);
    }
}

/// Requests the state repeatedly, and connects anew when that fails.
async fn watch(
    scheduler: &Address,
    options: &ClientOptions,
    interval: Duration,
    updates: &mpsc::Sender<Update>,
) {
    loop {
        let failure = match connect(scheduler, options.clone()).await {
            Ok(client) => loop {
                let taking = tokio::time::timeout(REQUEST_TIMEOUT, Snapshot::take(&client));
                let update = match taking.await {
                    Ok(Ok(snapshot)) => Update::Snapshot(Box::new(snapshot)),
                    Ok(Err(error)) => break message(error),
                    Err(_) => break format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
                };
                if updates.send(update).await.is_err() {
                    return;
                }
                tokio::time::sleep(interval).await;
            },
            Err(failure) => failure.to_string(),
        };
        if updates.send(Update::Failed(failure)).await.is_err() {
            return;
        }
        tokio::time::sleep(interval).await;
    }
}

/// Reads keys until the program ends.
fn read_keys(updates: &mpsc::Sender<Update>) {
    loop {
        let update = match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                match key.code {
                    KeyCode::Char('c' | 'd') if is_control => Update::Quit,
                    KeyCode::Char('q') | KeyCode::Esc => Update::Quit,
                    KeyCode::Char('r') => Update::Key(Key::Reverse),
                    KeyCode::Left => Update::Key(Key::Left),
                    KeyCode::Right => Update::Key(Key::Right),
                    KeyCode::Up => Update::Key(Key::Up(1)),
                    KeyCode::Down => Update::Key(Key::Down(1)),
                    KeyCode::PageUp => Update::Key(Key::Up(10)),
                    KeyCode::PageDown => Update::Key(Key::Down(10)),
                    KeyCode::Home => Update::Key(Key::Up(usize::MAX)),
                    KeyCode::End => Update::Key(Key::Down(usize::MAX)),
                    _ => continue,
                }
            }
            Ok(Event::Resize(..)) => Update::Redraw,
            Ok(_) => continue,
            // The terminal is closed.
            Err(_) => Update::Quit,
        };
        let is_last = matches!(update, Update::Quit);
        if updates.blocking_send(update).is_err() || is_last {
            return;
        }
    }
}
