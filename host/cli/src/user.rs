//! Users and groups as a command line names them.

use anyhow::{Context, Result, bail};

use crate::session::Identity;

/// A user that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Its numbers.
    pub identity: Identity,
    /// Its home, if `/etc/passwd` names one.
    pub home: Option<Vec<u8>>,
}

/// Parses `USER[:GROUP]`, names or numbers, by the guest's `/etc/passwd` and `/etc/group`, which `read` returns.
/// Without a group it is the user's, with the groups that list the user.
///
/// # Errors
/// If a name is not known.
pub fn parse(text: &str, read: impl Fn(&str) -> Result<Vec<u8>>) -> Result<User> {
    let (name, group) = match text.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (text, None),
    };
    let number: Option<u32> = name.parse().ok();
    // A guest without these files has users by number only.
    let users = read("/etc/passwd");
    let fields = |line: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(line).split(':').map(str::to_owned).collect()
    };
    let entry = users.as_ref().ok().and_then(|text| {
        text.split(|&byte| byte == b'\n').map(fields).find(|fields| {
            fields.len() >= 6 && (fields[0] == name || number.is_some() && fields[2].parse().ok() == number)
        })
    });
    let user = match (&entry, number) {
        (_, Some(number)) => number,
        (Some(entry), None) => entry[2].parse().with_context(|| format!("/etc/passwd: {}", entry[2]))?,
        (None, None) => {
            users?;
            bail!("-u {text}: the guest has no user {name}");
        }
    };
    let mut identity = Identity { user, group: 0, groups: Vec::new() };
    let groups = || -> Result<Vec<Vec<String>>> {
        let lines = read("/etc/group")?;
        Ok(lines.split(|&byte| byte == b'\n').map(fields).filter(|fields| fields.len() >= 4).collect())
    };
    match group {
        Some(group) => {
            identity.group = match group.parse() {
                Ok(number) => number,
                Err(_) => {
                    let groups = groups()?;
                    let found = groups.iter().find(|fields| fields[0] == group);
                    let found =
                        found.with_context(|| format!("-u {text}: the guest has no group {group}"))?;
                    found[2].parse().with_context(|| format!("/etc/group: {}", found[2]))?
                }
            }
        }
        None => {
            if let Some(entry) = &entry {
                identity.group = entry[3].parse().with_context(|| format!("/etc/passwd: {}", entry[3]))?;
                let lists = |fields: &&Vec<String>| fields[3].split(',').any(|member| member == entry[0]);
                let groups = groups().unwrap_or_default();
                identity.groups =
                    groups.iter().filter(lists).filter_map(|fields| fields[2].parse().ok()).collect();
            }
        }
    }
    let home = entry.map(|entry| entry[5].clone().into_bytes());
    Ok(User { identity, home })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> Result<Vec<u8>> {
        Ok(match path {
            "/etc/passwd" => b"root:x:0:0::/root:/bin/sh\nann:x:1000:100:Ann:/home/ann:/bin/sh\n".to_vec(),
            _ => b"users:x:100:\ntape:x:26:ann,bob\nfloppy:x:25:bob\n".to_vec(),
        })
    }

    fn identity(text: &str) -> (u32, u32, Vec<u32>) {
        let Identity { user, group, groups } = parse(text, read).unwrap().identity;
        (user, group, groups)
    }

    #[test]
    fn users_have_names_and_numbers() {
        assert_eq!(identity("ann"), (1000, 100, vec![26]));
        assert_eq!(identity("1000"), (1000, 100, vec![26]));
        assert_eq!(identity("ann:floppy"), (1000, 25, vec![]));
        assert_eq!(identity("ann:7"), (1000, 7, vec![]));
        assert_eq!(identity("4711"), (4711, 0, vec![]));
        assert_eq!(parse("ann", read).unwrap().home.unwrap(), b"/home/ann");
        assert!(parse("eve", read).is_err() && parse("ann:nobody", read).is_err());
        assert!(parse("ann", |_| bail!("no such file")).is_err());
        assert_eq!(parse("5", |_| bail!("no such file")).unwrap().identity.user, 5);
    }
}
