//! The size of a run.

/// How much to do, and from which seed.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Names the run.
    pub seed: u64,
    /// Processes at once.
    pub processes: u64,
    /// Threads in each process.
    pub threads: u64,
    /// Operations of each thread.
    pub steps: u64,
}

impl Plan {
    /// Reads `NAME=NUMBER` words.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut plan = Self { seed: 1, processes: 2, threads: 2, steps: 500 };
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is not NAME=NUMBER"))?;
            let value = value.parse().map_err(|_| format!("'{value}' is not a number"))?;
            match name {
                "seed" => plan.seed = value,
                "processes" => plan.processes = value,
                "threads" => plan.threads = value,
                "steps" => plan.steps = value,
                _ => return Err(format!("unknown setting '{name}'")),
            }
        }
        Ok(plan)
    }
}
