//! The operations, one file each. They are methods of `Namespace`, take the caller's identity
//! only to stamp owners, and check structure, never permission (see `forebay_proto::api`).

mod create;
mod data;
mod layout;
mod link;
mod lookup;
mod readdir;
mod rename;
mod rename_over;
mod setattr;
mod unlink;
mod xattr;

pub use super::new_inodes::NewInode;
pub use create::Named;
pub(crate) use data::not_final;
pub use layout::is_layout_xattr;
pub use xattr::OWN as OWN_XATTRS;
