//! The table of system calls.

use super::{Call, Outcome};
use crate::error::Errno;

/// Maps the numbers of Linux to the functions that implement them: `name => path`.
macro_rules! calls {
    ($($name:ident ($number:ident) => $path:path,)*) => {
        /// Runs the implementation of call `number`.
        pub(super) fn invoke(number: usize, call: &mut Call<'_>) -> Outcome {
            match u32::try_from(number) {
                $(Ok(linux_raw_sys::general::$number) => $path(call),)*
                _ => {
                    crate::log::unknown_call(number);
                    Err(Errno::ENOSYS.into())
                }
            }
        }

        /// The name of an implemented call, for traces.
        #[must_use]
        pub fn name(number: usize) -> Option<&'static str> {
            match u32::try_from(number) {
                $(Ok(linux_raw_sys::general::$number) => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

calls! {
    getpid (__NR_getpid) => crate::process::calls::identity::getpid,
}
