//! fanotify(7): the flags of its calls, and the layout of its events.
#![allow(missing_docs, reason = "the names are those of the manual page")]

/// Flags of fanotify_init(2).
pub mod init {
    pub const CLOEXEC: u32 = 0x1;
    pub const NONBLOCK: u32 = 0x2;
    pub const CLASS_CONTENT: u32 = 0x4;
    pub const CLASS_PRE_CONTENT: u32 = 0x8;
    pub const CLASSES: u32 = CLASS_CONTENT | CLASS_PRE_CONTENT;
    pub const UNLIMITED_QUEUE: u32 = 0x10;
    pub const UNLIMITED_MARKS: u32 = 0x20;
    pub const ENABLE_AUDIT: u32 = 0x40;
    pub const REPORT_PIDFD: u32 = 0x80;
    pub const REPORT_TID: u32 = 0x100;
    pub const REPORT_FID: u32 = 0x200;
    pub const REPORT_DIR_FID: u32 = 0x400;
    pub const REPORT_NAME: u32 = 0x800;
    pub const REPORT_TARGET_FID: u32 = 0x1000;
    /// Events tell of files by handles instead of descriptors.
    pub const BY_HANDLE: u32 = REPORT_FID | REPORT_DIR_FID | REPORT_NAME | REPORT_TARGET_FID;
    pub const KNOWN: u32 = CLOEXEC
        | NONBLOCK
        | CLASSES
        | UNLIMITED_QUEUE
        | UNLIMITED_MARKS
        | ENABLE_AUDIT
        | REPORT_PIDFD
        | REPORT_TID
        | BY_HANDLE;
    /// Flags that an ordinary user may not ask for.
    pub const PRIVILEGED: u32 =
        CLASSES | UNLIMITED_QUEUE | UNLIMITED_MARKS | ENABLE_AUDIT | REPORT_PIDFD | REPORT_TID;
}

/// Flags of fanotify_mark(2).
pub mod mark {
    pub const ADD: u32 = 0x1;
    pub const REMOVE: u32 = 0x2;
    pub const DONT_FOLLOW: u32 = 0x4;
    pub const ONLYDIR: u32 = 0x8;
    pub const MOUNT: u32 = 0x10;
    pub const IGNORED_MASK: u32 = 0x20;
    pub const IGNORED_SURVIVES: u32 = 0x40;
    pub const FLUSH: u32 = 0x80;
    pub const FILE_SYSTEM: u32 = 0x100;
    pub const EVICTABLE: u32 = 0x200;
    pub const IGNORE: u32 = 0x400;
    pub const KINDS: u32 = MOUNT | FILE_SYSTEM;
    pub const KNOWN: u32 = ADD
        | REMOVE
        | DONT_FOLLOW
        | ONLYDIR
        | KINDS
        | IGNORED_MASK
        | IGNORED_SURVIVES
        | FLUSH
        | EVICTABLE
        | IGNORE;
}

/// Bits of masks. Those of inotify have the same values.
pub mod event {
    pub const ACCESS: u32 = 0x1;
    pub const MODIFY: u32 = 0x2;
    pub const CLOSE: u32 = 0x18;
    pub const OPEN: u32 = 0x20;
    pub const MOVED: u32 = 0xc0;
    pub const CREATE: u32 = 0x100;
    pub const DELETE: u32 = 0x200;
    pub const DELETE_SELF: u32 = 0x400;
    pub const MOVE_SELF: u32 = 0x800;
    pub const ATTRIB: u32 = 0x4;
    pub const OPEN_EXEC: u32 = 0x1000;
    pub const OVERFLOW: u32 = 0x4000;
    pub const OPEN_PERM: u32 = 0x1_0000;
    pub const ACCESS_PERM: u32 = 0x2_0000;
    pub const OPEN_EXEC_PERM: u32 = 0x4_0000;
    pub const ON_CHILD: u32 = 0x0800_0000;
    pub const RENAME: u32 = 0x1000_0000;
    pub const ONDIR: u32 = 0x4000_0000;
    /// Events that come with a path.
    pub const WITH_PATH: u32 = ACCESS | MODIFY | CLOSE | OPEN | OPEN_EXEC;
    /// Events of names in a directory.
    pub const NAMES: u32 = MOVED | CREATE | DELETE | RENAME;
    /// Events that wait for permission.
    pub const PERMISSIONS: u32 = OPEN_PERM | OPEN_EXEC_PERM;
    /// Modifiers.
    pub const MODIFIERS: u32 = ON_CHILD | ONDIR;
    pub const KNOWN: u32 =
        WITH_PATH | NAMES & !RENAME | ATTRIB | DELETE_SELF | MOVE_SELF | PERMISSIONS | MODIFIERS;
}

/// `struct fanotify_event_metadata`.
pub const METADATA_BYTES: usize = 24;
const VERSION: u8 = 3;

/// The types of further records.
pub const INFO_FID: u8 = 1;
pub const INFO_DIRECTORY_NAME: u8 = 2;
pub const INFO_DIRECTORY: u8 = 3;
pub const INFO_PIDFD: u8 = 4;
/// `struct fanotify_event_info_pidfd`.
pub const PIDFD_BYTES: usize = 8;

