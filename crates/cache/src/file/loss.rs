//! What is known of the loss of a file's data on flash, beside what its record says. Called by `lost`, which finds and tells it.

/// The loss of one file's data.
pub(crate) struct Loss {
    /// Its map is gone from flash: which blocks are dirty nobody knows.
    map_gone: bool,
    /// It is just being noted that its data is lost.
    is_noted_now: bool,
}

impl Loss {
    /// Of a file that was just loaded from flash.
    pub fn of_loaded(map_gone: bool) -> Loss {
        Loss { map_gone, is_noted_now: false }
    }

    /// True if its map is gone from flash: which blocks are dirty nobody knows.
    pub fn is_map_gone(&self) -> bool {
        self.map_gone
    }

    /// It has an empty map again.
    pub fn map_is_anew(&mut self) {
        self.map_gone = false;
    }

    /// It is about to be noted that its data is lost. False if somebody is just doing that.
    pub fn begin_note(&mut self) -> bool {
        !std::mem::replace(&mut self.is_noted_now, true)
    }

    /// It is noted.
    pub fn end_note(&mut self) {
        self.is_noted_now = false;
    }
}
