//! A thread that takes the pages of another one's system calls away as fast as it can, in each way there is: the calls
//! go on, and SIGKILL ends the process whatever they are doing.
#![allow(unsafe_code, reason = "calls are made as a program makes them, with memory that comes and goes")]

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{pipe, read, write};

use crate::harness::{OrFail, Outcome, spawn_child};

crate::tests! {
    calls_end_by_sigkill_while_their_pages_are_discarded
    calls_end_by_sigkill_while_their_pages_are_protected
    calls_end_by_sigkill_while_their_pages_are_mapped_anew
}

const PAGE: usize = 4096;
/// Pages that the calls use.
const PAGES: usize = 16;
const LENGTH: usize = PAGES * PAGE;
/// How long a call has company, at least.
const TIME: Duration = Duration::from_millis(4);
/// A killed process that has not ended by then never will.
const ATTEMPTS: u32 = 3000;

/// Makes a system call; what comes of it does not matter.
macro_rules! sys {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        // SAFETY: the kernel checks the memory, which belongs to no object.
        let _ = unsafe { libc::syscall(libc::$number $(, $argument)*) };
    }};
}

/// Where the calls' memory is, and what they need besides.
struct Place {
    at: usize,
    null: i32,
    zero: i32,
    maps: i32,
    directory: i32,
    file: i32,
    pipe: [i32; 2],
    stream: [i32; 2],
    datagram: [i32; 2],
    epoll: i32,
    pid: i32,
}

impl Place {
    fn new(at: usize) -> Self {
        let (mut pipe, mut stream, mut datagram) = ([0; 2], [0; 2], [0; 2]);
        // SAFETY: the paths and arrays live through the calls.
        unsafe {
            libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK);
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
            libc::socketpair(libc::AF_UNIX, kind, 0, stream.as_mut_ptr());
            let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
            libc::socketpair(libc::AF_UNIX, kind, 0, datagram.as_mut_ptr());
            let epoll = libc::epoll_create1(0);
            let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 1 };
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, stream[0], &raw mut event);
            let file = libc::memfd_create(c"discard".as_ptr(), 0);
            libc::ftruncate(file, LENGTH as i64);
            Self {
                at,
                null: libc::open(c"/dev/null".as_ptr(), libc::O_RDWR),
                zero: libc::open(c"/dev/zero".as_ptr(), libc::O_RDWR),
                maps: libc::open(c"/proc/self/smaps".as_ptr(), libc::O_RDONLY),
                directory: libc::open(c"/proc/self".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY),
                file,
                pipe,
                stream,
                datagram,
                epoll,
                pid: libc::getpid(),
            }
        }
    }

    /// The address in page `index`, across the boundary to the next.
    const fn across(&self, index: usize) -> usize {
        self.at + (index + 1) * PAGE - 6
    }

    /// Puts words into the memory from an address on, as far as it is there.
    fn put(&self, at: usize, words: &[usize]) {
        let bytes = std::mem::size_of_val(words);
        let source = [libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: bytes }];
        let target = [libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes }];
        // SAFETY: the source is a slice; the kernel checks the target, which belongs to no object.
        unsafe { libc::process_vm_writev(self.pid, target.as_ptr(), 1, source.as_ptr(), 1, 0) };
    }
}

/// A call with its memory in the place.
type Call = fn(&Place);

