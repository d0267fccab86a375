//! Keys and keyrings: add_key(2), request_key(2), keyctl(2).

#![allow(unsafe_code)] // The C library has no functions for these calls.

use std::ffi::CString;
use std::fs;

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, getuid, setresgid, setresuid};

use crate::harness::{OrFail, Outcome, spawn_child};
use crate::{expect, expect_eq};

crate::tests! {
    keys_are_added_and_read
    bad_keys_are_refused
    keyrings_hold_links
    rights_are_checked
    keys_end_in_several_ways
    sessions_are_joined_and_inherited
    keys_are_found_on_request
    users_have_quotas
    special_keyrings_are_made_when_asked
}

const THREAD: i32 = -1;
const PROCESS: i32 = -2;
const SESSION: i32 = -3;
const USER: i32 = -4;
const USER_SESSION: i32 = -5;

const GET_KEYRING_ID: i32 = 0;
const JOIN_SESSION: i32 = 1;
const UPDATE: i32 = 2;
const REVOKE: i32 = 3;
const CHOWN: i32 = 4;
const SETPERM: i32 = 5;
const DESCRIBE: i32 = 6;
const CLEAR: i32 = 7;
const LINK: i32 = 8;
const UNLINK: i32 = 9;
const SEARCH: i32 = 10;
const READ: i32 = 11;
const INSTANTIATE: i32 = 12;
const SET_REQKEY: i32 = 14;
const SET_TIMEOUT: i32 = 15;
const ASSUME: i32 = 16;
const INVALIDATE: i32 = 21;

type Answer = Result<i32, Errno>;

fn text(value: &str) -> CString {
    CString::new(value).unwrap_or_default()
}

fn add_key(kind: &str, name: &str, payload: &[u8], ring: i32) -> Answer {
    let (kind, name) = (text(kind), text(name));
    // SAFETY: valid pointers.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_add_key, kind.as_ptr(), name.as_ptr(), payload.as_ptr(), payload.len(), ring)
    } as i32)
}

fn request_key(kind: &str, name: &str, ring: i32) -> Answer {
    let (kind, name) = (text(kind), text(name));
    // SAFETY: valid pointers.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_request_key, kind.as_ptr(), name.as_ptr(), std::ptr::null::<u8>(), ring)
    } as i32)
}

fn keyctl(operation: i32, first: usize, second: usize, third: usize, fourth: usize) -> Answer {
    // SAFETY: pointers that are passed here are valid.
    Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, operation, first, second, third, fourth) } as i32)
}

fn control(operation: i32, first: i32, second: i32) -> Answer {
    keyctl(operation, first as usize, second as usize, 0, 0)
}

fn ask(operation: i32, key: i32) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; 4096];
    let length = keyctl(operation, key as usize, bytes.as_mut_ptr().addr(), bytes.len(), 0)?;
    bytes.truncate(length as usize);
    Ok(bytes)
}

fn describe(key: i32) -> Result<String, Errno> {
    Ok(String::from_utf8_lossy(&ask(DESCRIBE, key)?).trim_end_matches('\0').to_owned())
}

fn links(ring: i32) -> Result<Vec<i32>, Errno> {
    let bytes = ask(READ, ring)?;
    let mut all: Vec<i32> = bytes.as_chunks().0.iter().map(|&bytes| i32::from_ne_bytes(bytes)).collect();
    all.sort_unstable();
    Ok(all)
}

fn search(ring: i32, kind: &str, name: &str, target: i32) -> Answer {
    let (kind, name) = (text(kind), text(name));
    keyctl(SEARCH, ring as usize, kind.as_ptr().addr(), name.as_ptr().addr(), target as usize)
}

fn join(name: Option<&str>) -> Answer {
    let name = name.map(text);
    keyctl(JOIN_SESSION, name.as_ref().map_or(0, |name| name.as_ptr().addr()), 0, 0, 0)
}

