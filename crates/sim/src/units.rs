//! Rates as people write them: `666.1MB/s`, `1.30GiB/s`, `10Gbit/s`; and how they and times are read from files.

use forebay_workload::document::{Fault, Table};

/// The unit a rate is given in: bytes per second.
const UNITS: [(&str, f64); 13] = [
    ("Kbit/s", 125.0),
    ("Mbit/s", 125e3),
    ("Gbit/s", 125e6),
    ("Tbit/s", 125e9),
    ("KB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("KiB/s", 1024.0),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
    ("TiB/s", 1_099_511_627_776.0),
    ("B/s", 1.0),
];

/// What [`parse_rate`] expects, for messages.
pub const RATE: &str = "a rate above 0, such as \"666.1MB/s\", \"1.3GiB/s\" or \"10Gbit/s\" (KB, MB, GB, TB, KiB, MiB, GiB, TiB, B, Kbit, Mbit, Gbit, Tbit; each by /s)";

/// A rate in bytes per second; None if it is none, or not above 0.
pub fn parse_rate(text: &str) -> Option<f64> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, unit) = text.split_at(split);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
    let rate = number.parse::<f64>().ok()? * factor;
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

/// A rate by its key.
pub(crate) fn rate(table: &Table, key: &'static str) -> Result<Option<f64>, Fault> {
    let Some(text) = table.text(key, RATE)? else { return Ok(None) };
    match parse_rate(&text) {
        Some(rate) => Ok(Some(rate)),
        None => Err(table.fault(key, format!("it is {text:?}"), RATE)),
    }
}

/// A time by its key, in seconds.
pub(crate) fn time_s(table: &Table, key: &'static str) -> Result<Option<f64>, Fault> {
    Ok(table.time_ns(key)?.map(|ns| ns as f64 / 1e9))
}

/// A rate for people: `1.29 GiB/s`.
pub fn format_rate(bytes_per_s: f64) -> String {
    format!("{}/s", format_size(bytes_per_s))
}

/// Bytes for people, four digits: `317.6 GiB`.
pub fn format_size(bytes: f64) -> String {
    const NAMES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", digits(value), NAMES[unit])
}

/// Seconds for people: `4.93 ms`, `188 s`, `4.40 h`.
pub fn format_time(seconds: f64) -> String {
    match seconds.abs() {
        0.0 => "0 s".into(),
        s if s < 1e-3 => format!("{} us", digits(seconds * 1e6)),
        s if s < 1.0 => format!("{} ms", digits(seconds * 1e3)),
        s if s < 7200.0 => format!("{} s", digits(seconds)),
        s if s < 172_800.0 => format!("{} h", digits(seconds / 3600.0)),
        _ => format!("{} d", digits(seconds / 86_400.0)),
    }
}

/// A number with four significant digits, or all of an integer that has more.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".into(),
        _ if size >= 999.5 => format!("{value:.0}"),
        _ if size >= 99.95 => format!("{value:.1}"),
        _ if size >= 9.995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_people_write_them() {
        assert_eq!(parse_rate("666.1MB/s"), Some(666.1e6));
        assert_eq!(parse_rate("10Gbit/s"), Some(1.25e9));
        assert_eq!(parse_rate("2 GiB/s"), Some(2.0 * 1_073_741_824.0));
        for wrong in
            ["", "0MB/s", "-1MB/s", "MB/s", "1", "1MB", "1e3MB/s", "1..2MB/s", "1mb/s", "infMB/s"]
        {
            assert_eq!(parse_rate(wrong), None, "{wrong}");
        }
        assert_eq!(format_rate(341_000_000_000.0), "317.6 GiB/s");
        assert_eq!(format_time(187.2), "187.2 s");
    }
}
