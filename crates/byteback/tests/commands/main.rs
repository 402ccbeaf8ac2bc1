//! The real program, command by command, as a user or a script meets it.
//!
//! | part | content |
//! |---|---|
//! | `world` | a temporary directory with a server, a folder and a configuration of their own; running the program in it |
//! | `tour` | everything in order: init, mount, backup, changes by real programs, listings, restore, verify, umount; the sessions of README.md |
//! | `mounting` | background and foreground mounts, other places, other users, busy and dead ones |
//! | `unmounted` | backups of a folder that is not mounted |
//! | `consumers` | silent and dropped consumers, and what `status` reports about everything that is kept |
//! | `checksums` | what `checksums` says about arguments that are no files or have odd names, and about missing programs |
//! | `damage` | flipped bits at the server: salvaged, healed, reported |
//! | `explaining` | how a change was found, and why; forced methods |
//! | `exports` | other programs fed by lists and maps: rsync, restic, tar, rdiff, Borg 2 |
//! | `plain` | `push` and `pull`, without a mount; a push that is killed |
//! | `failing` | full disks, dead servers, wrong tokens, damage, unreadable files: messages, exit codes, the next run |
//! | `health` | exit codes of `status`, for scripts |
//! | `strangers` | thousands of connections without a token during a backup |
//! | `inode_flags` | immutable and append-only files and directories, restored or blocking a restore |
//! | `doubt` | a folder that is perhaps another one, removals that need confirmation, and ways to bring back what sync sent |
//! | `syncing` | continuous sync: what programs write reaches the server, although servers and processes die |
//! | `rot` | bytes that change by themselves, and inconsistent data after a crash of the machine: not sent, and repaired; the order of what is sent |
//! | `undo` | files brought back without a backup, also after a kill |
//! | `volumes` | volumes made, checked, damaged and repaired; two processes that want the same one |
//! | `json` | the JSON lines of every command have exactly the fields that docs/environment.md lists |
//! | `services` | units for systemd: valid, enabled, started, restarted, removed |
//! | `shell` | completions, help, usage errors, readers that go away |
//!
//! Needs root and `/dev/fuse`; without them the tests fail and say so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "these are tests; the lint configuration only recognises test functions, not their helpers"
)]

#[path = "../../../byteback-checksums/tests/btrfs/disk.rs"]
#[allow(dead_code, reason = "shared with other test targets, which use other parts of it")]
mod disk;
#[path = "../../../byteback-daemon/tests/daemon/handles/syscalls.rs"]
#[allow(dead_code, reason = "shared with other test targets, which use other parts of it")]
mod handles;

mod checksums;
mod consumers;
mod damage;
mod doubt;
mod explaining;
mod exports;
mod failing;
mod guide;
mod health;
mod inode_flags;
mod joining;
mod json;
mod mounting;
mod plain;
mod rot;
mod services;
mod shell;
mod strangers;
mod syncing;
mod tour;
mod undo;
mod unmounted;
mod volume_mounts;
mod volumes;
mod world;
