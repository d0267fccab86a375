//! Errors of system calls: error numbers, and the reasons for which a call stops half-way.

use heddle_kernel_core::fallible::AllocError;

/// A Linux error number, as a system call returns it negated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u16);

macro_rules! errnos {
    ($($name:ident)*) => {
        #[allow(missing_docs, reason = "the names are Linux's; errno(3) explains them")]
        impl Errno {
            $(pub const $name: Self = Self(linux_raw_sys::errno::$name as u16);)*

            /// The symbolic name, for logs; `None` for a number that Linux doesn't define.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY
    EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK
    EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT
    EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA
    ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW
    ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS
    ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP
    EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED
    ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
    EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE
    ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
}

/// Numbers that never leave the kernel: how a call that a signal interrupted goes on once the signal is delivered.
/// They are Linux's own, so that a trace reads the same.
impl Errno {
    /// Restart if the handler has `SA_RESTART` or there is no handler, else `EINTR`.
    pub const ERESTARTSYS: Self = Self(512);
    /// Always restart.
    pub const ERESTARTNOINTR: Self = Self(513);
    /// Restart if there is no handler, else `EINTR`.
    pub const ERESTARTNOHAND: Self = Self(514);
    /// Restart through `restart_syscall` (which knows the time left), or `EINTR` if there is a handler.
    pub const ERESTART_RESTARTBLOCK: Self = Self(516);

    /// Whether it is one of the restart codes.
    #[must_use]
    pub const fn is_restart(self) -> bool {
        matches!(
            self,
            Self::ERESTARTSYS | Self::ERESTARTNOINTR | Self::ERESTARTNOHAND | Self::ERESTART_RESTARTBLOCK
        )
    }

    /// The value a program sees in its result register.
    #[must_use]
    pub const fn to_result(self) -> usize {
        (self.0 as isize).wrapping_neg() as usize
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "errno {}", self.0),
        }
    }
}

/// An access to user memory stopped at a page that is missing, or not for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The address; everything below it was done.
    pub address: usize,
    /// Whether it was a store.
    pub write: bool,
}

/// Why an attempt at an operation stopped before its end.
///
/// An attempt never waits and may hold spinlocks; its caller, which holds none, does what the variant asks for and
/// tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryError {
    /// It failed.
    Error(Errno),
    /// A page of user memory was not there: await the space's `fault_in`, then try again.
    Fault(PageFault),
    /// It would have to wait: wait until the file is ready, then try again, or say `EAGAIN`.
    WouldBlock,
}

impl From<AllocError> for Errno {
    fn from(_: AllocError) -> Self {
        Self::ENOMEM
    }
}

impl From<AllocError> for TryError {
    fn from(_: AllocError) -> Self {
        Self::Error(Errno::ENOMEM)
    }
}

impl From<Errno> for TryError {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

impl From<PageFault> for TryError {
    fn from(fault: PageFault) -> Self {
        Self::Fault(fault)
    }
}

/// The result of one attempt.
pub type TryResult<T> = Result<T, TryError>;
