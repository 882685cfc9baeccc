//! Calls about many paths: one question for up to [`MANY_MAX`] of one mount that follow each other. Each path is done by
//! itself, in order: what fails for one stops nothing, and nobody else sees all at once.

use crate::alone::Told;
use crate::connection::{question, told};
use crate::places::{Found, Mount, Start, locate_with};
use crate::{Follow, OPENED_BY_KERNEL, failed, kernel, text, unlink_text};
use forebay_preload_wire::{
    Answer, Attributes, BY_KERNEL, MADE, MANY_BYTES_MAX, MANY_MAX, Outcome, Request, names, op,
};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use zerocopy::{FromZeros, IntoBytes};

/// Makes files that must not be there, open for reading and writing, with the mode as it is.
///
/// Each result is that of `open(2)` with `O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC`.
pub fn create_many<P: AsRef<Path>>(paths: &[P], mode: u32) -> Vec<io::Result<OwnedFd>> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
    open_many(paths, flags, mode)
}

/// Opens files by the flags of `open(2)`, as [`crate::open`] does.
///
/// Each result is that of `open(2)`.
pub fn open_many<P: AsRef<Path>>(paths: &[P], flags: i32, mode: u32) -> Vec<io::Result<OwnedFd>> {
    let one = |path: &CString| kernel::open(path, flags, mode);
    if flags & OPENED_BY_KERNEL != 0 {
        return paths.iter().map(|path| one(&text(path.as_ref())?)).collect();
    }
    let request = Request { op: op::OPEN_MANY, flags: flags as u32, mode, ..Request::default() };
    in_turns(paths, one, |run, results| {
        let possible = names::object_flags(flags).is_some();
        let alone = run.alone(possible, |told, path| told.open(path, flags));
        let mut outcomes = [Outcome::new_zeroed(); MANY_MAX];
        let outcomes = &mut outcomes[..alone.missing];
        let received = run.ask(request, &alone.text, outcomes.as_mut_bytes());
        let Some(received) = received else { return false };
        let (mut descriptors, mut outcomes) = (received.into_iter(), outcomes.iter());
        for (file, path) in alone.done.into_iter().zip(&run.paths) {
            if let Some(file) = file {
                results.push(Ok(file));
                continue;
            }
            let outcome = outcomes.next().copied().unwrap_or_default();
            results.push(match outcome.status {
                0 => match descriptors.next() {
                    Some(file) => Ok(file),
                    None => Err(no_room(path, outcome)),
                },
                BY_KERNEL => one(path),
                errno => Err(failed(errno)),
            });
        }
        true
    })
}

/// This process has no room for a descriptor: without one nothing is to be made.
fn no_room(path: &CString, outcome: Outcome) -> io::Error {
    if outcome.flags & MADE != 0
        && let Err(error) = unlink_text(path)
    {
        return error;
    }
    failed(libc::EMFILE)
}

/// Attributes of paths.
///
/// Each result is that of `stat(2)`, or `lstat(2)`.
pub fn stat_many<P: AsRef<Path>>(paths: &[P], follow: Follow) -> Vec<io::Result<Attributes>> {
    let one = |path: &CString| kernel::stat(path, follow);
    let request = Request { op: op::STAT_MANY, flags: follow.flags(), ..Request::default() };
    in_turns(paths, one, |run, results| {
        let alone = run.alone(true, Told::attributes);
        let mut answers = [Answer::new_zeroed(); MANY_MAX];
        let answers = &mut answers[..alone.missing];
        if run.ask(request, &alone.text, answers.as_mut_bytes()).is_none() {
            return false;
        }
        let mut answers = answers.iter();
        for (attributes, path) in alone.done.into_iter().zip(&run.paths) {
            if let Some(attributes) = attributes {
                results.push(Ok(attributes));
                continue;
            }
            let answer = answers.next().copied().unwrap_or_default();
            results.push(match answer.status {
                0 => Ok(answer.attributes),
                BY_KERNEL => one(path),
                errno => Err(failed(errno)),
            });
        }
        true
    })
}

/// Removes names that are no directories.
///
/// Each result is that of `unlink(2)`.
pub fn unlink_many<P: AsRef<Path>>(paths: &[P]) -> Vec<io::Result<()>> {
    let one = |path: &CString| kernel::unlink(path);
    let request = Request { op: op::UNLINK_MANY, ..Request::default() };
    in_turns(paths, one, |run, results| {
        let mut outcomes = [Outcome::new_zeroed(); MANY_MAX];
        let outcomes = &mut outcomes[..run.paths.len()];
        if run.ask(request, &run.text, outcomes.as_mut_bytes()).is_none() {
            return false;
        }
        for (outcome, path) in outcomes.iter().zip(&run.paths) {
            results.push(match outcome.status {
                0 => Ok(()),
                BY_KERNEL => one(path),
                errno => Err(failed(errno)),
            });
        }
        true
    })
}

