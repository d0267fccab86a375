//! Channels of std::sync::mpsc.

use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::agree;
use crate::text::{self, Counts, PAGES};

const WORKERS: usize = 6;

/// Workers take pages from one channel and send what they counted into another.
pub fn workers() -> Result<String, String> {
    let (jobs, queue) = mpsc::channel::<u64>();
    let queue = Arc::new(Mutex::new(queue));
    let (results, collected) = mpsc::channel::<(u64, Counts)>();
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (queue, results) = (queue.clone(), results.clone());
            thread::spawn(move || {
                loop {
                    let job = queue.lock().unwrap().recv();
                    let Ok(number) = job else { break };
                    results.send((number, text::count(&text::page(number)))).unwrap();
                }
            })
        })
        .collect();
    drop(results);
    for number in 0..PAGES {
        jobs.send(number).map_err(|error| error.to_string())?;
    }
    drop(jobs);
    let mut all = Counts::new();
    let mut pages: Vec<u64> = Vec::new();
    for (number, counts) in collected {
        pages.push(number);
        text::merge(&mut all, counts);
    }
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")?;
    }
    pages.sort_unstable();
    agree(pages, (0..PAGES).collect())?;
    agree(&all, text::expected())?;
    Ok(text::describe(&all))
}

/// A channel with room for four, and waiting that ends.
pub fn bounded() -> Result<String, String> {
    let (sender, receiver) = mpsc::sync_channel::<usize>(4);
    agree(receiver.try_recv(), Err(TryRecvError::Empty))?;
    agree(receiver.recv_timeout(Duration::from_millis(20)), Err(RecvTimeoutError::Timeout))?;
    for number in 0..4 {
        sender.try_send(number).map_err(|error| error.to_string())?;
    }
    agree(sender.try_send(4), Err(TrySendError::Full(4)))?;
    let producers: Vec<_> = (0..4)
        .map(|producer| {
            let sender = sender.clone();
            thread::spawn(move || (0..250).for_each(|number| sender.send(producer * 250 + number).unwrap()))
        })
        .collect();
    drop(sender);
    let sum: usize = receiver.iter().sum();
    for producer in producers {
        producer.join().map_err(|_| "a producer panicked")?;
    }
    agree(sum, (0..1000).sum::<usize>() + 6)?;
    // Nobody receives: the next who sends is told.
    let (sender, receiver) = mpsc::sync_channel::<usize>(0);
    let waiting = thread::spawn(move || sender.send(1).is_err());
    drop(receiver);
    agree(waiting.join().map_err(|_| "the sender panicked")?, true)?;
    Ok(format!("sum {sum}"))
}
