//! `/proc/PID/heddle`: what it shows of coroutines and calls. On Linux, which has no such file, the tests are skipped.
#![allow(unsafe_code, reason = "garbage is written where no safe form would")]

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use heddle_rt::wait::WakerMap;
use heddle_rt::{Builder, SpawnBuilder, try_spawn, yield_now};

use crate::harness::{OrFail, Outcome, in_child, is_heddle, skip};
use crate::{expect, expect_eq};

crate::tests! {
    coroutines_with_their_states
    turns_that_block
    calls_under_way
    delays_are_added_up
    a_hundred_thousand
    a_table_of_garbage
}

/// The listing of a process, 0 for the caller.
pub fn listing(pid: u32) -> String {
    let who = if pid == 0 { "self".into() } else { pid.to_string() };
    std::fs::read_to_string(format!("/proc/{who}/heddle")).unwrap_or_default()
}

/// A line about a coroutine.
pub struct Listed<'a> {
    owner: &'a str,
    level: u32,
    state: &'a str,
    polls: u64,
    pub since_ns: u64,
    delayed_ns: u64,
}

impl<'a> Listed<'a> {
    /// The first of this kind of the program's.
    pub fn find(text: &'a str, kind: u32) -> Result<Self, String> {
        let wanted = format!(" program kind {kind} ");
        let line = text.lines().find(|line| line.contains(&wanted));
        let line = line.ok_or_else(|| format!("no kind {kind} in {text}"))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [
            "coroutine",
            _,
            owner,
            "kind",
            _,
            "level",
            level,
            state,
            "polls",
            polls,
            "since",
            since,
            "delayed",
            delayed,
        ] = words[..]
        else {
            return Err(format!("not a line of this format: {line}"));
        };
        Ok(Self {
            owner,
            level: level.parse().or_fail()?,
            state,
            polls: polls.parse().or_fail()?,
            since_ns: since.parse().or_fail()?,
            delayed_ns: delayed.parse().or_fail()?,
        })
    }

    /// Whose it is, its level, its state and its turns.
    pub fn main(&self) -> (&'a str, u32, &'a str, u64) {
        (self.owner, self.level, self.state, self.polls)
    }
}

fn is_there() -> bool {
    if !is_heddle() {
        skip("only Heddle lists coroutines");
    }
    is_heddle()
}

fn spawn(
    kind: u32,
    level: u8,
    future: impl Future<Output = ()> + Send + 'static,
) -> Result<heddle_rt::Id, String> {
    let handle = try_spawn(SpawnBuilder::new().kind(kind).priority(level), future).or_fail()?;
    let id = handle.id();
    handle.detach();
    Ok(id)
}

fn coroutines_with_their_states() -> Outcome {
    if !is_there() {
        return Ok(());
    }
    Builder::new().threads(1).priority(30).run(async {
        let gate = Arc::new(WakerMap::new());
        let waiting = gate.clone();
        spawn(101, 20, async move {
            yield_now().await;
            waiting.wait(1).await;
        })?;
        let woken = gate.clone();
        spawn(102, 21, async move { woken.wait(2).await })?;
        let renamed = spawn(103, 22, async move {})?;
        yield_now().await;
        spawn(104, 50, async move {})?;
        let moved = spawn(105, 51, async move {})?;
        heddle_rt::set_priority(moved, 55);
        gate.wake(2);
        let text = listing(0);
        expect_eq!(Listed::find(&text, 101)?.main(), ("program", 20, "waiting", 2));
        expect_eq!(Listed::find(&text, 102)?.main(), ("program", 21, "ready", 1));
        expect!(Listed::find(&text, 103).is_err());
        expect!(heddle_rt::priority(renamed).is_none());
        expect_eq!(Listed::find(&text, 104)?.main(), ("program", 50, "ready", 0));
        expect_eq!(Listed::find(&text, 105)?.main(), ("program", 55, "ready", 0));
        expect_eq!(Listed::find(&text, 0)?.main(), ("program", 30, "running", 2));
        gate.wake(1);
        Ok(())
    })
}

fn turns_that_block() -> Outcome {
    if !is_there() {
        return Ok(());
    }
    Builder::new().threads(2).run(async {
        let (mut reader, writer) = UnixStream::pair().or_fail()?;
        // Whichever thread the one blocks, the other runs on another.
        let watcher = heddle_rt::spawn(async move {
            let mut seen = Ok(String::new());
            for _ in 0..500 {
                seen = Listed::find(&listing(0), 7).map(|listed| format!("{:?}", listed.main()));
                if seen.as_ref().is_ok_and(|seen| seen.contains("blocked")) {
                    break;
                }
                heddle_rt::nanosleep(Duration::from_millis(2).into()).await.or_fail()?;
            }
            drop(writer);
            seen
        });
        spawn(7, 32, async move { drop(std::io::Read::read(&mut reader, &mut [0])) })?;
        let seen = watcher.await.or_fail()??;
        expect_eq!(seen, format!("{:?}", ("program", 32, "blocked", 1)));
        Ok(())
    })
}

