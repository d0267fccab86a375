//! The engine's errors as those of calls.

use heddle_inet::error::InetError;

use crate::error::Errno;

impl From<InetError> for Errno {
    fn from(error: InetError) -> Self {
        match error {
            InetError::AddressInUse => Self::EADDRINUSE,
            InetError::AddressNotAvailable => Self::EADDRNOTAVAIL,
            InetError::FamilyNotSupported => Self::EAFNOSUPPORT,
            InetError::AlreadyConnecting => Self::EALREADY,
            InetError::ConnectionAborted => Self::ECONNABORTED,
            InetError::ConnectionRefused => Self::ECONNREFUSED,
            InetError::ConnectionReset => Self::ECONNRESET,
            InetError::DestinationRequired => Self::EDESTADDRREQ,
            InetError::HostUnreachable => Self::EHOSTUNREACH,
            InetError::InProgress => Self::EINPROGRESS,
            InetError::Invalid => Self::EINVAL,
            InetError::IsConnected => Self::EISCONN,
            InetError::MessageTooLong => Self::EMSGSIZE,
            InetError::NetworkUnreachable => Self::ENETUNREACH,
            InetError::NoMemory => Self::ENOMEM,
            InetError::NoBuffers => Self::ENOBUFS,
            InetError::ProtocolNotAvailable => Self::ENOPROTOOPT,
            InetError::NotConnected => Self::ENOTCONN,
            InetError::NotSupported => Self::EOPNOTSUPP,
            InetError::Access => Self::EACCES,
            InetError::BrokenPipe => Self::EPIPE,
            InetError::TimedOut => Self::ETIMEDOUT,
            InetError::WouldBlock => Self::EAGAIN,
        }
    }
}
