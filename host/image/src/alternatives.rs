//! Debian's alternatives: generic names such as `awk` that link through `/etc/alternatives` to one of several
//! programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Root};

/// Where the links between the generic name and the program are.
pub const DIRECTORY: &str = "/etc/alternatives";

/// One program that a generic name may stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub path: PathBuf,
    pub priority: i32,
    /// Targets of names that go along, such as manual pages, by name.
    pub slaves: BTreeMap<String, PathBuf>,
}

/// A generic name with all that it may stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The generic name's own path, such as `/usr/bin/awk`.
    pub link: PathBuf,
    /// Paths of names that go along, by name.
    pub slave_links: BTreeMap<String, PathBuf>,
    pub choices: Vec<Choice>,
    /// The administrator's choice.
    pub chosen: Option<PathBuf>,
}

/// Groups by name.
pub type Groups = BTreeMap<String, Group>;

/// The host's groups, from dpkg's `directory`.
pub fn of_host(directory: &Path) -> Groups {
    let mut groups = Groups::new();
    let entries = fs::read_dir(directory.join("alternatives")).into_iter().flatten().flatten();
    for entry in entries {
        let (Ok(name), Ok(text)) = (entry.file_name().into_string(), fs::read_to_string(entry.path())) else {
            continue;
        };
        if let Some(mut group) = parse(&text) {
            group.chosen = fs::read_link(Path::new(DIRECTORY).join(&name)).ok();
            groups.insert(name, group);
        }
    }
    groups
}

/// A group as `update-alternatives` stores it: the mode, the link, pairs of slave name and slave link, an empty line,
/// then for each choice its path, priority and one line for each slave, perhaps empty.
fn parse(text: &str) -> Option<Group> {
    let mut lines = text.lines();
    let _mode = lines.next()?;
    let mut group = Group { link: lines.next()?.into(), ..Group::default() };
    let mut slaves = Vec::new();
    while let Some(name) = lines.next().filter(|line| !line.is_empty()) {
        slaves.push(name.to_owned());
        group.slave_links.insert(name.to_owned(), lines.next()?.into());
    }
    while let Some(path) = lines.next().filter(|line| !line.is_empty()) {
        let mut choice =
            Choice { path: path.into(), priority: lines.next()?.parse().ok()?, slaves: BTreeMap::new() };
        for slave in &slaves {
            let target = lines.next()?;
            if !target.is_empty() {
                choice.slaves.insert(slave.clone(), target.into());
            }
        }
        group.choices.push(choice);
    }
    Some(group)
}

