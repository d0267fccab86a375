//! The calls of each family, with the arguments that are tried.

use libc as c;

/// A kind of argument.
pub enum Arg {
    /// A descriptor.
    Fd,
    /// A descriptor where a path starts.
    At,
    /// A path.
    Path,
    /// Memory for a result.
    Out,
    /// Memory for a result that is there.
    Room,
    /// Memory with bytes.
    In,
    /// A number at an edge.
    Edge,
    /// A length.
    Size,
    /// A position in a file.
    Offset,
    /// One of these.
    One(&'static [i64]),
    /// Some of these bits.
    Flags(&'static [i64]),
    /// A structure of words.
    Words(&'static [&'static [i64]]),
    /// An address in memory that is there for it.
    Address,
    /// A process.
    Pid,
    /// The number that a call before has returned.
    Id,
}

/// The kind of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// A number.
    Number,
    /// A number, and data in memory.
    Data,
    /// A number that differs from run to run.
    Something,
    /// An address.
    Address,
    /// A number for a call that comes later.
    Id,
}

/// A call.
pub struct Call {
    pub name: &'static str,
    pub number: c::c_long,
    pub arguments: &'static [Arg],
    pub returns: Returns,
}

macro_rules! family {
    ($family:ident: $($name:ident($($argument:expr),*) $returns:ident;)*) => {
        const $family: &[Call] = &[$(Call {
            name: stringify!($name),
            number: paste_number!($name),
            arguments: &[$($argument),*],
            returns: Returns::$returns,
        },)*];
    };
}

/// The number of a call.
macro_rules! paste_number {
    ($name:ident) => {
        number::$name
    };
}

