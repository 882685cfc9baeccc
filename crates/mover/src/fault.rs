//! Why one item of a plan failed: what was being done, on which side, the errno, and words.
//!
//! A [`Fault`] has no path; who knows the item adds it ([`Fault::on`]) and makes the
//! `FileError` that the user sees.

use forebay_proto::Errno;
use forebay_proto::control::{FileError, PathBytes};

/// The side on which a call failed; it decides which path is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// What is copied from.
    Source,
    /// What is copied to.
    Target,
}

/// Sort of failure; it decides what happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// A system call failed.
    System,
    /// The source was written while it was copied.
    SourceChanged,
    /// What was read back is not what was written.
    Mismatch,
    /// The rules of the mover refuse it.
    Refused,
    /// The data was published, but something beside it (an xattr) could not be kept.
    Partial,
    /// The plan is being stopped; not an error of the item.
    Stopped,
}

/// One failure.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub what: &'static str,
    pub side: Where,
    pub errno: Errno,
    pub why: Option<String>,
    pub sort: Sort,
}

/// Result of a step of the mover.
pub(super) type Outcome<T> = Result<T, Fault>;

impl Fault {
    /// A failed call on the source.
    pub fn source(what: &'static str) -> impl Fn(Errno) -> Fault {
        move |errno| Fault { what, side: Where::Source, errno, why: None, sort: Sort::System }
    }

    /// A failed call on the target.
    pub fn target(what: &'static str) -> impl Fn(Errno) -> Fault {
        move |errno| Fault { what, side: Where::Target, errno, why: None, sort: Sort::System }
    }

    /// A failure that is not a system call's.
    pub fn of(sort: Sort, side: Where, what: &'static str, why: impl Into<String>) -> Fault {
        Fault { what, side, errno: Errno(0), why: Some(why.into()), sort }
    }

    /// The source is not what it was when the copy began.
    pub fn changed(how: &str) -> Fault {
        let why = format!(
            "the source changed while it was copied ({how}); nothing was published, stage it again"
        );
        Fault::of(Sort::SourceChanged, Where::Source, "read source", why)
    }

    /// The plan is being stopped.
    pub fn stopped() -> Fault {
        Fault::of(Sort::Stopped, Where::Source, "stop", "the plan is being stopped")
    }

    /// An xattr that the target refused.
    pub fn lost_xattr(name: &[u8], errno: Errno) -> Fault {
        let name = String::from_utf8_lossy(name);
        let why = format!("xattr {name} could not be kept: {errno}; data and mode are there");
        Fault { sort: Sort::Partial, why: Some(why), ..Fault::target("set xattr")(errno) }
    }

    /// Whether trying again may help.
    pub fn is_retryable(&self) -> bool {
        match self.sort {
            Sort::System => self.errno.is_transient(),
            Sort::SourceChanged | Sort::Mismatch => true,
            Sort::Refused | Sort::Partial | Sort::Stopped => false,
        }
    }

    /// True if it only says that the plan is being stopped.
    pub fn is_stop(&self) -> bool {
        self.sort == Sort::Stopped
    }

    /// What the user is told.
    pub fn on(&self, source: &[u8], target: &[u8], attempts: u32) -> FileError {
        let path = match self.side {
            Where::Source => source,
            Where::Target => target,
        };
        let why = match &self.why {
            Some(why) => with_name(why, self.errno),
            None => format!("{}{}", self.errno, hint(self.errno)),
        };
        FileError {
            path: PathBytes::new(path),
            what: self.what.to_string(),
            errno: self.errno.0,
            why,
            attempts,
            server: None,
        }
    }
}

/// Every reason ends with, or has, the errno's name.
fn with_name(why: &str, errno: Errno) -> String {
    let name = errno.name();
    match errno.0 != 0 && !why.contains(&name) {
        true => format!("{why} ({name})"),
        false => why.to_string(),
    }
}

/// What to do about the errors that users meet most.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSPC => "; make room there and stage it again",
        Errno::EDQUOT => "; your quota there is used up, make room and stage it again",
        Errno::EROFS => "; it is mounted read-only",
        Errno::EACCES | Errno::EPERM => "; the requester of the plan may not do this",
        _ => "",
    }
}
