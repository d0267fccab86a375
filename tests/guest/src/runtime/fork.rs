//! heddle-rt in programs that fork, exec and get signals while coroutines wait.
#![allow(unsafe_code, reason = "fork has no safe form")]

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use heddle_rt::wait::WakerMap;
use heddle_rt::{Builder, SpawnBuilder, spawn, try_spawn, yield_now};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::wait::WaitStatus;
use nix::unistd::{ForkResult, Pid};

use crate::harness::{OrFail, Outcome, in_child, is_heddle};
use crate::{expect, expect_eq};

crate::tests! {
    a_child_goes_on_with_its_coroutines
    calls_under_way_stay_with_the_parent
    a_child_of_several_threads_goes_on_with_one
    a_child_starts_an_executor_of_its_own
    children_of_children
    a_child_runs_another_program
    forks_amid_calls_of_other_threads
    signals_while_coroutines_wait
}

/// Forks within a coroutine, and waits for the child in the parent. `child`'s result is the child's status.
async fn fork_and_wait(child: impl AsyncFnOnce() -> i32) -> Result<i32, String> {
    // SAFETY: the child goes on with what heddle-rt says that it may.
    match unsafe { nix::unistd::fork() }.or_fail()? {
        ForkResult::Child => {
            let status = child().await;
            // SAFETY: no preconditions.
            unsafe { libc::_exit(status) }
        }
        ForkResult::Parent { child } => wait(child).await,
    }
}

async fn wait(child: Pid) -> Result<i32, String> {
    let info = Box::new(heddle_rt::ChildInfo::default());
    let (result, info) = heddle_rt::waitid(libc::P_PID, child.as_raw() as u32, info, libc::WEXITED).await;
    result.or_fail()?;
    expect_eq!(info.pid, child.as_raw());
    Ok(info.status)
}

/// Uses that work in every process: calls that are done at once and calls that wait, timers, new coroutines, and
/// threads or kernel coroutines behind them.
async fn everything_works() -> Result<(), String> {
    let (one, other) = UnixStream::pair().or_fail()?;
    let reader = spawn(async move { heddle_rt::recv(&one, vec![0; 8], 0).await });
    heddle_rt::nanosleep(Duration::from_millis(2).into()).await.or_fail()?;
    expect_eq!(heddle_rt::send(&other, "abc", 0).await.0.or_fail()?, 3);
    let (length, bytes) = reader.await.or_fail()?;
    expect_eq!(&bytes[..length.or_fail()?], b"abc");
    let timer = try_spawn(SpawnBuilder::new().priority(10), async {
        heddle_rt::time::sleep(Duration::from_millis(2)).await;
    });
    timer.or_fail()?.await.or_fail()?;
    let file = heddle_rt::open(c"/proc/self/status".into(), libc::O_RDONLY, 0).await.or_fail()?;
    expect!(heddle_rt::read(&file, vec![0; 64]).await.0.or_fail()? > 0);
    let (_one, other) = UnixStream::pair().or_fail()?;
    let calls = (0..40).map(|_| heddle_rt::write(&other, "x"));
    expect!(heddle_rt::batch(calls).await.iter().all(|(result, _)| matches!(result, Ok(1))));
    Ok(())
}

fn status(result: Result<(), String>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("in the child: {reason}");
            1
        }
    }
}

