//! Sizes in bytes as people write them: `4GiB`, `500MB`, `1048576`.

/// Why a size was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SizeError {
    /// Not `<integer><unit>`.
    #[error("{0:?} is not a size: expected an integer and a unit, such as 4GiB, 500MB or 1048576")]
    Malformed(String),
    /// The unit is unknown.
    #[error("{1:?} in {0:?} is not a unit: expected KiB, MiB, GiB, TiB, KB, MB, GB, TB or B")]
    Unit(String, String),
    /// More than 2^63-1 bytes.
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// Parses `4GiB` (binary), `4GB` (decimal), or plain bytes. No blank, no fraction, no sign.
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    if digits.is_empty() {
        return Err(SizeError::Malformed(text.into()));
    }
    let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge(text.into()))?;
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(SizeError::Unit(text.into(), unit.into())),
    };
    match number.checked_mul(factor) {
        Some(bytes) if bytes <= i64::MAX as u64 => Ok(bytes),
        _ => Err(SizeError::TooLarge(text.into())),
    }
}

/// Formats with a binary unit and three digits, or the four of a number from 1,000 to 1,023: `1.50 GiB`, `1020 KiB`. The
/// page of `--http` does the same.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // What would be written as 1024 is 1 of the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = match (unit, value) {
        (0, _) => 0,
        (_, v) if v < 9.995 => 2,
        (_, v) if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// `1 file`, `2 files`.
pub fn files_text(files: u64) -> String {
    format!("{files} {}", if files == 1 { "file" } else { "files" })
}

/// Regular files with their bytes, and what else there is beside them, in words: `2 files, 4 B, and 3 other entries`.
pub fn entries_text(files: u64, bytes: u64, others: u64) -> String {
    let text = format!("{}, {}", files_text(files), format_bytes(bytes));
    match others {
        0 => text,
        1 => text + ", and 1 other entry",
        others => format!("{text}, and {others} other entries"),
    }
}

/// The same without bytes, of what was not copied: `8 files and 2 other entries`, `2 other entries`.
pub fn failed_text(files: u64, others: u64) -> String {
    let entries = match others {
        0 => return files_text(files),
        1 => "1 other entry".to_string(),
        others => format!("{others} other entries"),
    };
    match files {
        0 => entries,
        files => format!("{} and {entries}", files_text(files)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_told_beside_the_files() {
        assert_eq!(entries_text(2, 4, 0), "2 files, 4 B");
        assert_eq!(entries_text(1, 3 << 29, 1), "1 file, 1.50 GiB, and 1 other entry");
        assert_eq!(entries_text(0, 0, 3), "0 files, 0 B, and 3 other entries");
        assert_eq!(failed_text(8, 2), "8 files and 2 other entries");
        assert_eq!(failed_text(1, 0), "1 file");
        assert_eq!(failed_text(1, 1), "1 file and 1 other entry");
        assert_eq!(failed_text(0, 1), "1 other entry");
        assert_eq!(failed_text(0, 0), "0 files");
    }

    #[test]
    fn sizes_parse_and_bad_ones_are_named() {
        assert_eq!(parse_bytes("4GiB"), Ok(4 << 30));
        assert_eq!(parse_bytes("500MB"), Ok(500_000_000));
        assert_eq!(parse_bytes("17"), Ok(17));
        assert!(matches!(parse_bytes("4 GiB"), Err(SizeError::Unit(..))));
        assert!(matches!(parse_bytes("GiB"), Err(SizeError::Malformed(_))));
        assert!(matches!(parse_bytes("-1"), Err(SizeError::Malformed(_))));
        assert!(matches!(parse_bytes("9999999999TiB"), Err(SizeError::TooLarge(_))));
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(3 << 29), "1.50 GiB");
        assert_eq!(format_bytes(1_020 << 10), "1020 KiB");
        assert_eq!(format_bytes((1 << 20) - 1), "1.00 MiB");
        assert_eq!(format_bytes((10 << 20) - 1), "10.0 MiB");
        assert_eq!(format_bytes((100 << 20) - 1), "100 MiB");
    }
}
