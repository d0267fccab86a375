//! Announcements of the host about its files.
//!
//! A host that watches a folder says so, and then which names have changed. Only what is kept of these is asked about
//! again. The guest's own changes come back as announcements too: then the host is asked once more, and nothing else.

use alloc::sync::Arc;
use core::any::Any;

use heddle_abi::control::ShareChanged;

use crate::fs::Dentry;
use crate::fs::share::kept;
use crate::fs::share::names::KnownName;
use crate::fs::share::node::SharedNode;
use crate::fs::share::server::Server;
use crate::fs::share::state::FileState;

/// The server of a folder.
fn server(folder: u32) -> Option<Arc<Server>> {
    (0..).map_while(kept::nth).flatten().find(|server| server.folder == folder)
}

/// Changes in this folder are announced from now on, or not any more.
pub fn watched(folder: u32, is_watched: bool) {
    if let Some(server) = server(folder) {
        server.set_watched(is_watched);
    }
}

fn state_of(entry: &Dentry) -> Option<Arc<FileState>> {
    let node: &dyn Any = &*entry.node;
    node.downcast_ref::<SharedNode>().map(|node| node.state.clone())
}

/// The state of the file of this name in a directory, if it is kept.
fn below(server: &Server, state: &FileState, name: &[u8]) -> Option<Arc<FileState>> {
    match state.find_name(name) {
        KnownName::Present { entry, .. } => state_of(&entry),
        KnownName::Absent => None,
        KnownName::Nothing => {
            server.unknown_name();
            None
        }
    }
}

/// Something may have changed.
pub fn changed(changed: &ShareChanged<'_>) {
    if changed.folder == ShareChanged::ALL {
        kept::announce();
        return;
    }
    let Some(root) = server(changed.folder).and_then(|server| server.root()) else { return };
    let (server, mut state) = (root.server(), root.state.clone());
    for name in changed.directory.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let Some(next) = below(server, &state, name) else { return };
        state = next;
    }
    state.expire(server);
    if changed.name.is_empty() {
        return;
    }
    let file = below(server, &state, changed.name);
    state.distrust_name(changed.name);
    if let Some(file) = file {
        file.expire(server);
    }
}
