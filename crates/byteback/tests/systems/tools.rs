//! The programs that storage comes with: those of this machine, and one in whose place another one
//! stands.

use std::path::PathBuf;

use byteback_checksums::Programs;

fn folders() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect()
}

/// Those of this machine.
pub(crate) fn installed() -> Programs {
    Programs::new(folders())
}

/// Where one of them is.
pub(crate) fn path_of(name: &str) -> PathBuf {
    let mut found = folders().into_iter().map(|folder| folder.join(name));
    found.find(|path| path.is_file()).unwrap()
}

/// A program that does what it always does, and at one of its calls something else before or behind
/// that: between two questions of whoever asks it.
pub(crate) struct Interrupted(tempfile::TempDir);

impl Interrupted {
    /// `then` is a script of sh, and is run behind the call with this number, from 0 on.
    pub(crate) fn new(name: &str, number: usize, then: &str) -> Self {
        Self::with(name, number, "", then)
    }

    /// `first` is run before it, when whoever asks has looked at the file already.
    pub(crate) fn before(name: &str, number: usize, first: &str) -> Self {
        Self::with(name, number, first, "")
    }

    fn with(name: &str, number: usize, first: &str, then: &str) -> Self {
        let (folder, real) = (tempfile::tempdir().unwrap(), path_of(name));
        let calls = folder.path().join("calls");
        let script = format!(
            "#!/bin/sh\n\
             PATH='{}'; export PATH\n\
             echo >>'{calls}'\n\
             [ $(wc -l <'{calls}') -ne {number} ] || {{ : ; {first}\n}} >&2\n\
             '{}' \"$@\" || exit\n\
             [ $(wc -l <'{calls}') -ne {number} ] || {{ : ; {then}\n}} >&2\n",
            std::env::var("PATH").unwrap(),
            real.display(),
            number = number + 1,
            calls = calls.display(),
        );
        let program = folder.path().join(name);
        std::fs::write(&program, script).unwrap();
        crate::disk::run("chmod", &["755", crate::disk::text(&program)]);
        Self(folder)
    }

    pub(crate) fn programs(&self) -> Programs {
        Programs::new([vec![self.0.path().to_owned()], folders()].concat())
    }

    /// How often it was called.
    pub(crate) fn calls(&self) -> usize {
        let calls = std::fs::read(self.0.path().join("calls"));
        calls.map_or(0, |calls| calls.len())
    }
}
