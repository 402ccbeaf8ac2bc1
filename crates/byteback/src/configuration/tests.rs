//! Layers and mistakes of configuration files.

use super::*;

fn parsed(text: &str) -> Result<Defaults> {
    parse(text, Path::new("config.toml"))
}

#[test]
fn the_users_file_lies_over_the_systems() {
    let system = parsed("[defaults]\nrepo = \"http://host/a\"\nprogress_fps = 2").unwrap();
    let user = parsed("[defaults]\nrepo = \"http://host/b\"").unwrap();
    let both = user.over(system);
    assert_eq!(both.repo.as_deref(), Some("http://host/b"));
    assert_eq!(both.progress_fps, Some(2.0));
    assert_eq!(parsed("").unwrap(), Defaults::default());
}

#[test]
fn a_misspelt_key_is_told() {
    let Err(CommandError::Failed(failure)) = parsed("[defaults]\nrepos = \"http://host/a\"") else {
        panic!("a misspelt key was accepted");
    };
    assert!(failure.message.contains("repos"), "{}", failure.message);
    assert!(failure.next.unwrap().contains("token_file"));
}
