//! Many that watch one object: each is told of what happens there, and one of those that take.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::harness::{OrFail, Outcome};
use crate::{expect, expect_eq};

crate::tests! {
    hundreds_of_instances_are_told
    instances_that_watch_hundreds_are_told
    watches_come_and_go_among_hundreds
    one_of_hundreds_takes
    all_of_hundreds_are_told_of_a_hang_up
    hundreds_of_threads_wake
    wakes_beside_changes_are_not_lost
}

/// More than a wake tells in one go, and more than twice that.
const MANY: usize = 400;

/// Instances that watch a file, a number each.
pub fn instances(file: impl AsFd, count: usize, flags: EpollFlags) -> Result<Vec<Epoll>, String> {
    let watching = |number: usize| {
        let instance = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        instance.add(&file, EpollEvent::new(EpollFlags::EPOLLIN | flags, number as u64))?;
        Ok::<_, Errno>(instance)
    };
    (0..count).map(watching).collect::<Result<_, _>>().or_fail()
}

fn counter() -> Result<EventFd, String> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).or_fail()
}

/// How many events an instance reports without waiting.
fn reported(instance: &Epoll, events: &mut [EpollEvent]) -> Result<usize, String> {
    instance.wait(events, EpollTimeout::ZERO).or_fail()
}

/// How many instances report something without waiting.
fn told(instances: &[Epoll]) -> Result<usize, String> {
    let mut told = 0;
    for instance in instances {
        told += reported(instance, &mut [EpollEvent::empty()])?;
    }
    Ok(told)
}

fn hundreds_of_instances_are_told() -> Outcome {
    let event = counter()?;
    let level = instances(&event, MANY, EpollFlags::empty())?;
    let edge = instances(&event, MANY, EpollFlags::EPOLLET)?;
    for _ in 0..10 {
        expect_eq!(told(&level)?, 0);
        event.write(1).or_fail()?;
        // The last one first: it was told last, or before the others.
        expect_eq!(reported(&level[MANY - 1], &mut [EpollEvent::empty()])?, 1);
        expect_eq!(told(&level)?, MANY);
        expect_eq!(told(&edge)?, MANY);
        expect_eq!(told(&edge)?, 0);
        event.write(1).or_fail()?;
        expect_eq!(told(&edge)?, MANY);
        event.read().or_fail()?;
    }
    Ok(())
}

fn instances_that_watch_hundreds_are_told() -> Outcome {
    let event = counter()?;
    let inner = instances(&event, MANY, EpollFlags::empty())?;
    let outer = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).or_fail()?;
    for (number, instance) in inner.iter().enumerate() {
        outer.add(&instance.0, EpollEvent::new(EpollFlags::EPOLLIN, number as u64)).or_fail()?;
    }
    let mut events = vec![EpollEvent::empty(); MANY];
    for _ in 0..3 {
        expect_eq!(reported(&outer, &mut events)?, 0);
        event.write(1).or_fail()?;
        let mut seen = vec![false; MANY];
        while seen.contains(&false) {
            let count = outer.wait(&mut events, EpollTimeout::NONE).or_fail()?;
            events[..count].iter().for_each(|event| seen[event.data() as usize] = true);
        }
        event.read().or_fail()?;
    }
    Ok(())
}

fn watches_come_and_go_among_hundreds() -> Outcome {
    let event = counter()?;
    let mut all = instances(&event, MANY, EpollFlags::EPOLLET)?;
    // Every third ends, every other stops to watch and starts again.
    let mut number = 0;
    all.retain(|_| {
        number += 1;
        number % 3 != 0
    });
    for instance in all.iter().step_by(2) {
        instance.delete(&event).or_fail()?;
    }
    event.write(1).or_fail()?;
    expect_eq!(told(&all)?, all.len() / 2);
    for instance in all.iter().step_by(2) {
        instance.add(&event, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0)).or_fail()?;
    }
    expect_eq!(told(&all)?, all.len().div_ceil(2));
    // Watches that last for one call leave no trace.
    for _ in 0..2000 {
        let mut one = [PollFd::new(event.as_fd(), PollFlags::POLLPRI)];
        expect_eq!(poll(&mut one, PollTimeout::ZERO).or_fail()?, 0);
    }
    for _ in 0..20 {
        all.extend(instances(&event, 40, EpollFlags::EPOLLET)?);
        let kept = all.split_off(40);
        all = kept;
        told(&all)?;
        event.write(1).or_fail()?;
        expect_eq!(told(&all)?, all.len());
    }
    Ok(())
}

