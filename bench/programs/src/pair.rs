//! Two sides that hand eight bytes, or one word, back and forth:
//! `pair n=ROUNDS via=pipe|unix|epoll|eventfd|futex|signal with=thread|fork|exec [cpus=1|2]`.
//!
//! A round is there and back. With `cpus=1` both sides are bound to CPU 0, with 2 to CPUs 0 and 1.
#![allow(unsafe_code, reason = "fork, futex and inherited descriptors have no safe form")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::arguments::Arguments;
use crate::measure::{check, pin, report};
use crate::signals::Signals;

/// One side's ends.
enum End {
    Files {
        from: File,
        to: File,
    },
    /// As files, but it waits for them by epoll before it reads.
    Watched {
        from: File,
        to: File,
        epoll: Epoll,
    },
    Words {
        words: &'static [AtomicU32; 2],
        own: usize,
        memory: File,
        flag: libc::c_int,
    },
    Signals {
        side: Signals,
        memory: File,
    },
}

/// The message that is handed over: the number 1 where the channel is a counter, which takes no fewer bytes.
const MESSAGE: [u8; 8] = 1_u64.to_ne_bytes();

/// Descriptors of the other side when it is exec'ed.
const CHILD_FROM: RawFd = 40;
const CHILD_TO: RawFd = 41;
/// A page for the two words of a futex pair.
const WORDS_BYTES: usize = 4096;

/// Runs one pair.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let rounds = arguments.number("n", 10_000)?;
    let (via, with) = (arguments.text("via", "pipe"), arguments.text("with", "fork"));
    let cpus = arguments.number("cpus", 1)?;
    if arguments.text("role", "") == "child" {
        pin(cpus as usize - 1)?;
        let end = child_end(via).map_err(|error| error.to_string())?;
        return echo(end, total(rounds)).map_err(|error| format!("child: {error}"));
    }
    let (own, other) = ends(via, with).map_err(|error| error.to_string())?;
    let run_parent = || -> Result<u128, String> {
        pin(0)?;
        drive(own, rounds).map_err(|error| format!("parent: {error}"))
    };
    let nanoseconds = match with {
        "thread" => {
            let thread = std::thread::spawn(move || {
                pin(cpus as usize - 1)?;
                echo(other, total(rounds)).map_err(|error| format!("thread: {error}"))
            });
            let result = run_parent()?;
            thread.join().map_err(|_| "the thread panicked")??;
            result
        }
        // SAFETY: there is one thread.
        "fork" => match unsafe { nix::unistd::fork() }.map_err(|error| error.to_string())? {
            nix::unistd::ForkResult::Child => {
                let ok = pin(cpus as usize - 1).is_ok() && echo(other, total(rounds)).is_ok();
                // SAFETY: `_exit` has no preconditions; exit handlers belong to the parent.
                unsafe { libc::_exit(i32::from(!ok)) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                drop(other);
                let result = run_parent()?;
                nix::sys::wait::waitpid(child, None).map_err(|error| error.to_string())?;
                result
            }
        },
        "exec" => {
            let mut child = spawn_self(arguments, rounds, cpus, &other)?;
            drop(other);
            let result = run_parent()?;
            let status = child.wait().map_err(|error| error.to_string())?;
            if !status.success() {
                return Err(format!("child: {status}"));
            }
            result
        }
        _ => return Err(format!("unknown partner '{with}'")),
    };
    report(&format!("{via}-{with}-{cpus}"), rounds, nanoseconds);
    Ok(())
}

/// Rounds with the warm-up.
const fn total(rounds: u64) -> u64 {
    rounds + rounds.div_ceil(10)
}

fn spawn_self(
    arguments: &Arguments,
    rounds: u64,
    cpus: u64,
    end: &End,
) -> Result<std::process::Child, String> {
    use std::os::unix::process::CommandExt;
    let (from, to) = match end {
        End::Files { from, to } | End::Watched { from, to, .. } => (from.as_raw_fd(), to.as_raw_fd()),
        End::Words { memory, .. } | End::Signals { memory, .. } => (memory.as_raw_fd(), memory.as_raw_fd()),
    };
    let mut command = Command::new("/proc/self/exe");
    command.args(["pair", "role=child"]);
    command.args([
        format!("n={rounds}"),
        format!("cpus={cpus}"),
        format!("via={}", arguments.text("via", "pipe")),
    ]);
    // SAFETY: dup2 is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            check(libc::dup2(from, CHILD_FROM).into())?;
            check(libc::dup2(to, CHILD_TO).into()).map(drop)
        });
    }
    command.spawn().map_err(|error| error.to_string())
}

fn child_end(via: &str) -> Result<End, std::io::Error> {
    // SAFETY: the parent put these descriptors there for this process alone.
    let (from, to) = unsafe { (File::from_raw_fd(CHILD_FROM), File::from_raw_fd(CHILD_TO)) };
    if via == "futex" {
        Ok(End::Words { words: map_words(&from)?, own: 1, memory: from, flag: 0 })
    } else if via == "signal" {
        Ok(End::Signals { side: Signals::new(map_words(&from)?, 1, false), memory: from })
    } else if via == "epoll" {
        watched(from, to)
    } else {
        Ok(End::Files { from, to })
    }
}

