//! Overlays at their edges: attributes, special files, mappings, layers that don't go together, other ways to mount.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome, is_heddle};
use crate::mounts::namespace::apart;
use crate::mounts::overlay::{Layers, error_of, names, overlay, text};
use crate::mounts::umount;
use crate::{expect, expect_eq};

crate::tests! {
    attributes_are_copied_and_marks_hidden
    special_files_are_copied
    locks_and_mappings_work
    layers_that_do_not_go_together
    an_overlay_over_an_overlay
    a_step_by_step_mount
    large_directories_are_merged
    set_id_bits_go_with_a_write
    file_systems_that_compute_are_no_layers
    an_upper_layer_that_becomes_read_only
}

fn attributes_are_copied_and_marks_hidden() -> Outcome {
    let layers = Layers::new("attributes")?;
    fs::write(layers.lower.join("file"), "text").or_fail()?;
    set_attribute(&layers.lower.join("file"), "trusted.one", b"1").or_fail()?;
    fs::create_dir(layers.lower.join("tree")).or_fail()?;
    layers.mount()?;
    let file = layers.merged.join("file");
    expect_eq!(attribute(&file, "trusted.one").or_fail()?, b"1");
    expect!(!layers.upper.join("file").exists());
    // A new one is the copy's.
    set_attribute(&file, "trusted.two", b"2").or_fail()?;
    expect_eq!(attribute(&layers.upper.join("file"), "trusted.one").or_fail()?, b"1");
    expect_eq!(attribute(&layers.upper.join("file"), "trusted.two").or_fail()?, b"2");
    expect_eq!(attribute(&layers.lower.join("file"), "trusted.two"), Err(Errno::ENODATA));
    let tree = layers.merged.join("tree");
    fs::remove_dir(&tree).or_fail()?;
    fs::create_dir(&tree).or_fail()?;
    expect_eq!(attribute(&layers.upper.join("tree"), "trusted.overlay.opaque").or_fail()?, b"y");
    expect_eq!(attribute(&tree, "trusted.overlay.opaque"), Err(Errno::EOPNOTSUPP));
    let mut list = [0_u8; 256];
    // SAFETY: a string and a buffer with its length.
    let length =
        unsafe { libc::listxattr(crate::mounts::text(&tree).as_ptr(), list.as_mut_ptr().cast(), list.len()) };
    let length = Errno::result(length).or_fail()? as usize;
    expect!(!list[..length].windows(8).any(|part| part == b".overlay"));
    Ok(())
}

fn special_files_are_copied() -> Outcome {
    use nix::sys::stat::{Mode, SFlag, mknod};
    let layers = Layers::new("special")?;
    let node = |name: &str, kind, number| {
        mknod(&layers.lower.join(name), kind, Mode::from_bits_truncate(0o644), number)
    };
    node("fifo", SFlag::S_IFIFO, 0).or_fail()?;
    node("null", SFlag::S_IFCHR, libc::makedev(1, 3)).or_fail()?;
    layers.mount()?;
    for name in ["fifo", "null"] {
        fs::set_permissions(layers.merged.join(name), fs::Permissions::from_mode(0o606)).or_fail()?;
        let (copy, lower) = (
            fs::metadata(layers.upper.join(name)).or_fail()?,
            fs::metadata(layers.lower.join(name)).or_fail()?,
        );
        expect_eq!(copy.mode(), lower.mode() & libc::S_IFMT | 0o606);
        expect_eq!(copy.rdev(), lower.rdev());
    }
    File::options().write(true).open(layers.merged.join("null")).or_fail()?.write_all(b"x").or_fail()?;
    let fifo = File::options().read(true).write(true).open(layers.merged.join("fifo")).or_fail()?;
    (&fifo).write_all(b"x").or_fail()?;
    (&fifo).read_exact(&mut [0]).or_fail()?;
    let socket = layers.merged.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).or_fail()?;
    let _stream = std::os::unix::net::UnixStream::connect(&socket).or_fail()?;
    drop(listener);
    Ok(())
}

fn locks_and_mappings_work() -> Outcome {
    let layers = Layers::new("locks")?;
    fs::write(layers.lower.join("file"), vec![b'a'; 8192]).or_fail()?;
    layers.mount()?;
    let path = layers.merged.join("file");
    let reader = File::open(&path).or_fail()?;
    // SAFETY: a descriptor.
    let lock = |file: &File, how| Errno::result(unsafe { libc::flock(file.as_raw_fd(), how) });
    lock(&reader, libc::LOCK_EX).or_fail()?;
    let writer = File::options().read(true).write(true).open(&path).or_fail()?;
    // One file, though the first was opened before the copy.
    expect_eq!(lock(&writer, libc::LOCK_EX | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
    drop(reader);
    lock(&writer, libc::LOCK_EX | libc::LOCK_NB).or_fail()?;
    // SAFETY: a new mapping of a file that is long enough.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            writer.as_raw_fd(),
            0,
        )
    };
    expect!(mapped != libc::MAP_FAILED);
    // SAFETY: within the mapping.
    unsafe { mapped.cast::<u8>().add(5000).write(b'z') };
    let mut byte = [0];
    writer.read_exact_at(&mut byte, 5000).or_fail()?;
    expect_eq!(&byte, b"z");
    // SAFETY: it is not used any more.
    Errno::result(unsafe { libc::munmap(mapped, 8192) }).or_fail()?;
    expect_eq!(fs::read(layers.upper.join("file")).or_fail()?[5000], b'z');
    // A program runs from an overlay.
    fs::copy("/bin/true", layers.lower.join("true")).or_fail()?;
    let status = std::process::Command::new(layers.merged.join("true")).status().or_fail()?;
    expect!(status.success());
    Ok(())
}

