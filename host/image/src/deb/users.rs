//! Users and groups: those of `base-passwd`, those that packages describe for `systemd-sysusers`, and those that
//! their scripts add.

use std::path::Path;

use heddle_erofs::write::{Attributes, Content, Node, Source};

use crate::{Error, Root};

/// The first number of those given to accounts of packages, as in Debian.
const FIRST_SYSTEM_ID: u32 = 100;
/// Above these are ordinary users.
const LAST_SYSTEM_ID: u32 = 999;

/// The shell of accounts without login.
const NO_SHELL: &str = "/usr/sbin/nologin";

/// An account that a package wants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Account {
    name: String,
    /// A user, with a home directory, shell and comment; otherwise only a group.
    user: Option<(String, String, String)>,
    id: Option<u32>,
    /// A user's group, if it isn't one of the same name.
    group: Option<String>,
}

/// The accounts that scripts want.
#[derive(Debug, Default)]
pub struct Wanted(Vec<Account>);

impl Wanted {
    /// Notes the account that a script's command adds, if that is what it does.
    pub fn command(&mut self, words: &[String]) {
        let Some((program, arguments)) = words.split_first() else {
            return;
        };
        let (is_user, is_group) = match program.rsplit('/').next() {
            Some("adduser" | "useradd") => (true, false),
            Some("addgroup" | "groupadd") => (false, true),
            _ => return,
        };
        let own_group = arguments.iter().any(|word| word == "--group" || word == "--user-group");
        let mut account = Account { name: String::new(), user: None, id: None, group: None };
        let (mut home, mut shell, mut comment) =
            ("/nonexistent".to_owned(), NO_SHELL.to_owned(), String::new());
        let mut names = Vec::new();
        let mut arguments = arguments.iter();
        while let Some(word) = arguments.next() {
            let (option, mut value) = match word.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let mut value = || value.take().or_else(|| arguments.next().cloned()).unwrap_or_default();
            match option {
                "--home" | "--home-dir" | "-d" => home = value(),
                "--shell" | "-s" => shell = value(),
                "--gecos" | "--comment" | "-c" => comment = value(),
                "--uid" | "-u" => account.id = value().parse().ok(),
                "--gid" | "-g" if is_group => account.id = value().parse().ok(),
                "--ingroup" | "--gid" | "-g" => account.group = Some(value()),
                "--firstuid" | "--lastuid" | "--firstgid" | "--lastgid" | "--add_extra_groups" | "-G"
                | "--groups" | "--conf" | "-k" => drop(value()),
                _ if option.starts_with('-') => {}
                _ if option.contains(['<', '>']) => break,
                name => names.push(name.to_owned()),
            }
        }
        // With two names, a user is added to a group.
        if let [name] = names.as_slice() {
            account.name.clone_from(name);
            if is_user {
                account.user = Some((home, shell, comment));
                // Unless a group of its own is asked for, Debian puts a package's user into `nogroup`.
                if !own_group {
                    account.group.get_or_insert_with(|| "nogroup".to_owned());
                }
            }
            self.0.push(account);
        }
    }

    /// Notes the accounts of a file for `systemd-sysusers`.
    fn sysusers(&mut self, text: &str) {
        for line in text.lines() {
            let fields = fields(line);
            let field = |index: usize| fields.get(index).map(String::as_str).filter(|field| *field != "-");
            let (Some(kind), Some(name)) = (field(0), field(1)) else {
                continue;
            };
            let id = field(2).and_then(|id| id.split(':').next()?.parse().ok());
            let group = field(2).and_then(|id| Some(id.split_once(':')?.1.to_owned()));
            let home = field(4).unwrap_or("/").to_owned();
            let shell = field(5).unwrap_or(NO_SHELL).to_owned();
            let user = match kind.trim_end_matches(['!', '-']) {
                "u" => Some((home, shell, field(3).unwrap_or("").to_owned())),
                "g" => None,
                _ => continue,
            };
            self.0.push(Account { name: name.to_owned(), user, id, group });
        }
    }
}

/// Writes `/etc/passwd` and `/etc/group`, unless there are any.
pub fn install(root: &mut Root, scripts: Wanted) -> Result<(), Error> {
    if root.find_link(Path::new("/etc/passwd")).is_some() {
        return Ok(());
    }
    let mut tables = Tables {
        users: master(root, "/usr/share/base-passwd/passwd.master"),
        groups: master(root, "/usr/share/base-passwd/group.master"),
    };
    let mut wanted = Wanted::default();
    let directory = Path::new("/usr/lib/sysusers.d");
    if let Some(Node::Directory(children)) = root.find(directory).map(|id| root.tree().node(id)) {
        for name in children.keys() {
            wanted.sysusers(&root.text(&directory.join(String::from_utf8_lossy(name).as_ref())));
        }
    }
    // A package's description decides; its script is the older method for the same account.
    for account in wanted.0.into_iter().chain(scripts.0) {
        tables.add(&account);
    }
    for (path, lines) in [("/etc/passwd", tables.users), ("/etc/group", tables.groups)] {
        if !lines.is_empty() {
            let text: String = lines.iter().map(|fields| fields.join(":") + "\n").collect();
            let content = Content::File(Source::Bytes(text.into_bytes()));
            root.put(Path::new(path), Attributes::root(0o644), content)?;
        }
    }
    Ok(())
}

