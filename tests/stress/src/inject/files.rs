//! Calls on files.

use std::ptr::null;

use super::{Shot, close, must, path, sys};

super::cases! {
    open create openat2 temporary read write read_vector write_vector truncate allocate make_directory
    remove_directory unlink rename exchange link symbolic_link read_link make_node change_mode change_owner times
    set_attribute get_attribute list_attributes remove_attribute list_directory status working_directory
    change_directory duplicate duplicate_to control_duplicate lock_range lock_whole pipe splice tee vmsplice
    copy_range send_file epoll_create epoll_add epoll_wait poll select event timer set_timer_file inotify
    inotify_watch landlock memory_file mount unmount read_maps read_status read_mounts terminal change_root sync
    set_pipe_size ioctl_readable
}

const CWD: i32 = libc::AT_FDCWD;
const DATA: [u8; 5000] = [7; 5000];

type Outcome = Result<(), String>;

/// A new file, opened.
fn fresh(name: &str) -> Result<i64, String> {
    let flags = libc::O_CREAT | libc::O_RDWR;
    must("creating a file", sys!(SYS_openat, CWD, path(name).as_ptr(), flags, 0o644))
}

fn remove(name: &str) -> Outcome {
    must("unlink", sys!(SYS_unlink, path(name).as_ptr())).map(|_| ())
}

fn open(shot: &mut Shot) -> Outcome {
    let name = path("/etc/passwd");
    close(shot.fire(|| sys!(SYS_openat, CWD, name.as_ptr(), libc::O_RDONLY))?)
}

fn create(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/created");
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
    close(shot.fire(|| sys!(SYS_openat, CWD, name.as_ptr(), flags, 0o600))?)?;
    remove("/tmp/created")
}

fn openat2(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/../etc/passwd");
    let how = [0u64; 3];
    close(shot.fire(|| sys!(SYS_openat2, CWD, name.as_ptr(), how.as_ptr(), 24))?)
}

fn temporary(shot: &mut Shot) -> Outcome {
    let name = path("/tmp");
    close(shot.fire(|| sys!(SYS_openat, CWD, name.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600))?)
}

fn read(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/read")?;
    must("write", sys!(SYS_write, file, DATA.as_ptr(), DATA.len()))?;
    let mut data = [0u8; 5000];
    let pointer = data.as_mut_ptr();
    shot.fire(|| sys!(SYS_pread64, file, pointer, 5000, 0))?;
    close(file)?;
    remove("/tmp/read")
}

fn write(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/write")?;
    shot.fire(|| sys!(SYS_write, file, DATA.as_ptr(), DATA.len()))?;
    close(file)?;
    remove("/tmp/write")
}

fn read_vector(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/readv")?;
    must("write", sys!(SYS_write, file, DATA.as_ptr(), DATA.len()))?;
    let mut data = [0u8; 5000];
    let first = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 100 };
    let parts = [first, libc::iovec { iov_base: first.iov_base, iov_len: 4000 }];
    shot.fire(|| sys!(SYS_preadv, file, parts.as_ptr(), 2, 0, 0))?;
    close(file)?;
    remove("/tmp/readv")
}

fn write_vector(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/writev")?;
    let part = libc::iovec { iov_base: DATA.as_ptr().cast_mut().cast(), iov_len: 5000 };
    let parts = [part, part, part];
    shot.fire(|| sys!(SYS_pwritev, file, parts.as_ptr(), 3, 0, 0))?;
    close(file)?;
    remove("/tmp/writev")
}

fn truncate(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/truncated")?;
    must("write", sys!(SYS_write, file, DATA.as_ptr(), DATA.len()))?;
    shot.fire(|| sys!(SYS_ftruncate, file, 100))?;
    close(file)?;
    remove("/tmp/truncated")
}

fn allocate(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/allocated")?;
    shot.fire(|| sys!(SYS_fallocate, file, 0, 0, 20_000))?;
    close(file)?;
    remove("/tmp/allocated")
}

fn make_directory(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/made");
    shot.fire(|| sys!(SYS_mkdir, name.as_ptr(), 0o755))?;
    must("rmdir", sys!(SYS_rmdir, name.as_ptr())).map(|_| ())
}

fn remove_directory(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/removed");
    must("mkdir", sys!(SYS_mkdir, name.as_ptr(), 0o755))?;
    shot.fire(|| sys!(SYS_rmdir, name.as_ptr())).map(|_| ())
}

