//! The competitors, one file each.

pub mod bitmap;
pub mod heddle;
pub mod kara;
pub mod kogan;
pub mod leanstore;
pub mod map;
pub mod skiplist;
pub mod song;
pub mod spin;
pub mod stripes;
