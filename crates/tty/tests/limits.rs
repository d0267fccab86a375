//! Behaviour without room, and requests that only a program makes.

use heddle_tty::{
    CAPACITY_BYTES, Character, InputModes, LineDiscipline, LocalModes, Output, SignalRequests, Termios,
};
use proptest::prelude::*;

/// A line with room for so many bytes.
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    room: usize,
}

impl Output for Line {
    fn room(&self) -> usize {
        self.room
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room = self.room.checked_sub(bytes.len()).expect("more than the room that was announced");
        self.bytes.extend_from_slice(bytes);
    }

    fn discard(&mut self) {
        self.bytes.clear();
    }
}

fn read(terminal: &mut LineDiscipline, limit: usize) -> Vec<u8> {
    let mut all = Vec::new();
    terminal.read(limit, &mut |bytes| {
        all.extend_from_slice(bytes);
        bytes.len()
    });
    all
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn narrow_room_changes_nothing_but_the_time(
        typed in prop::collection::vec(prop::sample::select(b"ab\t\n\x7f\x17\x15\x01".to_vec()), 0..60),
        printed in prop::collection::vec(prop::sample::select(b"ab\t\n\r\x08".to_vec()), 0..60),
        rooms in prop::collection::vec(1..20usize, 1..10),
    ) {
        let mut wide = Line { room: usize::MAX, ..Line::default() };
        let mut terminal = LineDiscipline::try_new().unwrap();
        terminal.receive(&typed, &mut wide);
        prop_assert_eq!(terminal.write(&printed, &mut wide), printed.len());

        let mut narrow = Line::default();
        let mut terminal = LineDiscipline::try_new().unwrap();
        prop_assert_eq!(terminal.receive(&typed, &mut narrow).consumed, typed.len());
        let mut rest = &printed[..];
        for room in rooms.iter().cycle() {
            narrow.room += room;
            rest = &rest[terminal.write(rest, &mut narrow)..];
            if rest.is_empty() && narrow.room > 8 {
                break;
            }
        }
        prop_assert_eq!(narrow.bytes, wide.bytes);
    }

    #[test]
    fn a_reader_that_takes_little_misses_nothing(
        takes in prop::collection::vec(0..5usize, 1..30),
        canonical in any::<bool>(),
    ) {
        let mut line = Line { room: usize::MAX, ..Line::default() };
        let mut terminal = LineDiscipline::try_new().unwrap();
        if !canonical {
            let local = LocalModes::empty();
            terminal.set_termios(Termios { local, ..Termios::DEFAULT }, &mut line);
        }
        terminal.receive(b"one\ntwo\nthree\n", &mut line);
        let mut all = Vec::new();
        for take in takes.iter().chain(core::iter::once(&100)).cycle() {
            // `accept` stops early, as a copy into a page that is missing does.
            terminal.read(7, &mut |bytes| {
                let count = bytes.len().min(*take);
                all.extend_from_slice(&bytes[..count]);
                count
            });
            if !terminal.is_readable() {
                break;
            }
        }
        prop_assert_eq!(all, b"one\ntwo\nthree\n".to_vec());
    }
}

#[test]
fn finished_lines_hold_back_input() {
    let mut line = Line { room: usize::MAX, ..Line::default() };
    let mut terminal = LineDiscipline::try_new().unwrap();
    let keys = [b"first\n".to_vec(), vec![b'x'; 2 * CAPACITY_BYTES]].concat();
    let consumed = terminal.receive(&keys, &mut line).consumed;
    assert_eq!(consumed, CAPACITY_BYTES - 1);
    assert_eq!(read(&mut terminal, 100), b"first\n");
    assert!(terminal.receive(&keys[consumed..], &mut line).consumed > 0);
}

#[test]
fn signal_characters_ask_for_signals_and_flush() {
    let mut line = Line { room: usize::MAX, ..Line::default() };
    let mut terminal = LineDiscipline::try_new().unwrap();
    let received = terminal.receive(b"abc\n\x03", &mut line);
    assert_eq!((received.signals, received.flushed), (SignalRequests::INTERRUPT, true));
    assert!(!terminal.is_readable());
    assert_eq!(line.bytes, b"^C");

    let local = Termios::DEFAULT.local | LocalModes::NOFLSH;
    terminal.set_termios(Termios { local, ..Termios::DEFAULT }, &mut line);
    let received = terminal.receive(b"abc\n\x1a\x1c", &mut line);
    assert_eq!(received.signals, SignalRequests::SUSPEND | SignalRequests::QUIT);
    assert_eq!(read(&mut terminal, 100), b"abc\n");

    let local = LocalModes::ICANON;
    terminal.set_termios(Termios { local, ..Termios::DEFAULT }, &mut line);
    assert_eq!(terminal.receive(b"\x03\n", &mut line).signals, SignalRequests::empty());
    assert_eq!(read(&mut terminal, 100), b"\x03\n");
}

#[test]
fn only_the_program_restarts_what_it_stopped() {
    let mut line = Line { room: usize::MAX, ..Line::default() };
    let mut terminal = LineDiscipline::try_new().unwrap();
    assert!(terminal.stop_by_program());
    assert!(!terminal.receive(b"\x11", &mut line).flow_changed);
    assert_eq!(terminal.write(b"x", &mut line), 0);
    assert!(terminal.start_by_program(&mut line));
    assert_eq!(terminal.write(b"x", &mut line), 1);

    assert!(terminal.receive(b"\x13", &mut line).flow_changed);
    assert!(!terminal.start_by_program(&mut line));
    assert_eq!(terminal.write(b"x", &mut line), 0);
    let input = Termios::DEFAULT.input - InputModes::IXON;
    terminal.set_termios(Termios { input, ..Termios::DEFAULT }, &mut line);
    assert_eq!(terminal.write(b"x", &mut line), 1);
}

#[test]
fn a_minimum_counts_for_readiness_only_without_a_time() {
    let mut line = Line { room: usize::MAX, ..Line::default() };
    let mut terminal = LineDiscipline::try_new().unwrap();
    let mut raw = Termios { local: LocalModes::empty(), ..Termios::DEFAULT };
    raw.characters[Character::Minimum as usize] = 3;
    terminal.set_termios(raw, &mut line);
    terminal.receive(b"ab", &mut line);
    assert!(terminal.is_readable() && !terminal.is_ready());
    terminal.receive(b"c", &mut line);
    assert!(terminal.is_ready());
    read(&mut terminal, 2);
    raw.characters[Character::Time as usize] = 1;
    terminal.set_termios(raw, &mut line);
    assert!(terminal.is_ready());
}
