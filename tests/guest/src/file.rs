//! Files and directories.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::Mode;

use crate::harness::{OrFail, Outcome, Scratch, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    create_write_read
    offsets_are_shared_by_dup_not_open
    append_goes_to_the_end
    holes_read_as_zeros
    truncate_and_extend
    exclusive_create
    directories_list_what_is_there
    directory_with_many_entries
    removal_rules
    unlinked_file_lives_on
    rename_replaces
    rename_flags
    hard_links_share
    symbolic_links
    symlink_loops
    paths_have_limits
    relative_to_descriptors
    permissions_are_checked
    times_and_modes
    image_files_can_be_changed
    image_directories_can_be_changed
    dev_null_zero_full_random
    proc_self_shows_this_process
    statfs_and_sync
    record_locks
    flock_excludes
    memfd_works
    working_directory
    umask_applies
    copy_between_files
    vectored_io
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn create_write_read() -> Outcome {
    let scratch = Scratch::new("rw")?;
    let path = scratch.path("file");
    let data: Vec<u8> = (0..100_000u32).map(|index| (index % 251) as u8).collect();
    fs::write(&path, &data).or_fail()?;
    expect!(fs::read(&path).or_fail()? == data);
    let metadata = fs::metadata(&path).or_fail()?;
    expect_eq!(metadata.len(), 100_000);
    expect!(metadata.is_file() && metadata.nlink() == 1);
    expect!(metadata.blocks() * 512 >= 100_000);
    let file = File::open(&path).or_fail()?;
    let mut middle = [0; 10];
    file.read_exact_at(&mut middle, 50_000).or_fail()?;
    expect_eq!(&middle[..], &data[50_000..50_010]);
    expect_eq!(errno((&file).write(b"x")), Some(libc::EBADF));
    Ok(())
}

fn offsets_are_shared_by_dup_not_open() -> Outcome {
    let scratch = Scratch::new("offset")?;
    let path = scratch.path("file");
    fs::write(&path, "0123456789").or_fail()?;
    let mut first = File::open(&path).or_fail()?;
    let mut copy = first.try_clone().or_fail()?;
    let mut other = File::open(&path).or_fail()?;
    let mut buffer = [0; 4];
    first.read_exact(&mut buffer).or_fail()?;
    copy.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"4567");
    other.read_exact(&mut buffer).or_fail()?;
    expect_eq!(&buffer, b"0123");
    expect_eq!(copy.seek(SeekFrom::End(-1)).or_fail()?, 9);
    expect_eq!(first.stream_position().or_fail()?, 9);
    expect_eq!(errno(first.seek(SeekFrom::Current(-100))), Some(libc::EINVAL));
    Ok(())
}

fn append_goes_to_the_end() -> Outcome {
    let scratch = Scratch::new("append")?;
    let path = scratch.path("file");
    let mut first = OpenOptions::new().append(true).create(true).open(&path).or_fail()?;
    let mut second = OpenOptions::new().append(true).open(&path).or_fail()?;
    for _ in 0..3 {
        first.write_all(b"a").or_fail()?;
        second.write_all(b"b").or_fail()?;
    }
    expect_eq!(fs::read_to_string(&path).or_fail()?, "ababab");
    Ok(())
}

fn holes_read_as_zeros() -> Outcome {
    let scratch = Scratch::new("hole")?;
    let file = File::create_new(scratch.path("file")).or_fail()?;
    file.write_all_at(b"end", 10_000_000).or_fail()?;
    let metadata = file.metadata().or_fail()?;
    expect_eq!(metadata.len(), 10_000_003);
    expect!(metadata.blocks() < 100);
    let file = File::open(scratch.path("file")).or_fail()?;
    let mut buffer = [1; 5000];
    file.read_exact_at(&mut buffer, 9_995_000).or_fail()?;
    expect!(buffer.iter().all(|&byte| byte == 0));
    Ok(())
}