fn unlink(shot: &mut Shot) -> Outcome {
    close(fresh("/tmp/unlinked")?)?;
    let name = path("/tmp/unlinked");
    shot.fire(|| sys!(SYS_unlink, name.as_ptr())).map(|_| ())
}

fn rename(shot: &mut Shot) -> Outcome {
    close(fresh("/tmp/before")?)?;
    let (from, to) = (path("/tmp/before"), path("/tmp/after-a-longer-name-than-before"));
    shot.fire(|| sys!(SYS_rename, from.as_ptr(), to.as_ptr()))?;
    remove("/tmp/after-a-longer-name-than-before")
}

fn exchange(shot: &mut Shot) -> Outcome {
    close(fresh("/tmp/left")?)?;
    close(fresh("/tmp/right")?)?;
    let (from, to) = (path("/tmp/left"), path("/tmp/right"));
    shot.fire(|| sys!(SYS_renameat2, CWD, from.as_ptr(), CWD, to.as_ptr(), libc::RENAME_EXCHANGE))?;
    remove("/tmp/left")?;
    remove("/tmp/right")
}

fn link(shot: &mut Shot) -> Outcome {
    close(fresh("/tmp/linked")?)?;
    let (from, to) = (path("/tmp/linked"), path("/tmp/link"));
    shot.fire(|| sys!(SYS_link, from.as_ptr(), to.as_ptr()))?;
    remove("/tmp/linked")?;
    remove("/tmp/link")
}

fn symbolic_link(shot: &mut Shot) -> Outcome {
    let (from, to) = (path("/tmp/somewhere"), path("/tmp/symbolic"));
    shot.fire(|| sys!(SYS_symlink, from.as_ptr(), to.as_ptr()))?;
    remove("/tmp/symbolic")
}

fn read_link(shot: &mut Shot) -> Outcome {
    let name = path("/proc/self/exe");
    let mut text = [0u8; 256];
    let pointer = text.as_mut_ptr();
    shot.fire(|| sys!(SYS_readlink, name.as_ptr(), pointer, 256)).map(|_| ())
}

fn make_node(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/fifo");
    shot.fire(|| sys!(SYS_mknod, name.as_ptr(), libc::S_IFIFO | 0o600, 0))?;
    let end = shot.fire(|| sys!(SYS_openat, CWD, name.as_ptr(), libc::O_RDWR))?;
    close(end)?;
    remove("/tmp/fifo")
}

fn change_mode(shot: &mut Shot) -> Outcome {
    let name = path("/etc/hostname");
    shot.fire(|| sys!(SYS_chmod, name.as_ptr(), 0o644)).map(|_| ())
}

fn change_owner(shot: &mut Shot) -> Outcome {
    let name = path("/etc/hostname");
    shot.fire(|| sys!(SYS_chown, name.as_ptr(), 0, 0)).map(|_| ())
}

fn times(shot: &mut Shot) -> Outcome {
    let name = path("/etc/hostname");
    shot.fire(|| sys!(SYS_utimensat, CWD, name.as_ptr(), null::<u8>(), 0)).map(|_| ())
}

const ATTRIBUTE: &str = "user.heddle";

fn attributed(name: &str) -> Result<i64, String> {
    let file = fresh(name)?;
    let attribute = path(ATTRIBUTE);
    must("fsetxattr", sys!(SYS_fsetxattr, file, attribute.as_ptr(), DATA.as_ptr(), 100, 0))?;
    Ok(file)
}

fn set_attribute(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/attributed")?;
    let name = path(ATTRIBUTE);
    shot.fire(|| sys!(SYS_fsetxattr, file, name.as_ptr(), DATA.as_ptr(), 100, libc::XATTR_CREATE))?;
    close(file)?;
    remove("/tmp/attributed")
}

fn get_attribute(shot: &mut Shot) -> Outcome {
    let file = attributed("/tmp/attributed")?;
    let (name, mut value) = (path(ATTRIBUTE), [0u8; 100]);
    let pointer = value.as_mut_ptr();
    shot.fire(|| sys!(SYS_fgetxattr, file, name.as_ptr(), pointer, 100))?;
    close(file)?;
    remove("/tmp/attributed")
}

