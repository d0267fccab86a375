//! Root images: a request goes in, a cached file with an EROFS image at an offset comes out.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// A root image ready to boot from.
#[derive(Debug)]
pub struct RootImage {
    /// The file that holds the image.
    pub path: PathBuf,
    /// Where in the file the image starts.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
    /// The program's path in the guest.
    pub program: Vec<u8>,
}

/// Stand-in until heddle-image lands: `HEDDLE_IMAGE=PATH:OFFSET:LENGTH`.
///
/// # Errors
/// If the variable is not set.
pub fn prepare(program: &str) -> Result<RootImage> {
    let text = std::env::var("HEDDLE_IMAGE").context("HEDDLE_IMAGE")?;
    let mut parts = text.split(':');
    let mut next = || parts.next().context("HEDDLE_IMAGE=PATH:OFFSET:LENGTH");
    Ok(RootImage {
        path: next()?.into(),
        offset_bytes: next()?.parse()?,
        length_bytes: next()?.parse()?,
        program: program.as_bytes().to_vec(),
    })
}