/// Numbers by the calls' own names.
#[allow(non_upper_case_globals, reason = "they are the calls' names")]
mod number {
    macro_rules! numbers {
        ($($name:ident = $number:ident,)*) => { $(pub const $name: libc::c_long = libc::$number;)* };
    }
    numbers! {
        open = SYS_open, openat = SYS_openat, creat = SYS_creat, read = SYS_read, write = SYS_write,
            pread64 = SYS_pread64,
        pwrite64 = SYS_pwrite64, lseek = SYS_lseek, ftruncate = SYS_ftruncate, truncate = SYS_truncate,
        fallocate = SYS_fallocate, dup = SYS_dup, dup2 = SYS_dup2, dup3 = SYS_dup3, fcntl = SYS_fcntl,
            close = SYS_close,
        fsync = SYS_fsync, fdatasync = SYS_fdatasync, sync_file_range = SYS_sync_file_range,
            readahead = SYS_readahead,
        fadvise64 = SYS_fadvise64, copy_file_range = SYS_copy_file_range, sendfile = SYS_sendfile,
            splice = SYS_splice,
        tee = SYS_tee, ioctl = SYS_ioctl, flock = SYS_flock, syncfs = SYS_syncfs, close_range = SYS_close_range,
        pipe2 = SYS_pipe2, eventfd2 = SYS_eventfd2, memfd_create = SYS_memfd_create, fstat = SYS_fstat,
        mkdir = SYS_mkdir, mkdirat = SYS_mkdirat, rmdir = SYS_rmdir, unlink = SYS_unlink, unlinkat = SYS_unlinkat,
        rename = SYS_rename, renameat2 = SYS_renameat2, link = SYS_link, linkat = SYS_linkat, symlink = SYS_symlink,
        readlink = SYS_readlink, readlinkat = SYS_readlinkat, chmod = SYS_chmod, fchmod = SYS_fchmod,
        fchmodat = SYS_fchmodat, chown = SYS_chown, lchown = SYS_lchown, fchown = SYS_fchown,
            fchownat = SYS_fchownat,
        access = SYS_access, faccessat2 = SYS_faccessat2, mknod = SYS_mknod, mknodat = SYS_mknodat,
            chdir = SYS_chdir,
        fchdir = SYS_fchdir, utimensat = SYS_utimensat, statx = SYS_statx, newfstatat = SYS_newfstatat,
            stat = SYS_stat,
        lstat = SYS_lstat, umask = SYS_umask, openat2 = SYS_openat2, statfs = SYS_statfs,
        fstatfs = SYS_fstatfs, inotify_init1 = SYS_inotify_init1, inotify_add_watch = SYS_inotify_add_watch,
        inotify_rm_watch = SYS_inotify_rm_watch,
        rt_sigaction = SYS_rt_sigaction, rt_sigprocmask = SYS_rt_sigprocmask, rt_sigpending = SYS_rt_sigpending,
        kill = SYS_kill, tkill = SYS_tkill, tgkill = SYS_tgkill, sigaltstack = SYS_sigaltstack,
        rt_sigtimedwait = SYS_rt_sigtimedwait, signalfd4 = SYS_signalfd4, rt_sigqueueinfo = SYS_rt_sigqueueinfo,
        prctl = SYS_prctl, setpgid = SYS_setpgid, getpgid = SYS_getpgid, getsid = SYS_getsid,
        setuid = SYS_setuid, setgid = SYS_setgid, setreuid = SYS_setreuid, setregid = SYS_setregid,
        setresuid = SYS_setresuid, setresgid = SYS_setresgid, getresuid = SYS_getresuid, setfsuid = SYS_setfsuid,
        setfsgid = SYS_setfsgid, getgroups = SYS_getgroups, setgroups = SYS_setgroups, capget = SYS_capget,
        getrlimit = SYS_getrlimit, setrlimit = SYS_setrlimit, prlimit64 = SYS_prlimit64,
            getpriority = SYS_getpriority,
        setpriority = SYS_setpriority, sched_getscheduler = SYS_sched_getscheduler,
        sched_setscheduler = SYS_sched_setscheduler, sched_getparam = SYS_sched_getparam,
        sched_setparam = SYS_sched_setparam, sched_get_priority_max = SYS_sched_get_priority_max,
        sched_get_priority_min = SYS_sched_get_priority_min, sched_rr_get_interval = SYS_sched_rr_get_interval,
        sched_getattr = SYS_sched_getattr, personality = SYS_personality,
        wait4 = SYS_wait4, waitid = SYS_waitid, kcmp = SYS_kcmp, pidfd_open = SYS_pidfd_open,
        pidfd_send_signal = SYS_pidfd_send_signal, get_robust_list = SYS_get_robust_list, uname = SYS_uname,
        sysinfo = SYS_sysinfo, times = SYS_times, getrusage = SYS_getrusage, getrandom = SYS_getrandom,
        sethostname = SYS_sethostname, setdomainname = SYS_setdomainname, seccomp = SYS_seccomp,
            unshare = SYS_unshare,
        syslog = SYS_syslog, reboot = SYS_reboot, ioprio_get = SYS_ioprio_get, ioprio_set = SYS_ioprio_set,
        membarrier = SYS_membarrier, arch_prctl = SYS_arch_prctl,
        mmap = SYS_mmap, munmap = SYS_munmap, mprotect = SYS_mprotect, madvise = SYS_madvise,
        msync = SYS_msync, mincore = SYS_mincore, mlock = SYS_mlock, munlock = SYS_munlock, mlock2 = SYS_mlock2,
        clock_gettime = SYS_clock_gettime, clock_getres = SYS_clock_getres, clock_settime = SYS_clock_settime,
        nanosleep = SYS_nanosleep, clock_nanosleep = SYS_clock_nanosleep, timer_create = SYS_timer_create,
        timer_settime = SYS_timer_settime, timer_gettime = SYS_timer_gettime, timer_delete = SYS_timer_delete,
        timer_getoverrun = SYS_timer_getoverrun, timerfd_create = SYS_timerfd_create,
        timerfd_settime = SYS_timerfd_settime, timerfd_gettime = SYS_timerfd_gettime, setitimer = SYS_setitimer,
        getitimer = SYS_getitimer, clock_adjtime = SYS_clock_adjtime, gettimeofday = SYS_gettimeofday,
        shmget = SYS_shmget, shmctl = SYS_shmctl, semget = SYS_semget, semctl = SYS_semctl,
            semtimedop = SYS_semtimedop,
        msgget = SYS_msgget, msgsnd = SYS_msgsnd, msgrcv = SYS_msgrcv, msgctl = SYS_msgctl,
        epoll_create1 = SYS_epoll_create1, epoll_create = SYS_epoll_create, epoll_ctl = SYS_epoll_ctl,
        epoll_wait = SYS_epoll_wait, epoll_pwait = SYS_epoll_pwait, poll = SYS_poll, ppoll = SYS_ppoll,
        futex = SYS_futex,
    }
}

