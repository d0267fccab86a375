//! `heddle-range-lock` beside its competitors: each written from its paper, all under the same correctness tests
//! (`tests/correct.rs`) and the same workloads.

pub mod counters;
pub mod engine;
pub mod host;
pub mod lines;
pub mod memory;
pub mod plan;
pub mod plot;
pub mod random;
pub mod report;
pub mod side;
pub mod sides;
pub mod store;
pub mod workload;
