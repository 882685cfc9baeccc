//! The bar that shows how far a phase of a benchmark is: on the terminal of rank 0, or nowhere.
//!
//! Callers: `bench`, its patterns, and `sim_check`.

use forebay_loadgen::mpi;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// What a bar shows.
const STYLE: &str = "{msg} {wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}";

/// A bar; `hidden`, or where there is no terminal, it is not drawn.
pub(super) fn bar(hidden: bool) -> ProgressBar {
    let bar = ProgressBar::no_length();
    if hidden || !mpi::is_first() || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    set_style(&bar, STYLE);
    bar
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// Begins a phase. Whatever is set draws the bar, so it has only a message until all is set: else it would be seen with 0 bytes of 0, or
/// with the bytes of the phase before.
pub(super) fn begin_bar(bar: &ProgressBar, message: String, total_bytes: u64) {
    set_style(bar, "{msg}");
    bar.reset();
    bar.set_length(total_bytes);
    set_style(bar, STYLE);
    bar.set_message(message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::{Arc, Mutex};

    /// A terminal that keeps what is written to it.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            100
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_is_first_seen_with_the_bytes_of_its_phase() {
        let screen = Screen::default();
        let bar = bar(true);
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        begin_bar(&bar, "write 0".into(), 600 << 20);
        let shown = screen.0.lock().unwrap().clone();
        assert!(shown.contains("write 0"), "{shown}");
        assert!(shown.contains("0 B of 600.00 MiB") && !shown.contains("of 0 B"), "{shown}");
    }
}