fn truncate_and_extend() -> Outcome {
    let scratch = Scratch::new("truncate")?;
    let path = scratch.path("file");
    fs::write(&path, vec![b'x'; 10_000]).or_fail()?;
    let file = OpenOptions::new().write(true).open(&path).or_fail()?;
    file.set_len(4_100).or_fail()?;
    file.set_len(8_200).or_fail()?;
    let data = fs::read(&path).or_fail()?;
    expect_eq!(data.len(), 8_200);
    expect!(data[..4_100].iter().all(|&byte| byte == b'x') && data[4_100..].iter().all(|&byte| byte == 0));
    drop(OpenOptions::new().write(true).truncate(true).open(&path).or_fail()?);
    expect_eq!(fs::metadata(&path).or_fail()?.len(), 0);
    Ok(())
}

fn exclusive_create() -> Outcome {
    let scratch = Scratch::new("exclusive")?;
    let path = scratch.path("file");
    File::create_new(&path).or_fail()?;
    expect_eq!(errno(File::create_new(&path)), Some(libc::EEXIST));
    expect_eq!(errno(File::open(scratch.path("other"))), Some(libc::ENOENT));
    expect_eq!(errno(File::open(path.join("x"))), Some(libc::ENOTDIR));
    expect_eq!(errno(OpenOptions::new().write(true).open(&scratch.0)), Some(libc::EISDIR));
    let directory = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&path);
    expect_eq!(errno(directory), Some(libc::ENOTDIR));
    Ok(())
}

