//! Successive versions of real packages (SkySync, section 4.3; Fig. 14 to 17).
//!
//! Packages are fetched by the registries' own programs when the suite runs, checked against the
//! hashes below, and kept beside the build. Each version is unpacked and packed into one tar with
//! sorted names and without times, so that versions differ in content alone. A package that cannot
//! be fetched (Debian's archive drops old versions) is left out with a message.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::micro::{TestBed, table};
use super::{Findings, tell};
use crate::figure::Figure;
use crate::rig::process::{program, run as run_program};
use crate::rig::scratch;
use crate::{Options, SuiteError};

/// The origin of a package.
#[derive(Clone, Copy, Debug)]
enum Registry {
    Npm,
    Python,
    Debian,
    Crates,
}

/// A version of a package.
#[derive(Clone, Copy, Debug)]
struct Version {
    number: &'static str,
    /// The name of the package file.
    file: &'static str,
    sha256: &'static str,
}

/// Two versions of a package.
#[derive(Clone, Copy, Debug)]
struct Pair {
    name: &'static str,
    registry: Registry,
    old: Version,
    new: Version,
}

const PAIRS: [Pair; 5] = [
    Pair {
        name: "perl-modules-5.36",
        registry: Registry::Debian,
        old: Version {
            number: "5.36.0-7+deb12u3",
            file: "perl-modules-5.36_5.36.0-7+deb12u3_all.deb",
            sha256: "3d237ccb1ea32727b6573d43c67d78337aa928a81148d36cef54b369a07c240a",
        },
        new: Version {
            number: "5.36.0-7+deb12u4",
            file: "perl-modules-5.36_5.36.0-7+deb12u4_all.deb",
            sha256: "3ed38ffa8320e9bf7597cefa01b6a6ace4a08ccc77cdfd15ef7d8b711dea7166",
        },
    },
    Pair {
        name: "linux-libc-dev",
        registry: Registry::Debian,
        old: Version {
            number: "6.1.176-1",
            file: "linux-libc-dev_6.1.176-1_amd64.deb",
            sha256: "8bb258735b9dffbb111da778ebdd024750878e435ffd9dfcadcb6762ede6b4cf",
        },
        new: Version {
            number: "6.1.192-2",
            file: "linux-libc-dev_6.1.192-2_amd64.deb",
            sha256: "e0632f8e55ec0d2d1c56f9c65a8bcb64ad5d79add297266bc89c616dfef9a7fe",
        },
    },
    Pair {
        name: "typescript",
        registry: Registry::Npm,
        old: Version {
            number: "5.4.5",
            file: "typescript-5.4.5.tgz",
            sha256: "154fae77169f04155ac52d521ac59abb07c9be29ea3744732adbf9f14abb2440",
        },
        new: Version {
            number: "5.5.2",
            file: "typescript-5.5.2.tgz",
            sha256: "2f12d2e95610c573b778ac0669497440626c07d6aae6865171e246fce96ddda0",
        },
    },
    Pair {
        name: "botocore",
        registry: Registry::Python,
        old: Version {
            number: "1.34.100",
            file: "botocore-1.34.100-py3-none-any.whl",
            sha256: "ee516fb9e9e906d311f2a9921afaf79c594db239a5b4b626e89e6960401aad0b",
        },
        new: Version {
            number: "1.34.110",
            file: "botocore-1.34.110-py3-none-any.whl",
            sha256: "1edf3a825ec0a5edf238b2d42ad23305de11d5a71bb27d6f9a58b7e8862df1b6",
        },
    },
    Pair {
        name: "libsqlite3-sys",
        registry: Registry::Crates,
        old: Version {
            number: "0.28.0",
            file: "libsqlite3-sys-0.28.0.crate",
            sha256: "0c10584274047cb335c23d3e61bcef8e323adae7c5c8c760540f73610177fc3f",
        },
        new: Version {
            number: "0.30.1",
            file: "libsqlite3-sys-0.30.1.crate",
            sha256: "2e99fb7a497b1e3339bc746195567ed8d3e24945ecd636e3619d20b9de9e9149",
        },
    },
];

