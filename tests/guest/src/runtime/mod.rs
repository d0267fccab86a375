//! heddle-rt: coroutines and asynchronous calls of an ordinary program, the same on both kernels.

mod foreign;
mod fork;
mod net;
mod order;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_rt::wait::WakerMap;
use heddle_rt::{Builder, SpawnBuilder, spawn, try_spawn, yield_now};
use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

pub use foreign::TESTS as FOREIGN_TESTS;
pub use fork::TESTS as FORK_TESTS;
pub use net::TESTS as NET_TESTS;
pub use order::TESTS as ORDER_TESTS;

crate::tests! {
    a_hundred_thousand_coroutines
    thousands_of_calls_wait
    hand_over_between_executor_threads
    calls_are_dropped_at_any_moment
    urgent_coroutines_go_first
    processes_are_started_and_waited_for
    a_program_ends_with_calls_under_way
}

fn a_hundred_thousand_coroutines() -> Outcome {
    const COUNT: usize = 100_000;
    Builder::new().threads(2).run(async {
        let gate = Arc::new(WakerMap::new());
        let done = Arc::new(AtomicUsize::new(0));
        for number in 0..COUNT {
            let (gate, done) = (gate.clone(), done.clone());
            let waiting = async move {
                gate.wait(number).await;
                done.fetch_add(1, Ordering::Relaxed);
            };
            try_spawn(SpawnBuilder::new(), waiting).or_fail()?.detach();
        }
        yield_now().await;
        expect_eq!(done.load(Ordering::Relaxed), 0);
        (0..COUNT).for_each(|number| gate.wake(number));
        while done.load(Ordering::Relaxed) < COUNT {
            heddle_rt::nanosleep(Duration::from_millis(1).into()).await.or_fail()?;
        }
        Ok(())
    })
}

fn thousands_of_calls_wait() -> Outcome {
    const COUNT: usize = 5000;
    Builder::new().threads(2).run(async {
        let (one, other) = UnixStream::pair().or_fail()?;
        let one = Arc::new(one);
        let mut readers = Vec::new();
        for _ in 0..COUNT {
            let one = one.clone();
            readers.push(spawn(async move { heddle_rt::recv(&*one, vec![0; 1], 0).await.0 }));
        }
        heddle_rt::nanosleep(Duration::from_millis(5).into()).await.or_fail()?;
        for _ in 0..COUNT / 50 {
            expect_eq!(heddle_rt::send(&other, vec![1; 50], 0).await.0.or_fail()?, 50);
        }
        for reader in readers {
            expect_eq!(reader.await.or_fail()?.or_fail()?, 1);
        }
        Ok(())
    })
}

/// A wake that is lost hangs, one that doubles breaks the count.
fn hand_over_between_executor_threads() -> Outcome {
    const ROUNDS: u32 = 1500;
    Builder::new().threads(3).run(async {
        let mut players = Vec::new();
        for player in 0..4_u32 {
            let (one, other) = UnixStream::pair().or_fail()?;
            players.push(spawn(async move {
                for round in 0..ROUNDS {
                    heddle_rt::send(&one, round.to_ne_bytes().to_vec(), 0).await.0?;
                    if (round + player) % 3 == 0 {
                        yield_now().await;
                    }
                    let (length, bytes) = heddle_rt::recv(&one, vec![0; 8], 0).await;
                    if length? != 4 || bytes[..4] != (round + 1).to_ne_bytes() {
                        return Err(std::io::ErrorKind::InvalidData.into());
                    }
                }
                Ok(())
            }));
            players.push(spawn(async move {
                for _ in 0..ROUNDS {
                    let (length, bytes) = heddle_rt::recv(&other, vec![0; 8], 0).await;
                    let number = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    if length? != 4 {
                        return Err(std::io::ErrorKind::InvalidData.into());
                    }
                    heddle_rt::send(&other, (number + 1).to_ne_bytes().to_vec(), 0).await.0?;
                }
                std::io::Result::Ok(())
            }));
        }
        for player in players {
            player.await.or_fail()?.or_fail()?;
        }
        Ok(())
    })
}

fn calls_are_dropped_at_any_moment() -> Outcome {
    Builder::new().threads(2).run(async {
        for round in 0..300_u32 {
            let (one, other) = UnixStream::pair().or_fail()?;
            let reading = spawn(async move { heddle_rt::recv(&one, vec![0; 16], 0).await.0 });
            for _ in 0..round % 4 {
                yield_now().await;
            }
            if round % 2 == 0 {
                heddle_rt::send(&other, "some", 0).await.0.or_fail()?;
            }
            reading.abort();
            match reading.await {
                Ok(result) => expect_eq!(result.or_fail()?, 4),
                Err(error) => expect!(error.is_cancelled()),
            }
        }
        Ok(())
    })
}

fn urgent_coroutines_go_first() -> Outcome {
    // Whom this one awaits would run at its level.
    Builder::new().threads(1).priority(63).run(async {
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut all = Vec::new();
        for level in [60, 20, 40, 5, 50] {
            let order = order.clone();
            let step = async move {
                heddle_rt::nanosleep(Duration::from_millis(30).into()).await.expect("sleep");
                order.lock().expect("lock").push(level);
            };
            all.push(try_spawn(SpawnBuilder::new().priority(level), step).or_fail()?);
        }
        // All become ready while this one keeps the thread.
        yield_now().await;
        heddle_rt::nanosleep(Duration::from_millis(5).into()).await.or_fail()?;
        std::thread::sleep(Duration::from_millis(60));
        for each in all {
            each.await.or_fail()?;
        }
        expect_eq!(*order.lock().or_fail()?, [5, 20, 40, 50, 60]);
        Ok(())
    })
}

fn processes_are_started_and_waited_for() -> Outcome {
    Builder::new().threads(2).run(async {
        let (one, _other) = UnixStream::pair().or_fail()?;
        let waiting = spawn(async move { heddle_rt::recv(&one, vec![0; 1], 0).await.0 });
        yield_now().await;
        for status in [0, 9] {
            let mut command = std::process::Command::new(crate::harness::own_path());
            #[allow(clippy::zombie_processes, reason = "waited for by number")]
            let child = command.args(["--as=exit", &status.to_string()]).spawn().or_fail()?;
            let info = Box::new(heddle_rt::ChildInfo::default());
            let (result, info) = heddle_rt::waitid(libc::P_PID, child.id(), info, libc::WEXITED).await;
            result.or_fail()?;
            expect_eq!((info.pid as u32, info.status), (child.id(), status));
        }
        expect!(!waiting.is_finished());
        Ok(())
    })
}

fn a_program_ends_with_calls_under_way() -> Outcome {
    let ended = in_child(|| {
        Builder::new().threads(2).run(async {
            let pairs: Vec<_> = (0..50).filter_map(|_| UnixStream::pair().ok()).collect();
            for (one, _) in &pairs {
                let Ok(one) = one.try_clone() else { return 1 };
                spawn(async move { heddle_rt::recv(&one, vec![0; 1], 0).await.0 }).detach();
            }
            yield_now().await;
            std::process::exit(31)
        })
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 31)));
    Ok(())
}
