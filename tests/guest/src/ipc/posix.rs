//! POSIX message queues, mq_overview(7).
#![allow(unsafe_code, reason = "message queues have no safe form without another crate")]

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socket};
use nix::sys::wait::{WaitStatus, waitpid};

use super::as_nobody;
use crate::harness::{OrFail, Outcome, Scratch, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    queues_are_made_and_opened
    shapes_have_limits
    priorities_order_messages
    full_and_empty_queues_make_wait
    timeouts_are_moments
    attributes
    readiness
    one_process_is_told_once
    receivers_come_before_notification
    wishes_end_with_the_descriptor
    a_socket_is_told
    the_directory_of_queues
    permissions_are_checked
    users_have_a_limit
}

/// A descriptor of a queue, closed when dropped; the name goes with it if it was made here.
struct Queue {
    descriptor: i32,
    made: Option<CString>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's, and the name a string.
        unsafe {
            libc::close(self.descriptor);
            if let Some(name) = &self.made {
                libc::mq_unlink(name.as_ptr());
            }
        }
    }
}

fn name(number: u32) -> String {
    format!("/heddle-{}-{number}", std::process::id())
}

fn open(name: &str, flags: i32, mode: u32, shape: Option<(i64, i64)>) -> Result<Queue, Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: all zeroes is a value of the structure.
    let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
    let mut pointer = std::ptr::null();
    if let Some((messages, size)) = shape {
        (attributes.mq_maxmsg, attributes.mq_msgsize) = (messages, size);
        pointer = &raw const attributes;
    }
    // SAFETY: name and attributes are valid.
    let descriptor = Errno::result(unsafe { libc::mq_open(name.as_ptr(), flags, mode, pointer) })?;
    let made = (flags & libc::O_CREAT != 0).then_some(name);
    Ok(Queue { descriptor, made })
}

fn unlink(name: &str) -> Result<i32, Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    // SAFETY: it is a string.
    Errno::result(unsafe { libc::mq_unlink(name.as_ptr()) })
}

const CREATE: i32 = libc::O_CREAT | libc::O_RDWR;
const NEW: i32 = CREATE | libc::O_EXCL;

impl Queue {
    /// A queue for four messages of 16 bytes.
    fn new(name: &str, flags: i32) -> Result<Self, String> {
        open(name, NEW | flags, 0o600, Some((4, 16))).or_fail()
    }

    fn send(&self, text: &str, priority: u32) -> Result<i32, Errno> {
        self.send_until(text, priority, None)
    }

    fn send_until(&self, text: &str, priority: u32, limit: Option<libc::timespec>) -> Result<i32, Errno> {
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let text = text.as_bytes();
        // SAFETY: the text is as long as said.
        let sent =
            unsafe { libc::mq_timedsend(self.descriptor, text.as_ptr().cast(), text.len(), priority, limit) };
        Errno::result(sent)
    }

    fn receive(&self) -> Result<(String, u32), Errno> {
        self.receive_until(16, None)
    }

    fn receive_until(&self, room: usize, limit: Option<libc::timespec>) -> Result<(String, u32), Errno> {
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (mut text, mut priority) = ([0_u8; 64], 0);
        // SAFETY: no test says more room than there is.
        let got = unsafe {
            libc::mq_timedreceive(self.descriptor, text.as_mut_ptr().cast(), room, &raw mut priority, limit)
        };
        let got = Errno::result(got)? as usize;
        Ok((String::from_utf8_lossy(&text[..got]).into_owned(), priority))
    }

    fn attributes(&self) -> Result<libc::mq_attr, Errno> {
        // SAFETY: all zeroes is a value of the structure.
        let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is valid.
        Errno::result(unsafe { libc::mq_getattr(self.descriptor, &raw mut attributes) })?;
        Ok(attributes)
    }

    fn set_flags(&self, flags: i64) -> Result<i64, Errno> {
        // SAFETY: all zeroes is a value of the structure.
        let (mut new, mut old): (libc::mq_attr, libc::mq_attr) = unsafe { std::mem::zeroed() };
        new.mq_flags = flags;
        // SAFETY: the structures are valid.
        Errno::result(unsafe { libc::mq_setattr(self.descriptor, &raw const new, &raw mut old) })?;
        Ok(old.mq_flags)
    }

