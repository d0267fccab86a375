//! Which system calls may go on by themselves.

use linux_raw_sys::general as linux;

/// Whether a call may go on by itself: it may have to wait, and it concerns neither the registers nor the signal mask
/// of the calling thread. So the forms with a mask, such as ppoll(2), may not.
pub const fn is_async_capable(number: u32) -> bool {
    is_of_a_file(number) || is_of_another_object(number)
}

/// Calls about files.
const fn is_of_a_file(number: u32) -> bool {
    matches!(
        number,
        // Transfers.
        linux::__NR_read
        | linux::__NR_write
        | linux::__NR_pread64
        | linux::__NR_pwrite64
        | linux::__NR_readv
        | linux::__NR_writev
        | linux::__NR_preadv
        | linux::__NR_pwritev
        | linux::__NR_preadv2
        | linux::__NR_pwritev2
        | linux::__NR_splice
        | linux::__NR_tee
        | linux::__NR_vmsplice
        | linux::__NR_sendfile
        | linux::__NR_copy_file_range
        | linux::__NR_getrandom
        // Files by path.
        | linux::__NR_open
        | linux::__NR_openat
        | linux::__NR_openat2
        | linux::__NR_creat
        | linux::__NR_stat
        | linux::__NR_lstat
        | linux::__NR_newfstatat
        | linux::__NR_statx
        | linux::__NR_statfs
        | linux::__NR_access
        | linux::__NR_faccessat
        | linux::__NR_faccessat2
        | linux::__NR_readlink
        | linux::__NR_readlinkat
        | linux::__NR_mkdir
        | linux::__NR_mkdirat
        | linux::__NR_rmdir
        | linux::__NR_unlink
        | linux::__NR_unlinkat
        | linux::__NR_rename
        | linux::__NR_renameat
        | linux::__NR_renameat2
        | linux::__NR_link
        | linux::__NR_linkat
        | linux::__NR_symlink
        | linux::__NR_symlinkat
        | linux::__NR_mknod
        | linux::__NR_mknodat
        | linux::__NR_chmod
        | linux::__NR_fchmodat
        | linux::__NR_chown
        | linux::__NR_lchown
        | linux::__NR_fchownat
        | linux::__NR_truncate
        | linux::__NR_utime
        | linux::__NR_utimes
        | linux::__NR_futimesat
        | linux::__NR_utimensat
        | linux::__NR_setxattr
        | linux::__NR_lsetxattr
        | linux::__NR_getxattr
        | linux::__NR_lgetxattr
        | linux::__NR_listxattr
        | linux::__NR_llistxattr
        | linux::__NR_removexattr
        | linux::__NR_lremovexattr
        // Files by descriptor.
        | linux::__NR_close
        | linux::__NR_fstat
        | linux::__NR_fstatfs
        | linux::__NR_getdents
        | linux::__NR_getdents64
        | linux::__NR_lseek
        | linux::__NR_fchmod
        | linux::__NR_fchown
        | linux::__NR_ftruncate
        | linux::__NR_fallocate
        | linux::__NR_fsetxattr
        | linux::__NR_fgetxattr
        | linux::__NR_flistxattr
        | linux::__NR_fremovexattr
        | linux::__NR_fsync
        | linux::__NR_fdatasync
        | linux::__NR_sync
        | linux::__NR_syncfs
        | linux::__NR_sync_file_range
        | linux::__NR_readahead
        | linux::__NR_fadvise64
        | linux::__NR_flock
        | linux::__NR_fcntl
    )
}

/// Calls about sockets, messages, time and processes.
const fn is_of_another_object(number: u32) -> bool {
    matches!(
        number,
        // Sockets.
        linux::__NR_accept
        | linux::__NR_accept4
        | linux::__NR_connect
        | linux::__NR_sendto
        | linux::__NR_recvfrom
        | linux::__NR_sendmsg
        | linux::__NR_recvmsg
        | linux::__NR_sendmmsg
        | linux::__NR_recvmmsg
        | linux::__NR_shutdown
        // Messages and semaphores.
        | linux::__NR_mq_open
        | linux::__NR_mq_unlink
        | linux::__NR_mq_timedsend
        | linux::__NR_mq_timedreceive
        | linux::__NR_msgsnd
        | linux::__NR_msgrcv
        | linux::__NR_semop
        | linux::__NR_semtimedop
        // Waits.
        | linux::__NR_poll
        | linux::__NR_select
        | linux::__NR_epoll_wait
        | linux::__NR_nanosleep
        | linux::__NR_clock_nanosleep
        | linux::__NR_futex
        | linux::__NR_wait4
        | linux::__NR_waitid
        | linux::__NR_io_getevents
        // It needs no wait; one measures a call by it.
        | linux::__NR_getpid
    )
}
