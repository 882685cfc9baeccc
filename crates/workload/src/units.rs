//! Sizes and times as people write them in workload and machine files, in both directions.
//! Callers: `document`, `language`.

/// `1MiB`, `47008`, and IOR's `1m`, `256k`, `2g`, `1t` (binary).
///
/// # Errors
/// What was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let binary = text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']);
    let given = match binary {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            let unit = text[digits.len()..].to_ascii_uppercase();
            format!("{digits}{unit}iB")
        }
        _ => text.to_string(),
    };
    forebay_proto::size::parse_bytes(&given).map_err(|error| error.to_string())
}

/// The shortest exact form: `1MiB`, or the number of bytes.
pub fn size_text(bytes: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1_u64 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes > 0 && bytes % unit == 0) {
        Some((unit, name)) => format!("\"{}{name}\"", bytes / unit),
        None => bytes.to_string(),
    }
}

const UNITS_NS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("min", 60e9),
    ("h", 3600e9),
    ("d", 86_400e9),
];

/// `20ms`, `1.5h`, `2 min`: in nanoseconds. None if it is no time, negative, or more than 292 years.
pub fn parse_time_ns(text: &str) -> Option<u64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let (_, factor) = UNITS_NS.iter().find(|(name, _)| *name == unit)?;
    let number = number.trim();
    // What Rust calls a number and people do not: "inf", "+1", "1.".
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !plain || number.is_empty() || number.starts_with('.') || number.ends_with('.') {
        return None;
    }
    let whole: Option<u64> = number.parse().ok();
    match whole {
        Some(whole) => whole.checked_mul(*factor as u64).filter(|&ns| ns <= i64::MAX as u64),
        None => to_ns(number.parse::<f64>().ok()? * factor),
    }
}

/// Seconds to nanoseconds, with the same limits.
pub fn seconds_to_ns(seconds: f64) -> Option<u64> {
    to_ns(seconds * 1e9)
}

fn to_ns(ns: f64) -> Option<u64> {
    (0.0..=i64::MAX as f64).contains(&ns).then_some(ns.round() as u64)
}

/// The shortest exact form: `"20ms"`.
pub fn time_text(ns: u64) -> String {
    let whole = UNITS_NS.iter().rev().find(|(_, unit)| ns % *unit as u64 == 0);
    match whole {
        Some((name, unit)) if ns > 0 => format!("\"{}{name}\"", ns / *unit as u64),
        _ => format!("\"{ns}ns\"").replace("\"0ns\"", "\"0s\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_write_them() {
        for (text, ns) in [
            ("20ms", 20_000_000),
            ("1.5h", 5_400_000_000_000),
            ("2 min", 120_000_000_000),
            ("0s", 0),
            ("7ns", 7),
        ] {
            assert_eq!(parse_time_ns(text), Some(ns), "{text}");
        }
        for wrong in ["", "s", "1", "-1s", "1e3s", "infs", "1y", "1.s", ".5s", "1 000s", "400000d"]
        {
            assert_eq!(parse_time_ns(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        for number in [0, 1, 999, 1000, 4096, 47_008, 1 << 20, 60_000_000_000, 90_000_000_000] {
            let size = size_text(number);
            assert_eq!(parse_size(size.trim_matches('"')), Ok(number), "{size}");
            let time = time_text(number);
            assert_eq!(parse_time_ns(time.trim_matches('"')), Some(number), "{time}");
        }
    }
}
