//! heddle-rt: what becomes ready while every executor thread runs something less urgent goes first all the same. Linux
//! has nothing like it, and the tests are skipped there by passing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use heddle_rt::wait::WakerMap;
use heddle_rt::{Builder, JoinHandle, SpawnBuilder, preempted, should_yield, spawn, try_spawn};

use crate::harness::{OrFail, Outcome, is_heddle};
use crate::{expect, expect_eq};

crate::tests! {
    a_completion_goes_ahead_of_turns_that_do_not_end
    a_wake_goes_ahead_of_turns_that_do_not_end
    a_call_gives_way_to_what_is_urgent
    a_coroutine_that_computes_is_told
    blocked_threads_have_a_substitute
    reserves_come_and_go
}

const URGENT: u8 = 10;
const BACKGROUND: u8 = 50;

/// Messages between the sides of a test.
#[derive(Default)]
struct Signs {
    running: AtomicU32,
    is_done: AtomicBool,
}

impl Signs {
    fn wait_for_runners(&self, count: u32) {
        while self.running.load(Ordering::Acquire) < count {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(5));
    }

    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }
}

/// Coroutines, one for each executor thread, whose turns end when the urgent one has run.
fn keep_busy(threads: u32, signs: &Arc<Signs>) -> Result<Vec<JoinHandle<()>>, String> {
    let busy = |_| {
        let signs = signs.clone();
        let turn = async move {
            signs.running.fetch_add(1, Ordering::Release);
            while !signs.is_done() {
                std::hint::spin_loop();
            }
        };
        try_spawn(SpawnBuilder::new().priority(BACKGROUND), turn).or_fail()
    };
    (0..threads).map(busy).collect()
}

fn a_completion_goes_ahead_of_turns_that_do_not_end() -> Outcome {
    const THREADS: u32 = 2;
    if !is_heddle() {
        return Ok(());
    }
    Builder::new().threads(THREADS as usize).priority(60).run(async {
        let signs = Arc::new(Signs::default());
        let (reader, mut writer) = UnixStream::pair().or_fail()?;
        let urgent = {
            let signs = signs.clone();
            let waiting = async move {
                let read = heddle_rt::read(&reader, vec![0; 1]).await.0;
                signs.is_done.store(true, Ordering::Release);
                read
            };
            try_spawn(SpawnBuilder::new().priority(URGENT), waiting).or_fail()?
        };
        let busy = keep_busy(THREADS, &signs)?;
        let outside = std::thread::spawn(move || {
            signs.wait_for_runners(THREADS);
            writer.write_all(b"x")
        });
        for each in busy {
            each.await.or_fail()?;
        }
        expect_eq!(urgent.await.or_fail()?.or_fail()?, 1);
        outside.join().map_err(|_| "panicked")?.or_fail()
    })
}

fn a_wake_goes_ahead_of_turns_that_do_not_end() -> Outcome {
    const THREADS: u32 = 2;
    if !is_heddle() {
        return Ok(());
    }
    Builder::new().threads(THREADS as usize).priority(60).run(async {
        let signs = Arc::new(Signs::default());
        let gate = Arc::new(WakerMap::new());
        let urgent = {
            let (gate, signs) = (gate.clone(), signs.clone());
            let waiting = async move {
                gate.wait(0).await;
                signs.is_done.store(true, Ordering::Release);
            };
            try_spawn(SpawnBuilder::new().priority(URGENT), waiting).or_fail()?
        };
        let busy = keep_busy(THREADS, &signs)?;
        let outside = std::thread::spawn(move || {
            signs.wait_for_runners(THREADS);
            gate.wake(0);
        });
        for each in busy {
            each.await.or_fail()?;
        }
        urgent.await.or_fail()?;
        outside.join().map_err(|_| "panicked".to_string())
    })
}

/// On one thread: calls that are done at once end no turn, but they let what is urgent go first.
fn a_call_gives_way_to_what_is_urgent() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    interrupted_on_one_thread(|signs| async move {
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").or_fail()?;
        while !signs.is_done() {
            expect_eq!(heddle_rt::write(&null, "x").await.0.or_fail()?, 1);
        }
        Ok(())
    })
}

fn a_coroutine_that_computes_is_told() -> Outcome {
    if !is_heddle() {
        return Ok(());
    }
    interrupted_on_one_thread(|signs| async move {
        while !signs.is_done() {
            if should_yield() {
                preempted().await;
            }
        }
        Ok(())
    })
}

fn interrupted_on_one_thread<F: Future<Output = Outcome> + Send + 'static>(
    background: impl FnOnce(Arc<Signs>) -> F,
) -> Outcome {
    Builder::new().threads(1).priority(60).run(async {
        let signs = Arc::new(Signs::default());
        let (reader, mut writer) = UnixStream::pair().or_fail()?;
        let urgent = {
            let signs = signs.clone();
            let waiting = async move {
                let read = heddle_rt::read(&reader, vec![0; 1]).await.0;
                signs.is_done.store(true, Ordering::Release);
                read
            };
            try_spawn(SpawnBuilder::new().priority(URGENT), waiting).or_fail()?
        };
        let busy = background(signs.clone());
        let busy = {
            let signs = signs.clone();
            let turn = async move {
                signs.running.fetch_add(1, Ordering::Release);
                busy.await
            };
            try_spawn(SpawnBuilder::new().priority(BACKGROUND), turn).or_fail()?
        };
        let outside = std::thread::spawn(move || {
            signs.wait_for_runners(1);
            writer.write_all(b"x")
        });
        busy.await.or_fail()??;
        expect_eq!(urgent.await.or_fail()?.or_fail()?, 1);
        outside.join().map_err(|_| "panicked")?.or_fail()
    })
}

/// Every executor thread is blocked in a call that keeps it, and only a coroutine that is ready can end that.
fn blocked_threads_have_a_substitute() -> Outcome {
    const THREADS: usize = 2;
    if !is_heddle() {
        return Ok(());
    }
    Builder::new().threads(THREADS).priority(60).run(async {
        let signs = Arc::new(Signs::default());
        let (mut writers, mut blocked) = (Vec::new(), Vec::new());
        for _ in 0..THREADS {
            let (mut reader, writer) = UnixStream::pair().or_fail()?;
            writers.push(writer);
            let signs = signs.clone();
            blocked.push(spawn(async move {
                signs.running.fetch_add(1, Ordering::Release);
                reader.read_exact(&mut [0])
            }));
        }
        let release = async move {
            let all = signs.running.load(Ordering::Acquire);
            for writer in &mut writers {
                writer.write_all(b"x")?;
            }
            std::io::Result::Ok(all)
        };
        let release = try_spawn(SpawnBuilder::new().priority(BACKGROUND), release).or_fail()?;
        expect!(release.await.or_fail()?.or_fail()? > 0);
        for each in blocked {
            each.await.or_fail()?.or_fail()?;
        }
        Ok(())
    })
}

/// Executors end while their reserve sleeps, is being called, or has just begun.
fn reserves_come_and_go() -> Outcome {
    for round in 0..50_u32 {
        let sum = Builder::new().threads(2).run(async move {
            let mut sum = 0;
            for number in 0..round % 5 {
                let level = if number % 2 == 0 { URGENT } else { BACKGROUND };
                let part = async move { number };
                sum += try_spawn(SpawnBuilder::new().priority(level), part).or_fail()?.await.or_fail()?;
            }
            Ok::<_, String>(sum)
        })?;
        expect_eq!(sum, (0..round % 5).sum::<u32>());
    }
    Ok(())
}
