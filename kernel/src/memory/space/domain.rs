//! Whose program runs in a space, and the isolation that it has chosen.

use core::sync::atomic::Ordering;

use crate::arch::mitigations;
use crate::memory::isolation;
use crate::memory::isolation::{CredentialSet, IsolationPolicy};
use crate::memory::space::Space;

impl Space {
    /// The space's isolation domain.
    #[inline]
    pub(super) fn domain(&self) -> usize {
        if !isolation::is_in_use() {
            return isolation::EVERYTHING;
        }
        isolation::domain(self.isolation(), self.credentials(), self.identity(), self.group_key())
    }

    /// The isolation that its program has chosen.
    #[must_use]
    pub fn isolation(&self) -> IsolationPolicy {
        self.isolation.get()
    }

    /// The credentials of its program.
    #[must_use]
    pub fn credentials(&self) -> CredentialSet {
        CredentialSet(self.credentials.load(Ordering::Relaxed))
    }

    /// Says whose program it is, and how that is isolated. Holds when a CPU looks at the space next: at once in a new
    /// space, after [`Self::renew`] in another.
    pub fn set_isolation(&self, credentials: CredentialSet, policy: IsolationPolicy) {
        if policy != IsolationPolicy::Default {
            isolation::note_choice();
        }
        self.credentials.store(credentials.0, Ordering::Relaxed);
        self.isolation.set(policy);
        // A space with a root of its own goes on without another look at it.
        if mitigations::has_barrier() {
            mitigations::forget_domains();
        }
    }

    /// Makes all CPUs look anew at who may reach the space.
    pub async fn renew(&self) {
        if let Some(entry) = self.entry() {
            self.withdraw(entry).await;
        }
    }
}