/// Whether the flags of fanotify_init(2) go together, those of `access` (open(2)'s) among them.
#[must_use]
pub const fn is_valid_init(flags: u32, access: u32) -> bool {
    /// The access mode, `O_APPEND`, `O_NONBLOCK`, `O_DSYNC`, `O_SYNC`, `O_CLOEXEC`, `O_LARGEFILE`, `O_NOATIME`.
    const ACCESS_KNOWN: u32 =
        0o3 | 0o2000 | 0o4000 | 0o10000 | 0o4_000_000 | 0o2_000_000 | 0o100_000 | 0o1_000_000;
    const fn has(flags: u32, all: u32) -> bool {
        flags & all == all
    }
    let by_handle = flags & init::BY_HANDLE;
    flags & !init::KNOWN == 0
        && !has(flags, init::REPORT_PIDFD | init::REPORT_TID)
        && access & !ACCESS_KNOWN == 0
        && access & 0o3 != 0o3
        && (by_handle == 0 || flags & init::CLASSES == 0)
        && (!has(flags, init::REPORT_NAME) || has(flags, init::REPORT_DIR_FID))
        && (!has(flags, init::REPORT_TARGET_FID) || has(flags, init::REPORT_NAME | init::REPORT_FID))
        && flags & init::CLASSES != init::CLASSES
}

/// The head of an event with records of so many bytes behind it.
#[must_use]
pub fn metadata(info_bytes: usize, mask: u32, descriptor: i32, pid: i32) -> [u8; METADATA_BYTES] {
    let mut bytes = [0; METADATA_BYTES];
    bytes[..4].copy_from_slice(&((METADATA_BYTES + info_bytes) as u32).to_ne_bytes());
    bytes[4] = VERSION;
    bytes[6..8].copy_from_slice(&(METADATA_BYTES as u16).to_ne_bytes());
    bytes[8..16].copy_from_slice(&u64::from(mask).to_ne_bytes());
    bytes[16..20].copy_from_slice(&descriptor.to_ne_bytes());
    bytes[20..].copy_from_slice(&pid.to_ne_bytes());
    bytes
}

/// The longest record of a file: a head, the file system, a handle of 12 bytes, and a name.
pub const RECORD_BYTES_MAX: usize = RECORD_BYTES + 256;
const RECORD_BYTES: usize = 32;

/// A record of a file by its handle, perhaps with a name. Returns its length, a multiple of four.
#[must_use]
pub fn file_record(
    bytes: &mut [u8; RECORD_BYTES_MAX],
    kind: u8,
    file_system: u64,
    (handle_type, handle): (i32, [u8; 12]),
    name: Option<&[u8]>,
) -> usize {
    let name_bytes = name.map_or(0, |name| name.len().min(255) + 1);
    let length = (RECORD_BYTES + name_bytes).next_multiple_of(4);
    bytes[..length].fill(0);
    bytes[0] = kind;
    bytes[2..4].copy_from_slice(&(length as u16).to_ne_bytes());
    bytes[4..12].copy_from_slice(&file_system.to_ne_bytes());
    bytes[12..16].copy_from_slice(&12_u32.to_ne_bytes());
    bytes[16..20].copy_from_slice(&handle_type.to_ne_bytes());
    bytes[20..32].copy_from_slice(&handle);
    if let Some(name) = name {
        let name = &name[..name_bytes - 1];
        bytes[RECORD_BYTES..RECORD_BYTES + name.len()].copy_from_slice(name);
    }
    length
}

/// A record of a process by a descriptor.
#[must_use]
pub fn pidfd_record(descriptor: i32) -> [u8; PIDFD_BYTES] {
    let mut bytes = [0; PIDFD_BYTES];
    bytes[0] = INFO_PIDFD;
    bytes[2..4].copy_from_slice(&(PIDFD_BYTES as u16).to_ne_bytes());
    bytes[4..].copy_from_slice(&descriptor.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::{RECORD_BYTES_MAX, file_record, init, is_valid_init, metadata};

    #[test]
    fn flags_go_together_or_not() {
        assert!(is_valid_init(0, 0));
        assert!(is_valid_init(init::REPORT_FID | init::REPORT_DIR_FID | init::REPORT_NAME, 0o2));
        for (flags, access) in [
            (init::REPORT_NAME, 0),
            (init::REPORT_FID | init::CLASS_CONTENT, 0),
            (init::CLASSES, 0),
            (init::REPORT_PIDFD | init::REPORT_TID, 0),
            (init::REPORT_TARGET_FID | init::REPORT_FID, 0),
            (1 << 20, 0),
            (0, 0o3),
            (0, 0o100),
        ] {
            assert!(!is_valid_init(flags, access), "{flags:x} {access:o}");
        }
    }

    #[test]
    fn records_are_whole_words() {
        let mut bytes = [0xff; RECORD_BYTES_MAX];
        assert_eq!(file_record(&mut bytes, 2, 7, (1, [9; 12]), Some(b"name")), 40);
        assert_eq!(&bytes[..12], &[2, 0, 40, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[32..40], b"name\0\0\0\0");
        assert_eq!(file_record(&mut bytes, 1, 7, (1, [9; 12]), None), 32);
        assert_eq!(metadata(32, 2, -1, 5)[..8], [56, 0, 0, 0, 3, 0, 24, 0]);
    }
}
