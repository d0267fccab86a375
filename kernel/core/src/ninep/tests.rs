//! Tests of the layout.

use super::*;

#[test]
fn a_message_is_laid_out() {
    let mut buffer = [0; 64];
    let mut writer = MessageWriter::new(&mut buffer, kind::WALK, 7);
    writer.u32(1);
    writer.u16(1);
    writer.string(b"name");
    let length = writer.finish().unwrap();
    let expected = [19, 0, 0, 0, 110, 7, 0, 1, 0, 0, 0, 1, 0, 4, 0, b'n', b'a', b'm', b'e'];
    assert_eq!(buffer[..length], expected);
}

#[test]
fn truncated_messages_are_refused() {
    let mut buffer = [0; 10];
    let mut writer = MessageWriter::new(&mut buffer, kind::WALK, 0);
    writer.u32(1);
    assert_eq!(writer.finish(), None);
    let mut buffer = [0; 10];
    let mut writer = MessageWriter::new(&mut buffer, kind::WALK, 0);
    writer.string(&[0; 70_000]);
    assert_eq!(writer.finish(), None);
    let mut buffer = [0; 3];
    assert_eq!(MessageWriter::new(&mut buffer, kind::WALK, 0).finish(), None);
}

#[test]
fn replies_are_told_from_errors() {
    let refused = [11, 0, 0, 0, 7, 0, 0, 2, 0, 0, 0];
    assert_eq!(Reader::of_reply(&refused, kind::WALK).err(), Some(Failure::Refused(2)));
    let walked = [9, 0, 0, 0, 111, 0, 0, 5, 0, 99];
    let mut reader = Reader::of_reply(&walked, kind::WALK).unwrap();
    assert_eq!(reader.u16(), Ok(5));
    assert!(reader.is_empty(), "what is behind the message's end is not of it");
    assert_eq!(Reader::of_reply(&walked, kind::READ).err(), Some(Failure::Malformed));
}

#[test]
fn any_bytes_are_read_without_panic() {
    for length in 0..40 {
        for fill in [0_u8, 1, 7, 111, 255] {
            let mut message = [fill; 40];
            message[4] = kind::GETATTR + 1;
            if let Ok(mut reader) = Reader::of_reply(&message[..length], kind::GETATTR) {
                let _ = Attributes::read(&mut reader);
                let _ = DirectoryEntry::read(&mut reader);
                let _ = reader.string();
            }
        }
    }
}

#[test]
fn attributes_and_entries() {
    let mut buffer = [0; 256];
    let mut writer = MessageWriter::new(&mut buffer, kind::GETATTR + 1, 0);
    writer.u64(GETATTR_BASIC);
    writer.bytes(&[0, 7, 0, 0, 0]);
    writer.u64(42);
    for value in [0o100_644, 1, 2] {
        writer.u32(value);
    }
    for value in 3..18 {
        writer.u64(value);
    }
    let length = writer.finish().unwrap();
    let mut reader = Reader::of_reply(&buffer[..length], kind::GETATTR).unwrap();
    let attributes = Attributes::read(&mut reader).unwrap();
    assert_eq!((attributes.number, attributes.mode, attributes.uid, attributes.gid), (42, 0o100_644, 1, 2));
    assert_eq!((attributes.links, attributes.device, attributes.size, attributes.blocks), (3, 4, 5, 7));
    assert_eq!((attributes.accessed, attributes.modified), ((8, 9), (10, 11)));
    assert_eq!(attributes.version, 7);
    assert_eq!(attributes.generation, None, "the server says that it does not know it");
    buffer[HEADER_BYTES..HEADER_BYTES + 8]
        .copy_from_slice(&(GETATTR_BASIC | GETATTR_GENERATION).to_le_bytes());
    let mut reader = Reader::of_reply(&buffer[..length], kind::GETATTR).unwrap();
    let known = Attributes::read(&mut reader).unwrap();
    assert_eq!((known.changed, known.generation), ((12, 13), Some(16)));
    assert_eq!((known.is_same_file(&known), known.is_same_file(&attributes)), (Some(true), None));
    let next = Attributes { generation: Some(17), ..known };
    assert_eq!(known.is_same_file(&next), Some(false), "the number has another file");
    let generation_at = length - 16;
    buffer[generation_at..generation_at + 8].fill(0);
    let mut reader = Reader::of_reply(&buffer[..length], kind::GETATTR).unwrap();
    let uncounted = Attributes::read(&mut reader).unwrap();
    assert_eq!(uncounted.generation, None, "the file system counts none");

    let mut writer = MessageWriter::new(&mut buffer, kind::READDIR + 1, 0);
    writer.bytes(&[0; 5]);
    writer.u64(9);
    writer.u64(77);
    writer.bytes(&[8]);
    writer.string(b"file");
    let length = writer.finish().unwrap();
    let mut reader = Reader::of_reply(&buffer[..length], kind::READDIR).unwrap();
    assert_eq!(
        DirectoryEntry::read(&mut reader),
        Ok(DirectoryEntry { number: 9, next: 77, kind: 8, name: b"file" })
    );
}
