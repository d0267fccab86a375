//! Requests as they are written, answers as they are read, and answers that can't be.

use super::{
    ANSWER_HEADER_BYTES, AnswerHeader, BadAnswer, FuseAttributes, FuseCaller, FuseEntry, FuseListed,
    FuseMessage, FuseOptions, FuseReader, FuseTerms, REQUEST_HEADER_BYTES, opcode, read_attributes,
};

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn a_request_says_its_length_number_and_caller() {
    let mut message = FuseMessage::new(opcode::LOOKUP, 7, 6).unwrap();
    message.name(b"names");
    let bytes = message.finish(9, FuseCaller { uid: 1, gid: 2, pid: 3 }).unwrap();
    assert_eq!(words(&bytes[..REQUEST_HEADER_BYTES]), [46, 1, 9, 0, 7, 0, 1, 2, 3, 0]);
    assert_eq!(&bytes[REQUEST_HEADER_BYTES..], b"names\0");
}

#[test]
fn a_request_may_have_more_fields_than_room_was_asked_for() {
    let mut message = FuseMessage::new(opcode::WRITE, 7, 0).unwrap();
    message.u64(5);
    message.space(100).unwrap()[99] = 1;
    let bytes = message.finish(9, FuseCaller::default()).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[147]), (148, 148, 1));
}

#[test]
fn an_answer_has_a_header() {
    let mut bytes = [0; ANSWER_HEADER_BYTES];
    bytes[..4].copy_from_slice(&16u32.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(-2i32).to_ne_bytes());
    bytes[8..].copy_from_slice(&(1u64 << 40).to_ne_bytes());
    assert_eq!(AnswerHeader::read(bytes), AnswerHeader { length: 16, error: -2, unique: 1 << 40 });
}

fn attributes() -> Vec<u8> {
    let long = [1u64, 2, 3, 4, 5, 6];
    let short = [7u32, 8, 9, 0o100_644, 1, 1000, 1001, 0, 4096, 0];
    let mut bytes: Vec<u8> = long.iter().flat_map(|number| number.to_ne_bytes()).collect();
    bytes.extend(short.iter().flat_map(|number| number.to_ne_bytes()));
    bytes
}

#[test]
fn attributes_are_read_in_their_order() {
    let mut bytes = vec![0; 16];
    bytes[0] = 1;
    bytes[8] = 2;
    bytes.extend(attributes());
    let (read, valid_ns) = read_attributes(&bytes).unwrap();
    let expected = FuseAttributes {
        number: 1,
        size: 2,
        blocks: 3,
        accessed: (4, 7),
        modified: (5, 8),
        changed: (6, 9),
        mode: 0o100_644,
        links: 1,
        uid: 1000,
        gid: 1001,
        device: 0,
    };
    assert_eq!((read, valid_ns), (expected, 1_000_000_002));
    assert_eq!(read_attributes(&bytes[..bytes.len() - 1]), Err(BadAnswer));
    // A size that no file can have.
    bytes[16 + 15] = 0x80;
    assert_eq!(read_attributes(&bytes), Err(BadAnswer));
}

#[test]
fn an_entry_is_read() {
    let mut bytes = vec![0; 40];
    (bytes[0], bytes[8], bytes[24]) = (5, 6, 1);
    bytes.extend(attributes());
    assert_eq!(bytes.len(), FuseEntry::BYTES);
    let entry = FuseEntry::read(&mut FuseReader::new(&bytes)).unwrap();
    assert_eq!((entry.node, entry.generation, entry.valid_ns), (5, 6, 1_000_000_000));
    assert_eq!(entry.attributes.uid, 1000);
}

#[test]
fn terms_of_a_wrong_version_end_with_it() {
    let fields: Vec<u8> = [8u32, 0].iter().flat_map(|number| number.to_ne_bytes()).collect();
    assert_eq!(FuseTerms::read(&fields), Ok(FuseTerms { version: (8, 0), write_max: 0 }));
    let fields: Vec<u8> =
        [7u32, 31, 4096, 1, 12, 8192].iter().flat_map(|number| number.to_ne_bytes()).collect();
    assert_eq!(FuseTerms::read(&fields), Ok(FuseTerms { version: (7, 31), write_max: 8192 }));
    assert_eq!(FuseTerms::read(&fields[..20]), Err(BadAnswer));
}

fn listed(number: u64, next: u64, kind: u32, name: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [number, next].iter().flat_map(|number| number.to_ne_bytes()).collect();
    bytes.extend([name.len() as u32, kind].iter().flat_map(|number| number.to_ne_bytes()));
    bytes.extend(name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

#[test]
fn entries_of_directories_are_read_up_to_one_that_is_cut() {
    let mut bytes = listed(1, 2, 4, b"directory");
    bytes.extend(listed(3, 4, 8, b"file"));
    bytes.truncate(bytes.len() - 5);
    let mut reader = FuseReader::new(&bytes);
    let first = FuseListed::read(&mut reader).unwrap();
    assert_eq!(first, Some(FuseListed { number: 1, next: 2, kind: 4, name: b"directory" }));
    assert_eq!(FuseListed::read(&mut reader), Ok(None));
    for name in [&b""[..], b"a/b", b"a\0b", &[b'x'; 256]] {
        assert_eq!(FuseListed::read(&mut FuseReader::new(&listed(1, 2, 4, name))), Err(BadAnswer));
    }
}

#[test]
fn options_are_what_mount_fuse_gives() {
    let options =
        FuseOptions::parse(b"fd=5,rootmode=40000,user_id=0,group_id=7,allow_other,max_read=0").unwrap();
    assert_eq!((options.descriptor, options.root_mode, options.user, options.group), (5, 0o40000, 0, 7));
    assert!(options.is_for_all && !options.checks_permissions);
    assert_eq!((options.read_max, options.subtype), (u32::MAX, None));
    assert_eq!(options.shown().unwrap(), b"user_id=0,group_id=7,allow_other");
    let options = b"fd=5,rootmode=40000,user_id=1,group_id=2,default_permissions,max_read=9,subtype=x";
    let options = FuseOptions::parse(options).unwrap();
    assert_eq!(options.subtype, Some("x"));
    assert_eq!(options.shown().unwrap(), b"user_id=1,group_id=2,default_permissions,max_read=9");
    for wrong in
        [&b"fd=5,rootmode=40000,user_id=0"[..], b"fd=x,rootmode=40000,user_id=0,group_id=0", b"whatever"]
    {
        assert_eq!(FuseOptions::parse(wrong), None);
    }
}