use Arg::{Address, At, Edge, Fd, Flags, Id, In, Offset, One, Out, Path, Pid, Room, Size, Words};

const OPEN: Arg = Flags(&[
    c::O_WRONLY as i64,
    c::O_RDWR as i64,
    3,
    c::O_CREAT as i64,
    c::O_EXCL as i64,
    c::O_TRUNC as i64,
    c::O_APPEND as i64,
    c::O_DIRECTORY as i64,
    c::O_NOFOLLOW as i64,
    c::O_PATH as i64,
    c::O_TMPFILE as i64,
    c::O_CLOEXEC as i64,
    c::O_NOATIME as i64,
    c::O_NONBLOCK as i64,
]);
const MODE: Arg = One(&[0, 0o600, 0o644, 0o777, 0o4755, 0o1777, 0o2750, 0o100_644]);
const SECONDS: &[i64] = &[0, 0, 0, 1, -1, i64::MAX];
const NANOSECONDS: &[i64] = &[0, 0, 1, 999_999_999, 1_000_000_000, -1];
const AT_FLAGS: Arg = Flags(&[0x100, 0x200, 0x400, 0x800, 0x1000, 0x2000, 0x8000]);

family! { FILE:
    open(Path, OPEN, MODE) Number;
    openat(At, Path, OPEN, MODE) Number;
    creat(Path, MODE) Number;
    read(Fd, Room, Size) Data;
    write(Fd, In, Size) Number;
    pread64(Fd, Room, Size, Offset) Data;
    pwrite64(Fd, In, Size, Offset) Number;
    lseek(Fd, Offset, One(&[0, 1, 2, 3, 4, 5, -1])) Number;
    ftruncate(Fd, Offset) Number;
    truncate(Path, Offset) Number;
    fallocate(Fd, One(&[0, 1, 2, 3, 4, 8, 16, 17, 32, 64]), Offset, Offset) Number;
    dup(Fd) Number;
    dup2(Fd, Edge) Number;
    dup3(Fd, Edge, One(&[0, 0, 0o2_000_000, 1, -1])) Number;
    close(Fd) Number;
    fsync(Fd) Number;
    fdatasync(Fd) Number;
    syncfs(Fd) Number;
    sync_file_range(Fd, Offset, Offset, Flags(&[1, 2, 4, 8])) Number;
    readahead(Fd, Offset, Size) Number;
    fadvise64(Fd, Offset, Offset, One(&[0, 1, 2, 3, 4, 5, 6, -1])) Number;
    flock(Fd, One(&[1, 2, 4, 5, 6, 8, 12, 0, 32, -1])) Number;
    close_range(One(&[60, 61, 1000]), One(&[60, 70, 3000]), Flags(&[2, 4, 8])) Number;
    pipe2(Out, Flags(&[0o4000, 0o2_000_000, 1])) Number;
    eventfd2(Edge, Flags(&[1, 0o4000, 0o2_000_000, 2])) Number;
    memfd_create(Path, Flags(&[1, 2, 0x20])) Number;
    fstat(Fd, One(&[0, 1])) Number;
}

/// Descriptors of anything but a folder.
const STREAMS: Arg = One(&[50, 51, 52, 54, 55, 56, 57, 58, 59, 60, 61, 62, -1]);

