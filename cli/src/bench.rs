//! `heddle bench`: every claim beside Linux or a rival, all sides in one run on the same machine.

/// An experiment that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// Its name on the command line and the name of its folder of results.
    pub name: &'static str,
    /// What it measures, in a line.
    pub summary: &'static str,
}

/// All experiments.
pub const EXPERIMENTS: [Experiment; 8] = [
    Experiment {
        name: "boot",
        summary: "from command to exit of `true`, guest time to main, memory floor, sizes",
    },
    Experiment {
        name: "syscalls",
        summary: "system calls, pairs of threads and processes, making and ending them",
    },
    Experiment { name: "yield", summary: "paper 5: two processes that yield to each other" },
    Experiment { name: "ring", summary: "papers 1 and 2, A: N threads that take turns" },
    Experiment { name: "pipeline", summary: "papers 1 and 2, B: N threads joined by pipes" },
    Experiment { name: "memory", summary: "mapping, touching and unmapping disjoint memory on 1 to 4 CPUs" },
    Experiment { name: "executors", summary: "heddle-coroutine beside other executors, on this host" },
    Experiment { name: "ranges", summary: "heddle-range-lock beside other range locks, on this host" },
];
