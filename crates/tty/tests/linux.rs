//! The line discipline beside Linux's own: the same keys, prints and settings go to a pseudoterminal of the host and to
//! [`LineDiscipline`], and what comes out on both sides must be the same.

use std::os::fd::OwnedFd;

use heddle_tty::{Character, InputModes, LineDiscipline, LocalModes, Output, OutputModes, Termios};
use linux_raw_sys::general as linux;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

/// An event at the terminal, in order.
#[derive(Clone)]
enum Step {
    Type(Vec<u8>),
    Print(Vec<u8>),
    Set(Termios),
}

/// On one line, so that a counterexample can be read.
impl std::fmt::Debug for Step {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Type(bytes) => write!(formatter, "type \"{}\"", bytes.escape_ascii()),
            Self::Print(bytes) => write!(formatter, "print \"{}\"", bytes.escape_ascii()),
            Self::Set(to) => {
                let Termios { input, output, local, characters, .. } = to;
                let characters = characters.escape_ascii();
                write!(formatter, "set {input:?} {output:?} {local:?} \"{characters}\"")
            }
        }
    }
}

/// A pseudoterminal of the host, both ends non-blocking.
struct Host {
    line: OwnedFd,
    program: OwnedFd,
}

impl Host {
    fn open() -> Self {
        let line = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&line).unwrap();
        unlockpt(&line).unwrap();
        rustix::io::ioctl_fionbio(&line, true).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let program = rustix::fs::open(ptsname(&line, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
        Self { line, program }
    }

    fn set(&self, termios: &Termios) {
        let mut host = tcgetattr(&self.program).unwrap();
        host.input_modes = rustix::termios::InputModes::from_bits_retain(termios.input.bits());
        host.output_modes = rustix::termios::OutputModes::from_bits_retain(termios.output.bits());
        host.local_modes = rustix::termios::LocalModes::from_bits_retain(termios.local.bits());
        for (which, index) in SPECIAL {
            host.special_codes[index] = termios.character(which);
        }
        tcsetattr(&self.program, OptionalActions::Now, &host).unwrap();
    }

    /// Polling a side without input makes Linux process what the other side wrote.
    fn settle(side: &OwnedFd) {
        poll(&mut [PollFd::new(side, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    }

    /// All that can be read from one side; an end of file gives an empty piece.
    fn drain(side: &OwnedFd, size: usize) -> Vec<Vec<u8>> {
        Self::settle(side);
        let mut pieces = Vec::new();
        let mut buffer = vec![0; size];
        loop {
            match rustix::io::read(side, &mut buffer) {
                Ok(count) => pieces.push(buffer[..count].to_vec()),
                Err(Errno::AGAIN) => return pieces,
                Err(error) => panic!("read: {error}"),
            }
        }
    }
}

/// A line with unlimited room.
#[derive(Default)]
struct Line(Vec<u8>);

impl Output for Line {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn discard(&mut self) {
        self.0.clear();
    }
}

fn drain_model(model: &mut LineDiscipline, size: usize) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    while model.is_readable() {
        let mut piece = Vec::new();
        model.read(size, &mut |bytes| {
            piece.extend_from_slice(bytes);
            bytes.len()
        });
        pieces.push(piece);
    }
    pieces
}

const SPECIAL: [(Character, rustix::termios::SpecialCodeIndex); 13] = {
    use rustix::termios::SpecialCodeIndex as Index;
    [
        (Character::Interrupt, Index::VINTR),
        (Character::Quit, Index::VQUIT),
        (Character::Erase, Index::VERASE),
        (Character::Kill, Index::VKILL),
        (Character::EndOfFile, Index::VEOF),
        (Character::Start, Index::VSTART),
        (Character::Stop, Index::VSTOP),
        (Character::Suspend, Index::VSUSP),
        (Character::EndOfLine, Index::VEOL),
        (Character::Reprint, Index::VREPRINT),
        (Character::WordErase, Index::VWERASE),
        (Character::LiteralNext, Index::VLNEXT),
        (Character::EndOfLine2, Index::VEOL2),
    ]
};

/// Bytes of which many have a meaning.
fn key() -> impl Strategy<Value = u8> {
    prop_oneof![
        6 => prop::sample::select(b"abz_ ./09AZ".to_vec()),
        4 => prop::sample::select(b"\t\n\r\x04\x7f\x15\x17\x16\x12\x08".to_vec()),
        1 => prop::sample::select(b"\x03\x1c\x1a".to_vec()),
        1 => prop::sample::select(b"\x11\x13".to_vec()),
        2 => prop::sample::select("äé€𝄞".bytes().collect::<Vec<_>>()),
        2 => any::<u8>(),
    ]
}

fn settings() -> impl Strategy<Value = Termios> {
    let input = prop::sample::subsequence(
        vec![
            linux::PARMRK,
            linux::ISTRIP,
            linux::INLCR,
            linux::IGNCR,
            linux::ICRNL,
            linux::IUCLC,
            linux::IXON,
            linux::IXANY,
            linux::IUTF8,
        ],
        0..=9,
    );
    let output = prop::sample::subsequence(
        vec![
            linux::OPOST,
            linux::OLCUC,
            linux::ONLCR,
            linux::OCRNL,
            linux::ONOCR,
            linux::ONLRET,
            linux::XTABS,
        ],
        0..=7,
    );
    let local = prop::sample::subsequence(
        vec![
            linux::ISIG,
            linux::ICANON,
            linux::ECHO,
            linux::ECHOE,
            linux::ECHOK,
            linux::ECHONL,
            linux::NOFLSH,
            linux::ECHOCTL,
            linux::ECHOPRT,
            linux::ECHOKE,
            linux::IEXTEN,
        ],
        0..=11,
    );
    let sum = |bits: Vec<u32>| bits.into_iter().fold(0, |all, bit| all | bit);
    let odd = prop::option::weighted(0.3, (0..SPECIAL.len(), any::<u8>()));
    (input, output, local, 0..4u8, odd).prop_map(move |(input, output, local, kind, odd)| {
        let mut termios = Termios::DEFAULT;
        match kind {
            0 => {}
            1 => termios.local = LocalModes::from_bits_retain(sum(local)) | LocalModes::ICANON,
            _ => {
                termios.input = InputModes::from_bits_retain(sum(input));
                termios.output = OutputModes::from_bits_retain(sum(output));
                termios.local = LocalModes::from_bits_retain(sum(local));
            }
        }
        termios.characters[Character::EndOfLine as usize] = b'.';
        termios.characters[Character::EndOfLine2 as usize] = b'/';
        if let Some((which, value)) = odd {
            termios.characters[SPECIAL[which].0 as usize] = value;
        }
        termios
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => prop::collection::vec(key(), 1..40).prop_map(Step::Type),
        2 => prop::collection::vec(key(), 1..40).prop_map(Step::Print),
        1 => settings().prop_map(Step::Set),
    ];
    (settings(), prop::collection::vec(step, 1..12)).prop_map(|(first, mut rest)| {
        rest.insert(0, Step::Set(first));
        rest
    })
}

/// The bytes that a program reads: pieces where lines matter, a stream of bytes where they don't.
fn comparable(pieces: Vec<Vec<u8>>, as_lines: bool) -> Vec<Vec<u8>> {
    if as_lines { pieces } else { vec![pieces.concat()] }
}

/// Restarts output by switching flow control off and on again. Done after each step, because how much of the echo
/// before a stop character has got out by then is up to Linux's worker.
fn release(host: &Host, model: &mut LineDiscipline, line: &mut Line) {
    let termios = *model.termios();
    for termios in [Termios { input: termios.input - InputModes::IXON, ..termios }, termios] {
        model.set_termios(termios, line);
        host.set(&termios);
    }
}

fn compare(steps: &[Step], read_size: usize) -> Result<(), TestCaseError> {
    let host = Host::open();
    let mut model = LineDiscipline::try_new().unwrap();
    let mut line = Line::default();
    let mut host_line = Vec::new();
    // How much pending output a signal character throws away depends on how far Linux's worker has come.
    let mut output_is_exact = true;
    for step in steps {
        match step {
            Step::Type(bytes) => {
                let received = model.receive(bytes, &mut line);
                prop_assert_eq!(received.consumed, bytes.len());
                prop_assert_eq!(rustix::io::write(&host.line, bytes).unwrap(), bytes.len());
                output_is_exact &= !received.flushed;
                let as_lines = model.reads_lines();
                let host_read = comparable(Host::drain(&host.program, read_size), as_lines);
                let model_read = comparable(drain_model(&mut model, read_size), as_lines);
                if received.flushed {
                    // The reader may have been faster than the worker that threw away what was before.
                    let end = host_read.concat();
                    prop_assert!(end.ends_with(&model_read.concat()), "{:?} {:?}", host_read, model_read);
                } else {
                    prop_assert_eq!(model_read, host_read);
                }
            }
            Step::Print(bytes) => {
                prop_assert_eq!(model.write(bytes, &mut line), bytes.len());
                prop_assert_eq!(rustix::io::write(&host.program, bytes).unwrap(), bytes.len());
            }
            Step::Set(termios) => {
                model.set_termios(*termios, &mut line);
                host.set(termios);
                let as_lines = model.reads_lines();
                let expected = comparable(Host::drain(&host.program, read_size), as_lines);
                prop_assert_eq!(comparable(drain_model(&mut model, read_size), as_lines), expected);
            }
        }
        if model.is_stopped() {
            release(&host, &mut model, &mut line);
        }
        host_line.extend(Host::drain(&host.line, 4096).concat());
    }
    if output_is_exact {
        prop_assert_eq!(line.0.escape_ascii().to_string(), host_line.escape_ascii().to_string());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_linux(steps in steps(), read_size in prop_oneof![Just(4096usize), 1..20usize]) {
        compare(&steps, read_size)?;
    }
}

#[test]
fn the_longest_line_is_linux_s() {
    for length in [4094, 4095, 4096, 5000] {
        let mut keys = vec![b'x'; length];
        keys.extend_from_slice(b"yz\x7f\n");
        let silent = Termios { local: LocalModes::ICANON, ..Termios::DEFAULT };
        compare(&[Step::Set(silent), Step::Type(keys)], 8192).unwrap();
    }
}
