//! Tests of the options of overlays.

use alloc::vec;

use super::*;

fn invalid(text: &[u8]) -> bool {
    OverlayOptions::parse(text) == Err(OptionError::Invalid)
}

#[test]
fn layers_are_read_from_the_top() {
    let options = OverlayOptions::parse(b"lowerdir=/a:/b,upperdir=/u,workdir=/w").unwrap();
    assert_eq!(options.lowers, [b"/a".to_vec(), b"/b".to_vec()]);
    assert_eq!(options.upper, Some(b"/u".to_vec()));
    assert_eq!(options.work, Some(b"/w".to_vec()));
    assert!(!options.has_user_marks);
}

#[test]
fn a_backslash_protects_a_letter() {
    let options = OverlayOptions::parse(b"lowerdir=/a\\:b:/c\\,d,userxattr").unwrap();
    assert_eq!(options.lowers, [b"/a:b".to_vec(), b"/c,d".to_vec()]);
    assert!(options.has_user_marks);
    assert_eq!(plain(b"end\\"), Ok(b"end\\".to_vec()));
    assert_eq!(parts(b"a\\", b',').collect::<Vec<_>>(), vec![b"a\\"]);
}

#[test]
fn what_makes_no_overlay_is_refused() {
    assert!(invalid(b""));
    assert!(invalid(b"lowerdir=/a"));
    assert!(invalid(b"lowerdir=/a:"));
    assert!(invalid(b"lowerdir=/a,upperdir=/u"));
    assert!(invalid(b"lowerdir=/a,workdir=/w"));
    assert!(invalid(b"upperdir=/u,workdir=/w"));
    assert!(invalid(b"lowerdir=/a:/b,other"));
    assert!(invalid(b"lowerdir=/a:/b,redirect_dir=on"));
    assert!(OverlayOptions::parse(b"lowerdir=/a:/b,redirect_dir=off,index=off,volatile").is_ok());
}

#[test]
fn there_are_only_so_many_layers() {
    let mut text = b"lowerdir=/0".to_vec();
    (1..LOWERS_MAX).for_each(|_| text.extend_from_slice(b":/1"));
    assert!(OverlayOptions::parse(&text).is_ok());
    text.extend_from_slice(b":/1");
    assert!(invalid(&text));
}
