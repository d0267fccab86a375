//! How far a run has come and how long it will take.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

/// A step of a run that takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The step's name, for the user.
    pub label: String,
    /// Steps of one kind take about as long as each other.
    pub kind: String,
}

impl Step {
    /// A step of a kind that is known by its label.
    #[must_use]
    pub fn new(label: impl Into<String>) -> Self {
        let label = label.into();
        Self { kind: label.clone(), label }
    }
}

/// The estimate of the time that steps take.
struct Estimate {
    steps: Vec<Step>,
    /// Of `steps`, how many are over.
    done: usize,
    /// When the step that runs began, and which part of it is over.
    current: Option<(Instant, f64)>,
    durations: HashMap<String, Duration>,
}

impl Estimate {
    /// The time left, once anything is known. A kind that was never seen is taken to be like the mean of the others.
    fn left(&self, now: Instant) -> Option<Duration> {
        let mut durations = self.durations.clone();
        let elapsed = self.current.map_or(Duration::ZERO, |(begin, _)| now.saturating_duration_since(begin));
        let part = self.current.map_or(0.0, |(_, part)| part);
        let kind = &self.steps.get(self.done)?.kind;
        if part > 0.0 {
            durations.entry(kind.clone()).or_insert(elapsed.div_f64(part));
        }
        let count = u32::try_from(durations.len()).ok().filter(|count| *count > 0)?;
        let mean = durations.values().sum::<Duration>() / count;
        let of = |step: &Step| durations.get(&step.kind).copied().unwrap_or(mean);
        let rest: Duration = self.steps[self.done + 1..].iter().map(of).sum();
        Some(rest + of(&self.steps[self.done]).saturating_sub(elapsed))
    }
}

/// A line at the end of the terminal; a line for each step where standard error is no terminal.
pub struct Progress {
    bar: ProgressBar,
    estimate: Arc<Mutex<Estimate>>,
}

impl Progress {
    /// Progress through these steps, in this order.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn new(steps: Vec<Step>) -> Result<Self> {
        let bar = ProgressBar::new(steps.len() as u64);
        let estimate =
            Arc::new(Mutex::new(Estimate { steps, done: 0, current: None, durations: HashMap::new() }));
        let shared = estimate.clone();
        let left = move |_: &ProgressState, text: &mut dyn Write| {
            let left = lock(&shared).left(Instant::now());
            let _ = text.write_str(&in_words(left));
        };
        let template = "{bar:30} {pos}/{len} {elapsed} gone, {left}: {msg}";
        bar.set_style(ProgressStyle::with_template(template)?.with_key("left", left));
        bar.enable_steady_tick(Duration::from_secs(1));
        Ok(Self { bar, estimate })
    }

    /// The next step begins.
    pub fn begin(&self) {
        let mut estimate = lock(&self.estimate);
        let left = in_words(estimate.left(Instant::now()));
        estimate.current = Some((Instant::now(), 0.0));
        let (done, count) = (estimate.done, estimate.steps.len());
        let label = estimate.steps.get(done).map_or_else(String::new, |step| step.label.clone());
        drop(estimate);
        if !std::io::stderr().is_terminal() {
            crate::say!("{}/{count} {label} ({left})", done + 1);
        }
        self.bar.set_message(label);
    }

    /// So much of the step is over, of 1.
    pub fn part(&self, part: f64) {
        if let Some((_, old)) = &mut lock(&self.estimate).current {
            *old = part;
        }
    }

    /// The step is over.
    pub fn end(&self) {
        let mut estimate = lock(&self.estimate);
        if let Some((begin, _)) = estimate.current.take() {
            let kind = estimate.steps.get(estimate.done).map_or_else(String::new, |step| step.kind.clone());
            estimate.durations.insert(kind, begin.elapsed());
        }
        estimate.done += 1;
        drop(estimate);
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn lock(estimate: &Mutex<Estimate>) -> MutexGuard<'_, Estimate> {
    estimate.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_words(left: Option<Duration>) -> String {
    match left.map(|left| left.as_secs()) {
        None => "time left not known yet".to_owned(),
        Some(seconds @ 0..120) => format!("about {seconds} s left"),
        Some(seconds) => format!("about {} min left", seconds.div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_were_seen_are_expected_to_take_as_long_again() {
        let begin = Instant::now();
        let mut estimate = Estimate {
            steps: ["slow", "fast", "slow", "unknown"].map(Step::new).to_vec(),
            done: 0,
            current: Some((begin, 0.0)),
            durations: HashMap::new(),
        };
        assert_eq!(estimate.left(begin), None);
        estimate.current = Some((begin, 0.25));
        // One quarter in 10 s: 30 s for the rest, and 40 s for each of the others.
        assert_eq!(estimate.left(begin + Duration::from_secs(10)), Some(Duration::from_secs(150)));
        estimate.durations.insert("slow".to_owned(), Duration::from_secs(40));
        estimate.done = 1;
        estimate.durations.insert("fast".to_owned(), Duration::from_secs(10));
        estimate.done = 2;
        estimate.current = Some((begin, 0.0));
        assert_eq!(estimate.left(begin), Some(Duration::from_secs(40 + 25)));
    }
}
