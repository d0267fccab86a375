//! The kernel and the Linux guest's first process in the tool's own file, where it was built with the feature
//! `bundled`.

use std::path::PathBuf;

/// The folder in the cache with these files, written when it is first needed, once for each build of the tool. `None`
/// if there are none, or no cache to write them to.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    #[cfg(feature = "bundled")]
    return bundle::folder().ok();
    #[cfg(not(feature = "bundled"))]
    None
}

/// The start of such folders' names.
pub const FOLDER: &str = "bundled-";

#[cfg(feature = "bundled")]
mod bundle {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

    use anyhow::{Context, Result};

    use super::FOLDER;
    use crate::paths;

    const FILES: [(&str, u32, &[u8]); 3] = [
        (paths::KERNEL, 0o644, include_bytes!(env!("HEDDLE_BUNDLED_KERNEL"))),
        (paths::LINUX_INIT, 0o755, include_bytes!(env!("HEDDLE_BUNDLED_INIT"))),
        (paths::VERSION, 0o644, VERSION.as_bytes()),
    ];
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("HEDDLE_BUNDLED_COMMIT"), ")");

    pub fn folder() -> Result<PathBuf> {
        let program = fs::metadata(paths::own_program()?).context("the tool's own file")?;
        let cache = paths::cache()?;
        let folder = cache.join(format!("{FOLDER}{:x}-{:x}", program.mtime(), program.len()));
        if folder.is_dir() {
            return Ok(folder);
        }
        // Made beside and renamed, so that the folder is there as a whole or not at all.
        let new = cache.join(format!("{FOLDER}new-{}", std::process::id()));
        fs::create_dir_all(&new).with_context(|| new.display().to_string())?;
        for (name, mode, contents) in FILES {
            fs::write(new.join(name), contents).context(name)?;
            fs::set_permissions(new.join(name), fs::Permissions::from_mode(mode)).context(name)?;
        }
        if fs::rename(&new, &folder).is_err() {
            // Another process was first.
            fs::remove_dir_all(&new).with_context(|| new.display().to_string())?;
        }
        Ok(folder)
    }
}
