//! Calls on Linux: attempts that do not wait, and epoll in between. A call that Linux can only make by blocking a
//! thread is made on a thread of a pool.
#![allow(unsafe_code)] // The memory that a call's words name.

use crate::calls::ChildInfo;
use crate::words::{Words, last_error};
use core::ffi::CStr;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::task::Poll;
use core::time::Duration;
use heddle_coroutine::io::{Direction, Ready, ready};
use heddle_coroutine::spawn_blocking;
use heddle_coroutine::time::sleep;
use signal_hook::SigId;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const AGAIN: i64 = -(libc::EAGAIN as i64);

/// Carries a call out. When the future is dropped, nothing touches the call's memory any more.
pub(crate) async fn run(words: &Words) -> i64 {
    match words.number {
        libc::SYS_read | libc::SYS_write => transfer(words).await,
        libc::SYS_recvfrom | libc::SYS_sendto => message(words).await,
        libc::SYS_accept4 => accept(words).await,
        libc::SYS_connect => connect(words).await,
        libc::SYS_openat => open(words).await,
        libc::SYS_fsync => fsync(words).await,
        libc::SYS_poll => poll(words).await,
        libc::SYS_nanosleep => nanosleep(words).await,
        libc::SYS_futex => futex(words).await,
        libc::SYS_waitid => waitid(words).await,
        // A file's position is known, so it is a regular file; and a close does not wait.
        _ => words.call(),
    }
}