/// The two files, as lines of fields.
struct Tables {
    users: Vec<Vec<String>>,
    groups: Vec<Vec<String>>,
}

impl Tables {
    fn add(&mut self, account: &Account) {
        let plain = |text: &str| !text.contains([':', '\n']);
        let known = |lines: &[Vec<String>]| lines.iter().any(|fields| fields[0] == account.name);
        if account.name.is_empty() || !plain(&account.name) {
            return;
        }
        let id = account.id.or_else(|| self.free_id());
        let Some(id) = id else {
            return;
        };
        if account.group.is_none() && !known(&self.groups) {
            let fields = [account.name.as_str(), "x", &id.to_string(), ""];
            self.groups.push(fields.map(str::to_owned).to_vec());
        }
        let Some((home, shell, comment)) = account.user.as_ref().filter(|_| !known(&self.users)) else {
            return;
        };
        let group = account.group.as_ref().unwrap_or(&account.name);
        let entry = self.groups.iter().find(|fields| fields[0] == *group || fields[2] == *group);
        let gid = entry.map_or("65534", |fields| &fields[2]);
        if [home, shell, comment].into_iter().all(|text| plain(text)) {
            let fields = [&account.name, "x", &id.to_string(), gid, comment, home, shell];
            self.users.push(fields.map(str::to_owned).to_vec());
        }
    }

    /// A number that neither a user nor a group has.
    fn free_id(&self) -> Option<u32> {
        let taken = |id: &u32| {
            let id = id.to_string();
            self.users.iter().chain(&self.groups).any(|fields| fields[2] == id)
        };
        (FIRST_SYSTEM_ID..=LAST_SYSTEM_ID).find(|id| !taken(id))
    }
}

/// The lines of one of `base-passwd`'s samples, passwords locked.
fn master(root: &Root, path: &str) -> Vec<Vec<String>> {
    let text = root.text(Path::new(path));
    let fields = |line: &str| {
        let mut fields: Vec<String> = line.split(':').map(str::to_owned).collect();
        if let Some(password) = fields.get_mut(1) {
            *password = "x".to_owned();
        }
        fields
    };
    text.lines().map(fields).filter(|fields| fields.len() >= 4).collect()
}

/// The fields of a line: words, or texts in double quotes; none in a comment.
fn fields(line: &str) -> Vec<String> {
    let mut fields = Vec::new();
    let mut rest = line.trim();
    if rest.starts_with('#') {
        return fields;
    }
    while !rest.is_empty() {
        let (field, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        fields.push(field.to_owned());
        rest = behind.trim_start();
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> Tables {
        let line = |text: &str| text.split(':').map(str::to_owned).collect::<Vec<_>>();
        Tables {
            users: vec![line("root:x:0:0:root:/root:/bin/bash"), line("x:x:100:100::/:/bin/sh")],
            groups: vec![line("root:x:0:"), line("nogroup:x:65534:"), line("mail:x:8:")],
        }
    }

    fn after(commands: &[&str], sysusers: &str) -> (Vec<String>, Vec<String>) {
        let mut wanted = Wanted::default();
        wanted.sysusers(sysusers);
        for command in commands {
            wanted.command(&command.split(' ').map(str::to_owned).collect::<Vec<_>>());
        }
        let mut tables = tables();
        for account in &wanted.0 {
            tables.add(account);
        }
        let join = |lines: &[Vec<String>]| lines.iter().map(|fields| fields.join(":")).collect();
        (join(&tables.users[2..]), join(&tables.groups[3..]))
    }

    #[test]
    fn scripts_add_accounts() {
        let (users, groups) = after(
            &[
                "adduser --system --quiet --home /var/lib/a --no-create-home --group a",
                "adduser --system --home=/run/b b",
                "addgroup --system c",
                "adduser --quiet a c",
                "useradd -r -g mail -d /m -s /bin/sh d",
                "adduser --system a",
                "rm -f x",
            ],
            "",
        );
        let expected = [
            "a:x:101:101::/var/lib/a:/usr/sbin/nologin",
            "b:x:102:65534::/run/b:/usr/sbin/nologin",
            "d:x:104:8::/m:/bin/sh",
        ];
        assert_eq!(users, expected);
        assert_eq!(groups, ["a:x:101:", "c:x:103:"]);
    }

    #[test]
    fn sysusers_files() {
        let (users, groups) =
            after(&[], "# x\ng grp 55\nu usr 77:mail \"A b\" /h\nu! auto - -\nm auto grp\nr - 1-2\n");
        assert_eq!(users, ["usr:x:77:8:A b:/h:/usr/sbin/nologin", "auto:x:101:101::/:/usr/sbin/nologin"]);
        assert_eq!(groups, ["grp:x:55:", "auto:x:101:"]);
    }

    #[test]
    fn nothing_breaks_a_line() {
        let (users, groups) =
            after(&["adduser --system a:b", "adduser --home /x:y c", "addgroup"], "u a\\:b - x:y\n");
        assert!(users.is_empty(), "{users:?}");
        assert!(groups.is_empty(), "{groups:?}");
    }
}
