//! The rights that a program starts with: set-id bits, capabilities of its file, what its caller passes on.
//!
//! The rules are those of capabilities(7), "Transformation of capabilities during execve()".

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::access::{self, Access};
use crate::fs::xattr::CAPABILITY;
use crate::fs::{OpenFile, Path};
use crate::memory::fallible;
use crate::process::user_namespace::{IdKind, Users, is_within, upper};
use crate::process::{Credentials, SecureBits, Thread};

/// The credentials that an executable file gives: set-id bits and file capabilities.
pub struct ProgramIdentity {
    pub credentials: Arc<Credentials>,
    /// The program may do more than its caller: `AT_SECURE`.
    pub is_secure: bool,
    /// Others of the same user may look into it: they may read its file, and its caller was what it seemed to be.
    pub is_dumpable: bool,
    /// The user namespace whose rights it takes to look into it while it is closed.
    pub memory_users: Users,
}

/// The attribute `security.capability` of a file.
pub struct FileCapabilities {
    permitted: u64,
    inheritable: u64,
    /// Permitted capabilities are effective from the start.
    is_effective: bool,
}

impl FileCapabilities {
    /// Whether a file can have this attribute.
    #[must_use]
    pub fn is_valid(bytes: &[u8]) -> bool {
        Self::decode(bytes).is_some()
    }

    /// Decodes the attribute. An unknown revision counts as none.
    fn decode(bytes: &[u8]) -> Option<Self> {
        const REVISION_2: u32 = 0x0200_0000;
        const REVISION_3: u32 = 0x0300_0000;
        const EFFECTIVE: u32 = 1;
        let word = |index: usize| Some(u32::from_le_bytes(*bytes.get(index * 4..)?.first_chunk()?));
        let head = word(0)?;
        let is_known = match head & !EFFECTIVE {
            REVISION_2 => bytes.len() == 20,
            // For the programs of one user namespace; here is only the first, whose root is user 0.
            REVISION_3 => bytes.len() == 24 && word(5)? == 0,
            _ => false,
        };
        let join = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        is_known.then_some(Self {
            permitted: join(word(1)?, word(3)?),
            inheritable: join(word(2)?, word(4)?),
            is_effective: head & EFFECTIVE != 0,
        })
    }

    fn of(place: &Path) -> Option<Self> {
        let extended = place.entry.node.extended()?;
        if !extended.has(CAPABILITY) {
            return None;
        }
        Self::decode(&extended.get(CAPABILITY).ok()?)
    }
}

/// The credentials of a program that a thread is about to execute.
///
/// # Errors
/// `ENOMEM`; `EPERM`: the file's capabilities are more than the bounding set leaves, and the program counts on them.
pub fn of_program(thread: &Thread, file: &OpenFile) -> Result<ProgramIdentity, Errno> {
    let old = thread.credentials();
    let metadata = file.access();
    let may_gain = file.place.as_ref().is_none_or(|place| {
        place.mount.flags() & linux::MS_NOSUID == 0 && is_within(&old.users, place.mount.file_system.owner())
    });
    let mut new = (*old).clone();
    let is_known = old.users.is_none() || old.knows(metadata.uid, metadata.gid);
    if may_gain && is_known && !thread.has_no_new_privileges() {
        if metadata.permissions & linux::S_ISUID != 0 {
            new.euid = metadata.uid;
        }
        if metadata.permissions & linux::S_ISGID != 0 && metadata.permissions & linux::S_IXGRP != 0 {
            new.egid = metadata.gid;
        }
    }
    let of_file = file.place.as_ref().filter(|_| may_gain).and_then(FileCapabilities::of);
    let is_effective = transform(&mut new, of_file.as_ref())?;
    if thread.has_no_new_privileges() {
        new.capabilities.permitted &= old.capabilities.permitted;
    }
    if is_watched(thread) && may_do_more(&old, &new) {
        // Whoever traces the thread would have the program's rights.
        if thread.has_no_new_privileges() || !old.has_capability(linux::CAP_SETUID) {
            (new.euid, new.egid) = (new.uid, new.gid);
        }
        new.capabilities.permitted &= old.capabilities.permitted;
    }
    (new.suid, new.fsuid, new.sgid, new.fsgid) = (new.euid, new.euid, new.egid, new.egid);
    let is_set_id = new.euid != old.uid || new.egid != old.gid;
    let root = new.root_user();
    let sets = &mut new.capabilities;
    if of_file.is_some() || is_set_id {
        sets.ambient = 0;
    }
    sets.permitted |= sets.ambient;
    sets.effective = if is_effective { sets.permitted } else { sets.ambient };
    let has_grown = new.uid != root && (is_effective || sets.permitted & !sets.ambient != 0);
    new.secure_bits.0 &= !SecureBits::KEEP_CAPABILITIES.0;
    let is_readable = match &file.place {
        Some(place) => access::check(&*place.entry.node, &old, Access::READ).is_ok(),
        None => access::check_bits(&metadata, &old, Access::READ, || None).is_ok(),
    };
    // A file that may not be read is looked into by those who may do so where its owner is known.
    let mut memory_users = old.users.clone();
    while !is_readable && let Some(users) = &memory_users {
        let knows_user = upper(&memory_users, IdKind::User, metadata.uid).is_some();
        if knows_user && upper(&memory_users, IdKind::Group, metadata.gid).is_some() {
            break;
        }
        let above = users.parent.clone();
        memory_users = above;
    }
    Ok(ProgramIdentity {
        memory_users,
        is_secure: is_set_id || has_grown,
        is_dumpable: is_readable && old.euid == old.uid && old.egid == old.gid || closed_is_dumpable(),
        credentials: if new == *old { old } else { fallible::try_arc(new)? },
    })
}

/// Whether a process is dumpable after it got other rights: `fs.suid_dumpable`, of which the value 2 is not there.
pub static CLOSED_DUMPABLE: AtomicU32 = AtomicU32::new(0);

/// The same, as the answer.
pub(super) fn closed_is_dumpable() -> bool {
    CLOSED_DUMPABLE.load(Ordering::Relaxed) == 1
}

/// Whether a thread is traced by one that may not look into any program.
fn is_watched(thread: &Thread) -> bool {
    thread.is_traced()
        && thread.with_tracee(|tracee| tracee.is_some_and(|tracee| !tracee.is_tracer_privileged))
}

fn may_do_more(old: &Credentials, new: &Credentials) -> bool {
    let is_set_id = new.euid != old.uid || new.egid != old.gid;
    is_set_id || new.capabilities.permitted & !old.capabilities.permitted != 0
}

/// The permitted set of a new program without what is ambient. Returns whether it is effective from the start.
fn transform(new: &mut Credentials, of_file: Option<&FileCapabilities>) -> Result<bool, Errno> {
    let root = new.root_user();
    let sets = &mut new.capabilities;
    let mut is_effective = false;
    sets.permitted = 0;
    if let Some(of_file) = of_file {
        sets.permitted = of_file.permitted & sets.bounding | of_file.inheritable & sets.inheritable;
        is_effective = of_file.is_effective;
        if is_effective && of_file.permitted & !sets.permitted != 0 {
            return Err(Errno::EPERM);
        }
    }
    // A file's own capabilities count for a program that is set to user 0, not user 0's.
    let is_root_by_file = of_file.is_some() && new.euid == root && new.uid != root;
    if !new.secure_bits.has(SecureBits::NO_ROOT) && !is_root_by_file {
        if new.euid == root || new.uid == root {
            sets.permitted = sets.bounding | sets.inheritable;
        }
        is_effective |= new.euid == root;
    }
    Ok(is_effective)
}
