//! inotify(7).

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::harness::{OrFail, Outcome, Scratch};
use crate::{expect, expect_eq};

crate::tests! {
    directories_tell_of_names
    files_tell_of_use
    a_watched_file_ends_when_it_is_closed
    renames_are_joined
    watches_are_changed_and_removed
    waiting_for_events
}

/// The waiting events, each as the names of its bits and of the file.
fn read(instance: &Inotify) -> Result<Vec<String>, String> {
    match instance.read_events() {
        Err(Errno::EAGAIN) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
        Ok(events) => Ok(events
            .iter()
            .map(|event| {
                let bits: Vec<_> = event.mask.iter_names().map(|(name, _)| name).collect();
                let name = event.name.as_ref().map(|name| name.to_string_lossy().into_owned());
                format!("{} {}", bits.join("|"), name.unwrap_or_default()).trim_end().to_owned()
            })
            .collect()),
    }
}

fn directories_tell_of_names() -> Outcome {
    let scratch = Scratch::new("names")?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    instance.add_watch(&scratch.0, AddWatchFlags::IN_ALL_EVENTS).or_fail()?;
    expect_eq!(read(&instance)?, Vec::<String>::new());
    let path = scratch.path("file");
    let mut file = File::create(&path).or_fail()?;
    file.write_all(b"text").or_fail()?;
    drop(file);
    expect_eq!(read(&instance)?, ["IN_CREATE file", "IN_OPEN file", "IN_MODIFY file", "IN_CLOSE_WRITE file"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).or_fail()?;
    fs::create_dir(scratch.path("folder")).or_fail()?;
    fs::remove_dir(scratch.path("folder")).or_fail()?;
    fs::remove_file(&path).or_fail()?;
    let expected =
        ["IN_ATTRIB file", "IN_CREATE|IN_ISDIR folder", "IN_DELETE|IN_ISDIR folder", "IN_DELETE file"];
    expect_eq!(read(&instance)?, expected);
    Ok(())
}

fn files_tell_of_use() -> Outcome {
    let scratch = Scratch::new("use")?;
    let path = scratch.path("file");
    fs::write(&path, "text").or_fail()?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    instance.add_watch(&path, AddWatchFlags::IN_ALL_EVENTS).or_fail()?;
    let mut file = File::open(&path).or_fail()?;
    file.read_exact(&mut [0; 2]).or_fail()?;
    file.read_exact(&mut [0; 1]).or_fail()?;
    drop(file);
    // The two reads look the same and are one event.
    expect_eq!(read(&instance)?, ["IN_OPEN", "IN_ACCESS", "IN_CLOSE_NOWRITE"]);
    let file = OpenOptions::new().write(true).open(&path).or_fail()?;
    file.set_len(1).or_fail()?;
    expect_eq!(read(&instance)?, ["IN_OPEN", "IN_MODIFY"]);
    Ok(())
}

fn a_watched_file_ends_when_it_is_closed() -> Outcome {
    let scratch = Scratch::new("end")?;
    let path = scratch.path("file");
    let file = File::create(&path).or_fail()?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    instance.add_watch(&path, AddWatchFlags::IN_DELETE_SELF).or_fail()?;
    fs::remove_file(&path).or_fail()?;
    expect_eq!(read(&instance)?, Vec::<String>::new());
    drop(file);
    expect_eq!(read(&instance)?, ["IN_DELETE_SELF", "IN_IGNORED"]);
    Ok(())
}

fn renames_are_joined() -> Outcome {
    let scratch = Scratch::new("joined")?;
    for folder in ["from", "to"] {
        fs::create_dir(scratch.path(folder)).or_fail()?;
    }
    fs::write(scratch.path("from/a"), "").or_fail()?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    let from = instance.add_watch(&scratch.path("from"), AddWatchFlags::IN_MOVE).or_fail()?;
    let to = instance.add_watch(&scratch.path("to"), AddWatchFlags::IN_MOVE).or_fail()?;
    let moved = instance.add_watch(&scratch.path("from/a"), AddWatchFlags::IN_MOVE_SELF).or_fail()?;
    fs::rename(scratch.path("from/a"), scratch.path("to/b")).or_fail()?;
    let events = instance.read_events().or_fail()?;
    expect_eq!(events.len(), 3);
    expect_eq!([events[0].wd, events[1].wd, events[2].wd], [from, to, moved]);
    expect!(events[0].cookie != 0 && events[0].cookie == events[1].cookie);
    expect_eq!(events[0].name.as_deref(), Some("a".as_ref()));
    expect_eq!(events[1].name.as_deref(), Some("b".as_ref()));
    Ok(())
}

fn watches_are_changed_and_removed() -> Outcome {
    let scratch = Scratch::new("watches")?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    let watch = instance.add_watch(&scratch.0, AddWatchFlags::IN_DELETE).or_fail()?;
    let more = AddWatchFlags::IN_CREATE | AddWatchFlags::from_bits_retain(libc::IN_MASK_ADD);
    expect_eq!(instance.add_watch(&scratch.0, more).or_fail()?, watch);
    fs::write(scratch.path("a"), "").or_fail()?;
    fs::remove_file(scratch.path("a")).or_fail()?;
    expect_eq!(read(&instance)?, ["IN_CREATE a", "IN_DELETE a"]);
    instance.rm_watch(watch).or_fail()?;
    fs::write(scratch.path("a"), "").or_fail()?;
    expect_eq!(read(&instance)?, ["IN_IGNORED"]);
    expect_eq!(instance.rm_watch(watch), Err(Errno::EINVAL));
    let missing = instance.add_watch(&scratch.path("missing"), AddWatchFlags::IN_ACCESS).err();
    expect_eq!(missing, Some(Errno::ENOENT));
    let directory = AddWatchFlags::IN_ACCESS | AddWatchFlags::IN_ONLYDIR;
    expect_eq!(instance.add_watch(&scratch.path("a"), directory).err(), Some(Errno::ENOTDIR));
    // One event, and the watch is gone.
    let once = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_ONESHOT;
    instance.add_watch(&scratch.path("a"), once).or_fail()?;
    for _ in 0..2 {
        drop(File::open(scratch.path("a")).or_fail()?);
    }
    expect_eq!(read(&instance)?, ["IN_OPEN", "IN_IGNORED"]);
    Ok(())
}

fn waiting_for_events() -> Outcome {
    use std::os::fd::AsFd;
    let scratch = Scratch::new("waiting")?;
    let instance = Inotify::init(InitFlags::empty()).or_fail()?;
    instance.add_watch(&scratch.0, AddWatchFlags::IN_CREATE).or_fail()?;
    let mut polled = [PollFd::new(instance.as_fd(), PollFlags::POLLIN)];
    expect_eq!(poll(&mut polled, PollTimeout::ZERO).or_fail()?, 0);
    let path = scratch.path("late");
    let writer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        fs::write(path, "").is_ok()
    });
    expect_eq!(poll(&mut polled, PollTimeout::from(5000_u16)).or_fail()?, 1);
    expect_eq!(read(&instance)?, ["IN_CREATE late"]);
    expect!(writer.join().unwrap_or(false));
    Ok(())
}