fn one_of_hundreds_takes() -> Outcome {
    let event = counter()?;
    let all = instances(&event, MANY, EpollFlags::EPOLLEXCLUSIVE)?;
    // Whichever it is in which a thread waits is told, and it is if all the others have been told before.
    for place in [0, 1, 63, 64, 65, 200, MANY - 1] {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut events = [EpollEvent::empty()];
                let count = all[place].wait(&mut events, EpollTimeout::NONE).or_fail()?;
                event.read().or_fail()?;
                Ok::<_, String>((count, events[0].data()))
            });
            std::thread::sleep(Duration::from_millis(5));
            event.write(1).or_fail()?;
            let (count, data) = waiter.join().map_err(|_| "the waiter failed")??;
            expect_eq!(count, 1);
            expect_eq!(data, place as u64);
            Ok(())
        })?;
    }
    // Somebody else takes what is left.
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (taken, all) = (&taken, &all);
        let take = |place: usize| {
            let mut events = [EpollEvent::empty()];
            all[place].wait(&mut events, EpollTimeout::NONE).or_fail()?;
            taken.fetch_add(1, Ordering::Relaxed);
            Ok::<_, String>(())
        };
        let waiters = [3, 150, 390].map(|place| scope.spawn(move || take(place)));
        std::thread::sleep(Duration::from_millis(5));
        for _ in 0..50 {
            event.write(1).or_fail()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        for waiter in waiters {
            waiter.join().map_err(|_| "a waiter failed")??;
        }
        expect_eq!(taken.load(Ordering::Relaxed), 3);
        Ok(())
    })
}

fn all_of_hundreds_are_told_of_a_hang_up() -> Outcome {
    for flags in [EpollFlags::empty(), EpollFlags::EPOLLEXCLUSIVE] {
        let (reader, writer) = nix::unistd::pipe().or_fail()?;
        let all = instances(&reader, MANY, flags)?;
        expect_eq!(told(&all)?, 0);
        drop(writer);
        expect_eq!(told(&all)?, MANY);
    }
    Ok(())
}

fn hundreds_of_threads_wake() -> Outcome {
    const THREADS: usize = 150;
    let event = Arc::new(counter()?);
    let begun = Arc::new(AtomicUsize::new(0));
    for round in 0..2 {
        begun.store(0, Ordering::Relaxed);
        let wait = |_| {
            let (event, begun) = (event.clone(), begun.clone());
            let wait = move || {
                let mut one = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
                begun.fetch_add(1, Ordering::Relaxed);
                poll(&mut one, PollTimeout::NONE)
            };
            std::thread::Builder::new().stack_size(32 << 10).spawn(wait)
        };
        let threads: Vec<_> = (0..THREADS).map(wait).collect::<Result<_, _>>().or_fail()?;
        while begun.load(Ordering::Relaxed) < THREADS {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(5 * round));
        event.write(1).or_fail()?;
        for thread in threads {
            expect_eq!(thread.join().map_err(|_| "a thread failed")?, Ok(1));
        }
        event.read().or_fail()?;
    }
    Ok(())
}

fn wakes_beside_changes_are_not_lost() -> Outcome {
    let event = counter()?;
    let all = instances(&event, MANY, EpollFlags::EPOLLET)?;
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for _ in 0..3 {
                    drop(instances(&event, 100, EpollFlags::empty())?);
                }
                Ok::<_, String>(())
            });
            let waiters: Vec<_> = [5, 133, 266, MANY - 1]
                .into_iter()
                .map(|place| {
                    let instance = &all[place];
                    scope.spawn(move || instance.wait(&mut [EpollEvent::empty()], EpollTimeout::NONE))
                })
                .collect();
            event.write(1).or_fail()?;
            for waiter in waiters {
                expect_eq!(waiter.join().map_err(|_| "a waiter failed")?, Ok(1));
            }
            changes.join().map_err(|_| "the changes failed")??;
            Ok::<_, String>(())
        })?;
        expect!(told(&all)? >= MANY - 4);
        expect_eq!(told(&all)?, 0);
    }
    Ok(())
}
