//! Threads, futexes, thread-local storage.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::time::Duration;

use nix::sys::wait::WaitStatus;

use crate::harness::{OrFail, Outcome, in_child};
use crate::{expect, expect_eq};

crate::tests! {
    threads_run_and_join
    thread_locals_are_separate
    mutex_excludes
    condition_variables
    barrier_meets
    channel_of_many
    park_and_unpark
    park_times_out
    float_state_is_per_thread
    exit_ends_all_threads
    threads_share_process_identity
    many_threads
    busy_threads_are_preempted
    fork_with_threads
    exec_ends_other_threads
}

fn threads_run_and_join() -> Outcome {
    let threads: Vec<_> = (0..16u64).map(|index| std::thread::spawn(move || index * index)).collect();
    for (index, thread) in threads.into_iter().enumerate() {
        expect_eq!(thread.join().map_err(|_| "panicked")?, (index * index) as u64);
    }
    Ok(())
}

fn thread_locals_are_separate() -> Outcome {
    thread_local!(static OWN: Cell<u32> = const { Cell::new(5) });
    OWN.set(6);
    let other = std::thread::spawn(|| {
        let first = OWN.get();
        OWN.set(7);
        (first, OWN.get())
    });
    expect_eq!(other.join().map_err(|_| "panicked")?, (5, 7));
    expect_eq!(OWN.get(), 6);
    Ok(())
}

fn mutex_excludes() -> Outcome {
    let counter = Mutex::new(0u64);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5000 {
                    let mut guard = counter.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    let seen = *guard;
                    if seen.is_multiple_of(500) {
                        std::thread::yield_now();
                    }
                    *guard = seen + 1;
                }
            });
        }
    });
    expect_eq!(counter.into_inner().or_fail()?, 20_000);
    Ok(())
}

fn condition_variables() -> Outcome {
    let turn = Mutex::new(0u32);
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        for own in 0..3 {
            let (turn, changed) = (&turn, &changed);
            scope.spawn(move || {
                for round in 0..100 {
                    let guard = turn.lock().unwrap();
                    let mut guard = changed.wait_while(guard, |turn| *turn != round * 3 + own).unwrap();
                    *guard += 1;
                    changed.notify_all();
                }
            });
        }
    });
    expect_eq!(turn.into_inner().or_fail()?, 300);
    Ok(())
}

fn barrier_meets() -> Outcome {
    let barrier = Barrier::new(8);
    let leaders = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    leaders.fetch_add(u64::from(barrier.wait().is_leader()), Ordering::SeqCst);
                }
            });
        }
    });
    expect_eq!(leaders.load(Ordering::SeqCst), 50);
    Ok(())
}

fn channel_of_many() -> Outcome {
    let (sender, receiver) = mpsc::sync_channel(4);
    let threads: Vec<_> = (0..8u64)
        .map(|index| {
            let sender = sender.clone();
            std::thread::spawn(move || (0..500).all(|value| sender.send(index * 500 + value).is_ok()))
        })
        .collect();
    drop(sender);
    expect_eq!(receiver.iter().sum::<u64>(), (0..4000).sum::<u64>());
    expect!(threads.into_iter().all(|thread| thread.join().is_ok_and(|sent| sent)));
    Ok(())
}

fn park_and_unpark() -> Outcome {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = flag.clone();
    let thread = std::thread::spawn(move || {
        while !seen.load(Ordering::SeqCst) {
            std::thread::park();
        }
    });
    std::thread::sleep(Duration::from_millis(20));
    flag.store(true, Ordering::SeqCst);
    thread.thread().unpark();
    thread.join().map_err(|_| "panicked".to_owned())
}

fn park_times_out() -> Outcome {
    let begin = std::time::Instant::now();
    let pair = (Mutex::new(()), Condvar::new());
    let guard = pair.0.lock().or_fail()?;
    let (_guard, result) = pair.1.wait_timeout(guard, Duration::from_millis(30)).or_fail()?;
    expect!(result.timed_out() && begin.elapsed() >= Duration::from_millis(30));
    Ok(())
}

fn float_state_is_per_thread() -> Outcome {
    let wrong = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for index in 0..6 {
            let wrong = &wrong;
            scope.spawn(move || {
                let start = f64::from(index) + 0.5;
                let mut values = [start; 8];
                for round in 0..20_000 {
                    values.iter_mut().for_each(|value| *value = std::hint::black_box(*value + 1.0));
                    if round % 1000 == 0 {
                        std::thread::yield_now();
                    }
                }
                let sum: f64 = values.iter().sum();
                wrong.fetch_add(u64::from(sum != 8.0 * (start + 20_000.0)), Ordering::SeqCst);
            });
        }
    });
    expect_eq!(wrong.load(Ordering::SeqCst), 0);
    Ok(())
}

fn exit_ends_all_threads() -> Outcome {
    let ended = in_child(|| {
        for index in 0..8 {
            std::thread::spawn(move || {
                loop {
                    if index % 2 == 0 { std::hint::spin_loop() } else { std::thread::park() }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        6
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 6)));
    Ok(())
}

fn threads_share_process_identity() -> Outcome {
    let own = (nix::unistd::getpid(), nix::unistd::getppid(), nix::unistd::gettid());
    let other = std::thread::spawn(|| (nix::unistd::getpid(), nix::unistd::getppid(), nix::unistd::gettid()));
    let other = other.join().map_err(|_| "panicked")?;
    expect_eq!((own.0, own.1), (other.0, other.1));
    expect!(own.2 != other.2 && own.0 == own.2);
    // A thread can be joined a moment before it has left the list.
    while std::fs::read_dir("/proc/self/task").or_fail()?.count() != 1 {
        std::thread::yield_now();
    }
    Ok(())
}

fn many_threads() -> Outcome {
    let barrier = Arc::new(Barrier::new(301));
    let threads: Vec<_> = (0..300)
        .map(|_| {
            let barrier = barrier.clone();
            std::thread::Builder::new().stack_size(64 << 10).spawn(move || barrier.wait().is_leader())
        })
        .collect::<Result<_, _>>()
        .or_fail()?;
    let own = u32::from(barrier.wait().is_leader());
    let mut leaders = own;
    for thread in threads {
        leaders += u32::from(thread.join().map_err(|_| "panicked")?);
    }
    expect_eq!(leaders, 1);
    Ok(())
}

fn busy_threads_are_preempted() -> Outcome {
    let stop = AtomicBool::new(false);
    let progress: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for counter in &progress {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while progress.iter().any(|counter| counter.load(Ordering::Relaxed) < 1000) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}

fn fork_with_threads() -> Outcome {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(vec![1u8; 10_000]);
                }
            });
        }
        let outcome = (0..20).try_for_each(|index| {
            let ended = in_child(move || index)?;
            expect!(matches!(ended, WaitStatus::Exited(_, status) if status == index));
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        outcome
    })
}

fn exec_ends_other_threads() -> Outcome {
    let ended = in_child(|| {
        for _ in 0..4 {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
        }
        let thread = std::thread::spawn(|| {
            let program = c"/bin/sh";
            let arguments = [c"sh", c"-c", c"exit 11"];
            let _ = nix::unistd::execv(program, &arguments);
        });
        let _ = thread.join();
        12
    })?;
    expect!(matches!(ended, WaitStatus::Exited(_, 11)));
    Ok(())
}
