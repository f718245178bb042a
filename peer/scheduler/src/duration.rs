//! Durations in messages.

use daskwire_messages::Value;

/// A duration in seconds: a number, or a string such as `5s` or `200ms`. `None` for others.
pub(crate) fn seconds(duration: &Value) -> Option<f64> {
    match duration {
        Value::Float(seconds) => Some(*seconds),
        #[expect(clippy::cast_precision_loss, reason = "durations need not be exact")]
        Value::Int(seconds) => Some(*seconds as f64),
        Value::Str(duration) => {
            let at = duration.find(|c: char| c.is_ascii_alphabetic() || c == ' ');
            let (number, unit) = duration.split_at(at.unwrap_or(duration.len()));
            let unit = match unit.trim() {
                "" | "s" | "seconds" => 1.0,
                "ms" => 0.001,
                "m" | "min" | "minutes" => 60.0,
                "h" | "hours" => 3600.0,
                _ => return None,
            };
            number.parse::<f64>().ok().map(|number| number * unit)
        }
        _ => None,
    }
}