fn list_attributes(shot: &mut Shot) -> Outcome {
    let file = attributed("/tmp/attributed")?;
    let mut names = [0u8; 100];
    let pointer = names.as_mut_ptr();
    shot.fire(|| sys!(SYS_flistxattr, file, pointer, 100))?;
    close(file)?;
    remove("/tmp/attributed")
}

fn remove_attribute(shot: &mut Shot) -> Outcome {
    let file = attributed("/tmp/attributed")?;
    let name = path(ATTRIBUTE);
    shot.fire(|| sys!(SYS_fremovexattr, file, name.as_ptr()))?;
    close(file)?;
    remove("/tmp/attributed")
}

fn list_directory(shot: &mut Shot) -> Outcome {
    let name = path("/etc");
    let directory = must("open", sys!(SYS_openat, CWD, name.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY))?;
    let mut entries = [0u64; 128];
    let pointer = entries.as_mut_ptr();
    shot.fire(|| sys!(SYS_getdents64, directory, pointer, 1024))?;
    close(directory)
}

fn status(shot: &mut Shot) -> Outcome {
    let name = path("/etc/hostname");
    let mut status = [0u64; 32];
    let pointer = status.as_mut_ptr();
    shot.fire(|| sys!(SYS_statx, CWD, name.as_ptr(), 0, 0x7ff, pointer))?;
    shot.fire(|| sys!(SYS_newfstatat, CWD, name.as_ptr(), pointer, 0))?;
    shot.fire(|| sys!(SYS_statfs, name.as_ptr(), pointer)).map(|_| ())
}

fn working_directory(shot: &mut Shot) -> Outcome {
    let mut text = [0u8; 256];
    let pointer = text.as_mut_ptr();
    shot.fire(|| sys!(SYS_getcwd, pointer, 256)).map(|_| ())
}

fn change_directory(shot: &mut Shot) -> Outcome {
    let name = path("/tmp");
    shot.fire(|| sys!(SYS_chdir, name.as_ptr())).map(|_| ())
}

fn change_root(shot: &mut Shot) -> Outcome {
    let name = path("/");
    shot.fire(|| sys!(SYS_chroot, name.as_ptr())).map(|_| ())
}

fn sync(shot: &mut Shot) -> Outcome {
    shot.fire(|| sys!(SYS_sync)).map(|_| ())
}

fn duplicate(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_dup, 1))?)
}

fn duplicate_to(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_dup3, 1, 200, libc::O_CLOEXEC))?)
}

fn control_duplicate(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_fcntl, 1, libc::F_DUPFD_CLOEXEC, 100))?)
}

fn lock_range(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/locked")?;
    let lock = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 10, l_len: 10, l_pid: 0 };
    shot.fire(|| sys!(SYS_fcntl, file, libc::F_SETLK, &raw const lock))?;
    close(file)?;
    remove("/tmp/locked")
}

fn lock_whole(shot: &mut Shot) -> Outcome {
    let file = fresh("/tmp/locked")?;
    shot.fire(|| sys!(SYS_flock, file, libc::LOCK_EX))?;
    close(file)?;
    remove("/tmp/locked")
}

fn close_both(ends: [i32; 2]) -> Outcome {
    close(ends[0].into())?;
    close(ends[1].into())
}

/// A pipe with some data.
fn filled() -> Result<[i32; 2], String> {
    let mut ends = [0i32; 2];
    must("pipe2", sys!(SYS_pipe2, ends.as_mut_ptr(), libc::O_NONBLOCK))?;
    must("write", sys!(SYS_write, ends[1], DATA.as_ptr(), 4000))?;
    Ok(ends)
}

fn pipe(shot: &mut Shot) -> Outcome {
    let mut ends = [0i32; 2];
    let pointer = ends.as_mut_ptr();
    shot.fire(|| sys!(SYS_pipe2, pointer, libc::O_NONBLOCK))?;
    close_both(ends)
}

fn set_pipe_size(shot: &mut Shot) -> Outcome {
    let ends = filled()?;
    shot.fire(|| sys!(SYS_fcntl, ends[0], libc::F_SETPIPE_SZ, 1 << 18))?;
    close_both(ends)
}

fn ioctl_readable(shot: &mut Shot) -> Outcome {
    let ends = filled()?;
    let mut count = 0i32;
    let pointer = &raw mut count;
    shot.fire(|| sys!(SYS_ioctl, ends[0], libc::FIONREAD, pointer))?;
    close_both(ends)
}

