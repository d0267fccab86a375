//! One row for one side, for a profiler: `one SIDE KIND THREADS MS [N]`.
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
    let began = std::time::Instant::now();
    let before = cpu_ns();
    let sample = (side.run)(kind, number(3) as usize, Duration::from_millis(number(4)), false);
    let operations = sample.rate * began.elapsed().as_secs_f64();
    let cpu = (cpu_ns() - before) / operations;
    println!(
        "{:<10}{kind:?} {}: {cpu:.1} ns of processor, {:.1} ns by the clock",
        side.name,
        number(3),
        1e9 / sample.rate
    );
}

/// Processor time of the process: on a busy machine the only measure that holds still.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number of ticks");
    (ticks(11) + ticks(12)) * 1e7
}
