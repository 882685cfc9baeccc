//! How far a file's object reaches: its size as this process knows it, and the space that is taken behind its end.
//!
//! Invariant: the size that was seen is never more than what the object has, or had before somebody else cut it; who cuts
//! the object says so before. Called by `file_data` and `room_ahead`, which change it, and by `lost`, which compares.

/// The reach of one file's object, in bytes from its start.
pub(crate) struct Extent {
    /// The object has, or had, so many bytes: a shorter one was cut by somebody else.
    seen_bytes: u64,
    /// Up to where room was taken behind the end; 0: none was ([`super::super::room_ahead`]).
    room_until: u64,
    /// Up to where `fallocate` has promised space, which is shown as used.
    promised_until: u64,
}

impl Extent {
    /// Of an object that must have so many bytes.
    pub fn of(seen_bytes: u64) -> Extent {
        Extent { seen_bytes, room_until: 0, promised_until: 0 }
    }

    /// So many bytes the object has, or had: a shorter one was cut by somebody else.
    pub fn seen_bytes(&self) -> u64 {
        self.seen_bytes
    }

    /// The object has so many bytes. False if it had more, and not we have cut it.
    pub fn has_seen(&mut self, bytes: u64) -> bool {
        let is_whole = bytes >= self.seen_bytes;
        self.seen_bytes = self.seen_bytes.max(bytes);
        is_whole
    }

    /// So many bytes are seen from now on, whatever was before.
    pub fn set_seen(&mut self, bytes: u64) {
        self.seen_bytes = bytes;
    }

    /// The object is about to be cut to so many bytes.
    pub fn cut(&mut self, bytes: u64) {
        self.seen_bytes = self.seen_bytes.min(bytes);
        self.promise_ends(bytes);
    }

    /// `fallocate` has promised space up to there.
    pub fn promise(&mut self, until: u64) {
        self.promised_until = self.promised_until.max(until);
    }

    /// What was promised behind `bytes` is not any more.
    pub fn promise_ends(&mut self, bytes: u64) {
        self.promised_until = self.promised_until.min(bytes);
    }

    /// Up to where `fallocate` has promised space.
    pub fn promised_until(&self) -> u64 {
        self.promised_until
    }

    /// Up to where room was taken behind the end; 0: none was.
    pub fn room_until(&self) -> u64 {
        self.room_until
    }

    /// Room was taken up to there.
    pub fn set_room(&mut self, until: u64) {
        self.room_until = until;
    }

    /// The room is given back, or gone: up to where it was.
    pub fn take_room(&mut self) -> u64 {
        std::mem::take(&mut self.room_until)
    }
}
