//! Bytes that are on disks and in changelogs: a change here breaks every state that exists.

use super::*;

#[test]
fn keys_and_values_are_the_documented_ones() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    state.put(LATEST, &key(b'a'), b"row", 0x0102);
    state.delete(LATEST, &key(b'b'));
    state.put_version(VERSIONED, &key(b'a'), 5, Some(b"v"), 0).expect("state reads");
    state.put_version(VERSIONED, &key(b'a'), 6, None, 0).expect("state reads");
    state.put_waiting(WAITING, -1, 7, b"w");

    let columns = r#"[{"name":"id","type":"STRING","nullable":true},{"name":"name","type":"STRING","nullable":true}]"#;
    let slot = |number: u16, kind: &str| {
        let key = r#"[{"name":"id","type":"STRING","nullable":true}]"#;
        Some(format!(r#"{{"number":{number},"kind":"{kind}","key":{key}}}"#).into_bytes())
    };
    let layout = || Some(columns.as_bytes().to_vec());
    let expected: Changes = vec![
        (b"\0\0l\0\x01\0\x01".to_vec(), layout()),
        (b"\0\0l\0\x02\0\x01".to_vec(), layout()),
        (b"\0\0l\0\x03\0\x01".to_vec(), layout()),
        (b"\0\0sjoined".to_vec(), slot(3, "Waiting")),
        (b"\0\0stable customers".to_vec(), slot(2, "Versioned")),
        (b"\0\0stable planes".to_vec(), slot(1, "Latest")),
        (b"\0\x01a\0\0".to_vec(), Some(b"\x01\0\x02\x01\0\0\0\0\0\0row".to_vec())),
        (b"\0\x01b\0\0".to_vec(), None),
        (b"\x40\x02a\0\0\x7f\xff\xff\xff\xff\xff\xff\xf9".to_vec(), Some(vec![0; 10])),
        (b"\x40\x02a\0\0\x7f\xff\xff\xff\xff\xff\xff\xfa".to_vec(), Some(b"\x01\0\0\0\0\0\0\0\0\0v".to_vec())),
        (
            b"\x80\x03\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\x07".to_vec(),
            Some(b"\x01\0\0\0\0\0\0\0\0\0w".to_vec()),
        ),
    ];
    assert_eq!(changes(&state), expected);
}

#[test]
fn the_marker_says_where_the_changelog_goes_on() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    assert_eq!(state.marker().expect("state reads"), None);
    state.apply(b"{}", 42).expect("disk has room");
    drop(state);
    assert_eq!(open(dir.path()).marker().expect("state reads"), Some((b"{}".to_vec(), 42)));
}

#[test]
fn records_that_are_no_state_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut state = open(dir.path());
    for (key, value) in [
        (&b"\0\0sx"[..], Some(&b"{}"[..])),
        (b"\0\0sx", Some(br#"{"number":0,"kind":"Latest","key":[]}"#)),
        (b"\0\0sx", None),
        (b"\0\0l\0", Some(b"[]")),
        (b"\0\0m", Some(b"")),
        (b"\0\0", Some(b"")),
        (b"\xff\xffk", Some(b"")),
        (b"\0", None),
    ] {
        let error = state.replay(key, value).expect_err("must be refused");
        assert!(matches!(error, StateError::Record(_)), "{key:?}: {error}");
    }
    assert!(!state.dirty());
}
