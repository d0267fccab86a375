//! inotify(7).
#![allow(unsafe_code, reason = "a read into pages that nobody has touched has no safe form")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

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
    unlinked_files_are_excluded
    an_event_is_read_once_over_missing_pages
    a_moved_directory_is_not_told_as_one
    marks_are_shown
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

fn unlinked_files_are_excluded() -> Outcome {
    let scratch = Scratch::new("excluded")?;
    let used = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
    for (name, flags, is_told) in [
        ("told", used, true),
        ("excluded", used | AddWatchFlags::from_bits_retain(libc::IN_EXCL_UNLINK), false),
    ] {
        let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
        let mut file = File::create(scratch.path(name)).or_fail()?;
        instance.add_watch(&scratch.0, flags).or_fail()?;
        file.write_all(b"text").or_fail()?;
        expect_eq!(read(&instance)?, [format!("IN_MODIFY {name}")]);
        fs::remove_file(scratch.path(name)).or_fail()?;
        file.write_all(b"text").or_fail()?;
        drop(file);
        let expected: &[String] =
            if is_told { &[format!("IN_MODIFY {name}"), format!("IN_CLOSE_WRITE {name}")] } else { &[] };
        expect_eq!(read(&instance)?, expected);
    }
    Ok(())
}

fn an_event_is_read_once_over_missing_pages() -> Outcome {
    use std::num::NonZeroUsize;
    use std::os::fd::{AsFd, AsRawFd};

    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

    const PAGE: usize = 4096;
    let scratch = Scratch::new("pages")?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    instance.add_watch(&scratch.0, AddWatchFlags::IN_CREATE).or_fail()?;
    let name = "a-name-that-takes-room";
    for index in 0..6 {
        fs::write(scratch.path(&format!("{name}-{index}")), "").or_fail()?;
    }
    let event = 16 + (name.len() + 3).next_multiple_of(16);
    let mut told = Vec::new();
    // Each way to begin before a page that nobody has touched: inside of the first event, of its name, of a later one.
    for before in [8, 20, event - 4, event + 8] {
        let (pages, rights) =
            (NonZeroUsize::new(3 * PAGE).ok_or("no pages")?, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
        // SAFETY: fresh memory, at an address that the kernel chooses.
        let memory = unsafe { mmap_anonymous(None, pages, rights, MapFlags::MAP_PRIVATE) }.or_fail()?;
        // SAFETY: the whole mapping, which has no other name.
        let memory = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr().cast::<u8>(), pages.get()) };
        memory[0] = 1;
        let length = event + 8 + before / event * event;
        let target = &mut memory[PAGE - before..][..length];
        // SAFETY: the target is as long as said.
        let count =
            unsafe { libc::read(instance.as_fd().as_raw_fd(), target.as_mut_ptr().cast(), target.len()) };
        // Whole events, and at least one, even where there is room for two.
        let count = usize::try_from(count).or_fail()?;
        expect!(count > 0 && count % event == 0);
        for text in target[..count].chunks_exact(event) {
            told.push(String::from_utf8_lossy(&text[16..]).trim_end_matches('\0').to_owned());
        }
    }
    for text in read(&instance)? {
        told.push(text.trim_start_matches("IN_CREATE ").to_owned());
    }
    expect_eq!(told, (0..6).map(|index| format!("{name}-{index}")).collect::<Vec<_>>());
    Ok(())
}

fn a_moved_directory_is_not_told_as_one() -> Outcome {
    let scratch = Scratch::new("moved")?;
    fs::create_dir(scratch.path("folder")).or_fail()?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    instance.add_watch(&scratch.path("folder"), AddWatchFlags::IN_MOVE_SELF).or_fail()?;
    fs::rename(scratch.path("folder"), scratch.path("other")).or_fail()?;
    expect_eq!(read(&instance)?, ["IN_MOVE_SELF"]);
    Ok(())
}

fn marks_are_shown() -> Outcome {
    const FILES: usize = 40;
    let scratch = Scratch::new("shown")?;
    let instance = Inotify::init(InitFlags::IN_NONBLOCK).or_fail()?;
    let mask = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ONESHOT;
    let mut expected = Vec::new();
    for index in 1..=FILES {
        let path = scratch.path(&index.to_string());
        let file = File::create_new(&path).or_fail()?;
        instance.add_watch(&path, mask).or_fail()?;
        let inode = file.metadata().or_fail()?.ino();
        expected.push(format!("inotify wd:{index:x} ino:{inode:x} mask:{:x} ignored_mask:0", mask.bits()));
    }
    let path = format!("/proc/self/fdinfo/{}", instance.as_fd().as_raw_fd());
    let text = fs::read_to_string(path).or_fail()?;
    let mut shown: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("inotify "))
        .map(|line| {
            let kept = |word: &&str| !word.starts_with("sdev:") && !word.starts_with("f");
            line.split_whitespace().filter(kept).collect::<Vec<_>>().join(" ")
        })
        .collect();
    // The order is the kernel's own.
    shown.sort();
    expected.sort();
    expect_eq!(shown, expected);
    Ok(())
}
