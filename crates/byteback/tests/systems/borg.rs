//! Files in a repository of Borg, which stores them as lists of chunks: recipes of them, made as
//! docs/formats/recipe.md says, verified against Borg's output, and synced.

use std::path::PathBuf;
use std::process::Command;

use byteback_checksums::source::Source;
use byteback_sources::deduplicated::DeduplicatedFile;

use crate::btrfs::versions;
use crate::disk::{run, text};
use crate::program::checksums;
use crate::sky;

/// A repository without encryption, so that chunks are named by their SHA-256.
struct Repository(tempfile::TempDir);

impl Repository {
    fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("byteback-borg-").tempdir_in("/var/tmp");
        let repository = Self(folder.unwrap());
        repository.borg(&["init", "-e", "none", "repository"]);
        repository
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The standard output of a Borg command.
    fn borg(&self, arguments: &[&str]) -> Vec<u8> {
        let output = Command::new("borg")
            .args(arguments)
            .current_dir(self.0.path())
            .env("BORG_BASE_DIR", self.at("base"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Saves a content. Returns a recipe of it, with a folder of its chunks, which are cut from
    /// Borg's output.
    fn put(&self, name: &str, content: &[u8]) -> PathBuf {
        std::fs::write(self.at(name), content).unwrap();
        let archive = format!("repository::{name}");
        self.borg(&["create", "--chunker-params", "buzhash,12,18,16,4095", &archive, name]);
        self.borg(&["debug", "dump-archive", &archive, "dump.json"]);
        let page = include_str!("../../../../docs/formats/recipe.md");
        let (_, script) = page.split_once("```python\n").unwrap();
        let (script, _) = script.split_once("```").unwrap();
        std::fs::write(self.at("recipe.py"), script).unwrap();
        let chunks = self.at(&format!("{name}.chunks"));
        std::fs::create_dir(&chunks).unwrap();
        let recipe = self.at(&format!("{name}.recipe"));
        let output = Command::new("python3")
            .args([&self.at("recipe.py"), &self.at("dump.json")])
            .args([name, text(&chunks)])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::write(&recipe, &output.stdout).unwrap();
        let bytes = self.borg(&["extract", "--stdout", &archive, name]);
        let mut rest = &bytes[..];
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            // The lines of chunks begin with a digit.
            let Some((Ok(len), sum)) = line.split_once(' ').map(|(len, sum)| (len.parse::<usize>(), sum)) else {
                continue;
            };
            let (chunk, behind) = rest.split_at(len);
            std::fs::write(chunks.join(sum), chunk).unwrap();
            rest = behind;
        }
        assert!(rest.is_empty());
        recipe
    }
}

#[test]
fn recipes_of_what_borg_keeps_are_true_and_say_what_is_new() {
    let repository = Repository::new();
    let (old, new) = versions(8 << 20);
    let (base, source) = (repository.put("old", &old), repository.put("new", &new));
    for (recipe, content) in [(&base, &old), (&source, &new)] {
        let said = checksums(format!("recipe:{}", text(recipe)), &[]).fine();
        assert_eq!(
            (said["source"].as_str(), said["kind"].as_str()),
            (Some("recipe"), Some("sha256"))
        );
        assert_eq!(said["verified"]["bytes"], content.len());
        let chunks = said["verified"]["blocks"].as_u64().unwrap();
        assert!(chunks > 40, "{chunks}");
    }
    let (base, source) = (DeduplicatedFile::recipe(base), DeduplicatedFile::recipe(source));
    let synced = sky::named(&base, &source, &new);
    assert_eq!(synced.base_read_bytes, 0);
    assert_eq!(synced.new_read_bytes, synced.stats.literal_bytes);
    // Four places, and the end; a chunk has 256 KiB at most.
    assert!(synced.stats.literal_bytes < 8 * (256 << 10), "{:?}", synced.stats);
    // A repository that dropped a chunk, and one that has other bytes under its name.
    let chunks = repository.at("new.chunks");
    let victim = std::fs::read_dir(&chunks).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&victim).unwrap();
    std::fs::write(&victim, vec![0; bytes.len()]).unwrap();
    checksums(format!("recipe:{}", text(&repository.at("new.recipe"))), &[])
        .fails_with("does not match its fingerprint");
    run("rm", &[text(&victim)]);
    checksums(format!("recipe:{}", text(&repository.at("new.recipe"))), &[]).fails_with("is not in the store");
    let said = source.collect().unwrap();
    assert_eq!(said.stamp().len_bytes, new.len() as u64);
}