/// Runs `work` on another thread, unless the future is dropped before a thread has taken it up. Work that waits for a
/// thread when its process forks is the parent's. `Err` is why there is no thread.
async fn unblock<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, i64> + Send + 'static,
) -> Result<T, i64> {
    struct Withdraw(Arc<AtomicBool>);

    impl Drop for Withdraw {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    let is_withdrawn = Arc::new(AtomicBool::new(false));
    let withdraw = Withdraw(is_withdrawn.clone());
    let forks = heddle_coroutine::forks();
    let done = spawn_blocking(move || {
        let is_wanted = !is_withdrawn.load(Ordering::Acquire) && forks == heddle_coroutine::forks();
        if is_wanted { work() } else { Err(-i64::from(libc::ECANCELED)) }
    });
    let result = done.await.unwrap_or(Err(AGAIN));
    drop(withdraw);
    result
}

/// The call with a descriptor of its own for the same file, which is closed after it. A call on another thread may go
/// on when its future has been dropped; by then the program may have closed its descriptor, and another file have the
/// number.
fn own_descriptor(words: &Words) -> Result<(Words, OwnedFd), i64> {
    let Some(fd) = borrowed(descriptor(words)) else { return Err(-i64::from(libc::EBADF)) };
    let own = fd.try_clone_to_owned().map_err(|error| negated(&error))?;
    let mut words = *words;
    words.arguments[0] = own.as_raw_fd() as u64;
    Ok((words, own))
}

async fn fsync(words: &Words) -> i64 {
    let (words, own) = match own_descriptor(words) {
        Ok(own) => own,
        Err(error) => return error,
    };
    unblock(move || {
        let _own = own;
        Ok(words.call())
    })
    .await
    .unwrap_or_else(|error| error)
}

fn descriptor(words: &Words) -> RawFd {
    words.arguments[0] as RawFd
}

fn borrowed<'a>(number: RawFd) -> Option<BorrowedFd<'a>> {
    // SAFETY: the future that waits for the call keeps the descriptor open.
    (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

/// Whether the descriptor is in non-blocking mode: then the program does not want to wait.
fn is_non_blocking(number: RawFd) -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::fcntl(number, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// Waits until another attempt may do better. `false`: the file is always ready.
async fn wait_for(number: RawFd, direction: Direction) -> io::Result<bool> {
    let Some(fd) = borrowed(number) else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
    match ready(fd, direction).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
        Err(error) => Err(error),
    }
}

fn negated(error: &io::Error) -> i64 {
    -i64::from(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Repeats an attempt that does not wait until it needs not.
async fn retry(
    number: RawFd,
    direction: Direction,
    attempt: impl Fn() -> i64,
    last: impl Fn() -> i64,
) -> i64 {
    loop {
        let result = attempt();
        if result != AGAIN || is_non_blocking(number) {
            return result;
        }
        match wait_for(number, direction).await {
            Ok(true) => {}
            Ok(false) => return last(),
            Err(error) => return negated(&error),
        }
    }
}

async fn transfer(words: &Words) -> i64 {
    let reads = words.number == libc::SYS_read;
    let direction = if reads { Direction::Read } else { Direction::Write };
    retry(descriptor(words), direction, || attempt_transfer(words, reads), || words.call()).await
}

fn attempt_transfer(words: &Words, reads: bool) -> i64 {
    let [fd, address, length, ..] = words.arguments;
    let piece = [address, length];
    let number = if reads { libc::SYS_preadv2 } else { libc::SYS_pwritev2 };
    // SAFETY: one piece of the call's memory, which its future keeps; the position -1 is the file's own.
    let result = unsafe { libc::syscall(number, fd, piece.as_ptr(), 1, -1_i64, -1_i64, libc::RWF_NOWAIT) };
    if result >= 0 {
        return result;
    }
    match last_error() {
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL => attempt_when_ready(words, reads),
        error => -i64::from(error),
    }
}

/// For files that know no attempts: looks first, and takes no more than what a ready file has or takes at least.
fn attempt_when_ready(words: &Words, reads: bool) -> i64 {
    let events = if reads { libc::POLLIN } else { libc::POLLOUT };
    let mut entry = libc::pollfd { fd: descriptor(words), events, revents: 0 };
    // SAFETY: one entry, which lives for the call.
    if unsafe { libc::poll(&raw mut entry, 1, 0) } == 0 {
        return AGAIN;
    }
    let mut words = *words;
    if !reads {
        words.arguments[2] = words.arguments[2].min(libc::PIPE_BUF as u64);
    }
    words.call()
}

async fn message(words: &Words) -> i64 {
    let direction = if words.number == libc::SYS_recvfrom { Direction::Read } else { Direction::Write };
    let mut attempt = *words;
    attempt.arguments[3] |= libc::MSG_DONTWAIT as u64;
    let wants_to_wait = words.arguments[3] & libc::MSG_DONTWAIT as u64 == 0;
    if !wants_to_wait {
        return words.call();
    }
    retry(descriptor(words), direction, || attempt.call(), || words.call()).await
}

/// Waits for a connection, and takes it on another thread if it might be gone by then.
async fn accept(words: &Words) -> i64 {
    if is_non_blocking(descriptor(words)) {
        return words.call();
    }
    if let Err(error) = wait_for(descriptor(words), Direction::Read).await {
        return negated(&error);
    }
    let (words, own) = match own_descriptor(words) {
        Ok(own) => own,
        Err(error) => return error,
    };
    let taken = unblock(move || {
        let _own = own;
        take(words.call())
    });
    made(taken.await)
}

/// Wraps a descriptor, so that it is closed if its future is gone.
fn take(result: i64) -> Result<OwnedFd, i64> {
    // SAFETY: the descriptor is the call's result, known here alone.
    if result < 0 { Err(result) } else { Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) }) }
}

fn made(result: Result<OwnedFd, i64>) -> i64 {
    result.map_or_else(|error| error, |descriptor| descriptor.into_raw_fd().into())
}

async fn connect(words: &Words) -> i64 {
    let number = descriptor(words);
    if is_non_blocking(number) {
        return words.call();
    }
    // SAFETY: the call's memory, which its future keeps.
    let address = unsafe {
        let start = core::ptr::with_exposed_provenance::<u8>(words.arguments[1] as usize);
        core::slice::from_raw_parts(start, words.arguments[2] as usize)
    };
    let address = address.to_vec();
    let (mut words, own) = match own_descriptor(words) {
        Ok(own) => own,
        Err(error) => return error,
    };
    unblock(move || {
        let _own = own;
        words.arguments[1] = address.as_ptr().expose_provenance() as u64;
        Ok(words.call())
    })
    .await
    .unwrap_or_else(|error| error)
}

async fn open(words: &Words) -> i64 {
    // SAFETY: a path that ends with a zero, which the call's future keeps.
    let path = unsafe { CStr::from_ptr(core::ptr::with_exposed_provenance(words.arguments[1] as usize)) };
    let path = path.to_owned();
    let mut words = *words;
    let opened = unblock(move || {
        words.arguments[1] = path.as_ptr().expose_provenance() as u64;
        take(words.call())
    });
    made(opened.await)
}

async fn nanosleep(words: &Words) -> i64 {
    // SAFETY: the call's memory, which its future keeps.
    let time =
        unsafe { core::ptr::with_exposed_provenance::<libc::timespec>(words.arguments[0] as usize).read() };
    match (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (Ok(seconds), Ok(nanoseconds)) if nanoseconds < 1_000_000_000 => {
            sleep(Duration::new(seconds, nanoseconds)).await;
            0
        }
        _ => -i64::from(libc::EINVAL),
    }
}

async fn poll(words: &Words) -> i64 {
    let [address, count, timeout, ..] = words.arguments;
    let mut look = *words;
    look.arguments[2] = 0;
    let timeout_ms = timeout as i32;
    let mut limit = pin!(u64::try_from(timeout_ms).ok().map(|ms| sleep(Duration::from_millis(ms))));
    loop {
        let found = look.call();
        if found != 0 || timeout_ms == 0 {
            return found;
        }
        // SAFETY: the entries are the call's memory, which its future keeps.
        let entries = unsafe {
            let start = core::ptr::with_exposed_provenance::<libc::pollfd>(address as usize);
            core::slice::from_raw_parts(start, count as usize)
        };
        let mut waiting: Vec<Ready<'_>> = entries.iter().flat_map(waits).collect();
        let is_over = poll_fn(|context| {
            for each in &mut waiting {
                if Pin::new(each).poll(context).is_ready() {
                    return Poll::Ready(false);
                }
            }
            limit.as_mut().as_pin_mut().map_or(Poll::Pending, |limit| limit.poll(context).map(|()| true))
        });
        if is_over.await {
            return look.call();
        }
    }
}

fn waits<'a>(entry: &libc::pollfd) -> impl Iterator<Item = Ready<'a>> {
    let wanted = [(libc::POLLOUT, Direction::Write), (libc::POLLIN, Direction::Read)];
    let (number, events) = (entry.fd, entry.events);
    // poll(2) reports an end or an error whatever was asked for, so reading is always waited for.
    wanted
        .into_iter()
        .filter(move |(event, direction)| events & event != 0 || *direction == Direction::Read)
        .filter_map(move |(_, direction)| borrowed(number).map(|fd| ready(fd, direction)))
}

/// A thread waits at the word. Its wait has a bit of its own (or nearly so: others with the same bit wake too, which a
/// futex may), by which it is ended when the future is dropped.
async fn futex(words: &Words) -> i64 {
    /// No thread has begun to wait. The first of two changes that: the thread, or the drop of the future.
    const WAITS_FOR_A_THREAD: u32 = 0;
    const HAS_A_THREAD: u32 = 1;
    /// No thread touches the word any more.
    const OVER: u32 = 2;

    /// Whether the caller is the first.
    fn change(stage: &AtomicU32, to: u32) -> bool {
        stage.compare_exchange(WAITS_FOR_A_THREAD, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    struct Cancel {
        word: u64,
        bit: u32,
        stage: Arc<AtomicU32>,
        is_cancelled: Arc<AtomicBool>,
        forks: u32,
    }

    impl Drop for Cancel {
        fn drop(&mut self) {
            if self.forks != heddle_coroutine::forks() {
                // The thread is the parent's.
                return;
            }
            self.is_cancelled.store(true, Ordering::Release);
            if change(&self.stage, OVER) {
                return;
            }
            while self.stage.load(Ordering::Acquire) != OVER {
                let wake = libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG;
                // SAFETY: wakes at a word; reads no memory.
                unsafe { libc::syscall(libc::SYS_futex, self.word, wake, i32::MAX, 0, 0, self.bit) };
                std::thread::yield_now();
            }
        }
    }

    static NEXT: AtomicU32 = AtomicU32::new(0);
    let bit = 1 << (NEXT.fetch_add(1, Ordering::Relaxed) % 32);
    let [word, _, expected, ..] = words.arguments;
    let stage = Arc::new(AtomicU32::new(WAITS_FOR_A_THREAD));
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let forks = heddle_coroutine::forks();
    let cancel = Cancel { word, bit, stage: stage.clone(), is_cancelled: is_cancelled.clone(), forks };
    let result = unblock(move || {
        if !change(&stage, HAS_A_THREAD) {
            return Err(-i64::from(libc::ECANCELED));
        }
        let wait = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
        let result = loop {
            if is_cancelled.load(Ordering::Acquire) {
                break -i64::from(libc::ECANCELED);
            }
            // SAFETY: the word is kept until `OVER`, which the drop of `cancel` waits for.
            let result = unsafe { libc::syscall(libc::SYS_futex, word, wait, expected, 0, 0, bit) };
            if result == 0 || last_error() != libc::EINTR {
                break if result == 0 { 0 } else { -i64::from(last_error()) };
            }
        };
        stage.store(OVER, Ordering::Release);
        Ok(result)
    })
    .await;
    drop(cancel);
    result.unwrap_or_else(|error| error)
}

async fn waitid(words: &Words) -> i64 {
    let [kind, id, info, options, ..] = words.arguments;
    let mut look = *words;
    look.arguments[3] |= libc::WNOHANG as u64;
    // A process's descriptor reports its end alone.
    let tells_all = options & (libc::WSTOPPED | libc::WCONTINUED) as u64 == 0;
    let child = if kind == u64::from(libc::P_PID) && tells_all { process_descriptor(id) } else { None };
    // Before the first look, so that an event after it is reported.
    let mut signals = None;
    if child.is_none() && options & libc::WNOHANG as u64 == 0 {
        signals = match ChildSignals::new() {
            Ok(signals) => Some(signals),
            Err(error) => return negated(&error),
        };
    }
    loop {
        // SAFETY: the call's memory, which its future keeps.
        let info = unsafe { &mut *core::ptr::with_exposed_provenance_mut::<ChildInfo>(info as usize) };
        *info = ChildInfo::default();
        let result = look.call();
        if result != 0 || info.pid != 0 || options & libc::WNOHANG as u64 != 0 {
            return result;
        }
        let waited = match (&child, &signals) {
            (Some(child), _) => ready(child.as_fd(), Direction::Read).await,
            (None, Some(signals)) => signals.next().await,
            (None, None) => return result,
        };
        if let Err(error) = waited {
            return negated(&error);
        }
    }
}

/// Reports SIGCHLD, for as long as it lives: the signal's handler, which calls the program's own too, writes into a
/// socket.
struct ChildSignals {
    told: UnixStream,
    id: SigId,
}

impl ChildSignals {
    fn new() -> io::Result<ChildSignals> {
        let (told, teller) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        Ok(ChildSignals { told, id: signal_hook::low_level::pipe::register(libc::SIGCHLD, teller)? })
    }

    /// Waits for one that came since the last wait, or since the beginning.
    async fn next(&self) -> io::Result<()> {
        ready(self.told.as_fd(), Direction::Read).await?;
        let mut bytes = [0; 64];
        // Fewer bytes than there were signals are as good as one.
        match (&self.told).read(&mut bytes) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for ChildSignals {
    fn drop(&mut self) {
        signal_hook::low_level::unregister(self.id);
    }
}

fn process_descriptor(id: u64) -> Option<OwnedFd> {
    // SAFETY: makes a descriptor.
    take(unsafe { libc::syscall(libc::SYS_pidfd_open, id, 0) }).ok()
}
