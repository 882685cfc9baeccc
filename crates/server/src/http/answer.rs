//! The answers: which path gives what.

use super::{Shared, prometheus};
use forebay_plot_page::{UPLOT_SCRIPT, UPLOT_STYLE};
use std::fmt::Write;
use std::sync::LazyLock;

/// The page: all of it, nothing is loaded from elsewhere. The library that draws is that of all pages.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    let page = include_str!("page.html");
    let styled = page.replacen("/* the style of uPlot */", UPLOT_STYLE, 1);
    styled.replacen("/* the script of uPlot */", UPLOT_SCRIPT, 1)
});
/// Nothing but the page's own script and styles runs, and it asks nobody but this server.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; \
     style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// An answer to a request.
pub(super) struct Answer {
    status: u16,
    kind: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
}

impl Answer {
    fn of(kind: &'static str, body: Vec<u8>) -> Answer {
        Answer { status: 200, kind, headers: Vec::new(), body }
    }

    fn text(status: u16, text: &str) -> Answer {
        Answer { status, ..Answer::of("text/plain; charset=utf-8", text.as_bytes().to_vec()) }
    }

    /// An error, with its reason.
    pub(super) fn failed(status: u16, why: &str) -> Answer {
        Answer::text(status, why)
    }

    /// With one more header.
    pub(super) fn with(mut self, name: &'static str, value: &'static str) -> Answer {
        self.headers.push((name, value));
        self
    }

    /// As it is sent; without its body for HEAD.
    pub(super) fn bytes(&self, with_body: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            _ => "Service Unavailable",
        };
        let mut head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Referrer-Policy: no-referrer\r\n",
            self.status,
            self.kind,
            self.body.len()
        );
        for (name, value) in &self.headers {
            // Writing to a string cannot fail.
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if with_body {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// Answers a GET of a target: a path, perhaps with a query.
pub(super) fn to(shared: &Shared, target: &str) -> Answer {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    match path {
        "/" => Answer::of("text/html; charset=utf-8", PAGE.as_bytes().to_vec())
            .with("Content-Security-Policy", PAGE_POLICY),
        "/metrics" => match prometheus::text(shared.watched.metrics()) {
            Ok(text) => Answer::of(prometheus::CONTENT_TYPE, text.into_bytes()),
            Err(error) => Answer::failed(500, &format!("metrics cannot be written: {error}\n")),
        },
        "/healthz" => health(shared),
        "/history.json" => match after(query) {
            Some(after) => {
                let (now, others) = (shared.watched.metrics(), shared.watched.others());
                match serde_json::to_vec(&shared.history.told(after, &now, &others)) {
                    Ok(body) => Answer::of("application/json", body),
                    Err(error) => Answer::failed(500, &format!("it cannot be written: {error}\n")),
                }
            }
            None => Answer::failed(400, "after=NUMBER, in milliseconds since 1970\n"),
        },
        _ => Answer::failed(404, "there are /, /metrics, /healthz and /history.json\n"),
    }
}

/// `after=NUMBER`, or nothing.
fn after(query: &str) -> Option<u64> {
    match query {
        "" => Some(0),
        query => query.strip_prefix("after=")?.parse().ok(),
    }
}

/// Buffers of the whole pool that are not well, one a line.
fn health(shared: &Shared) -> Answer {
    let troubled = shared.watched.troubled();
    if troubled.is_empty() {
        return Answer::text(200, "ok\n");
    }
    let lines = troubled.iter().map(|(buffer, why)| format!("{buffer}: {why}\n"));
    Answer::failed(503, &lines.collect::<String>())
}
