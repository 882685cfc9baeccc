//! What the device below a store moves, as the kernel counts it.
//!
//! Callers: the server of a buffer, when it opens; `sample`.

use forebay_proto::control::StoreKind;
use forebay_proto::metrics::DeviceMetrics;
use forebay_store::flash::Store;
use std::os::unix::fs::MetadataExt;

/// What was moved since then: the kernel counts for a device's number, also what earlier images moved that had it.
pub(super) fn since(begun: &DeviceMetrics, now: &DeviceMetrics) -> DeviceMetrics {
    DeviceMetrics {
        read_bytes: now.read_bytes.saturating_sub(begun.read_bytes),
        written_bytes: now.written_bytes.saturating_sub(begun.written_bytes),
    }
}

/// What the loop device of a store has moved since the machine's start.
pub(crate) fn of_device(store: &Store) -> Option<DeviceMetrics> {
    if store.kind() != StoreKind::LoopXfs {
        return None;
    }
    let device = std::fs::metadata(store.data_dir()).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    of_stat(&text)
}

/// Documentation/block/stat.rst of Linux: the third field is sectors read, the seventh sectors written; of 512 bytes always.
fn of_stat(text: &str) -> Option<DeviceMetrics> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let bytes = |field: usize| fields.get(field).map(|sectors| sectors.saturating_mul(512));
    Some(DeviceMetrics { read_bytes: bytes(2)?, written_bytes: bytes(6)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_device_are_its_sectors() {
        let text = "     10       0       80      1        5        0      24       3        0        4        4\n";
        let told = of_stat(text).unwrap();
        assert_eq!((told.read_bytes, told.written_bytes), (80 * 512, 24 * 512));
        assert_eq!(of_stat("1 2 3"), None);
    }

    #[test]
    fn a_device_that_had_another_image_counts_from_zero() {
        let [begun, now] = [(13 << 30, 52 << 30), ((13 << 30) + 4096, (52 << 30) + 512)]
            .map(|(read_bytes, written_bytes)| DeviceMetrics { read_bytes, written_bytes });
        assert_eq!(since(&begun, &now), DeviceMetrics { read_bytes: 4096, written_bytes: 512 });
    }
}
