//! Builds the backing file of a guest by hand: `mkimage OUT PROGRAM [HOST-PATH[:GUEST-PATH]]...`.
//!
//! Before PROGRAM, `--bare` leaves the base out, `--root DIRECTORY` takes a directory as it is, and
//! `--deb PACKAGE,...` takes Debian packages. Prints offset and length of the image in the file, as `heddle.image`
//! takes them, and the program's path.

use std::error::Error;
use std::fs::File;
use std::path::PathBuf;

use heddle_erofs::write::Plan;
use heddle_image::{Cache, ImageRequest, Progress, assemble, write_backing};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what| arguments.next().ok_or(format!("mkimage: {what} is missing"));
    let out = next("OUT")?;
    let (mut bare, mut root, mut debs) = (false, None, Vec::new());
    let program = loop {
        match next("PROGRAM")?.as_str() {
            "--bare" => bare = true,
            "--deb" => debs = next("PACKAGES")?.split(',').map(str::to_owned).collect(),
            "--root" => root = Some(PathBuf::from(next("DIRECTORY")?)),
            program => break program.to_owned(),
        }
    };
    let mut request = ImageRequest::new(program);
    (request.bare, request.root, request.debs) = (bare, root, debs);
    for argument in arguments {
        let (from, to) = argument.split_once(':').unwrap_or((&argument, &argument));
        request.add.push((std::path::absolute(from)?, std::path::absolute(to)?));
    }
    let mut assembly = assemble(&request, &Cache::of_user()?, &mut fetching)?;
    for warning in assembly.root.take_warnings() {
        eprintln!("{warning}");
    }
    let plan = Plan::new(assembly.root.tree())?;
    let (offset, length) = write_backing(&mut File::create(&out)?, &plan, &mut |_| {})?;
    println!("{offset:#x},{length:#x} {}", assembly.program.display());
    Ok(())
}

fn fetching(progress: Progress) {
    if let Progress::Fetching { packages, done, total } = progress {
        eprintln!("fetching {packages} packages: {done} of {total} bytes");
    }
}