fn names(path: &std::path::Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).or_fail()? {
        names.push(entry.or_fail()?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn directories_list_what_is_there() -> Outcome {
    let scratch = Scratch::new("list")?;
    fs::create_dir(scratch.path("b-directory")).or_fail()?;
    fs::write(scratch.path("a-file"), "").or_fail()?;
    symlink("nowhere", scratch.path("c-link")).or_fail()?;
    expect_eq!(names(&scratch.0)?, ["a-file", "b-directory", "c-link"]);
    for entry in fs::read_dir(&scratch.0).or_fail()? {
        let entry = entry.or_fail()?;
        let kind = entry.file_type().or_fail()?;
        let expected = match entry.file_name().as_encoded_bytes()[0] {
            b'a' => kind.is_file(),
            b'b' => kind.is_dir(),
            _ => kind.is_symlink(),
        };
        expect!(expected);
        expect_eq!(entry.metadata().or_fail()?.ino(), fs::symlink_metadata(entry.path()).or_fail()?.ino());
    }
    expect_eq!(fs::metadata(&scratch.0).or_fail()?.nlink(), 3);
    Ok(())
}

fn directory_with_many_entries() -> Outcome {
    let scratch = Scratch::new("many")?;
    for index in 0..2000 {
        fs::write(scratch.path(&format!("entry-{index:05}")), "").or_fail()?;
    }
    let all = names(&scratch.0)?;
    expect_eq!(all.len(), 2000);
    expect_eq!(all[1234], "entry-01234");
    for entry in fs::read_dir(&scratch.0).or_fail()? {
        fs::remove_file(entry.or_fail()?.path()).or_fail()?;
    }
    expect!(names(&scratch.0)?.is_empty());
    Ok(())
}

fn removal_rules() -> Outcome {
    let scratch = Scratch::new("removal")?;
    let (directory, file) = (scratch.path("directory"), scratch.path("directory/file"));
    fs::create_dir(&directory).or_fail()?;
    fs::write(&file, "").or_fail()?;
    expect_eq!(errno(fs::remove_dir(&directory)), Some(libc::ENOTEMPTY));
    expect_eq!(errno(fs::remove_file(&directory)), Some(libc::EISDIR));
    expect_eq!(errno(fs::remove_dir(&file)), Some(libc::ENOTDIR));
    expect_eq!(errno(fs::create_dir(&directory)), Some(libc::EEXIST));
    fs::remove_file(&file).or_fail()?;
    fs::remove_dir(&directory).or_fail()?;
    expect_eq!(errno(fs::metadata(&directory)), Some(libc::ENOENT));
    Ok(())
}

fn unlinked_file_lives_on() -> Outcome {
    let scratch = Scratch::new("unlinked")?;
    let path = scratch.path("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).or_fail()?;
    fs::remove_file(&path).or_fail()?;
    file.write_all(b"still here").or_fail()?;
    file.rewind().or_fail()?;
    let mut text = String::new();
    file.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "still here");
    expect_eq!(file.metadata().or_fail()?.nlink(), 0);
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or_fail()?;
    expect!(link.to_string_lossy().ends_with("file (deleted)"));
    Ok(())
}

fn rename_replaces() -> Outcome {
    let scratch = Scratch::new("rename")?;
    let (a, b, d) = (scratch.path("a"), scratch.path("b"), scratch.path("d"));
    fs::write(&a, "a").or_fail()?;
    fs::write(&b, "b").or_fail()?;
    fs::create_dir(&d).or_fail()?;
    fs::rename(&a, &b).or_fail()?;
    expect_eq!(fs::read_to_string(&b).or_fail()?, "a");
    expect_eq!(errno(fs::metadata(&a)), Some(libc::ENOENT));
    expect_eq!(errno(fs::rename(&b, &d)), Some(libc::EISDIR));
    expect_eq!(errno(fs::rename(&d, &b)), Some(libc::ENOTDIR));
    expect_eq!(errno(fs::rename(&d, d.join("inside"))), Some(libc::EINVAL));
    fs::rename(&b, d.join("b")).or_fail()?;
    expect_eq!(names(&d)?, ["b"]);
    Ok(())
}

fn rename_flags() -> Outcome {
    let scratch = Scratch::new("renameat2")?;
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    fs::write(&a, "a").or_fail()?;
    fs::write(&b, "b").or_fail()?;
    expect_eq!(renameat2(AT_FDCWD, &a, AT_FDCWD, &b, RenameFlags::RENAME_NOREPLACE), Err(Errno::EEXIST));
    renameat2(AT_FDCWD, &a, AT_FDCWD, &b, RenameFlags::RENAME_EXCHANGE).or_fail()?;
    expect_eq!(fs::read_to_string(&a).or_fail()?, "b");
    Ok(())
}

fn hard_links_share() -> Outcome {
    let scratch = Scratch::new("link")?;
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    fs::write(&a, "one").or_fail()?;
    fs::hard_link(&a, &b).or_fail()?;
    fs::write(&b, "two").or_fail()?;
    expect_eq!(fs::read_to_string(&a).or_fail()?, "two");
    let (first, second) = (fs::metadata(&a).or_fail()?, fs::metadata(&b).or_fail()?);
    expect_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    expect_eq!(errno(fs::hard_link(&a, &b)), Some(libc::EEXIST));
    expect_eq!(errno(fs::hard_link(&scratch.0, scratch.path("c"))), Some(libc::EPERM));
    Ok(())
}

fn symbolic_links() -> Outcome {
    let scratch = Scratch::new("symlink")?;
    let link = scratch.path("link");
    symlink("target", &link).or_fail()?;
    expect_eq!(fs::read_link(&link).or_fail()?, std::path::Path::new("target"));
    expect_eq!(errno(fs::metadata(&link)), Some(libc::ENOENT));
    fs::write(&link, "written through").or_fail()?;
    expect_eq!(fs::read_to_string(scratch.path("target")).or_fail()?, "written through");
    expect!(fs::symlink_metadata(&link).or_fail()?.is_symlink());
    let refused = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&link);
    expect_eq!(errno(refused), Some(libc::ELOOP));
    fs::remove_file(&link).or_fail()?;
    expect!(scratch.path("target").exists());
    Ok(())
}

fn symlink_loops() -> Outcome {
    let scratch = Scratch::new("loop")?;
    symlink("b", scratch.path("a")).or_fail()?;
    symlink("a", scratch.path("b")).or_fail()?;
    expect_eq!(errno(File::open(scratch.path("a"))), Some(libc::ELOOP));
    Ok(())
}

fn paths_have_limits() -> Outcome {
    let long = "x".repeat(256);
    expect_eq!(errno(File::open(format!("/tmp/{long}"))), Some(libc::ENAMETOOLONG));
    let deep = "/tmp/".to_owned() + &"./".repeat(2100);
    expect_eq!(errno(File::open(deep)), Some(libc::ENAMETOOLONG));
    expect_eq!(errno(File::open("")), Some(libc::ENOENT));
    expect_eq!(fs::metadata("/tmp/../tmp/.//").or_fail()?.ino(), fs::metadata("/tmp").or_fail()?.ino());
    expect_eq!(fs::metadata("/../..").or_fail()?.ino(), fs::metadata("/").or_fail()?.ino());
    Ok(())
}

fn relative_to_descriptors() -> Outcome {
    let scratch = Scratch::new("openat")?;
    fs::write(scratch.path("file"), "x").or_fail()?;
    let directory = File::open(&scratch.0).or_fail()?;
    let file = openat(&directory, "file", OFlag::O_RDONLY, Mode::empty()).or_fail()?;
    expect_eq!(openat(&file, "x", OFlag::O_RDONLY, Mode::empty()).err(), Some(Errno::ENOTDIR));
    let status = nix::sys::stat::fstatat(&directory, "file", nix::fcntl::AtFlags::empty()).or_fail()?;
    expect_eq!(status.st_size, 1);
    Ok(())
}

fn permissions_are_checked() -> Outcome {
    let scratch = Scratch::new("permission")?;
    let path = scratch.path("file");
    fs::write(&path, "secret").or_fail()?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).or_fail()?;
    fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o755)).or_fail()?;
    if !nix::unistd::getuid().is_root() {
        return Ok(());
    }
    let ended = in_child(|| {
        let _ = nix::unistd::setgroups(&[]);
        let _ = nix::unistd::setgid(nix::unistd::Gid::from_raw(1000));
        let _ = nix::unistd::setuid(nix::unistd::Uid::from_raw(1000));
        let checks = [
            errno(File::open(&path)) == Some(libc::EACCES),
            errno(fs::write(scratch.path("new"), "x")) == Some(libc::EACCES),
            errno(fs::remove_file(&path)) == Some(libc::EACCES),
            errno(fs::set_permissions(&path, fs::Permissions::from_mode(0o666))) == Some(libc::EPERM),
            fs::metadata(&path).is_ok(),
        ];
        checks.iter().position(|&ok| !ok).map_or(0, |index| index as i32 + 1)
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn times_and_modes() -> Outcome {
    let scratch = Scratch::new("times")?;
    let path = scratch.path("file");
    let file = File::create_new(&path).or_fail()?;
    let moment = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    file.set_times(fs::FileTimes::new().set_accessed(moment).set_modified(moment)).or_fail()?;
    let metadata = fs::metadata(&path).or_fail()?;
    expect_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_000_000_000, 123_456_789));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).or_fail()?;
    expect_eq!(fs::metadata(&path).or_fail()?.mode(), libc::S_IFREG | 0o4751);
    (&file).write_all(b"x").or_fail()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).or_fail()?;
    let written = fs::metadata(&path).or_fail()?.mtime() as u64;
    expect!(written <= now.as_secs() + 1 && written + 60 >= now.as_secs());
    Ok(())
}

