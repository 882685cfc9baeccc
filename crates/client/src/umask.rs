//! The umask of this process, which a request to a server takes along.
//!
//! umask(2) cannot tell it without changing it for all threads; the kernel shows it in
//! `/proc/self/status`.

/// The umask; `None` where the kernel does not show it.
pub fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kernel_tells_the_umask() {
        assert!(super::umask().is_some_and(|umask| umask <= 0o777));
    }
}