family! { DESCRIPTOR:
    fcntl(Fd, One(&[0, 1030]), One(&[0, 3, 70, 1023, 1024, -1])) Number;
    fcntl(Fd, One(&[1, 3, 9, 11, 1025, 1032, 1034, 99, -1]), Edge) Number;
    fcntl(Fd, One(&[2]), One(&[0, 1, 2, 3])) Number;
    fcntl(Fd, One(&[4]), One(&[0, 0o2000, 0o4000, 0o1_000_000, 0o20000])) Number;
    fcntl(Fd, One(&[10]), One(&[0, 1, 10, 64, 65, -1])) Number;
    fcntl(Fd, One(&[8]), One(&[0, 999_999, -999_999, i32::MIN as i64])) Number;
    fcntl(Fd, One(&[15]), Words(&[&[0, 1, 2, 3, 0x1_0000_0000 * 999_999, -1]])) Number;
    fcntl(Fd, One(&[16]), Out) Data;
    fcntl(One(&[50, 51, 52, 53, 99]), One(&[5, 6, 36, 37]), Words(&[&[0, 1, 2, 3, 0x1_0000, 0x2_0001, 0x3_0000],
        &[0, 10], &[0, 5], &[0, 1]])) Number;
    fcntl(Fd, One(&[1031]), One(&[0, 1, 4096, 65536, 70000, 1 << 20, (1 << 20) + 1, -1])) Number;
    fcntl(One(&[53, 54, 58, 61]), One(&[1033]), One(&[0, 1, 2, 4, 8, 16, 32, 64, -1])) Number;
    ioctl(Fd, One(&[0x5450, 0x5451]), Edge) Number;
    ioctl(Fd, One(&[0x5421, 0x5452]), Words(&[&[0, 1]])) Number;
    ioctl(Fd, One(&[0x541b, 0x5411]), Out) Data;
    ioctl(Fd, One(&[0x8901, 0x8902]), Words(&[&[0, 999_999, -999_999, 0x8000_0000]])) Number;
    ioctl(Fd, One(&[0x8903, 0x8904]), Out) Data;
    ioctl(Fd, One(&[0x5413, 0x5401, 0x5402, 0, -1, 0x1260]), Out) Number;
    copy_file_range(Fd, Words(&[&[0, 10, 100, -1]]), Fd, Words(&[&[0, 10, 100, -1]]), Size, One(&[0, 0, 0,
        1])) Number;
    sendfile(STREAMS, STREAMS, Words(&[&[0, 10, 100, -1]]), Size) Number;
    splice(Fd, One(&[0]), Fd, One(&[0]), Size, Flags(&[1, 2, 4, 8, 16])) Number;
    splice(Fd, Words(&[&[0, 10, 100, -1]]), Fd, Words(&[&[0, 10, -1]]), Size, Flags(&[1, 2, 4, 8, 16])) Number;
    tee(STREAMS, STREAMS, Size, Flags(&[1, 2, 4, 8, 16])) Number;
    write(Fd, In, Size) Number;
    read(Fd, Room, Size) Data;
}