fn image_files_can_be_changed() -> Outcome {
    let path = "/usr/share/common-licenses/GPL-3";
    if !nix::unistd::getuid().is_root() || std::env::var_os("HEDDLE_GUEST").is_none() {
        return Ok(());
    }
    let before = fs::read(path).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(path).or_fail()?;
    file.write_all_at(b"changed", 5_000).or_fail()?;
    let after = fs::read(path).or_fail()?;
    expect_eq!(&after[5_000..5_007], b"changed");
    expect!(after[..5_000] == before[..5_000] && after[5_007..] == before[5_007..]);
    file.write_all_at(&before[5_000..5_007], 5_000).or_fail()?;
    expect!(fs::read(path).or_fail()? == before);
    Ok(())
}

fn image_directories_can_be_changed() -> Outcome {
    if !nix::unistd::getuid().is_root() || std::env::var_os("HEDDLE_GUEST").is_none() {
        return Ok(());
    }
    let (from, to) = ("/usr/share/common-licenses/MPL-1.1", "/usr/share/common-licenses/renamed");
    fs::rename(from, to).or_fail()?;
    expect_eq!(errno(fs::metadata(from)), Some(libc::ENOENT));
    let listed = names(std::path::Path::new("/usr/share/common-licenses"))?;
    expect!(listed.iter().any(|name| name == "renamed") && !listed.iter().any(|name| name == "MPL-1.1"));
    fs::rename(to, from).or_fail()?;
    expect!(fs::metadata(from).is_ok());
    Ok(())
}