/// Makes the links of all groups of which a program is there.
pub fn install(root: &mut Root, groups: &Groups) -> Result<(), Error> {
    for (name, group) in groups {
        let present: Vec<&Choice> =
            group.choices.iter().filter(|choice| root.find(&choice.path).is_some()).collect();
        let chosen = present.iter().find(|choice| Some(&choice.path) == group.chosen.as_ref());
        // Of equal priorities `update-alternatives` keeps the first.
        let best = present.iter().rev().max_by_key(|choice| choice.priority);
        let Some(choice) = chosen.or(best) else {
            continue;
        };
        link(root, name, &group.link, &choice.path)?;
        for (slave, target) in &choice.slaves {
            match group.slave_links.get(slave) {
                Some(path) if root.find(target).is_some() => link(root, slave, path, target)?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn link(root: &mut Root, name: &str, path: &Path, target: &Path) -> Result<(), Error> {
    let middle = Path::new(DIRECTORY).join(name);
    root.link_default(path, &middle)?;
    root.link_default(&middle, target)
}

/// Notes what a script's `update-alternatives --install` adds, if `words` is one.
pub fn install_command(words: &[String], groups: &mut Groups) {
    let is_call = words.first().and_then(|program| program.rsplit('/').next()) == Some("update-alternatives");
    let Some(at) = words.iter().position(|word| word == "--install").filter(|_| is_call) else {
        return;
    };
    let [link, name, path, priority, rest @ ..] = &words[at + 1..] else {
        return;
    };
    let Ok(priority) = priority.parse() else {
        return;
    };
    if name.contains('/') || !link.starts_with('/') || !path.starts_with('/') {
        return;
    }
    let group = groups.entry(name.clone()).or_default();
    group.link = link.into();
    let mut choice = Choice { path: path.into(), priority, slaves: BTreeMap::new() };
    for (index, word) in rest.iter().enumerate() {
        if let ("--slave", [link, name, path, ..]) = (word.as_str(), &rest[index + 1..])
            && !name.contains('/')
        {
            group.slave_links.insert(name.clone(), link.into());
            choice.slaves.insert(name.clone(), path.into());
        }
    }
    group.choices.push(choice);
}

#[cfg(test)]
mod tests {
    use heddle_erofs::write::{Attributes, Content};

    use super::*;

    const AWK: &str = "\
auto
/usr/bin/awk
awk.1.gz
/usr/share/man/man1/awk.1.gz
nawk
/usr/bin/nawk

/usr/bin/gawk
10
/usr/share/man/man1/gawk.1.gz

/usr/bin/mawk
5
/usr/share/man/man1/mawk.1.gz
/usr/bin/mawk

";

    fn root_with(paths: &[&str]) -> Root {
        let mut root = Root::default();
        for path in paths {
            root.put(Path::new(path), Attributes::root(0o755), Content::Fifo).unwrap();
        }
        root
    }

    fn target(root: &Root, path: &str) -> Option<PathBuf> {
        root.real_path(Path::new(path))
    }

    #[test]
    fn the_best_that_is_there() {
        let group = parse(AWK).unwrap();
        assert_eq!(group.choices.len(), 2);
        assert_eq!(group.choices[0].slaves.len(), 1, "an empty line is no slave");
        let groups = Groups::from([("awk".to_owned(), group.clone())]);

        let mut root = root_with(&["/usr/bin/mawk"]);
        install(&mut root, &groups).unwrap();
        assert_eq!(target(&root, "/usr/bin/awk").unwrap(), Path::new("/usr/bin/mawk"));
        assert_eq!(target(&root, "/usr/bin/nawk").unwrap(), Path::new("/usr/bin/mawk"));
        assert!(root.find_link(Path::new("/usr/share/man/man1/awk.1.gz")).is_none());

        let mut root = root_with(&["/usr/bin/mawk", "/usr/bin/gawk"]);
        install(&mut root, &groups).unwrap();
        assert_eq!(target(&root, "/usr/bin/awk").unwrap(), Path::new("/usr/bin/gawk"));

        let chosen = Group { chosen: Some("/usr/bin/mawk".into()), ..group };
        let mut root = root_with(&["/usr/bin/mawk", "/usr/bin/gawk"]);
        install(&mut root, &Groups::from([("awk".to_owned(), chosen)])).unwrap();
        assert_eq!(target(&root, "/usr/bin/awk").unwrap(), Path::new("/usr/bin/mawk"));

        let mut root = root_with(&[]);
        install(&mut root, &groups).unwrap();
        assert!(root.find_link(Path::new("/usr/bin/awk")).is_none(), "no link to nowhere");
    }

    #[test]
    fn of_scripts() {
        let mut groups = Groups::new();
        let mut run = |command: &str| {
            install_command(&command.split(' ').map(str::to_owned).collect::<Vec<_>>(), &mut groups);
        };
        let slave = "--slave /usr/bin/nawk nawk /usr/bin/gawk";
        run(&format!("update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/gawk 10 {slave}"));
        run("/usr/bin/update-alternatives --install /usr/bin/awk awk /usr/bin/mawk 5");
        run("update-alternatives --remove awk /usr/bin/mawk");
        run("update-alternatives --install /usr/bin/x ../x /usr/bin/y 1");
        run("update-alternatives --install /usr/bin/x x /usr/bin/y high");
        run("echo --install /usr/bin/x x /usr/bin/y 1");
        assert_eq!(groups.len(), 1);
        let awk = &groups["awk"];
        assert_eq!(awk.choices.iter().map(|choice| choice.priority).collect::<Vec<_>>(), [10, 5]);
        assert_eq!(awk.slave_links["nawk"], Path::new("/usr/bin/nawk"));
    }

    #[test]
    fn damage_is_no_group() {
        for length in 0..AWK.len() - 1 {
            if let Some(group) = parse(&AWK[..length]) {
                assert!(group.choices.len() < 3);
            }
        }
    }
}
