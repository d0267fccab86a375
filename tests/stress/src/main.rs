//! Randomized programs for a guest, replayable by seed. They are ordinary Linux programs and run on Linux as well.
//!
//! - `heddle-stress memory [seed=S] [processes=P] [threads=T] [steps=N]` maps, touches, protects, unmaps, forks
//!   and exits at random from many sides, and checks every byte that it relies on.
//! - `heddle-stress calls [seed=S] [processes=P] [threads=T] [steps=N]` makes random system calls with random,
//!   boundary and half-valid arguments. It checks that the machine survives.
//! - `heddle-stress hostile [processes=P] [threads=T] [steps=N]` has N processes one after the other, P at once, T
//!   threads at once, a program that allocates until it is killed, and a fork bomb. In Heddle it checks that all memory
//!   comes back.
//! - `heddle-stress inject` makes each call of a list with each failure that it can have; in Heddle's checking
//!   kernel only. `heddle-stress nothing` is what it executes.
//! - `heddle-stress pressure [seed=S] [processes=P] [steps=SECONDS]` makes each call of that list while
//!   another process takes all memory.
//! - `heddle-stress mapped [seed=S] [processes=P] [steps=N]` writes to mapped files in the current folder, and
//!   checks what others see. `mapped-large` writes to N pages of one.
//!
//! Each prints `ok NAME` at the end, or `not ok NAME: reason` with the seed that repeats it.

mod arguments;
mod calls;
mod hostile;
mod inject;
mod mapped;
mod memory;
mod pressure;
mod random;

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1);
    let program = words.next().unwrap_or_default();
    let plan = match arguments::Plan::parse(words) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("heddle-stress: {error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    let outcome = match program.as_str() {
        "memory" => memory::run(&plan),
        "calls" => calls::run(&plan),
        "hostile" => hostile::run(&plan),
        "inject" => inject::run(&plan),
        "pressure" => pressure::run(&plan),
        "mapped" => mapped::run(&plan),
        "mapped-large" => mapped::large(&plan),
        "nothing" => return std::process::ExitCode::SUCCESS,
        _ => Err(format!("unknown program '{program}'")),
    };
    match outcome {
        Ok(()) => {
            println!("ok stress::{program} seed={}", plan.seed);
            std::process::ExitCode::SUCCESS
        }
        Err(reason) => {
            println!("not ok stress::{program}: seed={}: {reason}", plan.seed);
            std::process::ExitCode::FAILURE
        }
    }
}