family! { NAMES:
    mkdir(Path, MODE) Number;
    mkdirat(At, Path, MODE) Number;
    rmdir(Path) Number;
    unlink(Path) Number;
    unlinkat(At, Path, One(&[0, 0x200, 0x100, -1])) Number;
    rename(Path, Path) Number;
    renameat2(At, Path, At, Path, One(&[0, 0, 1, 2, 3, 4, 5, 8])) Number;
    link(Path, Path) Number;
    linkat(At, Path, At, Path, AT_FLAGS) Number;
    symlink(Path, Path) Number;
    readlink(Path, Out, Size) Data;
    readlinkat(At, Path, Out, Size) Data;
    chmod(Path, MODE) Number;
    fchmod(Fd, MODE) Number;
    fchmodat(At, Path, MODE) Number;
    chown(Path, One(&[-1, 0, 1000, 5]), One(&[-1, 0, 1000, 5])) Number;
    lchown(Path, One(&[-1, 0, 1000]), One(&[-1, 0, 1000])) Number;
    fchown(Fd, One(&[-1, 0, 1000]), One(&[-1, 0, 1000])) Number;
    fchownat(At, Path, One(&[-1, 0, 1000]), One(&[-1, 0, 1000]), AT_FLAGS) Number;
    access(Path, One(&[0, 1, 2, 4, 6, 7, 8, -1])) Number;
    faccessat2(At, Path, One(&[0, 1, 2, 4, 7, 8]), AT_FLAGS) Number;
    mknod(Path, One(&[0, 0o644, 0o10_0644, 0o1_0644, 0o14_0644, 0o4_0644, 0o12_0644, 0o17_0644]), One(&[0])) Number;
    mknodat(At, Path, One(&[0o644, 0o1_0644, 0o2_0644, 0o6_0644]), One(&[0, 0x103])) Number;
    chdir(Path) Number;
    fchdir(Fd) Number;
    utimensat(At, Path, Words(&[SECONDS, &[0, 1, 999_999_999, 1_000_000_000, 0x3fff_ffff, 0x3fff_fffe], SECONDS,
        &[0, 1_000_000_000, 0x3fff_ffff, 0x3fff_fffe]]), AT_FLAGS) Number;
    statx(At, Path, AT_FLAGS, One(&[0, 0x7ff, 0xfff, 0x8000_0000]), Out) Number;
    newfstatat(At, Path, Out, AT_FLAGS) Number;
    stat(Path, Out) Number;
    lstat(Path, Out) Number;
    umask(MODE) Number;
    openat2(At, Path, Words(&[&[0, 1, 2, 0o100, 0o200_000, 0x4000_0000], &[0, 0, 0o644, 0o10_0000], &[0, 0, 1, 2,
        4, 8, 16, 32, 64]]), One(&[24, 24, 24, 0, 16, 32, 4097])) Number;
    statfs(Path, Out) Number;
    fstatfs(Fd, Out) Number;
    truncate(Path, Offset) Number;
    inotify_init1(Flags(&[0o4000, 0o2_000_000, 1])) Number;
    inotify_add_watch(Fd, Path, One(&[0, 1, 0xfff, 0x8000_0000, 0x100_0000, 0x3000_0000])) Number;
    inotify_rm_watch(Fd, Edge) Number;
}

const SIGNALS: Arg = One(&[0, 1, 9, 10, 12, 17, 19, 32, 34, 64, 65, -1]);
const SET_BYTES: Arg = One(&[8, 8, 8, 0, 4, 16]);

family! { SIGNAL:
    rt_sigaction(SIGNALS, Words(&[&[0, 1], &[0, 0x0400_0000, 0x1000_0000], &[0], &[0, -1]]), One(&[0]),
        SET_BYTES) Number;
    rt_sigaction(SIGNALS, One(&[0]), Out, SET_BYTES) Data;
    rt_sigprocmask(One(&[0, 1, 2, 3, -1]), Words(&[&[0, -1, 0x200, 0x800]]), Out, SET_BYTES) Data;
    rt_sigpending(Out, One(&[8, 8, 0, 4, 16])) Data;
    kill(Pid, One(&[0, 65, -1])) Number;
    tkill(Pid, One(&[0, 65, -1])) Number;
    tgkill(Pid, Pid, One(&[0, 65, -1])) Number;
    sigaltstack(Words(&[&[0, 0x1000], &[0, 1, 2, 4, 0x8000_0000], &[0, 100, 2047, 2048, 8192]]), Out) Number;
    rt_sigtimedwait(Words(&[&[0, -1, 0x200]]), One(&[0]), Words(&[&[0, 0, -1], &[0, 0, 1_000_000_000, -1]]),
        SET_BYTES) Number;
    signalfd4(One(&[-1, 50, 60, 1000]), Words(&[&[0, -1, 0x200]]), SET_BYTES, Flags(&[0o4000, 0o2_000_000,
        1])) Number;
    rt_sigqueueinfo(Pid, One(&[0, 65]), Words(&[&[0], &[-1, 0, 1, -6, 0x80]])) Number;
}

const IDS: Arg = One(&[-1, -1, 0, 1, 1000, 1001, 65534]);
const WHO: Arg = One(&[0, 0, 999_999, -1]);
const WORD: Arg = One(&[0, 0, 0, 1]);

