//! Sessions as clients see them, in-process: two clients over one namespace.