/// Paths of one mount that are asked for together.
struct Run {
    at: (Rc<Mount>, Start),
    paths: Vec<CString>,
    /// What is sent: each path from where it begins, with a 0.
    text: Vec<u8>,
}

/// What of a run needed no question, and the text of the rest.
struct Alone<T> {
    done: Vec<Option<T>>,
    missing: usize,
    text: Vec<u8>,
}

impl Run {
    /// Does what needs no question.
    fn alone<T>(&self, possible: bool, of: impl Fn(&Told, &[u8]) -> Option<T>) -> Alone<T> {
        let told = if possible { told(&self.at.0, &self.at.1) } else { None };
        let Some(told) = told else {
            let done = self.paths.iter().map(|_| None).collect();
            return Alone { done, missing: self.paths.len(), text: self.text.clone() };
        };
        let mut alone = Alone { done: Vec::new(), missing: 0, text: Vec::new() };
        for path in self.text.strip_suffix(&[0]).unwrap_or(&self.text).split(|byte| *byte == 0) {
            let done = of(&told, path);
            if done.is_none() {
                alone.missing += 1;
                alone.text.extend_from_slice(path);
                alone.text.push(0);
            }
            alone.done.push(done);
        }
        alone
    }

    fn ask(&self, request: Request, text: &[u8], into: &mut [u8]) -> Option<Vec<OwnedFd>> {
        if into.is_empty() {
            return Some(Vec::new());
        }
        let received = question((&self.at.0, &self.at.1), request, text, into)?;
        Some(received.descriptors)
    }

    fn takes(&self, found: &Found<'_>) -> bool {
        let same_start = match (&self.at.1, &found.start) {
            (Start::Root, Start::Root) => true,
            (Start::Given(one), Start::Given(other)) => Rc::ptr_eq(one, other),
            _ => false,
        };
        Rc::ptr_eq(&self.at.0, &found.mount)
            && same_start
            && self.paths.len() < MANY_MAX
            && self.text.len() + found.path.len() < MANY_BYTES_MAX
    }
}

/// Cuts the paths into runs; `ask` pushes the results of one, or says that nobody could be asked. All else is done one
/// by one.
fn in_turns<P: AsRef<Path>, T>(
    paths: &[P],
    one: impl Fn(&CString) -> io::Result<T>,
    ask: impl Fn(&Run, &mut Vec<io::Result<T>>) -> bool,
) -> Vec<io::Result<T>> {
    let mut results = Vec::with_capacity(paths.len());
    let mut run: Option<Run> = None;
    let finish = |run: Option<Run>, results: &mut Vec<io::Result<T>>| {
        if let Some(run) = run
            && !ask(&run, results)
        {
            results.extend(run.paths.iter().map(&one));
        }
    };
    for path in paths {
        let path = match text(path.as_ref()) {
            Ok(path) => path,
            Err(error) => {
                finish(run.take(), &mut results);
                results.push(Err(error));
                continue;
            }
        };
        let before = run.as_ref().map(|run| Found {
            mount: Rc::clone(&run.at.0),
            start: run.at.1.clone(),
            path: &[],
        });
        let found = locate_with(path.to_bytes(), before.as_ref());
        let Some(found) = found.filter(|found| found.path.len() <= forebay_preload_wire::PATH_MAX)
        else {
            finish(run.take(), &mut results);
            results.push(one(&path));
            continue;
        };
        if !run.as_ref().is_some_and(|run| run.takes(&found)) {
            finish(run.take(), &mut results);
        }
        let added = run.get_or_insert_with(|| Run {
            at: (Rc::clone(&found.mount), found.start.clone()),
            paths: Vec::with_capacity(paths.len().min(MANY_MAX)),
            text: Vec::with_capacity(MANY_BYTES_MAX / 8),
        });
        added.text.extend_from_slice(found.path);
        added.text.push(0);
        added.paths.push(path);
    }
    finish(run.take(), &mut results);
    results
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn paths_outside_of_buffers_are_done_by_the_kernel_each_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let paths = [at("a"), at("no/b"), PathBuf::from("x\0y"), at("c")];
        let made = create_many(&paths, 0o640);
        let errno = |result: &io::Result<OwnedFd>| {
            result.as_ref().err().map(|error| error.raw_os_error().unwrap_or(0))
        };
        let errnos: Vec<_> = made.iter().map(errno).collect();
        assert_eq!(errnos, [None, Some(libc::ENOENT), Some(0), None]);
        let told = stat_many(&paths[..1], Follow::Yes);
        assert_eq!(told[0].as_ref().unwrap().mode & 0o7777, 0o640);
        let gone: Vec<_> = unlink_many(&paths).iter().map(io::Result::is_ok).collect();
        assert_eq!(gone, [true, false, false, true]);
    }
}
