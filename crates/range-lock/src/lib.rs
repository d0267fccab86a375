//! A lock-free range lock.
#![no_std]