fn dev_null_zero_full_random() -> Outcome {
    let mut buffer = [1; 64];
    expect_eq!(File::open("/dev/null").or_fail()?.read(&mut buffer).or_fail()?, 0);
    File::open("/dev/zero").or_fail()?.read_exact(&mut buffer).or_fail()?;
    expect_eq!(buffer, [0; 64]);
    let mut full = OpenOptions::new().write(true).open("/dev/full").or_fail()?;
    expect_eq!(errno(full.write(b"x")), Some(libc::ENOSPC));
    let mut other = [0; 64];
    File::open("/dev/urandom").or_fail()?.read_exact(&mut other).or_fail()?;
    expect!(other != buffer);
    let metadata = fs::metadata("/dev/null").or_fail()?;
    expect!(metadata.file_type().is_char_device());
    expect_eq!(metadata.rdev(), libc::makedev(1, 3));
    Ok(())
}

fn proc_self_shows_this_process() -> Outcome {
    let own = std::process::id();
    expect_eq!(fs::read_link("/proc/self").or_fail()?, std::path::PathBuf::from(own.to_string()));
    let status = fs::read_to_string("/proc/self/status").or_fail()?;
    expect!(status.contains(&format!("Pid:\t{own}\n")));
    let arguments = fs::read("/proc/self/cmdline").or_fail()?;
    expect!(arguments.ends_with(&[0]));
    let stat = fs::read_to_string("/proc/self/stat").or_fail()?;
    expect!(stat.starts_with(&format!("{own} (")));
    let maps = fs::read_to_string("/proc/self/maps").or_fail()?;
    expect!(maps.contains("[stack]") && maps.contains("r-xp"));
    let file = File::open("/etc/passwd").or_fail()?;
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or_fail()?;
    expect_eq!(link, std::path::Path::new("/etc/passwd"));
    expect_eq!(errno(fs::metadata("/proc/999999")), Some(libc::ENOENT));
    let meminfo = fs::read_to_string("/proc/meminfo").or_fail()?;
    expect!(meminfo.starts_with("MemTotal:"));
    Ok(())
}

fn statfs_and_sync() -> Outcome {
    let status = nix::sys::statfs::statfs("/tmp").or_fail()?;
    expect!(status.blocks() > 0 && status.maximum_name_length() == 255);
    let scratch = Scratch::new("sync")?;
    let file = File::create_new(scratch.path("file")).or_fail()?;
    file.sync_all().or_fail()?;
    let (reader, _writer) = nix::unistd::pipe().or_fail()?;
    expect_eq!(nix::unistd::fsync(&reader), Err(Errno::EINVAL));
    Ok(())
}