family! { PROCESS:
    prctl(One(&[3, 4, 7, 8, 13, 14, 23, 24, 25, 26, 27, 28, 30, 36, 38, 39, 41, 42]), One(&[0, 1, 2, 3, 40, 41,
        64, -1]), WORD, WORD, WORD) Number;
    prctl(One(&[1, 15, 16, 1000, -1]), One(&[0, 1, 9, 64, 65]), WORD, WORD, WORD) Number;
    prctl(One(&[2, 16, 37, 25]), Out) Data;
    prctl(One(&[22]), One(&[0, 3, 9]), Words(&[&[0, 1, 0x1_0000], &[0, 1]])) Number;
    prctl(One(&[47]), One(&[0, 1, 2, 3, 4, 5]), One(&[0, 1, 40, 41, 99]), WORD, WORD) Number;
    setpgid(Pid, One(&[0, -1, 999_999])) Number;
    getpgid(One(&[-1, 999_999])) Number;
    getsid(One(&[-1, 999_999])) Number;
    setuid(IDS) Number;
    setgid(IDS) Number;
    setreuid(IDS, IDS) Number;
    setregid(IDS, IDS) Number;
    setresuid(IDS, IDS, IDS) Number;
    setresgid(IDS, IDS, IDS) Number;
    getresuid(Out, Out, Out) Data;
    setfsuid(IDS) Number;
    setfsgid(IDS) Number;
    setgroups(One(&[0, 1, 2, 65536, 65537, -1]), In) Number;
    getgroups(One(&[0, 1, 100, -1]), Out) Data;
    capget(Words(&[&[0x1998_0330, 0x2007_1026, 0x2008_0522, 0, 0x2008_0522 + (999_999 << 32)]]), Out) Number;
    getrlimit(One(&[0, 1, 4, 7, 15, 16, -1]), Out) Number;
    setrlimit(One(&[4, 7, 13, 15, 16, -1]), Words(&[&[0, 100, 1024, -1], &[0, 1024, 4096, -1]])) Number;
    prlimit64(WHO, One(&[4, 13, 16]), Words(&[&[0, 100, -1], &[0, 100, -1]]), One(&[0])) Number;
    getpriority(One(&[0, 1, 2, 3, -1]), One(&[0, 999_999])) Number;
    setpriority(One(&[0, 3, -1]), One(&[0, 999_999]), One(&[0, 5, 19, 20, -1, -100])) Number;
    sched_getscheduler(WHO) Number;
    sched_setscheduler(WHO, One(&[0, 3, 5, 4, 7, -1]), Words(&[&[0, 1, 99, 100, -1]])) Number;
    sched_getparam(WHO, Out) Data;
    sched_setparam(WHO, Words(&[&[0, 1, 99, -1]])) Number;
    sched_get_priority_max(One(&[0, 1, 2, 3, 4, 5, 6, 7, -1])) Number;
    sched_get_priority_min(One(&[0, 1, 2, 3, 4, 5, 6, 7, -1])) Number;
    sched_rr_get_interval(WHO, Out) Number;
    sched_getattr(WHO, Out, One(&[0, 47, 48, 56, 4096, 4097]), One(&[0, 0, 1])) Number;
    personality(One(&[0xffff_ffff, 0, 0x4_0000])) Number;
    wait4(One(&[-1, 0, 999_999, i32::MIN as i64]), One(&[0]), Flags(&[1, 2, 8, 0x4000_0000, 16]), One(&[0])) Number;
    waitid(One(&[0, 1, 2, 3, 4, -1]), One(&[0, 999_999, -1]), One(&[0]), Flags(&[1, 2, 4, 8, 0x100_0000,
        16])) Number;
    kcmp(Pid, Pid, One(&[0, 1, 2, 3, 4, 5, 6, 8, 9, -1]), One(&[50, 51, 99]), One(&[50, 51, 99])) Number;
    pidfd_open(Pid, One(&[0, 0, 0o4000, 1])) Number;
    pidfd_send_signal(Fd, One(&[0, 65]), One(&[0]), One(&[0, 1])) Number;
    get_robust_list(One(&[0, 999_999, -1]), Out, Out) Number;
    uname(Out) Number;
    sysinfo(Out) Number;
    times(One(&[0, 1])) Something;
    getrusage(One(&[0, 1, -1, -2, 2]), Out) Number;
    getrandom(Out, One(&[0, 1, 16]), Flags(&[1, 2, 4, 8])) Number;
    sethostname(One(&[0, 1]), One(&[-1, 65, 1000])) Number;
    setdomainname(One(&[0, 1]), One(&[-1, 65, 1000])) Number;
    seccomp(One(&[0, 1, 2, 9]), One(&[0, 1, 2, 64, -1]), Words(&[&[0, 1, 4097], &[0, 1]])) Number;
    unshare(One(&[0, 0x200, 0x400, 0x4_0000, 0x1_0000, 0x100, 0x800, 1])) Number;
    syslog(One(&[2, 3, 8, 11, 100, -1]), One(&[0]), One(&[-1, 0, 100])) Number;
    reboot(Edge, Edge, Edge) Number;
    ioprio_get(One(&[0, 1, 4]), One(&[0, 999_999])) Number;
    ioprio_set(One(&[0, 1, 4]), One(&[0, 999_999]), One(&[0, 1, 7, 0x2000, 0x4004, 0x4008, 0x6000, 0x8000])) Number;
    membarrier(One(&[0, 1, 2, 4, 8, 16, 32, 512, -1]), WORD) Number;
    arch_prctl(One(&[0x1001, 0x1004, 0x9999, 0]), One(&[0, 1])) Number;
}

