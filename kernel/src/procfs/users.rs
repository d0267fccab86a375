//! The files of user namespaces: `/proc/PID/{uid_map,gid_map,projid_map,setgroups}` and `/proc/sys/user`.

use crate::error::Errno;
use crate::fs::inode::Opening;
use crate::process::Credentials;
use crate::process::namespace_counts::{NamespaceKind, namespaces_max, set_namespaces_max};
use crate::process::user_namespace::{IdKind, Users, is_same, upper};
use crate::procfs::{Subject, Text};

use heddle_kernel_core::id_map::{Extent, NO_ID};
use linux_raw_sys::general as linux;

type Shown = Result<(), Errno>;

fn users(subject: &Subject) -> Result<Users, Errno> {
    Ok(subject.thread()?.credentials().users.clone())
}

/// Lower numbers are those of the reader's namespace, or of the parent if the map is the reader's own.
fn show_map(subject: &Subject, viewer: &Credentials, kind: IdKind, text: &mut Text) -> Shown {
    let users = users(subject)?;
    let Some(own) = &users else {
        return line(text, Extent { first: 0, lower: 0, count: NO_ID });
    };
    let below = if is_same(&viewer.users, &users) { &own.parent } else { &viewer.users };
    for &extent in own.extents(kind) {
        line(text, Extent { lower: upper(below, kind, extent.lower).unwrap_or(NO_ID), ..extent })?;
    }
    Ok(())
}

fn line(text: &mut Text, extent: Extent) -> Shown {
    text.line(format_args!("{:10} {:10} {:10}\n", extent.first, extent.lower, extent.count))
}

macro_rules! maps {
    ($($show:ident $set:ident $kind:ident;)*) => {
        $(
            pub fn $show(subject: &Subject, viewer: &Credentials, text: &mut Text) -> Shown {
                show_map(subject, viewer, IdKind::$kind, text)
            }

            pub fn $set(subject: &Subject, opener: &Credentials, writer: &Credentials, bytes: &[u8]) -> Shown {
                users(subject)?.ok_or(Errno::EPERM)?.write_map(IdKind::$kind, bytes, opener, writer)
            }
        )*
    };
}

maps! {
    user_map set_user_map User;
    group_map set_group_map Group;
    project_map set_project_map Project;
}

pub fn groups(subject: &Subject, _: &Credentials, text: &mut Text) -> Shown {
    let allows = users(subject)?.is_none_or(|users| users.allows_groups());
    text.bytes(if allows { b"allow\n" } else { b"deny\n" })
}

pub fn set_groups(subject: &Subject, opener: &Credentials, bytes: &[u8]) -> Shown {
    const LENGTH_MAX: usize = 7;
    let users = users(subject)?;
    if !opener.is_capable_in(&users, linux::CAP_SYS_ADMIN) {
        return Err(Errno::EACCES);
    }
    let allow = match bytes.trim_ascii_end() {
        _ if bytes.len() > LENGTH_MAX => return Err(Errno::EINVAL),
        b"allow" => true,
        b"deny" => false,
        _ => return Err(Errno::EINVAL),
    };
    match users {
        Some(users) => users.allow_groups(allow),
        // The first has a map of groups from the start.
        None => {
            if allow {
                Ok(())
            } else {
                Err(Errno::EPERM)
            }
        }
    }
}

/// Checks whether somebody may open a limit of their user namespace to write.
///
/// # Errors
/// `EACCES`.
pub fn check_open(opening: &Opening<'_>) -> Shown {
    let may_write =
        opening.thread.is_none_or(|thread| thread.credentials().has_capability(linux::CAP_SYS_RESOURCE));
    let writes = opening.flags_of_call & linux::O_ACCMODE != linux::O_RDONLY;
    if writes && !may_write { Err(Errno::EACCES) } else { Ok(()) }
}

fn set_max(opener: &Credentials, kind: NamespaceKind, bytes: &[u8]) -> Shown {
    if !opener.has_capability(linux::CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let max: u32 = text.trim_ascii().parse().map_err(|_| Errno::EINVAL)?;
    if max > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    set_namespaces_max(&opener.users, kind, max);
    Ok(())
}

macro_rules! maxima {
    ($($show:ident $set:ident $kind:ident;)*) => {
        $(
            pub fn $show(_: &Subject, viewer: &Credentials, text: &mut Text) -> Shown {
                text.line(format_args!("{}\n", namespaces_max(&viewer.users, NamespaceKind::$kind)))
            }

            pub fn $set(_: &Subject, opener: &Credentials, bytes: &[u8]) -> Shown {
                set_max(opener, NamespaceKind::$kind, bytes)
            }
        )*
    };
}

maxima! {
    groups_max set_groups_max Groups;
    ipc_max set_ipc_max Ipc;
    mounts_max set_mounts_max Mounts;
    users_max set_users_max User;
    names_max set_names_max Names;
    networks_max set_networks_max Network;
    pids_max set_pids_max Pids;
    times_max set_times_max Times;
}
