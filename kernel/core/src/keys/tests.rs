//! Keys come, are found and go as keyrings(7) says.

use super::*;

type Table = Keys<u8>;

const OWNER: u32 = 1000;
const ALL: u32 = 0x3f3f_3f3f;

fn who(anchors: [Option<Serial>; 3]) -> KeyUser<'static> {
    KeyUser { uid: OWNER, gid: OWNER, groups: &[7], anchors, now_s: 100 }
}

fn new<'a>(kind: KeyKind, description: &'a str) -> NewKey<'a> {
    NewKey { kind, description: description.as_bytes(), uid: OWNER, gid: OWNER, permissions: ALL }
}

fn ring(keys: &mut Table, name: &str) -> Serial {
    keys.make(&new(KeyKind::Keyring, name), None, KeyLimits::NONE).unwrap()
}

fn possessed(serial: Serial) -> Reached {
    Reached { serial, is_possessed: true }
}

fn add(keys: &mut Table, ring: Serial, name: &str) -> Serial {
    let who = who([Some(ring), None, None]);
    keys.add(possessed(ring), &new(KeyKind::User, name), Some((1, 10)), &who, KeyLimits::NONE).unwrap()
}

#[test]
fn keys_go_with_their_last_reference() {
    let mut keys = Table::new();
    let top = ring(&mut keys, "top");
    let inner = ring(&mut keys, "inner");
    let key = add(&mut keys, inner, "a");
    keys.link(top, inner, KeyLimits::NONE).unwrap();
    keys.release(inner);
    assert_eq!(keys.key(key).unwrap().references(), 1);
    assert_eq!(keys.users(), [UserKeys { uid: OWNER, keys: 3, bytes: 4 + 6 + 12 + 8 }]);
    keys.release(top);
    assert!(keys.key(top).is_err() && keys.key(inner).is_err() && keys.key(key).is_err());
    assert!(keys.users().is_empty() && keys.links == 0);
}

#[test]
fn a_key_of_the_same_name_is_changed_or_replaced() {
    let mut keys = Table::new();
    let top = ring(&mut keys, "top");
    let key = add(&mut keys, top, "a");
    assert_eq!(add(&mut keys, top, "a"), key);
    let user = who([Some(top), None, None]);
    let add_ring = |keys: &mut Table| {
        keys.add(possessed(top), &new(KeyKind::Keyring, "r"), None, &user, KeyLimits::NONE).unwrap()
    };
    let first = add_ring(&mut keys);
    let second = add_ring(&mut keys);
    assert!(first == second || keys.key(first).is_err());
    assert_eq!(keys.key(top).unwrap().links(), [key, second]);
    let logon = keys.make(&new(KeyKind::Logon, "nocolon"), Some((1, 1)), KeyLimits::NONE);
    assert_eq!(logon, Err(KeyError::Invalid));
    let logon = keys.make(&new(KeyKind::Logon, "a:b"), Some((1, 1)), KeyLimits::NONE).unwrap();
    assert_eq!(keys.payload(logon), Err(KeyError::NotSupported));
}

#[test]
fn rings_form_no_circles() {
    let mut keys = Table::new();
    let names = ["0", "1", "2", "3", "4", "5", "6", "7", "8"];
    let rings: Vec<Serial> = names.iter().map(|name| ring(&mut keys, name)).collect();
    assert_eq!(keys.link(rings[0], rings[0], KeyLimits::NONE), Err(KeyError::Deadlock));
    for pair in rings[..8].windows(2) {
        keys.link(pair[1], pair[0], KeyLimits::NONE).unwrap();
    }
    assert_eq!(keys.link(rings[0], rings[5], KeyLimits::NONE), Err(KeyError::Deadlock));
    assert_eq!(keys.link(rings[8], rings[7], KeyLimits::NONE), Err(KeyError::TooDeep));
    let user = who([Some(rings[6]), None, None]);
    let found = keys.search(possessed(rings[6]), Wanted::Named(KeyKind::Keyring, b"0"), &user);
    assert_eq!(found, Ok(rings[0]));
}