fn layers_that_do_not_go_together() -> Outcome {
    let layers = Layers::new("refused")?;
    let [lower, upper, work] =
        [&layers.lower, &layers.upper, &layers.work].map(|path| path.display().to_string());
    let file = layers.stage.directory("in")?.join("file");
    fs::write(&file, "").or_fail()?;
    let other = layers.stage.mounted("other")?;
    for (what, options, error) in [
        ("no options", String::new(), Errno::EINVAL),
        ("no lower", format!("upperdir={upper},workdir={work}"), Errno::EINVAL),
        ("no work", format!("lowerdir={lower},upperdir={upper}"), Errno::EINVAL),
        ("unknown", format!("{},other", layers.options()), Errno::EINVAL),
        ("a gone layer", format!("lowerdir={lower}/none,upperdir={upper},workdir={work}"), Errno::ENOENT),
        ("a file", format!("lowerdir={},upperdir={upper},workdir={work}", file.display()), Errno::EINVAL),
        (
            "work elsewhere",
            format!("lowerdir={lower},upperdir={upper},workdir={}", other.display()),
            Errno::EINVAL,
        ),
        ("work in upper", format!("lowerdir={lower},upperdir={upper},workdir={upper}"), Errno::EINVAL),
    ] {
        expect_eq!((what, overlay(&layers.merged, &options)), (what, Err(error)));
    }
    Ok(())
}

fn an_overlay_over_an_overlay() -> Outcome {
    let layers = Layers::new("over")?;
    fs::write(layers.lower.join("a"), "a").or_fail()?;
    fs::write(layers.lower.join("b"), "b").or_fail()?;
    layers.mount()?;
    fs::remove_file(layers.merged.join("b")).or_fail()?;
    let [upper, work, top] = ["upper2", "work2", "top"].map(|name| layers.stage.directory(name));
    let (upper, work, top) = (upper?, work?, top?);
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        layers.merged.display(),
        upper.display(),
        work.display()
    );
    overlay(&top, &options).or_fail()?;
    expect_eq!(names(&top)?, ["a"]);
    fs::write(top.join("a"), "changed").or_fail()?;
    expect_eq!(
        (text(&top.join("a"))?, text(&layers.merged.join("a"))?),
        ("changed".to_owned(), "a".to_owned())
    );
    let last = layers.stage.directory("last")?;
    let second = layers.stage.directory("second")?;
    // There are only two levels.
    let options = format!("lowerdir={}:{}", top.display(), second.display());
    expect_eq!(overlay(&last, &options), Err(Errno::EINVAL));
    umount(&top, 0).or_fail()
}

fn a_step_by_step_mount() -> Outcome {
    let layers = Layers::new("steps")?;
    fs::write(layers.lower.join("a"), "a").or_fail()?;
    let kind = std::ffi::CString::new("overlay").unwrap_or_default();
    // SAFETY: a string and a number.
    let context =
        Errno::result(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 0) }).or_fail()? as i32;
    for (name, value) in [
        ("source", None),
        ("lowerdir", Some(&layers.lower)),
        ("upperdir", Some(&layers.upper)),
        ("workdir", Some(&layers.work)),
    ] {
        let name = std::ffi::CString::new(name).unwrap_or_default();
        let value = value.map_or_else(|| kind.clone(), |path| crate::mounts::text(path));
        // SAFETY: two strings.
        let set = unsafe { libc::syscall(libc::SYS_fsconfig, context, 1, name.as_ptr(), value.as_ptr(), 0) };
        Errno::result(set).or_fail()?;
    }
    // SAFETY: numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_fsconfig, context, 6, 0, 0, 0) }).or_fail()?;
    // SAFETY: numbers.
    let made = Errno::result(unsafe { libc::syscall(libc::SYS_fsmount, context, 0, 0) }).or_fail()? as i32;
    let (empty, target) = (std::ffi::CString::default(), crate::mounts::text(&layers.merged));
    // SAFETY: descriptors and strings.
    let moved = unsafe {
        libc::syscall(libc::SYS_move_mount, made, empty.as_ptr(), libc::AT_FDCWD, target.as_ptr(), 4)
    };
    Errno::result(moved).or_fail()?;
    fs::write(layers.merged.join("b"), "b").or_fail()?;
    expect_eq!(names(&layers.merged)?, ["a", "b"]);
    expect!(layers.upper.join("b").exists());
    for descriptor in [context, made] {
        // SAFETY: both are the test's own.
        Errno::result(unsafe { libc::close(descriptor) }).or_fail()?;
    }
    Ok(())
}