const CALLS: &[(&str, Call)] = &[
    ("read", |p| sys!(SYS_read, p.zero, p.at, LENGTH)),
    ("write", |p| sys!(SYS_write, p.file, p.at, LENGTH)),
    ("pread", |p| sys!(SYS_pread64, p.file, p.at, LENGTH, 0)),
    ("pwrite", |p| sys!(SYS_pwrite64, p.file, p.at, LENGTH, 1)),
    ("readv", |p| {
        p.put(p.across(0), &[p.at, LENGTH, p.at, LENGTH]);
        sys!(SYS_readv, p.zero, p.across(0), 2);
    }),
    ("pipe", |p| {
        sys!(SYS_write, p.pipe[1], p.at, LENGTH);
        sys!(SYS_read, p.pipe[0], p.at, LENGTH);
    }),
    ("stream", |p| {
        sys!(SYS_sendto, p.stream[0], p.at, LENGTH, 0, 0, 0);
        sys!(SYS_recvfrom, p.stream[1], p.at, LENGTH, 0, p.across(1), p.across(2));
    }),
    ("datagram", |p| {
        sys!(SYS_sendto, p.datagram[0], p.at, 3 * PAGE, 0, 0, 0);
        sys!(SYS_recvfrom, p.datagram[1], p.at, LENGTH, 0, p.across(1), p.across(2));
    }),
    ("sendmsg", |p| {
        p.put(p.across(3), &[0, 0, p.across(4), 1, 0, 0, 0]);
        p.put(p.across(4), &[p.at, 2 * PAGE]);
        sys!(SYS_sendmsg, p.stream[0], p.across(3), 0);
        sys!(SYS_recvmsg, p.stream[1], p.across(3), 0);
    }),
    ("getrandom", |p| sys!(SYS_getrandom, p.at, LENGTH, 0)),
    ("poll", |p| sys!(SYS_poll, p.across(0), 600, 0)),
    ("poll of a few", |p| sys!(SYS_poll, p.across(0), 8, 0)),
    ("select", |p| {
        p.put(p.across(2), &[0, 0]);
        sys!(SYS_select, 1000, p.across(0), p.across(1), p.across(3), p.across(2));
    }),
    ("epoll_wait", |p| sys!(SYS_epoll_wait, p.epoll, p.across(0), 1000, 0)),
    ("getdents64", |p| {
        sys!(SYS_lseek, p.directory, 0, 0);
        sys!(SYS_getdents64, p.directory, p.at + 1, LENGTH - 1);
    }),
    ("smaps", |p| {
        sys!(SYS_pread64, p.maps, p.at, LENGTH, 0);
    }),
    ("stat", |p| sys!(SYS_fstat, p.file, p.across(0))),
    ("getcwd", |p| sys!(SYS_getcwd, p.across(0), PAGE)),
    ("open", |p| sys!(SYS_openat, libc::AT_FDCWD, p.across(0), 0)),
    ("readlink", |p| sys!(SYS_readlinkat, libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), p.across(0), PAGE)),
    ("uname", |p| sys!(SYS_uname, p.across(0))),
    ("rt_sigaction", |p| sys!(SYS_rt_sigaction, libc::SIGUSR1, 0, p.across(0), 8)),
    ("rt_sigprocmask", |p| sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, p.across(1), p.across(0), 8)),
    ("nanosleep", |p| sys!(SYS_nanosleep, p.across(0), p.across(1))),
    ("clock_gettime", |p| sys!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, p.across(0))),
    ("futex", |p| sys!(SYS_futex, p.at, libc::FUTEX_WAIT, 1, p.across(1), 0, 0)),
    ("futex requeue", |p| sys!(SYS_futex, p.at, libc::FUTEX_CMP_REQUEUE, 1, 1, p.at + PAGE, 0)),
    ("futex operation", |p| sys!(SYS_futex, p.at, libc::FUTEX_WAKE_OP, 1, 1, p.at + PAGE, 1 << 12)),
    ("futex priority", |p| sys!(SYS_futex, p.at, libc::FUTEX_TRYLOCK_PI, 0, 0, 0, 0)),
    ("pipe2", |p| {
        p.put(p.across(0), &[usize::MAX]);
        sys!(SYS_pipe2, p.across(0), 0);
        let mut ends = [-1; 2];
        for (number, end) in ends.iter_mut().enumerate() {
            let target = std::ptr::from_mut(end).cast::<libc::c_void>();
            let target = [libc::iovec { iov_base: target, iov_len: 4 }];
            let from = (p.across(0) + 4 * number) as *mut libc::c_void;
            let from = [libc::iovec { iov_base: from, iov_len: 4 }];
            // SAFETY: the target is this array; the kernel checks the source.
            unsafe { libc::process_vm_readv(p.pid, target.as_ptr(), 1, from.as_ptr(), 1, 0) };
            // The numbers may have been discarded.
            if *end > p.epoll {
                sys!(SYS_close, *end);
            }
        }
    }),
    ("wait4", |p| sys!(SYS_wait4, -1, p.across(0), libc::WNOHANG, p.across(1))),
    ("getsockopt", |p| {
        p.put(p.across(1), &[8]);
        sys!(SYS_getsockopt, p.stream[0], libc::SOL_SOCKET, libc::SO_RCVBUF, p.across(0), p.across(1));
    }),
    ("mincore", |p| sys!(SYS_mincore, p.at, LENGTH, p.across(0))),
    ("sched_getaffinity", |p| sys!(SYS_sched_getaffinity, 0, 128, p.across(0))),
    ("process_vm_readv", |p| {
        p.put(p.across(0), &[p.at, LENGTH, p.at, LENGTH]);
        sys!(SYS_process_vm_readv, p.pid, p.across(0), 1, p.across(0), 1, 0);
    }),
    ("sendfile", |p| sys!(SYS_sendfile, p.null, p.file, p.across(0), LENGTH)),
    ("splice", |p| sys!(SYS_splice, p.file, p.across(0), p.pipe[1], 0, PAGE, 2)),
    ("vmsplice", |p| {
        p.put(p.across(0), &[p.at, LENGTH]);
        sys!(SYS_vmsplice, p.pipe[1], p.across(0), 1, 2);
        sys!(SYS_read, p.pipe[0], p.at, LENGTH);
    }),
    ("execve", |p| sys!(SYS_execve, p.across(0), p.across(1), p.across(2))),
    ("prctl", |p| sys!(SYS_prctl, libc::PR_GET_NAME, p.across(0), 0, 0, 0)),
    ("getgroups", |p| sys!(SYS_getgroups, 100, p.across(0))),
    ("populate", |p| sys!(SYS_madvise, p.at, LENGTH, libc::MADV_POPULATE_WRITE)),
    ("mlock", |p| sys!(SYS_mlock, p.at, LENGTH)),
    ("mremap", |p| sys!(SYS_mremap, p.at, LENGTH, LENGTH, 0, 0)),
];

