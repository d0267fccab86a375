//! The EROFS image format: a `no_std` reader for the kernel and a writer for the host tool (feature `write`).
#![no_std]
