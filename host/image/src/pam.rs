//! The work of `pam-auth-update` and `shadowconfig`: the files that services include from `/etc/pam.d`, put
//! together from the profiles that packages bring, and `/etc/shadow` with every password locked.

use std::path::Path;

use heddle_erofs::write::{Attributes, Content, Node, Source};

use crate::{Error, Root};

/// The files that services include, with the types of modules in them; the last one is for programs without a user at
/// a terminal.
const INCLUDED: [(&str, &str); 5] = [
    ("account", "Account"),
    ("auth", "Auth"),
    ("password", "Password"),
    ("session", "Session"),
    ("session-noninteractive", "Session"),
];

/// The group that may read passwords.
const SHADOW_GID: u32 = 42;

/// A profile of `/usr/share/pam-configs`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Profile {
    priority: i32,
    is_default: bool,
    is_interactive_only: bool,
    /// Fields such as `Auth-Type` and `Auth`, the latter with the lines that follow it.
    fields: Vec<(String, String)>,
}

impl Profile {
    fn parse(text: &str) -> Self {
        let mut profile = Profile::default();
        for line in text.lines() {
            if let (true, Some((_, value))) = (line.starts_with([' ', '\t']), profile.fields.last_mut()) {
                value.push_str(line.trim());
                value.push('\n');
            } else if let Some((name, value)) = line.split_once(':') {
                profile.fields.push((name.to_owned(), value.trim().to_owned()));
            }
        }
        profile.priority = profile.field("Priority").and_then(|value| value.parse().ok()).unwrap_or(0);
        profile.is_default = profile.field("Default") == Some("yes");
        profile.is_interactive_only = profile.field("Session-Interactive-Only") == Some("yes");
        profile
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The modules for `kind`, if they belong to this `block`.
    fn modules(&self, kind: &str, block: &str, is_first: bool) -> impl Iterator<Item = &str> {
        let fits = self.field(&format!("{kind}-Type")) == Some(block);
        let initial = self.field(&format!("{kind}-Initial")).filter(|_| is_first);
        let lines = initial.or_else(|| self.field(kind)).filter(|_| fits);
        lines.unwrap_or("").lines().filter(|line| !line.is_empty())
    }
}

/// Writes the files that services include, unless there are any, and `/etc/shadow`.
pub fn install(root: &mut Root) -> Result<(), Error> {
    let mut profiles: Vec<Profile> = Vec::new();
    let directory = Path::new("/usr/share/pam-configs");
    if let Some(Node::Directory(children)) = root.find(directory).map(|id| root.tree().node(id)) {
        for name in children.keys() {
            profiles
                .push(Profile::parse(&root.text(&directory.join(String::from_utf8_lossy(name).as_ref()))));
        }
    }
    profiles.retain(|profile| profile.is_default);
    profiles.sort_by_key(|profile| std::cmp::Reverse(profile.priority));
    for (name, kind) in INCLUDED {
        let template = root.text(Path::new(&format!("/usr/share/pam/common-{name}")));
        if !template.is_empty() {
            let text = fill(&template, &profiles, name, kind);
            root.put_default(&format!("/etc/pam.d/common-{name}"), 0o644, text)?;
        }
    }
    if !profiles.is_empty() {
        root.put_default("/etc/environment", 0o644, "")?;
    }
    shadow(root, "/etc/passwd", "/etc/shadow", "*::0:99999:7:::")?;
    shadow(root, "/etc/group", "/etc/gshadow", "*::")
}

/// The template with its two blocks of modules in place of their markers.
fn fill(template: &str, profiles: &[Profile], name: &str, kind: &str) -> String {
    let is_left_out = |profile: &&Profile| profile.is_interactive_only && name == "session-noninteractive";
    let profiles: Vec<&Profile> = profiles.iter().filter(|profile| !is_left_out(profile)).collect();
    let mut text = String::new();
    for line in template.lines() {
        if line.starts_with('$') {
            let block = if line.ends_with("_primary") { "Primary" } else { "Additional" };
            text.push_str(&modules(&profiles, kind, block));
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The lines of one block. In it, `end` as the number of modules to jump over means the rest of the block.
fn modules(profiles: &[&Profile], kind: &str, block: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for profile in profiles {
        lines.extend(profile.modules(kind, block, lines.is_empty()));
    }
    if lines.is_empty() && block == "Primary" {
        lines.push("[default=1]\tpam_permit.so");
    }
    let kind = kind.to_lowercase();
    let count = lines.len();
    let numbered = lines.iter().enumerate().map(|(index, line)| {
        let line = match line.split_once(']') {
            Some((control, module)) => control.replace("=end", &format!("={}", count - index)) + "]" + module,
            None => (*line).to_owned(),
        };
        format!("{kind}\t{line}\n")
    });
    numbered.collect()
}

/// Writes the file of passwords to a file of accounts, unless there is one: nobody has a password.
fn shadow(root: &mut Root, accounts: &str, path: &str, rest: &str) -> Result<(), Error> {
    let text = root.text(Path::new(accounts));
    let names = text.lines().filter_map(|line| line.split(':').next()).filter(|name| !name.is_empty());
    let lines: String = names.map(|name| format!("{name}:{rest}\n")).collect();
    if !lines.is_empty() && root.find_link(Path::new(path)).is_none() {
        let attributes = Attributes { gid: SHADOW_GID, ..Attributes::root(0o640) };
        root.put(Path::new(path), attributes, Content::File(Source::Bytes(lines.into_bytes())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX: &str = "\
Name: Passwords
Default: yes
Priority: 256
Auth-Type: Primary
Auth:
\t[success=end default=ignore]\tpam_unix.so try_first_pass
Auth-Initial:
\t[success=end default=ignore]\tpam_unix.so
Session-Type: Additional
Session:
\trequired\tpam_unix.so
";
    const OTHER: &str = "\
Default: yes
Priority: 512
Session-Interactive-Only: yes
Auth-Type: Primary
Auth:
\t[success=end default=ignore]\tpam_other.so
\toptional\tpam_more.so
Session-Type: Additional
Session:
\toptional\tpam_home.so
";
    const TEMPLATE: &str = "# before\n$x_primary\n# between\n$x_additional\n# after\n";

    fn filled(texts: &[&str], name: &str, kind: &str) -> String {
        let profiles: Vec<Profile> = texts.iter().map(|text| Profile::parse(text)).collect();
        fill(TEMPLATE, &profiles, name, kind)
    }

    #[test]
    fn the_first_profile_asks_for_the_password() {
        let one = "# before\nauth\t[success=1 default=ignore]\tpam_unix.so\n# between\n# after\n";
        assert_eq!(filled(&[UNIX], "auth", "Auth"), one);
        let two = "# before\nauth\t[success=3 default=ignore]\tpam_other.so\nauth\toptional\tpam_more.so\n\
                   auth\t[success=1 default=ignore]\tpam_unix.so try_first_pass\n# between\n# after\n";
        assert_eq!(filled(&[OTHER, UNIX], "auth", "Auth"), two);
    }

    #[test]
    fn sessions_without_a_user_leave_modules_out() {
        let permit = "# before\nsession\t[default=1]\tpam_permit.so\n# between\n";
        let unix = "session\trequired\tpam_unix.so\n# after\n";
        let home = "session\toptional\tpam_home.so\n";
        assert_eq!(filled(&[OTHER, UNIX], "session", "Session"), format!("{permit}{home}{unix}"));
        assert_eq!(filled(&[OTHER, UNIX], "session-noninteractive", "Session"), format!("{permit}{unix}"));
    }

    #[test]
    fn only_what_is_chosen_by_default_is_installed_and_nobody_has_a_password() {
        let mut root = Root::default();
        let mut put = |path: &str, text: &str| root.put_default(path, 0o644, text).unwrap();
        put("/usr/share/pam-configs/unix", UNIX);
        put("/usr/share/pam-configs/other", &OTHER.replace("Default: yes", "Default: no"));
        put("/usr/share/pam/common-auth", TEMPLATE);
        put("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nuser:x:1:1::/:\n");
        install(&mut root).unwrap();
        let text = |path: &str| root.text(Path::new(path));
        assert_eq!(text("/etc/pam.d/common-auth"), filled(&[UNIX], "auth", "Auth"));
        assert_eq!(text("/etc/pam.d/common-session"), "", "there is no template");
        assert_eq!(text("/etc/shadow"), "root:*::0:99999:7:::\nuser:*::0:99999:7:::\n");
    }
}
