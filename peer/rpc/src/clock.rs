//! The system's clock.

use core::time::Duration;
use std::time::SystemTime;

/// The time since 1970; zero if the clock is set to an earlier time.
pub fn unix_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}
