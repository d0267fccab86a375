//! The papers' experiments A and B with coroutines: what `ring` and `pipeline` run with `as=coroutine`. The same binary
//! on both kernels.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use heddle_rt::wait::WakerMap;
use heddle_rt::{Builder, JoinHandle, spawn, yield_now};

use crate::arguments::Arguments;

/// The executor that the arguments ask for: one thread, or `threads=N`.
pub fn executor(arguments: &Arguments) -> Result<Builder, String> {
    Ok(Builder::new().threads(arguments.number("threads", 1)? as usize))
}

struct Ring {
    word: AtomicU64,
    started: AtomicU64,
    woken: Option<WakerMap<u64>>,
}

impl Ring {
    async fn member(&self, number: u64) {
        self.started.fetch_add(1, Ordering::Release);
        match &self.woken {
            None => {
                while self.word.load(Ordering::Acquire) != number {
                    yield_now().await;
                }
            }
            Some(woken) => woken.wait(number).await,
        }
        self.word.store(number + 1, Ordering::Release);
        if let Some(woken) = &self.woken {
            woken.wake(number + 1);
        }
    }
}

async fn join<T>(handles: Vec<JoinHandle<T>>) -> Result<Vec<T>, String> {
    let mut outputs = Vec::with_capacity(handles.len());
    for handle in handles {
        outputs.push(handle.await.map_err(|error| error.to_string())?);
    }
    Ok(outputs)
}

/// A ring of coroutines, spawned in the order of `numbers`; nanoseconds from setting the word until all have added.
pub fn ring(arguments: &Arguments, numbers: Vec<u64>, by_key: bool) -> Result<u128, String> {
    executor(arguments)?.run(async {
        let count = numbers.len() as u64;
        let woken = by_key.then(WakerMap::new);
        let ring = Arc::new(Ring { word: AtomicU64::new(0), started: AtomicU64::new(0), woken });
        let spawn_member = |number| {
            let ring = ring.clone();
            spawn(async move { ring.member(number).await })
        };
        let members: Vec<_> = numbers.into_iter().map(spawn_member).collect();
        while ring.started.load(Ordering::Acquire) < count {
            yield_now().await;
        }
        let begin = Instant::now();
        ring.word.store(1, Ordering::Release);
        if let Some(woken) = &ring.woken {
            woken.wake(1);
        }
        join(members).await?;
        Ok(begin.elapsed().as_nanos())
    })
}

async fn read_all(file: &OwnedFd, bytes: usize) -> Result<Vec<u8>, std::io::Error> {
    let (length, mut buffer) = heddle_rt::read(file, vec![0; bytes]).await;
    let mut length = length?;
    while length < bytes {
        let (more, rest) = heddle_rt::read(file, vec![0; bytes - length]).await;
        let more = more?;
        if more == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        buffer[length..length + more].copy_from_slice(&rest[..more]);
        length += more;
    }
    Ok(buffer)
}

async fn write_all(file: &OwnedFd, mut buffer: Vec<u8>) -> Result<(), std::io::Error> {
    loop {
        let (length, rest) = heddle_rt::write(file, buffer).await;
        let length = length?;
        if length == rest.len() {
            return Ok(());
        }
        buffer = rest[length..].to_vec();
    }
}

/// A chain of `count` coroutines over pipes; nanoseconds from the first write until the last byte has arrived and all
/// have ended.
pub fn pipeline(arguments: &Arguments, count: u64, bytes: usize) -> Result<u128, String> {
    executor(arguments)?.run(async {
        let pipe = || nix::unistd::pipe().map_err(|error| format!("pipe: {error}"));
        let (mut input, first) = pipe()?;
        let mut steps = Vec::new();
        for _ in 0..count {
            let (reader, to) = pipe()?;
            let from = std::mem::replace(&mut input, reader);
            steps.push(spawn(async move {
                let buffer = read_all(&from, bytes).await?;
                write_all(&to, buffer).await
            }));
        }
        let data = vec![7; bytes];
        let begin = Instant::now();
        let text = |error: std::io::Error| error.to_string();
        write_all(&first, data.clone()).await.map_err(text)?;
        drop(first);
        let result = read_all(&input, bytes).await.map_err(text)?;
        for step in join(steps).await? {
            step.map_err(text)?;
        }
        let elapsed = begin.elapsed().as_nanos();
        if result != data {
            return Err("the bytes that arrived are not those that were sent".to_owned());
        }
        Ok(elapsed)
    })
}
