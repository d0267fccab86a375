//! Propagation of mounts: peers, slaves, and what reaches whom.

use std::fs;
use std::path::Path;

use nix::errno::Errno;

use crate::harness::{OrFail, Outcome};
use crate::mounts::{Stage, bind, line_at, lines_below, mount, umount};
use crate::{expect, expect_eq};

crate::tests! {
    peers_show_each_others_mounts
    a_slave_gets_and_does_not_give
    a_slave_can_be_shared_too
    a_private_copy_of_a_shared_mount
    unmounting_reaches_peers
    a_busy_peer_keeps_the_mount
    a_mount_below_is_not_lost_to_propagation
    a_tree_propagates_whole
    groups_that_end_leave_their_slaves_to_those_above
    kinds_are_set_for_whole_trees
}

/// A shared mount `name`, and a further one that shows the same.
fn pair(stage: &Stage) -> Result<(std::path::PathBuf, std::path::PathBuf), String> {
    let (one, two) = (stage.mounted("one")?, stage.directory("two")?);
    fs::create_dir(one.join("point")).or_fail()?;
    mount(None, &one, None, libc::MS_SHARED).or_fail()?;
    bind(&one, &two, 0).or_fail()?;
    Ok((one, two))
}

fn add(at: &Path) -> Result<(), String> {
    mount(Some("new"), at, Some("tmpfs"), 0).or_fail()?;
    fs::write(at.join("file"), "").or_fail()
}

fn peers_show_each_others_mounts() -> Outcome {
    let stage = Stage::new("peers")?;
    let (one, two) = pair(&stage)?;
    let group = line_at(&one)?.number("shared");
    expect!(group.is_some());
    expect_eq!(line_at(&two)?.number("shared"), group);
    add(&one.join("point"))?;
    expect!(two.join("point/file").exists());
    // The new mount and its copy are peers, too.
    let inner = line_at(&one.join("point"))?.number("shared");
    expect!(inner.is_some() && inner != group);
    expect_eq!(line_at(&two.join("point"))?.number("shared"), inner);
    fs::create_dir(two.join("point/deeper")).or_fail()?;
    add(&two.join("point/deeper"))?;
    expect!(one.join("point/deeper/file").exists());
    Ok(())
}

fn a_slave_gets_and_does_not_give() -> Outcome {
    let stage = Stage::new("slave")?;
    let (one, two) = pair(&stage)?;
    fs::create_dir(one.join("other")).or_fail()?;
    mount(None, &two, None, libc::MS_SLAVE).or_fail()?;
    let line = line_at(&two)?;
    expect_eq!(line.number("master"), line_at(&one)?.number("shared"));
    expect_eq!(line.number("shared"), None);
    add(&one.join("point"))?;
    expect!(two.join("point/file").exists());
    expect_eq!(line_at(&two.join("point"))?.number("master"), line_at(&one.join("point"))?.number("shared"));
    add(&two.join("other"))?;
    expect!(!one.join("other/file").exists());
    // A mount without peers can't be anybody's slave, and stays as it is.
    let alone = stage.mounted("alone")?;
    mount(None, &alone, None, libc::MS_SLAVE).or_fail()?;
    expect_eq!(line_at(&alone)?.optional.len(), 0);
    Ok(())
}

fn a_slave_can_be_shared_too() -> Outcome {
    let stage = Stage::new("slave-shared")?;
    let (one, two) = pair(&stage)?;
    let three = stage.directory("three")?;
    mount(None, &two, None, libc::MS_SLAVE).or_fail()?;
    mount(None, &two, None, libc::MS_SHARED).or_fail()?;
    bind(&two, &three, 0).or_fail()?;
    let (first, second, third) = (line_at(&one)?, line_at(&two)?, line_at(&three)?);
    expect_eq!(second.number("master"), first.number("shared"));
    expect_eq!(third.number("master"), first.number("shared"));
    expect!(second.number("shared").is_some());
    expect_eq!(second.number("shared"), third.number("shared"));
    add(&one.join("point"))?;
    expect!(two.join("point/file").exists() && three.join("point/file").exists());
    let (first, second) = (line_at(&one.join("point"))?, line_at(&two.join("point"))?);
    expect_eq!(second.number("master"), first.number("shared"));
    expect_eq!(line_at(&three.join("point"))?.number("shared"), second.number("shared"));
    umount(&one.join("point"), 0).or_fail()?;
    expect_eq!(lines_below(&two)?.len() + lines_below(&three)?.len(), 2);
    add(&three.join("point"))?;
    expect!(two.join("point/file").exists() && !one.join("point/file").exists());
    Ok(())
}

fn a_private_copy_of_a_shared_mount() -> Outcome {
    let stage = Stage::new("private")?;
    let (one, two) = pair(&stage)?;
    mount(None, &two, None, libc::MS_PRIVATE).or_fail()?;
    expect_eq!(line_at(&two)?.optional.len(), 0);
    add(&one.join("point"))?;
    expect!(!two.join("point/file").exists());
    // A bind of a private mount is private, of a slave a slave.
    let three = stage.directory("three")?;
    bind(&two, &three, 0).or_fail()?;
    expect_eq!(line_at(&three)?.optional.len(), 0);
    let (four, five) = (stage.directory("four")?, stage.directory("five")?);
    bind(&one, &four, 0).or_fail()?;
    mount(None, &four, None, libc::MS_SLAVE).or_fail()?;
    bind(&four, &five, 0).or_fail()?;
    expect_eq!(line_at(&five)?.number("master"), line_at(&one)?.number("shared"));
    Ok(())
}

