//! The part of a session that is about shared folders.

use anyhow::{Context, Result};
use heddle_abi::boot::SHARES_MAX;
use heddle_abi::control::{SpecialFile, kind, put_word};

use super::Session;

impl Session<'_> {
    /// Tells the guest what has changed in shared folders: whole messages, since others may come between them.
    pub(super) fn pass_changes_on(&mut self) {
        let Some(changes) = &self.ports.changes else { return };
        let is_open = self.changes.fill(changes).unwrap_or(false);
        while let Ok(Some(message)) = self.changes.take() {
            let _ = message.put(&mut self.outbox);
        }
        if !is_open {
            // Nobody watches any more.
            self.ports.changes = None;
            for folder in 0..SHARES_MAX {
                let _ = put_word(&mut self.outbox, kind::SHARE_UNWATCHED, folder as u32);
            }
        }
        let _ = self.outbox.drain(&self.ports.control);
    }

    /// Makes a FIFO or a socket for the guest.
    pub(super) fn make_special_file(&mut self, payload: &[u8]) -> Result<()> {
        let asked = SpecialFile::parse(payload).context("malformed message")?;
        let error = self.machine.make_special_file(&asked);
        SpecialFile::put_done(&mut self.outbox, asked.number, error).ok().context("an answer")?;
        let _ = self.outbox.drain(&self.ports.control);
        Ok(())
    }
}