/// A session of the test's own.
fn fresh() -> Result<i32, String> {
    join(None).or_fail()
}

fn keys_are_added_and_read() -> Outcome {
    let session = fresh()?;
    let key = add_key("user", "name", b"payload", SESSION).or_fail()?;
    expect!(key > 0 && session > 0);
    expect_eq!(ask(READ, key).or_fail()?, b"payload");
    expect_eq!(describe(key).or_fail()?, "user;0;0;3f010000;name");
    expect_eq!(describe(session).or_fail()?, "keyring;0;0;3f030000;_ses");
    // The same name is the same key.
    expect_eq!(add_key("user", "name", b"other", SESSION), Ok(key));
    expect_eq!(ask(READ, key).or_fail()?, b"other");
    expect_eq!(keyctl(UPDATE, key as usize, b"third".as_ptr().addr(), 5, 0), Ok(0));
    // Without room for all of it only the length is told.
    let mut short = [0; 3];
    expect_eq!(keyctl(READ, key as usize, short.as_mut_ptr().addr(), 3, 0), Ok(5));
    expect_eq!(short, [0; 3]);
    expect_eq!(keyctl(READ, key as usize, 0, 0, 0), Ok(5));
    expect_eq!(keyctl(READ, key as usize, 8, 100, 0), Err(Errno::EFAULT));
    expect_eq!(keyctl(DESCRIBE, key as usize, 0, 0, 0), Ok(23));
    let logon = add_key("logon", "service:name", b"secret", SESSION).or_fail()?;
    expect_eq!(describe(logon).or_fail()?, "logon;0;0;3d010000;service:name");
    expect_eq!(ask(READ, logon), Err(Errno::EOPNOTSUPP));
    expect_eq!(links(session).or_fail()?.len(), 2);
    Ok(())
}

fn bad_keys_are_refused() -> Outcome {
    let session = fresh()?;
    let key = add_key("user", "name", b"payload", SESSION).or_fail()?;
    for (kind, name, payload, ring, error) in [
        ("", "a", &b"x"[..], SESSION, Errno::EINVAL),
        (".user", "a", b"x", SESSION, Errno::EPERM),
        ("none", "a", b"x", SESSION, Errno::ENODEV),
        ("user", "", b"x", SESSION, Errno::EINVAL),
        ("user", "a", b"", SESSION, Errno::EINVAL),
        ("user", "a", &[0; 32_768], SESSION, Errno::EINVAL),
        ("user", "a", b"x", 0, Errno::EINVAL),
        ("user", "a", b"x", -6, Errno::EINVAL),
        ("user", "a", b"x", 2_147_000_000, Errno::ENOKEY),
        ("user", "a", b"x", key, Errno::ENOTDIR),
        ("keyring", "a", b"x", SESSION, Errno::EINVAL),
        ("keyring", ".a", b"", SESSION, Errno::EPERM),
        ("logon", "a", b"x", SESSION, Errno::EINVAL),
        ("logon", ":a", b"x", SESSION, Errno::EINVAL),
    ] {
        expect_eq!((kind, name, add_key(kind, name, payload, ring)), (kind, name, Err(error)));
    }
    expect_eq!(links(session).or_fail()?, [key]);
    expect_eq!(keyctl(1000, 0, 0, 0, 0), Err(Errno::EOPNOTSUPP));
    expect_eq!(control(SETPERM, key, i32::MAX), Err(Errno::EINVAL));
    expect_eq!(control(INSTANTIATE, key, 0), Err(Errno::EPERM));
    expect_eq!(control(ASSUME, -1, 0), Err(Errno::EINVAL));
    expect_eq!(control(ASSUME, 0, 0), Ok(0));
    expect_eq!(join(Some(".name")), Err(Errno::EPERM));
    expect_eq!(ask(READ, 2_147_000_000), Err(Errno::ENOKEY));
    expect_eq!(ask(DESCRIBE, 0), Err(Errno::EINVAL));
    Ok(())
}