fn a_child_goes_on_with_its_coroutines() -> Outcome {
    Builder::new().threads(1).run(async {
        let gate = Arc::new(WakerMap::new());
        let count = Arc::new(AtomicU32::new(0));
        for number in 0..200_u32 {
            let (gate, count) = (gate.clone(), count.clone());
            let waiting = async move {
                gate.wait(number).await;
                count.fetch_add(1, Ordering::Relaxed);
            };
            try_spawn(SpawnBuilder::new().kind(3), waiting).or_fail()?.detach();
        }
        let sleeper = spawn(heddle_rt::time::sleep(Duration::from_millis(30)));
        yield_now().await;
        let go_on = async |gate: &WakerMap<u32>, count: &AtomicU32| {
            (0..200).for_each(|number| gate.wake(number));
            while count.load(Ordering::Relaxed) < 200 {
                yield_now().await;
            }
            everything_works().await
        };
        let in_child = async || {
            if is_heddle() {
                let listed = std::fs::read_to_string("/proc/self/heddle").unwrap_or_default();
                if listed.matches(" program kind 3 ").count() != 200 {
                    return 2;
                }
            }
            let result = go_on(&gate, &count).await;
            // A timer that was set before.
            sleeper.await.map_or(3, |()| status(result))
        };
        // The handle stays usable in the parent, whose memory is its own.
        expect_eq!(fork_and_wait(in_child).await?, 0);
        go_on(&gate, &count).await
    })
}

fn calls_under_way_stay_with_the_parent() -> Outcome {
    Builder::new().threads(1).run(async {
        let mut readers = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..40 {
            let (one, other) = UnixStream::pair().or_fail()?;
            readers.push(spawn(async move { heddle_rt::recv(&one, vec![7; 4], 0).await }));
            ends.push(other);
        }
        let mut borrowed = [0; 4];
        let (one, _other) = UnixStream::pair().or_fail()?;
        let lost = spawn(async move {
            // SAFETY: the future is awaited or dropped where it is.
            let result =
                unsafe { heddle_rt::recv_borrowed(std::os::fd::AsFd::as_fd(&one), &mut borrowed, 0) }.await;
            result.map_err(|error| error.raw_os_error())
        });
        heddle_rt::nanosleep(Duration::from_millis(5).into()).await.or_fail()?;
        // SAFETY: as in `fork_and_wait`.
        if let ForkResult::Parent { child } = unsafe { nix::unistd::fork() }.or_fail()? {
            expect_eq!(wait(child).await?, 0);
            for end in &ends {
                expect_eq!(heddle_rt::send(end, "ab", 0).await.0.or_fail()?, 2);
            }
            for reader in readers {
                expect_eq!(reader.await.or_fail()?.0.or_fail()?, 2);
            }
            lost.abort();
            expect!(lost.await.is_err());
            return Ok(());
        }
        let mut result = 0;
        for reader in readers {
            match reader.await {
                Ok((Err(error), buffer)) if error.raw_os_error() == Some(libc::ECANCELED) => {
                    result |= i32::from(buffer != [7; 4]) << 1;
                }
                _ => result |= 4,
            }
        }
        if !matches!(lost.await, Ok(Err(Some(libc::ECANCELED)))) {
            result |= 8;
        }
        let result = result | status(everything_works().await);
        // SAFETY: no preconditions.
        unsafe { libc::_exit(result) }
    })
}

