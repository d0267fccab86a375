//! `shares`: a tree of small files in a shared folder, beside the same tree in an image and Linux with 9P.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail};

use super::{Experiment, Kind};
use crate::bench::goal::Goal;
use crate::bench::guest::{Line, cargo_build};
use crate::bench::progress::{Progress, Step};
use crate::bench::record::{Figure, Record, Scale};
use crate::bench::side::MEMORY_BYTES;
use crate::bench::{Interrupt, Request};
use crate::guest::{Kernel, MIB};
use crate::paths;

/// The experiment.
pub const EXPERIMENT: Experiment = Experiment {
    name: "shares",
    summary: "finding, looking at and reading small files of a shared folder, cold and warm; beside an image",
    kind: Kind::Own(run),
    checked: None,
};

/// Files of a directory.
const FILES: usize = 50;
const FILE_BYTES: usize = 3000;
/// The tree's age: younger files are not relied on for as long.
const AGE: Duration = Duration::from_secs(3);
/// Where the tree is in the guest.
const GUEST_PATH: &str = "/tree";

/// How a machine has the tree.
struct Way {
    side: &'static str,
    kernel: Kernel,
    option: &'static str,
}

const WAYS: [Way; 3] = [
    Way { side: "heddle", kernel: Kernel::Heddle, option: "--share" },
    Way { side: "heddle-image", kernel: Kernel::Heddle, option: "--add" },
    Way { side: "linux", kernel: Kernel::Linux, option: "--share" },
];

/// A tree on this host.
struct Tree(PathBuf);

impl Tree {
    fn new(directories: usize) -> Result<Self> {
        let tree = Self(std::env::temp_dir().join(format!("heddle-bench-shares-{}", std::process::id())));
        for directory in 0..directories {
            let path = tree.0.join(format!("directory-{directory}"));
            fs::create_dir_all(&path)?;
            for file in 0..FILES {
                fs::write(path.join(format!("file-{file}")), vec![b'f'; FILE_BYTES])?;
            }
        }
        thread::sleep(AGE);
        Ok(tree)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(request: &Request, runs: usize, record: &mut Record, interrupt: &Interrupt) -> Result<Vec<Goal>> {
    let repository = paths::repository()?;
    cargo_build(&repository, &["--release", "--package", "heddle-bench-programs"], interrupt)?;
    let program = repository.join("target/release/heddle-bench-programs");
    let tree = Tree::new(request.effort.choose(20, 100, 400))?;
    let rounds: Vec<_> = (0..runs).flat_map(|_| &WAYS).collect();
    let progress = Progress::new(rounds.iter().map(|way| Step::new(way.side.to_owned())).collect())?;
    for way in rounds {
        interrupt.check()?;
        progress.begin();
        measure(way, &tree.0, &program, record)?;
        progress.end();
    }
    Ok(Vec::new())
}

fn measure(way: &Way, tree: &Path, program: &Path, record: &mut Record) -> Result<()> {
    let mut command = Command::new(paths::own_program()?);
    command.args(["run", "--kernel", way.kernel.name(), "--memory", &(MEMORY_BYTES / MIB).to_string()]);
    command.args([way.option, &format!("{}:{GUEST_PATH}", tree.display()), "--bare", "--"]);
    command.arg(program).args(["shares", &format!("folder={GUEST_PATH}")]);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("running a machine")?;
    if !output.status.success() {
        bail!("{}: the guest's program has failed", way.side);
    }
    for line in String::from_utf8_lossy(&output.stdout).lines().filter_map(Line::parse) {
        let side = way.side.to_owned();
        match line {
            Line::Result { name, iterations, nanoseconds } => {
                let samples = vec![nanoseconds / iterations];
                record.add(Figure { name, side, samples, ..Figure::new(Scale::Emulated) });
            }
            Line::Count { name, value } => {
                record.add(Figure { name, side, samples: vec![value], ..Figure::new(Scale::Count) });
            }
            _ => {}
        }
    }
    Ok(())
}
