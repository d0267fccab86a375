//! Folders of the host in the guest: the user's notation, and the kernels' parameter.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use heddle_abi::boot::{KEY_SHARE, SHARE_READ_ONLY, SHARE_VALUE_MAX, SHARES_MAX};

/// A folder to be shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The folder here.
    pub host: PathBuf,
    /// Where it appears in the guest: an absolute path.
    pub guest: String,
    /// Whether the guest may only read.
    pub is_read_only: bool,
}

/// Separators of paths on the kernel's command line, which therefore can't occur in a path.
const SEPARATORS: [char; 4] = [' ', ',', ':', '"'];

impl Share {
    /// The working directory of this process at the same path, read-only.
    ///
    /// # Errors
    /// If it has none, or its path cannot be passed on.
    pub fn here() -> Result<Self> {
        let here = std::env::current_dir().context("--here")?;
        Self::new(&here, None, true).context("--here")
    }

    /// Parses `HOST[:GUEST][:ro]`; without a path in the guest it is the same there.
    ///
    /// # Errors
    /// If there is no such folder, or its path in the guest cannot be passed on.
    pub fn parse(text: &str) -> Result<Self> {
        let (paths, is_read_only) = match text.strip_suffix(SHARE_READ_ONLY) {
            Some(paths) => (paths, true),
            None => (text, false),
        };
        let (host, guest) = match paths.rsplit_once(':') {
            Some((host, guest)) => (host, Some(guest)),
            None => (paths, None),
        };
        Self::new(Path::new(host), guest, is_read_only).with_context(|| format!("--share {text}"))
    }

    /// A folder at a path in the guest, read-only.
    ///
    /// # Errors
    /// As those of [`Share::parse`].
    pub fn read_only(host: &Path, guest: &Path) -> Result<Self> {
        Self::new(host, Some(guest.to_str().context("the path is not UTF-8")?), true)
    }

    fn new(host: &Path, guest: Option<&str>, is_read_only: bool) -> Result<Self> {
        let host = host.canonicalize().with_context(|| host.display().to_string())?;
        if !host.is_dir() {
            bail!("not a folder");
        }
        let guest = match guest {
            Some(guest) if !guest.starts_with('/') => {
                bail!("the path in the guest, {guest}, must be absolute")
            }
            Some(guest) => PathBuf::from(guest),
            None => host.clone(),
        };
        let guest = guest.to_str().context("the path is not UTF-8")?.to_owned();
        let is_plain = Path::new(&guest).components().all(|part| !matches!(part, Component::ParentDir));
        if guest == "/" || !is_plain || guest.contains(SEPARATORS) {
            bail!("{guest} cannot be a path in the guest");
        }
        Ok(Self { host, guest, is_read_only })
    }
}

/// The parameter for the kernel's command line that lists the folders; empty if there are none.
///
/// # Errors
/// If there are too many, or their paths are too long.
pub fn kernel_argument(shares: &[Share]) -> Result<Option<String>> {
    if shares.is_empty() {
        return Ok(None);
    }
    let target =
        |share: &Share| format!("{}{}", share.guest, if share.is_read_only { SHARE_READ_ONLY } else { "" });
    let value = shares.iter().map(target).collect::<Vec<_>>().join(",");
    if shares.len() > SHARES_MAX || value.len() > SHARE_VALUE_MAX {
        bail!("--share: too many folders");
    }
    Ok(Some(format!("{KEY_SHARE}={value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_parsed() {
        let share = |host: &str, guest: &str, is_read_only| Share {
            host: host.into(),
            guest: guest.to_owned(),
            is_read_only,
        };
        assert_eq!(Share::parse("/usr").unwrap(), share("/usr", "/usr", false));
        assert_eq!(Share::parse("/usr:ro").unwrap(), share("/usr", "/usr", true));
        assert_eq!(Share::parse("/usr:/mnt/x").unwrap(), share("/usr", "/mnt/x", false));
        assert_eq!(Share::parse("/usr:/x:ro").unwrap(), share("/usr", "/x", true));
        assert!(Share::parse("/usr:x").is_err());
        assert!(Share::parse(".:.").is_err());
        assert!(Share::parse("/does/not/exist").is_err());
        assert!(Share::parse("/etc/passwd").is_err());
        assert!(Share::parse("/usr:/a b").is_err());
        assert!(Share::parse("/usr:/a/../..").is_err());
        assert!(Share::parse("/usr:/").is_err());
    }

    #[test]
    fn kernels_are_told() {
        let shares = [Share::parse("/usr:/a").unwrap(), Share::parse("/etc:/b:ro").unwrap()];
        assert_eq!(kernel_argument(&shares).unwrap().as_deref(), Some("heddle.share=/a,/b:ro"));
        assert_eq!(kernel_argument(&[]).unwrap(), None);
        assert!(kernel_argument(&vec![shares[0].clone(); 9]).is_err());
    }
}
