//! The sets of credentials that programs run with, by number: what isolation by user tells apart.

use alloc::vec::Vec;

use crate::memory::fallible::try_push;
use crate::memory::isolation;
use crate::memory::isolation::CredentialSet;
use crate::process::Credentials;
use crate::sync::SpinLock;

/// More sets than this are not told apart: their programs share with none.
const SETS_MAX: usize = 256;

/// The credentials that decide over others. The effective ids are not in it, since a program may change them back and
/// among the others.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Power {
    users: [u32; 2],
    groups: [u32; 2],
    permitted: u64,
}

static SETS: SpinLock<Vec<Power>> = SpinLock::new(Vec::new());

/// The set of some credentials.
pub fn of(credentials: &Credentials) -> CredentialSet {
    // Anybody makes such namespaces and restrictions, as many as they like: their programs have no places in the
    // table.
    if credentials.users.is_some() || !credentials.restrictions.is_none() {
        isolation::note_second_set();
        return CredentialSet(CredentialSet::UNIQUE.0);
    }
    let power = Power {
        users: [credentials.uid, credentials.suid],
        groups: [credentials.gid, credentials.sgid],
        permitted: credentials.capabilities.permitted,
    };
    let mut sets = SETS.lock();
    let number = match sets.iter().position(|known| *known == power) {
        Some(index) => CredentialSet::FIRST.0 + index,
        None if sets.len() < SETS_MAX && try_push(&mut sets, power).is_ok() => {
            CredentialSet::FIRST.0 + sets.len() - 1
        }
        None => CredentialSet::UNIQUE.0,
    };
    drop(sets);
    if number != CredentialSet::FIRST.0 {
        isolation::note_second_set();
    }
    CredentialSet(number)
}
