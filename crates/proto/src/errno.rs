//! Errors as the file system tells them: an errno, with its name for people.

use std::fmt;

/// Result of a file-system call.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// A Linux errno (positive). Carried over the wire and to the kernel unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        #[allow(missing_docs)]
        impl Errno { $(pub const $name: Errno = Errno(libc::$name);)* }
        /// The symbolic name, `None` for one that this table does not know.
        fn name_of(e: i32) -> Option<&'static str> {
            match e { $(libc::$name => Some(stringify!($name)),)* _ => None }
        }
    };
}

errnos!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EFAULT,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ENFILE,
    EMFILE,
    ENOTTY,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    EPIPE,
    ERANGE,
    EDEADLK,
    ENAMETOOLONG,
    ENOLCK,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EOVERFLOW,
    EBADMSG,
    EPROTO,
    EOPNOTSUPP,
    EADDRINUSE,
    ENOTCONN,
    ETIMEDOUT,
    ECONNREFUSED,
    ECONNRESET,
    EHOSTUNREACH,
    EMSGSIZE,
    EALREADY,
    EINPROGRESS,
    ESTALE,
    EDQUOT,
    ECANCELED,
    ENOKEY,
    EREMOTEIO,
    ESHUTDOWN,
    ERESTART,
);

impl Errno {
    /// The symbolic name (`ENOSPC`), or `E<number>` for an unknown one.
    pub fn name(self) -> String {
        name_of(self.0).map_or_else(|| format!("E{}", self.0), str::to_string)
    }

    /// The errno of an I/O error; `EIO` when it carries none.
    pub fn from_io(e: &std::io::Error) -> Errno {
        Errno(e.raw_os_error().unwrap_or(libc::EIO))
    }

    /// The errno that the last libc call of this thread left.
    pub fn last() -> Errno {
        Errno::from_io(&std::io::Error::last_os_error())
    }

    /// True for errors that may pass by themselves and are worth a retry.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Errno::EINTR
                | Errno::EAGAIN
                | Errno::EBUSY
                | Errno::ENOMEM
                | Errno::EIO
                | Errno::ETIMEDOUT
                | Errno::ESTALE
                | Errno::ENOTCONN
                | Errno::ECONNRESET
                | Errno::EHOSTUNREACH
                | Errno::EREMOTEIO
                | Errno::ENFILE
                | Errno::EMFILE
        )
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.0).to_string();
        let text = text.split(" (os error").next().unwrap_or("").to_string();
        write!(f, "{text} ({})", self.name())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Errno {
        Errno::from_io(&e)
    }
}

impl From<Errno> for std::io::Error {
    fn from(e: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(e.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_tells_its_name() {
        assert_eq!(Errno::ENOSPC.to_string(), "No space left on device (ENOSPC)");
        assert_eq!(Errno(9999).name(), "E9999");
    }
}
