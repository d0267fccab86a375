//! Keys and keyrings: add_key(2), request_key(2), keyctl(2).

#![allow(unsafe_code)] // The C library has no functions for these calls.

use std::ffi::CString;
use std::fs;
use std::thread;

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
    the_keys_that_one_may_view_are_listed
    special_keyrings_are_made_when_asked
    keyrings_are_nested_to_a_depth
    links_count_for_the_owner_of_the_keyring
    a_shared_session_is_left_at_the_first_change
    threads_change_keyrings_at_once
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
        thread::yield_now();
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

/// The line of a key in `/proc/keys` without the number of its references; empty if there is none.
fn listed(key: i32) -> Result<String, String> {
    let text = fs::read_to_string("/proc/keys").or_fail()?;
    let number = format!("{key:08x}");
    let line = text.lines().find(|line| line.starts_with(&number)).unwrap_or_default();
    let mut words: Vec<_> = line.split_whitespace().collect();
    if words.len() > 2 {
        words.remove(2);
    }
    Ok(words.join(" "))
}

fn the_keys_that_one_may_view_are_listed() -> Outcome {
    let session = fresh()?;
    let key = add_key("user", "a name", b"payload", SESSION).or_fail()?;
    expect_eq!(listed(key)?, format!("{key:08x} I--Q--- perm 3f010000 0 0 user a name: 7"));
    expect_eq!(listed(session)?, format!("{session:08x} I--Q--- perm 3f030000 0 0 keyring _ses: 1"));
    expect_eq!(control(CLEAR, session, 0), Ok(0));
    expect_eq!(listed(session)?, format!("{session:08x} I--Q--- perm 3f030000 0 0 keyring _ses: empty"));
    let key = add_key("logon", "service:name", b"secret", SESSION).or_fail()?;
    for (seconds, shown) in [(110, "1m"), (7_300, "2h"), (260_000, "3d"), (2_500_000, "4w"), (0, "perm")] {
        expect_eq!(control(SET_TIMEOUT, key, seconds), Ok(0));
        expect_eq!(listed(key)?, format!("{key:08x} I--Q--- {shown} 3d010000 0 0 logon service:name: 6"));
    }
    // Its possessor sees it, and whoever has the right by the number of the user; nobody else.
    for (permissions, is_seen) in [(0x3f00_0000, true), (0x3e01_0000, true), (0x3e3e_3f3f, false)] {
        expect_eq!(control(SETPERM, key, permissions), Ok(0));
        expect_eq!(!listed(key)?.is_empty(), is_seen);
    }
    expect_eq!(control(SETPERM, key, 0x3f01_0000), Ok(0));
    let child = spawn_child(|| {
        let user = Uid::from_raw(4711);
        let is_hidden =
            setresuid(user, user, user).is_ok() && fresh().is_ok() && listed(key) == Ok(String::new());
        i32::from(!is_hidden)
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    expect_eq!(control(REVOKE, key, 0), Ok(0));
    expect!(listed(key)?.starts_with(&format!("{key:08x} IR-Q--- ")));
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

fn keyrings_are_nested_to_a_depth() -> Outcome {
    const DEEPEST: usize = 7;
    fresh()?;
    let make = |number: usize| add_key("keyring", &format!("ring {number}"), b"", SESSION).or_fail();
    let rings = (0..=DEEPEST + 1).map(make).collect::<Result<Vec<_>, _>>()?;
    for number in 0..DEEPEST {
        expect_eq!((number, control(LINK, rings[number], rings[number + 1])), (number, Ok(0)));
    }
    expect_eq!(control(LINK, rings[DEEPEST], rings[DEEPEST + 1]), Err(Errno::ELOOP));
    for number in 0..DEEPEST {
        expect_eq!((number, control(LINK, rings[DEEPEST], rings[number])), (number, Err(Errno::EDEADLK)));
    }
    Ok(())
}

/// The end of a user's line in `/proc/key-users`: bytes and their limit.
fn user_bytes(uid: u32) -> Result<String, String> {
    let users = fs::read_to_string("/proc/key-users").or_fail()?;
    let mut lines = users.lines().map(str::split_whitespace);
    let line =
        lines.find_map(|mut words| (words.next()? == format!("{uid}:")).then(|| words.last()).flatten());
    Ok(line.unwrap_or_default().to_owned())
}

fn links_count_for_the_owner_of_the_keyring() -> Outcome {
    const BYTES: &str = "/proc/sys/kernel/keys/maxbytes";
    const OWNER: u32 = 4712;
    fresh()?;
    let ring = add_key("keyring", "r", b"", SESSION).or_fail()?;
    expect_eq!(keyctl(CHOWN, ring as usize, OWNER as usize, usize::MAX, 0), Ok(0));
    expect_eq!(user_bytes(OWNER)?, "2/20000");
    fs::write(BYTES, "50").or_fail()?;
    let answers: Vec<_> =
        (0..14).map(|number| add_key("user", &format!("key {number}"), b"payload", ring)).collect();
    let told = user_bytes(OWNER);
    let other = add_key("user", "other", b"x", SESSION);
    let linked = other.and_then(|other| control(LINK, other, ring));
    fs::write(BYTES, "20000").or_fail()?;
    expect_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 12);
    expect_eq!(answers[12..], [Err(Errno::EDQUOT); 2]);
    expect_eq!(told?, "50/50");
    expect_eq!(linked, Err(Errno::EDQUOT));
    Ok(())
}

fn become_user(id: u32) -> Result<(), Errno> {
    setresgid(Gid::from_raw(id), Gid::from_raw(id), Gid::from_raw(id))?;
    setresuid(Uid::from_raw(id), Uid::from_raw(id), Uid::from_raw(id))
}

fn a_shared_session_is_left_at_the_first_change() -> Outcome {
    const OTHER: u32 = 4714;
    let child = spawn_child(|| {
        let leave = || -> Result<bool, Errno> {
            let shared = control(GET_KEYRING_ID, USER_SESSION, 0)?;
            let is_shared = control(GET_KEYRING_ID, SESSION, 0)? == shared;
            become_user(OTHER)?;
            let is_kept = control(GET_KEYRING_ID, SESSION, 0)? == shared;
            add_key("user", "name", b"x", SESSION)?;
            let own = control(GET_KEYRING_ID, SESSION, 0)?;
            let is_own = own != shared && describe(own)? == format!("keyring;{OTHER};{OTHER};3f030000;_ses");
            Ok(is_shared && is_kept && is_own)
        };
        leave().map_or_else(|error| error as i32, |is_right| if is_right { 0 } else { 255 })
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}

/// Does one of the calls at random to some of the keyrings.
fn change(rings: &[i32], random: usize) -> Answer {
    let (ring, other) = (rings[random / 16 % rings.len()], rings[random / 64 % rings.len()]);
    let name = format!("key {}", random / 256 % 8);
    let size = random / 2048 % 100 + 1;
    match random % 16 {
        0..4 => add_key("user", &name, &[7; 100][..size], ring),
        4 => add_key("keyring", "inner", b"", ring),
        5 | 6 => control(LINK, ring, other),
        7 => control(UNLINK, ring, other),
        8 => search(SESSION, "keyring", "inner", 0).and_then(|inner| control(LINK, ring, inner)),
        9 => search(ring, "user", &name, 0).and_then(|key| control(REVOKE, key, 0)),
        10 => search(ring, "user", &name, 0).and_then(|key| control(INVALIDATE, key, 0)),
        11 => search(ring, "user", &name, 0).and_then(|key| control(UNLINK, key, ring)),
        12 => search(ring, "user", &name, other),
        13 => request_key("user", &name, other),
        14 => control(CLEAR, ring, 0),
        _ => links(ring)?.into_iter().map(|link| describe(link).map(|_| 0)).next_back().unwrap_or(Ok(0)),
    }
}

/// How deep a keyring is nested; more than `limit` if there is a circle.
fn depth(ring: i32, limit: usize) -> usize {
    let is_ring = |key: i32| describe(key).is_ok_and(|text| text.starts_with("keyring;"));
    if limit == 0 {
        return 1;
    }
    let inner = links(ring).unwrap_or_default().into_iter().filter(|&link| is_ring(link));
    1 + inner.map(|ring| depth(ring, limit - 1)).max().unwrap_or(0)
}

/// Four threads change four keyrings at once, while children come and end; an error that must not be, or a circle.
fn race(uid: u32) -> Result<(), String> {
    const ROUNDS: usize = 400;
    const NO_CIRCLE: usize = 9;
    const EXPECTED: [Errno; 7] = [
        Errno::ENOKEY,
        Errno::ENOENT,
        Errno::EKEYREVOKED,
        Errno::EDEADLK,
        Errno::ELOOP,
        Errno::EACCES,
        Errno::EDQUOT,
    ];
    become_user(uid).or_fail()?;
    fresh()?;
    let make = |number: usize| add_key("keyring", &format!("ring {number}"), b"", SESSION).or_fail();
    let rings = (0..4).map(make).collect::<Result<Vec<_>, _>>()?;
    let before = user_bytes(uid)?;
    thread::scope(|scope| {
        let rings = &rings;
        let work = |seed: usize| {
            scope.spawn(move || {
                let mut random = seed * 7919 + 1;
                for round in 0..ROUNDS {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    if let Err(error) = change(rings, random >> 8)
                        && !EXPECTED.contains(&error)
                    {
                        return Err(format!("{error} in round {round}: operation {}", (random >> 8) % 16));
                    }
                }
                Ok(())
            })
        };
        let threads: Vec<_> = (0..4).map(work).collect();
        for _ in 0..10 {
            let child = spawn_child(|| {
                // One that leaves the session, one's own keyrings, and the end of all of them.
                let own =
                    add_key("user", "own", b"x", PROCESS).and_then(|_| add_key("user", "own", b"x", THREAD));
                i32::from(own.and_then(|_| join(None)).is_err_and(|error| error != Errno::EDQUOT))
            })?;
            expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    for &ring in &rings {
        expect!(depth(ring, NO_CIRCLE) < NO_CIRCLE);
    }
    for &ring in &rings {
        expect_eq!(control(CLEAR, ring, 0), Ok(0));
    }
    // Linux gives back what is unlinked a little later.
    while user_bytes(uid)? != before {
        thread::yield_now();
    }
    Ok(())
}

fn threads_change_keyrings_at_once() -> Outcome {
    let child = spawn_child(|| {
        let outcome = race(4713);
        if let Err(reason) = &outcome {
            eprintln!("{reason}");
        }
        i32::from(outcome.is_err())
    })?;
    expect_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
    Ok(())
}
