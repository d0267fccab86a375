//! Names, and the places of fields that debuggers look at.

use super::*;

const FACTS: DumpFacts<'_> = DumpFacts {
    pid: 17,
    tid: 18,
    uid: 1000,
    gid: 100,
    signal: 11,
    time: 1_700_000_000,
    limit: u64::MAX,
    host: b"heddle",
    name: b"a/b",
    path: b"/usr/bin/prog",
};

fn expanded(pattern: &str) -> Option<String> {
    let mut place = Pattern::initial();
    assert!(place.set(pattern.as_bytes()));
    place.expand(&FACTS).unwrap().map(|name| String::from_utf8(name).unwrap())
}

#[test]
fn patterns_name_what_is_known() {
    assert_eq!(expanded("core").as_deref(), Some("core"));
    assert_eq!(expanded("/tmp/%e.%p.%i-%u%g%%\nrest").as_deref(), Some("/tmp/a!b.17.18-1000100%"));
    assert_eq!(expanded("%E %f %s %t %h %d%").as_deref(), Some("!usr!bin!prog prog 11 1700000000 heddle 1"));
    assert_eq!(expanded("x%qy%z").as_deref(), Some("xy"));
    assert_eq!(expanded(""), None);
}

#[test]
fn a_number_is_added_once() {
    let mut pattern = Pattern::initial();
    pattern.adds_pid = true;
    assert_eq!(pattern.expand(&FACTS).unwrap().unwrap(), b"core.17");
    assert!(pattern.set(b"c%p"));
    assert_eq!(pattern.expand(&FACTS).unwrap().unwrap(), b"c17");
}

#[test]
fn names_of_directories_are_no_parts() {
    let mut pattern = Pattern::initial();
    assert!(pattern.set(b"%e"));
    let facts = DumpFacts { name: b"..", ..FACTS };
    assert_eq!(pattern.expand(&facts).unwrap().unwrap(), b"!.");
}

#[test]
fn long_patterns_are_cut_and_pipes_refused() {
    let mut pattern = Pattern::initial();
    assert!(!pattern.set(b"|/bin/cat"));
    assert_eq!(pattern.as_bytes(), b"core");
    assert!(pattern.set(&[b'x'; 300]));
    assert_eq!(pattern.as_bytes().len(), 127);
    assert!(pattern.set(&b"%E".repeat(63)));
    let path = [b'p'; 100];
    assert_eq!(pattern.expand(&DumpFacts { path: &path, ..FACTS }).unwrap(), None);
}

fn word(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

#[test]
fn a_status_has_its_fields_where_debuggers_look() {
    let status = ThreadStatus {
        signal: [11, 1, 0],
        pending: 5,
        blocked: 6,
        ids: [7, 8, 9, 10],
        times_us: [1_000_001, 2, 3, 4],
        registers: core::array::from_fn(|index| 100 + index as u64),
    };
    let bytes = status.to_bytes();
    assert_eq!((bytes[0], bytes[4], bytes[12]), (11, 1, 11));
    assert_eq!((word(&bytes, 16), word(&bytes, 24)), (5, 6));
    assert_eq!((bytes[32], bytes[36], bytes[40], bytes[44]), (7, 8, 9, 10));
    assert_eq!((word(&bytes, 48), word(&bytes, 56), word(&bytes, 72)), (1, 1, 2));
    assert_eq!((word(&bytes, 112), word(&bytes, 320)), (100, 126));
    assert_eq!(bytes[328], 1);
}

#[test]
fn notes_are_padded() {
    let mut pieces = Pieces::default();
    add_note(&mut pieces, note::STATUS, &[1, 2, 3]).unwrap();
    assert_eq!(pieces.len(), note_bytes(note::STATUS, 3));
    let bytes: Vec<u8> = pieces.iter().flatten().copied().collect();
    assert_eq!(bytes, b"\x05\0\0\0\x03\0\0\0\x01\0\0\0CORE\0\0\0\0\x01\x02\x03\0");
}

#[test]
fn pieces_keep_what_is_put() {
    let mut pieces = Pieces::default();
    let mut plain = Vec::new();
    for length in [0, 1, 4095, 4096, 9000, 7] {
        let part: Vec<u8> = (0..length).map(|at| at as u8).collect();
        pieces.push(&part).unwrap();
        plain.extend_from_slice(&part);
        pieces.pad(8).unwrap();
        plain.resize(plain.len().next_multiple_of(8), 0);
    }
    assert_eq!(pieces.len(), plain.len());
    assert_eq!(pieces.iter().flatten().copied().collect::<Vec<u8>>(), plain);
}
