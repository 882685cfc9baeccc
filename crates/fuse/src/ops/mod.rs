//! One function for each kind of request: takes the arguments apart, calls the file system,
//! puts the answer together. None of them keeps anything of the request.

pub(crate) mod attrs;
pub(crate) mod copies;
pub(crate) mod data;
pub(crate) mod files;
pub(crate) mod handles;
pub(crate) mod listing;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod xattrs;