#[test]
fn rights_depend_on_who_asks() {
    let mut keys = Table::new();
    let top = ring(&mut keys, "top");
    let key = add(&mut keys, top, "a");
    let owner = who([Some(top), None, None]);
    let other = KeyUser { uid: 5, gid: 7, ..owner };
    let allowed = |keys: &Table, who: &KeyUser<'_>, is_possessed| {
        keys.permit(&Reached { serial: key, is_possessed }, who, rights::READ).is_ok()
    };
    for (permissions, expected) in [
        (0x0200_0000, [true, false, false, true]),
        (0x0002_0000, [true, true, false, false]),
        (0x0000_0200, [false, false, true, true]),
        (0x0000_0002, [false, false, true, true]),
        // The group's byte counts if there is any right in it.
        (0x0000_0102, [false, false, false, false]),
    ] {
        keys.set_permissions(key, permissions).unwrap();
        keys.change_owner(key, None, Some(7), KeyLimits::NONE).unwrap();
        let owner_alone = KeyUser { groups: &[], ..owner };
        let answers = [
            allowed(&keys, &owner_alone, true),
            allowed(&keys, &owner_alone, false),
            allowed(&keys, &other, false),
            allowed(&keys, &other, true),
        ];
        assert_eq!(answers, expected, "{permissions:x}");
    }
    assert!(keys.reach(key, &who([None; 3])).is_ok_and(|reached| !reached.is_possessed));
    keys.set_permissions(key, ALL).unwrap();
    assert!(keys.reach(key, &owner).unwrap().is_possessed);
}

#[test]
fn searches_say_why_they_fail() {
    let mut keys = Table::new();
    let top = ring(&mut keys, "top");
    let key = add(&mut keys, top, "a");
    let user = who([None, None, Some(top)]);
    let wanted = Wanted::Named(KeyKind::User, b"a");
    assert_eq!(keys.search_anchors(wanted, &user), Ok(key));
    keys.set_expiry(key, Some(100)).unwrap();
    assert_eq!(keys.search_anchors(wanted, &user), Err(KeyError::Expired));
    keys.set_expiry(key, None).unwrap();
    keys.set_permissions(key, 0).unwrap();
    assert_eq!(keys.search_anchors(wanted, &user), Err(KeyError::Access));
    keys.revoke(key).unwrap();
    assert_eq!(keys.search_anchors(wanted, &user), Err(KeyError::Revoked));
    keys.invalidate(key).unwrap();
    assert_eq!(keys.search_anchors(wanted, &user), Err(KeyError::NoKey));
    assert!(keys.key(key).is_err());
    assert_eq!(keys.search(possessed(top), Wanted::Named(KeyKind::Logon, b"a"), &user), Err(KeyError::NoKey));
}

#[test]
fn quotas_count_keys_and_bytes() {
    let mut keys = Table::new();
    let quota = KeyLimits::same(Quota { keys: 2, bytes: 40 });
    let top = keys.make(&new(KeyKind::Keyring, "top"), None, quota).unwrap();
    let user = who([Some(top), None, None]);
    let add = |keys: &mut Table, name: &str, bytes| {
        keys.add(possessed(top), &new(KeyKind::User, name), Some((0, bytes)), &user, quota)
    };
    // 4 for the ring, 2 for the name, 4 for the link.
    assert_eq!(add(&mut keys, "a", 35), Err(KeyError::Quota));
    assert_eq!(add(&mut keys, "a", 31), Err(KeyError::Quota));
    assert_eq!(keys.users(), [UserKeys { uid: OWNER, keys: 1, bytes: 4 }]);
    let key = add(&mut keys, "a", 30).unwrap();
    assert_eq!(keys.users(), [UserKeys { uid: OWNER, keys: 2, bytes: 40 }]);
    assert_eq!(add(&mut keys, "b", 0), Err(KeyError::Quota));
    assert_eq!(keys.update(key, (1, 31), quota), Err(KeyError::Quota));
    keys.update(key, (1, 1), quota).unwrap();
    keys.change_owner(key, Some(1), None, quota).unwrap();
    assert_eq!(
        keys.users(),
        [UserKeys { uid: 1, keys: 1, bytes: 3 }, UserKeys { uid: OWNER, keys: 1, bytes: 8 }]
    );
    keys.unlink(top, key).unwrap();
    assert_eq!(keys.unlink(top, key), Err(KeyError::NoEntry));
    assert_eq!(keys.users(), [UserKeys { uid: OWNER, keys: 1, bytes: 4 }]);
}

