use crate::error::StoreError;
use crate::store::{Store, StoreLimits};

#[test]
fn a_join_token_works_once_and_a_device_token_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    assert!(!store.has_credentials().unwrap());
    let join = store.create_join_token(3600 * 1_000_000_000).unwrap();
    assert!(store.has_credentials().unwrap());
    assert_eq!(join.len(), 4 + 43);
    assert_eq!(
        store.authenticate(&join).unwrap(),
        None,
        "a join token is no device token"
    );
    let (device, token) = store.join(&join, "laptop").unwrap();
    assert!(matches!(store.join(&join, "again"), Err(StoreError::JoinTokenInvalid)));
    assert!(matches!(
        store.join(&token, "device token"),
        Err(StoreError::JoinTokenInvalid)
    ));
    drop(store);

    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    assert_eq!(store.authenticate(&token).unwrap(), Some(device));
    for wrong in ["", "bbd_", &token[..token.len() - 1], &token.to_uppercase()] {
        assert_eq!(store.authenticate(wrong).unwrap(), None);
    }
    let raw = std::fs::read(dir.path().join("catalog.sqlite")).unwrap();
    let wal = std::fs::read(dir.path().join("catalog.sqlite-wal")).unwrap_or_default();
    let secret = &token.as_bytes()[4..];
    assert!(
        ![raw, wal].concat().windows(secret.len()).any(|window| window == secret),
        "tokens are stored hashed"
    );
    let expired = store.create_join_token(-1).unwrap();
    assert!(matches!(
        store.join(&expired, "late"),
        Err(StoreError::JoinTokenInvalid)
    ));
}

#[test]
fn a_store_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    assert!(matches!(
        Store::open(dir.path(), StoreLimits::default()),
        Err(StoreError::InUse(_))
    ));
    drop(store);
    Store::open(dir.path(), StoreLimits::default()).unwrap();
}

#[test]
fn an_invitation_beside_a_serving_process_is_good_at_once() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        super::invite(dir.path(), 1_000_000_000).is_err(),
        "there is no store yet"
    );
    assert!(!dir.path().join("catalog.sqlite").exists(), "asking makes none");
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    let join = super::invite(dir.path(), 3600 * 1_000_000_000).unwrap();
    let (_, token) = store.join(&join, "laptop").unwrap();
    assert!(store.authenticate(&token).unwrap().is_some());
}
