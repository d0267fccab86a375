use super::*;

#[test]
fn the_first_rights_allow_key_0_alone() {
    for key in 0..KEYS {
        assert_eq!(KeyRights::INITIAL.allow(key, false), key == 0);
        assert_eq!(KeyRights::INITIAL.allow(key, true), key == 0);
    }
}

#[test]
fn rights_of_one_key_leave_the_others_alone() {
    let read_only = KeyRights::INITIAL.with(3, 2);
    assert!(read_only.allow(3, false) && !read_only.allow(3, true));
    assert_eq!(read_only.without(3), KeyRights::INITIAL);
    assert_eq!(KeyRights(0).with(15, 3).0, 3 << 30);
}

#[test]
fn keys_are_given_out_from_the_lowest_and_come_back() {
    let mut keys = SpaceKeys::new();
    let all: Vec<_> = core::iter::from_fn(|| keys.allocate()).collect();
    assert_eq!(all, (1..KEYS).collect::<Vec<_>>());
    assert_eq!(keys.free(5), Ok(()));
    assert_eq!(keys.free(5), Err(UnknownKey));
    assert_eq!(keys.allocate(), Some(5));
    assert_eq!(keys.free(0), Ok(()), "as on Linux, key 0 is one like others");
    assert_eq!(keys.allocate(), Some(0));
    for number in [-1, 16, i32::MAX] {
        assert_eq!(keys.free(number), Err(UnknownKey));
    }
}

#[test]
fn the_key_of_what_is_only_executed_is_no_program_s() {
    let mut keys = SpaceKeys::new();
    let key = keys.take_execute_only();
    assert_eq!((key, keys.take_execute_only()), (Some(1), Some(1)));
    assert!(!keys.is_given(1));
    assert_eq!(keys.free(1), Err(UnknownKey));
    assert_eq!(SpaceKeys::none().take_execute_only(), None);
}

#[test]
fn beside_groups_a_program_has_one_key() {
    let mut keys = SpaceKeys::beside_groups();
    assert!((0..i32::from(KEYS)).all(|number| !keys.is_given(number)));
    assert_eq!((keys.allocate(), keys.allocate()), (Some(15), None));
    assert!(keys.is_given(15) && !keys.is_given(0) && !keys.is_given(3));
}

#[test]
fn a_group_s_key_is_free_when_its_last_space_has_left() {
    let mut groups = KeyGroups::new();
    let keys: Vec<_> = core::iter::from_fn(|| groups.begin()).collect();
    assert_eq!(keys, (1..=GROUPS as u8).collect::<Vec<_>>());
    groups.join(7);
    groups.leave(7);
    assert_eq!(groups.begin(), None);
    groups.leave(7);
    assert_eq!((groups.len(), groups.begin()), (GROUPS - 1, Some(7)));
}