fn splice(shot: &mut Shot) -> Outcome {
    let (ends, file) = (filled()?, fresh("/tmp/spliced")?);
    shot.fire(|| sys!(SYS_splice, ends[0], null::<u8>(), file, null::<u8>(), 1000, 0))?;
    close_both(ends)?;
    close(file)?;
    remove("/tmp/spliced")
}

fn tee(shot: &mut Shot) -> Outcome {
    let (from, to) = (filled()?, filled()?);
    shot.fire(|| sys!(SYS_tee, from[0], to[1], 1000, 0))?;
    close_both(from)?;
    close_both(to)
}

fn vmsplice(shot: &mut Shot) -> Outcome {
    let ends = filled()?;
    let part = libc::iovec { iov_base: DATA.as_ptr().cast_mut().cast(), iov_len: 1000 };
    let parts = [part, part];
    shot.fire(|| sys!(SYS_vmsplice, ends[1], parts.as_ptr(), 2, 0))?;
    close_both(ends)
}

fn copy_range(shot: &mut Shot) -> Outcome {
    let (from, to) = (fresh("/tmp/from")?, fresh("/tmp/to")?);
    must("write", sys!(SYS_pwrite64, from, DATA.as_ptr(), DATA.len(), 0))?;
    let (mut first, mut second) = (0i64, 0i64);
    let (first, second) = (&raw mut first, &raw mut second);
    shot.fire(|| sys!(SYS_copy_file_range, from, first, to, second, 5000, 0))?;
    close(from)?;
    close(to)?;
    remove("/tmp/from")?;
    remove("/tmp/to")
}

fn send_file(shot: &mut Shot) -> Outcome {
    let (from, ends) = (fresh("/tmp/sent")?, filled()?);
    must("write", sys!(SYS_pwrite64, from, DATA.as_ptr(), DATA.len(), 0))?;
    shot.fire(|| sys!(SYS_sendfile, ends[1], from, null::<u8>(), 4000))?;
    close(from)?;
    close_both(ends)?;
    remove("/tmp/sent")
}

fn epoll_create(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_epoll_create1, 0))?)
}

fn epoll_add(shot: &mut Shot) -> Outcome {
    let (epoll, ends) = (must("epoll_create1", sys!(SYS_epoll_create1, 0))?, filled()?);
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    shot.fire(|| sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, ends[0], &raw const event))?;
    shot.fire(|| sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_MOD, ends[0], &raw const event))?;
    shot.fire(|| sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, ends[0], &raw const event))?;
    close_both(ends)?;
    close(epoll)
}

fn epoll_wait(shot: &mut Shot) -> Outcome {
    let (epoll, ends) = (must("epoll_create1", sys!(SYS_epoll_create1, 0))?, filled()?);
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 1 };
    must("epoll_ctl", sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, ends[0], &raw const event))?;
    let mut events = [event; 4];
    let pointer = events.as_mut_ptr();
    shot.fire(|| sys!(SYS_epoll_wait, epoll, pointer, 4, 1000))?;
    must("epoll_ctl", sys!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, ends[0], &raw const event))?;
    shot.fire(|| sys!(SYS_epoll_wait, epoll, pointer, 4, 1))?;
    close_both(ends)?;
    close(epoll)
}

fn poll(shot: &mut Shot) -> Outcome {
    let ends = filled()?;
    let mut all = [libc::pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 }; 3];
    let pointer = all.as_mut_ptr();
    shot.fire(|| sys!(SYS_poll, pointer, 3, 1000))?;
    let mut quiet = [libc::pollfd { fd: ends[0], events: libc::POLLPRI, revents: 0 }; 3];
    let pointer = quiet.as_mut_ptr();
    shot.fire(|| sys!(SYS_poll, pointer, 3, 1))?;
    close_both(ends)
}

fn select(shot: &mut Shot) -> Outcome {
    let ends = filled()?;
    let bits = 1u64 << ends[0];
    let wait = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let sets = std::cell::Cell::new(([0u64; 16], wait));
    shot.fire(|| {
        let mut first = [0u64; 16];
        first[0] = bits;
        sets.set((first, wait));
        let set = sets.as_ptr();
        sys!(SYS_select, 64, set, null::<u8>(), null::<u8>(), null::<u8>())
    })?;
    close_both(ends)
}

fn event(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_eventfd2, 1, 0))?)
}

