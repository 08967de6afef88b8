//! Whatever happens to the files: the right answer, or `Corrupt`.

use std::fs;
use std::path::PathBuf;

use super::*;

const ROWS: u8 = 200;
const EPOCHS: i64 = 6;

/// What was true behind each epoch: each writes all rows anew.
fn row(name: u8, epoch: i64) -> Vec<u8> {
    format!("row {name} of epoch {epoch}").into_bytes()
}

fn write_epochs(dir: &Path) {
    let mut state = open(dir);
    for epoch in 1..=EPOCHS {
        for name in 0..ROWS {
            state.put(LATEST, &key(name), &row(name, epoch), 0);
            state.put_version(VERSIONED, &key(name), epoch, Some(&row(name, epoch)), 0).expect("state reads");
        }
        state.apply(&[], epoch).expect("disk has room");
        state.flush().expect("disk has room");
    }
}

/// Reads everything and compares it with the epoch that the state claims to be at.
fn check(dir: &Path) -> Result<(), StateError> {
    let mut state = try_open(dir, &layouts())?;
    let epoch = state.marker()?.map_or(0, |(_, next)| next);
    for name in 0..ROWS {
        let expected = (epoch > 0).then(|| row(name, epoch));
        let found = bytes(state.get(LATEST, &key(name), 0)?);
        assert_eq!(found, expected, "row {name} of epoch {epoch}");
        for time in 1..=epoch {
            assert_eq!(bytes(state.as_of(VERSIONED, &key(name), time)?), Some(row(name, time)));
        }
    }
    Ok(())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("directory is there");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("entry is there").path()).collect();
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("directory can be made");
    for file in files(from) {
        fs::copy(&file, to.join(file.file_name().expect("is a file"))).expect("file can be copied");
    }
}

/// Damages each file by `damage`, at places spread over it, and gives how often the damage was found.
fn damage_each_file(places: usize, damage: impl Fn(&mut Vec<u8>, usize)) -> usize {
    let root = tempfile::tempdir().expect("temporary directory");
    let whole = root.path().join("whole");
    write_epochs(&whole);
    let mut found = 0;
    for (i, file) in files(&whole).into_iter().enumerate() {
        let content = fs::read(&file).expect("file can be read");
        for place in 0..places.min(content.len()) {
            let broken = root.path().join(format!("{i}-{place}"));
            copy(&whole, &broken);
            let mut content = content.clone();
            let at = content.len() * place / places;
            damage(&mut content, at);
            fs::write(broken.join(file.file_name().expect("is a file")), content).expect("file can be written");
            match check(&broken) {
                Ok(()) => {}
                Err(StateError::Corrupt(_)) => found += 1,
                Err(other) => panic!("{} damaged at {at}: {other}", file.display()),
            }
            TaskState::destroy(&broken).expect("directory can be removed");
            assert!(!broken.exists());
        }
    }
    found
}

#[test]
fn a_flipped_bit_in_any_file_is_never_a_wrong_answer() {
    let found = damage_each_file(40, |content, at| content[at] ^= 0x10);
    assert!(found > 20, "only {found} damages were found: the files are not what they were");
}

#[test]
fn a_file_that_is_cut_short_is_never_a_wrong_answer() {
    let found = damage_each_file(6, |content, at| content.truncate(at));
    assert!(found > 3, "only {found} damages were found");
}

#[test]
fn a_file_that_is_gone_is_never_a_wrong_answer() {
    let root = tempfile::tempdir().expect("temporary directory");
    let whole = root.path().join("whole");
    write_epochs(&whole);
    let mut found = 0;
    for (i, file) in files(&whole).into_iter().enumerate() {
        let broken = root.path().join(i.to_string());
        copy(&whole, &broken);
        fs::remove_file(broken.join(file.file_name().expect("is a file"))).expect("file can be removed");
        match check(&broken) {
            Ok(()) => {}
            Err(StateError::Corrupt(_)) => found += 1,
            Err(other) => panic!("without {}: {other}", file.display()),
        }
    }
    assert!(found > 0);
}

#[test]
fn a_damaged_state_can_be_destroyed_and_built_again() {
    let root = tempfile::tempdir().expect("temporary directory");
    let dir = root.path().join("state");
    write_epochs(&dir);
    for file in files(&dir).iter().filter(|file| file.extension().is_some_and(|e| e == "sst")) {
        fs::write(file, b"not a table").expect("file can be written");
    }
    assert!(matches!(check(&dir), Err(StateError::Corrupt(_))));
    TaskState::destroy(&dir).expect("directory can be removed");
    assert_eq!(open(&dir).marker().expect("state reads"), None);
    TaskState::destroy(&root.path().join("never was")).expect("nothing to remove is fine");
}
