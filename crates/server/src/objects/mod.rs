//! Data of files: one sparse file per (file, stripe) on the store.
