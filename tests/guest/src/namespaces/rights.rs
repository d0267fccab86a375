//! User namespaces, user_namespaces(7): what rights count towards, entering, and namespaces that they own.
#![allow(unsafe_code, reason = "most of the calls have no safe forms")]

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::getuid;

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::mounts::detached::set_attributes;
use crate::mounts::namespace::{apart, ask, clone_with};
use crate::mounts::{Stage, bind, mount, umount};
use crate::namespaces::users::{
    GROUP, NOBODY, USER, become_root_inside, become_user, effective, errno, leave, leave_as, rows, write,
};
use crate::{expect, expect_eq};

crate::tests! {
    rights_count_in_the_own_namespace_only
    namespaces_of_other_kinds_are_owned
    mounts_from_above_are_locked
    a_namespace_is_entered
    a_namespace_tells_its_owner
    entering_is_refused
    threads_share_a_namespace
    programs_are_root_inside
    numbers_of_namespaces_are_limited
    a_parent_has_all_rights_below
    flags_from_above_are_kept
    covered_files_stay_covered
    capabilities_given_inside_count_inside
    a_child_of_a_closed_process_is_closed
}

fn rights_count_in_the_own_namespace_only() -> Outcome {
    let stage = Stage::new("rights")?;
    let one = stage.directory("one")?;
    apart(|| {
        become_root_inside()?;
        // SAFETY: a name; the clock is not changed, since that is refused.
        unsafe {
            expect_eq!(Errno::result(libc::sethostname(c"x".as_ptr(), 1)), Err(Errno::EPERM));
            let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let set = libc::clock_settime(libc::CLOCK_REALTIME, &raw const time);
            expect_eq!(Errno::result(set), Err(Errno::EPERM));
            let path = c"/tmp/device";
            expect_eq!(
                Errno::result(libc::mknod(path.as_ptr(), libc::S_IFCHR, libc::makedev(1, 3))),
                Err(Errno::EPERM)
            );
            expect_eq!(Errno::result(libc::setpriority(libc::PRIO_PROCESS, 0, -5)), Err(Errno::EACCES));
        }
        expect_eq!(mount(Some("x"), &one, Some("tmpfs"), 0), Err(Errno::EPERM));
        expect_eq!(unshare(CloneFlags::CLONE_NEWUTS), Ok(()));
        // SAFETY: a name.
        expect_eq!(Errno::result(unsafe { libc::sethostname(c"inside".as_ptr(), 6) }), Ok(0));
        // SAFETY: a name.
        let chrooted = Errno::result(unsafe { libc::chroot(c"/".as_ptr()) });
        expect_eq!(chrooted, Ok(0));
        // SAFETY: numbers.
        let id = Errno::result(unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) });
        expect!(id.is_ok());
        // SAFETY: as above.
        unsafe { libc::shmctl(id.or_fail()?, libc::IPC_RMID, std::ptr::null_mut()) };
        Ok(())
    })
}

fn namespaces_of_other_kinds_are_owned() -> Outcome {
    let stage = Stage::new("owned")?;
    let (one, two) = (stage.directory("one")?, stage.directory("two")?);
    fs::set_permissions(&two, fs::Permissions::from_mode(0o777)).or_fail()?;
    fs::write(two.join("file"), "text").or_fail()?;
    apart(|| {
        become_user()?;
        // All at once: the user namespace comes first.
        unshare(
            CloneFlags::CLONE_NEWUSER
                | CloneFlags::CLONE_NEWNS
                | CloneFlags::CLONE_NEWIPC
                | CloneFlags::CLONE_NEWUTS,
        )
        .or_fail()?;
        write("setgroups", "deny").or_fail()?;
        write("uid_map", &format!("0 {USER} 1")).or_fail()?;
        write("gid_map", &format!("0 {GROUP} 1")).or_fail()?;
        mount(Some("new"), &one, Some("tmpfs"), 0).or_fail()?;
        fs::write(one.join("file"), "").or_fail()?;
        expect_eq!(fs::metadata(&one).or_fail()?.uid(), 0);
        expect_eq!(fs::metadata(one.join("file")).or_fail()?.uid(), 0);
        umount(&one, 0).or_fail()?;
        bind(&two, &one, 0).or_fail()?;
        expect_eq!(fs::read_to_string(one.join("file")).or_fail()?, "text");
        umount(&one, 0).or_fail()?;
        // The queues of an own namespace may be mounted, what shows all processes may not.
        mount(Some("queues"), &one, Some("mqueue"), 0).or_fail()?;
        umount(&one, 0).or_fail()?;
        expect_eq!(mount(Some("proc"), &one, Some("proc"), 0), Err(Errno::EPERM));
        expect_eq!(mount(Some("sysfs"), &one, Some("sysfs"), 0), Err(Errno::EPERM));
        // SAFETY: a name.
        Errno::result(unsafe { libc::sethostname(c"inside".as_ptr(), 6) }).or_fail()?;
        Ok(())
    })?;
    expect!(!one.join("file").exists());
    Ok(())
}