/// Runs the part.
///
/// # Errors
/// If a finder fails, or its result is not the new version. A missing package is no error.
pub(crate) fn run(options: Options, packages: Option<&Path>) -> Result<Findings, SuiteError> {
    let folder = match packages {
        Some(folder) => folder.to_owned(),
        None => std::env::current_exe()?
            .ancestors()
            .nth(2)
            .ok_or("cannot find the target folder")?
            .join("skysync-packages"),
    };
    fs::create_dir_all(&folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let pairs = if options.quick { &PAIRS[..1] } else { &PAIRS[..] };
    let mut panels = Vec::new();
    for pair in pairs {
        tell(&format!("{} {} and {}", pair.name, pair.old.number, pair.new.number));
        let tars = tar_of(&folder, pair, pair.old).and_then(|old| Ok((old, tar_of(&folder, pair, pair.new)?)));
        let (old, new) = match tars {
            Ok(tars) => tars,
            Err(error) => {
                tell(&format!("without {}: {error}", pair.name));
                continue;
            }
        };
        let (old, new) = (fs::read(old)?, fs::read(new)?);
        let test_bed = TestBed::make(old.len().max(new.len()) as u64)?;
        let results = test_bed.measure(&old, &new, options.runs)?;
        let title = format!(
            "{} {} to {}: {} bytes to {}",
            pair.name,
            pair.old.number,
            pair.new.number,
            old.len(),
            new.len()
        );
        panels.push(table(&title, &results));
    }
    let figure = Figure {
        id: "pairs",
        title: "Successive versions of real packages (Fig. 14 to 17)".to_owned(),
        about: "Each version unpacked and put into one tar; measured as the changes of 256 bytes are.".to_owned(),
        panels,
    };
    Ok(Findings {
        figures: vec![figure],
        goals: Vec::new(),
    })
}

/// The tar of a version, created at first use.
fn tar_of(folder: &Path, pair: &Pair, version: Version) -> Result<PathBuf, SuiteError> {
    let tar = folder.join(format!("{}.tar", version.file));
    if tar.is_file() {
        return Ok(tar);
    }
    let package = folder.join(version.file);
    if !package.is_file() {
        fetch(folder, pair, version)?;
    }
    let found: String = Sha256::digest(fs::read(&package)?)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if found != version.sha256 {
        fs::remove_file(&package)?;
        return Err(format!("{} has the SHA-256 {found}, not {}", version.file, version.sha256).into());
    }
    let unpacked = folder.join(format!("{}.unpacked", version.file));
    if unpacked.exists() {
        scratch::remove(&unpacked)?;
    }
    fs::create_dir(&unpacked)?;
    let mut unpack = match pair.registry {
        Registry::Npm | Registry::Crates => {
            let mut tar = program("tar");
            // Without the first folder, whose name may contain the version.
            tar.args(["--strip-components=1", "-xzf"]).arg(&package).arg("-C");
            tar
        }
        Registry::Python => {
            let mut python = program("python3");
            python.args(["-m", "zipfile", "-e"]).arg(&package);
            python
        }
        Registry::Debian => {
            let mut dpkg = program("dpkg-deb");
            dpkg.arg("-x").arg(&package);
            dpkg
        }
    };
    run_program(unpack.arg(&unpacked))?;
    let partial = folder.join(format!("{}.partial", version.file));
    let mut pack = program("tar");
    pack.args([
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "-cf",
    ]);
    run_program(pack.arg(&partial).arg("-C").arg(&unpacked).arg("."))?;
    fs::rename(&partial, &tar)?;
    scratch::remove(&unpacked)?;
    Ok(tar)
}

/// Fetches the file of a version into the folder.
fn fetch(folder: &Path, pair: &Pair, version: Version) -> Result<(), SuiteError> {
    let run_in = |command: &mut Command| run_program(command.current_dir(folder));
    match pair.registry {
        Registry::Npm => {
            let what = format!("{}@{}", pair.name, version.number);
            run_in(program("npm").args(["pack", "--silent", &what]))?;
        }
        Registry::Python => {
            let what = format!("{}=={}", pair.name, version.number);
            run_in(program("python3").args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", &what]))?;
        }
        Registry::Debian => {
            let what = format!("{}={}", pair.name, version.number);
            run_in(program("apt-get").args(["--quiet", "download", &what]))?;
        }
        Registry::Crates => fetch_crate(folder, pair.name, version)?,
    }
    Ok(())
}

/// Fetches a crate through a package that depends on it, as cargo has no other way.
fn fetch_crate(folder: &Path, name: &str, version: Version) -> Result<(), SuiteError> {
    let work = folder.join("cargo");
    fs::create_dir_all(work.join("src"))?;
    fs::write(work.join("src/lib.rs"), "")?;
    let number = version.number;
    let manifest = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n{name} = \"={number}\"\n"
    );
    fs::write(work.join("Cargo.toml"), manifest)?;
    let _ = fs::remove_file(work.join("Cargo.lock"));
    run_program(program("cargo").args(["fetch", "--quiet"]).current_dir(&work))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    for registry in fs::read_dir(home.ok_or("cannot find the home folder")?.join("registry/cache"))? {
        let file = registry?.path().join(version.file);
        if file.is_file() {
            fs::copy(&file, folder.join(version.file))?;
            return Ok(());
        }
    }
    Err(format!("cargo fetch did not bring {}", version.file).into())
}
