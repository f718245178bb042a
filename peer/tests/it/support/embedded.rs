//! An embedded scheduler.

use std::sync::{Arc, Mutex};

use daskwire_peer::scheduler::{Notice, Options, Scheduler};

/// A scheduler and its notices.
pub(crate) struct Embedded {
    pub(crate) scheduler: Scheduler,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl Embedded {
    pub(crate) async fn start() -> Self {
        Self::start_with(Options::default()).await
    }

    pub(crate) async fn start_with(options: Options) -> Self {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&notices);
        let on_notice = Arc::new(move |notice: &Notice| {
            seen.lock().expect("no panic").push(notice.clone());
        });
        let options = options.with_on_notice(on_notice);
        let address = "tcp://127.0.0.1:0".parse().expect("an address");
        let listener = daskwire_peer::transports()
            .bind(&address, Default::default())
            .await;
        let scheduler = Scheduler::start([listener.expect("it is free")], options);
        Self {
            scheduler: scheduler.expect("it listens"),
            notices,
        }
    }

    /// Closes the scheduler, and returns the notices of messages that cannot be parsed.
    pub(crate) async fn close(self) -> Vec<String> {
        self.scheduler.close().await;
        let notices = self.notices.lock().expect("no panic");
        let malformed = notices
            .iter()
            .filter(|notice| matches!(notice, Notice::Malformed { .. }));
        malformed.map(ToString::to_string).collect()
    }
}
