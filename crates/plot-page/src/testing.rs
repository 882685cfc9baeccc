//! Pages in a real browser, for tests of crates that make them: Debian's chromium, without a window and without a network.
//! With FOREBAY_PAGES=DIRECTORY the pages and pictures of them are left there.
//!
//! Only with the feature `testing`, which tests of other crates ask for.
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on panics"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A page after its scripts ran.
#[derive(Debug)]
pub struct Seen {
    /// Its elements as text.
    pub dom: String,
    /// Figures that the page has, and those that its script has drawn.
    pub figures: (usize, usize),
    /// Drawing surfaces.
    pub canvases: usize,
}

fn chromium(profile: &Path, more: &[String]) -> String {
    let output = Command::new("chromium")
        .args(["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        // Root has no sandbox; the page is our own.
        .args(["--no-sandbox", "--disable-background-networking", "--disable-sync"])
        .args(["--disable-component-update", "--disable-default-apps", "--window-size=1400,2600"])
        .arg("--virtual-time-budget=9000")
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(more)
        .output()
        .expect("chromium is needed: tests/apt-packages.txt");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Opens a page, and fails if it asked anything of a network. `profile`: an empty directory for the browser's files.
pub fn looked_at(profile: &Path, name: &str, page: &str) -> Seen {
    // One address stands in the notice of the plotting library.
    for scheme in ["http://", "https://"] {
        assert!(page.matches(scheme).count() <= 1, "{name} names addresses of a network");
    }
    let kept = std::env::var_os("FOREBAY_PAGES").map(PathBuf::from);
    let dir = kept.clone().unwrap_or_else(|| profile.to_path_buf());
    let file = dir.join(format!("{name}.html"));
    std::fs::write(&file, page).unwrap();
    let url = format!("file://{}", file.display());
    if kept.is_some() {
        let shot = format!("--screenshot={}", dir.join(format!("{name}.png")).display());
        chromium(profile, &[shot, url.clone()]);
    }
    let log = profile.join("net.json");
    let asks = [format!("--log-net-log={}", log.display()), "--dump-dom".into(), url];
    let dom = chromium(profile, &asks);
    let log = std::fs::read_to_string(log).unwrap();
    // The browser's own services are not the page's.
    let asked = log.split("\"url\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let outside: Vec<&str> =
        asked.filter(|url| url.contains("/pfs/") || url.contains("uplot")).collect();
    assert!(outside.is_empty(), "{name} asked for {outside:?}");
    let count = |part: &str| dom.matches(part).count();
    let figures = (count("data-chart="), count("data-drawn=\"1\""));
    let canvases = count("<canvas");
    Seen { figures, canvases, dom }
}
