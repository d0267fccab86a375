//! Why an operation on a socket fails: Linux's errors, without its numbers.

use crate::platform::OutOfMemory;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InetError {
    /// `EADDRINUSE`.
    AddressInUse,
    /// `EADDRNOTAVAIL`.
    AddressNotAvailable,
    /// `EAFNOSUPPORT`.
    FamilyNotSupported,
    /// `EALREADY`.
    AlreadyConnecting,
    /// `ECONNABORTED`.
    ConnectionAborted,
    /// `ECONNREFUSED`.
    ConnectionRefused,
    /// `ECONNRESET`.
    ConnectionReset,
    /// `EDESTADDRREQ`.
    DestinationRequired,
    /// `EHOSTUNREACH`.
    HostUnreachable,
    /// `EINPROGRESS`.
    InProgress,
    /// `EINVAL`.
    Invalid,
    /// `EISCONN`.
    IsConnected,
    /// `EMSGSIZE`.
    MessageTooLong,
    /// `ENETUNREACH`.
    NetworkUnreachable,
    /// `ENOMEM`.
    NoMemory,
    /// `ENOBUFS`.
    NoBuffers,
    /// `ENOPROTOOPT`.
    ProtocolNotAvailable,
    /// `ENOTCONN`.
    NotConnected,
    /// `EOPNOTSUPP`.
    NotSupported,
    /// `EACCES`.
    Access,
    /// `EPIPE`.
    BrokenPipe,
    /// `ETIMEDOUT`.
    TimedOut,
    /// `EAGAIN`: it would have to wait.
    WouldBlock,
}

impl From<OutOfMemory> for InetError {
    fn from(_: OutOfMemory) -> Self {
        Self::NoMemory
    }
}

/// The result of an operation.
pub type InetResult<T> = Result<T, InetError>;

/// Why moving bytes from or to a program stopped: the engine's reason, or that of whoever copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveError<F> {
    /// The engine's.
    Inet(InetError),
    /// The copier's: a page of user memory is missing.
    Copy(F),
}

impl<F> From<InetError> for MoveError<F> {
    fn from(error: InetError) -> Self {
        Self::Inet(error)
    }
}
