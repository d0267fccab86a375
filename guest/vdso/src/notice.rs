//! A handler of user interrupts for programs that check for reasons themselves, such as those of heddle-rt: it only
//! tells them to. Such a program need not have a function of its own that gets by on the general registers.

use core::sync::atomic::Ordering;

use heddle_abi::user_sched::calls::Notice;

/// Says that there is something to look at. The thread stays masked, with the reasons in its record, until it looks, so
/// that it keeps the level that was lent to it, and is not interrupted again meanwhile.
///
/// # Safety
/// `notice` lives as long as the registration.
#[cfg_attr(heddle_vdso, unsafe(no_mangle))]
pub unsafe extern "C" fn __heddle_notice(notice: *const Notice) {
    // SAFETY: by contract.
    unsafe { &*notice }.noticed.store(1, Ordering::Relaxed);
}
