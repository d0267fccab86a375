//! Files and folders that come along because the program's arguments name them.
//!
//! They appear in the guest at the same path, read-only, and the program starts in the working directory, below which
//! they are: files as copies, in a folder that is shared, folders as themselves. Nothing else of the directory is seen.
//! Arguments in which a path is a part, such as `--file=PATH`, name nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use heddle_abi::boot::SHARES_MAX;
use tempfile::TempDir;

use crate::guest::share::Share;

/// Of larger files, in bytes and all together, none comes along.
pub const BYTES_MAX: u64 = 64 << 20;

/// Files and folders that come along. The copies last as long as this.
#[derive(Debug)]
pub struct Named {
    /// The folders to share, the working directory first.
    pub shares: Vec<Share>,
    /// The program's working directory.
    pub directory: PathBuf,
    _copies: Option<TempDir>,
}

/// The kind of a file that an argument names.
enum NamedKind {
    File(u64),
    Folder,
}

impl Named {
    /// Takes along the files that these arguments name; none if they name none here, or more than can come along.
    ///
    /// # Errors
    /// If a file cannot be read or copied.
    pub fn by(arguments: &[OsString]) -> Result<Option<Self>> {
        let directory = std::env::current_dir().context("the working directory")?;
        let mut named: Vec<(PathBuf, NamedKind)> =
            arguments.iter().filter_map(|argument| look(&directory, argument)).collect();
        // Parents come before what is in them, which needs no share of its own then.
        named.sort_by(|one, other| one.0.cmp(&other.0));
        named.dedup_by(|next, kept| {
            next.0 == kept.0 || matches!(kept.1, NamedKind::Folder) && next.0.starts_with(&kept.0)
        });
        let folders = named.iter().filter(|(_, kind)| matches!(kind, NamedKind::Folder)).count();
        let bytes: u64 =
            named.iter().map(|(_, kind)| if let NamedKind::File(bytes) = kind { *bytes } else { 0 }).sum();
        if named.is_empty() || folders >= SHARES_MAX || bytes > BYTES_MAX {
            return Ok(None);
        }
        if named[0].0.as_os_str().is_empty() {
            // The working directory itself.
            let share = Share::read_only(&directory, &directory).ok();
            return Ok(share.map(|share| Self { shares: vec![share], directory, _copies: None }));
        }
        let copies =
            tempfile::Builder::new().prefix("heddle-named-").tempdir().context("a folder for copies")?;
        // Every user of the guest may look into it, and no other user of the host.
        let inside = copies.path().join("0");
        std::fs::create_dir(&inside).context("a folder for copies")?;
        let Ok(share) = Share::read_only(&inside, &directory) else { return Ok(None) };
        let mut shares = vec![share];
        for (path, kind) in &named {
            let copy = inside.join(path);
            let place = || path.display().to_string();
            match kind {
                NamedKind::File(_) => {
                    std::fs::create_dir_all(copy.parent().unwrap_or(&copy)).with_context(place)?;
                    std::fs::copy(directory.join(path), &copy).with_context(place)?;
                }
                NamedKind::Folder => {
                    std::fs::create_dir_all(&copy).with_context(place)?;
                    match Share::read_only(&directory.join(path), &directory.join(path)) {
                        Ok(share) => shares.push(share),
                        Err(_) => return Ok(None),
                    }
                }
            }
        }
        Ok(Some(Self { shares, directory, _copies: Some(copies) }))
    }
}

/// The kind of the file below the working directory that an argument names, and its path there.
fn look(directory: &Path, argument: &OsString) -> Option<(PathBuf, NamedKind)> {
    let path = Path::new(argument);
    if path.as_os_str().is_empty() || argument.as_bytes().starts_with(b"-") || path.is_absolute() {
        return None;
    }
    let is_below = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let metadata = std::fs::metadata(directory.join(path)).ok()?;
    let kind = match (metadata.is_file(), metadata.is_dir()) {
        (true, _) => NamedKind::File(metadata.len()),
        (_, true) => NamedKind::Folder,
        _ => return None,
    };
    is_below.then(|| (path.components().filter(|part| *part != Component::CurDir).collect(), kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_what_is_below() {
        let folder = TempDir::new().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/file"), "12345").unwrap();
        let look = |argument: &str| look(folder.path(), &OsString::from(argument));
        assert!(matches!(look("sub"), Some((path, NamedKind::Folder)) if path == Path::new("sub")));
        assert!(
            matches!(look("./sub/file"), Some((path, NamedKind::File(5))) if path == Path::new("sub/file"))
        );
        assert!(matches!(look("."), Some((path, NamedKind::Folder)) if path == Path::new("")));
        for nothing in ["", "-n", "absent", "sub/../..", "/etc/passwd", "sub/file/x"] {
            assert!(look(nothing).is_none(), "{nothing}");
        }
    }
}