fn calls_under_way() -> Outcome {
    if !is_there() {
        return Ok(());
    }
    Builder::new().threads(1).run(async {
        let (reader, writer) = UnixStream::pair().or_fail()?;
        spawn(5, 32, async move { drop(heddle_rt::read(&reader, vec![0; 1]).await) })?;
        yield_now().await;
        heddle_rt::nanosleep(Duration::from_millis(2).into()).await.or_fail()?;
        let text = listing(0);
        expect_eq!(Listed::find(&text, 5)?.main(), ("program", 32, "waiting", 1));
        let call = format!(" kernel call {} ", libc::SYS_read);
        let line = text.lines().find(|line| line.contains(&call)).ok_or_else(|| text.clone())?;
        expect!(line.contains(" waiting polls 1 "));
        heddle_rt::write(&writer, "x").await.0.or_fail()?;
        // Another processor may still be at the end of the call.
        for _ in 0..500 {
            if !listing(0).contains(" kernel call ") {
                return Ok(());
            }
            heddle_rt::nanosleep(Duration::from_millis(2).into()).await.or_fail()?;
        }
        Err(listing(0))
    })
}

fn delays_are_added_up() -> Outcome {
    if !is_there() {
        return Ok(());
    }
    const STEP: Duration = Duration::from_millis(15);
    Builder::new().threads(1).run(async {
        let gate = Arc::new(WakerMap::new());
        let waiting = gate.clone();
        spawn(6, 32, async move {
            waiting.wait(1).await;
            waiting.wait(2).await;
        })?;
        std::thread::sleep(STEP);
        yield_now().await;
        // Its own wait is no delay.
        std::thread::sleep(STEP);
        gate.wake(1);
        std::thread::sleep(STEP);
        yield_now().await;
        let text = listing(0);
        let listed = Listed::find(&text, 6)?;
        expect_eq!(listed.main(), ("program", 32, "waiting", 2));
        expect!(listed.delayed_ns >= 2 * STEP.as_nanos() as u64);
        gate.wake(2);
        Ok(())
    })
}

fn a_hundred_thousand() -> Outcome {
    if !is_there() {
        return Ok(());
    }
    const COUNT: usize = 100_000;
    Builder::new().threads(2).run(async {
        let gate = Arc::new(WakerMap::new());
        for number in 0..COUNT {
            let gate = gate.clone();
            spawn(9, 40, async move { gate.wait(number).await })?;
        }
        let text = listing(0);
        expect_eq!(text.matches(" program kind 9 level 40 ").count(), COUNT);
        Ok(())
    })
}

/// The kernel reads what the program tells it, whatever that is.
fn a_table_of_garbage() -> Outcome {
    if !is_there() {
        return Ok(());
    }
    let ended = in_child(|| {
        Builder::new().threads(1).run(async {
            for _ in 0..300 {
                let _ = spawn(9, 40, std::future::pending());
            }
            // SAFETY: no preconditions; the header of the process's pages, where the place of the table is.
            let header = unsafe { libc::getauxval(0x4865_6401) } as usize;
            // SAFETY: the header is mapped and writable.
            let table = unsafe { *((header + 128) as *const u64) };
            let mut word = 0x9e37_79b9_7f4a_7c15_u64;
            for _ in 0..50 {
                for index in 0..1500 {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // SAFETY: the runtime's table has room for more entries than that, and trusts none.
                    unsafe { (table as *mut u64).add(index).write_volatile(word) };
                }
                drop(listing(0));
            }
            for (address, count, stride) in [
                (table, u32::MAX, 40),
                (table + 1, 1000, 41),
                (table, 1000, u32::MAX),
                (u64::MAX - 100, u32::MAX, 40),
                (0xffff_8000_0000_0000, 1000, 40),
                (0, 1000, 4096),
                (table, 1000, 0),
            ] {
                // SAFETY: as above; the words of the header that say where the table is.
                unsafe {
                    ((header + 128) as *mut u64).write_volatile(address);
                    ((header + 136) as *mut u32).write_volatile(count);
                    ((header + 140) as *mut u32).write_volatile(stride);
                }
                if !listing(0).contains("policy ") {
                    std::process::exit(1);
                }
            }
            // SAFETY: nothing of the runtime is used any more.
            unsafe {
                ((header + 128) as *mut u64).write_volatile(table);
                ((header + 136) as *mut u32).write_volatile(1000);
                ((header + 140) as *mut u32).write_volatile(40);
                libc::munmap(table as *mut libc::c_void, 1 << 20);
                libc::_exit(if listing(0).contains("unreadable from 0 of 1000") { 0 } else { 2 });
            }
        })
    })?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}