fn mounts_from_above_are_locked() -> Outcome {
    let stage = Stage::new("locked")?;
    let (outer, other) = (stage.mounted("outer")?, stage.directory("other")?);
    fs::create_dir(outer.join("inner")).or_fail()?;
    let inner = outer.join("inner");
    mount(Some("inner"), &inner, Some("tmpfs"), libc::MS_NOSUID | libc::MS_NODEV).or_fail()?;
    let result = apart(|| {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).or_fail()?;
        // Not even root below may take them away, or see what they cover.
        expect_eq!(umount(&inner, 0), Err(Errno::EINVAL));
        expect_eq!(umount(&inner, libc::MNT_DETACH), Err(Errno::EINVAL));
        expect_eq!(bind(&outer, &other, 0), Err(Errno::EINVAL));
        expect_eq!(mount(None, &inner, None, libc::MS_REMOUNT | libc::MS_BIND), Err(Errno::EPERM));
        let more = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY;
        mount(None, &inner, None, more).or_fail()?;
        // The file system itself is the first namespace's.
        expect_eq!(
            mount(None, &inner, None, libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY),
            Err(Errno::EPERM)
        );
        bind(&outer, &other, libc::MS_REC).or_fail()?;
        umount(&other, libc::MNT_DETACH).or_fail()
    });
    umount(&inner, 0).or_fail()?;
    result
}

fn a_namespace_is_entered() -> Outcome {
    apart(|| {
        let mut ends = std::io::pipe().or_fail()?;
        let mut back = std::io::pipe().or_fail()?;
        use std::io::{Read, Write};
        let child = spawn_child(|| {
            let ready = leave_as(0, 0).is_ok() && ends.1.write_all(b"x").is_ok();
            i32::from(!(ready && back.0.read_exact(&mut [0]).is_ok()))
        })?;
        ends.0.read_exact(&mut [0]).or_fail()?;
        let path = format!("/proc/{child}/ns/user");
        let file = fs::File::open(&path).or_fail()?;
        let number = fs::metadata(&path).or_fail()?.ino();
        let entered = apart(|| {
            setns(&file, CloneFlags::CLONE_NEWUSER).or_fail()?;
            expect_eq!(fs::metadata("/proc/self/ns/user").or_fail()?.ino(), number);
            expect_eq!(getuid().as_raw(), 0);
            expect_eq!(rows("uid_map")?, [[0, 0, 1]]);
            expect!(effective()? != 0);
            // The own one is no other one, and there is no way back.
            expect_eq!(setns(&file, CloneFlags::CLONE_NEWUSER), Err(Errno::EINVAL));
            Ok(())
        });
        back.1.write_all(b"x").or_fail()?;
        nix::sys::wait::waitpid(child, None).or_fail()?;
        entered
    })
}

fn a_namespace_tells_its_owner() -> Outcome {
    const NS_GET_USERNS: u64 = 0xb701;
    const NS_GET_PARENT: u64 = 0xb702;
    const NS_GET_NSTYPE: u64 = 0xb703;
    const NS_GET_OWNER_UID: u64 = 0xb704;
    let open = |name: &str| fs::File::open(format!("/proc/self/ns/{name}")).or_fail();
    let number = |file: &fs::File| -> Result<u64, String> { Ok(file.metadata().or_fail()?.ino()) };
    let owner = |file: &fs::File| {
        let mut owner = 0_u32;
        // SAFETY: the request stores a number.
        Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) })
            .map(|_| owner)
    };
    // SAFETY: the number is that of a new descriptor.
    let file = |number: i32| unsafe { fs::File::from_raw_fd(number) };
    let first = open("user")?;
    expect_eq!(ask(&first, NS_GET_NSTYPE), Ok(libc::CLONE_NEWUSER));
    expect_eq!(ask(&first, NS_GET_PARENT), Err(Errno::EPERM));
    expect_eq!(ask(&first, NS_GET_USERNS), Err(Errno::EPERM));
    expect_eq!(owner(&first), Ok(0));
    let of_names = file(ask(&open("uts")?, NS_GET_USERNS).or_fail()?);
    expect_eq!(number(&of_names)?, number(&first)?);
    apart(|| {
        become_user()?;
        let outside = open("uts")?;
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWUTS).or_fail()?;
        write("uid_map", &format!("3 {USER} 1")).or_fail()?;
        write("setgroups", "deny").or_fail()?;
        write("gid_map", &format!("3 {GROUP} 1")).or_fail()?;
        let own = open("user")?;
        expect_eq!(owner(&own), Ok(3));
        expect_eq!(number(&file(ask(&open("uts")?, NS_GET_USERNS).or_fail()?))?, number(&own)?);
        // The first one is out of sight.
        expect_eq!(ask(&own, NS_GET_PARENT), Err(Errno::EPERM));
        expect_eq!(ask(&outside, NS_GET_USERNS), Err(Errno::EPERM));
        unshare(CloneFlags::CLONE_NEWUSER).or_fail()?;
        let inner = open("user")?;
        expect_eq!(ask(&inner, NS_GET_PARENT), Err(Errno::EPERM));
        expect_eq!(owner(&inner), Ok(NOBODY));
        Ok(())
    })
}

