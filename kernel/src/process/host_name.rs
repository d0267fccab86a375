//! The machine's name, sethostname(2).

use crate::sync::SpinLock;

/// Bytes of the name with at least one zero behind it: those of each string of `struct utsname`.
pub const HOST_NAME_BYTES: usize = 65;

static HOST_NAME: SpinLock<[u8; HOST_NAME_BYTES]> = SpinLock::new(initial());

const fn initial() -> [u8; HOST_NAME_BYTES] {
    let name = b"heddle";
    let mut bytes = [0; HOST_NAME_BYTES];
    let mut index = 0;
    while index < name.len() {
        bytes[index] = name[index];
        index += 1;
    }
    bytes
}

/// The machine's name with zeros behind it.
#[must_use]
pub fn host_name() -> [u8; HOST_NAME_BYTES] {
    *HOST_NAME.lock()
}

/// Changes the machine's name; the last byte must be a zero.
pub fn set_host_name(name: [u8; HOST_NAME_BYTES]) {
    *HOST_NAME.lock() = name;
}