    /// Asks for a signal with a value; `None` withdraws.
    fn notify(&self, signal: Option<i32>) -> Result<i32, Errno> {
        // SAFETY: all zeroes is a value of the structure.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal.unwrap_or(0);
        event.sigev_value.sival_ptr = std::ptr::without_provenance_mut(77);
        let pointer = if signal.is_some() { &raw const event } else { std::ptr::null() };
        // SAFETY: the structure is valid, or there is none.
        Errno::result(unsafe { libc::mq_notify(self.descriptor, pointer) })
    }

    fn poll(&self) -> Result<i16, Errno> {
        let mut poll = libc::pollfd { fd: self.descriptor, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one structure.
        Errno::result(unsafe { libc::poll(&raw mut poll, 1, 0) })?;
        Ok(poll.revents)
    }
}

fn got(text: &str, priority: u32) -> Result<(String, u32), Errno> {
    Ok((text.to_owned(), priority))
}

fn ended(pid: nix::unistd::Pid) -> Result<i32, String> {
    match waitpid(pid, None).or_fail()? {
        WaitStatus::Exited(_, status) => Ok(status),
        status => Err(format!("{status:?}")),
    }
}

/// A moment so many milliseconds from now.
fn moment(milliseconds: u64) -> Option<libc::timespec> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    let then = now + std::time::Duration::from_millis(milliseconds);
    Some(libc::timespec { tv_sec: then.as_secs() as i64, tv_nsec: i64::from(then.subsec_nanos()) })
}

fn queues_are_made_and_opened() -> Outcome {
    let path = name(1);
    expect_eq!(open(&path, libc::O_RDWR, 0, None).err(), Some(Errno::ENOENT));
    let queue = Queue::new(&path, 0)?;
    expect_eq!(open(&path, NEW, 0o600, None).err(), Some(Errno::EEXIST));
    let again = open(&path, libc::O_RDONLY, 0, None).or_fail()?;
    queue.send("text", 0).or_fail()?;
    expect_eq!(again.send("text", 0), Err(Errno::EBADF));
    expect_eq!(again.receive(), got("text", 0));
    let writer = open(&path, libc::O_WRONLY, 0, None).or_fail()?;
    expect_eq!(writer.receive(), Err(Errno::EBADF));
    for wrong in ["/a/b", "/.", "/.."] {
        expect_eq!(open(wrong, CREATE, 0o600, None).err(), Some(Errno::EACCES));
    }
    expect_eq!(open("/", CREATE, 0o600, None).err(), Some(Errno::ENOENT));
    expect_eq!(open(&format!("/{}", "a".repeat(256)), CREATE, 0o600, None).err(), Some(Errno::ENAMETOOLONG));
    // The name goes, the queue stays until it is closed.
    unlink(&path).or_fail()?;
    expect_eq!(unlink(&path), Err(Errno::ENOENT));
    expect_eq!(open(&path, libc::O_RDWR, 0, None).err(), Some(Errno::ENOENT));
    writer.send("left", 1).or_fail()?;
    expect_eq!(queue.receive(), got("left", 1));
    // Descriptors are closed by execve.
    let flags = nix::fcntl::fcntl(
        // SAFETY: the queue lives longer.
        unsafe { std::os::fd::BorrowedFd::borrow_raw(queue.descriptor) },
        nix::fcntl::FcntlArg::F_GETFD,
    );
    expect_eq!(flags, Ok(libc::FD_CLOEXEC));
    Ok(())
}

