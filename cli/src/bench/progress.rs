//! How far a run has come and how long it will take.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// A line at the end of the terminal; nothing where standard error is no terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// A line for so many steps.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn new(steps: usize) -> Result<Self> {
        let bar = ProgressBar::new(steps as u64);
        let template = "{bar:30} {pos}/{len} {elapsed} gone, {eta} left: {msg}";
        bar.set_style(ProgressStyle::with_template(template)?);
        bar.enable_steady_tick(Duration::from_secs(1));
        Ok(Self(bar))
    }

    /// Says what is being done.
    pub fn show(&self, what: String) {
        self.0.set_message(what);
    }

    /// One more step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
