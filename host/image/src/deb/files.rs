//! Links and copies that installation scripts make: a site that is switched on, a first page.

use std::path::PathBuf;

use heddle_erofs::write::{Attributes, Content};

use crate::view::View;
use crate::{Error, Root};

/// Files that scripts make of others, in their order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Made {
    links: Vec<(PathBuf, PathBuf)>,
    copies: Vec<(PathBuf, PathBuf)>,
}

impl Made {
    /// Notes the file that a script's `ln -s TARGET PATH` or `cp FILE PATH` makes, if the command is one, with absolute
    /// paths.
    pub fn command(&mut self, words: &[String]) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (list, from, to) = match words.as_slice() {
            ["ln", "-s" | "-sf", target, path] => (&mut self.links, target, path),
            ["cp", file, path] | ["cp", "-p" | "-a", file, path] => (&mut self.copies, file, path),
            _ => return,
        };
        let is_plain =
            |path: &str| path.starts_with('/') && !path.contains(['*', '?', '[']) && !path.ends_with('/');
        if is_plain(from) && is_plain(to) {
            list.push((from.into(), to.into()));
        }
    }

    /// Makes those whose source is there and whose place is free. A script asks before it does; whether it would is not
    /// looked at, so nothing replaces anything.
    pub fn install(&self, root: &mut Root) -> Result<(), Error> {
        for (target, path) in &self.links {
            let is_wanted = path.parent().is_some_and(|folder| root.is_directory(folder));
            if is_wanted && root.find(target).is_some() && !root.is_directory(path) {
                root.link_default(path, target)?;
            }
        }
        for (file, path) in &self.copies {
            if let (Some(found), None) = (root.file(file), root.find_link(path)) {
                root.put(path, Attributes::root(0o644), Content::File(found.source))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use heddle_erofs::write::Source;

    use super::*;

    #[test]
    fn a_site_is_switched_on() {
        let mut root = Root::default();
        for path in ["/etc/site/available", "/usr/index"] {
            root.put(Path::new(path), Attributes::root(0o644), Content::File(Source::Bytes(b"x".to_vec())))
                .unwrap();
        }
        let mut made = Made::default();
        let mut run = |text: &str| made.command(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        run("ln -s /etc/site/available /etc/site/enabled");
        run("ln -s /etc/site/missing /etc/site/other");
        run("ln -s available /etc/site/relative");
        run("ln -s /etc/site/available /no/folder");
        run("cp /usr/index /var/www/index");
        run("cp /usr/index /usr/ind*");
        run("rm /usr/index");
        made.install(&mut root).unwrap();
        assert_eq!(root.real_path(Path::new("/etc/site/enabled")).unwrap(), Path::new("/etc/site/available"));
        assert!(root.file(Path::new("/var/www/index")).is_some());
        for path in ["/etc/site/other", "/etc/site/relative", "/no/folder", "/usr/ind*"] {
            assert!(root.find_link(Path::new(path)).is_none(), "{path}");
        }
    }
}