fn entering_is_refused() -> Outcome {
    let own = fs::File::open("/proc/self/ns/user").or_fail()?;
    expect_eq!(setns(&own, CloneFlags::CLONE_NEWUSER), Err(Errno::EINVAL));
    expect_eq!(clone_with(libc::CLONE_NEWUSER | libc::CLONE_FS, || 0), Err(Errno::EINVAL));
    let names = fs::File::open("/proc/self/ns/uts").or_fail()?;
    apart(|| {
        leave()?;
        // Namespaces that belong to the first one are closed, and so is it itself.
        expect_eq!(setns(&own, CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
        expect_eq!(setns(&names, CloneFlags::CLONE_NEWUTS), Err(Errno::EPERM));
        Ok(())
    })?;
    // A root directory of its own hides what the namespace's root could see.
    let stage = Stage::new("rooted")?;
    let one = stage.mounted("one")?;
    apart(|| {
        std::env::set_current_dir(&one).or_fail()?;
        // SAFETY: a name.
        Errno::result(unsafe { libc::chroot(c".".as_ptr()) }).or_fail()?;
        expect_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::EPERM));
        Ok(())
    })
}

fn threads_share_a_namespace() -> Outcome {
    let result = std::thread::scope(|scope| {
        scope.spawn(|| unshare(CloneFlags::CLONE_NEWUSER)).join().map_err(|_| "a panic".to_owned())
    })?;
    expect_eq!(result, Err(Errno::EINVAL));
    Ok(())
}

fn programs_are_root_inside() -> Outcome {
    apart(|| {
        become_root_inside()?;
        // A program of user 0 keeps all rights, one of another user has none.
        let run = |program: &str| {
            let output = std::process::Command::new("/bin/sh").arg("-c").arg(program).output().or_fail()?;
            Ok::<_, String>(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let text = run(
            "while read name value rest; do [ $name = CapEff: ] && echo $value; done </proc/self/status",
        )?;
        expect!(u64::from_str_radix(text.trim(), 16).or_fail()? != 0);
        Ok(())
    })?;
    apart(|| {
        become_user()?;
        leave()?;
        write("uid_map", &format!("{USER} {USER} 1")).or_fail()?;
        let status = std::process::Command::new("/bin/cat").arg("/proc/self/status").output().or_fail()?;
        expect!(String::from_utf8_lossy(&status.stdout).contains("CapEff:\t0000000000000000"));
        Ok(())
    })
}

fn numbers_of_namespaces_are_limited() -> Outcome {
    apart(|| {
        leave_as(0, 0)?;
        expect_eq!(fs::read_to_string("/proc/sys/user/max_uts_namespaces").or_fail()?, "2147483647\n");
        fs::write("/proc/sys/user/max_uts_namespaces", "1").or_fail()?;
        unshare(CloneFlags::CLONE_NEWUTS).or_fail()?;
        expect_eq!(clone_with(libc::CLONE_NEWUTS, || 0), Err(Errno::ENOSPC));
        fs::write("/proc/sys/user/max_user_namespaces", "0").or_fail()?;
        expect_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(Errno::ENOSPC));
        expect_eq!(clone_with(libc::CLONE_NEWIPC, || 0), Ok(0));
        Ok(())
    })
}

fn a_parent_has_all_rights_below() -> Outcome {
    // A user that made a namespace may do anything in it, from above.
    apart(|| {
        become_user()?;
        let mut ends = std::io::pipe().or_fail()?;
        use std::io::{Read, Write};
        let child = spawn_child(|| {
            if leave().is_ok() && ends.1.write_all(b"x").is_ok() {
                std::thread::sleep(std::time::Duration::from_secs(1000));
            }
            1
        })?;
        ends.0.read_exact(&mut [0]).or_fail()?;
        let set = |name: &str, text: &str| {
            fs::write(format!("/proc/{child}/{name}"), text).map_err(|error| errno(&error))
        };
        let results = [
            set("setgroups", "deny"),
            set("gid_map", &format!("0 {GROUP} 1")),
            set("uid_map", &format!("0 {USER} 1")),
        ];
        let seen = fs::read_link(format!("/proc/{child}/ns/user"));
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).or_fail()?;
        nix::sys::wait::waitpid(child, None).or_fail()?;
        expect_eq!(results, [Ok(()), Ok(()), Ok(())]);
        expect!(seen.is_ok());
        Ok(())
    })
}

