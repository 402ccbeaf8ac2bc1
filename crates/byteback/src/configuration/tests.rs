//! Layers and mistakes of configuration files.

use super::*;

fn parsed(text: &str) -> Result<Configuration> {
    parse(text, Path::new("config.toml"))
}

#[test]
fn the_users_file_lies_over_the_systems() {
    let system = parsed("[defaults]\nrepo = \"http://host/a\"\nprogress_fps = 2").unwrap();
    let user = parsed("[defaults]\nrepo = \"http://host/b\"").unwrap();
    let both = user.defaults.over(system.defaults);
    assert_eq!(both.repo.as_deref(), Some("http://host/b"));
    assert_eq!(both.progress_fps, Some(2.0));
    assert_eq!(parsed("").unwrap(), Configuration::default());
}

#[test]
fn the_log_is_kept_as_the_files_say() {
    let day = Duration::from_secs(24 * 60 * 60);
    let system = parsed("[log]\ngranularity = \"page\"\nwarn_after_days = 7").unwrap();
    let user = parsed("[log]\ngranularity = \"adaptive\"\nextents_per_file = 12\nextents_memory_mib = 3\nconsumers = 3\ndrop_after_days = 30")
        .unwrap();
    let both = user.log.over(system.log).options();
    assert_eq!(
        (both.granularity, both.extents_per_file_max, both.consumers_max),
        (Granularity::Adaptive, 12, 3)
    );
    assert_eq!(both.extents_memory_bytes, 3 << 20);
    assert_eq!((both.expiry.warn_after, both.expiry.drop_after), (day * 7, day * 30));
    assert_eq!(LogSection::default().options(), LogOptions::default());
    for wrong in [
        "granularity = \"bit\"",
        "extents_per_file = 0",
        "extents_memory_mib = 0",
        "consumers = 0",
        "drop_after_days = -1",
        "extents = 5",
    ] {
        assert!(parsed(&format!("[log]\n{wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn a_misspelt_key_is_told() {
    let Err(CommandError::Failed(failure)) = parsed("[defaults]\nrepos = \"http://host/a\"") else {
        panic!("a misspelt key was accepted");
    };
    assert!(failure.message.contains("repos"), "{}", failure.message);
    assert!(failure.next.unwrap().contains("token_file"));
}
