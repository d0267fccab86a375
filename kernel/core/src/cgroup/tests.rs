//! Tests of the rules of control groups.

use super::*;

use alloc::string::ToString;
use alloc::vec::Vec;

const BOTH: Controllers = Controllers::MEMORY.union(Controllers::PIDS);

#[test]
fn requests_enable_and_disable() {
    let none = Controllers::empty();
    assert_eq!(none.changed("+pids +memory\n", BOTH), Ok(BOTH));
    assert_eq!(BOTH.changed("-pids", BOTH), Ok(Controllers::MEMORY));
    // The last word about a controller counts.
    assert_eq!(none.changed("+pids -pids", BOTH), Ok(none));
    assert_eq!(none.changed("-pids +pids", BOTH), Ok(Controllers::PIDS));
    assert_eq!(none.changed("", BOTH), Ok(none));
    assert_eq!(none.changed("+pids", Controllers::MEMORY), Err(RequestError::Absent));
    // Disabling what is not there is no fault.
    assert_eq!(none.changed("-pids", Controllers::MEMORY), Ok(none));
    for text in ["pids", "+", "+cpus", "max", "+pids,+memory"] {
        assert_eq!(none.changed(text, BOTH), Err(RequestError::Invalid), "{text}");
    }
}

#[test]
fn names_are_in_the_order_of_linux() {
    assert_eq!(Controllers::all().names().collect::<Vec<_>>(), ["cpu", "memory", "pids"]);
}

#[test]
fn processes_and_controllers_of_processes_exclude_each_other() {
    let full = GroupShape { has_threads: true, ..GroupShape::default() };
    assert!(!full.may_enable(Controllers::MEMORY));
    assert!(full.may_enable(Controllers::PIDS));
    assert!(!full.may_enable(BOTH));
    let empty = GroupShape::default();
    assert!(empty.may_enable(BOTH));
    let enabled = GroupShape { enabled: Controllers::MEMORY, ..empty };
    assert!(!enabled.may_have_processes());
    assert!(GroupShape { enabled: Controllers::PIDS, ..empty }.may_have_processes());
    let above = GroupShape { enabled: Controllers::PIDS, has_populated_children: true, ..empty };
    assert!(!above.may_have_processes());
    assert!(GroupShape { has_populated_children: true, ..empty }.may_have_processes());
    assert!(GroupShape { is_root: true, has_threads: true, enabled: BOTH, ..empty }.may_have_processes());
    assert!(GroupShape { is_root: true, has_threads: true, ..empty }.may_enable(BOTH));
}

#[test]
fn threads_beside_a_controller_of_threads_make_a_root_of_threads() {
    let shape = GroupShape { has_threads: true, enabled: Controllers::PIDS, ..GroupShape::default() };
    assert!(shape.is_thread_root());
    assert!(!GroupShape { has_threads: false, ..shape }.is_thread_root());
    assert!(!GroupShape { is_root: true, ..shape }.is_thread_root());
}

#[test]
fn limits_are_numbers_or_max() {
    assert_eq!(GroupLimit::parse("max"), Some(GroupLimit::MAX));
    assert_eq!(GroupLimit::parse("12"), Some(GroupLimit(12)));
    assert_eq!(GroupLimit::parse("-1"), None);
    assert_eq!(GroupLimit::parse("12k"), None);
    assert_eq!(GroupLimit::parse_bytes("12k"), Some(GroupLimit(12 << 10)));
    assert_eq!(GroupLimit::parse_bytes("1G"), Some(GroupLimit(1 << 30)));
    assert_eq!(GroupLimit::parse_bytes("99999999999999T"), None);
    assert_eq!(GroupLimit::parse_bytes(""), None);
    assert_eq!(GroupLimit(5).to_string(), "5");
    assert_eq!(GroupLimit::MAX.to_string(), "max");
}
