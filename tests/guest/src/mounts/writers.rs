//! Files that are open to be written keep their mount and their file system from becoming read-only.

use std::fs;
use std::path::Path;

use nix::errno::Errno;

use super::{Stage, bind, detached, line_at, mount};
use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    what_is_written_does_not_become_read_only
}

fn what_is_written_does_not_become_read_only() -> Outcome {
    let stage = Stage::new("writers")?;
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    bind(&one, &two, 0).or_fail()?;
    let remount = |at: &Path, flags| mount(None, at, None, libc::MS_REMOUNT | libc::MS_RDONLY | flags);
    let read_only =
        |at: &Path| detached::set_attributes(at, libc::AT_RECURSIVE, [libc::MOUNT_ATTR_RDONLY, 0, 0, 0], 32);
    let writer = fs::File::create(one.join("file")).or_fail()?;
    let copy = writer.try_clone().or_fail()?;
    for again in [false, true] {
        expect_eq!((again, remount(&one, 0)), (again, Err(Errno::EBUSY)));
        expect_eq!(remount(&two, 0), Err(Errno::EBUSY));
        expect_eq!(remount(&one, libc::MS_BIND), Err(Errno::EBUSY));
        expect_eq!(read_only(&one), Err(Errno::EBUSY));
        // Those above it change all or none.
        expect_eq!(read_only(&stage.path("")), Err(Errno::EBUSY));
        expect!(line_at(&two)?.has("rw"));
        // Through the other mount nobody writes.
        remount(&two, libc::MS_BIND).or_fail()?;
        mount(None, &two, None, libc::MS_REMOUNT | libc::MS_BIND).or_fail()?;
        if !again {
            fs::write(one.join("other"), "still").or_fail()?;
        }
    }
    drop(writer);
    expect_eq!(read_only(&one), Err(Errno::EBUSY));
    drop(copy);
    // Files that are read, and devices, stop nobody.
    let _reader = fs::File::open(one.join("file")).or_fail()?;
    read_only(&one).or_fail()?;
    let refused = fs::OpenOptions::new().append(true).open(one.join("file")).map(drop);
    expect_eq!(refused.map_err(|error| error.raw_os_error()), Err(Some(libc::EROFS)));
    remount(&one, 0).or_fail()
}