#[test]
fn links_are_charged_to_the_owner_of_the_keyring_by_the_owner_s_limits() {
    let mut keys = Table::new();
    let limits = KeyLimits { root: Quota { keys: 10, bytes: 1000 }, others: Quota { keys: 2, bytes: 9 } };
    let theirs = keys.make(&new(KeyKind::Keyring, "top"), None, limits).unwrap();
    let root = KeyUser { uid: 0, gid: 0, ..who([Some(theirs), None, None]) };
    let add = |keys: &mut Table, name| {
        let new = NewKey { uid: 0, gid: 0, ..new(KeyKind::User, name) };
        keys.add(possessed(theirs), &new, Some((0, 100)), &root, limits)
    };
    let first = add(&mut keys, "a").unwrap();
    assert_eq!(add(&mut keys, "b"), Err(KeyError::Quota));
    let root_keys = UserKeys { uid: 0, keys: 1, bytes: 102 };
    assert_eq!(keys.users(), [root_keys, UserKeys { uid: OWNER, keys: 1, bytes: 8 }]);
    // The user's own change of root's key counts for root, whose limits hold.
    let user = who([Some(theirs), None, None]);
    let same = new(KeyKind::User, "a");
    assert_eq!(keys.add(possessed(theirs), &same, Some((0, 500)), &user, limits), Ok(first));
    assert_eq!(keys.add(possessed(theirs), &same, Some((0, 999)), &user, limits), Err(KeyError::Quota));
}

#[test]
fn a_serial_is_not_used_again_soon() {
    let mut keys = Table::new();
    let first = ring(&mut keys, "a");
    keys.release(first);
    let second = ring(&mut keys, "a");
    assert!(first > 0 && second > 0 && first != second);
    assert_eq!(keys.key(first).map(Key::serial), Err(KeyError::NoKey));
    keys.made = GENERATIONS;
    let third = ring(&mut keys, "b");
    assert!(third > 0);
}

#[test]
fn what_was_revoked_or_invalidated_gets_no_links() {
    let mut keys = Table::new();
    let (top, other) = (ring(&mut keys, "top"), ring(&mut keys, "other"));
    let key = add(&mut keys, top, "a");
    keys.revoke(other).unwrap();
    assert_eq!(keys.link(other, key, KeyLimits::NONE), Err(KeyError::Revoked));
    keys.hold(key).unwrap();
    keys.invalidate(key).unwrap();
    assert_eq!(keys.link(top, key, KeyLimits::NONE), Err(KeyError::NoKey));
    keys.release(key);
    assert!(keys.key(key).is_err() && keys.links == 0);
}

#[test]
fn what_lies_less_deep_is_found() {
    let mut keys = Table::new();
    let names = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let rings: Vec<Serial> = names.iter().map(|name| ring(&mut keys, name)).collect();
    let key = add(&mut keys, rings[0], "a");
    for pair in rings.windows(2) {
        keys.link(pair[1], pair[0], KeyLimits::NONE).unwrap();
    }
    let user = who([Some(rings[7]), None, None]);
    let wanted = Wanted::Named(KeyKind::User, b"a");
    // Of eight keyrings one within the other the last is not searched ...
    assert_eq!(keys.search(possessed(rings[7]), wanted, &user), Err(KeyError::NoKey));
    // ... but by the shorter way that comes after the long one.
    keys.link(rings[7], rings[1], KeyLimits::NONE).unwrap();
    assert_eq!(keys.search(possessed(rings[7]), wanted, &user), Ok(key));
}
