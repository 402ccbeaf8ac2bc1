use super::*;
use crate::store::StoreLimits;

const HOUR_NS: i64 = 3600 * 1_000_000_000;

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    (dir, store)
}

fn to(folder: &str, writes: bool) -> NewInvitation {
    NewInvitation {
        folder: Some(folder.to_owned()),
        writes,
        name: String::new(),
        valid_ns: HOUR_NS,
    }
}

fn own_token() -> String {
    token::draw_device_token(&RealRandomness).unwrap()
}

#[test]
fn a_join_token_works_once_and_a_device_token_for_good() {
    let (dir, store) = store();
    assert!(!store.roster().has_credentials().unwrap());
    let join = store.create_join_token(HOUR_NS).unwrap();
    assert!(store.roster().has_credentials().unwrap());
    let authenticate = |store: &Store, token: &str| store.roster().authenticate(token, None).unwrap();
    assert_eq!(authenticate(&store, &join), None, "a join token is no device token");
    let first = store.roster().join(&join, "laptop", None).unwrap();
    let token = first.token;
    let refused = |token: &str| store.roster().join(token, "x", None).unwrap_err();
    assert!(matches!(refused(&join), StoreError::JoinTokenUsed));
    assert!(matches!(refused(&token), StoreError::JoinTokenUnknown));
    let never = "bbj_AAAAAAAAAAAAAAAAAAAAAA";
    assert!(matches!(refused(never), StoreError::JoinTokenUnknown));
    let expired = store.create_join_token(-1).unwrap();
    assert!(matches!(refused(&expired), StoreError::JoinTokenExpired));
    let withdrawn = store.roster().invite(&to("f", true)).unwrap();
    store.roster().withdraw(withdrawn.id).unwrap();
    assert!(matches!(refused(&withdrawn.token), StoreError::JoinTokenWithdrawn));
    assert!(matches!(
        store.roster().withdraw(withdrawn.id + 1),
        Err(StoreError::InvitationNotFound(_))
    ));
    drop(store);

    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    assert_eq!(authenticate(&store, &token).unwrap().device, first.device);
    for wrong in ["", "bbd_", &token[..token.len() - 1], &token.to_uppercase()] {
        assert_eq!(authenticate(&store, wrong), None);
    }
    let raw = std::fs::read(dir.path().join("catalog.sqlite")).unwrap();
    let wal = std::fs::read(dir.path().join("catalog.sqlite-wal")).unwrap_or_default();
    let secret = &token.as_bytes()[4..];
    assert!(
        ![raw, wal].concat().windows(secret.len()).any(|window| window == secret),
        "tokens are stored hashed"
    );
}

#[test]
fn join_repeated_after_a_lost_answer_is_the_same_device() {
    let (_dir, store) = store();
    let roster = store.roster();
    let invited = roster.invite(&to("mail", true)).unwrap();
    assert!(invited.folder_is_new);
    let own = own_token();
    let first = roster.join(&invited.token, "laptop", Some(&own)).unwrap();
    assert_eq!(roster.join(&invited.token, "laptop", Some(&own)).unwrap(), first);
    let other = roster.join(&invited.token, "thief", Some(&own_token()));
    assert!(matches!(other, Err(StoreError::JoinTokenUsed)));
    assert_eq!(roster.devices().unwrap().len(), 1);
    // A revoked device cannot join again.
    roster.revoke(first.device).unwrap();
    let again = roster.join(&invited.token, "laptop", Some(&own));
    assert!(matches!(again, Err(StoreError::DeviceRevoked(_))));
    let bad = roster.join(&invited.token, "laptop", Some("bbd_short"));
    assert!(matches!(bad, Err(StoreError::InvalidParameter(_))));
}

