//! Makes FIFOs and sockets in shared folders for the guest, which QEMU refuses.
//!
//! The guest is not trusted, and may change the folder through QEMU at the same time: a path is followed beneath the
//! folder and over no link, and a file's permissions are set by a handle of the file itself.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use heddle_abi::control::SpecialFile;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chmod, chownat, fstat, mknodat, openat,
    openat2,
};
use rustix::io::Errno;

use crate::guest::share::Share;

/// Does what the guest asks for; the error number, zero for none.
pub fn serve(shares: &[Share], asked: &SpecialFile<'_>) -> u32 {
    let done = shares.get(asked.folder as usize).ok_or(Errno::INVAL).and_then(|share| act(share, asked));
    done.err().map_or(0, |error| error.raw_os_error().cast_unsigned())
}

fn act(share: &Share, asked: &SpecialFile<'_>) -> Result<(), Errno> {
    if share.is_read_only {
        return Err(Errno::ROFS);
    }
    let kind = FileType::from_raw_mode(asked.mode);
    // Permissions alone: nothing that runs with the rights of this process's user.
    let mode = Mode::from_raw_mode(asked.mode & 0o777);
    if !matches!(kind, FileType::Fifo | FileType::Socket) {
        return Err(Errno::PERM);
    }
    let path = Path::new(OsStr::from_bytes(asked.path));
    let name = path.file_name().ok_or(Errno::INVAL)?;
    let directory = open_directory(share, path.parent().ok_or(Errno::INVAL)?)?;
    if asked.owner.is_some() {
        mknodat(&directory, name, kind, mode, 0)?;
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&directory, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&file)?.st_mode) != kind {
        return Err(Errno::NOENT);
    }
    if let Some((uid, gid)) = asked.owner {
        // An ordinary user owns all that the machine makes.
        let _ = chownat(&file, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH);
    }
    chmod(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), mode)
}

fn open_directory(share: &Share, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, &share.host, flags, Mode::empty())?;
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(&root, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    fn ask(path: &[u8], mode: u32, is_new: bool) -> SpecialFile<'_> {
        let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        SpecialFile { number: 1, folder: 0, mode, owner: is_new.then_some(own), path }
    }

    #[test]
    fn files_are_made_beneath_the_folder_only() {
        let folder = std::env::temp_dir().join(format!("heddle-special-{}", std::process::id()));
        fs::create_dir_all(folder.join("inner/d")).unwrap();
        symlink("..", folder.join("inner/up")).unwrap();
        let share =
            |is_read_only| [Share { host: folder.join("inner"), guest: String::from("/"), is_read_only }];
        let writable = share(false);
        assert_eq!(serve(&writable, &ask(b"d/socket", 0o140_600, true)), 0);
        let made = fs::symlink_metadata(folder.join("inner/d/socket")).unwrap();
        assert!(made.file_type().is_socket() && made.permissions().mode() & 0o7777 == 0o600);
        assert_eq!(serve(&writable, &ask(b"d/socket", 0o144_677, false)), 0);
        let made = fs::symlink_metadata(folder.join("inner/d/socket")).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o677, "no set-id bits");
        assert_eq!(serve(&writable, &ask(b"fifo", 0o010_644, true)), 0);
        let error = |error: Errno| error.raw_os_error().cast_unsigned();
        assert_eq!(serve(&writable, &ask(b"fifo", 0o010_644, true)), error(Errno::EXIST));
        for (path, mode, expected) in [
            (&b"../out"[..], 0o010_644, Errno::XDEV),
            (b"up/out", 0o010_644, Errno::LOOP),
            (b"d/..", 0o010_644, Errno::INVAL),
            (b"plain", 0o100_644, Errno::PERM),
            (b"device", 0o020_644, Errno::PERM),
        ] {
            assert_eq!(serve(&writable, &ask(path, mode, true)), error(expected), "{path:?}");
        }
        assert_eq!(serve(&writable, &ask(b"up", 0o010_644, false)), error(Errno::NOENT));
        assert_eq!(serve(&share(true), &ask(b"x", 0o010_644, true)), error(Errno::ROFS));
        assert_eq!(serve(&[], &ask(b"x", 0o010_644, true)), error(Errno::INVAL));
        fs::remove_dir_all(&folder).unwrap();
    }
}
