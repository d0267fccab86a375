//! The root of a container's machine: one program and empty folders, the same for all containers.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, Result, anyhow};
use heddle_image::{Cache, Image, ImageRequest};

use crate::guest::linux;
use crate::paths;

/// The program in the root.
pub const INIT: &str = "/init";

/// Names of the folders that images are made of start like this; so do those of processes that were ended meanwhile.
pub const FOLDER: &str = "container-root";

/// The image, which is made once for each version of the program.
///
/// # Errors
/// If it cannot be made.
pub fn image() -> Result<Image> {
    let init = linux::init()?;
    let metadata = fs::metadata(&init).with_context(|| init.display().to_string())?;
    let name = format!("{FOLDER}-{:x}-{:x}", metadata.mtime(), metadata.len());
    let folder = paths::cache()?.join(name);
    if !folder.exists() {
        // Made beside and renamed, so that the folder is there as a whole or not at all.
        let new = folder.with_extension(std::process::id().to_string());
        for path in ["dev", "proc", "sys", "tmp", "oci"] {
            fs::create_dir_all(new.join(path)).context("the machine's root")?;
        }
        let copy = new.join(INIT.trim_start_matches('/'));
        fs::copy(&init, &copy).context("the machine's root")?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).context("the machine's root")?;
        if fs::rename(&new, &folder).is_err() {
            // Another process was first.
            fs::remove_dir_all(&new).context("the machine's root")?;
        }
    }
    let mut request = ImageRequest::new(INIT);
    request.root = Some(folder);
    Cache::of_user()
        .and_then(|cache| cache.image(&request, &mut |_| {}))
        .map_err(|error| anyhow!("the machine's root: {error}"))
}