fn a_child_of_several_threads_goes_on_with_one() -> Outcome {
    let ended = in_child(|| {
        // The first coroutine stays on the first thread.
        let result = Builder::new().threads(3).run(async {
            let busy: Vec<_> = (0..50)
                .map(|_| {
                    spawn(async {
                        loop {
                            yield_now().await
                        }
                    })
                })
                .collect();
            heddle_rt::nanosleep(Duration::from_millis(3).into()).await.or_fail()?;
            let status = fork_and_wait(async || status(everything_works().await)).await?;
            expect_eq!(status, 0);
            // The end of the executor, in a child.
            // SAFETY: as in `fork_and_wait`.
            let forked = unsafe { nix::unistd::fork() }.or_fail()?;
            if let ForkResult::Parent { child } = forked {
                expect_eq!(wait(child).await?, 0);
                busy.iter().for_each(heddle_rt::JoinHandle::abort);
            }
            everything_works().await
        });
        status(result)
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    Ok(())
}

fn a_child_starts_an_executor_of_its_own() -> Outcome {
    Builder::new().threads(2).run(everything_works())?;
    for threads in [1, 3] {
        let ended = in_child(|| status(Builder::new().threads(threads).run(everything_works())))?;
        expect!(matches!(ended, WaitStatus::Exited(_, 0)));
    }
    Builder::new().threads(2).run(everything_works())
}

fn children_of_children() -> Outcome {
    Builder::new().threads(1).run(async {
        let status = fork_and_wait(async || {
            let inner = fork_and_wait(async || status(everything_works().await)).await;
            inner.unwrap_or(9) | status(everything_works().await)
        });
        expect_eq!(status.await?, 0);
        everything_works().await
    })
}

fn a_child_runs_another_program() -> Outcome {
    Builder::new().threads(2).run(async {
        let (one, _other) = UnixStream::pair().or_fail()?;
        let waiting = spawn(async move { heddle_rt::recv(&one, vec![0; 1], 0).await.0 });
        yield_now().await;
        let path = std::ffi::CString::new(crate::harness::own_path().into_os_string().into_encoded_bytes())
            .or_fail()?;
        let arguments = [path.clone(), c"--as=exit".into(), c"5".into()];
        let status = fork_and_wait(async || {
            let _ = nix::unistd::execv(&path, &arguments);
            77
        });
        expect_eq!(status.await?, 5);
        expect!(!waiting.is_finished());
        Ok(())
    })
}

/// A fork finds the runtime whole, whatever other threads do in that moment. They use nothing that both processes would
/// have: a call that has not begun at the fork is made by both.
fn forks_amid_calls_of_other_threads() -> Outcome {
    Builder::new().threads(3).run(async {
        let is_over = Arc::new(AtomicU32::new(0));
        let mut busy = Vec::new();
        for _ in 0..6 {
            let is_over = is_over.clone();
            busy.push(spawn(async move {
                while is_over.load(Ordering::Relaxed) == 0 {
                    let sleeper =
                        spawn(async { heddle_rt::nanosleep(Duration::from_micros(20).into()).await });
                    yield_now().await;
                    sleeper.await.or_fail()?.or_fail()?;
                }
                Ok::<(), String>(())
            }));
        }
        for round in 0..30 {
            let status = fork_and_wait(async || {
                let slept = heddle_rt::nanosleep(Duration::from_millis(1).into()).await;
                i32::from(slept.is_err())
            });
            expect_eq!((round, status.await?), (round, 0));
        }
        is_over.store(1, Ordering::Relaxed);
        for each in busy {
            each.await.or_fail()??;
        }
        Ok(())
    })
}

/// A handler runs while coroutines wait and calls are under way, which neither notice.
fn signals_while_coroutines_wait() -> Outcome {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    extern "C" fn handler(_: libc::c_int) {
        SEEN.fetch_add(1, Ordering::Relaxed);
    }
    const ROUNDS: u32 = 200;
    let action = SigAction::new(SigHandler::Handler(handler), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only counts.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.or_fail()?;
    Builder::new().threads(2).run(async {
        let (one, other) = UnixStream::pair().or_fail()?;
        let echo = spawn(async move {
            for _ in 0..ROUNDS {
                let (length, bytes) = heddle_rt::recv(&one, vec![0; 4], 0).await;
                if length.or_fail()? != 4 {
                    return Err("a short message".to_string());
                }
                heddle_rt::send(&one, bytes, 0).await.0.or_fail()?;
            }
            Ok(())
        });
        for round in 0..ROUNDS {
            heddle_rt::send(&other, round.to_ne_bytes().to_vec(), 0).await.0.or_fail()?;
            nix::sys::signal::kill(Pid::this(), Signal::SIGUSR1).or_fail()?;
            let (length, bytes) = heddle_rt::recv(&other, vec![0; 4], 0).await;
            expect_eq!(length.or_fail()?, 4);
            expect_eq!(bytes, round.to_ne_bytes());
        }
        echo.await.or_fail()??;
        expect!(SEEN.load(Ordering::Relaxed) > 0);
        everything_works().await
    })
}