const PROTECTION: Arg = Flags(&[1, 2, 1, 2, 8]);
const LENGTH: Arg = One(&[0, 1, 4096, 8192, 5000, 3 * 4096, -1]);

family! { MEMORY:
    mmap(Address, LENGTH, PROTECTION, One(&[0x32, 0x32, 0x31, 0x11, 0x12, 0x10_0022, 0x10_0032, 0x33]), Fd,
        One(&[0, 0, 4096, 100, -4096])) Address;
    munmap(Address, LENGTH) Number;
    mprotect(Address, LENGTH, PROTECTION) Number;
    madvise(Address, LENGTH, One(&[0, 1, 2, 3, 4, 8, 10, 11, 16, 17, 18, 19])) Number;
    msync(Address, LENGTH, Flags(&[1, 2, 4, 8])) Number;
    mincore(Address, LENGTH, One(&[0, 1])) Number;
    mlock(Address, LENGTH) Number;
    mlock2(Address, LENGTH, One(&[0, 1, 2])) Number;
    munlock(Address, LENGTH) Number;
}

const CLOCKS: Arg = One(&[0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, -1, -6, 99]);
const TIMER: &[&[i64]] = &[&[0, 0, -1], &[0, 0, 1_000_000_000], &[0, 1000, -1], &[0, 1, 1_000_000_000, -1]];

family! { TIME:
    clock_gettime(CLOCKS, Out) Number;
    clock_getres(One(&[0, 1, 4, 7, 10, 99, -1]), Out) Data;
    clock_settime(One(&[1, 2, 3, 7, 99, -1]), Words(&[&[0, 1], &[0, 1]])) Number;
    nanosleep(Words(&[&[0, 0, -1], NANOSECONDS]), Out) Number;
    clock_nanosleep(One(&[0, 1, 2, 3, 4, 7, 11, 99]), One(&[0, 1, 2]), Words(&[&[0, 0, -1], &[0, 1, 1_000_000_000,
        -1]]), Out) Number;
    timer_create(One(&[0, 1, 2, 3, 7, 11, 12, 99, -1]), One(&[0]), Out) Number;
    timer_create(One(&[0, 1]), Words(&[&[0], &[10, 12, 65, 0x1_0000_000a, 0x2_0000_000a, 0x3_0000_000a,
        0x4_0000_000a, 0x9_0000_000a], &[0, 1]]), Out) Number;
    timer_settime(One(&[0, 1, -1]), One(&[0, 1, 2]), Words(TIMER), One(&[0])) Number;
    timer_gettime(One(&[0, 1, -1]), Out) Number;
    timer_getoverrun(One(&[0, 1, -1])) Number;
    timer_delete(One(&[0, 1, -1])) Number;
    timerfd_create(CLOCKS, Flags(&[0o4000, 0o2_000_000, 1])) Number;
    timerfd_settime(Fd, One(&[0, 1, 2, 3, 4]), Words(TIMER), One(&[0])) Number;
    timerfd_settime(One(&[3, 4]), One(&[0, 1, 2, 3, 4]), Words(TIMER), One(&[0])) Number;
    timerfd_gettime(One(&[3, 4, 50]), One(&[0, 1])) Number;
    setitimer(One(&[0, 1, 2, 3, -1]), Words(&[&[0, -1], &[0, 1_000_000], &[0, 1000, -1], &[0, 1_000_000, -1]]),
        One(&[0])) Number;
    getitimer(One(&[0, 1, 2, 3, -1]), Out) Number;
    clock_adjtime(One(&[1, 2, 7, 99, -1]), Words(&[&[0, 1], &[0]])) Number;
    gettimeofday(Out, One(&[0, 1])) Number;
}

