//! membarrier.

#![allow(unsafe_code)] // The C library has no wrapper for the call.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    membarrier_registers_first
    membarrier_replaces_the_other_sides_fence
}

const GLOBAL: i32 = 1;
const GLOBAL_EXPEDITED: i32 = 2;
const REGISTER_GLOBAL: i32 = 4;
const PRIVATE: i32 = 8;
const REGISTER_PRIVATE: i32 = 16;
const CORE: i32 = 32;
const REGISTER_CORE: i32 = 64;

fn membarrier(command: i32, flags: u32) -> Result<i64, Errno> {
    // SAFETY: the call takes numbers.
    Errno::result(unsafe { libc::syscall(libc::SYS_membarrier, command, flags, 0) })
}

fn membarrier_registers_first() -> Outcome {
    let all = i64::from(
        GLOBAL | GLOBAL_EXPEDITED | REGISTER_GLOBAL | PRIVATE | REGISTER_PRIVATE | CORE | REGISTER_CORE,
    );
    expect_eq!(membarrier(0, 0).or_fail()? & all, all);
    expect_eq!(membarrier(0, 1), Err(Errno::EINVAL));
    expect_eq!(membarrier(1 << 20, 0), Err(Errno::EINVAL));
    expect_eq!(membarrier(3, 0), Err(Errno::EINVAL));
    for (command, registration) in [(PRIVATE, REGISTER_PRIVATE), (CORE, REGISTER_CORE)] {
        expect_eq!(membarrier(command, 0), Err(Errno::EPERM));
        expect_eq!(membarrier(registration, 0), Ok(0));
        expect_eq!(membarrier(command, 0), Ok(0));
        expect_eq!(membarrier(command, 9), Err(Errno::EINVAL));
    }
    for command in [GLOBAL, GLOBAL_EXPEDITED, REGISTER_GLOBAL, GLOBAL_EXPEDITED] {
        expect_eq!(membarrier(command, 0), Ok(0));
    }
    // A copy of the program has registered as well.
    let ended = in_child(|| i32::from(membarrier(PRIVATE, 0) != Ok(0)))?;
    expect!(matches!(ended, nix::sys::wait::WaitStatus::Exited(_, 0)));
    Ok(())
}

/// Two sides each announce themselves and look for the other. One does so without a fence; the barrier that the other
/// asks for must do for both.
fn membarrier_replaces_the_other_sides_fence() -> Outcome {
    const ROUNDS: u32 = 300;
    expect_eq!(membarrier(REGISTER_PRIVATE, 0), Ok(0));
    let [fast, slow, seen_by_fast, turn] = [const { AtomicU32::new(0) }; 4];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                let now = turn.load(Ordering::Acquire);
                if now == round {
                    std::thread::yield_now();
                    continue;
                }
                round = now;
                fast.store(round, Ordering::Relaxed);
                compiler_fence(Ordering::SeqCst);
                seen_by_fast.store(slow.load(Ordering::Relaxed) << 16 | round, Ordering::Release);
            }
        });
        let outcome = (1..=ROUNDS).try_for_each(|round| {
            turn.store(round, Ordering::Release);
            slow.store(round, Ordering::Relaxed);
            expect_eq!(membarrier(PRIVATE, 0), Ok(0));
            let saw_fast = fast.load(Ordering::Relaxed) == round;
            let fast_saw = loop {
                let seen = seen_by_fast.load(Ordering::Acquire);
                if seen & 0xffff == round {
                    break seen >> 16 == round;
                }
                std::thread::yield_now();
            };
            expect!(saw_fast || fast_saw);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        outcome
    })
}
