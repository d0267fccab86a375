//! Every message survives a round trip, and a cut one is refused instead of misread.

extern crate std;

use super::*;
use std::vec::Vec;

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

fn payload_of(message: &[u8], expected: u32) -> &[u8] {
    let (header, payload) = message.split_first_chunk::<HEADER_BYTES>().unwrap();
    assert_eq!(parse_header(*header), Some((payload.len(), expected)));
    payload
}

fn start_message() -> Vec<u8> {
    let mut message = Vec::new();
    let descriptors = [Descriptor::Terminal, Descriptor::Pipe, Descriptor::Closed];
    let window = WindowSize { rows: 24, columns: 80 };
    let arguments: [&[u8]; 3] = [b"sh", b"", b"a\xffb"];
    let fields = StartFields {
        number: 7,
        descriptors,
        window,
        user: 1000,
        group: 100,
        groups: &[4, 5],
        program: b"/bin/sh",
        directory: b"/tmp",
        arguments: &arguments,
        environment: &[],
    };
    fields.put(&mut message).unwrap();
    message
}

#[test]
fn start_round_trip() {
    let message = start_message();
    let start = Start::parse(payload_of(&message, kind::START)).unwrap();
    assert_eq!(start.descriptors, [Descriptor::Terminal, Descriptor::Pipe, Descriptor::Closed]);
    assert_eq!(start.window, WindowSize { rows: 24, columns: 80 });
    assert_eq!((start.number, start.user, start.group), (7, 1000, 100));
    assert_eq!(start.groups.iter().collect::<Vec<_>>(), [4, 5]);
    assert_eq!((start.program, start.directory), (&b"/bin/sh"[..], &b"/tmp"[..]));
    assert_eq!(start.arguments.iter().collect::<Vec<_>>(), [&b"sh"[..], b"", b"a\xffb"]);
    assert!(start.environment.is_empty());
}

#[test]
fn cut_start_is_refused() {
    let message = start_message();
    let payload = payload_of(&message, kind::START);
    for length in 0..payload.len() {
        assert!(Start::parse(&payload[..length]).is_none(), "a payload of {length} bytes was accepted");
    }
}

#[test]
fn small_messages_round_trip() {
    for ending in [Ending::Exited(3), Ending::Signaled(9), Ending::NotStarted(2), Ending::NoDirectory(20)] {
        let exit = Exit { ending, written_bytes: [1, u64::MAX, 0] };
        let mut sink = Small::new();
        exit.put(&mut sink).unwrap();
        assert_eq!(Exit::parse(payload_of(sink.as_bytes(), kind::EXIT)), Some(exit));
    }
    let killed = OutOfMemory { pid: 7, name: *b"python3\0\0\0\0\0\0\0\0\0", bytes: 1 << 40 };
    let mut sink = Small::new();
    killed.put(&mut sink).unwrap();
    assert_eq!(OutOfMemory::parse(payload_of(sink.as_bytes(), kind::OUT_OF_MEMORY)), Some(killed));
    let end = EndOfInput { stream: stream::STDIN, total_bytes: 10 << 20 };
    let mut sink = Small::new();
    end.put(&mut sink).unwrap();
    assert_eq!(EndOfInput::parse(payload_of(sink.as_bytes(), kind::END_OF_INPUT)), Some(end));
}

#[test]
fn oversized_header_is_refused() {
    let mut header = [0xff; HEADER_BYTES];
    assert_eq!(parse_header(header), None);
    header[..4].copy_from_slice(&(PAYLOAD_MAX_BYTES as u32).to_le_bytes());
    assert!(parse_header(header).is_some());
}

#[test]
fn messages_about_programs_round_trip() {
    use programs::{Piece, Short, parse_ended, put_ended};
    let mut message = Vec::new();
    let piece = Piece { number: 3, stream: stream::STDERR, bytes: b"some\0bytes" };
    piece.put(&mut message, programs::kind::OUTPUT).unwrap();
    assert_eq!(Piece::parse(payload_of(&message, programs::kind::OUTPUT)), Some(piece));
    let head = programs::output_head(3, stream::STDERR, piece.bytes.len());
    assert_eq!(message, [&head[..], piece.bytes].concat());
    message.clear();
    let short = Short { number: 3, words: [stream::STDIN, 99] };
    short.put(&mut message, programs::kind::CREDIT).unwrap();
    assert_eq!(Short::parse(payload_of(&message, programs::kind::CREDIT)), Some(short));
    message.clear();
    put_ended(&mut message, 3, Ending::Signaled(9)).unwrap();
    let payload = payload_of(&message, programs::kind::ENDED);
    assert_eq!((programs::number_of(payload), parse_ended(payload)), (Some(3), Some(Ending::Signaled(9))));
    assert_eq!(parse_ended(&payload[..11]), None);
}

#[test]
fn a_window_never_grows_beyond_its_size() {
    use programs::{PIECE_BYTES, Taken, WINDOW_BYTES, Window};
    let mut window = Window::default();
    let mut taken = Taken::default();
    let mut sent = 0;
    while window.piece_bytes() == PIECE_BYTES {
        window.spend(PIECE_BYTES);
        sent += PIECE_BYTES;
    }
    window.spend(window.piece_bytes());
    assert_eq!(window.piece_bytes(), 0);
    assert_eq!(taken.add(PIECE_BYTES), None, "grants are collected");
    let granted = taken.add(sent).unwrap();
    window.grant(granted);
    assert!(window.piece_bytes() > 0);
    window.grant(u32::MAX);
    window.spend(PIECE_BYTES);
    assert_eq!(window.piece_bytes(), PIECE_BYTES.min(WINDOW_BYTES as usize - PIECE_BYTES));
}

#[test]
fn a_change_in_a_share_is_passed_on() {
    let changed = ShareChanged { folder: 2, directory: b"a/b", name: b"c" };
    let mut sink = Small::new();
    changed.put(&mut sink).unwrap();
    let (header, payload) = sink.as_bytes().split_first_chunk().unwrap();
    assert_eq!(parse_header(*header), Some((payload.len(), kind::SHARE_CHANGED)));
    assert_eq!(ShareChanged::parse(payload), Some(changed));
    assert_eq!(ShareChanged::parse(&payload[..payload.len() - 1]), None);
}

#[test]
fn a_special_file_is_asked_for_and_answered() {
    for owner in [None, Some((1, 2))] {
        let asked = SpecialFile { number: 7, folder: 1, mode: 0o140_755, owner, path: b"a/s" };
        let mut sink = Small::new();
        asked.put(&mut sink).unwrap();
        let (header, payload) = sink.as_bytes().split_first_chunk().unwrap();
        assert_eq!(parse_header(*header), Some((payload.len(), kind::SPECIAL_FILE)));
        assert_eq!(SpecialFile::parse(payload), Some(asked));
    }
    let mut sink = Small::new();
    SpecialFile::put_done(&mut sink, 7, 13).unwrap();
    let (header, payload) = sink.as_bytes().split_first_chunk().unwrap();
    assert_eq!(parse_header(*header), Some((payload.len(), kind::SPECIAL_FILE_DONE)));
    assert_eq!(SpecialFile::parse_done(payload), Some((7, 13)));
}
