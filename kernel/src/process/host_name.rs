//! The machine's names, sethostname(2) and setdomainname(2).

use crate::sync::SpinLock;

/// Bytes of the name with at least one zero behind it: those of each string of `struct utsname`.
pub const HOST_NAME_BYTES: usize = 65;

static HOST_NAME: SpinLock<[u8; HOST_NAME_BYTES]> = SpinLock::new(initial(b"heddle"));
static DOMAIN_NAME: SpinLock<[u8; HOST_NAME_BYTES]> = SpinLock::new(initial(b"(none)"));

const fn initial(name: &[u8]) -> [u8; HOST_NAME_BYTES] {
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

/// The name of the machine's NIS domain with zeros behind it.
#[must_use]
pub fn domain_name() -> [u8; HOST_NAME_BYTES] {
    *DOMAIN_NAME.lock()
}

/// Changes the name of the domain; the last byte must be a zero.
pub fn set_domain_name(name: [u8; HOST_NAME_BYTES]) {
    *DOMAIN_NAME.lock() = name;
}