const KEY: Arg = One(&[0, 0, 0, 0x7654]);
const GET: Arg = Flags(&[0o1000, 0o2000, 0o600, 0o600, 0o4000]);

family! { IPC:
    shmget(KEY, One(&[0, 1, 4096, 10000, -1]), GET) Id;
    shmctl(Id, One(&[0, 2, 11, 12, 99, -1]), Out) Number;
    semget(KEY, One(&[0, 1, 3, 32000, 32001, -1]), GET) Id;
    semctl(Id, One(&[0, 1, 2, 3, -1]), One(&[0, 12, 14, 15, 16, 99]), One(&[0, 1, 32767, 32768, -1])) Number;
    semtimedop(Id, Words(&[&[0x0800_0001_0000, 0x0800_ffff_0000, 0x0800_0000_0000, 0x0800_0001_0005,
        0x1800_0001_0000]]), One(&[0, 1, 1, 501]), Words(&[&[0], &[0, 1_000_000_000]])) Number;
    msgget(KEY, GET) Id;
    msgsnd(Id, Words(&[&[0, 1, 5, -1], &[7]]), One(&[0, 8, 8192, 8193, -1]), One(&[0o4000])) Number;
    msgrcv(Id, Out, One(&[0, 8, 100, -1]), One(&[0, 1, 5, -5, -1]), One(&[0o4000, 0o14000, 0o24000,
        0o44000])) Number;
    msgctl(Id, One(&[0, 2, 99, -1]), One(&[0, 1])) Number;
}

family! { POLL:
    epoll_create1(One(&[0, 0o2_000_000, 1])) Number;
    epoll_create(One(&[0, 1, -1])) Number;
    epoll_ctl(One(&[3, 3, 3, 50]), One(&[1, 1, 2, 3, 4]), Fd, Words(&[&[0, 1, 4, 5, 0x8000_0001, 0x1000_0001,
        0x4000_0004], &[7]])) Number;
    epoll_wait(One(&[3, 3, 50, 99]), Room, One(&[0, 1, 8, 100, -1]), One(&[0])) Data;
    epoll_pwait(One(&[3, 50]), Room, One(&[1, 8]), One(&[0]), Words(&[&[0]]), SET_BYTES) Number;
    poll(Words(&[&[50, 51, 54, 55, 56, 58, 99, -1, 0x1_0000_0036, 0x4_0000_0037, 0x5_0000_0038, 0x5_0000_003a,
        0x1_0000_0032]]), One(&[0, 1, 1, 5000]), One(&[0])) Number;
    ppoll(Words(&[&[0x1_0000_0036, 0x4_0000_0037, 99]]), One(&[1]), Words(&[&[0, 0, -1], &[0, 0, 1_000_000_000]]),
        One(&[0]), SET_BYTES) Number;
    write(Fd, In, Size) Number;
    read(Fd, Room, Size) Data;
    close(Fd) Number;
    futex(Words(&[&[0, 1]]), One(&[0, 1, 128, 3, 4, 5, 9, 10, 99, 256]), One(&[5, 1]), One(&[0]), One(&[0, 1]),
        One(&[0, 1])) Number;
}

/// All families.
pub const FAMILIES: &[(&str, &[Call])] = &[
    ("file", FILE),
    ("descriptor", DESCRIPTOR),
    ("names", NAMES),
    ("signal", SIGNAL),
    ("process", PROCESS),
    ("memory", MEMORY),
    ("time", TIME),
    ("ipc", IPC),
    ("poll", POLL),
];