/// A way to take pages away, of which the caller's other thread may use any.
type Discard = fn(usize);

/// Runs a call beside a thread that takes its pages away, for ever.
fn run(call: Call, discard: Discard, ready: impl FnOnce()) -> i32 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping somewhere. One more page than is used keeps what is behind it away.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), LENGTH + PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if at == libc::MAP_FAILED {
        return 1;
    }
    let at = at as usize;
    let place = Place::new(at);
    std::thread::spawn(move || {
        loop {
            discard(at);
        }
    });
    ready();
    loop {
        call(&place);
    }
}

fn check(discard: Discard) -> Outcome {
    for (name, call) in CALLS {
        let (reader, writer) = pipe().or_fail()?;
        let child = spawn_child(|| {
            run(*call, discard, || {
                let _ = write(&writer, b"x");
            })
        })?;
        drop(writer);
        if read(&reader, &mut [0]).or_fail()? != 1 {
            let status = waitpid(child, None).or_fail()?;
            return Err(format!("{name}: {status:?} before its first call"));
        }
        std::thread::sleep(TIME);
        kill(child, Signal::SIGKILL).or_fail()?;
        let mut status = WaitStatus::StillAlive;
        for _ in 0..ATTEMPTS {
            status = waitpid(child, Some(WaitPidFlag::WNOHANG)).or_fail()?;
            if status != WaitStatus::StillAlive {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if !matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _)) {
            return Err(format!("{name}: {status:?} after SIGKILL"));
        }
    }
    Ok(())
}

fn calls_end_by_sigkill_while_their_pages_are_discarded() -> Outcome {
    check(|at| sys!(SYS_madvise, at, LENGTH, libc::MADV_DONTNEED))
}

fn calls_end_by_sigkill_while_their_pages_are_protected() -> Outcome {
    check(|at| {
        sys!(SYS_mprotect, at, LENGTH, libc::PROT_NONE);
        sys!(SYS_mprotect, at, LENGTH, libc::PROT_READ | libc::PROT_WRITE);
    })
}

fn calls_end_by_sigkill_while_their_pages_are_mapped_anew() -> Outcome {
    check(|at| {
        sys!(SYS_munmap, at, LENGTH);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        sys!(SYS_mmap, at, LENGTH, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    })
}
