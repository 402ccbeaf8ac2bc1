//! The documentation of the environment is the one generated from this file.

use super::*;
use crate::exit_code;

/// Beginning of the hand-written part.
const BY_HAND: &str = "\n## Files\n";

/// The required content of `docs/environment.md`, down to the hand-written part.
fn document() -> String {
    let mut text = String::from(
        "# Environment, configuration, exit codes, JSON lines\n\n\
         <!-- Down to \"Exit codes\" made from crates/byteback/src/environment.rs and exit_code.rs: a test compares, and\n     \
         with BYTEBACK_BLESS=1 it writes that part anew. What follows is written by hand; the test target `commands`\n     \
         compares the tables of the JSON lines with what the program prints. -->\n\n\
         Precedence: flag, environment variable, `$XDG_CONFIG_HOME/byteback/config.toml`, `/etc/byteback/config.toml`, default.\n\n\
         ## Environment variables\n\n| variable | meaning |\n|---|---|\n",
    );
    for variable in VARIABLES {
        text.push_str(&format!("| `{}` | {} |\n", variable.name, variable.meaning));
    }
    text.push_str(
        "\nAn empty variable counts as not set.\n\n\
         ## Configuration\n\n```toml\n[defaults]\nrepo = \"https://backup.example.org:7117/mail\"\n\
         token_file = \"/etc/byteback/token\"\nprogress_fps = 2\nundo_window = \"30m\"\nundo_budget = \"1G\"\n\n\
         [log]\ngranularity = \"byte\"      # byte, page or adaptive\nextents_per_file = 131072 # ranges of one file that are kept apart\n\
         extents_memory_mib = 16   # for the ranges of all files between two checkpoints; then the closest ones are joined\n\
         consumers = 1000          # programs with marks of their own; half of them if they only save single files\n\
         warn_after_days = 90      # of a consumer's silence\ndrop_after_days = 180\n```\n\n\
         ## Exit codes\n\n| code | meaning |\n|---|---|\n",
    );
    for (code, meaning) in exit_code::MEANINGS {
        text.push_str(&format!("| {code} | {meaning} |\n"));
    }
    text
}

#[test]
fn the_documentation_lists_exactly_what_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/environment.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (made, by_hand) = found.split_once(BY_HAND).unwrap_or((&found, ""));
    if std::env::var_os("BYTEBACK_BLESS").is_some() {
        std::fs::write(&path, format!("{}{BY_HAND}{by_hand}", document())).unwrap();
        return;
    }
    assert!(
        made == document(),
        "docs/environment.md is old; run this test with BYTEBACK_BLESS=1"
    );
}

#[test]
fn no_other_file_reads_the_environment() {
    fn check(folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                check(&path);
            } else if !path.ends_with("environment.rs") && !path.ends_with("environment/tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for reading in ["env::var", "env::vars", "var_os("] {
                    assert!(!text.contains(reading), "{} reads the environment", path.display());
                }
            }
        }
    }
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}

#[test]
fn folders_follow_the_xdg_rules() {
    let home = |home: &str| Environment {
        home: Some(home.into()),
        ..Environment::default()
    };
    assert_eq!(
        home("/home/a").config_dir().unwrap(),
        Path::new("/home/a/.config/byteback")
    );
    assert_eq!(
        home("/home/a").state_root(false).unwrap(),
        Path::new("/home/a/.local/state/byteback")
    );
    assert_eq!(
        home("/home/a").state_root(true).unwrap(),
        Path::new("/var/lib/byteback")
    );
    assert_eq!(Environment::default().state_root(false), None);
    let xdg = Environment {
        xdg_state_home: Some("/s".into()),
        xdg_config_home: Some("/c".into()),
        ..home("/home/a")
    };
    assert_eq!(xdg.state_root(false).unwrap(), Path::new("/s/byteback"));
    assert_eq!(xdg.config_dir().unwrap(), Path::new("/c/byteback"));
    let named = Environment {
        state_dir: Some("/n".into()),
        ..xdg
    };
    assert_eq!(named.state_root(true).unwrap(), Path::new("/n"));
}