fn shapes_have_limits() -> Outcome {
    let path = name(1);
    for wrong in [(0, 16), (-1, 16), (4, 0), (65_537, 1), (1, (16 << 20) + 1)] {
        expect_eq!(open(&path, NEW, 0o600, Some(wrong)).err(), Some(Errno::EINVAL));
    }
    let usual = open(&path, NEW, 0o600, None).or_fail()?;
    let attributes = usual.attributes().or_fail()?;
    expect_eq!((attributes.mq_maxmsg, attributes.mq_msgsize, attributes.mq_curmsgs), (10, 8192, 0));
    for (file, value) in [
        ("msg_max", "10"),
        ("msg_default", "10"),
        ("msgsize_max", "8192"),
        ("msgsize_default", "8192"),
        ("queues_max", "256"),
    ] {
        let limit = fs::read_to_string(format!("/proc/sys/fs/mqueue/{file}")).or_fail()?;
        expect_eq!(limit.trim(), value);
    }
    expect_eq!(usual.send(&"a".repeat(8193), 0), Err(Errno::EMSGSIZE));
    usual.send(&"a".repeat(64), 0).or_fail()?;
    expect_eq!(usual.receive_until(64, None), Err(Errno::EMSGSIZE));
    expect_eq!(usual.send("a", 32_768), Err(Errno::EINVAL));
    usual.send("", 32_767).or_fail()?;
    Ok(())
}

fn priorities_order_messages() -> Outcome {
    let queue = Queue::new(&name(1), 0)?;
    for (text, priority) in [("a", 1), ("b", 5), ("c", 1), ("d", 5)] {
        queue.send(text, priority).or_fail()?;
    }
    for (text, priority) in [("b", 5), ("d", 5), ("a", 1), ("c", 1)] {
        expect_eq!(queue.receive(), got(text, priority));
    }
    Ok(())
}

fn full_and_empty_queues_make_wait() -> Outcome {
    let queue = Queue::new(&name(1), 0)?;
    let child = spawn_child(|| i32::from(queue.receive() != got("first", 2)))?;
    queue.send("first", 2).or_fail()?;
    expect_eq!(ended(child)?, 0);
    for _ in 0..4 {
        queue.send("x", 0).or_fail()?;
    }
    let child = spawn_child(|| i32::from(queue.send("last", 9).is_err()))?;
    expect_eq!(queue.receive(), got("x", 0));
    expect_eq!(ended(child)?, 0);
    expect_eq!(queue.receive(), got("last", 9));
    Ok(())
}

fn timeouts_are_moments() -> Outcome {
    let queue = Queue::new(&name(1), 0)?;
    expect_eq!(queue.receive_until(16, moment(5)), Err(Errno::ETIMEDOUT));
    let past = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    expect_eq!(queue.receive_until(16, Some(past)), Err(Errno::ETIMEDOUT));
    for _ in 0..4 {
        queue.send_until("x", 0, Some(past)).or_fail()?;
    }
    expect_eq!(queue.send_until("x", 0, Some(past)), Err(Errno::ETIMEDOUT));
    let wrong = libc::timespec { tv_sec: 1, tv_nsec: 1_000_000_000 };
    expect_eq!(queue.send_until("x", 0, Some(wrong)), Err(Errno::EINVAL));
    expect_eq!(queue.receive_until(16, Some(wrong)), Err(Errno::EINVAL));
    Ok(())
}

fn attributes() -> Outcome {
    let queue = Queue::new(&name(1), libc::O_NONBLOCK)?;
    queue.send("x", 0).or_fail()?;
    let attributes = queue.attributes().or_fail()?;
    let shown = (attributes.mq_flags, attributes.mq_maxmsg, attributes.mq_msgsize, attributes.mq_curmsgs);
    expect_eq!(shown, (i64::from(libc::O_NONBLOCK), 4, 16, 1));
    queue.receive().or_fail()?;
    expect_eq!(queue.receive(), Err(Errno::EAGAIN));
    expect_eq!(queue.set_flags(0), Ok(i64::from(libc::O_NONBLOCK)));
    expect_eq!(queue.receive_until(16, moment(1)), Err(Errno::ETIMEDOUT));
    expect_eq!(queue.set_flags(i64::from(libc::O_APPEND)), Err(Errno::EINVAL));
    expect_eq!(queue.set_flags(i64::from(libc::O_NONBLOCK)), Ok(0));
    for _ in 0..4 {
        queue.send("x", 0).or_fail()?;
    }
    expect_eq!(queue.send("x", 0), Err(Errno::EAGAIN));
    // Of what is no queue there is nothing to ask.
    let other = std::mem::ManuallyDrop::new(Queue { descriptor: 0, made: None });
    expect_eq!(other.attributes().err(), Some(Errno::EBADF));
    Ok(())
}