fn large_directories_are_merged() -> Outcome {
    const COUNT: usize = 2000;
    let layers = Layers::new("large")?;
    for number in 0..COUNT {
        fs::write(layers.lower.join(format!("lower-{number}")), "").or_fail()?;
        if number % 4 == 0 {
            fs::write(layers.upper.join(format!("lower-{number}")), "").or_fail()?;
        }
    }
    layers.mount()?;
    expect_eq!(names(&layers.merged)?.len(), COUNT);
    fs::write(layers.merged.join("new"), "").or_fail()?;
    fs::remove_file(layers.merged.join("lower-1")).or_fail()?;
    let listed = names(&layers.merged)?;
    expect_eq!(listed.len(), COUNT);
    expect!(listed.contains(&"new".to_owned()) && !listed.contains(&"lower-1".to_owned()));
    Ok(())
}

fn attribute(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let (path, name) = (crate::mounts::text(path), std::ffi::CString::new(name).unwrap_or_default());
    let mut value = [0_u8; 64];
    // SAFETY: two strings and a buffer with its length.
    let length =
        unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    Errno::result(length).map(|length| value[..length as usize].to_vec())
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    let (path, name) = (crate::mounts::text(path), std::ffi::CString::new(name).unwrap_or_default());
    // SAFETY: two strings and bytes with their number.
    let result =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(result).map(drop)
}

fn set_id_bits_go_with_a_write() -> Outcome {
    let layers = Layers::new("set-id")?;
    for name in ["write", "cut"] {
        fs::write(layers.lower.join(name), "0123456789").or_fail()?;
        fs::set_permissions(layers.lower.join(name), fs::Permissions::from_mode(0o4777)).or_fail()?;
    }
    for path in [&layers.lower, &layers.merged, &layers.upper] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).or_fail()?;
    }
    layers.mount()?;
    let file = File::options().write(true).open(layers.merged.join("write")).or_fail()?;
    let cut = layers.merged.join("cut");
    apart(|| {
        nix::unistd::setresuid(65534.into(), 65534.into(), 65534.into()).or_fail()?;
        file.write_at(b"x", 0).or_fail()?;
        nix::unistd::truncate(&cut, 3).or_fail()
    })?;
    for name in ["write", "cut"] {
        let mode = fs::metadata(layers.merged.join(name)).or_fail()?.mode() & 0o7777;
        expect_eq!((name, mode), (name, 0o777));
    }
    Ok(())
}

fn file_systems_that_compute_are_no_layers() -> Outcome {
    let layers = Layers::new("computed")?;
    let other = layers.upper.display();
    if is_heddle() {
        // Linux takes it.
        expect_eq!(overlay(&layers.merged, &format!("lowerdir=/sys:{other}")), Err(Errno::EINVAL));
    }
    expect_eq!(overlay(&layers.merged, &format!("lowerdir=/proc:{other}")), Err(Errno::EINVAL));
    Ok(())
}

fn an_upper_layer_that_becomes_read_only() -> Outcome {
    let layers = Layers::new("read-only-upper")?;
    // A file system of its own, which others do not need to write.
    let own = layers.stage.mounted("own")?;
    for name in ["upper", "work"] {
        fs::create_dir(own.join(name)).or_fail()?;
    }
    fs::write(layers.lower.join("lower"), "x").or_fail()?;
    let own_path = own.display();
    let options =
        format!("lowerdir={},upperdir={own_path}/upper,workdir={own_path}/work", layers.lower.display());
    overlay(&layers.merged, &options).or_fail()?;
    fs::write(layers.merged.join("upper"), "x").or_fail()?;
    crate::mounts::mount(None, &own, None, libc::MS_REMOUNT | libc::MS_RDONLY).or_fail()?;
    let merged = |name: &str| layers.merged.join(name);
    for error in [
        error_of(fs::write(merged("new"), "x")),
        error_of(fs::write(merged("lower"), "x")),
        error_of(File::options().write(true).open(merged("upper"))),
        error_of(fs::set_permissions(merged("upper"), fs::Permissions::from_mode(0o600))),
        error_of(fs::remove_file(merged("upper"))),
        error_of(fs::rename(merged("upper"), merged("other"))),
        error_of(fs::hard_link(merged("upper"), merged("other"))),
        error_of(fs::create_dir(merged("directory"))),
    ] {
        expect_eq!(error, Some(Errno::EROFS));
    }
    expect_eq!(fs::read(merged("upper")).or_fail()?, b"x");
    crate::mounts::mount(None, &own, None, libc::MS_REMOUNT).or_fail()?;
    fs::write(merged("new"), "x").or_fail()
}
