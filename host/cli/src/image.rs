//! Root images for the commands: the options that describe one, and the progress of making it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use heddle_image::{Cache, Error, Image, ImageRequest, Progress};
use indicatif::{ProgressBar, ProgressStyle};

/// Bytes in a megabyte, the unit of what is shown.
const MB: u64 = 1_000_000;
/// How long something takes before it is shown how far it has come.
const SHOWN_AFTER: Duration = Duration::from_millis(300);

/// The contents of the machine's root file system.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct ImageOptions {
    /// Leave this host's Essential packages out of the root.
    #[arg(long, conflicts_with = "root")]
    pub bare: bool,
    /// Add a file or folder to the root.
    #[arg(long, value_name = "PATH[:GUESTPATH]", conflicts_with = "root")]
    pub add: Vec<OsString>,
    /// Make the root of these Debian packages and their dependencies, fetched by apt.
    #[arg(long = "deb", value_name = "PKG[,PKG…]", value_delimiter = ',', conflicts_with = "root")]
    pub debs: Vec<String>,
    /// Take a folder as the root.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// Makes the image for `program`, or takes it from the cache. `library_path` is the program's `LD_LIBRARY_PATH`.
///
/// # Errors
/// Why there is none.
pub fn prepare(options: &ImageOptions, program: &OsString, library_path: &OsStr) -> Result<Image, Error> {
    let mut request = ImageRequest::new(program);
    request.bare = options.bare;
    request.library_path = std::env::split_paths(library_path).filter(|path| path.is_absolute()).collect();
    request.debs.clone_from(&options.debs);
    request.root = options.root.as_ref().map(|root| absolute(root, &request.directory));
    request.add = options.add.iter().map(|text| parse_addition(text, &request.directory)).collect();
    let mut line = ProgressLine::new();
    let image = Cache::of_user()?.image(&request, &mut |progress| line.show(&progress));
    line.clear();
    if let Ok(image) = &image {
        for warning in &image.warnings {
            crate::say!("{warning}");
        }
    }
    image
}

/// Reads a file of an image, following no symbolic links.
///
/// # Errors
/// If there is no such file, or the image cannot be read.
pub fn read(image: &Image, path: &str) -> Result<Vec<u8>> {
    let bytes = image.read().context("the root image")?;
    let tree = heddle_erofs::Image::open(&bytes).ok().context("the root image")?;
    let mut inode = tree.inode(tree.root()).ok().context("the root image")?;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let entry = tree.lookup(&inode, name.as_bytes()).ok().flatten();
        let entry = entry.with_context(|| format!("the guest has no {path}"))?;
        inode = tree.inode(entry.nid).ok().context("the root image")?;
    }
    let mut contents = vec![0; usize::try_from(inode.size)?];
    let mut done = 0;
    while done < contents.len() {
        match tree.read_at(&inode, done as u64, &mut contents[done..]) {
            0 => break,
            count => done += count,
        }
    }
    contents.truncate(done);
    Ok(contents)
}

fn absolute(path: &Path, directory: &Path) -> PathBuf {
    directory.join(path)
}

/// `PATH[:GUESTPATH]`; without a path in the guest it is the same there.
fn parse_addition(text: &OsString, directory: &Path) -> (PathBuf, PathBuf) {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = text.as_bytes();
    let at = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let colon = bytes.iter().rposition(|&byte| byte == b':').filter(|&colon| colon > 0);
    match colon {
        Some(colon) => {
            let guest = Path::new("/").join(at(&bytes[colon + 1..]));
            (absolute(&at(&bytes[..colon]), directory), guest)
        }
        None => {
            let path = absolute(&at(bytes), directory);
            (path.clone(), path)
        }
    }
}

/// A bar that shows how far something has come: a line of the terminal, nothing where standard error is none. What
/// takes no time worth showing is not shown at all.
struct ProgressLine {
    bar: ProgressBar,
    /// The work that is being done now.
    phase: Option<String>,
    begin: Instant,
}

impl ProgressLine {
    fn new() -> Self {
        Self { bar: ProgressBar::hidden(), phase: None, begin: Instant::now() }
    }

    fn show(&mut self, progress: &Progress) {
        let (phase, done, total, unit) = match *progress {
            Progress::Assembling => (String::from("collecting the root"), 0, 0, ""),
            Progress::UpdatingLists => (String::from("reading the archive's package lists"), 0, 0, ""),
            Progress::Fetching { packages, done, total } => {
                (format!("fetching {packages} packages"), done / MB, total / MB, " MB")
            }
            Progress::Unpacking { done, total } => {
                (String::from("unpacking packages"), done as u64, total as u64, "")
            }
            Progress::Writing { done, total } => {
                (String::from("writing the root image"), done / MB, total / MB, " MB")
            }
        };
        if self.bar.is_hidden() {
            if self.begin.elapsed() < SHOWN_AFTER {
                return;
            }
            self.bar = ProgressBar::new(total);
        }
        if self.phase.as_ref() != Some(&phase) {
            let template = match total {
                0 => String::from("heddle: {msg}"),
                _ => format!("heddle: {{msg}} {{bar:30}} {{pos}} of {{len}}{unit}"),
            };
            if let Ok(style) = ProgressStyle::with_template(&template) {
                self.bar.set_style(style);
            }
            self.bar.set_message(phase.clone());
            self.phase = Some(phase);
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additions_name_both_paths() {
        let parse = |text: &str| parse_addition(&text.into(), Path::new("/here"));
        assert_eq!(parse("file"), ("/here/file".into(), "/here/file".into()));
        assert_eq!(parse("/a:/b/c"), ("/a".into(), "/b/c".into()));
        assert_eq!(parse("x:y:z"), ("/here/x:y".into(), "/z".into()));
    }
}
