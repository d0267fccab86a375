//! Mounts of file systems by their kinds: what their options do, and who may mount what.
#![allow(unsafe_code, reason = "requests about terminals have no safe form")]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use crate::harness::{OrFail, Outcome};
use crate::mounts::namespace::apart;
use crate::mounts::{Stage, mount, mount_with};
use crate::namespaces::users::{become_root_inside, errno};
use crate::{expect, expect_eq};

crate::tests! {
    an_instance_has_terminals_of_its_own
    a_terminal_goes_with_its_master
    options_of_instances_are_checked
    a_user_namespace_mounts_an_instance
    the_owner_of_a_tmpfs_is_an_option
    processes_are_shown_to_the_owner_of_their_namespace
    what_is_covered_stays_covered
    a_rename_leaves_a_whiteout
}

fn open(path: &Path) -> Result<fs::File, std::io::Error> {
    fs::OpenOptions::new().read(true).write(true).open(path)
}

/// The number of a master's terminal, which can be opened from now on.
fn unlocked(master: &fs::File) -> Result<u32, Errno> {
    let (mut number, locked) = (0_u32, 0);
    // SAFETY: both requests take a number.
    unsafe {
        Errno::result(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const locked))?;
        Errno::result(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &raw mut number))?;
    }
    Ok(number)
}

fn instance(place: &Path, options: &str) -> Result<(), Errno> {
    mount_with(Some(Path::new("devpts")), place, Some("devpts"), 0, Some(options))
}

/// The names in a directory.
fn names(place: &Path) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(place).or_fail()? {
        found.push(entry.or_fail()?.file_name().to_string_lossy().into_owned());
    }
    found.sort_unstable();
    Ok(found)
}

fn an_instance_has_terminals_of_its_own() -> Outcome {
    let stage = Stage::new("devpts")?;
    let (one, two) = (stage.directory("one")?, stage.directory("two")?);
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        instance(&one, "newinstance,ptmxmode=0666,mode=0640,gid=7").or_fail()?;
        instance(&two, "ptmxmode=0600").or_fail()?;
        let own = fs::metadata(one.join("ptmx")).or_fail()?;
        expect!(own.file_type().is_char_device());
        expect_eq!((own.rdev(), own.permissions().mode() & 0o777), (libc::makedev(5, 2), 0o666));
        let before = names(Path::new("/dev/pts"))?;
        let mut master = open(&one.join("ptmx")).or_fail()?;
        let name = unlocked(&master).or_fail()?.to_string();
        expect_eq!(names(&one)?, [name.clone(), "ptmx".to_owned()]);
        expect_eq!(names(&two)?, ["ptmx"]);
        expect_eq!(names(Path::new("/dev/pts"))?, before);
        let terminal = fs::metadata(one.join(&name)).or_fail()?;
        expect_eq!((terminal.permissions().mode() & 0o777, terminal.uid(), terminal.gid()), (0o640, 0, 7));
        let mut program = open(&one.join(&name)).or_fail()?;
        program.write_all(b"x\n").or_fail()?;
        let mut text = [0; 3];
        master.read_exact(&mut text).or_fail()?;
        expect_eq!(&text, b"x\r\n");
        // Without a path it is the same one.
        // SAFETY: the request takes flags and returns a descriptor.
        let peer =
            unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY) };
        // SAFETY: it was just opened.
        let peer = unsafe { fs::File::from_raw_fd(Errno::result(peer).or_fail()?) };
        expect_eq!(peer.metadata().or_fail()?.ino(), terminal.ino());
        Ok(())
    })
}

fn a_terminal_goes_with_its_master() -> Outcome {
    let stage = Stage::new("devpts-end")?;
    let one = stage.directory("one")?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        instance(&one, "ptmxmode=0666").or_fail()?;
        for _ in 0..50 {
            let masters = [open(&one.join("ptmx")).or_fail()?, open(&one.join("ptmx")).or_fail()?];
            expect!(unlocked(&masters[0]).or_fail()? != unlocked(&masters[1]).or_fail()?);
            expect_eq!(names(&one)?.len(), 3);
        }
        expect_eq!(names(&one)?, ["ptmx"]);
        Ok(())
    })
}

fn options_of_instances_are_checked() -> Outcome {
    let stage = Stage::new("devpts-options")?;
    let one = stage.directory("one")?;
    for options in ["mode=9", "gid=x", "uid=4294967295", "depth=3"] {
        expect_eq!(instance(&one, options), Err(Errno::EINVAL));
    }
    // Nobody may open the master unless somebody says so; root may anything.
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        instance(&one, "").or_fail()?;
        expect_eq!(fs::metadata(one.join("ptmx")).or_fail()?.permissions().mode() & 0o777, 0);
        open(&one.join("ptmx")).map(drop).or_fail()
    })
}