fn flags_from_above_are_kept() -> Outcome {
    let stage = Stage::new("kept")?;
    let (outer, inner) = (stage.mounted("outer")?, stage.directory("outer/inner")?);
    mount(Some("inner"), &inner, Some("tmpfs"), libc::MS_NOSUID | libc::MS_NODEV).or_fail()?;
    let result = apart(|| {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).or_fail()?;
        for clear in [libc::MOUNT_ATTR_NOSUID, libc::MOUNT_ATTR_NODEV] {
            for (path, flags) in [(&inner, 0), (&inner, libc::AT_RECURSIVE), (&outer, libc::AT_RECURSIVE)] {
                expect_eq!(set_attributes(path, flags, [0, clear, 0, 0], 32), Err(Errno::EPERM));
            }
        }
        expect_eq!(set_attributes(&inner, 0, [libc::MOUNT_ATTR_RDONLY, 0, 0, 0], 32), Ok(()));
        Ok(())
    });
    umount(&inner, 0).or_fail()?;
    result
}

fn covered_files_stay_covered() -> Outcome {
    let stage = Stage::new("covered")?;
    let (outer, other) = (stage.mounted("outer")?, stage.directory("other")?);
    let inner = stage.directory("outer/inner")?;
    fs::write(inner.join("secret"), "x").or_fail()?;
    mount(Some("inner"), &inner, Some("tmpfs"), 0).or_fail()?;
    let result = apart(|| {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).or_fail()?;
        bind(&outer, &other, libc::MS_REC).or_fail()?;
        let held = fs::File::open(&other).or_fail()?;
        umount(&other, libc::MNT_DETACH).or_fail()?;
        let secret = format!("/proc/self/fd/{}/inner/secret", held.as_raw_fd());
        let opened = fs::File::open(secret).err().and_then(|error| errno(&error));
        expect_eq!(opened, Some(Errno::ENOENT));
        Ok(())
    });
    umount(&inner, 0).or_fail()?;
    result
}

fn capabilities_given_inside_count_inside() -> Outcome {
    let stage = Stage::new("given")?;
    let path = stage.directory("open")?.join("program");
    fs::copy("/bin/true", &path).or_fail()?;
    std::os::unix::fs::chown(&path, Some(USER), Some(GROUP)).or_fail()?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).or_fail()?;
    let name = std::ffi::CString::new(path.to_string_lossy().as_bytes()).or_fail()?;
    apart(|| {
        become_root_inside()?;
        let words = [0x0200_0001_u32, u32::MAX, 0, 0x1ff, 0];
        let attribute = c"security.capability".as_ptr();
        // Linux stores it for the namespace; a refusal is as good.
        // SAFETY: names, and 20 bytes.
        let _ = unsafe { libc::setxattr(name.as_ptr(), attribute, words.as_ptr().cast(), 20, 0) };
        Ok(())
    })?;
    let mut value = [0_u8; 64];
    // SAFETY: names, and a buffer of its length.
    let count = Errno::result(unsafe {
        libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), value.as_mut_ptr().cast(), value.len())
    });
    // Revision 3 names the namespace in which it counts.
    let counts_here = count.is_ok() && value[3] == 2;
    expect!(!counts_here);
    Ok(())
}

fn a_child_of_a_closed_process_is_closed() -> Outcome {
    // SAFETY: numbers.
    Errno::result(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }).or_fail()?;
    // SAFETY: numbers.
    let child = spawn_child(|| unsafe { libc::prctl(libc::PR_GET_DUMPABLE) })?;
    let status = nix::sys::wait::waitpid(child, None).or_fail()?;
    expect_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
    Ok(())
}
