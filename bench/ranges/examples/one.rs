//! One row for one side, for a profiler: `one SIDE KIND THREADS MS [N]`; with 0 threads, MS is a number of operations
//! on one thread. `callgrind.sh` counts the instructions of one operation that way.
use heddle_range_lock_bench::plan::entrants;
use heddle_range_lock_bench::workload::Kind;
use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(0);
    let kind = match arguments[2].as_str() {
        "w1" => Kind::Fine { memset: false },
        "w2" => Kind::Batch { memset: false },
        "held" => Kind::Held(number(5)),
        "hot" => Kind::Hot,
        "zipf" => Kind::Zipf,
        "mix" => Kind::Mix(number(5)),
        other => panic!("{other}: not a workload"),
    };
    let side = entrants().into_iter().find(|side| side.name == arguments[1]).expect("a side");
    if number(3) == 0 {
        return (side.count)(kind, number(4));
    }
    let sample = (side.run)(kind, number(3) as usize, Duration::from_millis(number(4)), false);
    let clock_ns = 1e9 / sample.rate;
    println!(
        "{:<10}{kind:?} {}: {:.1} ns of processor, {clock_ns:.1} ns by the clock",
        side.name,
        number(3),
        sample.cpu_ns
    );
}