fn record_locks() -> Outcome {
    use nix::fcntl::{FcntlArg, fcntl};
    let scratch = Scratch::new("lock")?;
    let path = scratch.path("file");
    fs::write(&path, [0; 100]).or_fail()?;
    let file = OpenOptions::new().read(true).write(true).open(&path).or_fail()?;
    let range = |kind: i32, start: i64, length: i64| libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&range(libc::F_WRLCK, 10, 10))).or_fail()?;
    let own = std::process::id() as i32;
    let ended = in_child(|| {
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return 100 };
        let mut query = range(libc::F_RDLCK, 0, 0);
        let asked = fcntl(&file, FcntlArg::F_GETLK(&mut query)).is_ok();
        let checks = [
            fcntl(&file, FcntlArg::F_SETLK(&range(libc::F_WRLCK, 0, 10))).is_ok(),
            fcntl(&file, FcntlArg::F_SETLK(&range(libc::F_RDLCK, 19, 1))).is_err(),
            asked && (query.l_pid, query.l_start, query.l_len) == (own, 10, 10),
        ];
        checks.iter().position(|&ok| !ok).map_or(0, |index| index as i32 + 1)
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

fn flock_excludes() -> Outcome {
    use nix::fcntl::{Flock, FlockArg};
    let scratch = Scratch::new("flock")?;
    let path = scratch.path("file");
    let lock = Flock::lock(File::create_new(&path).or_fail()?, FlockArg::LockExclusive)
        .map_err(|(_, error)| error.to_string())?;
    let second = Flock::lock(File::open(&path).or_fail()?, FlockArg::LockSharedNonblock);
    expect_eq!(second.err().map(|(_, error)| error), Some(Errno::EAGAIN));
    drop(lock);
    let third = Flock::lock(File::open(&path).or_fail()?, FlockArg::LockSharedNonblock);
    expect!(third.is_ok());
    Ok(())
}

fn memfd_works() -> Outcome {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let mut file = File::from(memfd_create("name", MFdFlags::MFD_CLOEXEC).or_fail()?);
    file.write_all(b"in memory").or_fail()?;
    file.rewind().or_fail()?;
    let mut text = String::new();
    file.read_to_string(&mut text).or_fail()?;
    expect_eq!(text, "in memory");
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or_fail()?;
    expect_eq!(link, std::path::Path::new("/memfd:name (deleted)"));
    Ok(())
}

fn working_directory() -> Outcome {
    let scratch = Scratch::new("cwd")?;
    fs::create_dir(scratch.path("inner")).or_fail()?;
    std::env::set_current_dir(scratch.path("inner")).or_fail()?;
    expect_eq!(std::env::current_dir().or_fail()?, scratch.path("inner"));
    fs::write("../made-relative", "x").or_fail()?;
    expect!(scratch.path("made-relative").exists());
    fs::rename(scratch.path("inner"), scratch.path("moved")).or_fail()?;
    expect_eq!(std::env::current_dir().or_fail()?, scratch.path("moved"));
    fs::remove_dir(scratch.path("moved")).or_fail()?;
    expect_eq!(errno(std::env::current_dir()), Some(libc::ENOENT));
    std::env::set_current_dir("/").or_fail()
}

fn umask_applies() -> Outcome {
    let scratch = Scratch::new("umask")?;
    nix::sys::stat::umask(Mode::from_bits_truncate(0o027));
    OpenOptions::new().write(true).create_new(true).mode(0o666).open(scratch.path("file")).or_fail()?;
    expect_eq!(fs::metadata(scratch.path("file")).or_fail()?.mode() & 0o777, 0o640);
    Ok(())
}

fn copy_between_files() -> Outcome {
    let scratch = Scratch::new("copy")?;
    let data: Vec<u8> = (0..300_000u32).map(|index| (index % 253) as u8).collect();
    fs::write(scratch.path("a"), &data).or_fail()?;
    expect_eq!(fs::copy(scratch.path("a"), scratch.path("b")).or_fail()?, 300_000);
    expect!(fs::read(scratch.path("b")).or_fail()? == data);
    let mut source = File::open(scratch.path("a")).or_fail()?;
    let (reader, writer) = nix::unistd::pipe().or_fail()?;
    let thread = std::thread::spawn(move || {
        let mut all = Vec::new();
        File::from(reader).read_to_end(&mut all).map(|_| all)
    });
    std::io::copy(&mut source, &mut File::from(writer)).or_fail()?;
    expect!(thread.join().map_err(|_| "panicked")?.or_fail()? == data);
    Ok(())
}

fn vectored_io() -> Outcome {
    use std::io::{IoSlice, IoSliceMut};
    let scratch = Scratch::new("vectored")?;
    let path = scratch.path("file");
    let mut file = File::create_new(&path).or_fail()?;
    let parts = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdef")];
    expect_eq!(file.write_vectored(&parts).or_fail()?, 6);
    let (mut first, mut second) = ([0; 3], [0; 10]);
    let mut parts = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
    expect_eq!(File::open(&path).or_fail()?.read_vectored(&mut parts).or_fail()?, 6);
    expect_eq!((&first, &second[..3]), (b"abc", &b"def"[..]));
    Ok(())
}
