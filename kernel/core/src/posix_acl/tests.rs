//! Lists that are taken and refused, and what they permit.

use super::*;

fn value(entries: &[(Tag, u16, u32)]) -> Vec<u8> {
    let mut value = VERSION.to_le_bytes().to_vec();
    for &(tag, permissions, id) in entries {
        value.extend((tag as u16).to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

fn list(entries: &[(Tag, u16, u32)]) -> Acl {
    Acl::parse(&value(entries)).unwrap().unwrap()
}

const FULL: [(Tag, u16, u32); 6] = [
    (Tag::UserOwner, 7, NO_ID),
    (Tag::User, 6, 10),
    (Tag::GroupOwner, 5, NO_ID),
    (Tag::Group, 4, 20),
    (Tag::Mask, 4, NO_ID),
    (Tag::Other, 0, NO_ID),
];

#[test]
fn a_list_is_read_and_written() {
    assert_eq!(list(&FULL).to_value().unwrap(), value(&FULL));
    assert_eq!(Acl::parse(&value(&[])), Ok(None));
    assert_eq!(Acl::parse(&[]), Err(AclError::Invalid));
    assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(AclError::Version));
    let missing = |index: usize| {
        let mut entries = FULL.to_vec();
        entries.remove(index);
        Acl::parse(&value(&entries))
    };
    for index in [0, 2, 4, 5] {
        assert_eq!(missing(index), Err(AclError::Invalid), "without entry {index}");
    }
    assert!(missing(1).is_ok() && missing(3).is_ok());
    let mut wrong_order = FULL;
    wrong_order.swap(0, 1);
    assert_eq!(Acl::parse(&value(&wrong_order)), Err(AclError::Invalid));
}

#[test]
fn the_mask_is_the_groups_part_of_the_mode() {
    let mut acl = list(&FULL);
    assert_eq!((acl.mode(), acl.equivalent_mode()), (0o740, None));
    acl.set_mode(0o621);
    assert_eq!(acl.mode(), 0o621);
    let minimal = list(&[(Tag::UserOwner, 6, NO_ID), (Tag::GroupOwner, 4, NO_ID), (Tag::Other, 1, NO_ID)]);
    assert_eq!(minimal.equivalent_mode(), Some(0o641));
}

#[test]
fn a_new_file_gets_what_both_permit() {
    let mut acl = list(&FULL);
    assert_eq!(acl.create(0o4666), 0o4640);
    assert_eq!(acl.mode(), 0o640);
}

#[test]
fn the_first_class_that_applies_decides() {
    let acl = list(&FULL);
    let nobody = |_: Option<u32>| false;
    assert!(acl.permits(7, true, 10, nobody), "the owner, whatever the mask says");
    assert!(acl.permits(4, false, 10, nobody) && !acl.permits(2, false, 10, nobody), "a named user, masked");
    assert!(acl.permits(4, false, 11, |group| group == Some(20)), "a named group");
    assert!(!acl.permits(1, false, 11, |group| group.is_none()), "the owner's group, masked");
    assert!(!acl.permits(4, false, 11, nobody), "others");
}
