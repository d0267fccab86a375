//! Prioritized coroutines and asynchronous system calls for ordinary programs.
//!
//! A program is an ordinary Linux program with an asynchronous `main`. On Heddle its system calls are carried out by
//! the kernel's own coroutines, many at a time and without a thread waiting for each; on Linux the same binary waits
//! with epoll. Coroutines and their 64 levels are those of [`heddle_coroutine`]. On Heddle the order of levels holds
//! over all programs of a user, whose coroutines of levels 0 to 43 together get the time of one thread on each
//! processor; levels 4 to 19 go before everybody for programs that may use realtime priorities, and 44 to 62 behind
//! everybody.
//!
//! ```
//! use heddle_rt::{read, spawn, write};
//!
//! #[heddle_rt::main(threads = 2)]
//! async fn main() -> std::io::Result<()> {
//!     let (reader, writer) = std::io::pipe()?;
//!     let greeter = spawn(async move { write(&writer, "hello").await.0 });
//!     let (length, buffer) = read(&reader, vec![0; 16]).await;
//!     assert_eq!(&buffer[..length?], b"hello");
//!     assert_eq!(greeter.await.unwrap()?, 5);
//!     Ok(())
//! }
//! ```
//!
//! # Three forms of each call
//! - `read(file, buffer).await` owns what it uses and gives the buffer back. Dropping it cancels the call; the buffer
//!   lives until the kernel has let go of it. Bytes that come after that stay in the file. Bytes that the call had read
//!   before, and whose future was not polled since, are gone with it.
//! - `unsafe { read_borrowed(file, &mut buffer) }.await` borrows. Dropping it waits until the kernel has let go, so the
//!   future must not be leaked (`mem::forget`): that is its safety condition.
//! - `read_sync(file, &mut buffer)` keeps the thread.
//!
//! [`batch`] hands several calls to the kernel at once. [`net`] has TCP and UDP sockets on top of the calls.
//!
//! On Linux the calls that only a thread can wait for (open, accept, connect, fsync, futexes) have those of
//! [`heddle_coroutine::spawn_blocking`], 512 at most for all of them and the program's own work: what comes beyond
//! waits.
//!
//! A descriptor in non-blocking mode is not waited for: the call answers `WouldBlock`, as its synchronous form does.
//! A signal handler does not interrupt an asynchronous call.
//!
//! # Priorities
//! A coroutine is preempted between its turns, and in a turn at each call. When something more urgent becomes ready,
//! Heddle interrupts a thread that runs something less urgent, so that the next call yields; [`should_yield`] tells
//! of it in between. A program of several threads need not wait for that: one more thread, in reserve, runs the urgent
//! coroutine at once. With a strict order each thread also looks, before each turn, for what is more urgent in other
//! programs of the machine:
//!
//! ```
//! #[heddle_rt::main(strict, priority = 24)]
//! async fn main() {
//!     println!("the first coroutine, of level 24");
//! }
//! ```
//!
//! # Processes
//! In a forked child the thread that forked continues, with the coroutines that it ran or that were queued on it. Other
//! threads of the runtime are gone, and their coroutines with them, so a program that is to continue in both does best
//! with one thread. Calls in flight are the parent's, and end in the child with `ECANCELED`; one that has not begun
//! is made by both. Timers continue. Every coroutine that continues is polled once. As with any threads, a lock of the
//! program's own may be held by a thread that is gone.
//!
//! # Implementation notes
//! The interface to the kernel is chosen when the first executor starts: a kernel that knows Heddle's calls registers
//! the ring of results, any other answers `ENOSYS` and is taken for Linux. Every call in flight has one allocation,
//! shared by its future and the ring; `heddle_abi::protocol::Phase` says which of the two frees it, and is checked by
//! loom.

mod batch;
mod buffer;
mod builder;
mod calls;
mod heddle;
mod linux;
mod listing;
mod lower;
pub mod net;
mod operation;
mod place;
mod words;

pub use batch::batch;
pub use buffer::{Buffer, BufferMut};
pub use builder::{Builder, coroutine_run};
pub use calls::*;
pub use heddle_coroutine::{
    AbortOnDrop, Builder as SpawnBuilder, DEFAULT_PRIORITY, Id, JoinError, JoinHandle, SpawnError, abort,
    current_id, preempted, priority, set_priority, spawn, try_spawn, wake, yield_now,
};
pub use heddle_coroutine::{time, wait};
pub use heddle_rt_macros::main;
pub use lower::{Closing, Span};
pub use place::should_yield;