fn unmounting_reaches_peers() -> Outcome {
    let stage = Stage::new("umount-peers")?;
    let (one, two) = pair(&stage)?;
    add(&one.join("point"))?;
    umount(&two.join("point"), 0).or_fail()?;
    expect_eq!((lines_below(&one)?.len(), lines_below(&two)?.len()), (1, 1));
    add(&one.join("point"))?;
    umount(&two.join("point"), libc::MNT_DETACH).or_fail()?;
    expect_eq!((lines_below(&one)?.len(), lines_below(&two)?.len()), (1, 1));
    Ok(())
}

fn a_busy_peer_keeps_the_mount() -> Outcome {
    let stage = Stage::new("umount-busy")?;
    let (one, two) = pair(&stage)?;
    add(&one.join("point"))?;
    let file = fs::File::open(two.join("point/file")).or_fail()?;
    expect_eq!(umount(&one.join("point"), 0), Err(Errno::EBUSY));
    drop(file);
    umount(&one.join("point"), 0).or_fail()?;
    // A copy in which something is mounted stays.
    mount(None, &two, None, libc::MS_SLAVE).or_fail()?;
    add(&one.join("point"))?;
    fs::create_dir(two.join("point/inner")).or_fail()?;
    add(&two.join("point/inner"))?;
    umount(&one.join("point"), 0).or_fail()?;
    expect!(two.join("point/inner/file").exists());
    expect_eq!(line_at(&two.join("point"))?.number("master"), None);
    Ok(())
}

fn a_mount_below_is_not_lost_to_propagation() -> Outcome {
    let stage = Stage::new("tuck")?;
    let (one, two) = pair(&stage)?;
    mount(None, &two, None, libc::MS_SLAVE).or_fail()?;
    mount(Some("own"), &two.join("point"), Some("tmpfs"), 0).or_fail()?;
    fs::write(two.join("point/own"), "").or_fail()?;
    add(&one.join("point"))?;
    // The copy goes under the mount that is there.
    expect!(two.join("point/own").exists() && !two.join("point/file").exists());
    expect_eq!(lines_below(&two.join("point"))?.len(), 2);
    umount(&one.join("point"), 0).or_fail()?;
    expect!(two.join("point/own").exists());
    expect_eq!(lines_below(&two.join("point"))?.len(), 1);
    expect_eq!(line_at(&two.join("point"))?.parent, line_at(&two)?.id);
    Ok(())
}

fn a_tree_propagates_whole() -> Outcome {
    let stage = Stage::new("tree")?;
    let (one, two) = pair(&stage)?;
    let tree = stage.mounted("tree")?;
    let _inner = stage.mounted("tree/inner")?;
    fs::write(tree.join("inner/file"), "").or_fail()?;
    bind(&tree, &one.join("point"), libc::MS_REC).or_fail()?;
    expect!(two.join("point/inner/file").exists());
    expect_eq!(lines_below(&two)?.len(), 3);
    umount(&one.join("point"), libc::MNT_DETACH).or_fail()?;
    expect_eq!((lines_below(&one)?.len(), lines_below(&two)?.len()), (1, 1));
    // A part of a peer gets what is mounted in that part, and nothing else.
    fs::create_dir_all(one.join("part/point")).or_fail()?;
    let three = stage.directory("three")?;
    bind(&one.join("part"), &three, 0).or_fail()?;
    add(&one.join("part/point"))?;
    expect!(three.join("point/file").exists());
    add(&one.join("point"))?;
    expect_eq!(lines_below(&three)?.len(), 2);
    Ok(())
}

fn groups_that_end_leave_their_slaves_to_those_above() -> Outcome {
    let stage = Stage::new("chain")?;
    let (one, two) = pair(&stage)?;
    let three = stage.directory("three")?;
    mount(None, &two, None, libc::MS_SLAVE).or_fail()?;
    mount(None, &two, None, libc::MS_SHARED).or_fail()?;
    bind(&two, &three, 0).or_fail()?;
    mount(None, &three, None, libc::MS_SLAVE).or_fail()?;
    expect_eq!(line_at(&three)?.number("master"), line_at(&two)?.number("shared"));
    // The last member of the group in between goes.
    umount(&two, 0).or_fail()?;
    expect_eq!(line_at(&three)?.number("master"), line_at(&one)?.number("shared"));
    add(&one.join("point"))?;
    expect!(three.join("point/file").exists());
    umount(&one.join("point"), 0).or_fail()?;
    expect_eq!(lines_below(&three)?.len(), 1);
    mount(None, &one, None, libc::MS_PRIVATE).or_fail()?;
    expect_eq!(line_at(&three)?.optional.len(), 0);
    Ok(())
}

fn kinds_are_set_for_whole_trees() -> Outcome {
    let stage = Stage::new("recursive")?;
    let one = stage.mounted("one")?;
    let inner = stage.mounted("one/inner")?;
    mount(None, &one, None, libc::MS_SHARED | libc::MS_REC).or_fail()?;
    expect!(line_at(&one)?.number("shared").is_some() && line_at(&inner)?.number("shared").is_some());
    mount(None, &one, None, libc::MS_UNBINDABLE).or_fail()?;
    expect_eq!(line_at(&one)?.optional, ["unbindable"]);
    expect!(line_at(&inner)?.number("shared").is_some());
    mount(None, &one, None, libc::MS_SHARED | libc::MS_SILENT).or_fail()?;
    expect!(line_at(&one)?.number("shared").is_some());
    expect_eq!(line_at(&one)?.optional.len(), 1);
    mount(None, &one, None, libc::MS_PRIVATE | libc::MS_REC).or_fail()?;
    expect_eq!(line_at(&inner)?.optional.len(), 0);
    Ok(())
}