fn readiness() -> Outcome {
    let queue = Queue::new(&name(1), 0)?;
    expect_eq!(queue.poll(), Ok(libc::POLLOUT));
    queue.send("x", 0).or_fail()?;
    expect_eq!(queue.poll(), Ok(libc::POLLIN | libc::POLLOUT));
    for _ in 0..3 {
        queue.send("x", 0).or_fail()?;
    }
    expect_eq!(queue.poll(), Ok(libc::POLLIN));
    let child = spawn_child(|| i32::from(queue.receive().is_err()))?;
    let mut poll = libc::pollfd { fd: queue.descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one structure.
    expect_eq!(Errno::result(unsafe { libc::poll(&raw mut poll, 1, -1) }), Ok(1));
    expect_eq!(ended(child)?, 0);
    Ok(())
}

fn one_process_is_told_once() -> Outcome {
    let queue = Queue::new(&name(1), 0)?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    set.thread_block().or_fail()?;
    queue.notify(Some(libc::SIGUSR1)).or_fail()?;
    expect_eq!(queue.notify(Some(libc::SIGUSR1)), Err(Errno::EBUSY));
    let child = spawn_child(|| queue.notify(Some(libc::SIGUSR1)).err().map_or(0, |error| error as i32))?;
    expect_eq!(ended(child)?, Errno::EBUSY as i32);
    let child = spawn_child(|| i32::from(queue.send("x", 0).is_err()))?;
    expect_eq!(ended(child)?, 0);
    // SAFETY: the structures are valid.
    let (signal, information) = unsafe {
        let mut information: libc::siginfo_t = std::mem::zeroed();
        let wanted = set.as_ref();
        (Errno::result(libc::sigwaitinfo(std::ptr::from_ref(wanted), &raw mut information)), information)
    };
    expect_eq!(signal, Ok(libc::SIGUSR1));
    // SAFETY: that is what such a signal tells.
    let (pid, value) = unsafe { (information.si_pid(), information.si_value().sival_ptr.addr()) };
    expect_eq!((information.si_code, pid, value), (-3, child.as_raw(), 77));
    // Nobody is told now, and the queue was not empty either.
    queue.notify(Some(libc::SIGUSR1)).or_fail()?;
    queue.send("y", 0).or_fail()?;
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structures are valid.
    let more = unsafe {
        libc::sigtimedwait(std::ptr::from_ref(set.as_ref()), std::ptr::null_mut(), &raw const none)
    };
    expect_eq!(Errno::result(more), Err(Errno::EAGAIN));
    queue.notify(None).or_fail()?;
    queue.notify(Some(libc::SIGUSR1)).or_fail()?;
    expect_eq!(queue.notify(Some(99)), Err(Errno::EINVAL));
    Ok(())
}

fn receivers_come_before_notification() -> Outcome {
    let queue = Queue::new(&name(1), 0)?;
    let mut set = SigSet::empty();
    set.add(Signal::SIGUSR1);
    set.thread_block().or_fail()?;
    queue.notify(Some(libc::SIGUSR1)).or_fail()?;
    let child = spawn_child(|| i32::from(queue.receive() != got("x", 0)))?;
    // It waits when it sleeps and goes on sleeping while others do nothing.
    let mut seen = 0;
    while seen < 20 {
        let text = fs::read_to_string(format!("/proc/{child}/stat")).or_fail()?;
        let sleeps = text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'));
        seen = if sleeps { seen + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    queue.send("x", 0).or_fail()?;
    expect_eq!(ended(child)?, 0);
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structures are valid.
    let told = unsafe {
        libc::sigtimedwait(std::ptr::from_ref(set.as_ref()), std::ptr::null_mut(), &raw const none)
    };
    expect_eq!(Errno::result(told), Err(Errno::EAGAIN));
    queue.send("y", 0).or_fail()?;
    // SAFETY: the structures are valid.
    let told = unsafe {
        libc::sigtimedwait(std::ptr::from_ref(set.as_ref()), std::ptr::null_mut(), std::ptr::null())
    };
    expect_eq!(Errno::result(told), Ok(libc::SIGUSR1));
    Ok(())
}

fn wishes_end_with_the_descriptor() -> Outcome {
    let path = name(1);
    let queue = Queue::new(&path, 0)?;
    let other = open(&path, libc::O_RDWR, 0, None).or_fail()?;
    queue.notify(Some(libc::SIGUSR1)).or_fail()?;
    // Any descriptor of the queue does, as with record locks.
    drop(other);
    let status = |queue: &Queue| queue.notify(Some(libc::SIGUSR1)).err().map_or(0, |error| error as i32);
    expect_eq!(ended(spawn_child(|| status(&queue))?)?, 0);
    // The end of the child has ended its wish.
    queue.notify(Some(libc::SIGUSR1)).or_fail()?;
    let mut text = [0_u8; 100];
    // SAFETY: the buffer is as long as said.
    let length = unsafe { libc::pread(queue.descriptor, text.as_mut_ptr().cast(), 100, 0) };
    let text = String::from_utf8_lossy(&text[..length.max(0) as usize]).into_owned();
    let fields: Vec<_> = text.split_whitespace().collect();
    let pid = format!("NOTIFY_PID:{}", std::process::id());
    expect_eq!(fields, ["QSIZE:0", "NOTIFY:0", "SIGNO:10", &pid]);
    Ok(())
}

fn a_socket_is_told() -> Outcome {
    const COOKIE: usize = 32;
    let name = name(1);
    let queue = Queue::new(&name, libc::O_RDWR | libc::O_NONBLOCK)?;
    let kind = (SockType::Raw, SockFlag::SOCK_NONBLOCK);
    let socket = socket(AddressFamily::Netlink, kind.0, kind.1, None).or_fail()?;
    let cookie: [u8; COOKIE] = std::array::from_fn(|index| index as u8);
    let notify = |descriptor: i32, cookie: *const u8| {
        // SAFETY: all zeroes is a value of the structure.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_THREAD, descriptor);
        event.sigev_value.sival_ptr = cookie.cast_mut().cast();
        // The library's own function would make a socket of its own.
        // SAFETY: the structure is valid.
        Errno::result(unsafe { libc::syscall(libc::SYS_mq_notify, queue.descriptor, &raw const event) })
    };
    let told = || {
        let mut bytes = [0; 2 * COOKIE];
        let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty())?;
        let is_cookie = length == COOKIE && bytes[..COOKIE - 1] == cookie[..COOKIE - 1];
        Ok((is_cookie, bytes[COOKIE - 1]))
    };
    expect_eq!(notify(-1, cookie.as_ptr()), Err(Errno::EBADF));
    expect_eq!(notify(queue.descriptor, cookie.as_ptr()), Err(Errno::ENOTSOCK));
    expect_eq!(notify(socket.as_raw_fd(), std::ptr::null()), Err(Errno::EFAULT));
    expect_eq!(notify(socket.as_raw_fd(), cookie.as_ptr()), Ok(0));
    expect_eq!(notify(socket.as_raw_fd(), cookie.as_ptr()), Err(Errno::EBUSY));
    expect_eq!(told(), Err(Errno::EAGAIN));
    queue.send("text", 1).or_fail()?;
    expect_eq!(told(), Ok((true, 1)));
    queue.receive().or_fail()?;
    expect_eq!(notify(socket.as_raw_fd(), cookie.as_ptr()), Ok(0));
    queue.notify(None).or_fail()?;
    expect_eq!(told(), Ok((true, 2)));
    expect_eq!(told(), Err(Errno::EAGAIN));
    Ok(())
}

fn the_directory_of_queues() -> Outcome {
    let scratch = Scratch::new("mqueue")?;
    let (path, other) = (name(1), name(2));
    let queue = Queue::new(&path, 0)?;
    let _second = Queue::new(&other, 0)?;
    mount(Some("none"), &scratch.0, Some("mqueue"), MsFlags::empty(), None::<&str>).or_fail()?;
    let result = (|| {
        let listed: Vec<_> = fs::read_dir(&scratch.0)
            .or_fail()?
            .flatten()
            .map(|entry| format!("/{}", entry.file_name().to_string_lossy()))
            .collect();
        expect!(listed.contains(&path) && listed.contains(&other));
        let file = scratch.path(&path[1..]);
        queue.send("four", 0).or_fail()?;
        expect!(fs::read_to_string(&file).or_fail()?.starts_with("QSIZE:4 "));
        let metadata = fs::metadata(&file).or_fail()?;
        expect_eq!((metadata.mode(), metadata.size()), (0o100600, 80));
        expect_eq!(fs::metadata(&scratch.0).or_fail()?.mode(), 0o41777);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).or_fail()?;
        expect_eq!(fs::metadata(&file).or_fail()?.mode(), 0o100640);
        expect!(fs::write(&file, "x").is_err());
        // A file that is made in it is a queue of the usual shape.
        let made = name(3);
        fs::File::create(scratch.path(&made[1..])).or_fail()?;
        let mut opened = open(&made, libc::O_RDWR, 0, None).or_fail()?;
        let opened_name = made.clone();
        opened.made = CString::new(made).ok();
        opened.send("made", 0).or_fail()?;
        expect_eq!(fs::metadata(scratch.path(&opened_name[1..])).or_fail()?.size(), 80);
        expect!(fs::create_dir(scratch.path("directory")).is_err());
        fs::remove_file(&file).or_fail()?;
        expect_eq!(open(&path, libc::O_RDWR, 0, None).err(), Some(Errno::ENOENT));
        Ok(())
    })();
    umount2(&scratch.0, MntFlags::empty()).or_fail()?;
    result
}

fn permissions_are_checked() -> Outcome {
    let path = name(1);
    let _queue = open(&path, NEW, 0o604, Some((4, 16))).or_fail()?;
    as_nobody(|| {
        expect_eq!(open(&path, libc::O_RDWR, 0, None).err(), Some(Errno::EACCES));
        expect_eq!(open(&path, libc::O_WRONLY, 0, None).err(), Some(Errno::EACCES));
        drop(open(&path, libc::O_RDONLY, 0, None).or_fail()?);
        // The directory has the sticky bit; the library makes EPERM of it this.
        expect_eq!(unlink(&path), Err(Errno::EACCES));
        // The limits of who is not privileged.
        expect_eq!(open(&name(2), NEW, 0o600, Some((11, 16))).err(), Some(Errno::EINVAL));
        expect_eq!(open(&name(2), NEW, 0o600, Some((10, 8193))).err(), Some(Errno::EINVAL));
        let own = open(&name(2), NEW, 0o600, Some((10, 16))).or_fail()?;
        own.send("x", 0).or_fail()?;
        Ok(())
    })?;
    // Whoever receives a descriptor of execve gets none: they are closed.
    let queue = Queue::new(&name(3), 0)?;
    let child = spawn_child(|| {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(format!("! test -e /proc/self/fd/{}", queue.descriptor));
        shell.exec().raw_os_error().unwrap_or(1)
    })?;
    expect_eq!(ended(child)?, 0);
    Ok(())
}

fn users_have_a_limit() -> Outcome {
    // Each takes something over half of what is allowed.
    let shape = Some((10, 41_000));
    let first = open(&name(1), NEW, 0o600, shape).or_fail()?;
    expect_eq!(open(&name(2), NEW, 0o600, shape).err(), Some(Errno::EMFILE));
    drop(first);
    let second = open(&name(2), NEW, 0o600, shape).or_fail()?;
    drop(second);
    // A message that nobody got goes with its queue.
    let queue = Queue::new(&name(3), 0)?;
    queue.send("left", 0).or_fail()?;
    let child = spawn_child(|| i32::from(queue.receive().is_err() || queue.receive().is_err()))?;
    // It waits for the second until it is killed, and the queue is as it was.
    while queue.attributes().or_fail()?.mq_curmsgs != 0 {
        std::thread::yield_now();
    }
    kill(child, Signal::SIGKILL).or_fail()?;
    waitpid(child, None).or_fail()?;
    queue.send("after", 0).or_fail()?;
    expect_eq!(queue.receive(), got("after", 0));
    Ok(())
}