/// Memory for two words, that a process can inherit.
fn words_memory() -> Result<File, std::io::Error> {
    let memory = File::from(memfd_create(c"words", MFdFlags::MFD_CLOEXEC)?);
    memory.set_len(WORDS_BYTES as u64)?;
    Ok(memory)
}

/// The two words in `memory`.
fn map_words(memory: &File) -> Result<&'static [AtomicU32; 2], std::io::Error> {
    let (protection, start) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped and large enough for the words;
    // atomics may be shared with another process.
    unsafe {
        let mapped = libc::mmap(start, WORDS_BYTES, protection, libc::MAP_SHARED, memory.as_raw_fd(), 0);
        if mapped == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(&*mapped.cast())
    }
}

fn watched(from: File, to: File) -> Result<End, std::io::Error> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&from, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    Ok(End::Watched { from, to, epoll })
}

fn files(from: impl Into<OwnedFd>, to: impl Into<OwnedFd>) -> End {
    End::Files { from: File::from(from.into()), to: File::from(to.into()) }
}

fn ends(via: &str, with: &str) -> Result<(End, End), std::io::Error> {
    match via {
        "pipe" => {
            let (there_reader, there_writer) = nix::unistd::pipe()?;
            let (back_reader, back_writer) = nix::unistd::pipe()?;
            Ok((files(back_reader, there_writer), files(there_reader, back_writer)))
        }
        "epoll" => {
            let (there_reader, there_writer) = nix::unistd::pipe()?;
            let (back_reader, back_writer) = nix::unistd::pipe()?;
            let own = watched(File::from(back_reader), File::from(there_writer))?;
            Ok((own, watched(File::from(there_reader), File::from(back_writer))?))
        }
        "eventfd" => {
            let counter = || EventFd::new().map(OwnedFd::from);
            let (there, back) = (counter()?, counter()?);
            let (there_copy, back_copy) = (there.try_clone()?, back.try_clone()?);
            Ok((files(back, there), files(there_copy, back_copy)))
        }
        "unix" => {
            let (left, right) = UnixStream::pair()?;
            let (left_copy, right_copy) = (left.try_clone()?, right.try_clone()?);
            Ok((files(left, left_copy), files(right, right_copy)))
        }
        "signal" => {
            let memory = words_memory()?;
            let words = map_words(&memory)?;
            let end = |own, memory| End::Signals { side: Signals::new(words, own, with == "thread"), memory };
            Ok((end(0, memory.try_clone()?), end(1, memory)))
        }
        "futex" => {
            let memory = words_memory()?;
            // A private futex is of one process, as threads would have it.
            let flag = if with == "thread" { libc::FUTEX_PRIVATE_FLAG } else { 0 };
            // One mapping for both: a private futex is known by its address.
            let words = map_words(&memory)?;
            let end = |own, memory| End::Words { words, own, memory, flag };
            let own = end(0, memory.try_clone()?);
            Ok((own, end(1, memory)))
        }
        _ => Err(std::io::Error::other(format!("unknown channel '{via}'"))),
    }
}

fn drive(mut end: End, rounds: u64) -> Result<u128, std::io::Error> {
    end.meet()?;
    let mut round = || end.send().and_then(|()| end.receive());
    (0..rounds.div_ceil(10)).try_for_each(|_| round())?;
    let begin = std::time::Instant::now();
    (0..rounds).try_for_each(|_| round())?;
    Ok(begin.elapsed().as_nanos())
}

fn echo(mut end: End, rounds: u64) -> Result<(), std::io::Error> {
    end.meet()?;
    (0..rounds).try_for_each(|_| end.receive().and_then(|()| end.send()))
}

impl End {
    /// Waits for the other side, where it must be there before it can be sent to.
    fn meet(&self) -> Result<(), std::io::Error> {
        if let Self::Signals { side, .. } = self { side.meet() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), std::io::Error> {
        match self {
            Self::Files { to, .. } | Self::Watched { to, .. } => to.write_all(&MESSAGE),
            Self::Words { words, own, flag, .. } => {
                let word = &words[1 - *own];
                word.store(1, Ordering::Release);
                futex(word, libc::FUTEX_WAKE | *flag, 1).map(drop)
            }
            Self::Signals { side, .. } => side.send(),
        }
    }

    fn receive(&mut self) -> Result<(), std::io::Error> {
        match self {
            Self::Files { from, .. } => from.read_exact(&mut [0; MESSAGE.len()]),
            Self::Watched { from, epoll, .. } => {
                epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE)?;
                from.read_exact(&mut [0; MESSAGE.len()])
            }
            Self::Words { words, own, flag, .. } => {
                let word = &words[*own];
                while word.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
                    match futex(word, libc::FUTEX_WAIT | *flag, 0) {
                        Err(error) if error.raw_os_error() != Some(libc::EAGAIN) => return Err(error),
                        _ => {}
                    }
                }
                Ok(())
            }
            Self::Signals { side, .. } => {
                side.receive();
                Ok(())
            }
        }
    }
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) -> Result<i64, std::io::Error> {
    let no_timeout = std::ptr::null::<libc::timespec>();
    // SAFETY: the word is a live atomic; the call reads it and sleeps or wakes.
    check(unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, no_timeout) })
}
