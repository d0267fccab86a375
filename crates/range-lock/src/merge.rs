//! Making buckets one again, for requests that span them and for those that stay empty.
#![allow(unsafe_code)] // Fills chunks that are not published, and follows buckets under a pin.

use core::iter;

use crate::chunk::{ChunkRef, Tail};
use crate::epoch::{Header, OutOfMemory, Pin};
use crate::reshape::{exchange, fill, retire_left_out};
use crate::sync::{AtomicPtr, Ordering};
use crate::table::{Bucket, Table, chunk_of, is_dead, kill};

impl<T: Ord + Copy, P: Copy> Table<T, P> {
    /// Makes a bucket take in all those to its right that a request up to `end` reaches.
    pub(crate) fn absorb(
        &self,
        pin: &Pin,
        cell: &AtomicPtr<Header>,
        chunk: ChunkRef<'_, T, P>,
        end: Option<T>,
    ) -> Result<(), OutOfMemory> {
        let mut last = chunk;
        while !last.covers_up_to(end) {
            let Some(right) = self.kill_next(pin, last) else { break };
            last = right;
        }
        self.merge(pin, cell, chunk, chunk.next())
    }

    /// Kills the right neighbour; its final chunk.
    fn kill_next<'g>(&self, pin: &'g Pin, chunk: ChunkRef<'g, T, P>) -> Option<ChunkRef<'g, T, P>> {
        // SAFETY: the caller found that the chunk has an upper bound, so there is a next bucket; read under `pin`.
        let next = unsafe { Bucket::follow(chunk.next()) };
        kill(pin, next);
        // SAFETY: read under `pin`.
        unsafe { chunk_of(pin.read(&next.word)) }
    }

    /// Merges a dead bucket, and the dead ones behind it, into its left neighbour. Nothing happens if another came
    /// first.
    pub(crate) fn merge(
        &self,
        pin: &Pin,
        cell: &AtomicPtr<Header>,
        left: ChunkRef<'_, T, P>,
        dead: *mut Bucket<T, P>,
    ) -> Result<(), OutOfMemory> {
        let merged = self.unlink(pin, cell, left, dead)?;
        if merged > 0 {
            self.note_changes(pin, merged);
        }
        Ok(())
    }

    /// Moves the nodes of a dead bucket, and of the dead ones behind it, into its left neighbour and unlinks them; how
    /// many, none if another came first.
    #[inline(never)]
    pub(crate) fn unlink(
        &self,
        pin: &Pin,
        cell: &AtomicPtr<Header>,
        left: ChunkRef<'_, T, P>,
        dead: *mut Bucket<T, P>,
    ) -> Result<usize, OutOfMemory> {
        let context = pin.context();
        left.close();
        let (mut count, mut room, mut last) = (0, left.survivors(pin, true).count(), left);
        for (_, chunk) in run(pin, dead) {
            count += 1;
            room += chunk.survivors(pin, true).count();
            last = chunk;
        }
        debug_assert!(count > 0, "the bucket is dead");
        // More may have died behind them since.
        let merged = || run(pin, dead).take(count);
        let new = ChunkRef::create(&context, last.hi(), last.next(), room, Tail::Short)?;
        let all = iter::once(left).chain(merged().map(|(_, chunk)| chunk));
        // SAFETY: `new` is not published and has room for all, since survivors only become fewer.
        unsafe {
            new.remember(4, 0);
            fill(new, all.clone().flat_map(|chunk| chunk.survivors(pin, true)).take(room));
        }
        if !exchange(cell, left.header().as_ptr(), new.header().as_ptr()) {
            // SAFETY: never published.
            unsafe { context.free(new.header()) };
            return Ok(0);
        }
        retire_left_out(pin, all, &[new], &[]);
        merged().for_each(|(bucket, _)| self.bury(bucket));
        self.buckets.fetch_sub(count, Ordering::Relaxed);
        Ok(count)
    }

    /// Takes the right neighbour in if it is as empty; a failure leaves it for the next one.
    pub(crate) fn take_in_idle(&self, pin: &Pin, cell: &AtomicPtr<Header>, chunk: ChunkRef<'_, T, P>) {
        // SAFETY: checked by the caller, read under `pin`.
        let next = unsafe { Bucket::follow(chunk.next()) };
        // SAFETY: read under `pin`.
        let idle = unsafe { chunk_of::<T, P>(pin.read(&next.word)) }
            .is_some_and(|chunk| chunk.nodes(pin).filter(|node| node.is_live()).count() <= 2);
        if idle {
            self.kill_next(pin, chunk);
            let _ = self.merge(pin, cell, chunk, chunk.next());
        }
    }
}

/// The dead buckets in a row from `bucket` on, with their final chunks.
fn run<'g, T: Ord + Copy + 'g, P: Copy + 'g>(
    pin: &'g Pin,
    bucket: *mut Bucket<T, P>,
) -> impl Iterator<Item = (*mut Bucket<T, P>, ChunkRef<'g, T, P>)> + Clone {
    let mut at = bucket;
    iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: linked when it was read under `pin`.
        let word = pin.read(unsafe { &Bucket::follow(at).word });
        if !is_dead(word) {
            return None;
        }
        // SAFETY: read under `pin`; a dead bucket's word holds a chunk.
        let chunk = unsafe { chunk_of::<T, P>(word) }?;
        Some((core::mem::replace(&mut at, chunk.next()), chunk))
    })
}
