//! Every family of calls while memory is short all the time, from several processes: a program may be refused, or be
//! killed; the machine goes on, and gets everything back.
//!
//! One process takes all memory that there is and asks to be killed first, so that the others meet each shortage in the
//! middle of their calls. `steps` is the number of seconds.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::arguments::Plan;
use crate::random::Random;
use crate::{hostile, inject};

const PAGE_BYTES: usize = 4096;
/// The one that takes all memory asks for so much at a time.
const PIECE_BYTES: usize = 256 << 10;
/// A worker that a call left waiting is ended after this long.
const WORKER_SECONDS: u32 = 10;
/// Pressure before memory is weighed.
const WARM_UP: Duration = Duration::from_secs(5);
/// A killed process that has not ended by then never will.
const DEATH: Duration = Duration::from_secs(60);
const ADJUSTMENT: &str = "/proc/self/oom_score_adj";

/// Puts the machine under pressure, and compares its memory before and after.
pub fn run(plan: &Plan) -> Result<(), String> {
    fs::write(ADJUSTMENT, "-1000").map_err(|error| format!("{ADJUSTMENT}: {error}"))?;
    // Objects that the machine makes once and keeps are made first: tables that grow to what is in use at a time (of
    // processes, spaces, waiters, locks), and the nodes of the files of the root image that the programs use.
    squeeze(plan, WARM_UP)?;
    hostile::weigh(|| squeeze(plan, Duration::from_secs(plan.steps)))
}

/// A process that this one keeps running until the time is over.
struct Kept {
    body: fn(Random),
    pid: Option<Pid>,
    ends: u64,
}

impl Kept {
    /// Starts it again if it has ended. Without memory for it, the next look does.
    fn look(&mut self, seed: &mut Random) -> Result<(), String> {
        if let Some(pid) = self.pid {
            match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return Ok(()),
                Ok(_) => self.ends += 1,
                Err(error) => return Err(format!("waiting for {pid}: {error}")),
            }
        }
        let random = Random::new(seed.next(), 0);
        // SAFETY: this process has one thread.
        self.pid = match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                (self.body)(random);
                // SAFETY: `_exit` has no preconditions.
                unsafe { libc::_exit(0) }
            }
            Ok(ForkResult::Parent { child }) => Some(child),
            Err(_) => None,
        };
        Ok(())
    }

    fn end(&self) -> Result<(), String> {
        let Some(pid) = self.pid else { return Ok(()) };
        let _ = kill(pid, Signal::SIGKILL);
        let start = Instant::now();
        while start.elapsed() < DEATH {
            if !matches!(waitpid(pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        Err(format!("it lives on after SIGKILL: {status}"))
    }
}

fn squeeze(plan: &Plan, time: Duration) -> Result<(), String> {
    let mut seed = Random::new(plan.seed, 0);
    let glutton = Kept { body: take_all, pid: None, ends: 0 };
    let worker = |_| Kept { body: work, pid: None, ends: 0 };
    let mut kept: Vec<Kept> = std::iter::once(glutton).chain((0..plan.processes).map(worker)).collect();
    let end = Instant::now() + time;
    let mut result = Ok(());
    while result.is_ok() && Instant::now() < end {
        result = kept.iter_mut().try_for_each(|kept| kept.look(&mut seed));
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = kept.iter().try_for_each(Kept::end);
    println!("{} gluttons, {} workers", kept[0].ends, kept[1..].iter().map(|kept| kept.ends).sum::<u64>());
    inject::clean_up();
    result.and(ended)
}

/// Takes all memory, again and again; when there is none, it is killed or waits.
fn take_all(_: Random) {
    let _ = fs::write(ADJUSTMENT, "1000");
    loop {
        let mut piece = Vec::<u8>::new();
        if piece.try_reserve_exact(PIECE_BYTES).is_err() {
            return;
        }
        piece.resize(PIECE_BYTES, 0);
        for byte in piece.iter_mut().step_by(PAGE_BYTES) {
            *byte = 1;
        }
        std::mem::forget(piece);
    }
}

/// One call of each kind.
fn work(mut random: Random) {
    let _ = fs::write(ADJUSTMENT, "0");
    // SAFETY: a session of its own keeps signals to a group from others; the alarm ends a worker that waits.
    unsafe {
        libc::setsid();
        libc::alarm(WORKER_SECONDS);
    }
    inject::run_each(random.next() as usize);
}