fn timer(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0))?)
}

fn set_timer_file(shot: &mut Shot) -> Outcome {
    let timer = must("timerfd_create", sys!(SYS_timerfd_create, libc::CLOCK_MONOTONIC, 0))?;
    let when = [0i64, 0, 100, 0];
    let mut old = [0i64; 4];
    let old = old.as_mut_ptr();
    shot.fire(|| sys!(SYS_timerfd_settime, timer, 0, when.as_ptr(), old))?;
    shot.fire(|| sys!(SYS_timerfd_gettime, timer, old))?;
    close(timer)
}

fn inotify(shot: &mut Shot) -> Outcome {
    close(shot.fire(|| sys!(SYS_inotify_init1, 0))?)
}

fn inotify_watch(shot: &mut Shot) -> Outcome {
    let notify = must("inotify_init1", sys!(SYS_inotify_init1, 0))?;
    let name = path("/tmp");
    let mark = shot.fire(|| sys!(SYS_inotify_add_watch, notify, name.as_ptr(), libc::IN_CREATE))?;
    shot.fire(|| sys!(SYS_inotify_rm_watch, notify, mark))?;
    close(notify)
}

fn landlock(shot: &mut Shot) -> Outcome {
    let handled = 4_u64;
    let rules = shot.fire(|| sys!(SYS_landlock_create_ruleset, &raw const handled, 8, 0))?;
    let name = path("/tmp");
    let parent = must("open", sys!(SYS_open, name.as_ptr(), libc::O_PATH, 0))?;
    let rule = [4_u32, 0, parent as u32];
    shot.fire(|| sys!(SYS_landlock_add_rule, rules, 1, rule.as_ptr(), 0))?;
    must("prctl", sys!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
    shot.fire(|| sys!(SYS_landlock_restrict_self, rules, 0))?;
    close(parent)?;
    close(rules)
}

fn memory_file(shot: &mut Shot) -> Outcome {
    let name = path("memory");
    let file = shot.fire(|| sys!(SYS_memfd_create, name.as_ptr(), 0))?;
    shot.fire(|| sys!(SYS_pwrite64, file, DATA.as_ptr(), 5000, 100_000))?;
    close(file)
}

fn mounted(name: &std::ffi::CStr) -> i64 {
    let kind = c"tmpfs".as_ptr();
    sys!(SYS_mount, kind, name.as_ptr(), kind, 0, null::<u8>())
}

fn mount(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/mounted");
    must("mkdir", sys!(SYS_mkdir, name.as_ptr(), 0o755))?;
    shot.fire(|| mounted(&name))?;
    must("umount2", sys!(SYS_umount2, name.as_ptr(), 0))?;
    must("rmdir", sys!(SYS_rmdir, name.as_ptr())).map(|_| ())
}

fn unmount(shot: &mut Shot) -> Outcome {
    let name = path("/tmp/mounted");
    must("mkdir", sys!(SYS_mkdir, name.as_ptr(), 0o755))?;
    must("mount", mounted(&name))?;
    shot.fire(|| sys!(SYS_umount2, name.as_ptr(), 0))?;
    must("rmdir", sys!(SYS_rmdir, name.as_ptr())).map(|_| ())
}

/// Opening and reading a file of `/proc`.
fn read_process_file(shot: &mut Shot, name: &str) -> Outcome {
    let name = path(name);
    let file = shot.fire(|| sys!(SYS_openat, CWD, name.as_ptr(), libc::O_RDONLY))?;
    let mut text = [0u8; 4096];
    let pointer = text.as_mut_ptr();
    shot.fire(|| sys!(SYS_pread64, file, pointer, 4096, 0))?;
    close(file)
}

fn read_maps(shot: &mut Shot) -> Outcome {
    read_process_file(shot, "/proc/self/maps")
}

fn read_status(shot: &mut Shot) -> Outcome {
    read_process_file(shot, "/proc/self/status")
}

fn read_mounts(shot: &mut Shot) -> Outcome {
    read_process_file(shot, "/proc/self/mounts")
}

fn terminal(shot: &mut Shot) -> Outcome {
    let name = path("/dev/ptmx");
    let flags = libc::O_RDWR | libc::O_NOCTTY;
    let master = shot.fire(|| sys!(SYS_openat, CWD, name.as_ptr(), flags))?;
    close(master)
}
