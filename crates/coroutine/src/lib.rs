//! Prioritized coroutines: control blocks, ready queues, bitmaps, executor.
#![no_std]
