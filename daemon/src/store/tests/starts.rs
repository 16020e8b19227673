//! State directories that a start finds and refuses.

use super::*;

/// A copy of the directory as `kill -9` at this moment would leave it.
fn crashed(dir: &tempfile::TempDir) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in ["state.db", "state.db-wal", "last-change"] {
        let _ = std::fs::copy(dir.path().join(file), copy.path().join(file));
    }
    copy
}

fn refusal(dir: &tempfile::TempDir) -> String {
    let error = Store::open(&dir.path().join("state.db"), StoreOptions::default()).unwrap_err();
    error.to_string()
}

#[test]
fn a_database_that_lacks_acknowledged_changes_is_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let file = |dir: &tempfile::TempDir, name: &str| dir.path().join(name);
    run(&store, pool("A"));
    let in_file = || {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(file(&dir, "state.db"), file(&copy, "state.db")).unwrap();
        Store::open(&file(&copy, "state.db"), StoreOptions::default())
            .is_ok_and(|store| store.catalog().pools.len() == 1)
    };
    eventually("a checkpoint", in_file);
    // The open read transaction keeps later changes from being checkpointed into the file.
    let reader = rusqlite::Connection::open(file(&dir, "state.db")).unwrap();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM pools;")
        .unwrap();
    run(&store, register(&[1, 2, 3], "A"));
    let whole = crashed(&dir);
    let lost = crashed(&dir);
    std::fs::remove_file(file(&lost, "state.db-wal")).unwrap();
    let damaged = crashed(&dir);
    let mut wal = std::fs::read(file(&damaged, "state.db-wal")).unwrap();
    wal[8..64].fill(0xa5);
    std::fs::write(file(&damaged, "state.db-wal"), wal).unwrap();
    let gone = crashed(&dir);
    std::fs::remove_file(file(&gone, "state.db")).unwrap();
    for dir in [&lost, &damaged, &gone] {
        let before = std::fs::read(file(dir, "state.db")).ok();
        let said = refusal(dir);
        let (what, promised) = match before {
            Some(_) => ("lacks changes", "says 2"),
            None => ("is missing", "acknowledged change 2"),
        };
        assert!(said.contains(what) && said.contains(promised), "{said}");
        assert!(
            said.contains(&file(dir, "last-change").display().to_string()),
            "{said}"
        );
        assert_eq!(
            std::fs::read(file(dir, "state.db")).ok(),
            before,
            "left as it was"
        );
    }
    assert_eq!(open(&whole).catalog().vms.len(), 3);
    // The documented way to go on without the lost changes.
    std::fs::remove_file(file(&lost, "last-change")).unwrap();
    assert!(open(&lost).catalog().vms.is_empty());
}

#[test]
fn nonsense_in_the_state_directory_is_refused_with_the_file_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    run(&store, pool("A"));
    run(&store, register(&[1, 2], "A"));
    drop(store);
    for nonsense in ["x", "18446744073709551000"] {
        let copy = crashed(&dir);
        std::fs::write(copy.path().join("last-change"), nonsense).unwrap();
        let said = refusal(&copy);
        let file = copy.path().join("last-change").display().to_string();
        assert!(
            said.contains(&file) && said.contains("remove the file"),
            "{said}"
        );
    }
    let most = i64::MAX;
    let changes = [
        format!(
            "UPDATE sqlite_sequence SET seq = {most}; UPDATE audit SET seq = {most} WHERE seq = 2"
        ),
        format!(
            "INSERT INTO events VALUES ({most}, 1, '\"daemon-started\"', '\"info\"', NULL, NULL, NULL, NULL, '')"
        ),
        "UPDATE settings SET value = '18446744073709551000' WHERE key = 'last_generation'".into(),
        format!("UPDATE vms SET generation = {most} WHERE vm_id = 1"),
        "UPDATE vms SET name = '../../etc/x' WHERE vm_id = 1".into(),
        "UPDATE vms SET factor_percent = 0".into(),
        "UPDATE vms SET registered_ms = -1".into(),
        "UPDATE vms SET vm_id = 5000000000 WHERE vm_id = 1".into(),
        "UPDATE pools SET settings = '{\"slice_us\":0}'".into(),
        "UPDATE pools SET settings = 'x'".into(),
        "PRAGMA foreign_keys = off; DELETE FROM pools".into(),
    ];
    for change in changes {
        let copy = crashed(&dir);
        rusqlite::Connection::open(copy.path().join("state.db"))
            .unwrap()
            .execute_batch(&change)
            .unwrap();
        let said = refusal(&copy);
        let file = copy.path().join("state.db").display().to_string();
        assert!(
            said.contains(&file) && said.contains("backup"),
            "{change}: {said}"
        );
    }
    open(&dir);
}