fn keyrings_hold_links() -> Outcome {
    let session = fresh()?;
    let outer = add_key("keyring", "outer", b"", SESSION).or_fail()?;
    let inner = add_key("keyring", "inner", b"", outer).or_fail()?;
    let key = add_key("user", "key", b"x", inner).or_fail()?;
    expect_eq!(search(SESSION, "user", "key", 0), Ok(key));
    expect_eq!(search(outer, "keyring", "inner", 0), Ok(inner));
    expect_eq!(search(SESSION, "user", "none", 0), Err(Errno::ENOKEY));
    expect_eq!(search(SESSION, "none", "key", 0), Err(Errno::ENOKEY));
    expect_eq!(search(key, "user", "key", 0), Err(Errno::ENOTDIR));
    expect_eq!(control(LINK, outer, inner), Err(Errno::EDEADLK));
    expect_eq!(control(LINK, outer, outer), Err(Errno::EDEADLK));
    expect_eq!(control(LINK, key, key), Err(Errno::ENOTDIR));
    expect_eq!(search(SESSION, "user", "key", session), Ok(key));
    expect_eq!(control(LINK, key, session), Ok(0));
    expect_eq!(control(UNLINK, key, inner), Ok(0));
    expect_eq!(control(UNLINK, key, inner), Err(Errno::ENOENT));
    expect_eq!(control(UNLINK, key, key), Err(Errno::ENOTDIR));
    // A keyring of the same name takes the place of the old one.
    let second = add_key("keyring", "outer", b"", SESSION).or_fail()?;
    expect!(second != outer);
    let mut all = [key, second];
    all.sort_unstable();
    expect_eq!(links(session).or_fail()?, all);
    expect_eq!(control(CLEAR, session, 0), Ok(0));
    expect_eq!(control(CLEAR, key, 0).is_err(), true);
    expect_eq!(links(session).or_fail()?, []);
    Ok(())
}

fn rights_are_checked() -> Outcome {
    fresh()?;
    let key = add_key("user", "name", b"x", SESSION).or_fail()?;
    let set = |permissions: u32| control(SETPERM, key, permissions as i32);
    expect_eq!(set(0x3b01_0000), Ok(0));
    expect_eq!(keyctl(UPDATE, key as usize, b"y".as_ptr().addr(), 1, 0), Err(Errno::EACCES));
    expect_eq!(add_key("user", "name", b"y", SESSION), Err(Errno::EACCES));
    expect_eq!(set(0x2801_0000), Ok(0));
    // Whatever can be searched for can be read.
    expect_eq!(ask(READ, key).or_fail()?, b"x");
    expect_eq!(control(LINK, key, PROCESS), Err(Errno::EACCES));
    expect_eq!(set(0x2000_0000), Ok(0));
    // It is not possessed any more, for want of the right to search.
    expect_eq!(ask(READ, key), Err(Errno::EACCES));
    expect_eq!(describe(key), Err(Errno::EACCES));
    expect_eq!(set(0x3f01_0000), Err(Errno::EACCES));
    let key = add_key("user", "other", b"x", SESSION).or_fail()?;
    expect_eq!(control(SETPERM, key, 0x3f3f_0003), Ok(0));
    expect_eq!(keyctl(CHOWN, key as usize, 77, usize::MAX, 0), Ok(0));
    expect_eq!(keyctl(CHOWN, key as usize, usize::MAX, usize::MAX, 0), Ok(0));
    expect_eq!(describe(key).or_fail()?, "user;77;0;3f3f0003;other");
    let child = spawn_child(|| {
        let become_user = || -> Answer {
            setresgid(Gid::from_raw(78), Gid::from_raw(78), Gid::from_raw(78))?;
            setresuid(Uid::from_raw(78), Uid::from_raw(78), Uid::from_raw(78))?;
            // The session still has the key, so it is possessed until another is joined.
            if keyctl(CHOWN, key as usize, 78, usize::MAX, 0) != Err(Errno::EACCES) {
                return Err(Errno::EDOM);
            }
            join(None)?;
            if ask(READ, key)? != b"x" {
                return Err(Errno::ERANGE);
            }
            keyctl(UPDATE, key as usize, b"y".as_ptr().addr(), 1, 0)
        };
        become_user().err().map_or(0, |error| error as i32)
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, libc::EACCES)));
    Ok(())
}

