//! Which files of a data server may have what the PFS does not: the metadata server knows, for the day on which
//! the data server is gone for good. Then what was clean there is fetched again by another data server, and the rest is lost.
//!
//! Invariants
//! * Before a file can become dirty (it is opened for writing, or cut) the metadata server has heard of it.
//! * It hears that a file is clean again only when nobody has it open and nothing of it is dirty, and what is
//!   told of one file has growing numbers: the largest counts.
//!
//! Called where files are opened, closed, cut and drained.

use super::super::data_servers::Ownership;
use super::messages::{Request, Response};
use super::{DataServers, FILES_MAX, NAMES, PATIENCE};
use forebay_proto::{Errno, Ino, Result};

/// A file may become dirty as long as this lives.
pub(crate) struct MayWrite<'a> {
    ownership: &'a Ownership,
    ino: Option<Ino>,
}

impl Drop for MayWrite<'_> {
    fn drop(&mut self) {
        if let Some(ino) = self.ino {
            self.ownership.nodes.writing_ends(ino);
            self.ownership.is_clean_again(ino);
        }
    }
}

impl Ownership {
    /// Before a file can become dirty. With no lock held but its `meta`. Errors: the metadata server is away.
    pub(crate) fn may_write(&self, ino: Ino) -> Result<MayWrite<'_>> {
        let Some(data_servers) = self.at_data_server() else {
            return Ok(MayWrite { ownership: self, ino: None });
        };
        let Some(is_told) = self.nodes.writing_begins(ino) else {
            // What is to be done with it will not find it either.
            return Ok(MayWrite { ownership: self, ino: None });
        };
        let writing = MayWrite { ownership: self, ino: Some(ino) };
        if !is_told {
            let question = Request::MayWrite(ino, data_servers.next());
            match data_servers.ask_patiently(NAMES, &question, PATIENCE) {
                // With the names all of them are lost.
                Ok(_) | Err(Errno::EIO) => self.nodes.writing_told(ino),
                Err(error) => return Err(error),
            }
        }
        Ok(writing)
    }

    /// If nobody has a file open any more and nothing of it is dirty, the metadata server will hear of it.
    pub(crate) fn is_clean_again(&self, ino: Ino) {
        let Some(data_servers) = self.at_data_server() else { return };
        let number = data_servers.next();
        let file = self.nodes.get(ino).ok().and_then(|known| known.file);
        let state = file.as_ref().map(|file| file.state.lock());
        if state.as_ref().is_none_or(|state| state.opens.all() == 0 && !state.record.is_dirty()) {
            self.nodes.clean_again(ino, number);
        }
    }

    /// At a start all that is here counts as written; mounts have said what they have open of it.
    pub(crate) fn look_what_is_clean(&self) {
        self.nodes.told_to_be_written().into_iter().for_each(|ino| self.is_clean_again(ino));
    }

    /// True when all of it is told.
    pub(crate) fn tell_clean(&self, data_servers: &DataServers) -> bool {
        loop {
            let list = self.nodes.take_clean(FILES_MAX);
            if list.is_empty() {
                return true;
            }
            if !matches!(data_servers.ask(NAMES, &Request::Clean(list.clone())), Ok(Response::Done))
            {
                self.nodes.put_clean(list);
                return data_servers.is_lost(NAMES);
            }
        }
    }
}
