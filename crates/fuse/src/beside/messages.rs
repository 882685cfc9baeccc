//! Messages of the socket, with the descriptors that go along.

use forebay_preload_wire::{MANY_MAX, MESSAGE_MAX, Request};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromBytes;

/// Most descriptors that a message may bring; all but the first are closed.
const DESCRIPTORS_MAX: usize = 4;

/// A socket with room for one message.
pub(super) struct Messages<'a> {
    socket: &'a OwnedFd,
    bytes: Box<[u8]>,
}

/// One request.
pub(super) struct Asked<'a> {
    pub(super) request: Request,
    pub(super) path: &'a [u8],
    pub(super) file: Option<File>,
}

impl<'a> Messages<'a> {
    pub(super) fn new(socket: &'a OwnedFd) -> Messages<'a> {
        Messages { socket, bytes: vec![0; MESSAGE_MAX].into_boxed_slice() }
    }

    /// Waits for the next request. `None` when the program is gone, or sends what is none.
    pub(super) fn next(&mut self) -> Option<Asked<'_>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut self.bytes[..])];
            match recvmsg(self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other.ok()?,
            }
        };
        let mut file = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for descriptor in descriptors {
                    file.get_or_insert_with(|| File::from(descriptor));
                }
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return None;
        }
        let (request, path) = Request::read_from_prefix(&self.bytes[..received.bytes]).ok()?;
        Some(Asked { request, path, file })
    }
}

/// Sends an answer, with at most [`MANY_MAX`] descriptors. False if the program is gone.
pub(super) fn send<'a>(
    socket: &OwnedFd,
    bytes: &[u8],
    files: impl IntoIterator<Item = &'a File>,
) -> bool {
    let descriptors: Vec<BorrowedFd<'_>> = files.into_iter().map(|file| file.as_fd()).collect();
    match descriptors.len() {
        0..=1 => {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            send_with(socket, bytes, &descriptors, &mut space)
        }
        _ => {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY_MAX))];
            send_with(socket, bytes, &descriptors, &mut space)
        }
    }
}

fn send_with(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    space: &mut [MaybeUninit<u8>],
) -> bool {
    let mut control = SendAncillaryBuffer::new(space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return false;
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return sent.is_ok(),
        }
    }
}