fn keys_end_in_several_ways() -> Outcome {
    let session = fresh()?;
    let key = add_key("user", "name", b"x", SESSION).or_fail()?;
    expect_eq!(control(REVOKE, key, 0), Ok(0));
    expect_eq!(ask(READ, key), Err(Errno::EKEYREVOKED));
    expect_eq!(control(REVOKE, key, 0), Err(Errno::EKEYREVOKED));
    expect_eq!(search(SESSION, "user", "name", 0), Err(Errno::EKEYREVOKED));
    expect_eq!(request_key("user", "name", 0), Err(Errno::EKEYREVOKED));
    let second = add_key("user", "name", b"y", SESSION).or_fail()?;
    expect!(second != key);
    expect_eq!(links(session).or_fail()?, [second]);
    expect_eq!(control(INVALIDATE, second, 0), Ok(0));
    expect_eq!(describe(second), Err(Errno::ENOKEY));
    let third = add_key("user", "name", b"z", SESSION).or_fail()?;
    expect_eq!(control(SET_TIMEOUT, third, 1), Ok(0));
    // It is there until its second is over, and expired then.
    while ask(READ, third).is_ok() {
        std::thread::yield_now();
    }
    expect_eq!(ask(READ, third), Err(Errno::EKEYEXPIRED));
    expect_eq!(control(SET_TIMEOUT, third, 0), Err(Errno::EKEYEXPIRED));
    expect_eq!(control(UNLINK, third, SESSION), Ok(0));
    expect_eq!(control(REVOKE, session, 0), Ok(0));
    expect_eq!(add_key("user", "name", b"x", SESSION), Err(Errno::EKEYREVOKED));
    Ok(())
}