#[test]
fn a_device_has_the_folders_that_it_was_given_and_no_others() {
    let (_dir, store) = store();
    let roster = store.roster();
    let own = own_token();
    let join = |invitation: &NewInvitation| {
        let invited = roster.invite(invitation).unwrap();
        roster.join(&invited.token, "laptop", Some(&own)).unwrap()
    };
    let reading = roster.invite(&to("missing", false));
    assert!(matches!(reading, Err(StoreError::FolderNotFound(_))));
    join(&to("mail", true));
    store.create_folder("photos").unwrap();
    join(&to("photos", false));
    // An invitation takes nothing away.
    join(&to("mail", false));
    let access = |folder| roster.authenticate(&own, Some(folder)).unwrap().unwrap().folder;
    assert_eq!(access("mail"), FolderAccess::Writes);
    assert_eq!(access("photos"), FolderAccess::Reads);
    assert_eq!(access("other"), FolderAccess::Nothing);
    let devices = roster.devices().unwrap();
    assert_eq!(devices.len(), 1, "the same device three times");
    assert!(!devices[0].manages && devices[0].folders.len() == 2);
    join(&to("photos", true));
    assert_eq!(access("photos"), FolderAccess::Writes);
    join(&NewInvitation::to_manage(HOUR_NS));
    assert_eq!(access("other"), FolderAccess::Writes);
    assert!(roster.device(devices[0].id).unwrap().manages);
}

#[test]
fn names_come_from_the_invitation_first_and_can_be_changed() {
    let (_dir, store) = store();
    let roster = store.roster();
    let named = NewInvitation {
        name: "kitchen".to_owned(),
        ..to("f", true)
    };
    let invited = roster.invite(&named).unwrap();
    assert_eq!(roster.invitations().unwrap()[0].name, "kitchen");
    let joined = roster.join(&invited.token, "localhost", None).unwrap();
    assert_eq!(joined.name, "kitchen");
    assert!(roster.invitations().unwrap().is_empty());
    roster.rename(joined.device, "cellar").unwrap();
    assert_eq!(roster.device(joined.device).unwrap().name, "cellar");
    let long = "x".repeat(256);
    for wrong in ["", " ", "a\nb", &long] {
        let refused = roster.rename(joined.device, wrong);
        assert!(matches!(refused, Err(StoreError::InvalidParameter(_))), "{wrong:?}");
    }
    assert!(matches!(roster.rename(99, "x"), Err(StoreError::DeviceNotFound(99))));
    assert!(matches!(roster.revoke(99), Err(StoreError::DeviceNotFound(99))));
}

#[test]
fn a_revoked_device_is_told_so_and_the_rest_goes_on() {
    let (_dir, store) = store();
    let roster = store.roster();
    let mut devices = [0, 1].map(|_| {
        let token = store.create_join_token(HOUR_NS).unwrap();
        roster.join(&token, "d", None).unwrap()
    });
    roster.revoke(devices[0].device).unwrap();
    let since = roster.device(devices[0].device).unwrap().revoked_ns;
    roster.revoke(devices[0].device).unwrap();
    assert_eq!(roster.device(devices[0].device).unwrap().revoked_ns, since);
    let refused = roster.authenticate(&devices[0].token, None);
    assert!(matches!(refused, Err(StoreError::DeviceRevoked(id)) if id == devices[0].device));
    assert!(roster.authenticate(&devices[1].token, None).unwrap().is_some());
    devices.reverse();
    roster.revoke(devices[0].device).unwrap();
    assert!(!roster.has_credentials().unwrap(), "the next start invites somebody");
}

#[test]
fn an_invitation_beside_a_serving_process_is_good_at_once() {
    let dir = tempfile::tempdir().unwrap();
    assert!(RosterFile::open(dir.path()).is_err(), "there is no store yet");
    assert!(!dir.path().join("catalog.sqlite").exists(), "asking makes none");
    let store = Store::open(dir.path(), StoreLimits::default()).unwrap();
    let beside = RosterFile::open(dir.path()).unwrap();
    let invited = beside.roster().invite(&NewInvitation::to_manage(HOUR_NS)).unwrap();
    let joined = store.roster().join(&invited.token, "laptop", None).unwrap();
    assert!(store.roster().authenticate(&joined.token, None).unwrap().is_some());
    beside.roster().revoke(joined.device).unwrap();
    assert!(store.roster().authenticate(&joined.token, None).is_err());
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
