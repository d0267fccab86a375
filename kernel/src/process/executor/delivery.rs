//! User interrupts: how an executor thread gets into its handler.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use heddle_abi::protocol::record;
use heddle_abi::user_sched::calls::{InterruptFrame, RED_ZONE_BYTES};

use crate::arch::UserContext;
use crate::memory::values as user;
use crate::process::Thread;
use crate::signal::PendingWork;
use crate::wait::node::WaitKind;

/// Flags that a handler starts without: trap and direction.
const FLAGS_CLEARED: usize = 0x500;

/// How an executor thread that is in its program is brought to its handler. Where a processor has interrupts between
/// programs (UINTR), it does both by itself.
pub(super) trait Delivery {
    /// Sends word to the thread, whose record is pending and was not masked.
    fn interrupt(&self, thread: &Thread);

    /// On the thread's way to its program: makes the handler the next thing to run, if it should be.
    async fn enter(&self, thread: &Arc<Thread>, context: &mut UserContext);
}

/// By the way out of the kernel, on which the CPU is brought by an interprocessor interrupt.
pub(super) struct BySoftware;

impl Delivery for BySoftware {
    fn interrupt(&self, thread: &Thread) {
        thread.add_work(PendingWork::INTERRUPT);
        thread.interrupt();
    }

    async fn enter(&self, thread: &Arc<Thread>, context: &mut UserContext) {
        let Some(executor) = thread.executor().get() else { return };
        let Some(record) = executor.record().filter(|_| executor.handler != 0) else { return };
        let address = context.sp().wrapping_sub(RED_ZONE_BYTES + size_of::<InterruptFrame>());
        let space = thread.space();
        // Brings the stack in first: from the look at the record on nothing waits.
        let is_dying = || thread.is_interrupted(WaitKind::Killable);
        let ready = user::resolve_attempt(&space, is_dying, |space| {
            space.probe_write(address, size_of::<InterruptFrame>())?;
            crate::process::rseq::attempt(thread, space, context)
        });
        if ready.await.is_err() {
            return;
        }
        let frame = InterruptFrame {
            argument: executor.argument as u64,
            flags: context.flags() as u64,
            ip: context.ip() as u64,
        };
        let words = [frame.argument, frame.flags, frame.ip];
        if !record::enter_handler(record) {
            return;
        }
        if user::write_words(&space, address, &words).is_err() {
            // The program has taken its stack away meanwhile. The word stays pending, so nothing is lost.
            record.mask.store(0, Ordering::SeqCst);
            return;
        }
        record.interrupts.fetch_add(1, Ordering::Relaxed);
        context.set_sp(address);
        context.set_ip(executor.handler);
        context.set_flags(context.flags() & !FLAGS_CLEARED);
    }
}

/// On the thread's way to its program, when there is word for it.
pub async fn enter_handler(thread: &Arc<Thread>, context: &mut UserContext) {
    BySoftware.enter(thread, context).await;
}

/// Whether the thread may be interrupted, before a signal's handler is entered: what its frame keeps.
pub fn is_unmasked(thread: &Thread) -> bool {
    let executor = thread.executor().get();
    executor
        .as_ref()
        .and_then(|executor| executor.record())
        .is_some_and(|record| record.mask.load(Ordering::SeqCst) == 0)
}

/// A signal's handler is entered: it is not interrupted.
pub fn mask(thread: &Thread) {
    if let Some(record) = thread.executor().get().as_ref().and_then(|executor| executor.record()) {
        record::mask(record);
    }
}

/// A signal's handler returns to where interrupts were allowed.
pub fn unmask(thread: &Thread) {
    if let Some(record) = thread.executor().get().as_ref().and_then(|executor| executor.record())
        && record::unmask(record)
    {
        thread.add_work(PendingWork::INTERRUPT);
    }
}