fn sessions_are_joined_and_inherited() -> Outcome {
    let session = fresh()?;
    let key = add_key("user", "name", b"x", SESSION).or_fail()?;
    let process_key = add_key("user", "own", b"x", PROCESS).or_fail()?;
    let child = spawn_child(|| {
        let is_inherited = control(GET_KEYRING_ID, SESSION, 0) == Ok(session)
            && request_key("user", "name", 0) == Ok(key)
            && request_key("user", "own", 0) == Err(Errno::ENOKEY)
            && ask(READ, process_key) == Err(Errno::EACCES)
            && control(GET_KEYRING_ID, PROCESS, 0) == Err(Errno::ENOKEY);
        // A child's new session is its own.
        i32::from(!is_inherited || join(None).is_err())
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect_eq!(control(GET_KEYRING_ID, SESSION, 0), Ok(session));
    let named = join(Some("heddle-named")).or_fail()?;
    expect!(named != session);
    expect_eq!(request_key("user", "name", 0), Err(Errno::ENOKEY));
    // One that nobody may search is not found by its name.
    let second = join(Some("heddle-named")).or_fail()?;
    expect!(second != named);
    expect_eq!(control(SETPERM, second, 0x3f1b_0000), Ok(0));
    // Whoever is in the session joins nothing.
    expect_eq!(join(Some("heddle-named")), Ok(0));
    expect_eq!(control(SETPERM, second, 0x3f13_0000), Ok(0));
    expect_eq!(describe(second).or_fail()?, "keyring;0;0;3f130000;heddle-named");
    Ok(())
}

fn keys_are_found_on_request() -> Outcome {
    fresh()?;
    let key = add_key("user", "name", b"x", SESSION).or_fail()?;
    let own = add_key("user", "name", b"y", PROCESS).or_fail()?;
    // The process comes before the session.
    expect_eq!(request_key("user", "name", 0), Ok(own));
    expect_eq!(control(UNLINK, own, PROCESS), Ok(0));
    expect_eq!(request_key("user", "name", THREAD), Ok(key));
    expect_eq!(links(THREAD).or_fail()?, [key]);
    expect_eq!(request_key("user", "none", 0), Err(Errno::ENOKEY));
    expect_eq!(request_key("none", "name", 0), Err(Errno::ENOKEY));
    expect_eq!(request_key(".user", "name", 0), Err(Errno::EPERM));
    expect_eq!(request_key("user", "name", key), Err(Errno::ENOTDIR));
    expect_eq!(control(SET_REQKEY, -1, 0), Ok(0));
    expect_eq!(control(SET_REQKEY, 4, 0), Ok(0));
    expect_eq!(control(SET_REQKEY, -1, 0), Ok(4));
    expect_eq!(control(SET_REQKEY, 6, 0), Err(Errno::EINVAL));
    expect_eq!(control(SET_REQKEY, 8, 0), Err(Errno::EINVAL));
    Ok(())
}

fn users_have_quotas() -> Outcome {
    const KEYS: &str = "/proc/sys/kernel/keys/maxkeys";
    let number = |path: &str| fs::read_to_string(format!("/proc/sys/kernel/keys/{path}"));
    expect_eq!(number("maxkeys").or_fail()?, "200\n");
    expect_eq!(number("maxbytes").or_fail()?, "20000\n");
    expect_eq!(number("root_maxkeys").or_fail()?, "1000000\n");
    expect_eq!(number("root_maxbytes").or_fail()?, "25000000\n");
    fs::write(KEYS, "5").or_fail()?;
    let child = spawn_child(|| {
        let fill = || -> Answer {
            setresgid(Gid::from_raw(4711), Gid::from_raw(4711), Gid::from_raw(4711))?;
            setresuid(Uid::from_raw(4711), Uid::from_raw(4711), Uid::from_raw(4711))?;
            join(None)?;
            if add_key("user", "large", &[0; 19_990], SESSION) != Err(Errno::EDQUOT) {
                return Err(Errno::EDOM);
            }
            for number in 0..10 {
                add_key("user", &format!("key {number}"), b"x", SESSION)?;
            }
            Ok(0)
        };
        fill().err().map_or(0, |error| error as i32)
    })?;
    let ended = waitpid(child, None);
    fs::write(KEYS, "200").or_fail()?;
    expect_eq!(ended, Ok(WaitStatus::Exited(child, libc::EDQUOT)));
    fresh()?;
    let users = fs::read_to_string("/proc/key-users").or_fail()?;
    expect!(users.lines().any(|line| line.starts_with("    0: ")));
    Ok(())
}

fn special_keyrings_are_made_when_asked() -> Outcome {
    for (ring, name) in [(THREAD, "_tid"), (PROCESS, "_pid")] {
        expect_eq!(control(GET_KEYRING_ID, ring, 0), Err(Errno::ENOKEY));
        let made = control(GET_KEYRING_ID, ring, 1).or_fail()?;
        expect_eq!(control(GET_KEYRING_ID, ring, 0), Ok(made));
        expect_eq!(describe(made).or_fail()?, format!("keyring;0;0;3f010000;{name}"));
    }
    let uid = getuid();
    let user = control(GET_KEYRING_ID, USER, 0).or_fail()?;
    let session = control(GET_KEYRING_ID, USER_SESSION, 0).or_fail()?;
    expect_eq!(describe(user).or_fail()?, format!("keyring;0;65534;1f3f0000;_uid.{uid}"));
    expect_eq!(describe(session).or_fail()?, format!("keyring;0;65534;1f3f0000;_uid_ses.{uid}"));
    expect!(links(session).or_fail()?.contains(&user));
    Ok(())
}
