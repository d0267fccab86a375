//! Machines that run at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::Result;

/// How many, as most machines have one processor and hosts that test have two.
const AT_ONCE: usize = 2;

/// Does `work` for all items, a few at a time, in their order; `finish` gets each result with the number of its item as
/// it comes.
///
/// # Errors
/// The first of `finish`, after which no other item is begun.
pub fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
    mut finish: impl FnMut(usize, R) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    // Nobody waits for more after an error.
                    if sender.send((index, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let results = results;
        results.iter().try_for_each(|(index, result)| finish(index, result))
    })
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn all_items_are_done_unless_one_fails() {
        let items: Vec<usize> = (0..20).collect();
        let mut done = Vec::new();
        let all = side_by_side(
            &items,
            |item| item * 2,
            |index, result| {
                done.push((index, result));
                Ok(())
            },
        );
        done.sort_unstable();
        assert!(all.is_ok() && done == items.iter().map(|item| (*item, item * 2)).collect::<Vec<_>>());
        let mut finished = 0;
        let failed = side_by_side(
            &items,
            |item| *item,
            |_, _| {
                finished += 1;
                if finished == 3 { bail!("the third") } else { Ok(()) }
            },
        );
        assert!(failed.is_err() && finished == 3);
    }
}