fn a_user_namespace_mounts_an_instance() -> Outcome {
    let stage = Stage::new("devpts-users")?;
    let one = stage.directory("one")?;
    apart(|| {
        become_root_inside()?;
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        instance(&one, "ptmxmode=0666").or_fail()?;
        expect_eq!(fs::metadata(one.join("ptmx")).or_fail()?.uid(), 0);
        let master = open(&one.join("ptmx")).or_fail()?;
        let name = unlocked(&master).or_fail()?.to_string();
        open(&one.join(name)).map(drop).or_fail()?;
        // A user without a number here.
        expect_eq!(instance(&one, "uid=77"), Err(Errno::EINVAL));
        Ok(())
    })
}

fn the_owner_of_a_tmpfs_is_an_option() -> Outcome {
    let stage = Stage::new("tmpfs-owner")?;
    let one = stage.directory("one")?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        let options = Some("uid=12,gid=34,mode=0711");
        mount_with(Some(Path::new("x")), &one, Some("tmpfs"), 0, options).or_fail()?;
        let found = fs::metadata(&one).or_fail()?;
        expect_eq!((found.uid(), found.gid(), found.permissions().mode() & 0o7777), (12, 34, 0o711));
        let refused = mount_with(Some(Path::new("x")), &one, Some("tmpfs"), 0, Some("uid=nobody"));
        expect_eq!(refused, Err(Errno::EINVAL));
        Ok(())
    })
}

fn processes_are_shown_to_the_owner_of_their_namespace() -> Outcome {
    let stage = Stage::new("proc-owner")?;
    let one = stage.directory("one")?;
    apart(|| {
        become_root_inside()?;
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        // Those of the first namespaces are not the user's to show.
        expect_eq!(mount(Some("proc"), &one, Some("proc"), 0), Err(Errno::EPERM));
        expect_eq!(mount(Some("sysfs"), &one, Some("sysfs"), 0), Err(Errno::EPERM));
        unshare(CloneFlags::CLONE_NEWPID).or_fail()?;
        apart(|| {
            mount(Some("proc"), &one, Some("proc"), 0).or_fail()?;
            expect_eq!(fs::read_link(one.join("self")).or_fail()?, Path::new("1"));
            Ok(())
        })
    })
}

fn what_is_covered_stays_covered() -> Outcome {
    let stage = Stage::new("proc-covered")?;
    let one = stage.directory("one")?;
    apart(|| {
        unshare(CloneFlags::CLONE_NEWNS).or_fail()?;
        mount(Some("x"), Path::new("/proc/sys"), Some("tmpfs"), 0).or_fail()?;
        become_root_inside()?;
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID).or_fail()?;
        apart(|| {
            // A mount without the cover would show more than this user may see.
            expect_eq!(mount(Some("proc"), &one, Some("proc"), 0), Err(Errno::EPERM));
            let opened = open(&Path::new("/proc/sys").join("kernel/ostype"));
            expect_eq!(opened.map(drop).map_err(|error| errno(&error)), Err(Some(Errno::ENOENT)));
            Ok(())
        })
    })
}

fn a_rename_leaves_a_whiteout() -> Outcome {
    const WHITEOUT: u32 = libc::RENAME_WHITEOUT;
    let stage = Stage::new("whiteout")?;
    let top = stage.mounted("top")?;
    let rename = |from: &str, to: &str, flags: u32| {
        let path = |name: &str| std::ffi::CString::new(top.join(name).as_os_str().as_encoded_bytes());
        let (from, to) = (path(from).unwrap_or_default(), path(to).unwrap_or_default());
        // SAFETY: two paths.
        let result =
            unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
        Errno::result(result).err()
    };
    fs::write(top.join("one"), "1").or_fail()?;
    fs::write(top.join("two"), "2").or_fail()?;
    expect_eq!(rename("one", "two", WHITEOUT | libc::RENAME_EXCHANGE), Some(Errno::EINVAL));
    expect_eq!(rename("one", "two", WHITEOUT | libc::RENAME_NOREPLACE), Some(Errno::EEXIST));
    expect_eq!(rename("one", "three", WHITEOUT | libc::RENAME_NOREPLACE), None);
    expect_eq!(rename("three", "two", WHITEOUT), None);
    expect_eq!(fs::read(top.join("two")).or_fail()?, b"1");
    for left in ["one", "three"] {
        let metadata = fs::symlink_metadata(top.join(left)).or_fail()?;
        expect!(metadata.file_type().is_char_device());
        expect_eq!((metadata.rdev(), metadata.permissions().mode() & 0o7777), (0, 0));
    }
    // A directory leaves one as well, and one can be replaced.
    fs::create_dir_all(top.join("directory/inner")).or_fail()?;
    expect_eq!(rename("directory", "one", 0), Some(Errno::ENOTDIR));
    fs::remove_file(top.join("one")).or_fail()?;
    expect_eq!(rename("directory", "one", WHITEOUT), None);
    expect!(top.join("one/inner").is_dir());
    expect!(fs::symlink_metadata(top.join("directory")).or_fail()?.file_type().is_char_device());
    expect_eq!(rename("two", "directory", WHITEOUT), None);
    expect_eq!(fs::read(top.join("directory")).or_fail()?, b"1");
    Ok(())
}
