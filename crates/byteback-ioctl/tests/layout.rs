//! The C header agrees with this crate in sizes, offsets and numbers, which a C program prints.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use byteback_ioctl::abi::{self, DeltaClose, DeltaGetdiff, DeltaOpen, DeltaRead};

/// The output of `layout.c`.
fn of_c() -> BTreeMap<String, u64> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../libbyteback");
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("layout");
    let compiled = Command::new("cc")
        .args([
            "-std=c99",
            "-pedantic",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-D_DEFAULT_SOURCE",
            "-I",
        ])
        .arg(library.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(library.join("tests/layout.c"))
        .output()
        .expect("cc is missing; `make dependencies` installs it");
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let output = Command::new(&program).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines()
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn the_header_and_this_crate_agree() {
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    let mut say = |name: &str, value: u64| assert!(expected.insert(name.to_owned(), value).is_none(), "{name}");
    say("BYTEBACK_DELTA_OPEN", abi::DELTA_OPEN.into());
    say("BYTEBACK_DELTA_GETDIFF", abi::DELTA_GETDIFF.into());
    say("BYTEBACK_DELTA_READ", abi::DELTA_READ.into());
    say("BYTEBACK_DELTA_CLOSE", abi::DELTA_CLOSE.into());
    say("BYTEBACK_ABI_VERSION", abi::VERSION.into());
    say("BYTEBACK_CONSUMER_BYTES", abi::CONSUMER_BYTES as u64);
    say("BYTEBACK_RANGES_MAX", abi::RANGES_MAX as u64);
    say("BYTEBACK_READ_BYTES_MAX", abi::READ_BYTES_MAX as u64);
    say("BYTEBACK_NO_MORE", abi::NO_MORE);
    say("BYTEBACK_CLOSE_SAVED", abi::CLOSE_SAVED.into());
    say("BYTEBACK_STATE_RANGES", abi::STATE_RANGES.into());
    say("BYTEBACK_STATE_WHOLE", abi::STATE_WHOLE.into());
    say("BYTEBACK_REASON_NONE", abi::REASON_NONE.into());
    say("BYTEBACK_REASON_CREATED", abi::REASON_CREATED.into());
    say("BYTEBACK_REASON_NO_MARK", abi::REASON_NO_MARK.into());
    say("BYTEBACK_REASON_UNTRACKED", abi::REASON_UNTRACKED.into());
    say("BYTEBACK_REASON_INTERRUPTED", abi::REASON_INTERRUPTED.into());
    say("BYTEBACK_REASON_UNSAVED", abi::REASON_UNSAVED.into());
    say("BYTEBACK_REASON_OTHER", abi::REASON_OTHER.into());
    macro_rules! structure {
        ($c:literal, $name:ident { $($field:ident),* }) => {
            say(concat!("sizeof ", $c), size_of::<$name>() as u64);
            $(say(
                concat!("offsetof ", $c, ".", stringify!($field)),
                offset_of!($name, $field) as u64,
            );)*
        };
    }
    structure!(
        "byteback_ioctl_open",
        DeltaOpen {
            size,
            version,
            since,
            flags,
            reserved0,
            consumer,
            context,
            tree,
            node,
            version_since,
            version_now,
            size_bytes,
            range_count,
            changed_bytes,
            state,
            reason,
            reserved
        }
    );
    structure!(
        "byteback_ioctl_getdiff",
        DeltaGetdiff {
            size,
            version,
            context,
            position,
            next,
            count,
            reserved,
            ranges
        }
    );
    structure!(
        "byteback_ioctl_read",
        DeltaRead {
            size,
            version,
            context,
            offset,
            len_bytes,
            reserved,
            data
        }
    );
    structure!(
        "byteback_ioctl_close",
        DeltaClose {
            size,
            version,
            context,
            flags,
            reserved
        }
    );
    assert_eq!(of_c(), expected);
}
