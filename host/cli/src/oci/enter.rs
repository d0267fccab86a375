//! The container's files as tools of the host see them who enter the mount name space of the container's process, as
//! `podman cp` does: they must find the container's root there, and never the host's.
#![allow(unsafe_code)] // unshare(2) changes what other threads may rely on, which rustix makes unsafe to ask for.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use anyhow::{Context, Result};
use heddle_linux_init::MountKind;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change, move_mount, open_tree,
    unmount,
};
use rustix::process::{fchdir, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::bundle::Bundle;

/// Gives the calling thread a mount name space whose root is the container's, with its volumes. Other threads of the
/// process stay where they are.
///
/// # Errors
/// If this process may not do that.
pub fn enter(bundle: &Bundle) -> Result<()> {
    let root = bundle.shares.first().context("no root")?;
    // SAFETY: descriptors stay shared; only what this thread finds by path changes.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("a mount name space")?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE).context("its mounts")?;
    let tree = |path: &Path| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        open_tree(CWD, path, flags).with_context(|| path.display().to_string())
    };
    let mounts = bundle.task.container.iter().flat_map(|container| &container.mounts);
    let volumes: Vec<(OwnedFd, &str)> = mounts
        .filter_map(|mount| {
            let MountKind::Bind(guest) = &mount.kind else { return None };
            let share = bundle.shares.iter().find(|share| share.guest == *guest)?;
            Some(tree(&share.host).map(|tree| (tree, mount.target.as_str())))
        })
        .collect::<Result<_>>()?;
    let tree = tree(&root.host)?;
    attach(&tree, &File::open(&root.host).context("the root")?.into())?;
    let new = File::open(&root.host).context("the root")?;
    fchdir(&new).context("the root")?;
    // The old root comes to lie on the new one, and is taken away.
    pivot_root(".", ".").context("changing the root")?;
    unmount(".", UnmountFlags::DETACH).context("leaving the host's root")?;
    rustix::process::chdir("/").context("the root")?;
    for (tree, target) in volumes {
        // The root is the container's now, so no link leads out of it. A root that can't be written has all it needs.
        let _ = std::fs::create_dir_all(target);
        if let Some(place) = find(target) {
            attach(&tree, &place).with_context(|| target.to_owned())?;
        }
    }
    Ok(())
}

fn find(target: &str) -> Option<OwnedFd> {
    let is_plain = Path::new(target).components().all(|part| !matches!(part, Component::ParentDir));
    let root = File::open("/").ok().filter(|_| is_plain)?;
    let path = target.trim_start_matches('/');
    openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT).ok()
}

fn attach(tree: &OwnedFd, place: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", place, "", flags).context("showing a folder")
}
