//! The differential fuzzer: random sequences of calls of one family with edge arguments, the same for the same seed,
//! whose results two kernels must agree on.
//!
//! `heddle-guest-tests --differ FAMILY SEED COUNT` prints a line for each sequence: the calls with their arguments in
//! words, and the results. The host's side runs it on Heddle and on Linux and compares the lines. Each sequence runs
//! in a process of its own, in a folder of its own, with the same files open. Whatever differs from boot to boot
//! (numbers of processes, addresses, times) is printed as a word.

#![allow(unsafe_code)] // The calls are made by number, with arguments that the C library would not take.

mod calls;
mod place;

use std::fmt::Write as _;
use std::process::ExitCode;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

use calls::{Arg, Call, Returns};
use place::{FIRST_DESCRIPTOR, Place};

/// Descriptors that a sequence begins with, and some numbers that are none.
const DESCRIPTORS: i64 = 14;
/// A sequence that waits is ended after this long.
const LIMIT_SECONDS: u32 = 20;
/// The most calls in a sequence.
const LENGTH_MAX: u64 = 7;
/// An ordinary user, as whom some of the sequences run.
const USER: u32 = 1000;

/// A random number generator (xorshift) whose numbers depend on the seed alone.
pub struct Random(u64);

impl Random {
    fn new(seed: u64, index: u64) -> Self {
        let mut random = Self(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index + 1).wrapping_mul(0xd1b5_4a32_d192_ed03) | 1,
        );
        (0..8).for_each(|_| {
            random.next();
        });
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// Numbers at which something begins or ends.
const EDGES: &[i64] = &[
    0,
    0,
    1,
    2,
    3,
    7,
    8,
    16,
    100,
    255,
    4095,
    4096,
    4097,
    -1,
    i32::MAX as i64,
    i32::MIN as i64,
    i64::MAX,
    i64::MIN,
];
const SIZES: &[i64] = &[0, 1, 3, 4, 8, 16, 32, 64, 100, 128, 512, 4096, 4096, 100];
const OFFSETS: &[i64] = &[0, 0, 1, 10, 50, 99, 100, 101, 4096, 5000, -1, i64::MIN, 1 << 40];

/// Makes an argument; its text is what is printed.
fn argument(arg: &Arg, place: &mut Place, random: &mut Random) -> (u64, String) {
    let number = |value: i64| (value as u64, value.to_string());
    match arg {
        Arg::Fd => {
            let index = random.below(DESCRIPTORS as u64) as i64;
            let fd = if index == DESCRIPTORS - 1 { -1 } else { FIRST_DESCRIPTOR + index };
            (fd as u64, format!("fd{fd}"))
        }
        Arg::At => match random.below(4) {
            0 => argument(&Arg::Fd, place, random),
            1 => (place.directory() as u64, String::from("dirfd")),
            _ => (libc::AT_FDCWD as i64 as u64, String::from("CWD")),
        },
        Arg::Path => place.path(random),
        Arg::Out => place.out(random),
        Arg::Room => place.room(),
        Arg::In => place.input(random),
        Arg::Edge => number(random.pick(EDGES)),
        Arg::Size => number(random.pick(SIZES)),
        Arg::Offset => number(random.pick(OFFSETS)),
        Arg::One(list) => number(random.pick(list)),
        Arg::Flags(list) => {
            let count = random.below(3);
            number((0..count).fold(0, |flags, _| flags | random.pick(list)))
        }
        Arg::Words(fields) => place.words(fields, random),
        Arg::Address => place.address(random),
        Arg::Pid => match random.below(5) {
            0 => (std::process::id().into(), String::from("self")),
            1 => (0, String::from("0")),
            2 => ((-1_i64) as u64, String::from("-1")),
            // No process has this number.
            3 => (999_999, String::from("999999")),
            _ => (i64::from(i32::MIN) as u64, String::from("MIN")),
        },
        Arg::Id => (place.id() as u64, String::from("id")),
    }
}

/// Carries a call out and describes it.
fn step(call: &Call, place: &mut Place, random: &mut Random, text: &mut String) {
    place.begin();
    let mut words = [0; 6];
    let _ = write!(text, "{}(", call.name);
    for (index, arg) in call.arguments.iter().enumerate() {
        let (word, shown) = argument(arg, place, random);
        words[index] = word;
        let _ = write!(text, "{}{shown}", if index > 0 { "," } else { "" });
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: pointers lead to memory that the place owns or to none; the calls of the table change nothing else.
    let result = unsafe { libc::syscall(call.number, a, b, c, d, e, f) };
    // SAFETY: the C library's variable of this thread.
    let errno = if result < 0 { unsafe { *libc::__errno_location() } } else { 0 };
    let _ = write!(text, ")=");
    if result == -1 {
        let _ = write!(text, "{:?}", nix::errno::Errno::from_raw(errno));
    } else {
        match call.returns {
            Returns::Number | Returns::Data => {
                let _ = write!(text, "{result}");
            }
            Returns::Something => text.push_str("ok"),
            Returns::Address => text.push_str(&place.relative(result as usize)),
            Returns::Id => {
                place.set_id(result, call.number);
                text.push_str("id");
            }
        }
    }
    if call.returns == Returns::Data {
        let _ = write!(text, "/{:x}", place.sum());
    }
    text.push(' ');
}

/// One sequence, in the process that is made for it.
fn sequence(family: &[Call], seed: u64, index: u64) -> String {
    let mut random = Random::new(seed, index);
    let mut place = Place::new(&mut random);
    let mut text = String::new();
    if random.below(3) == 0 {
        text.push_str("user ");
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_setresuid, USER, USER, USER) };
    }
    for _ in 0..=random.below(LENGTH_MAX) {
        let call = &family[random.below(family.len() as u64) as usize];
        step(call, &mut place, &mut random, &mut text);
    }
    text.push_str(&place.state());
    place.clean();
    text
}

/// Runs the sequences `from` to `to` of a family.
fn run(name: &str, family: &[Call], seed: u64, count: u64) {
    let folder = place::make_folder();
    for index in 0..count {
        place::prepare(&folder);
        // SAFETY: this program has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                alarm::set(LIMIT_SECONDS);
                place::enter(&folder);
                let text = sequence(family, seed, index);
                println!("{name} {seed} {index}: {text}");
                // SAFETY: no pointers. Nothing of the parent's is to be done at the end.
                unsafe { libc::_exit(0) };
            }
            Ok(ForkResult::Parent { child }) => match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => {}
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    println!("{name} {seed} {index}: ended by {signal}")
                }
                status => println!("{name} {seed} {index}: {status:?}"),
            },
            Err(error) => println!("{name} {seed} {index}: fork: {error}"),
        }
    }
    place::remove(&folder);
}

/// `--differ [FAMILY|all] SEED COUNT`.
pub fn main(arguments: &[String]) -> ExitCode {
    let [family, seed, count] = arguments else {
        eprintln!("--differ FAMILY SEED COUNT");
        return ExitCode::FAILURE;
    };
    let (Ok(seed), Ok(count)) = (seed.parse(), count.parse()) else { return ExitCode::FAILURE };
    for (name, calls) in calls::FAMILIES {
        if family == "all" || family == name {
            run(name, calls, seed, count);
        }
    }
    ExitCode::SUCCESS
}
