//! The terminal line discipline, free of hardware and of processes.
#![no_std]
