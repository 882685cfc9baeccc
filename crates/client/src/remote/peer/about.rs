//! What a call is about, as far as it matters to how it is made. Called by [`super::Peer`] for each call.

use forebay_proto::Ino;
use forebay_proto::net::Call;

/// Calls that no program waits for.
pub(super) fn is_by_itself(call: &Call<'_>) -> bool {
    matches!(
        call,
        Call::Forget(_)
            | Call::Release(_)
            | Call::Close(_)
            | Call::Reclaim(_)
            | Call::Renew
            | Call::Places
    )
}

/// Calls that a server may answer only when other mounts have published what they wrote to a file in logs.
pub(super) fn waits_for_mounts(call: &Call<'_>) -> bool {
    matches!(
        call,
        Call::LogMap { .. }
            | Call::Getattr(_)
            | Call::Read { .. }
            | Call::Seek { .. }
            | Call::Fallocate { .. }
            | Call::Write { append: true, .. }
            | Call::Open { .. }
            | Call::Setattr { .. }
            | Call::Setxattr { .. }
    )
}

/// The file whose data a call reads or changes; of a copy, the one that it changes.
pub(super) fn data_used_by(call: &Call<'_>) -> Option<Ino> {
    match *call {
        Call::Read { ino, .. } | Call::Write { ino, .. } | Call::Fallocate { ino, .. } => Some(ino),
        Call::ReadObject { object, .. } | Call::WriteObject { object, .. } => Some(object.ino),
        Call::LogMap { ino, .. } => Some(ino),
        Call::CopyRange { target, .. } => Some(target),
        Call::Setattr { ino, ref change } => change.size_bytes.map(|_| ino),
        _ => None,
    }
}

/// Directories of which it may change what `stat` shows; some are files.
pub(super) fn changes_attributes_of(call: &Call<'_>) -> [Option<Ino>; 2] {
    match *call {
        Call::Setattr { ino, .. }
        | Call::Setxattr { ino, .. }
        | Call::Removexattr { ino, .. }
        | Call::List { ino, .. } => [Some(ino), None],
        ref other => other.changed_dirs(),
    }
}
