//! The programs of storage systems: those of this machine, and one that is replaced by a wrapper.

use std::path::PathBuf;

use byteback_sources::Programs;

fn folders() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap()).collect()
}

/// The programs of this machine.
pub(crate) fn installed() -> Programs {
    Programs::new(folders())
}

/// Path of one of them.
pub(crate) fn path_of(name: &str) -> PathBuf {
    let mut found = folders().into_iter().map(|folder| folder.join(name));
    found.find(|path| path.is_file()).unwrap()
}

/// A wrapper of a program that, at one of its calls, also runs a script before or after it: between
/// two questions of its caller.
pub(crate) struct Interrupted(tempfile::TempDir);

impl Interrupted {
    /// Runs `then`, a script of sh, after the call with this number, counted from 0.
    pub(crate) fn new(name: &str, number: usize, then: &str) -> Self {
        Self::with(name, number, "", then)
    }

    /// Runs `first` before that call, when the caller has already looked at the file.
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

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> usize {
        let calls = std::fs::read(self.0.path().join("calls"));
        calls.map_or(0, |calls| calls.len())
    }
}
